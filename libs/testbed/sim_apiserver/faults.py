"""Injected faults: rules for requests that get another response, and the responses over HTTP."""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from libs.testbed.sim_apiserver.refusals import Refusal, ResourceReference, conflict, expired
from libs.testbed.sim_apiserver.watch_stream import make_error_event


class TooManyRequestsFault(msgspec.Struct, frozen=True):
    """429 with a Retry-After header."""

    retry_after_seconds: int = 1


class ExpiredFault(msgspec.Struct, frozen=True):
    """410: the first event of a watch, or the response to another request."""


class HalfOpenFault(msgspec.Struct, frozen=True):
    """A watch opens, sends no event and does not end."""


class EmptyClose(msgspec.Struct, frozen=True):
    """A watch ends at once without an event; the connection of another request closes without a response."""


class ConflictFault(msgspec.Struct, frozen=True):
    """409, as to a write that lost against another writer."""


ServerFault = TooManyRequestsFault | ExpiredFault | HalfOpenFault | EmptyClose | ConflictFault


class _Rule(msgspec.Struct):
    fault: ServerFault
    verb: str
    resource: str
    remaining: int | None
    every: int
    matched: int = 0


class FaultRules:
    """Rules in order of their injection; the first that matches a request applies."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []

    def inject(
        self,
        fault: ServerFault,
        *,
        verb: str = "",
        resource: str = "",
        times: int | None = None,
        every: int = 1,
    ) -> None:
        """Add a rule for a verb and a resource ("" is any), for `times` requests (None: until `clear`).

        With `every` 3, it applies to the first, fourth and seventh of the requests that match.
        """
        self._rules.append(_Rule(fault, verb, resource, times, every))

    def clear(self) -> None:
        """Remove all rules."""
        self._rules.clear()

    def match_request(self, verb: str, resource: str) -> ServerFault | None:
        """Return the fault for this request, if there is one, and count the request."""
        for rule in self._rules:
            if rule.remaining != 0 and rule.verb in {"", verb} and rule.resource in {"", resource}:
                rule.matched += 1
                if rule.matched % rule.every != 1 % rule.every:
                    continue
                if rule.remaining is not None:
                    rule.remaining -= 1
                return rule.fault
        return None


async def apply_fault(fault: ServerFault, request: web.BaseRequest, *, is_watch: bool) -> web.StreamResponse:
    """Return the response. Raises Refusal."""
    match fault:
        case TooManyRequestsFault():
            why = "the server has received too many requests and has asked us to try again later"
            raise Refusal(429, "TooManyRequests", why, retry_after_seconds=fault.retry_after_seconds)
        case ConflictFault():
            raise conflict(ResourceReference(request.path))
        case ExpiredFault() if not is_watch:
            raise expired("too old resource version")
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
