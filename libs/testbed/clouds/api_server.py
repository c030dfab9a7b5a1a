"""Serves a simulated cloud on the loopback, with faults."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from aiohttp import web

from libs.testbed.clouds.http_faults import HTTP_FAULTS, Answer, Fault, MakeResponse, make_response
from libs.testbed.loopback_site import LoopbackSite


class SimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it came in."""

    method: str
    path: str  # below the endpoint; "" if it is not below
    query: Mapping[str, str]  # values of the same name are joined by commas
    headers: Mapping[str, str]
    body: bytes
    received_at: float  # monotonic

    @property
    def token(self) -> str:
        """The credential of the Authorization header, without its scheme, or that of X-Auth-Token."""
        credential = self.headers.get("Authorization", "").partition(" ")[2]
        return credential or self.headers.get("X-Auth-Token", "")


class SimCloud(Protocol):
    """An API in memory."""

    @property
    def root(self) -> str:
        """The path of the endpoint."""
        ...

    @property
    def faults(self) -> Mapping[str, MakeResponse]:
        """Faults in the forms of this API, beside those of every HTTP API."""
        ...

    def answer(self, request: SimRequest) -> Answer:
        """Return the answer without a fault."""
        ...


CloudT = TypeVar("CloudT", bound=SimCloud)


class SimApiServer(Generic[CloudT]):
    """One server. `faults` may change at any time; the first that matches applies.

    `before_answer` is called with each request before it takes effect, `after_answer` when it has and before
    the answer is sent.
    """

    def __init__(self, cloud: CloudT) -> None:
        self.cloud = cloud
        self.faults: list[Fault] = []
        self.requests: list[SimRequest] = []
        self.held: list[SimRequest] = []  # requests that take effect later
        self.before_answer: Callable[[SimRequest], None] = lambda request: None
        self.after_answer: Callable[[SimRequest, Answer], None] = lambda request, answer: None
        self.endpoint = ""
        self._make = {**HTTP_FAULTS, **cloud.faults}

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls, cloud: CloudT, *, host: str = "127.0.0.1", port: int = 0
    ) -> AsyncIterator[SimApiServer[CloudT]]:
        """Serve the cloud until the context ends; port 0 selects a free one."""
        server = cls(cloud)
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", server._handle)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        site = await LoopbackSite.start(runner, host, port)
        server.endpoint = f"http://{host}:{site.port}{cloud.root}"
        try:
            yield server
        finally:
            await site.stop()

    def add_fault(self, name: str, path: str = ".*", **details: Any) -> None:
        """Add a fault by its name; `path` is a regular expression for the path below the endpoint.

        The details are those of Fault.
        """
        assert name in self._make
        self.faults.append(Fault(name=name, path=path, **details))

    def release(self) -> list[Answer]:
        """Let the held requests take effect; return the answers, which no client gets."""
        held, self.held = self.held, []
        return [self.cloud.answer(request) for request in held]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        is_below = request.path.startswith(self.cloud.root)
        received = SimRequest(
            method=request.method,
            path=request.path.removeprefix(self.cloud.root) if is_below else "",
            query={name: ",".join(request.query.getall(name)) for name in request.query},
            headers=request.headers,
            body=await request.read(),
            received_at=time.monotonic(),
        )
        self.requests.append(received)
        self.before_answer(received)
        matching = (each for each in self.faults if each.applies_to(received.method, received.path))
        fault = next(matching, None)
        if fault is not None and fault.effect != "now":
            if fault.effect == "later":
                self.held.append(received)
            return await self._make[fault.name](request, Answer(status=500, document={}))
        answer = self.cloud.answer(received)
        self.after_answer(received, answer)
        return make_response(answer) if fault is None else await self._make[fault.name](request, answer)
