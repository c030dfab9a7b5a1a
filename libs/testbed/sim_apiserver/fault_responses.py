"""HTTP responses for injected faults and for rejections."""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from libs.testbed.sim_apiserver.faults import (
    ConflictFault,
    EmptyClose,
    ExpiredFault,
    HalfOpenFault,
    ServerFault,
    SlowFault,
    TooManyRequestsFault,
)
from libs.testbed.sim_apiserver.refusals import Refusal, ResourceReference, conflict, expired
from libs.testbed.sim_apiserver.watch_stream import make_error_event


async def apply_fault(
    fault: ServerFault, request: web.BaseRequest, *, is_watch: bool
) -> web.StreamResponse | None:
    """Return the response, or None to carry out the request now. Raises Refusal."""
    match fault:
        case SlowFault():
            await asyncio.sleep(fault.seconds)
            return None
        case TooManyRequestsFault():
            why = "the server has received too many requests and has asked us to try again later"
            raise Refusal(429, "TooManyRequests", why, retry_after_seconds=fault.retry_after_seconds)
        case ConflictFault():
            raise conflict(ResourceReference(request.path))
        case ExpiredFault() if not is_watch:
            raise expired("too old resource version")
        case HalfOpenFault() if not is_watch:
            await asyncio.Event().wait()  # until the client disconnects
        case EmptyClose() if not is_watch and request.transport is not None:
            request.transport.abort()
            return web.Response()
    response = await open_watch_response(request)
    await end_watch(fault, response)
    return response


async def end_watch(fault: ServerFault, response: web.StreamResponse) -> None:
    """Send what an open watch sends last: an error, nothing, or nothing until the client disconnects."""
    if isinstance(fault, ExpiredFault):
        await response.write(make_error_event(expired("too old resource version")))
    elif isinstance(fault, HalfOpenFault):
        await asyncio.Event().wait()


def make_refusal_response(refusal: Refusal) -> web.Response:
    """Return the response with the Status object."""
    headers = {"Content-Type": "application/json"}
    if refusal.retry_after_seconds is not None:
        headers["Retry-After"] = str(refusal.retry_after_seconds)
    return web.Response(status=refusal.code, body=msgspec.json.encode(refusal.status), headers=headers)


async def open_watch_response(request: web.BaseRequest) -> web.StreamResponse:
    """Return the response of a watch, after sending its headers."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    return response
