"""Limits the deletions per hour by a record that survives restarts."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.contract.timestamp import Timestamp
from libs.common.json_errors import JSON_ERRORS

WINDOW: Final = timedelta(hours=1)
ANNOTATION: Final = "lifecycle.talos-ccm/deletions"  # on lifecycle's Lease: the deletions of the last hour


# Of the decision on a Node that is proven gone, and that the limit or its record keeps.
LIMITED: Final = "limited"
BUT: Final = "; but "  # between the proof and what keeps the Node


class DeletionLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum of deletions in an hour of one pool; the pools do not count for each other."""

    per_hour: int
    pool: str = ""  # "" is the one of --lifecycle-max-deletions-per-hour
    description: str = "--lifecycle-max-deletions-per-hour"


class Deletion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One deletion, recorded before it happened."""

    node: str
    at: Timestamp
    pool: str = ""  # of its limit


class BudgetDenial(msgspec.Struct, frozen=True, kw_only=True):
    """No Node may be deleted now."""

    reason: str


def grant_deletion(record: str, node: str, *, limit: DeletionLimit, now: datetime) -> str | BudgetDenial:
    """Return the annotation with one more deletion, which may happen after it is written.

    `record` is the annotation as read, "" without deletions; an invalid one denies every deletion. Times in
    the future count, too: a changed clock must not free the budget.
    """
    try:
        deletions = msgspec.json.decode(record or "[]", type=tuple[Deletion, ...])
    except JSON_ERRORS:
        return BudgetDenial(reason=f"annotation {ANNOTATION} of the Lease is invalid: delete it to continue")
    recent = tuple(deletion for deletion in deletions if now - deletion.at < WINDOW)
    counted = [deletion.at for deletion in recent if deletion.pool == limit.pool]
    if len(counted) >= limit.per_hour:
        used = f"{len(counted)} in the last hour, {limit.description} is {limit.per_hour}"
        again = f"; none before {min(counted) + WINDOW:%H:%M:%SZ}" if counted else ""
        return BudgetDenial(reason=used + again)
    return msgspec.json.encode((*recent, Deletion(node=node, at=now, pool=limit.pool))).decode()
