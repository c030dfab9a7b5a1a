"""A Lease, and the documents that acquire, renew and release it."""

from datetime import datetime
from typing import Any, Final

import msgspec

RELEASED_SECONDS: Final = 1  # leaseDurationSeconds of a released Lease, as client-go writes it


class LeaseSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """spec of a coordination.k8s.io/v1 Lease; times are text, compared for equality and never for order."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields that an update needs; the API server returns them with each Lease."""

    namespace: str
    name: str
    resource_version: str
    annotations: dict[str, str] | None = None


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _Metadata
    spec: LeaseSpec | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed spec of a Lease, and the whole document, which an update must preserve."""

    spec: LeaseSpec
    document: dict[str, Any]

    @property
    def holder(self) -> str:
        """The identity of the holder; "" if there is none."""
        return self.spec.holder_identity or ""

    @property
    def transitions(self) -> int:
        """The number of changes of the holder."""
        return self.spec.lease_transitions or 0


def read_lease(body: bytes) -> Lease:
    """Parse a Lease. Raises JSON_ERRORS for anything else."""
    document = msgspec.json.decode(body, type=dict[str, Any])
    return Lease(spec=msgspec.convert(document, _Document).spec or LeaseSpec(), document=document)


def acquired_document(lease: Lease, identity: str, duration_seconds: int, now: datetime) -> dict[str, Any]:
    """Return the document with `identity` as holder; a change of the holder increments the transitions."""
    stamp = micro_time(now)
    if lease.holder == identity:
        acquired, transitions = lease.spec.acquire_time or stamp, lease.transitions
    else:
        acquired, transitions = stamp, 0 if lease.spec == LeaseSpec() else lease.transitions + 1
    return _with_spec(lease, _held(identity, duration_seconds, acquired, stamp, transitions))


def released_document(lease: Lease, now: datetime) -> dict[str, Any]:
    """Return the document without a holder, so that another can acquire it at once; transitions stay."""
    stamp = micro_time(now)
    return _with_spec(lease, _held("", RELEASED_SECONDS, stamp, stamp, lease.transitions))


def vacant_lease(namespace: str, name: str) -> Lease:
    """Return a Lease that does not exist yet: without a holder."""
    document = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {},
    }
    return Lease(spec=LeaseSpec(), document=document)


def get_annotation(lease: Lease, key: str) -> str:
    """Return the text of an annotation; "" if it does not exist."""
    text: str = (lease.document["metadata"].get("annotations") or {}).get(key, "")
    return text


def set_annotation(document: dict[str, Any], key: str, text: str) -> dict[str, Any]:
    """Return the document of a Lease with one annotation set."""
    metadata = document["metadata"]
    annotations = {**(metadata.get("annotations") or {}), key: text}
    return {**document, "metadata": {**metadata, "annotations": annotations}}


def micro_time(now: datetime) -> str:
    """Return a meta/v1 MicroTime; `now` is in UTC."""
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
