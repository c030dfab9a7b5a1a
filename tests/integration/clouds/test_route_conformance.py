"""Ours and the route controller of k8s.io/cloud-provider do the same; a case names each difference."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec
import pytest

from libs.common.contract.node import NETWORK_UNAVAILABLE
from libs.testbed.clouds.api_server import SimRequest
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.native_ccm import NODE_ROUTE, CloudInstance, NativeCcm, NativeRoute
from tests.bus_actors import wait_until
from tests.clouds.balancer_actors import BalancerCluster
from tests.clouds.route_actors import CONTROLLERS, RouteCluster
from tests.integration.clouds.route_cases import CASES, CLUSTER_CIDRS, Case, Outcome

Controller = Literal["native", "ours"]  # native: that of k8s.io/cloud-provider
NODES: Final = "/api/v1/nodes"
EVENTS: Final = "/api/v1/namespaces/default/events"
REFUSED: Final = tuple(each for case in CASES for each in case.refused)
ACCEPTED: Final = tuple(each for case in CASES if case.change == "accept" for each in case.refused)


class Cloud(Protocol):
    """The cloud of the controller under test."""

    def add_server(self, name: str, *, is_attached: bool) -> str:
        """Create a server; return the providerID of its Node."""
        ...

    def delete_server(self, name: str) -> None: ...

    def add_route(self, destination: str) -> None:
        """Create a route to something else."""
        ...

    def refuse(self, *destinations: str) -> None:
        """Create no route to these destinations, and to all others."""
        ...

    def list_destinations(self) -> set[str]: ...


class NativeCloud:
    """The file that is the cloud of Kubernetes' own controller."""

    def __init__(self, native: NativeCcm) -> None:
        self._native = native
        self.delete_server = native.terminate
        self.refuse = native.refuse_routes

    def add_server(self, name: str, *, is_attached: bool) -> str:
        instance = CloudInstance(name=name, provider_id=f"hcloud://{name}", outside_network=not is_attached)
        self._native.put_instances(instance)
        return instance.provider_id

    def add_route(self, destination: str) -> None:
        self._native.put_route(NativeRoute(destination, ""))

    def list_destinations(self) -> set[str]:
        return {each.destination for each in self._native.list_routes()}


class HetznerCloud:
    """The simulated Hetzner Cloud."""

    def __init__(self, cluster: RouteCluster) -> None:
        self._cluster = cluster
        self._refused: tuple[str, ...] = ()
        self._servers: dict[str, int] = {}
        cluster.cluster.cloud.before_answer = self._refuse

    def add_server(self, name: str, *, is_attached: bool) -> str:
        network = self._cluster.network["id"]
        private = [(network, f"10.0.1.{len(self._servers) + 2}")] if is_attached else ()
        self._servers[name] = self._cluster.project.add_server(name, private=private)
        return f"hcloud://{self._servers[name]}"

    def delete_server(self, name: str) -> None:
        self._cluster.project.remove("servers", self._servers.pop(name))

    def add_route(self, destination: str) -> None:
        self._cluster.network["routes"].append({"destination": destination, "gateway": "10.0.1.250"})

    def refuse(self, *destinations: str) -> None:
        self._refused = destinations

    def list_destinations(self) -> set[str]:
        return {destination for destination, _ in self._cluster.routes}

    def _refuse(self, request: SimRequest) -> None:
        is_create = request.path.endswith("/actions/add_route")
        if is_create and msgspec.json.decode(request.body)["destination"] in self._refused:
            path = re.escape(request.path)
            self._cluster.cluster.cloud.add_fault("protected", path, count=1, effect="never")


class ConformanceRun:
    """The Nodes of the table, and one controller for them."""

    def __init__(self, kubelets: KubeletFleet, controller: Controller, cloud: Cloud) -> None:
        self._kubelets = kubelets
        self._is_ours = controller == "ours"
        self._cloud = cloud

    async def join(self) -> None:
        """Create all servers, routes of others and Nodes."""
        self._cloud.refuse(*REFUSED)
        for case in CASES:
            provider_id = case.provider_id
            if case.server != "none":
                is_attached = case.server == "in the network"
                provider_id = self._cloud.add_server(case.name, is_attached=is_attached)
            if case.foreign:
                self._cloud.add_route(case.foreign)
            await self._kubelets.send("POST", NODES, body=build_node(case, provider_id))

    async def change(self) -> None:
        """Make all changes."""
        for case in CASES:
            if case.change == "delete Node and server":
                self._cloud.delete_server(case.name)
            if case.change in ("delete Node", "delete Node and server"):
                await self._kubelets.send("DELETE", f"{NODES}/{case.name}")
        self._cloud.refuse(*(each for each in REFUSED if each not in ACCEPTED))

    async def settle(self, number: int) -> None:
        """Wait until the controller has served a Node that joins after all others were changed."""
        case = Case(name=f"settles-{number}", pod_cidrs=(f"10.244.20{number}.0/24",), joined=Outcome())
        provider_id = self._cloud.add_server(case.name, is_attached=True)
        await self._kubelets.send("POST", NODES, body=build_node(case, provider_id))

        async def is_served() -> bool:
            return (await self.list_outcomes([case]))[case.name].condition == "False RouteCreated"

        await wait_until(is_served, f"{case.name} has its route")

    async def wait_for_outcomes(self, expected: Mapping[str, Outcome], number: int) -> dict[str, Outcome]:
        """Return the outcomes once they are as expected and stay so, or those at the deadline."""

        async def are_expected() -> bool:
            return await self.list_outcomes() == expected

        try:
            await wait_until(are_expected, "the outcomes")  # ours repeats a refused write after a pause
        except AssertionError:
            return await self.list_outcomes()
        await self.settle(number)
        return await self.list_outcomes()

    async def list_outcomes(self, cases: Sequence[Case] = CASES) -> dict[str, Outcome]:
        """Return the outcome of each case."""
        nodes = {each["metadata"]["name"]: each for each in await self._list(NODES)}
        events = await self._list(f"{EVENTS}?fieldSelector=involvedObject.kind=Node")
        routes = self._cloud.list_destinations()
        return {case.name: build_outcome(case, nodes.get(case.name), events, routes) for case in cases}

    async def _list(self, path: str) -> list[dict[str, Any]]:
        return list((await self._kubelets.send("GET", path))["items"])

    async def clean_up(self) -> None:
        """Delete all Nodes and their Events, which the next run would find."""
        for path in (NODES, EVENTS):
            for each in await self._list(path):
                await self._kubelets.request("DELETE", f"{path}/{each['metadata']['name']}")

    def expect(self, case: Case, *, is_changed: bool) -> Outcome:
        """Return the outcome of the case with this controller."""
        outcome = (case.changed if is_changed else None) or case.joined
        is_last = is_changed or case.change is None
        return case.ours.apply(outcome) if self._is_ours and case.ours and is_last else outcome


def build_node(case: Case, provider_id: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"taints": case.taints} | ({"providerID": provider_id} if provider_id else {})
    if case.pod_cidrs:
        spec |= {"podCIDR": case.pod_cidrs[0], "podCIDRs": case.pod_cidrs}
    return {
        "metadata": {"name": case.name} | dict(case.metadata),
        "spec": spec,
        "status": {"conditions": case.conditions},
    }


def build_outcome(
    case: Case, node: dict[str, Any] | None, events: list[dict[str, Any]], routes: set[str]
) -> Outcome:
    conditions = node["status"].get("conditions", ()) if node is not None else ()
    found = [each for each in conditions if each["type"] == NETWORK_UNAVAILABLE]
    told = {
        f"{each['type']} {each['reason']}" for each in events if each["involvedObject"]["name"] == case.name
    }
    return Outcome(
        condition=f"{found[0]['status']} {found[0]['reason']}" if found else "",
        events=frozenset(each for each in told if each.endswith("Route")),
        destinations=frozenset({*case.pod_cidrs, case.foreign} & routes),
    )


@asynccontextmanager
async def run_controller(
    controller: Controller, control_plane: ControlPlane, folder: Path
) -> AsyncIterator[Cloud]:
    """This controller, for all Nodes, and its cloud."""
    if controller == "native":
        async with NativeCcm.start(
            folder, control_plane, scheme="hcloud", controllers=[NODE_ROUTE], cluster_cidrs=CLUSTER_CIDRS
        ) as native:
            yield NativeCloud(native)
        return
    async with (
        BalancerCluster.open(control_plane, folder) as cluster,
        cluster.run_watcher(controllers=CONTROLLERS),
        RouteCluster(cluster).run_account(route_pod_networks=[f"prod={each}" for each in CLUSTER_CIDRS]),
    ):
        yield HetznerCloud(RouteCluster(cluster))
        await RouteCluster(cluster).delete_record()


@pytest.mark.parametrize("controller", ["native", "ours"])
async def test_each_node_ends_as_the_table_says(
    controller: Controller, control_plane: ControlPlane, kubelets: KubeletFleet, tmp_path: Path
):
    assert not (await kubelets.send("GET", NODES))["items"]
    async with run_controller(controller, control_plane, tmp_path) as cloud:
        run = ConformanceRun(kubelets, controller, cloud)
        try:
            await run.join()
            for number, is_changed in enumerate((False, True)):
                if is_changed:
                    await run.change()
                expected = {case.name: run.expect(case, is_changed=is_changed) for case in CASES}
                assert await run.wait_for_outcomes(expected, number) == expected
        finally:
            await run.clean_up()


def test_a_difference_is_one():
    for case in CASES:
        if case.ours is not None:
            last = case.changed or case.joined
            assert case.ours.apply(last) != last, case.name
