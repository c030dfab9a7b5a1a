"""CertificateSigningRequests: the server sets the requesting user, and decisions are final; the signer."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from libs.common.contract.signing_request import KUBELET_SERVING
from libs.testbed.kubelet_node import format_time
from libs.testbed.pki import CertificateAuthority, build_key_usage, start_certificate
from libs.testbed.sim_apiserver.refusals import invalid
from libs.testbed.sim_apiserver.resource_kind import Document, Identity, ResourceKind

DECISIONS: Final = ("Approved", "Denied")
_FINAL: Final = (*DECISIONS, "Failed")  # such a condition stays, with status True
_LIFETIME: Final = timedelta(days=365)
_BACKDATED: Final = timedelta(minutes=5)
_SHORT: Final = timedelta(hours=8)  # shorter lifetimes are not reduced by the backdating
_UNREADABLE: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.UnsupportedGeneralNameType,
)
_ALLOWED: Final = {"digital signature", "key encipherment"}


def has_condition(request: Document, condition: str) -> bool:
    """Whether the request has a condition of this type."""
    return any(one.get("type") == condition for one in request["status"].get("conditions", []))


def prepare_new_request(new: Document, identity: Identity) -> Document:
    """Set the identity as the requesting user, and remove the status."""
    spec = {key: value for key, value in new.get("spec", {}).items() if key not in {"uid", "extra"}}
    return {**new, "spec": {**spec, "username": identity.user, "groups": list(identity.groups)}, "status": {}}


def apply_request_update(old: Document, new: Document, subresource: str, now: str) -> Document:
    """Apply an update: /approval writes conditions, and nothing writes the spec."""
    status = dict(old["status"])
    if subresource:
        sent = new.get("status", {}).get("conditions", [])
        status["conditions"] = [_set_timestamps(one, old, now) for one in sent]
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


def sign_request(request: Document, authority: CertificateAuthority, now: datetime) -> Document | None:
    """Return the request with its certificate or as failed; None if there is nothing to sign.

    The signer trusts the approver, and checks nothing else.
    """
    spec, status = request["spec"], request["status"]
    decided = any(has_condition(request, one) for one in ("Denied", "Failed"))
    waits = has_condition(request, "Approved") and not (status.get("certificate") or decided)
    if not waits or spec["signerName"] != KUBELET_SERVING:
        return None
    try:
        csr = x509.load_pem_x509_csr(base64.b64decode(spec["request"]))
        issued = _issue_certificate(csr, spec, authority, now)
    except _UNREADABLE as error:
        times = dict.fromkeys(("lastUpdateTime", "lastTransitionTime"), format_time(now))
        failed = {"type": "Failed", "status": "True", "reason": "SignerValidationFailure"}
        conditions = [*status["conditions"], failed | times | {"message": str(error)}]
        return {**request, "status": {**status, "conditions": conditions}}
    return {**request, "status": {**status, "certificate": base64.b64encode(issued).decode()}}


def _issue_certificate(
    csr: x509.CertificateSigningRequest, spec: Document, authority: CertificateAuthority, now: datetime
) -> bytes:
    if not isinstance(authority.key, ec.EllipticCurvePrivateKey):
        raise TypeError("the cluster's authority has a P-256 key")
    names = csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    lifetime = _LIFETIME
    if "expirationSeconds" in spec:
        lifetime = min(lifetime, timedelta(seconds=spec["expirationSeconds"]))
    usages = [usage.replace(" ", "_") for usage in spec.get("usages", []) if usage in _ALLOWED]
    end = now + lifetime - (_BACKDATED if lifetime >= _SHORT else timedelta())
    builder = (
        start_certificate(csr.subject, authority.certificate.subject, csr.public_key(), now - _BACKDATED, end)
        .add_extension(build_key_usage(*usages), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
    )
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM)
