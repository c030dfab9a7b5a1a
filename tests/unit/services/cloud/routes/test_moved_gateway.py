"""A Node whose gateway becomes another address of the same port, at a router of Neutron."""

import json
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from libs.clouds.instances import Instance
from libs.clouds.openstack.router_changes import (
    AddressPair,
    FixedIp,
    Port,
    Request,
    Router,
    RouterRoute,
    build_table,
    locate_ports,
    plan_creation,
    plan_deletion,
)
from libs.clouds.routes import Route
from libs.common.contract.node import NodeCondition
from services.cloud.core.routes.plan_routes import plan_route_step
from services.cloud.core.routes.route_record import RouteRecord
from services.cloud.core.routes.route_view import (
    CreateRoute,
    DeleteRoute,
    InstanceListing,
    RouteStep,
    RouteView,
    SetCondition,
    TableAnswer,
    Wait,
    WriteRecord,
)
from tests.builders import NOW, make_node

MAC, POD_CIDR = "fa:16:3e:00:00:01", "10.244.1.0/24"
FIRST, SECOND = Route(POD_CIDR, "10.0.0.11"), Route(POD_CIDR, "10.0.0.12")
MAX_STEPS = 12


def make_port(id: str, device_id: str, *addresses: str) -> Port:  # noqa: A002
    return Port(
        id=id,
        project_id="project",
        network_id="network",
        device_id=device_id,
        mac_address=MAC,
        fixed_ips=tuple(FixedIp("inside", each) for each in addresses),
        revision_number=1,
        allowed_address_pairs=(),
    )


class Cloud:
    """One router, one server with two addresses at one port, and the record of the controller."""

    def __init__(self) -> None:
        self.now: datetime = NOW
        self.router = Router("router", "project", ())
        self.port = make_port("port-1", "1", FIRST.gateway, SECOND.gateway)
        self.record = RouteRecord()
        self.conditions: dict[str, NodeCondition] = {}

    def converge(self, gateway: str) -> list[RouteStep]:
        """Take each step until the controller waits, and return them."""
        steps: list[RouteStep] = []
        while not isinstance(step := plan_route_step(self.make_view(gateway)), Wait):
            steps.append(step)
            assert len(steps) <= MAX_STEPS, steps
            self.take(step)
        return steps

    def make_view(self, gateway: str) -> RouteView:
        asked: dict[str, Any] = {"began_at": self.now, "ended_at": self.now, "generation": 1}
        ports = locate_ports([make_port("interface", "router", "10.0.0.1")], [self.port])
        server = Instance(id="1", name="web-1", is_shut_down=False, addresses=())
        return RouteView(
            now=self.now,
            led_since=NOW - timedelta(hours=1),
            lease_seconds=90.0,
            write_seconds=30.0,
            generation=1,
            network="router 4711",
            nodes=(make_node("web-1", uid="uid-1", provider_id="openstack:///1", pod_cidrs=(POD_CIDR,)),),
            pod_networks=("10.244.0.0/16",),
            is_complete=True,
            parse_provider_id=lambda text: text.removeprefix("openstack:///"),
            can_route=lambda destination: True,
            find_gateway=lambda instance, destination: gateway,
            record=self.record,
            table=TableAnswer(answer=build_table(self.router, ports, 100), **asked),
            listing=InstanceListing(answer={"1": server}, **asked),
            written=self.conditions,
        )

    def take(self, step: RouteStep) -> None:
        match step:
            case WriteRecord(record=record):
                self.record = record
            case SetCondition(node=node, condition=condition):
                self.conditions = {node.uid: condition}
            case CreateRoute(route=route):
                requests = plan_creation(self.router, self.port, route)
                assert isinstance(requests, tuple), requests
                self.apply(requests)
            case DeleteRoute(route=route):
                self.apply(plan_deletion(self.router, self.port, route))
            case _:
                raise AssertionError(step)

    def apply(self, requests: tuple[Request, ...]) -> None:
        """Do as Neutron does."""
        for each in requests:
            body = json.loads(each.body)
            if "port" in body:
                pairs = body["port"]["allowed_address_pairs"]
                kept = tuple(AddressPair(pair["ip_address"], MAC) for pair in pairs)
                self.port = replace(self.port, allowed_address_pairs=kept)
                continue
            changed = {RouterRoute(**route) for route in body["router"]["routes"]}
            routes = set(self.router.routes)
            is_added = each.path.endswith("add_extraroutes")
            routes = routes | changed if is_added else routes - changed
            self.router = replace(self.router, routes=tuple(routes))


def test_a_gateway_that_moves_to_another_address_of_its_port_gets_its_route_once():
    cloud = Cloud()
    cloud.converge(FIRST.gateway)
    assert cloud.router.route_set == {FIRST}
    steps = cloud.converge(SECOND.gateway)  # the deadline of the first create is not over
    writes = [each for each in steps if isinstance(each, CreateRoute | DeleteRoute)]
    assert [(type(each), each.route) for each in writes] == [(DeleteRoute, FIRST), (CreateRoute, SECOND)]
    assert cloud.router.route_set == {SECOND}
    assert cloud.port.own_pairs == {POD_CIDR}
    cloud.now += timedelta(minutes=7)
    assert [type(each) for each in cloud.converge(SECOND.gateway)] == [WriteRecord]
    assert [each.route for each in cloud.record.entries] == [SECOND]
