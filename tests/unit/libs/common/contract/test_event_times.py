"""Times of messages: each has its offset, whichever service wrote it."""

import msgspec
import pytest

from libs.common.contract.events import Event, EventError, decode, encode
from tests.builders import (
    make_csr_enriched,
    make_csr_observed,
    make_facts,
    make_leading,
    make_node,
    make_node_enriched,
    make_node_observed,
    make_request,
)

TOLD = [
    make_node_observed(make_node()),
    make_node_enriched(make_node(), make_facts()),
    make_csr_observed(make_request()),
    make_csr_enriched(make_request()),
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
    assert decode(encode(make_leading())) == make_leading()
