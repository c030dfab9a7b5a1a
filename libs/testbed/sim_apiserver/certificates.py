"""CertificateSigningRequests: the server sets the requesting user, and decisions are final."""

from __future__ import annotations

import base64
import re
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType, field
from msgspec.structs import replace

from libs.testbed.sim_apiserver.objects import BY_NAME, Caller, Meta, ResourceKind, Time, validate_metadata
from libs.testbed.sim_apiserver.refusals import (
    Cause,
    duplicate_value,
    forbidden_value,
    invalid,
    invalid_value,
    required_value,
    unsupported_value,
)
from libs.testbed.sim_apiserver.request_pem import is_signature_valid, parse_request_pem

DECISIONS: Final = ("Approved", "Denied")
_FINAL: Final = (*DECISIONS, "Failed")  # such a condition stays, with status True
_LEGACY: Final = "kubernetes.io/legacy-unknown"
_SHORTEST_SECONDS: Final = 600
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_USAGES: Final = (
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
)
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


class RequestSpec(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """spec; the server overwrites username and groups."""

    request: bytes = field(default_factory=bytes)
    signer_name: str = field(default_factory=str)
    expiration_seconds: Int32 | UnsetType = UNSET
    usages: list[str] | None = None
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class RequestCondition(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Approved, Denied or Failed."""

    type: str = ""
    status: str = ""
    reason: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    last_update_time: Time | None = None
    last_transition_time: Time | None = None


class RequestStatus(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """status; empty until a decision."""

    conditions: list[RequestCondition] = []
    certificate: bytes = b""


class SigningRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A CertificateSigningRequest on the wire."""

    metadata: Meta = field(default_factory=Meta)
    spec: RequestSpec = field(default_factory=RequestSpec)
    status: RequestStatus = field(default_factory=RequestStatus)

    def has_condition(self, condition: str) -> bool:
        """Whether the request has a condition of this type."""
        return any(one.type == condition for one in self.status.conditions)


def prepare_new_request(new: SigningRequest, caller: Caller) -> SigningRequest:
    """Set the caller as the requesting user, and remove the status."""
    spec = replace(new.spec, username=caller.user, groups=list(caller.groups), uid="", extra={})
    return replace(new, spec=spec, status=RequestStatus())


def apply_request_update(
    old: SigningRequest, new: SigningRequest, subresource: str, caller: Caller
) -> SigningRequest:
    """Apply an update: /approval writes conditions, /status the certificate and other conditions.

    The spec never changes. Raises Refusal.
    """
    status = old.status
    if subresource:
        conditions = [_set_timestamps(one, old, caller.now) for one in new.status.conditions]
        status = replace(status, conditions=conditions)
    if subresource == "status":
        added = [kind for kind in DECISIONS if new.has_condition(kind) and not old.has_condition(kind)]
        if added:
            about = SIGNING_REQUESTS.make_reference(new.metadata.name)
            raise invalid(SIGNING_REQUESTS.qualified_name, about, [_make_added_cause(added[0])])
        status = replace(status, certificate=new.status.certificate)
    return replace(new, spec=old.spec, status=status)


def _make_added_cause(kind: str) -> Cause:
    return forbidden_value(f'updates may not add a condition of type "{kind}"', "status.conditions")


def _set_timestamps(condition: RequestCondition, old: SigningRequest, now: str) -> RequestCondition:
    known = next((one for one in old.status.conditions if one.type == condition.type), None)
    since = known.last_transition_time if known and known.status == condition.status else now
    return replace(
        condition,
        last_update_time=condition.last_update_time or now,
        last_transition_time=condition.last_transition_time or since,
    )


def validate_request(new: SigningRequest, old: SigningRequest | None) -> list[Cause]:
    """Return the causes of an invalid request."""
    causes = validate_metadata(new.metadata, old.metadata if old else None)
    if old is None:
        return causes + _validate_spec(new.spec)
    return causes + _validate_conditions(new.status.conditions, old)


def _validate_conditions(conditions: list[RequestCondition], old: SigningRequest) -> list[Cause]:
    causes: list[Cause] = []
    seen: set[str] = set()
    for at, condition in enumerate(conditions):
        where = f"status.conditions[{at}]"
        supported = ("True",) if condition.type in _FINAL else ("False", "True", "Unknown")
        if not condition.type:
            causes.append(required_value(f"{where}.type"))
        if not condition.status:
            causes.append(required_value(f"{where}.status"))
        elif condition.status not in supported:
            causes.append(unsupported_value(condition.status, supported, f"{where}.status"))
        if condition.type in seen:
            causes.append(duplicate_value(f'"{condition.type}"', f"{where}.type"))
        seen.add(condition.type)
    if seen.issuperset(DECISIONS):
        why = "Approved and Denied conditions are mutually exclusive"
        causes.append(invalid_value("Denied", why, "status.conditions"))
    for kind in _FINAL:
        if old.has_condition(kind) and kind not in seen:
            why = f'updates may not remove a condition of type "{kind}"'
            causes.append(forbidden_value(why, "status.conditions"))
    return causes


def _validate_spec(spec: RequestSpec) -> list[Cause]:
    causes = _validate_pem(spec.request) + _validate_usages(spec.usages or [])
    causes += _validate_signer(spec.signer_name)
    seconds = spec.expiration_seconds
    if seconds is not UNSET and seconds < _SHORTEST_SECONDS:
        why = "may not specify a duration less than 600 seconds (10 minutes)"
        causes.append(invalid_value(seconds, why, "spec.expirationSeconds"))
    return causes


def _validate_pem(pem: bytes) -> list[Cause]:
    try:
        valid = is_signature_valid(parse_request_pem(pem))
    except ValueError as error:
        return [invalid_value(base64.b64encode(pem).decode(), str(error), "spec.request")]
    why = "x509: the signature does not verify"
    return [] if valid else [invalid_value(base64.b64encode(pem).decode(), why, "spec.request")]


def _validate_usages(usages: list[str]) -> list[Cause]:
    causes = [] if usages else [required_value("spec.usages")]
    for at, usage in enumerate(usages):
        if usage not in _USAGES:
            causes.append(unsupported_value(usage, _USAGES, f"spec.usages[{at}]"))
        elif usage in usages[:at]:
            causes.append(duplicate_value(f'"{usage}"', f"spec.usages[{at}]"))
    return causes


def _validate_signer(name: str) -> list[Cause]:
    field_name = "spec.signerName"
    if not name:
        return [required_value(field_name)]
    if name.count("/") != 1:
        why = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        return [invalid_value(name, why, field_name)]
    if name == _LEGACY:
        return [invalid_value(name, "the legacy signerName is not allowed via this API version", field_name)]
    domain, _, path = name.partition("/")
    causes: list[Cause] = []
    if "." not in domain:
        causes.append(invalid_value(domain, "should be a domain with at least two segments", field_name))
    why = "must consist of lower case alphanumeric characters"
    parts = (part for part in (domain, path) if not all(map(_LABEL.fullmatch, part.split("."))))
    return causes + [invalid_value(part, why, field_name) for part in parts]


SIGNING_REQUESTS: Final = ResourceKind(
    "certificatesigningrequests",
    "CertificateSigningRequest",
    SigningRequest,
    short_names=("csr",),
    group="certificates.k8s.io",
    field_selectors=BY_NAME | {"spec.signerName": lambda item: str(item.spec.signer_name)},
    subresources=frozenset({"approval", "status"}),
    on_create=prepare_new_request,
    on_update=apply_request_update,
    validate=validate_request,
)
