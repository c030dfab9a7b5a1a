"""Clusters that scale make names by the thousand, and nothing may pile up for them."""

from datetime import timedelta
from typing import cast

import msgspec

from libs.common.bus.ordered_publisher import MAX_SUBJECTS, OrderedPublisher
from libs.common.bus.protocol import Bus, Follower
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.subjects import OBSERVED_NODE
from services.watcher.core.kinds import CSR, NODE
from services.watcher.core.published_state import PublishedState
from tests import builders
from tests.manual_clock import ManualClock

YOUNG = builders.NOW + timedelta(minutes=50)
LATER = builders.NOW + timedelta(minutes=70)


def fed(follower: Follower) -> None:
    """With three Nodes, two of them gone; and a resync when the stream has dropped the older one of those."""
    follower.start_replay(builders.make_position())
    follower.finish_replay()
    follower.apply(builders.make_message(builders.make_node_observed(builders.make_node("there"))))
    follower.apply(builders.make_message(builders.make_node_gone(builders.make_node("old")), sequence=2))
    young = msgspec.structs.replace(builders.make_node_gone(builders.make_node("young")), observed_at=YOUNG)
    follower.apply(msgspec.structs.replace(builders.make_message(young, sequence=3), published_at=YOUNG))
    follower.apply(
        msgspec.structs.replace(
            builders.make_message(builders.make_snapshot(), sequence=4), published_at=LATER
        )
    )
    follower.mark_caught_up()


def test_a_table_drops_what_is_gone_for_longer_than_the_stream_keeps_it():
    table = StreamCache(clock=ManualClock())
    fed(table)
    kept = {message.subject for message in table.list_under(OBSERVED_NODE)}
    assert kept == {f"{OBSERVED_NODE}.young", f"{OBSERVED_NODE}.there"}
    assert table.is_complete


def test_the_watcher_drops_it_too():
    held = PublishedState(clock=ManualClock())
    fed(held)
    assert [held.get(NODE, name) is not None for name in ("old", "young", "there")] == [False, True, True]
    assert held.subject_count == 3  # the snapshot is one


def test_requests_that_went_are_dropped_like_nodes():
    held = PublishedState(clock=ManualClock())
    fed(held)
    held.apply(builders.make_message(builders.make_csr_gone(builders.make_request("old")), sequence=5))
    held.apply(builders.make_message(builders.make_csr_observed(builders.make_request("there")), sequence=6))
    held.apply(
        msgspec.structs.replace(
            builders.make_message(builders.make_snapshot(), sequence=7), published_at=LATER
        )
    )
    assert (held.get(CSR, "old"), held.names(CSR)) == (None, {"there"})


def test_a_publisher_keeps_the_sequences_of_those_that_it_hears_of():
    publisher = OrderedPublisher(cast("Bus", None))  # nothing is published here
    publisher.record_sequence("there", 1)
    for number in range(MAX_SUBJECTS):
        publisher.record_sequence(f"gone-{number}", number + 2)
        publisher.record_sequence("there", 1)
    assert publisher.last_sequence_of("there") == 1
    assert publisher.last_sequence_of("gone-0") == 0
    assert publisher.last_sequence_of(f"gone-{MAX_SUBJECTS - 1}") == MAX_SUBJECTS + 1
