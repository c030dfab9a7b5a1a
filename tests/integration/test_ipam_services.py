"""Pod CIDRs from real processes: disjoint, one of each family, from any replica."""

from ipaddress import ip_network
from itertools import combinations
from typing import Any

import pytest

from libs.common.contract.services import DEFAULT_SERVICES, IPAM
from libs.common.contract.subjects import STREAM
from libs.testbed.machine_fleet import make_machine
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_processes import ServiceProcesses
from tests.bus_actors import wait_until
from tests.integration.conftest import operating
from tests.integration.service_cluster import ServiceCluster

COUNT = 50
PODS = ("10.244.0.0/16", "fd00:10:244::/48")
FLAGS = [
    "--allocate-node-cidrs",
    f"--cluster-cidr={','.join(PODS)}",
    "--service-cluster-ip-range=10.96.0.0/12,fd00:10:96::/112",
]


async def serve(cluster: ServiceCluster, name: str = "services", **options: Any) -> ServiceProcesses:
    """Start our services with ipam."""
    return await cluster.serve(name, **({"wirings": (*DEFAULT_SERVICES, IPAM), "flags": FLAGS} | options))


async def join(cluster: ServiceCluster, first: int, count: int) -> None:
    """Start that many machines with a kubelet on each."""
    numbers = range(first, first + count)
    await cluster.join(*(make_machine(f"pods-{n}", f"10.230.{n // 250}.{n % 250 + 1}") for n in numbers))


async def get_pod_cidrs(cluster: ServiceCluster) -> dict[str, tuple[str, ...]]:
    """Pod CIDRs by Node name."""
    nodes = await cluster.list_nodes()
    return {node["metadata"]["name"]: tuple(node["spec"].get("podCIDRs", ())) for node in nodes}


async def wait_for_pod_cidrs(
    cluster: ServiceCluster, count: int, seconds: float = 40.0
) -> dict[str, tuple[str, ...]]:
    """The pod CIDRs by Node name, once that many Nodes have some."""

    async def have_pod_cidrs() -> bool:
        return sum(map(bool, (await get_pod_cidrs(cluster)).values())) == count

    await wait_until(have_pod_cidrs, f"{count} nodes have pod CIDRs", seconds)
    return await get_pod_cidrs(cluster)


def assert_disjoint(given: dict[str, tuple[str, ...]]) -> None:
    """Each Node has one of each family inside the pools, and no two overlap."""
    for cidrs in given.values():
        assert [ip_network(cidr).version for cidr in cidrs] == [4, 6]
        assert all(
            ip_network(cidr).subnet_of(ip_network(pool))  # type: ignore[arg-type]
            for cidr, pool in zip(cidrs, PODS, strict=True)
        )
    for family in (0, 1):
        blocks = [ip_network(cidrs[family]) for cidrs in given.values()]
        assert not any(one.overlaps(other) for one, other in combinations(blocks, 2))


@pytest.fixture
def cluster(simulated_cluster: ServiceCluster) -> ServiceCluster:
    return simulated_cluster


async def test_without_being_asked_for_nobody_gets_pod_cidrs(
    cluster: ServiceCluster, nats_server: NatsServer
):
    services = await serve(cluster, nats_url=nats_server.url, all_in_one=True, bus="memory", flags=[])
    await join(cluster, 0, 3)
    report = await services.fetch_page("all-in-one", "/readyz?verbose")
    assert "labeler ok" in report
    assert "ipam" not in report
    await cluster.wait_until_initialized(3, 40)
    assert not any((await get_pod_cidrs(cluster)).values())


async def test_nats_that_loses_everything_in_the_middle_leads_to_no_second_block(
    cluster: ServiceCluster, nats_server: NatsServer
):
    await serve(cluster, nats_url=nats_server.url)
    await join(cluster, 0, 20)
    async with operating(nats_server) as operator:
        await operator.delete_stream(STREAM)
    await join(cluster, 20, 20)
    given = await wait_for_pod_cidrs(cluster, 40, seconds=90.0)
    assert_disjoint(given)


async def test_a_process_that_is_killed_in_the_middle_finds_its_claims_when_it_starts_again(
    cluster: ServiceCluster, nats_server: NatsServer
):
    services = await serve(cluster, nats_url=nats_server.url, all_in_one=True, bus="memory")
    await join(cluster, 0, 20)
    await services.children["all-in-one"].kill()
    before = {name: cidrs for name, cidrs in (await get_pod_cidrs(cluster)).items() if cidrs}
    services.restart("all-in-one")
    await join(cluster, 20, 20)
    given = await wait_for_pod_cidrs(cluster, 40, seconds=90.0)
    assert_disjoint(given)
    assert before.items() <= given.items()
