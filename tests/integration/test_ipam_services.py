"""Pod CIDRs through our processes as they are run: disjoint, one of each family, whoever gives them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from ipaddress import ip_network
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from libs.common.contract.node import UNINITIALIZED_TAINT
from libs.common.contract.services import CLAIM_PAGES_NAMESPACE, DEFAULT_SERVICES, IPAM
from libs.common.contract.subjects import STREAM
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_processes import ServiceProcesses
from libs.testbed.sim_apiserver.server import SimApiServer
from services.ipam.pages import NAME_PREFIX
from tests.bus_actors import wait_until
from tests.integration.conftest import StartServices, operating
from tests.integration.processes import a_process

COUNT = 50
PODS = ("10.244.0.0/16", "fd00:10:244::/48")
FLAGS = [
    "--allocate-node-cidrs",
    f"--cluster-cidr={','.join(PODS)}",
    "--service-cluster-ip-range=10.96.0.0/12,fd00:10:96::/112",
]


class Cluster:
    """A simulated API server, kubelets and machines; our services are started on it."""

    def __init__(
        self,
        stack: AsyncExitStack,
        server: SimApiServer,
        kubelets: KubeletFleet,
        machines: MachineFleet,
        run_dir: Path,
    ) -> None:
        self.server = server
        self.kubelets = kubelets
        self._stack = stack
        self._machines = machines
        self._run_dir = run_dir

    async def serve(self, name: str = "services", **options: Any) -> ServiceProcesses:
        """Our services with ipam among them, ready."""
        starting = ServiceProcesses.start(
            self._run_dir / name,
            self.server,
            self.kubelets,
            talosconfig=self._machines.write_talosconfig(),
            wirings=(*DEFAULT_SERVICES, IPAM),
            **({"flags": FLAGS} | options),
        )
        services = await self._stack.enter_async_context(starting)
        await services.wait_until_ready()
        return services

    async def join(self, first: int, count: int) -> None:
        """That many machines, and a kubelet on each."""
        some = [
            make_machine(f"pods-{n}", f"10.230.{n // 250}.{n % 250 + 1}") for n in range(first, first + count)
        ]
        await self._machines.put_machines(*some)
        self._stack.push_async_callback(self._machines.delete_machines, *(machine.id for machine in some))
        await self.kubelets.join_all(SimKubelet.of_machine(machine) for machine in some)

    async def pod_cidrs(self) -> dict[str, tuple[str, ...]]:
        """By node."""
        nodes = (await self.kubelets.request("GET", "/api/v1/nodes")).body["items"]
        return {node["metadata"]["name"]: tuple(node["spec"].get("podCIDRs", ())) for node in nodes}

    async def usable(self, count: int) -> None:
        """Return when that many nodes are initialized."""

        async def initialized() -> bool:
            nodes = (await self.kubelets.request("GET", "/api/v1/nodes")).body["items"]
            taints = [taint["key"] for node in nodes for taint in node["spec"].get("taints", [])]
            return len(nodes) == count and UNINITIALIZED_TAINT not in taints

        await wait_until(initialized, "all usable", 40.0)

    async def all_served(self, count: int, seconds: float = 40.0) -> dict[str, tuple[str, ...]]:
        """Their pod CIDRs, as soon as that many nodes have them."""

        async def served() -> bool:
            return sum(map(bool, (await self.pod_cidrs()).values())) == count

        await wait_until(served, f"{count} nodes have pod CIDRs", seconds)
        return await self.pod_cidrs()


def assert_disjoint(given: dict[str, tuple[str, ...]]) -> None:
    """One of each family for everybody, inside the pools, and no two that touch."""
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
async def cluster(tmp_path: Path, machines: MachineFleet) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(SimApiServer.start(tmp_path / "api"))
        kubelets = await stack.enter_async_context(KubeletFleet.start(server))
        yield Cluster(stack, server, kubelets, machines, tmp_path)


@pytest.mark.parametrize(
    "form", [{"all_in_one": True, "bus": "memory"}, {}], ids=["all-in-one-memory", "separate-processes"]
)
async def test_nodes_that_join_get_disjoint_pod_cidrs_of_both_families(
    cluster: Cluster, nats_server: NatsServer, form: dict[str, Any]
):
    await cluster.serve(nats_url=nats_server.url, **form)
    mark = cluster.server.audit_mark()
    await cluster.join(0, COUNT)
    assert_disjoint(await cluster.all_served(COUNT))
    done = cluster.server.audit_counts(mark)
    writes = sum(n for r, n in done.items() if r.resource == "configmaps" and r.verb in ("create", "update"))
    assert writes <= COUNT, "Nodes share writes"
    assert all(
        r.succeeded for r in done if r.resource in ("nodes", "configmaps") and r.user.startswith("talos-ccm")
    )


async def test_without_being_asked_for_nobody_gets_pod_cidrs(cluster: Cluster, nats_server: NatsServer):
    services = await cluster.serve(nats_url=nats_server.url, all_in_one=True, bus="memory", flags=[])
    await cluster.join(0, 3)
    report = await services.fetch_page("all-in-one", "/readyz?verbose")
    assert "labeler ok" in report
    assert "ipam" not in report
    await cluster.usable(3)
    assert not any((await cluster.pod_cidrs()).values())


async def test_three_replicas_share_the_work_and_two_of_them_finish_it_when_one_is_killed(
    cluster: Cluster, nats_server: NatsServer, tmp_path: Path
):
    services = await cluster.serve(nats_url=nats_server.url)
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
        await cluster.join(0, COUNT)
        await services.children["ipam"].kill()
        await cluster.join(COUNT, COUNT)
        assert_disjoint(await cluster.all_served(2 * COUNT, seconds=90.0))


async def test_nats_that_loses_everything_in_the_middle_leads_to_no_second_block(
    cluster: Cluster, nats_server: NatsServer
):
    await cluster.serve(nats_url=nats_server.url)
    await cluster.join(0, 20)
    async with operating(nats_server) as operator:
        await operator.delete_stream(STREAM)
    await cluster.join(20, 20)
    given = await cluster.all_served(40, seconds=90.0)
    assert_disjoint(given)


async def test_a_process_that_is_killed_in_the_middle_finds_its_claims_when_it_starts_again(
    cluster: Cluster, nats_server: NatsServer
):
    services = await cluster.serve(nats_url=nats_server.url, all_in_one=True, bus="memory")
    await cluster.join(0, 20)
    await services.children["all-in-one"].kill()
    before = {name: cidrs for name, cidrs in (await cluster.pod_cidrs()).items() if cidrs}
    services.restart("all-in-one")
    await cluster.join(20, 20)
    given = await cluster.all_served(40, seconds=90.0)
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
