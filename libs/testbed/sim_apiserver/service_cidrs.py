"""ServiceCIDRs: immutable ranges of Service addresses. No controller writes their status or finalizers."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Final

import msgspec
from msgspec import field

from libs.testbed.sim_apiserver.objects import FinalizedMeta, ResourceKind, validate_metadata
from libs.testbed.sim_apiserver.refusals import Cause, invalid_value, required_value


class ServiceCidrSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """spec: one range, or one of each family."""

    cidrs: list[str] = []


class ServiceCidr(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ServiceCIDR on the wire, without its status."""

    metadata: FinalizedMeta = field(default_factory=FinalizedMeta)
    spec: ServiceCidrSpec = field(default_factory=ServiceCidrSpec)


def validate_service_cidr(new: ServiceCidr, old: ServiceCidr | None) -> list[Cause]:
    """Return the causes of an invalid ServiceCIDR."""
    causes = validate_metadata(new.metadata, old.metadata if old else None)
    if not new.spec.cidrs:
        causes.append(required_value("spec.cidrs", "at least one CIDR required"))
    for index, cidr in enumerate(new.spec.cidrs):
        if not _is_network(cidr):
            causes.append(invalid_value(cidr, "must be a valid CIDR value", f"spec.cidrs[{index}]"))
    if old is not None and new.spec != old.spec:
        causes.append(invalid_value(new.spec.cidrs, "field is immutable", "spec.cidrs"))
    return causes


def _is_network(cidr: str) -> bool:
    try:
        ip_network(cidr)
    except ValueError:
        return False
    return "/" in cidr


SERVICE_CIDRS: Final = ResourceKind(
    "servicecidrs", "ServiceCIDR", ServiceCidr, group="networking.k8s.io", validate=validate_service_cidr
)
