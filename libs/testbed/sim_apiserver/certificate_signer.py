"""The signer of kubelets' serving certificates. It trusts the approver, and checks nothing else."""

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

from libs.testbed.pki import CertificateAuthority, build_key_usage, start_certificate
from libs.testbed.sim_apiserver.certificates import get_pem, has_condition
from libs.testbed.sim_apiserver.resource_kind import Document

KUBELET_SERVING: Final = "kubernetes.io/kubelet-serving"
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


def sign_request(request: Document, authority: CertificateAuthority, now: datetime) -> Document | None:
    """Return the request with its certificate or as failed; None if there is nothing to sign."""
    spec, status = request["spec"], request["status"]
    decided = any(has_condition(request, one) for one in ("Denied", "Failed"))
    waits = has_condition(request, "Approved") and not (status.get("certificate") or decided)
    if not waits or spec["signerName"] != KUBELET_SERVING:
        return None
    try:
        issued = _issue_certificate(x509.load_pem_x509_csr(get_pem(request)), spec, authority, now)
    except _UNREADABLE as error:
        times = dict.fromkeys(("lastUpdateTime", "lastTransitionTime"), now.strftime("%Y-%m-%dT%H:%M:%SZ"))
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
