"""When a Lease is ours to take, to renew or to wait for: client-go's rules without its clock."""

from datetime import datetime
from typing import Any, Final

import msgspec

RELEASED_SECONDS: Final = 1  # leaseDurationSeconds of a released Lease, as client-go writes it


class LeaseSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """spec of a coordination.k8s.io/v1 Lease; times stay text, compared for change and never for order."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A Lease as we read it, and the whole document, of which an update must lose nothing."""

    spec: LeaseSpec
    document: dict[str, Any]

    @property
    def holder(self) -> str:
        """Who holds it by what it says; "" when nobody does."""
        return self.spec.holder_identity or ""

    @property
    def transitions(self) -> int:
        """How often it went from one holder to another."""
        return self.spec.lease_transitions or 0


class LeaseObservation(msgspec.Struct, frozen=True):
    """A Lease, and since when (on our monotonic clock) it has said the same."""

    lease: Lease
    since: float


class Acquire(msgspec.Struct, frozen=True):
    """Nobody holds it, or its holder is dead: write ourselves into it."""

    reason: str


class Renew(msgspec.Struct, frozen=True):
    """It is ours."""


class Wait(msgspec.Struct, frozen=True):
    """Another one holds it; it expires at `until` on our monotonic clock unless it is renewed."""

    holder: str
    until: float


def read_lease(body: bytes) -> Lease:
    """Raises msgspec.DecodeError if this is no Lease."""
    document = msgspec.json.decode(body, type=dict[str, Any])
    return Lease(spec=msgspec.convert(document.get("spec") or {}, LeaseSpec), document=document)


def observe_lease(previous: LeaseObservation | None, lease: Lease, now: float) -> LeaseObservation:
    """What we know after reading `lease` at `now`: a Lease that still says the same has not been renewed."""
    if previous is not None and previous.lease.spec == lease.spec:
        return LeaseObservation(lease, previous.since)
    return LeaseObservation(lease, now)


def decide_lease_action(
    observation: LeaseObservation, identity: str, now: float, duration_seconds: float
) -> Acquire | Renew | Wait:
    """What to do with the Lease.

    Another holder's Lease has expired when it has said the same for its duration by our own clock, so clocks
    of different machines are never compared. `duration_seconds` counts where the Lease names none.
    """
    holder = observation.lease.holder
    if holder == identity:
        return Renew()
    if not holder:
        return Acquire("nobody holds it")
    until = observation.since + (observation.lease.spec.lease_duration_seconds or duration_seconds)
    if now >= until:
        return Acquire(f"{holder} has not renewed it for {now - observation.since:.0f} s")
    return Wait(holder, until)


def new_lease_document(
    namespace: str, name: str, identity: str, duration_seconds: int, now: datetime
) -> dict[str, Any]:
    """The document that creates the Lease with us as its first holder."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": _held(identity, duration_seconds, micro_time(now), micro_time(now), 0),
    }


def acquired_document(lease: Lease, identity: str, duration_seconds: int, now: datetime) -> dict[str, Any]:
    """The document that makes us its holder: another transition, unless we are it already."""
    stamp = micro_time(now)
    if lease.holder == identity:
        acquired, transitions = lease.spec.acquire_time or stamp, lease.transitions
    else:
        acquired, transitions = stamp, lease.transitions + 1
    return _with_spec(lease, _held(identity, duration_seconds, acquired, stamp, transitions))


def released_document(lease: Lease, now: datetime) -> dict[str, Any]:
    """The document that lets the next one in at once; the count of transitions stays."""
    stamp = micro_time(now)
    return _with_spec(lease, _held("", RELEASED_SECONDS, stamp, stamp, lease.transitions))


def vacant_lease_document(namespace: str, name: str) -> dict[str, Any]:
    """The document that creates the Lease with no holder, for what its annotations say."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {},
    }


def get_annotation(lease: Lease, key: str) -> str:
    """An annotation's text; "" where it has none."""
    annotations = (lease.document.get("metadata") or {}).get("annotations") or {}
    text = annotations.get(key)
    return text if isinstance(text, str) else ""


def set_annotation(document: dict[str, Any], key: str, text: str) -> dict[str, Any]:
    """The same document of a Lease with one annotation set."""
    metadata = document.get("metadata") or {}
    annotations = {**(metadata.get("annotations") or {}), key: text}
    return {**document, "metadata": {**metadata, "annotations": annotations}}


def micro_time(now: datetime) -> str:
    """meta/v1 MicroTime; `now` in UTC."""
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _held(
    holder: str, duration_seconds: int, acquired: str, renewed: str, transitions: int
) -> dict[str, Any]:
    return {
        "holderIdentity": holder,
        "leaseDurationSeconds": duration_seconds,
        "acquireTime": acquired,
        "renewTime": renewed,
        "leaseTransitions": transitions,
    }


def _with_spec(lease: Lease, spec: dict[str, Any]) -> dict[str, Any]:
    return {**lease.document, "spec": {**(lease.document.get("spec") or {}), **spec}}
