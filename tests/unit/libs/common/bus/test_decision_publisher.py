"""Decisions for operators: what cannot be published fails nothing."""

import pytest

from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.contract.events import MAX_EVENT_BYTES
from libs.common.contract.services import DURABLES
from tests.builders import NOW, make_node
from tests.bus_actors import MAX_BYTES


async def test_a_decision_that_is_too_large_for_a_message_is_logged_only(caplog: pytest.LogCaptureFixture):
    bus = MemoryBus(MemoryServer())
    await bus.provision(DURABLES, max_bytes=MAX_BYTES)
    publisher = DecisionPublisher(bus, service="labeler", kind="node", now=lambda: NOW)
    await publisher.publish(make_node(), "updated", "by rules", changes=("x" * MAX_EVENT_BYTES,))
    assert "publish of decision failed" in caplog.text
