"""CertificateSigningRequests: the server sets the requesting user, and decisions are final."""

from __future__ import annotations

import base64
from typing import Annotated, Final, TypedDict

import msgspec

from libs.testbed.sim_apiserver.refusals import (
    Cause,
    forbidden_value,
    invalid,
    invalid_value,
    required_value,
)
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
    """Return the causes of a request with invalid metadata, or with another decision than before."""
    causes = validate_metadata(new, old)
    missing = [field for field in ("request", "signerName") if not new["spec"].get(field)]
    causes += [required_value(f"spec.{field}") for field in missing]
    if all(has_condition(new, kind) for kind in DECISIONS):
        why = "Approved and Denied conditions are mutually exclusive"
        causes.append(invalid_value("Denied", why, "status.conditions"))
    for kind in _FINAL:
        if old is not None and has_condition(old, kind) and not has_condition(new, kind):
            why = f'updates may not remove a condition of type "{kind}"'
            causes.append(forbidden_value(why, "status.conditions"))
    return causes


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
