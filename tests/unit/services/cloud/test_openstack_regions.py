"""Nodes of OpenStack whose credential file is replaced: without a region, with another one, or broken."""

from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from libs.clouds.account_session import AccountOptions
from libs.clouds.balancers import Target
from libs.clouds.instances import Instance
from libs.clouds.openstack.openstack_api import OpenStackApi
from libs.clouds.openstack.openstack_instances import OpenStackInstances
from libs.clouds.routes import Route, RouteTable
from libs.common.contract.node import Node, NodeAddress
from services.cloud.core.balancers.select_targets import TargetRules
from services.cloud.core.balancers.target_nodes import TargetNodes
from services.cloud.core.node_table import NodeTable
from services.cloud.core.routes.plan_routes import plan_route_step
from services.cloud.core.routes.route_record import RecordedRoute, RouteRecord
from services.cloud.core.routes.route_view import (
    DeleteRoute,
    InstanceListing,
    RouteView,
    SetCondition,
    TableAnswer,
)
from tests.builders import NOW, make_node

SERVER_ID = "11111111-1111-4111-8111-111111111111"
ROUTE = Route("10.244.1.0/24", "10.0.0.1")
TARGET = Target(address=ROUTE.gateway)
WITHOUT_REGION = "[Global]\nauth-url=https://keystone.example/v3\nusername=u\npassword=p\ntenant-id=t\n"
GOOD = WITHOUT_REGION + "region=RegionOne\n"
FILES = {
    "good": GOOD,
    "no region": WITHOUT_REGION,
    "another region": GOOD.replace("One", "Two"),
    "broken": "[Global]\nbroken line\n",
}


class Account:
    """What one account knows of its only Node, by the credential file as it is now."""

    def __init__(self, file: Path, content: str) -> None:
        self.file = file
        file.write_text(content)
        self.api = OpenStackApi(AccountOptions(credential=file, user_agent="talos-ccm/test"))
        self.parse = OpenStackInstances(self.api).parse_provider_id
        self.table = NodeTable("prod", self.parse)
        rules = TargetRules(parse_provider_id=self.parse, needs_ipv4=True, uses_addresses=True)
        self.targets = TargetNodes(rules)
        self.targets.mark_complete()

    def replace_file(self, content: str) -> None:
        self.file.write_text(content)
        self.api.read_balancer_sections()  # as each request does

    def apply(self, node: Node) -> None:
        self.table.upsert(node)
        self.targets.upsert(node)

    def assert_node_is_known(self) -> None:
        assert [each.instance_id for each in self.table] == [SERVER_ID]
        assert self.targets.select((), is_followed=True).plan([TARGET]) == (TARGET,)
        assert not isinstance(plan_route_step(make_route_view(self.targets.nodes, self)), DeleteRoute)


def make_web(**labels: str) -> Node:
    provider_id = f"openstack://RegionOne/{SERVER_ID}"
    node = make_node(
        "web-1", uid="uid-1", provider_id=provider_id, pod_cidrs=(ROUTE.destination,), labels=labels
    )
    address = NodeAddress(type="InternalIP", address=ROUTE.gateway)
    return replace(node, status=replace(node.status, addresses=(address,)))


def make_route_view(nodes: tuple[Node, ...], account: Account) -> RouteView:
    """The Node's route exists, is recorded, and all is answered."""
    server = Instance(id=SERVER_ID, name="web-1", is_shut_down=False)
    return RouteView(
        now=NOW,
        led_since=NOW - timedelta(hours=1),
        lease_seconds=90.0,
        write_seconds=30.0,
        generation=1,
        network="router 4711",
        nodes=nodes,
        pod_networks=("10.244.0.0/16",),
        is_complete=True,
        parse_provider_id=account.parse,
        can_route=lambda destination: True,
        find_gateway=lambda instance, destination: ROUTE.gateway,
        record=RouteRecord(entries=(RecordedRoute(route=ROUTE, instance_id=SERVER_ID),)),
        table=TableAnswer(
            answer=RouteTable(routes=frozenset({ROUTE}), limit=None),
            began_at=NOW,
            ended_at=NOW,
            generation=1,
        ),
        listing=InstanceListing(answer={SERVER_ID: server}, began_at=NOW, ended_at=NOW, generation=1),
    )


@pytest.mark.parametrize("before", FILES)
@pytest.mark.parametrize("after", FILES)
def test_a_node_is_that_of_its_server_whatever_region_the_credential_file_names(
    before: str, after: str, tmp_path: Path
):
    account = Account(tmp_path / "cloud.conf", FILES[before])
    account.apply(make_web())
    account.assert_node_is_known()
    account.replace_file(FILES[after])
    account.assert_node_is_known()
    account.apply(make_web(zone="a"))
    account.assert_node_is_known()
    assert isinstance(plan_route_step(make_route_view(account.targets.nodes, account)), SetCondition)
