"""Serves the simulated cloud on the loopback."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable

import msgspec
from aiohttp import web

from libs.testbed.clouds.hcloud.answers import answer_request
from libs.testbed.clouds.hcloud.faults import FAULTS, Fault, make_response
from libs.testbed.clouds.hcloud.project import SimHcloud

_ROOT = "/v1"


class SimRequest(msgspec.Struct, frozen=True):
    """A request as it came in."""

    method: str
    path: str
    query: dict[str, str]
    token: str
    received_at: float  # monotonic


class SimHcloudServer:
    """One server. `faults` may change at any time; the first that matches applies.

    `before_answer` is called with each request before its answer is made.
    """

    def __init__(self, cloud: SimHcloud) -> None:
        self.cloud = cloud
        self.faults: list[Fault] = []
        self.requests: list[SimRequest] = []
        self.before_answer: Callable[[SimRequest], None] = lambda request: None
        self.endpoint = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls, cloud: SimHcloud | None = None, *, host: str = "127.0.0.1", port: int = 0
    ) -> AsyncIterator[SimHcloudServer]:
        """Serve the cloud until the context ends; port 0 selects a free one."""
        server = cls(cloud or SimHcloud(now=time.monotonic))
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", server._handle)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            server.endpoint = f"http://{host}:{runner.addresses[0][1]}{_ROOT}"
            yield server
        finally:
            await runner.cleanup()

    def add_fault(self, name: str, path: str = ".*", *, after: int = 0, count: int | None = None) -> None:
        """Add one of FAULTS; `path` is a regular expression for the path below the endpoint."""
        assert name in FAULTS
        self.faults.append(Fault(name=name, path=path, after=after, count=count))

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        path = request.path.removeprefix(_ROOT)
        received = SimRequest(request.method, path, dict(request.query), token, time.monotonic())
        self.requests.append(received)
        self.before_answer(received)
        answer = answer_request(
            self.cloud,
            method=request.method,
            path=path if request.path.startswith(_ROOT) else "",
            query=received.query,
            token=token,
            unix_time=time.time(),
        )
        fault = next((each for each in self.faults if each.applies_to(path)), None)
        return make_response(answer) if fault is None else await FAULTS[fault.name](request, answer)
