"""The labeler's flow, led and complete with a snapshot; and each bus in turn."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.protocol import Bus
from libs.testbed.nats_server import NatsServer
from tests.bus_actors import NATS
from tests.flow_actors import PATIENT_TIMING, FlowActor

Connect = Callable[..., Awaitable[Bus]]


@pytest.fixture
async def flow(nats_server: NatsServer) -> AsyncIterator[FlowActor]:
    async with FlowActor.open_led(nats_server.url) as running:
        yield running


@pytest.fixture(params=["memory", NATS])
async def connect(request: pytest.FixtureRequest, nats_server: NatsServer) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:
        memory = MemoryServer()

        async def connected(service: str = "watcher") -> Bus:
            if request.param == "memory":
                return MemoryBus(memory)
            bus = await NatsBus.connect((nats_server.url,), service=service, timing=PATIENT_TIMING)
            stack.push_async_callback(bus.close)
            return bus

        yield connected
