"""The order of two messages of one subject: an older one never replaces a newer one. See docs/design.md."""

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final

from libs.common.contract import events

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Recency(Enum):
    """Whether an event is newer than, older than or the same as the stored one."""

    NEWER = "newer"  # publish it again and expect the sequence of the stored one
    OLDER = "older"  # drop it
    SAME = "same"  # neither is newer: read the object again


def compare_events(mine: events.Event, theirs: events.Event | None, stream_id: str) -> Recency:
    """Compare two messages of one subject; `theirs` is None if the subject is empty or unreadable.

    A message with another stream ID than the current one is older, whatever its order. If both have another
    stream ID, `mine` is older: its publisher does not know the new stream yet.
    """
    if stream_id_of(mine) != stream_id:
        return Recency.OLDER
    if theirs is None or stream_id_of(theirs) != stream_id:
        return Recency.NEWER
    ours, other = _order_key(mine), _order_key(theirs)
    if ours == other:
        return Recency.SAME
    return Recency.NEWER if ours > other else Recency.OLDER


def stream_id_of(event: events.Event) -> str:
    """Return the stream ID that the publisher put into the event; "" for events without one."""
    return getattr(event, "stream_id", "")


def epoch_of(event: events.Event) -> int:
    """Return the epoch of the leader that published the event; 0 for events without one."""
    match event:
        case events.OrderedObservation():
            return event.order.epoch
        case events.SnapshotComplete() | events.Leading():
            return event.epoch
        case _:
            return 0


def is_from_former_leader(event: events.Event, greatest_epoch: int) -> bool:
    """Return whether a newer leader published before this event in the stream: then the event is void.

    A paused leader may publish an object that was deleted meanwhile. `greatest_epoch` is the greatest epoch
    of all earlier messages in the stream that have the same stream ID.
    """
    return 0 < epoch_of(event) < greatest_epoch


def _order_key(event: events.Event) -> tuple[int, int]:
    match event:
        case events.OrderedObservation():
            return (event.order.epoch, event.order.resource_version)
        case (
            events.NodeEnriched()
            | events.NodeUnreachable()
            | events.EnrichedNodeGone()
            | events.CsrEnriched()
            | events.EnrichedCsrGone()
        ):
            return (0, event.observed_sequence)
        case events.ClusterNetworksObserved():
            return (0, (event.observed_at - _EPOCH) // timedelta(microseconds=1))
        case events.InstanceEvent():
            return (0, (event.asked_at - _EPOCH) // timedelta(microseconds=1))
        case events.SnapshotComplete() | events.Leading():
            return (event.epoch, 0)
        case _:
            return (0, 0)  # decisions and dead letters: the last one published is valid
