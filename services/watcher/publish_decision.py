"""What is worth saying of an object: it as Kubernetes holds it, against what the stream holds of it."""

from datetime import datetime
from typing import Final

import msgspec

from libs.common.bus.stream_size import limit_for_bytes
from libs.common.contract.events import ObservationOrder
from libs.common.contract.subjects import is_publishable_name
from services.watcher.kinds import Kind, ObjectT, ObservedEvent

BYTES_PER_NODE: Final = 20_000  # a Node, its facts and its decisions, with room for large labels
BYTES_PER_REQUEST: Final = 12_000  # a CSR, itself with the facts about its machine, and what was decided
BYTES_PER_DELETED: Final = 1_000  # what remains of either for an hour
REPUBLISH_REASON: Final = "said again"  # though nothing changed
FENCED_REASON: Final = "a former leader published it, which services ignore"
_MAX_NAME_CHARS: Final = 80  # characters of a name that cannot be published


class FencingToken(msgspec.Struct, frozen=True, kw_only=True):
    """What every observation of one term bears: into which stream, by which leader."""

    stream_id: str
    epoch: int


class Publish(msgspec.Struct, frozen=True, kw_only=True):
    """It is to be said."""

    event: ObservedEvent
    reason: str


class NoChange(msgspec.Struct, frozen=True, kw_only=True):
    """The stream already says it."""

    reason: str


class Skip(msgspec.Struct, frozen=True, kw_only=True):
    """That object cannot be said, whatever we do; the others can."""

    reason: str


class ConfirmAbsence(msgspec.Struct, frozen=True, kw_only=True):
    """The stream holds a newer state than the store: only the API server can tell whether it is gone."""

    reason: str


PublishDecision = Publish | NoChange | Skip | ConfirmAbsence


def decide_present(
    kind: Kind[ObjectT],
    obj: ObjectT,
    published: ObservedEvent | None,
    token: FencingToken,
    *,
    now: datetime,
    force: bool = False,
    is_fenced: bool = False,
) -> PublishDecision:
    """Judge an object that exists; `found` is what we read of it, `held` the last said of its name.

    `anyway` says it again although nothing changed (resync, a new leader, a new stream); so does `void`,
    because followers ignore what `held` says. A new uid under an old name is news like any other: consumers
    take it as the old one's end.
    """
    if not is_publishable_name(obj.name):
        return Skip(reason=f"the name {_quote_name(obj.name)} cannot be the end of a subject")
    if not obj.resource_version_number:
        version = obj.metadata.resource_version
        return Skip(reason=f"its resourceVersion {version!r} is no number, so it has no place in an order")
    order = ObservationOrder(epoch=token.epoch, resource_version=obj.resource_version_number)
    why = _publish_reason(kind, obj, published, order, force=force, is_fenced=is_fenced)
    if why is None:
        return NoChange(reason="the stream holds it, or something newer")
    return Publish(event=kind.build_observed(token.stream_id, order, obj, now), reason=why)


def decide_absent(
    kind: Kind[ObjectT],
    published: ObservedEvent | None,
    token: FencingToken,
    *,
    last_resource_version: int,
    now: datetime,
    is_confirmed: bool = False,
    is_fenced: bool = False,
) -> Publish | NoChange | ConfirmAbsence:
    """Decide about a name without an object as of `last_resource_version`, the latest one received.

    A former leader may have seen a newer state than the watch of this process has delivered. `is_confirmed`:
    a GET after that state was published found no object of that name. ResourceVersions alone decide
    nothing then: a restored etcd counts from an older one. `void`: followers ignore what `held` says, and may
    hold the object although `held` says that it is gone.
    """
    order = ObservationOrder(epoch=token.epoch, resource_version=last_resource_version)
    known = kind.extract_object(published) if published is not None else None
    if published is None or (known is None and not is_fenced):
        return NoChange(reason="the stream holds none of that name")
    if published.order > order:
        return NoChange(reason="the stream holds an observation from after we looked")
    if published.order.resource_version > last_resource_version and not is_confirmed:
        return ConfirmAbsence(reason="a former leader has seen a newer state than our watch has delivered")
    if known is None:
        gone = msgspec.structs.replace(published, stream_id=token.stream_id, order=order, observed_at=now)
        return Publish(event=gone, reason=FENCED_REASON)
    return Publish(event=kind.build_gone(token.stream_id, order, known, now), reason="deleted")


def compute_next_epoch(*, highest_seen: int, lease_transitions: int) -> int:
    """The epoch of a new leader: above every leader that this stream or the Lease remembers."""
    return 1 + max(highest_seen, lease_transitions)


def estimate_stream_bytes(nodes: int, requests: int = 0, deleted: int = 0) -> int:
    """Room for that many objects of ordinary size. What the stream holds in bytes may ask for more."""
    needed = nodes * BYTES_PER_NODE + requests * BYTES_PER_REQUEST + deleted * BYTES_PER_DELETED
    return limit_for_bytes(needed)


def _quote_name(name: str) -> str:
    """A name that is none of ours to bound: whoever files a request chooses it."""
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
    if not kind.is_same(known, obj):
        return "changed"
    if is_fenced:
        return FENCED_REASON
    return REPUBLISH_REASON if force else None
