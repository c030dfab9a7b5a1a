"""Pod CIDRs through our processes as they are run: disjoint, one of each family, whoever gives them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from ipaddress import ip_network
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from libs.common.wiring import SERVICES
from libs.testbed.kubelets import Kubelet, Kubelets
from libs.testbed.machines import Machines, a_machine
from libs.testbed.nats_server import NatsServer
from libs.testbed.running_services import RunningServices
from libs.testbed.sim_apiserver.server import SimApiServer
from tests.bus_actors import eventually

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
        kubelets: Kubelets,
        machines: Machines,
        run_dir: Path,
    ) -> None:
        self.server = server
        self.kubelets = kubelets
        self._stack = stack
        self._machines = machines
        self._run_dir = run_dir

    async def serve(self, name: str = "services", **options: Any) -> RunningServices:
        """Our services with ipam among them, ready."""
        starting = RunningServices.start(
            self._run_dir / name,
            self.server,
            self.kubelets,
            talosconfig=self._machines.talosconfig(),
            wirings=SERVICES,
            **({"flags": FLAGS} | options),
        )
        services = await self._stack.enter_async_context(starting)
        await services.ready()
        return services

    async def join(self, first: int, count: int) -> None:
        """That many machines, and a kubelet on each."""
        some = [
            a_machine(f"pods-{n}", f"10.230.{n // 250}.{n % 250 + 1}") for n in range(first, first + count)
        ]
        await self._machines.put(*some)
        self._stack.push_async_callback(self._machines.delete, *(machine.id for machine in some))
        await self.kubelets.join_all(Kubelet.on(machine) for machine in some)

    async def pod_cidrs(self) -> dict[str, tuple[str, ...]]:
        """By node."""
        nodes = (await self.kubelets.request("GET", "/api/v1/nodes")).body["items"]
        return {node["metadata"]["name"]: tuple(node["spec"].get("podCIDRs", ())) for node in nodes}

    async def all_served(self, count: int, seconds: float = 40.0) -> dict[str, tuple[str, ...]]:
        """Their pod CIDRs, as soon as that many nodes have them."""

        async def served() -> bool:
            return sum(map(bool, (await self.pod_cidrs()).values())) == count

        await eventually(served, f"{count} nodes have pod CIDRs", seconds)
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
async def cluster(tmp_path: Path, machines: Machines) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(SimApiServer.start(tmp_path / "api"))
        kubelets = await stack.enter_async_context(Kubelets.start(server))
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
