"""Compares an object in Kubernetes with its last observation in the stream, and decides what to publish."""

import zlib
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, Final

import msgspec

from libs.common.bus.stream_limits import limit_for_bytes
from libs.common.contract.events import ObservationOrder, build_gone
from libs.common.contract.node import is_same_object
from libs.common.contract.subjects import is_publishable_name
from services.watcher.core.kinds import Kind, ObjectT, ObservedEvent

BYTES_PER_DELETED: Final = 1_000  # the deletion messages of any kind, kept for MAX_MESSAGE_AGE
REPUBLISH_REASON: Final = "republished"  # resync of an unchanged object
CHANGED_REASON: Final = "changed"
FENCED_REASON: Final = "services ignore the last message about it"
_CRC_RANGE: Final = 2**32  # CRC-32 is fast and spreads uids evenly
_MAX_NAME_CHARS: Final = 80  # characters of a quoted invalid name


class FencingToken(msgspec.Struct, frozen=True, kw_only=True):
    """The stream ID and epoch that every observation of one leadership term carries."""

    stream_id: str
    epoch: int


class Publish(msgspec.Struct, frozen=True, kw_only=True):
    """Publish this event."""

    event: ObservedEvent
    reason: str


class Skip(msgspec.Struct, frozen=True, kw_only=True):
    """The object can never be published; other objects can."""

    reason: str


class ConfirmAbsence(msgspec.Struct, frozen=True):
    """Another watcher may know a newer state than this watch has delivered: ask the API server."""


def decide_present(
    kind: Kind[ObjectT],
    obj: ObjectT,
    published: ObservedEvent | None,
    token: FencingToken,
    *,
    now: datetime,
    force: bool = False,
    is_fenced: bool = False,
) -> Publish | Skip | None:
    """Decide about an existing object; `published` is the last observation of its name in the stream.

    None: the stream contains it, or a newer observation.

    `force` publishes an unchanged object again (resync, new leader, new stream). `is_fenced` does too,
    because followers ignore `published`. A new uid under an old name is a normal change: consumers treat it
    as the end of the old object.
    """
    if not is_publishable_name(obj.key):
        return Skip(reason=f"the name {_quote_name(obj.key)} cannot be the end of a subject")
    if not obj.resource_version_number:
        version = obj.metadata.resource_version
        return Skip(reason=f"its resourceVersion {version!r} is not a number and cannot be ordered")
    order = ObservationOrder(epoch=token.epoch, resource_version=obj.resource_version_number)
    why = _publish_reason(kind, obj, published, order, force=force, is_fenced=is_fenced)
    if why is None:
        return None
    event = kind.build_observed(obj, stream_id=token.stream_id, order=order, observed_at=now)
    return Publish(event=event, reason=why)


def decide_absent(
    kind: Kind[ObjectT],
    name: str,
    published: ObservedEvent | None,
    token: FencingToken,
    *,
    last_resource_version: int,
    now: datetime,
    is_confirmed: bool = False,
    is_fenced: bool = False,
) -> Publish | ConfirmAbsence | None:
    """Decide about a name without an object as of `last_resource_version`, the latest one received.

    None: the stream contains no object of that name, or a newer observation than this check.

    A former leader may have seen a newer state than the watch of this process has delivered. `is_confirmed`:
    a request after that state was published found no object of that name. ResourceVersions alone prove
    nothing then, because a restored etcd counts from an older one. `is_fenced`: followers ignore the last
    message. They may still have the object although `published` is a deletion, and know nothing without it.
    """
    order = ObservationOrder(epoch=token.epoch, resource_version=last_resource_version)
    known = kind.extract_object(published)
    if known is None and not is_fenced:
        return None
    if published is None:
        gone = kind.build_unknown_gone(name, stream_id=token.stream_id, order=order, observed_at=now)
        return Publish(event=gone, reason=FENCED_REASON) if is_confirmed else ConfirmAbsence()
    if published.order > order:
        return None
    if published.order.resource_version > last_resource_version and not is_confirmed:
        return ConfirmAbsence()
    if known is None:
        gone = msgspec.structs.replace(published, stream_id=token.stream_id, order=order, observed_at=now)
        return Publish(event=gone, reason=FENCED_REASON)
    last = kind.build_observed(known, stream_id=token.stream_id, order=order, observed_at=now)
    return Publish(event=build_gone(last), reason="deleted")


def compute_next_epoch(*, highest_seen: int, lease_transitions: int) -> int:
    """Return the epoch of a new leader: higher than every epoch known from the stream or the Lease."""
    return 1 + max(highest_seen, lease_transitions)


def select_due(objects: Iterable[ObjectT], *, since: float, until: float) -> list[ObjectT]:
    """Return the objects whose offset in a resync period lies in [since, until), both fractions of it.

    Consecutive steps from 0 to 1 return each object exactly once, in every process at the same offset.
    """
    offsets = ((each, zlib.crc32(each.uid.encode(errors="surrogatepass")) / _CRC_RANGE) for each in objects)
    return [each for each, offset in offsets if since <= offset < until]


def estimate_stream_bytes(counts: Collection[tuple[Kind[Any], int]], subjects: int) -> int:
    """Estimate the size of the stream with so many objects of each kind, in so many subjects.

    The objects are of ordinary size; a full stream grows by its actual usage.
    """
    existing_bytes = sum(kind.stream_bytes * count for kind, count in counts)
    deleted = max(0, subjects - sum(count for _, count in counts))
    return limit_for_bytes(existing_bytes + deleted * BYTES_PER_DELETED)


def _quote_name(name: str) -> str:
    """Quote and truncate an invalid name: the requester chooses a CSR's name."""
    return ascii(name if len(name) <= _MAX_NAME_CHARS else name[:_MAX_NAME_CHARS] + "...")


def _publish_reason(
    kind: Kind[ObjectT],
    obj: ObjectT,
    published: ObservedEvent | None,
    order: ObservationOrder,
    *,
    force: bool,
    is_fenced: bool,
) -> str | None:
    if published is None:
        return "new to the stream"
    if published.order > order:
        return None
    known = kind.extract_object(published)
    if known is None:
        return "exists again"
    if not is_same_object(known, obj):
        return CHANGED_REASON
    if is_fenced:
        return FENCED_REASON
    return REPUBLISH_REASON if force else None
