"""What the controller of routes remembers between two writes."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from libs.clouds.balancers import WriteRejection, WriteResult, WriteSuccess
from libs.clouds.instances import Credential, Instance, NotFound
from libs.clouds.routes import Route, RouteTable
from libs.common.contract.node import Node, ObjectMeta
from libs.common.kube.event_recorder import EventRecorder
from libs.common.kube.objects import ConfigMap
from services.cloud.balancer_reader import TermClock
from services.cloud.core.routes.route_record import RecordedRoute, RouteRecord, encode_route_record
from services.cloud.route_controller import RouteController
from tests.builders import NOW, make_node
from tests.clocks import VirtualClock, virtually

ROUTE = Route("10.244.9.0/24", "10.0.1.9")
RECORD = encode_route_record(RouteRecord(entries=(RecordedRoute(route=ROUTE, instance_id="9"),)), "uid")


class FrozenCloud:
    """It accepts every write, and still shows what it has shown. It answers after a moment."""

    write_deadline_seconds = 30.0
    network, kind = "4711", "network"
    credential = Credential(1, NOW, "")

    def __init__(self) -> None:
        self.deletions = 0

    def parse_provider_id(self, provider_id: str) -> str | None:
        return provider_id or None

    def can_route(self, destination: str) -> bool:
        return True

    def find_gateway(self, instance: Instance, destination: str) -> str:
        return ""

    async def list_instances(self) -> tuple[Instance, ...]:
        return ()

    async def get_instance(self, instance_id: str) -> NotFound:
        return NotFound()

    async def read_routes(self) -> RouteTable:
        await asyncio.sleep(0.01)
        return RouteTable(routes=frozenset({ROUTE}), limit=100)

    async def delete_route(self, route: Route) -> WriteResult:
        await asyncio.sleep(0.01)
        self.deletions += 1
        return WriteSuccess()


class BusyCloud(FrozenCloud):
    """A network that other clients change for five minutes: until then, it rejects each route."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock, self.free_at = clock, clock() + 300.0
        self.created_after: float | None = None

    def find_gateway(self, instance: Instance, destination: str) -> str:
        return ROUTE.gateway

    async def list_instances(self) -> tuple[Instance, ...]:
        return (Instance(id="9", name="web-9", is_shut_down=False),)

    async def read_routes(self) -> RouteTable:
        await asyncio.sleep(0.01)
        return RouteTable(routes=frozenset({ROUTE} if self.created_after else ()), limit=100)

    async def create_route(self, route: Route) -> WriteResult:
        await asyncio.sleep(0.01)
        if self.clock() < self.free_at:
            return WriteRejection(kind="busy", reason="conflict")
        self.created_after = self.clock() - self.free_at
        return WriteSuccess()


class LimitedCloud(BusyCloud):
    """The same; it requests a wait of thousands of years."""

    async def create_route(self, route: Route) -> WriteResult:
        result = await super().create_route(route)
        if isinstance(result, WriteRejection):
            return msgspec.structs.replace(result, kind="limit", retry_after_seconds=999999999999)
        return result


class RecordStore:
    """A ConfigMap with the record."""

    async def get_config_map(self, namespace: str, name: str) -> ConfigMap:
        return ConfigMap(metadata=ObjectMeta(name=name, uid="uid"), data={"4711": RECORD})

    async def update_config_map(self, namespace: str, config_map: ConfigMap) -> ConfigMap:
        return config_map

    async def patch_node_status(self, name: str, patch: bytes) -> None:
        """The conditions are of no interest here."""


def make_controller(clock: VirtualClock, cloud: FrozenCloud, *nodes: Node) -> RouteController:
    kube: Any = RecordStore()
    return RouteController(
        account="prod",
        kube=kube,
        cloud=cloud,  # type: ignore[arg-type]
        routes=cloud,  # type: ignore[arg-type]
        nodes=SimpleNamespace(nodes=nodes, is_complete=True),  # type: ignore[arg-type]
        is_followed=lambda: True,
        pod_networks=lambda: ("10.244.0.0/16",),
        leading_until=lambda: 1e9,
        event_recorder=EventRecorder(kube, component="route_controller", now=clock.now, observe_only=True),
        monotonic=clock,
        jitter=random.Random(7).random,
        now=TermClock(clock.now, clock),
        is_dry_run=False,
    )


@virtually
async def test_a_deletion_that_the_cloud_accepts_and_does_not_show_is_repeated_with_growing_pauses():
    clock, cloud = VirtualClock(), FrozenCloud()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(600.0):
            await make_controller(clock, cloud).lead()
    assert 3 <= cloud.deletions <= 12


@virtually
async def test_a_route_does_not_wait_for_minutes_after_a_network_was_busy():
    clock = VirtualClock()
    cloud = BusyCloud(clock)
    node = make_node(provider_id="9", pod_cidrs=(ROUTE.destination,))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(600.0):
            await make_controller(clock, cloud, node).lead()
    assert cloud.created_after is not None
    assert cloud.created_after < 25.0


@virtually
async def test_a_requested_wait_beyond_all_times_ends_after_an_hour():
    clock = VirtualClock()
    cloud = LimitedCloud(clock)
    node = make_node(provider_id="9", pod_cidrs=(ROUTE.destination,))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2 * 3600.0):
            await make_controller(clock, cloud, node).lead()
    assert cloud.created_after is not None
    assert 3200.0 < cloud.created_after < 3700.0
