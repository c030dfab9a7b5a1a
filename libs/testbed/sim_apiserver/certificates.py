"""CertificateSigningRequests: who asks is written by the server, what was decided is never taken back."""

from __future__ import annotations

from typing import Final

import msgspec
from cryptography import x509
from msgspec import UNSET, UnsetType, field
from msgspec.structs import replace

from libs.testbed.sim_apiserver.objects import Caller, Kind, Meta, Time, invalid_metadata
from libs.testbed.sim_apiserver.refusals import Cause

DECISIONS: Final = ("Approved", "Denied")


class RequestSpec(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """spec; username and groups are the server's own, whatever was sent."""

    request: bytes = field(default_factory=bytes)
    signer_name: str = field(default_factory=str)
    expiration_seconds: int | UnsetType = UNSET
    usages: list[str] = []
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class RequestCondition(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Approved, Denied or Failed."""

    type: str
    status: str = ""
    reason: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    last_update_time: Time | None = None
    last_transition_time: Time | None = None


class RequestStatus(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """status; empty until something is decided."""

    conditions: list[RequestCondition] = []
    certificate: bytes = b""


class SigningRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A CertificateSigningRequest on the wire."""

    metadata: Meta = field(default_factory=Meta)
    spec: RequestSpec = field(default_factory=RequestSpec)
    status: RequestStatus = field(default_factory=RequestStatus)

    def has(self, condition: str) -> bool:
        """Whether it was approved, denied, or has failed."""
        return any(one.type == condition for one in self.status.conditions)


def created(new: SigningRequest, caller: Caller) -> SigningRequest:
    """Nothing is decided about a new one, and it is the caller's."""
    spec = replace(new.spec, username=caller.user, groups=list(caller.groups), uid="", extra={})
    return replace(new, spec=spec, status=RequestStatus())


def updated(old: SigningRequest, new: SigningRequest, subresource: str, caller: Caller) -> SigningRequest:
    """The spec never changes; /approval writes conditions, /status the certificate, neither the other's."""
    status = old.status
    if subresource == "approval":
        conditions = [_stamped(one, old, caller.now) for one in new.status.conditions]
        status = replace(status, conditions=conditions)
    elif subresource == "status":
        status = replace(status, certificate=new.status.certificate)
    return replace(new, spec=old.spec, status=status)


def _stamped(condition: RequestCondition, old: SigningRequest, now: str) -> RequestCondition:
    known = next((one for one in old.status.conditions if one.type == condition.type), None)
    since = known.last_transition_time if known and known.status == condition.status else now
    return replace(
        condition,
        last_update_time=condition.last_update_time or now,
        last_transition_time=condition.last_transition_time or since,
    )


def invalid(new: SigningRequest, old: SigningRequest | None) -> list[Cause]:
    """What validation says."""
    causes = invalid_metadata(new.metadata, old.metadata if old else None)
    if old is None:
        return causes + _invalid_spec(new.spec)
    seen: set[str] = set()
    for at, condition in enumerate(new.status.conditions):
        where = f"status.conditions[{at}]"
        if condition.type in DECISIONS and condition.status != "True":
            told = f'Unsupported value: "{condition.status}": supported values: "True"'
            causes.append(Cause("FieldValueNotSupported", told, f"{where}.status"))
        if condition.type in seen:
            told = f'Duplicate value: "{condition.type}"'
            causes.append(Cause("FieldValueDuplicate", told, f"{where}.type"))
        seen.add(condition.type)
    if seen.issuperset(DECISIONS):
        told = 'Invalid value: "Denied": Approved and Denied conditions are mutually exclusive'
        causes.append(Cause("FieldValueInvalid", told, "status.conditions"))
    for decision in DECISIONS:
        if old.has(decision) and decision not in seen:
            told = f'Forbidden: updates may not remove a condition of type "{decision}"'
            causes.append(Cause("FieldValueForbidden", told, "status.conditions"))
    return causes


def _invalid_spec(spec: RequestSpec) -> list[Cause]:
    causes: list[Cause] = []
    try:
        x509.load_pem_x509_csr(spec.request)
    except ValueError as error:
        causes.append(Cause("FieldValueInvalid", f"Invalid value: {error}", "spec.request"))
    if not spec.usages:
        told = "Required value: usages must be specified"
        causes.append(Cause("FieldValueRequired", told, "spec.usages"))
    if "/" not in spec.signer_name:
        told = f'Invalid value: "{spec.signer_name}": must be a fully qualified domain and path'
        causes.append(Cause("FieldValueInvalid", told, "spec.signerName"))
    return causes


SIGNING_REQUESTS: Final = Kind(
    plural="certificatesigningrequests",
    kind="CertificateSigningRequest",
    short_names=("csr",),
    group="certificates.k8s.io",
    model=SigningRequest,
    subresources=frozenset({"approval", "status"}),
    created=created,
    updated=updated,
    invalid=invalid,
)
