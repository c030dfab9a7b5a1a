"""Answers of a simulated HTTP API, and faults of what is before it and of the network."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Literal

import msgspec
from aiohttp import web

_PROXY_PAGE: Final = "<html><body><h1>{}</h1>nginx</body></html>"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON document with its status and headers."""

    status: int
    document: Any  # None: without a body
    headers: Mapping[str, str] = {}


# receives the request and the answer without the fault
MakeResponse = Callable[[web.Request, Answer], Awaitable[web.StreamResponse]]


def make_response(answer: Answer) -> web.Response:
    """Return the answer as the API sends it."""
    if answer.status == HTTPStatus.NO_CONTENT or answer.document is None:
        return web.Response(status=answer.status, headers=answer.headers)
    body = msgspec.json.encode(answer.document)
    return web.Response(
        body=body, status=answer.status, headers=answer.headers, content_type="application/json"
    )


def replace_answer(answer: Answer) -> MakeResponse:
    """Return the fault that sends this answer."""

    async def respond(request: web.Request, before: Answer) -> web.StreamResponse:
        return make_response(answer)

    return respond


def change_document(change: Callable[[Any], Any]) -> MakeResponse:
    """Return the fault that sends another document, with the same status and headers."""

    async def respond(request: web.Request, before: Answer) -> web.StreamResponse:
        return make_response(msgspec.structs.replace(before, document=change(before.document)))

    return respond


def pad_answer(size: int) -> MakeResponse:
    """Return the fault that sends the document and this many blanks, which is still JSON."""

    async def respond(request: web.Request, before: Answer) -> web.StreamResponse:
        body = msgspec.json.encode(before.document) + b" " * size
        return web.Response(
            body=body, status=before.status, headers=before.headers, content_type="application/json"
        )

    return respond


def _proxy(status: int, title: str = "") -> MakeResponse:
    async def respond(request: web.Request, before: Answer) -> web.StreamResponse:
        page = _PROXY_PAGE.format(title or status)
        return web.Response(text=page, status=status, content_type="text/html")

    return respond


async def _hang(request: web.Request, before: Answer) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def _cut_off(request: web.Request, before: Answer) -> web.StreamResponse:
    body = msgspec.json.encode(before.document)
    headers = {"Content-Length": str(len(body)), **before.headers}
    response = web.StreamResponse(status=before.status, headers=headers)
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    assert request.transport is not None
    request.transport.close()
    return response


async def _drop(request: web.Request, before: Answer) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def _echo(request: web.Request, before: Answer) -> web.StreamResponse:
    text = "".join(f"{name}: {value}\n" for name, value in request.headers.items())
    return web.Response(text=text, status=502)


async def _redirect(request: web.Request, before: Answer) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": str(request.url.with_query(followed="yes"))})


HTTP_FAULTS: Final[Mapping[str, MakeResponse]] = {
    "proxy_not_found": _proxy(404),
    "proxy_bad_gateway": _proxy(502),
    "login_page": _proxy(200, "Log in"),
    "echo": _echo,
    "redirect": _redirect,
    "huge": pad_answer(5 << 20),
    "hang": _hang,
    "cut_off": _cut_off,
    "drop": _drop,
}


class Fault(msgspec.Struct, kw_only=True):
    """A fault of requests whose method and path match: `after` pass, then it applies to `count`, or to all.

    `effect` is what the request does all the same: it takes effect and the answer is lost ("now"), it never
    does ("never"), or it does when the server's `release` is called ("later").
    """

    name: str
    path: str = ".*"
    method: str = ".*"
    after: int = 0
    count: int | None = None
    effect: Literal["now", "never", "later"] = "now"

    def applies_to(self, method: str, path: str) -> bool:
        """Whether the request gets this fault; counts it then."""
        matches = re.fullmatch(self.path, path) and re.fullmatch(self.method, method)
        if self.count == 0 or not matches:
            return False
        if self.after > 0:
            self.after -= 1
            return False
        if self.count is not None:
            self.count -= 1
        return True
