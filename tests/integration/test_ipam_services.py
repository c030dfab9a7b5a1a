"""Pod CIDRs from real processes: disjoint, one of each family, from any replica."""

from contextlib import AsyncExitStack
from ipaddress import ip_network
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from libs.common.contract.services import CLAIM_PAGES_NAMESPACE, DEFAULT_SERVICES, IPAM
from libs.common.contract.subjects import STREAM
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_processes import ServiceProcesses
from services.ipam.pages import NAME_PREFIX
from tests.bus_actors import wait_until
from tests.integration.conftest import StartServices, operating
from tests.integration.processes import a_process
from tests.integration.service_cluster import FORMS, ServiceCluster

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


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
async def test_nodes_that_join_get_disjoint_pod_cidrs_of_both_families(
    cluster: ServiceCluster, nats_server: NatsServer, form: dict[str, Any]
):
    await serve(cluster, **{"nats_url": nats_server.url} | form)
    mark = cluster.server.audit_mark()
    await join(cluster, 0, COUNT)
    assert_disjoint(await wait_for_pod_cidrs(cluster, COUNT))
    done = cluster.server.audit_counts(mark)
    writes = sum(n for r, n in done.items() if r.resource == "configmaps" and r.verb in ("create", "update"))
    assert writes <= COUNT, "Nodes share writes"
    assert all(
        r.succeeded for r in done if r.resource in ("nodes", "configmaps") and r.user.startswith("talos-ccm")
    )


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


async def test_three_replicas_share_the_work_and_two_of_them_finish_it_when_one_is_killed(
    cluster: ServiceCluster, nats_server: NatsServer, tmp_path: Path
):
    services = await serve(cluster, nats_url=nats_server.url)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            replica = a_process(
                tmp_path,
                "services.ipam",
                f"--kubeconfig={cluster.server.kubeconfig('talos-ccm-ipam')}",
                f"--nats-url={nats_server.url}",
                *FLAGS,
            )
            await (await stack.enter_async_context(replica)).serves()
        await join(cluster, 0, COUNT)
        await services.children["ipam"].kill()
        await join(cluster, COUNT, COUNT)
        assert_disjoint(await wait_for_pod_cidrs(cluster, 2 * COUNT, seconds=90.0))


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


async def test_on_the_real_control_plane_nodes_get_their_pod_cidrs_with_the_rights_of_the_wiring(
    control_plane: ControlPlane,
    start_services: StartServices,
    kubelets: KubeletFleet,
    machines: MachineFleet,
):
    some = [make_machine(f"real-pods-{n}", f"10.231.0.{n + 1}") for n in range(10)]
    names = {machine.name for machine in some}
    await machines.put_machines(*some)
    since = control_plane.audit_mark()
    await start_services(wirings=(*DEFAULT_SERVICES, IPAM), flags=FLAGS)
    await kubelets.join_all(SimKubelet.of_machine(machine) for machine in some)

    async def given() -> dict[str, tuple[str, ...]]:
        nodes = (await kubelets.request("GET", "/api/v1/nodes")).body["items"]
        found = {node["metadata"]["name"]: tuple(node["spec"].get("podCIDRs", ())) for node in nodes}
        return {name: cidrs for name, cidrs in found.items() if name in names and cidrs}

    async def all_given() -> bool:
        return (await given()).keys() == names

    await wait_until(all_given, "all have pod CIDRs", 60)
    assert_disjoint(await given())
    refused = [
        request
        for request in control_plane.audit_counts(since)
        if request.user == "talos-ccm-ipam" and not request.succeeded
    ]
    assert refused == []
    for machine in some:
        await kubelets.delete_node(machine.name)
        await machines.delete_machines(machine.id)
    found = (await kubelets.request("GET", f"/api/v1/namespaces/{CLAIM_PAGES_NAMESPACE}/configmaps")).body[
        "items"
    ]
    for page in found:
        if page["metadata"]["name"].startswith(NAME_PREFIX):
            path = f"/api/v1/namespaces/{CLAIM_PAGES_NAMESPACE}/configmaps/{page['metadata']['name']}"
            await kubelets.request("DELETE", path)
