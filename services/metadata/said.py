"""What became of something said, and when it is said again."""

import msgspec

from libs.common.delivery import backoff_seconds
from libs.common.events import EnrichedNode
from libs.common.machine import MachineFault
from services.metadata import schedule
from services.metadata.known import LONG_AGO, Known
from services.metadata.looked import looked_badly
from services.metadata.schedule import Pace


def said(known: Known, event: EnrichedNode, *, now: float, pace: Pace, jitter: float) -> Known:
    """The stream holds it, or something newer."""
    return msgspec.structs.replace(
        known,
        said=event,
        repeat_due=now + schedule.repeat_after(pace, jitter),
        answered=event.observed_sequence >= known.sequence,
        unsaid=0,
        say_after=LONG_AGO,
    )


def tied(known: Known, event: EnrichedNode, *, now: float) -> Known:
    """Somebody else spoke of the same observation: look again before saying it again."""
    if known.sequence > event.observed_sequence or not known.addresses:
        return known
    return msgspec.structs.replace(known, said=None, look_first=True, due=now)


def not_said(known: Known, *, now: float, jitter: float) -> Known:
    """The bus did not take it."""
    wait = backoff_seconds(known.unsaid + 1, jitter)
    return msgspec.structs.replace(known, unsaid=known.unsaid + 1, say_after=now + wait)


def bus_is_back(known: Known, *, now: float, jitter: float) -> Known:
    """What could not be said may be said, within a second."""
    return msgspec.structs.replace(known, unsaid=0, say_after=now + jitter) if known.unsaid else known


def unsayable(known: Known, why: str, *, now: float, jitter: float) -> Known:
    """The facts make a message larger than any machine should: a fault of theirs, told without them."""
    fault = MachineFault(kind="invalid", step="facts", message=why)
    bad = looked_badly(known, fault, began=known.looked, now=now, jitter=jitter)
    return msgspec.structs.replace(bad, last_known=None)
