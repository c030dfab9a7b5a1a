"""A bus server of either kind, and services under test on buses of their own."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import nats
import pytest

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.nats.connection import Connection
from libs.common.bus.nats.nats_access import NatsAccess
from libs.common.bus.protocol import Bus
from libs.common.contract.subjects import STREAM
from libs.common.service.service import Dependencies
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.nats_server import NatsServer
from tests.bus_actors import NATS, FlowFollower, run_during, wait_until_led, wait_until_ready
from tests.clocks import ManualClock
from tests.flow_actors import QUICK
from tests.service_flow import make_dependencies


@asynccontextmanager
async def connected(port: int, *, ca_file: Path | None = None) -> AsyncIterator[Connection]:
    """One connection of the watcher to NATS at this port, with TLS if `ca_file` is given."""
    server = f"nats://127.0.0.1:{port}"
    access = NatsAccess(servers=(server,), service="watcher", tls_ca_file=ca_file)
    connection = await Connection.open(access, server, seconds=HANG_SECONDS, on_violation=lambda text: None)
    try:
        yield connection
    finally:
        await connection.abort("the test is over")


class FollowingService(FlowFollower, Protocol):
    """A service that follows the flow and can run."""

    async def run(self) -> None: ...


ServiceT = TypeVar("ServiceT", bound=FollowingService)


class BusServer:
    """A bus server in memory or NATS; each connection is a bus of its own, as in a process of its own."""

    def __init__(self, connect: Callable[..., Awaitable[Bus]], nats_server: NatsServer | None = None) -> None:
        self.connect = connect
        self.nats = nats_server

    @classmethod
    @asynccontextmanager
    async def open(
        cls, kind: str, tmp_path: Path, clock: ManualClock | None = None
    ) -> AsyncIterator["BusServer"]:
        """Start a server of that kind; the one in memory dates its messages by `clock`."""
        if kind == "nats":
            async with NatsServer.start(tmp_path / "nats") as server:
                yield cls(partial(NatsBus.connect, (server.url,), timing=QUICK), server)
            return
        memory = MemoryServer(clock=clock.now) if clock else MemoryServer()

        async def connect(*, service: str) -> Bus:
            return MemoryBus(memory)

        yield cls(connect)

    async def delete_stream(self) -> None:
        """Delete the stream, as if NATS lost all its data."""
        assert self.nats is not None
        client = await nats.connect(self.nats.url)
        await client.jetstream().delete_stream(STREAM)
        await client.close()

    @asynccontextmanager
    async def open_bus(self, service: str) -> AsyncIterator[Bus]:
        """A bus of that service, closed at the end."""
        bus = await self.connect(service=service)
        try:
            yield bus
        finally:
            await bus.close()


@asynccontextmanager
async def run_service(
    server: BusServer,
    name: str,
    build: Callable[[Dependencies], ServiceT],
    *,
    kube: Any,
    clock: ManualClock | None = None,
    seed: int = 1,
    identity: str = "",
    ready: bool = True,
) -> AsyncIterator[ServiceT]:
    """A service on a bus of its own, as in a process of its own, with a clock of its own unless given.

    The block begins once the service is ready, or (not `ready`) once it knows the leader.
    """
    async with server.open_bus(name) as bus:
        parts = make_dependencies(bus, kube=kube, clock=clock or ManualClock(), seed=seed, identity=identity)
        service = build(parts)
        async with run_during(service.run()):
            await (wait_until_ready if ready else wait_until_led)(service, bus)
            yield service


FlowT = TypeVar("FlowT")


OpenFlow = Callable[[str, Path], AbstractAsyncContextManager[FlowT]]


def make_flow_fixture(open_flow: OpenFlow[FlowT]) -> Callable[..., AsyncIterator[FlowT]]:
    """A fixture on the bus in memory."""

    @pytest.fixture
    async def flow(tmp_path: Path) -> AsyncIterator[FlowT]:
        async with open_flow("memory", tmp_path) as running:
            yield running

    return flow


def make_flow_fixtures(
    open_flow: OpenFlow[FlowT],
) -> tuple[Callable[..., AsyncIterator[FlowT]], Callable[..., AsyncIterator[FlowT]]]:
    """A fixture on the bus in memory, and one on each bus."""

    @pytest.fixture(params=["memory", NATS])
    async def any_flow(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FlowT]:
        async with open_flow(request.param, tmp_path) as running:
            yield running

    return make_flow_fixture(open_flow), any_flow
