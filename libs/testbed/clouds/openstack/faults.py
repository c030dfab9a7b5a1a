"""Faults in the forms of OpenStack's services: each replaces one response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from libs.testbed.clouds.http_faults import (
    Answer,
    MakeResponse,
    change_document,
    make_response,
    replace_answer,
)
from libs.testbed.clouds.openstack.answers import (
    make_keystone_error,
    make_no_network,
    make_no_server,
    make_nova_fault,
)
from libs.testbed.clouds.openstack.objects import Document


def _change_items(change: Callable[[list[Any]], list[Any]]) -> MakeResponse:
    """Change the items of a list, but not its links; other answers stay."""
    return change_document(
        lambda document: (
            document | {kind: change(document[kind]) for kind in ("servers", "networks") if kind in document}
        )
    )


def _as_nova(make: Callable[[str], Answer]) -> MakeResponse:
    """Return the fault that Nova itself sends about the last part of the path, at the right microversion."""

    async def respond(request: web.Request, before: Answer) -> web.StreamResponse:
        answer = make(request.path.rsplit("/", 1)[-1])
        return make_response(msgspec.structs.replace(answer, headers=before.headers))

    return respond


async def _lying_not_found(request: web.Request, before: Answer) -> web.StreamResponse:
    make = make_no_network if request.path.startswith("/network/") else make_no_server
    return await _as_nova(make)(request, before)


def _wrong_id(document: Document) -> Document:
    return {
        key: value | {"id": value["id"][:-1] + "f"} if isinstance(value, dict) and "id" in value else value
        for key, value in document.items()
    }


def _down_cell(document: Document) -> Document:
    """Show a server as Nova does while the database of its cell does not answer."""

    def reduce(server: Document) -> Document:
        kept = {name: server[name] for name in ("id", "created", "tenant_id", "security_groups", "links")}
        return kept | {"status": "UNKNOWN"}

    if "server" in document:
        return document | {"server": reduce(document["server"])}
    first, *others = document["servers"]
    return document | {"servers": [reduce(first), *others]}


async def _no_version(request: web.Request, before: Answer) -> web.StreamResponse:
    """Answer without the header by which Nova names itself and its microversion."""
    return make_response(msgspec.structs.replace(before, headers={}))


FAULTS: Final[Mapping[str, MakeResponse]] = {
    "unauthorized": replace_answer(make_keystone_error(401, "Unauthorized")),
    "forbidden": replace_answer(make_nova_fault(403, "forbidden", "no")),
    "rate_limited": replace_answer(make_nova_fault(429, "overLimit", "no", **{"Retry-After": "90"})),
    "service_error": replace_answer(make_nova_fault(503, "serviceUnavailable", "no")),
    "keystone_not_found": replace_answer(make_keystone_error(404, "Not Found")),
    "lying_not_found": _lying_not_found,
    "unknown_path": _as_nova(
        lambda name: make_nova_fault(404, "itemNotFound", "The resource could not be found.")
    ),
    "another_not_found": _as_nova(lambda name: make_no_server(name[:-1] + "f")),
    "half_page": _change_items(lambda items: items[: len(items) // 2]),
    "duplicate": _change_items(lambda items: items[:-1] + items[:1]),
    "empty_list": _change_items(lambda items: []),
    "wrong_id": change_document(_wrong_id),
    "down_cell": change_document(_down_cell),
    "no_version": _no_version,
    "no_link": change_document(
        lambda document: {name: value for name, value in document.items() if name != "servers_links"}
    ),
}
