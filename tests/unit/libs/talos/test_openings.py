"""A watch opens with the state of now, and with no more than an answer may have."""

import pytest

from libs.talos.machine_events import WatchOpening
from libs.talos.proto.generated import (
    Event,
    EventType,
    Metadata,
    Resource,
    Spec,
    WatchResponse,
)
from libs.talos.proto.strict import InvalidResponse
from libs.talos.resources import ADDRESSES

NOTHING = WatchResponse()
NOOP = WatchResponse(event=[Event(event_type=EventType.NOOP)])
END = WatchResponse(event=[Event(event_type=EventType.BOOTSTRAPPED)])


def an_address(size: int) -> WatchResponse:
    metadata = Metadata(namespace=ADDRESSES.namespace, type=ADDRESSES.type, id="eth0/10.0.0.5/24")
    created = Event(
        event_type=EventType.CREATED,
        resource=Resource(metadata=metadata, spec=Spec(proto_spec=bytes(size))),
    )
    return WatchResponse(event=[created])


def test_a_watch_opens_after_all_there_is():
    opening = WatchOpening(ADDRESSES)
    for answer in (NOTHING, *[an_address(300)] * 700):
        assert not opening.apply(bytes(answer))
        assert not opening.is_open
    opening.apply(bytes(END))
    assert opening.is_open
    assert len(opening.initial_resources) == 700


@pytest.mark.parametrize("answer", [NOTHING, NOOP, an_address(60_000)], ids=["nothing", "noops", "large"])
def test_a_machine_that_never_comes_to_the_end_of_what_there_is_is_not_heard_out(answer: WatchResponse):
    opening, encoded = WatchOpening(ADDRESSES), bytes(answer)

    def listen() -> None:
        for _ in range(3000):
            opening.apply(encoded)

    with pytest.raises(InvalidResponse):
        listen()
    assert sum(len(resource.spec) for resource in opening.initial_resources) <= 512 * 1024
