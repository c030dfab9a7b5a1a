"""What a cloud answers, or a proxy before it."""

from typing import Final

import msgspec

from libs.clouds.hcloud.responses import Server, build_instance, read_item, read_page
from libs.clouds.http_reader import HttpResponse
from libs.clouds.instances import Instance, NotFound, Unanswered
from libs.testbed.clouds.hcloud.objects import make_server
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


TARGETS: Final = (Target(name="cloud-hcloud", format="json", run=_hcloud, seeds=_hcloud_answers),)
