"""Times of messages: each with its offset, whoever wrote it."""

import msgspec
import pytest

from libs.common.events import Event, EventError, decode, encode
from tests.builders import (
    a_node,
    a_request,
    csr_enriched,
    csr_observed,
    enriched,
    leading,
    observed,
    some_facts,
)

TOLD = [
    observed(a_node()),
    enriched(a_node(), some_facts()),
    csr_observed(a_request()),
    csr_enriched(a_request()),
]


def times_of(document: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(document, dict):
        return []
    found = []
    for key, value in document.items():
        if isinstance(value, str) and key.endswith("_at"):
            found.append((*path, key))
        found += times_of(value, (*path, key))
    return found


@pytest.mark.parametrize("event", TOLD, ids=lambda event: type(event).__name__)
def test_a_message_with_a_time_that_cannot_be_compared_is_no_message(event: Event):
    document = msgspec.json.decode(encode(event))
    paths = times_of(document)
    assert paths
    for *path, key in paths:
        broken = msgspec.json.decode(encode(event))
        place = broken
        for name in path:
            place = place[name]
        place[key] = "0001-01-01T00:00:00"
        with pytest.raises(EventError):
            decode(msgspec.json.encode(broken))
    assert decode(encode(event)) == event
    assert decode(encode(leading())) == leading()
