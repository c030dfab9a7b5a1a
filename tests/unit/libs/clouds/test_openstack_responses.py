"""What is no answer of Nova or Neutron, though it looks like one."""

from typing import Any

import msgspec
import pytest

from libs.clouds.http_reader import HttpResponse
from libs.clouds.instances import Anchor, Instance, NotFound, Unanswered
from libs.clouds.openstack.login import Login, add_balancer_version
from libs.clouds.openstack.responses import read_anchor, read_server, read_servers
from libs.testbed.clouds.openstack.objects import make_network, make_server

SERVER_ID = "0c1e4a52-6c7b-4a2e-9d52-1f0e6a5c7b11"
LOGIN = Login(
    token="t",
    lifetime_seconds=3600,
    project="p",
    region="r",
    compute="",
    load_balancer="",
    network="",
    microversion="2.69",
)
NOVA = {"OpenStack-API-Version": "compute 2.69"}
SERVER = make_server(SERVER_ID, "web-1", project="p")
NO_SERVER = {"code": 404, "message": f"Instance {SERVER_ID} could not be found."}
NO_NETWORK = {"type": "NetworkNotFound", "message": f"Network {SERVER_ID} could not be found.", "detail": ""}


def respond(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> HttpResponse:
    return HttpResponse(status, NOVA if headers is None else headers, msgspec.json.encode(document))


def test_the_own_forms_of_the_services_are_answers():
    assert read_server(respond({"itemNotFound": NO_SERVER}, 404), LOGIN, SERVER_ID) == NotFound()
    assert read_anchor(respond({"NeutronError": NO_NETWORK}, 404, {}), LOGIN, SERVER_ID) == NotFound()
    assert isinstance(read_server(respond({"server": SERVER}), LOGIN, SERVER_ID), Instance)


NOT_NOVAS = {
    "another status": respond({"itemNotFound": NO_SERVER}, 410),
    "a server error": respond({"itemNotFound": NO_SERVER}, 503),
    "success": respond({"itemNotFound": NO_SERVER}),
    "another name": respond({"notFound": NO_SERVER}, 404),
    "another code": respond({"itemNotFound": NO_SERVER | {"code": 410}}, 404),
    "no code": respond({"itemNotFound": {"message": NO_SERVER["message"]}}, 404),
    "another id": respond({"itemNotFound": NO_SERVER | {"message": "Instance 7 could not be found."}}, 404),
    "no message": respond({"itemNotFound": {"code": 404}}, 404),
    "two errors": respond({"itemNotFound": NO_SERVER, "badRequest": NO_SERVER}, 404),
    "no microversion": respond({"itemNotFound": NO_SERVER}, 404, {}),
    "another microversion": respond(
        {"itemNotFound": NO_SERVER}, 404, {"OpenStack-API-Version": "compute 2.1"}
    ),
    "another service": respond({"itemNotFound": NO_SERVER}, 404, {"OpenStack-API-Version": "volume 2.69"}),
    "Neutron's form": respond({"NeutronError": NO_NETWORK}, 404),
    "a list": respond([NO_SERVER], 404),
    "nothing": HttpResponse(404, NOVA, b""),
}


@pytest.mark.parametrize("response", NOT_NOVAS.values(), ids=NOT_NOVAS)
def test_another_form_is_not_novas_not_found(response: HttpResponse):
    assert isinstance(read_server(response, LOGIN, SERVER_ID), Unanswered)


NOT_NEUTRONS = {
    "another status": respond({"NeutronError": NO_NETWORK}, 503, {}),
    "another type": respond({"NeutronError": NO_NETWORK | {"type": "HTTPNotFound"}}, 404, {}),
    "another id": respond({"NeutronError": NO_NETWORK | {"message": "no"}}, 404, {}),
    "Nova's form": respond({"itemNotFound": NO_SERVER}, 404, {}),
    "another project": respond({"network": make_network(SERVER_ID, "net", project="q")}, 200, {}),
    "another network": respond({"network": make_network(SERVER_ID[:-1] + "2", "net", project="p")}, 200, {}),
}


@pytest.mark.parametrize("response", NOT_NEUTRONS.values(), ids=NOT_NEUTRONS)
def test_another_form_is_no_answer_about_a_network(response: HttpResponse):
    assert isinstance(read_anchor(response, LOGIN, SERVER_ID), Unanswered)
    assert Anchor("network", SERVER_ID) == read_anchor(
        respond({"network": make_network(SERVER_ID, "net", project="p")}, 200, {}), LOGIN, SERVER_ID
    )


def test_an_address_in_a_network_without_a_name_is_not_public():
    addresses = {"": [{"addr": "10.0.0.5", "OS-EXT-IPS:type": "fixed"}]}
    server = read_server(respond({"server": SERVER | {"addresses": addresses}}), LOGIN, SERVER_ID)
    assert isinstance(server, Instance)
    assert [each.network for each in server.addresses] == ["(unnamed)"]


BROKEN = {
    "another id": {"id": SERVER_ID[:-1] + "2"},
    "no UUID": {"id": "7"},
    "no name": {"name": ""},
    "no status": {"status": None},
    "another project": {"tenant_id": "q"},
    "no address": {"addresses": {"net": [{"addr": "10.0.0.256", "OS-EXT-IPS:type": "fixed"}]}},
    "addresses of no type": {"addresses": {"net": [{"addr": "10.0.0.7"}]}},
    "number as a name": {"name": 7},
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_a_broken_server_is_no_answer(change: dict[str, Any]):
    assert isinstance(read_server(respond({"server": SERVER | change}), LOGIN, SERVER_ID), Unanswered)


def test_a_list_with_a_server_of_another_project_is_no_answer():
    foreign = SERVER | {"id": SERVER_ID[:-1] + "2", "tenant_id": "q"}
    answer = read_servers(respond({"servers": [SERVER, foreign]}), LOGIN)
    assert answer == Unanswered("malformed", f"server {foreign['id']} belongs to another project")


@pytest.mark.parametrize("links", [7, "next", [{"href": "x"}], [7]])
def test_a_list_with_broken_links_is_no_answer(links: Any):
    assert isinstance(read_servers(respond({"servers": [], "servers_links": links}), LOGIN), Unanswered)


@pytest.mark.parametrize("end", ["", "/", "/v2", "/v2.0", "/v2.0/", "/v2.30"])
def test_a_catalogue_may_name_the_version_of_octavia(end: str):
    assert add_balancer_version(f"https://lb.example/load-balancer{end}") == (
        "https://lb.example/load-balancer/v2.0"
    )
