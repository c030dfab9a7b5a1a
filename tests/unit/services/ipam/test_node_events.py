"""Events of ipam have the reference's words, and none is about a reason of the whole cluster."""

from libs.common.kube.event_recorder import EventRecorder
from services.ipam.reports import COMPONENT, NOT_AVAILABLE, NodeEvents
from tests.builders import NOW
from tests.in_memory_api import InMemoryEvents


async def test_an_event_has_the_words_of_the_reference_until_the_node_has_blocks():
    kube = InMemoryEvents()
    recorder = EventRecorder(kube, component=COMPONENT, now=lambda: NOW)
    events = NodeEvents(recorder, lambda: ("no networks",))
    for why in ("no networks", "no room", "no room", "no pool"):
        events.record("web-1", "uid-1", NOT_AVAILABLE, why)
    await recorder.flush()
    first, second = kube.events
    assert first.message == "Node web-1 status is now: CIDRNotAvailable: no room"
    assert (first.regarding.uid, first.reason, first.type, first.component) == (
        "uid-1", "CIDRNotAvailable", "Warning", COMPONENT,
    )  # fmt: skip
    assert second.message.endswith("no pool")
