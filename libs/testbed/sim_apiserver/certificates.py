"""CertificateSigningRequests: the server sets the requesting user, and decisions are final."""

from __future__ import annotations

import base64
from typing import Final

from libs.testbed.sim_apiserver.refusals import invalid
from libs.testbed.sim_apiserver.resource_kind import Caller, Document, ResourceKind

DECISIONS: Final = ("Approved", "Denied")
_FINAL: Final = (*DECISIONS, "Failed")  # such a condition stays, with status True


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
    """Apply an update: /approval writes conditions, and nothing writes the spec."""
    status = dict(old["status"])
    if subresource:
        sent = new.get("status", {}).get("conditions", [])
        status["conditions"] = [_set_timestamps(one, old, caller.now) for one in sent]
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


def check_request_update(old: Document, new: Document) -> None:
    """Raise Refusal if a decision disappears, or if there are two."""
    about = SIGNING_REQUESTS.make_reference(new["metadata"]["name"])
    if all(has_condition(new, kind) for kind in DECISIONS):
        why = "Approved and Denied conditions are mutually exclusive"
        raise invalid(about, "status.conditions", "Invalid", why)
    for kind in _FINAL:
        if has_condition(old, kind) and not has_condition(new, kind):
            why = f'updates may not remove a condition of type "{kind}"'
            raise invalid(about, "status.conditions", "Forbidden", why)


SIGNING_REQUESTS: Final = ResourceKind(
    "certificatesigningrequests",
    "CertificateSigningRequest",
    short_names=("csr",),
    group="certificates.k8s.io",
    field_selectors=("metadata.name", "spec.signerName"),
    subresources=frozenset({"approval"}),
    on_create=prepare_new_request,
    on_update=apply_request_update,
    check_update=check_request_update,
)
