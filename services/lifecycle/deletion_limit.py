"""How many Nodes were deleted in the last hour: a record that outlives us, and what may still be spent."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

WINDOW: Final = timedelta(hours=1)
ANNOTATION: Final = "lifecycle.talos-ccm/deletions"  # of our Lease: the deletions of the last hour


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """One deletion that was about to happen."""

    node: str
    at: datetime


class BudgetGrant(msgspec.Struct, frozen=True, kw_only=True):
    """One more may be deleted, once this has been written."""

    deletions: tuple[Deletion, ...]


class BudgetDenial(msgspec.Struct, frozen=True, kw_only=True):
    """None may be deleted now."""

    reason: str


def grant_deletion(
    deletions: tuple[Deletion, ...], node: str, *, limit: int, now: datetime
) -> BudgetGrant | BudgetDenial:
    """Count one more deletion. Times to come count too: a clock that was set must not make room."""
    recent = tuple(deletion for deletion in deletions if now - deletion.at < WINDOW)
    if len(recent) >= limit:
        used = f"{len(recent)} in the last hour, --lifecycle-max-deletions-per-hour is {limit}"
        again = f"; none before {min(d.at for d in recent) + WINDOW:%H:%M:%SZ}" if recent else ""
        return BudgetDenial(reason=used + again)
    return BudgetGrant(deletions=(*recent, Deletion(node=node, at=now)))


def decode_deletions(text: str) -> tuple[Deletion, ...] | BudgetDenial:
    """What the annotation says; "" is no deletion, and what cannot be read is none to be trusted."""
    if not text:
        return ()
    try:
        found = msgspec.json.decode(text, type=tuple[Deletion, ...])
    except (msgspec.DecodeError, RecursionError):
        return BudgetDenial(reason=f"annotation {ANNOTATION} of the Lease cannot be read: delete it to go on")
    if any(deletion.at.tzinfo is None for deletion in found):
        return BudgetDenial(
            reason=f"annotation {ANNOTATION} of the Lease has times without a zone: delete it"
        )
    return found


def encode_deletions(deletions: tuple[Deletion, ...]) -> str:
    """As it is written into the annotation."""
    return msgspec.json.encode(deletions).decode()
