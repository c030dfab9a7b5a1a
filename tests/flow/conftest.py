"""The labeler's flow: led, and complete with a snapshot."""

from collections.abc import AsyncIterator

import pytest

from libs.testbed.nats_server import NatsServer
from tests.flow_actors import FlowActor


@pytest.fixture
async def flow(nats_server: NatsServer) -> AsyncIterator[FlowActor]:
    async with FlowActor.open_led(nats_server.url) as running:
        yield running
