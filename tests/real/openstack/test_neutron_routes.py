"""Our client of routes against Neutron itself."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.clouds.account_session import AccountOptions
from libs.clouds.balancers import UnknownOutcome, WriteRejection, WriteSuccess
from libs.clouds.instances import Instance, NotFound, Unanswered
from libs.clouds.openstack.openstack_api import OpenStackApi
from libs.clouds.openstack.openstack_routes import OpenStackRoutes
from libs.clouds.routes import Route, Routes, RouteTable
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.clouds.api_server import SimApiServer, SimRequest
from libs.testbed.clouds.http_faults import Answer
from libs.testbed.clouds.openstack_services.services import RealOpenStack, RouterProject
from tests.contract.clouds.accounts import SECRET, OpenStackAccount
from tests.real.openstack.route_cluster import get_address, open_router

POD_CIDR, OTHER_POD_CIDR = "10.244.1.0/24", "10.244.2.0/24"
SHARED = "10.0.0.200"  # an address that moves between servers
PORTS, ROUTERS = "/network/RegionOne/v2.0/ports/.*", "/network/RegionOne/v2.0/routers/.*"
WRITES = {"pair": PORTS, "route": ROUTERS}


class Client:
    """Our client of the router of a project, and a server behind it."""

    def __init__(self, server: SimApiServer[RealOpenStack], file: Path, project: RouterProject) -> None:
        self.server, self.file, self.project = server, file, project
        options = AccountOptions(
            credential=file,
            user_agent="talos-ccm/test",
            requests_per_minute=10_000,
            deadline_seconds=HANG_SECONDS,
        )
        self.api = OpenStackApi(options)
        self.ours = self.open_routes(project.router)
        self.port = project.add_port(
            project.sim.add_server("web-1"), allowed_address_pairs=[{"ip_address": SHARED}]
        )
        self.gateway = get_address(self.port)
        self.route = Route(POD_CIDR, self.gateway)

    @classmethod
    @asynccontextmanager
    async def open(cls, server: SimApiServer[RealOpenStack], folder: Path) -> AsyncIterator["Client"]:
        account = OpenStackAccount(server)  # type: ignore[arg-type]  # the same cloud, with more
        file = account.write_credential(folder, SECRET)
        client = cls(server, file, open_router(server, account))
        try:
            yield client
        finally:
            await client.ours.close()
            await client.api.close()

    def open_routes(self, router: str) -> Routes:
        return OpenStackRoutes(self.api, router, write_deadline_seconds=120)

    async def read(self) -> RouteTable:
        table = await self.ours.read_routes()
        assert isinstance(table, RouteTable), table
        return table

    def change_answers(self, path: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the documents of all answers whose path has this part."""

        def apply(request: SimRequest, answer: Answer) -> None:
            if path in request.path:
                change(answer.document)

        self.server.after_answer = apply

    def list_writes(self) -> list[str]:
        """Kind and action of each change."""
        paths = [each.path.split("/") for each in self.server.requests if each.method == "PUT"]
        return [path[4] if path[4] == "ports" else path[-1] for path in paths]

    def change_port(self, number: int) -> None:
        """Allow one more address, as another client."""
        addresses = (*self.project.list_pairs(self.port["id"]), f"10.0.0.{number}")
        pairs = [{"ip_address": each} for each in addresses]
        self.project.send("PUT", f"/ports/{self.port['id']}", port={"allowed_address_pairs": pairs})


def describe_server(server_id: str) -> Instance:
    return Instance(id=server_id, name="any", is_shut_down=False)


@pytest.fixture
async def client(server: SimApiServer[RealOpenStack], tmp_path: Path) -> AsyncIterator[Client]:
    async with Client.open(server, tmp_path) as opened:
        yield opened


async def test_a_route_and_its_pair_come_and_go_and_other_pairs_stay(client: Client):
    await client.read()
    assert await client.ours.create_route(client.route) == WriteSuccess()
    assert client.project.list_routes() == {(POD_CIDR, client.gateway)}
    assert client.project.list_pairs(client.port["id"]) == {SHARED, POD_CIDR}
    table = await client.read()
    assert (table.is_complete(client.route), table.limit) == (True, 30)
    assert await client.ours.create_route(client.route) == WriteSuccess(), "nothing is missing"
    assert await client.ours.delete_route(client.route) == WriteSuccess()
    assert await client.ours.delete_route(client.route) == NotFound()
    assert client.project.list_routes() == set()
    assert client.project.list_pairs(client.port["id"]) == {SHARED}
    assert not (await client.read()).has_part(client.route)
    assert client.list_writes() == ["ports", "add_extraroutes", "remove_extraroutes", "ports"]


@pytest.mark.parametrize("effect", ["now", "never"])
@pytest.mark.parametrize("write", WRITES)
async def test_a_lost_answer_is_an_unknown_result_and_what_is_missing_follows(
    client: Client, write: str, effect: str
):
    await client.read()
    fault: dict[str, Any] = {"method": "PUT", "count": 1, "effect": effect}
    client.server.add_fault("proxy_bad_gateway", WRITES[write], **fault)
    assert isinstance(await client.ours.create_route(client.route), UnknownOutcome)
    table = await client.read()
    is_first_written = write == "route" or effect == "now"
    assert table.has_part(client.route) == is_first_written
    assert table.is_complete(client.route) == (write == "route" and effect == "now")
    assert await client.ours.create_route(client.route) == WriteSuccess()
    assert (await client.read()).is_complete(client.route)
    client.server.add_fault("proxy_bad_gateway", WRITES[write], **fault)
    assert isinstance(await client.ours.delete_route(client.route), UnknownOutcome)
    assert (await client.read()).has_part(client.route) == (write == "route" or effect == "never")
    await client.ours.delete_route(client.route)
    assert not (await client.read()).has_part(client.route)
    assert client.project.list_pairs(client.port["id"]) == {SHARED}


async def test_a_port_that_another_client_changes_meanwhile_is_read_again(client: Client):
    await client.read()
    numbers = iter((201, 202))

    def change(request: SimRequest) -> None:
        number = next(numbers, None) if request.method == "PUT" and "/ports/" in request.path else None
        if number is not None:
            client.change_port(number)

    client.server.before_answer = change
    assert await client.ours.create_route(client.route) == WriteSuccess()
    others = {SHARED, "10.0.0.201", "10.0.0.202"}
    assert client.project.list_pairs(client.port["id"]) == others | {POD_CIDR}
    numbers = iter(range(203, 210))
    changing = await client.ours.delete_route(client.route)
    assert isinstance(changing, WriteRejection)
    assert (changing.kind, changing.reason) == ("held_back", "other clients change the port all the time")
    client.server.before_answer = lambda request: None
    assert await client.ours.delete_route(client.route) == WriteSuccess()
    kept = others | {"10.0.0.203", "10.0.0.204", "10.0.0.205"}
    assert client.project.list_pairs(client.port["id"]) == kept


async def test_the_limit_is_that_of_the_quota_where_neutron_shows_it(client: Client):
    client.project.retire()
    client.project.set_route_quota(1)
    assert (await client.read()).limit == 1
    assert await client.ours.create_route(client.route) == WriteSuccess()
    full = await client.ours.create_route(Route(OTHER_POD_CIDR, client.gateway))
    assert isinstance(full, WriteRejection)
    assert (full.kind, "OverQuota" in full.reason or "Quota exceeded" in full.reason) == ("limit", True)
    assert (await client.read()).partial == {Route(OTHER_POD_CIDR, client.gateway)} | shared(client)
    client.project.set_route_quota(-1)
    assert (await client.read()).limit is None
    client.project.set_route_quota(1)
    client.change_answers("/quotas/", lambda document: document["quota"].pop("router_route"))
    assert (await client.read()).limit is None, "Neutron 28 and earlier"


def shared(client: Client) -> set[Route]:
    """The pair of another owner: it is never recorded, so it is never ours."""
    return {Route(f"{SHARED}/32", client.gateway)}


async def test_a_route_that_appeared_since_the_last_table_prevents_another_one(client: Client):
    await client.read()
    other = get_address(client.project.add_port("another-server"))
    route = {"destination": "10.244.0.0/16", "nexthop": other}
    body = {"routes": [route]}
    client.project.send("PUT", f"/routers/{client.project.router}/add_extraroutes", router=body)
    found = await client.ours.create_route(client.route)
    assert isinstance(found, WriteRejection)
    assert found.reason == f"another route exists: 10.244.0.0/16 via {other}"
    assert client.list_writes() == []
    assert client.project.list_pairs(client.port["id"]) == {SHARED}


async def test_nothing_is_sent_for_a_port_that_is_gone_or_has_moved(client: Client):
    await client.read()
    client.project.send("PUT", f"/ports/{client.port['id']}", port={"device_id": "another-server"})
    moved = await client.ours.create_route(client.route)
    client.project.send("DELETE", f"/ports/{client.port['id']}")
    gone = await client.ours.create_route(client.route)
    reasons = [each.reason for each in (moved, gone) if isinstance(each, WriteRejection)]
    assert reasons == [
        f"nothing was sent: the port of {client.gateway} has moved",
        f"no port has the address {client.gateway} any more",
    ]
    assert client.list_writes() == []


async def test_a_route_goes_without_its_port(client: Client):
    await client.read()
    await client.ours.create_route(client.route)
    client.project.send("DELETE", f"/ports/{client.port['id']}")
    assert (await client.read()).is_complete(client.route), "no port can lack the pair"
    assert await client.ours.delete_route(client.route) == WriteSuccess()
    assert client.project.list_routes() == set()


async def test_a_full_port_is_a_rejection_of_one_route(client: Client):
    pairs = [{"ip_address": f"10.0.0.{number}"} for number in range(201, 211)]
    client.project.send("PUT", f"/ports/{client.port['id']}", port={"allowed_address_pairs": pairs})
    await client.read()
    full = await client.ours.create_route(client.route)
    assert isinstance(full, WriteRejection)
    assert (full.kind, "exceeds the maximum 10" in full.reason) == ("invalid", True)


async def test_a_port_in_another_projects_network_is_a_rejection_of_one_route(client: Client):
    client.project.retire()
    services = client.project.services
    network = services.create("network", "/v2.0/networks", shared=True, project_id="another")["id"]
    fields: dict[str, Any] = {"network_id": network, "ip_version": 4, "cidr": "10.0.7.0/24"}
    services.create("network", "/v2.0/subnets", **fields)
    interface = client.project.add_port("", network_id=network)["id"]
    client.project.send("PUT", f"/routers/{client.project.router}/add_router_interface", port_id=interface)
    port = client.project.add_port(client.project.sim.add_server("web-2"), network_id=network)
    await client.read()
    refused = await client.ours.create_route(Route(OTHER_POD_CIDR, get_address(port)))
    assert isinstance(refused, WriteRejection)
    assert (refused.kind, "disallowed by policy" in refused.reason) == ("invalid", True), refused
    assert client.project.list_routes() == set()


async def test_a_port_without_port_security_needs_no_pair(client: Client):
    off = {"port_security_enabled": False, "security_groups": [], "allowed_address_pairs": []}
    client.project.send("PUT", f"/ports/{client.port['id']}", port=off)
    await client.read()
    assert await client.ours.create_route(client.route) == WriteSuccess()
    assert (await client.read()).is_complete(client.route)
    assert client.list_writes() == ["add_extraroutes"]


async def test_ipv6_is_routed_by_addresses_of_that_family(client: Client):
    client.project.retire()
    await client.read()
    assert not client.ours.can_route("fd00:1::/64")
    fields: dict[str, Any] = {"network_id": client.project.network, "ip_version": 6, "cidr": "fd00:9::/64"}
    subnet = client.project.send("POST", "/subnets", subnet=fields)["subnet"]["id"]
    client.project.send("PUT", f"/routers/{client.project.router}/add_router_interface", subnet_id=subnet)
    both = [{"subnet_id": client.project.subnet}, {"subnet_id": subnet}]
    server_id = client.project.sim.add_server("web-2")
    port = client.project.add_port(server_id, fixed_ips=both)
    await client.read()
    assert client.ours.can_route("fd00:1::/64")
    found = describe_server(server_id)
    gateways = {client.ours.find_gateway(found, each) for each in (POD_CIDR, "fd00:1::/64")}
    assert gateways == {each["ip_address"] for each in port["fixed_ips"]}
    route = Route("fd00:1::/64", client.ours.find_gateway(found, "fd00:1::/64"))
    assert await client.ours.create_route(route) == WriteSuccess()
    assert (await client.read()).is_complete(route)
    assert client.ours.find_gateway(describe_server(client.port["device_id"]), "fd00:1::/64") == ""


async def test_the_gateway_is_the_address_of_a_port_of_this_project_behind_the_router(client: Client):
    client.project.retire()
    await client.read()
    sim, network = client.project.sim, {"name": "elsewhere"}
    elsewhere = client.project.send("POST", "/networks", network=network)["network"]["id"]
    subnet: dict[str, Any] = {"network_id": elsewhere, "ip_version": 4, "cidr": "10.0.0.0/24"}
    client.project.send("POST", "/subnets", subnet=subnet)
    outside, stolen = sim.add_server("outside"), sim.add_server("stolen")
    client.project.add_port(outside, network_id=elsewhere)
    # Another project may use the network, and write any server into its port.
    services = client.project.services
    body = msgspec.json.encode({"network": {"shared": True}})
    services.request("network", "PUT", f"/v2.0/networks/{client.project.network}", body)
    foreign: dict[str, Any] = {"network_id": client.project.network, "device_id": stolen}
    services.create("network", "/v2.0/ports", project="another", **foreign)
    await client.read()
    found = [describe_server(each) for each in (client.port["device_id"], outside, stolen)]
    assert [client.ours.find_gateway(each, POD_CIDR) for each in found] == [client.gateway, "", ""]


async def test_a_neutron_without_atomic_routes_is_refused_with_the_fix(client: Client):
    def remove(document: dict[str, Any]) -> None:
        kept = [each for each in document["extensions"] if each["alias"] != "extraroute-atomic"]
        document["extensions"] = kept

    client.change_answers("/extensions", remove)
    refused = await client.ours.read_routes()
    assert isinstance(refused, Unanswered)
    assert refused.reason == (
        "Neutron lacks the extension extraroute-atomic: Neutron 15 (Train) or later has it, if the plugin "
        "for routers supports it"
    )
    client.change_answers("/extensions", lambda document: None)
    assert (await client.read()).routes == frozenset()


async def test_an_answer_in_another_form_proves_nothing(client: Client):
    for fault in ("proxy_not_found", "login_page", "cut_off"):
        for path in (ROUTERS, PORTS.removesuffix("/.*"), ".*/extensions"):
            ours = client.open_routes(client.project.router)  # it has not read the extensions yet
            client.server.add_fault(fault, path)
            assert isinstance(await ours.read_routes(), Unanswered), (fault, path)
            client.server.faults.clear()
            await ours.close()
    assert isinstance(await client.ours.read_routes(), RouteTable)


async def test_another_projects_router_is_not_found(client: Client, tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    account = OpenStackAccount(client.server, user="other")  # type: ignore[arg-type]
    client.file.write_text(account.write_credential(other, SECRET).read_text())
    assert await client.ours.read_routes() == NotFound()
    assert await client.ours.delete_route(client.route) == NotFound()
    assert isinstance(await client.ours.create_route(client.route), WriteRejection)


async def test_the_credential_file_may_name_the_router(client: Client):
    ours = client.open_routes("")
    assert ours.network == ""
    assert isinstance(await ours.read_routes(), Unanswered)
    before = client.file.read_text()
    client.file.write_text(f"{before}\n[Route]\nrouter-id = {client.project.router}\n")
    assert ours.network == client.project.router
    assert isinstance(await ours.read_routes(), RouteTable)
    client.file.write_text(f"{before}\n[Route]\nrouter-id = {client.port['id']}\n")
    changed = await ours.read_routes()
    assert isinstance(changed, Unanswered)
    assert "restart the process" in changed.reason
    assert ours.network == client.project.router
    await ours.close()


async def test_a_router_that_is_no_id_is_rejected_at_the_start(client: Client):
    with pytest.raises(ValueError, match="not an id"):
        client.open_routes("../ports/1")
