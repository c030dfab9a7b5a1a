"""What a cloud answers, or a proxy before it."""

from typing import Final

import msgspec

from libs.clouds.hcloud.responses import Server, build_instance, read_item, read_page
from libs.clouds.http_reader import HttpResponse
from libs.clouds.instances import Deleted, Instance, NotFound, Unanswered
from libs.clouds.thalassa import responses as thalassa
from libs.testbed.clouds.hcloud.objects import make_server
from libs.testbed.clouds.thalassa.objects import make_machine, make_organisation, make_vpc
from tests.fuzz.target import Target

_PAGE: Final = {"page": 1, "per_page": 50, "next_page": None, "last_page": 1, "total_entries": 1}


def _hcloud(data: bytes) -> None:
    found = read_item(HttpResponse(200, {}, data), "server", Server)
    assert isinstance(found, Server | Unanswered)
    page = read_page(HttpResponse(200, {}, data), "servers", Server)
    servers = [found] if isinstance(found, Server) else [] if isinstance(page, Unanswered) else page.items
    for server in servers:
        built = build_instance(server)
        assert isinstance(built, Instance | Unanswered)
        assert isinstance(built, Unanswered) or int(built.id) > 0
    error = read_item(HttpResponse(404, {}, data), "server", Server)
    assert isinstance(error, Unanswered) or (error == NotFound() and b"not_found" in data)


def _hcloud_answers() -> tuple[bytes, ...]:
    server = make_server(7, "web-1", ipv4="192.0.2.7", ipv6="2001:db8::/64", private=[(5, "10.0.0.7")])
    documents = (
        {"server": server},
        {"servers": [server], "meta": {"pagination": _PAGE}},
        {"error": {"code": "not_found", "message": "no", "details": None}},
    )
    return tuple(map(msgspec.json.encode, documents))


def _thalassa(data: bytes) -> None:
    listed = thalassa.read_list(HttpResponse(200, {}, data), thalassa.Machine)
    found = thalassa.read_item(HttpResponse(200, {}, data), "vm-7", thalassa.Machine)
    for machine in (*(listed if isinstance(listed, tuple) else ()), found):
        if isinstance(machine, thalassa.Machine):
            built = thalassa.build_instance(machine)
            assert isinstance(built, Instance | Deleted | Unanswered)
            assert not isinstance(built, Deleted) or b"deleted" in data
    error = thalassa.read_item(HttpResponse(404, {}, data), "vm-7", thalassa.Machine)
    assert isinstance(error, Unanswered) or (error == NotFound() and b"message" in data)
    thalassa.read_access_token(HttpResponse(200, {}, data))


def _thalassa_answers() -> tuple[bytes, ...]:
    vpc = make_vpc("vpc-1", "net", make_organisation("o-1", "acme"))
    machine = make_machine("vm-7", "web-1", vpc, addresses=["10.0.1.7"])
    token = {"access_token": "a", "token_type": "Bearer", "expires_in": 3600}
    return tuple(map(msgspec.json.encode, (machine, [machine], {"message": "not found"}, token)))


TARGETS: Final = (
    Target(name="cloud-hcloud", format="json", run=_hcloud, seeds=_hcloud_answers),
    Target(name="cloud-thalassa", format="json", run=_thalassa, seeds=_thalassa_answers),
)
