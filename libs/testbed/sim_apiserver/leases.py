"""Leases; an update must name the version that it replaces."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import field

from libs.testbed.sim_apiserver.objects import Meta, MicroTime, ResourceKind, validate_metadata
from libs.testbed.sim_apiserver.refusals import Cause, invalid_value


class LeaseSpec(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """spec, which the holder writes."""

    holder_identity: str | None = None  # "" is encoded, as by the real server
    lease_duration_seconds: int | None = None
    acquire_time: MicroTime | None = None
    renew_time: MicroTime | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Lease on the wire."""

    metadata: Meta = field(default_factory=Meta)
    spec: LeaseSpec = field(default_factory=LeaseSpec)


def validate_lease(new: Lease, old: Lease | None) -> list[Cause]:
    """Return the causes of an invalid Lease."""
    causes = validate_metadata(new.metadata, old.metadata if old else None)
    seconds, transitions = new.spec.lease_duration_seconds, new.spec.lease_transitions
    if seconds is not None and seconds <= 0:
        causes.append(invalid_value(seconds, "must be greater than 0", "spec.leaseDurationSeconds"))
    if transitions is not None and transitions < 0:
        why = "must be greater than or equal to 0"
        causes.append(invalid_value(transitions, why, "spec.leaseTransitions"))
    return causes


_GROUP: Final = "coordination.k8s.io"
LEASES: Final = ResourceKind(
    "leases", "Lease", Lease, group=_GROUP, is_namespaced=True, requires_version=True, validate=validate_lease
)
