"""Old never replaces new: who wins when two messages of one subject meet. See docs/design.md."""

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final

from libs.common.events import (
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


class Standing(Enum):
    """Where my message stands against the one that the stream holds."""

    NEWER = "newer"  # publish it again, expecting the sequence of theirs
    OLDER = "older"  # drop it
    SAME = "same"  # neither knows more: look at the object again


def standing(mine: Event, theirs: Event | None, incarnation: str) -> Standing:
    """Compare two messages of one subject; `theirs` is None when the subject is empty or unreadable.

    A message of another incarnation than the present one loses, whatever its order; both foreign: mine is
    dropped too, because its publisher has not seen the new stream yet.
    """
    if incarnation_of(mine) != incarnation:
        return Standing.OLDER
    if theirs is None or incarnation_of(theirs) != incarnation:
        return Standing.NEWER
    ours, other = _place(mine), _place(theirs)
    if ours == other:
        return Standing.SAME
    return Standing.NEWER if ours > other else Standing.OLDER


def incarnation_of(event: Event) -> str:
    """The stream's creation time as its publisher saw it; "" for events that carry none."""
    return getattr(event, "incarnation", "")


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


def _place(event: Event) -> tuple[int, int]:
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
