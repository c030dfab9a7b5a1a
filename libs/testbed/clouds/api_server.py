"""Serves a simulated cloud on the loopback, with faults."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec
from aiohttp import web

from libs.testbed.clouds.http_faults import HTTP_FAULTS, Answer, Fault, MakeResponse, make_response


class SimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it came in."""

    method: str
    path: str  # below the endpoint; "" if it is not below
    query: Mapping[str, str]
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

    `before_answer` is called with each request before its answer is made.
    """

    def __init__(self, cloud: CloudT) -> None:
        self.cloud = cloud
        self.faults: list[Fault] = []
        self.requests: list[SimRequest] = []
        self.before_answer: Callable[[SimRequest], None] = lambda request: None
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
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            server.endpoint = f"http://{host}:{runner.addresses[0][1]}{cloud.root}"
            yield server
        finally:
            await runner.cleanup()

    def add_fault(self, name: str, path: str = ".*", *, after: int = 0, count: int | None = None) -> None:
        """Add a fault by its name; `path` is a regular expression for the path below the endpoint."""
        assert name in self._make
        self.faults.append(Fault(name=name, path=path, after=after, count=count))

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        is_below = request.path.startswith(self.cloud.root)
        received = SimRequest(
            method=request.method,
            path=request.path.removeprefix(self.cloud.root) if is_below else "",
            query=dict(request.query),
            headers=request.headers,
            body=await request.read(),
            received_at=time.monotonic(),
        )
        self.requests.append(received)
        self.before_answer(received)
        answer = self.cloud.answer(received)
        fault = next((each for each in self.faults if each.applies_to(received.path)), None)
        return make_response(answer) if fault is None else await self._make[fault.name](request, answer)
