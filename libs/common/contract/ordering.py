"""Old never replaces new: who wins when two messages of one subject meet. See docs/design.md."""

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final

from libs.common.contract.events import (
    ClusterNetworksObserved,
    CsrEnriched,
    CsrGone,
    CsrObserved,
    EnrichedCsrGone,
    EnrichedNodeGone,
    Event,
    Leading,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
    SnapshotComplete,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Recency(Enum):
    """Where my message stands against the one that the stream holds."""

    NEWER = "newer"  # publish it again, expecting the sequence of theirs
    OLDER = "older"  # drop it
    SAME = "same"  # neither knows more: look at the object again


def compare_events(mine: Event, theirs: Event | None, stream_id: str) -> Recency:
    """Compare two messages of one subject; `theirs` is None when the subject is empty or unreadable.

    A message of another incarnation than the present one loses, whatever its order; both foreign: mine is
    dropped too, because its publisher has not seen the new stream yet.
    """
    if stream_id_of(mine) != stream_id:
        return Recency.OLDER
    if theirs is None or stream_id_of(theirs) != stream_id:
        return Recency.NEWER
    ours, other = _order_key(mine), _order_key(theirs)
    if ours == other:
        return Recency.SAME
    return Recency.NEWER if ours > other else Recency.OLDER


def stream_id_of(event: Event) -> str:
    """The stream's creation time as its publisher saw it; "" for events that carry none."""
    return getattr(event, "stream_id", "")


def epoch_of(event: Event) -> int:
    """The epoch of the leader that published it; 0 for events that carry none."""
    match event:
        case NodeObserved() | NodeGone() | CsrObserved() | CsrGone():
            return event.order.epoch
        case SnapshotComplete() | Leading():
            return event.epoch
        case _:
            return 0


def is_from_former_leader(event: Event, greatest_epoch: int) -> bool:
    """Whether a newer leader has published before it in the stream: then it is void.

    A leader that was paused may publish an object that was deleted meanwhile. `greatest_epoch` is that of all
    messages of this incarnation that come before it in the stream.
    """
    return 0 < epoch_of(event) < greatest_epoch


def _order_key(event: Event) -> tuple[int, int]:
    match event:
        case NodeObserved() | NodeGone() | CsrObserved() | CsrGone():
            return (event.order.epoch, event.order.resource_version)
        case NodeEnriched() | NodeUnreachable() | EnrichedNodeGone() | CsrEnriched() | EnrichedCsrGone():
            return (0, event.observed_sequence)
        case ClusterNetworksObserved():
            return (0, (event.observed_at - _EPOCH) // timedelta(microseconds=1))
        case SnapshotComplete() | Leading():
            return (event.epoch, 0)
        case _:
            return (0, 0)  # decisions and dead letters: the last one said stands
