"""Our client of routes of Hetzner Cloud: what it sends once, and what it takes for an answer."""

from collections.abc import AsyncIterator

import pytest

from libs.clouds.account_session import AccountOptions
from libs.clouds.balancers import UnknownOutcome, WriteRejection, WriteSuccess
from libs.clouds.hcloud.hcloud_api import HcloudApi
from libs.clouds.hcloud.hcloud_instances import HcloudInstances
from libs.clouds.hcloud.hcloud_routes import MAX_ROUTES, HcloudRoutes
from libs.clouds.instances import Instance, NotFound, Unanswered
from libs.clouds.routes import Route, Routes, RouteTable
from tests.contract.clouds.accounts import SECRET, HcloudAccount, open_hcloud

ROUTE = Route("10.244.1.0/24", "10.0.1.2")
OTHER = Route("10.244.2.0/24", "10.0.1.2")


class Client:
    """Our client of one network in a project."""

    def __init__(self, opened: HcloudAccount) -> None:
        self.server, self.project = opened.server, opened.project
        self.network = self.project.add_network()
        options = AccountOptions(
            credential=SECRET, user_agent="talos-ccm/test", endpoint=opened.server.endpoint
        )
        self.api = HcloudApi(options)
        self.ours: Routes = HcloudRoutes(self.api, str(self.network), write_deadline_seconds=5)

    async def read(self) -> frozenset[Route]:
        table = await self.ours.read_routes()
        assert isinstance(table, RouteTable)
        assert table.limit == MAX_ROUTES
        return table.routes


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with open_hcloud() as opened:
        client = Client(opened)
        yield client
        await client.ours.close()
        await client.api.close()


async def test_a_route_comes_and_goes_and_each_write_is_sent_once(client: Client):
    assert await client.ours.create_route(ROUTE) == WriteSuccess()
    assert await client.read() == {ROUTE}
    assert await client.ours.delete_route(ROUTE) == WriteSuccess()
    assert await client.read() == frozenset()
    assert await client.ours.delete_route(ROUTE) == NotFound()
    assert [each.path.rpartition("/")[2] for each in client.server.requests if each.method == "POST"] == [
        "add_route",
        "delete_route",
        "delete_route",
    ]


async def test_a_rejection_names_its_kind(client: Client):
    assert await client.ours.create_route(ROUTE) == WriteSuccess()
    again = await client.ours.create_route(ROUTE)
    client.project.max_routes = 1
    full = await client.ours.create_route(OTHER)
    client.project.max_routes, client.project.actions.seconds = 100, 60.0
    assert isinstance(await client.ours.create_route(OTHER), UnknownOutcome), "it runs beyond the deadline"
    busy = await client.ours.delete_route(ROUTE)
    assert [each.kind for each in (again, full, busy) if isinstance(each, WriteRejection)] == [
        "invalid",
        "limit",
        "busy",
    ]


@pytest.mark.parametrize("effect", ["never", "now"])
async def test_a_lost_answer_is_an_unknown_result_and_is_not_repeated(client: Client, effect: str):
    client.server.add_fault("proxy_bad_gateway", "/networks/.*", method="POST", count=1, effect=effect)
    assert isinstance(await client.ours.create_route(ROUTE), UnknownOutcome)
    assert await client.read() == ({ROUTE} if effect == "now" else frozenset())


@pytest.mark.parametrize("fault", ["proxy_not_found", "login_page", "service_error", "cut_off"])
async def test_an_answer_in_another_form_proves_nothing(client: Client, fault: str):
    client.server.add_fault(fault, "/networks/.*")
    assert isinstance(await client.ours.read_routes(), Unanswered)


async def test_another_projects_network_is_not_found(client: Client):
    client.project.remove("networks", client.network)
    assert await client.ours.read_routes() == NotFound()


async def test_the_gateway_is_the_address_in_this_network(client: Client):
    other = client.project.add_network("other")
    both = ((other, "10.0.1.7"), (client.network, "10.0.1.8"))
    inside = client.project.add_server("inside", ipv4="192.0.2.1", private=both)
    outside = client.project.add_server("outside", ipv4="192.0.2.2", private=both[:1])
    instances = HcloudInstances(client.api)
    found = [await instances.get_instance(str(each)) for each in (inside, outside)]
    servers = [each for each in found if isinstance(each, Instance)]
    gateways = [client.ours.find_gateway(each, ROUTE.destination) for each in servers]
    assert gateways == ["10.0.1.8", ""]
    assert client.ours.can_route("10.244.1.0/24")
    assert not client.ours.can_route("fd00::/64")


async def test_a_network_that_is_no_id_is_rejected_at_the_start(client: Client):
    with pytest.raises(ValueError, match="not an id"):
        HcloudRoutes(client.api, "../servers/1")
