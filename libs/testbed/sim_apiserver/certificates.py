"""CertificateSigningRequests: the server sets the requesting user, and decisions are final."""

from __future__ import annotations

import base64
import re
from typing import Annotated, Final, TypedDict

import msgspec

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
from libs.testbed.sim_apiserver.resource_kind import (
    Caller,
    Document,
    Metadata,
    ResourceKind,
    Time,
    validate_metadata,
)

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


class _Spec(TypedDict, total=False):
    request: bytes
    signerName: str
    expirationSeconds: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
    usages: list[str] | None


class _Condition(TypedDict, total=False):
    type: str
    status: str
    reason: str
    message: str
    lastUpdateTime: Time | None
    lastTransitionTime: Time | None


class _Status(TypedDict, total=False):
    conditions: list[_Condition]
    certificate: bytes


class _Request(TypedDict, total=False):
    metadata: Metadata
    spec: _Spec
    status: _Status


def get_pem(request: Document) -> bytes:
    """Return the certificate request in PEM."""
    return base64.b64decode(request["spec"].get("request", ""))


def has_condition(request: Document, condition: str) -> bool:
    """Whether the request has a condition of this type."""
    return any(one.get("type") == condition for one in request["status"].get("conditions", []))


def prepare_new_request(new: Document, caller: Caller) -> Document:
    """Set the caller as the requesting user, and remove the status."""
    spec = {key: value for key, value in new.get("spec", {}).items() if key not in {"uid", "extra"}}
    return {**new, "spec": {**spec, "username": caller.user, "groups": list(caller.groups)}, "status": {}}


def apply_request_update(old: Document, new: Document, subresource: str, caller: Caller) -> Document:
    """Apply an update: /approval writes conditions, /status the certificate and other conditions.

    The spec never changes. Raises Refusal.
    """
    status, sent = dict(old["status"]), new.get("status", {})
    if subresource:
        status["conditions"] = [_set_timestamps(one, old, caller.now) for one in sent.get("conditions", [])]
    if subresource == "status":
        changed = {**new, "status": sent}
        added = [kind for kind in DECISIONS if has_condition(changed, kind) and not has_condition(old, kind)]
        if added:
            cause = forbidden_value(
                f'updates may not add a condition of type "{added[0]}"', "status.conditions"
            )
            about = SIGNING_REQUESTS.make_reference(new["metadata"]["name"])
            raise invalid(SIGNING_REQUESTS.qualified_name, about, [cause])
        status["certificate"] = sent.get("certificate")
    return {**new, "spec": old["spec"], "status": status}


def _set_timestamps(condition: Document, old: Document, now: str) -> Document:
    conditions = old["status"].get("conditions", [])
    known = next((one for one in conditions if one["type"] == condition.get("type")), None)
    since = known["lastTransitionTime"] if known and known["status"] == condition.get("status") else now
    return {
        **condition,
        "lastUpdateTime": condition.get("lastUpdateTime") or now,
        "lastTransitionTime": condition.get("lastTransitionTime") or since,
    }


def validate_request(new: Document, old: Document | None) -> list[Cause]:
    """Return the causes of an invalid request."""
    causes = validate_metadata(new, old)
    if old is None:
        return causes + _validate_spec(new)
    return causes + _validate_conditions(new["status"].get("conditions", []), old)


def _validate_conditions(conditions: list[Document], old: Document) -> list[Cause]:
    causes: list[Cause] = []
    seen: set[str] = set()
    for at, condition in enumerate(conditions):
        where = f"status.conditions[{at}]"
        kind, status = condition.get("type", ""), condition.get("status", "")
        supported = ("True",) if kind in _FINAL else ("False", "True", "Unknown")
        if not kind:
            causes.append(required_value(f"{where}.type"))
        if not status:
            causes.append(required_value(f"{where}.status"))
        elif status not in supported:
            causes.append(unsupported_value(status, supported, f"{where}.status"))
        if kind in seen:
            causes.append(duplicate_value(f'"{kind}"', f"{where}.type"))
        seen.add(kind)
    if seen.issuperset(DECISIONS):
        why = "Approved and Denied conditions are mutually exclusive"
        causes.append(invalid_value("Denied", why, "status.conditions"))
    for kind in _FINAL:
        if has_condition(old, kind) and kind not in seen:
            why = f'updates may not remove a condition of type "{kind}"'
            causes.append(forbidden_value(why, "status.conditions"))
    return causes


def _validate_spec(new: Document) -> list[Cause]:
    spec = new["spec"]
    causes = _validate_pem(get_pem(new)) + _validate_usages(spec.get("usages", []))
    causes += _validate_signer(spec.get("signerName", ""))
    seconds = spec.get("expirationSeconds")
    if seconds is not None and seconds < _SHORTEST_SECONDS:
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
    schema=_Request,
    short_names=("csr",),
    group="certificates.k8s.io",
    field_selectors=("metadata.name", "spec.signerName"),
    subresources=frozenset({"approval", "status"}),
    on_create=prepare_new_request,
    on_update=apply_request_update,
    validate=validate_request,
)
