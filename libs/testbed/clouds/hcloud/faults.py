"""Faults of the API, of what is before it, and of the network: each replaces one response."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import web

from libs.testbed.clouds.hcloud.answers import Answer, make_error
from libs.testbed.clouds.hcloud.project import SINGULARS

_PROXY_PAGE: Final = "<html><body><h1>{}</h1>nginx</body></html>"
_HUGE_BYTES: Final = 5 << 20

# receives the request and the answer without the fault
MakeResponse = Callable[[web.Request, Answer], Awaitable[web.StreamResponse]]


def make_response(answer: Answer) -> web.Response:
    """Return the answer as the API sends it."""
    body = msgspec.json.encode(answer.document)
    return web.Response(
        body=body, status=answer.status, headers=answer.headers, content_type="application/json"
    )


def _replace(answer: Answer) -> MakeResponse:
    async def respond(request: web.Request, before: Answer) -> web.StreamResponse:
        return make_response(answer)

    return respond


def _proxy(status: int) -> MakeResponse:
    async def respond(request: web.Request, before: Answer) -> web.StreamResponse:
        return web.Response(text=_PROXY_PAGE.format(status), status=status, content_type="text/html")

    return respond


def _change_items(change: Callable[[list[Any]], list[Any]]) -> MakeResponse:
    """Change the items of a list, but not its meta; other answers stay."""

    async def respond(request: web.Request, before: Answer) -> web.StreamResponse:
        lists = {kind: change(before.document[kind]) for kind in SINGULARS if kind in before.document}
        return make_response(msgspec.structs.replace(before, document=before.document | lists))

    return respond


async def _empty_list(request: web.Request, before: Answer) -> web.StreamResponse:
    kind = request.path.rsplit("/", 1)[-1]
    pagination = {
        "page": 1,
        "per_page": int(request.query.get("per_page", "25")),
        "previous_page": None,
        "next_page": None,
        "last_page": 1,
        "total_entries": 0,
    }
    document = {kind: [], "meta": {"pagination": pagination}} if kind in SINGULARS else before.document
    return make_response(msgspec.structs.replace(before, document=document))


async def _wrong_id(request: web.Request, before: Answer) -> web.StreamResponse:
    changed = {key: value | {"id": value["id"] + 1} for key, value in before.document.items()}
    return make_response(msgspec.structs.replace(before, document=changed))


async def _hang(request: web.Request, before: Answer) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def _cut_off(request: web.Request, before: Answer) -> web.StreamResponse:
    body = msgspec.json.encode(before.document)
    response = web.StreamResponse(headers={"Content-Length": str(len(body)), **before.headers})
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    assert request.transport is not None
    request.transport.close()
    return response


async def _redirect(request: web.Request, before: Answer) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": str(request.url.with_query(followed="yes"))})


async def _huge(request: web.Request, before: Answer) -> web.StreamResponse:
    body = msgspec.json.encode(before.document) + b" " * _HUGE_BYTES  # still JSON
    return web.Response(body=body, content_type="application/json")


async def _not_json(request: web.Request, before: Answer) -> web.StreamResponse:
    return web.Response(text=_PROXY_PAGE.format("Log in"), content_type="text/html")


FAULTS: Final[dict[str, MakeResponse]] = {
    "unauthorized": _replace(make_error(401, "unauthorized")),
    "forbidden": _replace(make_error(403, "forbidden")),
    "rate_limited": _replace(make_error(429, "rate_limit_exceeded", Retry_After="90")),
    "service_error": _replace(make_error(503, "service_error")),
    "lying_not_found": _replace(make_error(404, "not_found")),
    "proxy_not_found": _proxy(404),
    "proxy_bad_gateway": _proxy(502),
    "login_page": _not_json,
    "redirect": _redirect,
    "huge": _huge,
    "hang": _hang,
    "cut_off": _cut_off,
    "half_page": _change_items(lambda items: items[: len(items) // 2]),
    "duplicate": _change_items(lambda items: items[:-1] + items[:1]),
    "empty_list": _empty_list,
    "wrong_id": _wrong_id,
}


class Fault(msgspec.Struct, kw_only=True):
    """A fault of requests whose path matches: `after` of them pass, then it applies to `count`, or to all."""

    name: str
    path: str = ".*"
    after: int = 0
    count: int | None = None

    def applies_to(self, path: str) -> bool:
        """Whether the request gets this fault; counts it then."""
        if self.count == 0 or not re.fullmatch(self.path, path):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        if self.count is not None:
            self.count -= 1
        return True
