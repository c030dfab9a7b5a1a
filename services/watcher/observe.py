"""What is worth saying of an object: it as Kubernetes holds it, against what the stream holds of it."""

from datetime import datetime
from typing import Final

import msgspec

from libs.common.events import ObservedOrder
from libs.common.stream_size import limit_for
from libs.common.subjects import is_publishable_name
from services.watcher.kinds import Kind, Said, Seen

BYTES_PER_NODE: Final = 20_000  # a Node, its facts and its decisions, with room for large labels
BYTES_PER_REQUEST: Final = 12_000  # a CSR, itself with the facts about its machine, and what was decided
BYTES_PER_GONE: Final = 1_000  # what remains of either for an hour
SAID_AGAIN: Final = "said again"  # though nothing changed
VOID: Final = "a former leader published it, which services ignore"
_SHOWN: Final = 80  # characters of a name that cannot be published


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What every observation of one term bears: into which stream, by which leader."""

    incarnation: str
    epoch: int


class Publish(msgspec.Struct, frozen=True, kw_only=True):
    """It is to be said."""

    event: Said
    reason: str


class Unchanged(msgspec.Struct, frozen=True, kw_only=True):
    """The stream already says it."""

    reason: str


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """That object cannot be said, whatever we do; the others can."""

    reason: str


class Unproven(msgspec.Struct, frozen=True, kw_only=True):
    """The stream holds a newer state than the store: only the API server can tell whether it is gone."""

    reason: str


Observation = Publish | Unchanged | Skipped | Unproven


def observe(
    kind: Kind[Seen],
    found: Seen,
    held: Said | None,
    stamp: Stamp,
    *,
    now: datetime,
    anyway: bool = False,
    void: bool = False,
) -> Observation:
    """Judge an object that exists; `found` is what we read of it, `held` the last said of its name.

    `anyway` says it again although nothing changed (resync, a new leader, a new stream); so does `void`,
    because followers ignore what `held` says. A new uid under an old name is news like any other: consumers
    take it as the old one's end.
    """
    if not is_publishable_name(found.name):
        return Skipped(reason=f"the name {_shown(found.name)} cannot be the end of a subject")
    if not found.version:
        version = found.metadata.resource_version
        return Skipped(reason=f"its resourceVersion {version!r} is no number, so it has no place in an order")
    order = ObservedOrder(epoch=stamp.epoch, resource_version=found.version)
    why = _why_say(kind, found, held, order, anyway=anyway, void=void)
    if why is None:
        return Unchanged(reason="the stream holds it, or something newer")
    return Publish(event=kind.observed(stamp.incarnation, order, found, now), reason=why)


def observe_absence(
    kind: Kind[Seen],
    held: Said | None,
    stamp: Stamp,
    *,
    seen_version: int,
    now: datetime,
    confirmed: bool = False,
    void: bool = False,
) -> Publish | Unchanged | Unproven:
    """Judge a name that no object bears as of `seen_version`, the last resourceVersion that was heard.

    A former leader may have seen a newer state than our watch has delivered. `confirmed`: the API server was
    asked after that state was published, and has no object of that name. ResourceVersions alone decide
    nothing then: a restored etcd counts from an older one. `void`: followers ignore what `held` says, and may
    hold the object although `held` says that it is gone.
    """
    order = ObservedOrder(epoch=stamp.epoch, resource_version=seen_version)
    known = kind.said(held) if held is not None else None
    if held is None or (known is None and not void):
        return Unchanged(reason="the stream holds none of that name")
    if held.order > order:
        return Unchanged(reason="the stream holds an observation from after we looked")
    if held.order.resource_version > seen_version and not confirmed:
        return Unproven(reason="a former leader has seen a newer state than our watch has delivered")
    if known is None:
        gone = msgspec.structs.replace(held, incarnation=stamp.incarnation, order=order, observed_at=now)
        return Publish(event=gone, reason=VOID)
    return Publish(event=kind.gone(stamp.incarnation, order, known, now), reason="deleted")


def next_epoch(*, heard: int, lease_transitions: int) -> int:
    """The epoch of a new leader: above every leader that this stream or the Lease remembers."""
    return 1 + max(heard, lease_transitions)


def stream_bytes(nodes: int, requests: int = 0, gone: int = 0) -> int:
    """Room for that many objects of ordinary size. What the stream holds in bytes may ask for more."""
    needed = nodes * BYTES_PER_NODE + requests * BYTES_PER_REQUEST + gone * BYTES_PER_GONE
    return limit_for(needed)


def _shown(name: str) -> str:
    """A name that is none of ours to bound: whoever files a request chooses it."""
    return ascii(name if len(name) <= _SHOWN else name[:_SHOWN] + "...")


def _why_say(
    kind: Kind[Seen], found: Seen, held: Said | None, order: ObservedOrder, *, anyway: bool, void: bool
) -> str | None:
    if held is None:
        return "new to the stream"
    if held.order > order:
        return None
    known = kind.said(held)
    if known is None:
        return "exists again"
    if not kind.same_to_us(known, found):
        return "changed"
    if void:
        return VOID
    return SAID_AGAIN if anyway else None
