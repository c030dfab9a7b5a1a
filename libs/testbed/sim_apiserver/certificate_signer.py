"""The signer of kubelets' serving certificates of kube-controller-manager; no other signer is simulated."""

from __future__ import annotations

import base64
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from libs.testbed.pki import CertificateAuthority, build_key_usage, start_certificate
from libs.testbed.sim_apiserver.certificates import get_pem, has_condition
from libs.testbed.sim_apiserver.request_pem import (
    get_alternative_names,
    get_common_name,
    get_organizations,
    parse_request_pem,
)
from libs.testbed.sim_apiserver.resource_kind import Document

KUBELET_SERVING: Final = "kubernetes.io/kubelet-serving"
_LIFETIME: Final = timedelta(days=365)
_BACKDATED: Final = timedelta(minutes=5)
_SHORT: Final = timedelta(hours=8)  # shorter lifetimes are not reduced by the backdating
_NEEDED: Final = {"digital signature", "server auth"}
_ALLOWED: Final = _NEEDED | {"key encipherment"}


def sign_request(request: Document, authority: CertificateAuthority, now: datetime) -> Document | None:
    """Return the request with its certificate or as failed; None if there is nothing to sign."""
    spec, status = request["spec"], request["status"]
    decided = any(has_condition(request, one) for one in ("Denied", "Failed"))
    waits = has_condition(request, "Approved") and not (status.get("certificate") or decided)
    if not waits or spec["signerName"] != KUBELET_SERVING:
        return None
    csr = parse_request_pem(get_pem(request))
    if why := find_signing_problem(spec, csr):
        times = dict.fromkeys(("lastUpdateTime", "lastTransitionTime"), now.strftime("%Y-%m-%dT%H:%M:%SZ"))
        failed = {"type": "Failed", "status": "True", "reason": "SignerValidationFailure", "message": why}
        return {**request, "status": {**status, "conditions": [*status["conditions"], failed | times]}}
    certificate = base64.b64encode(_issue_certificate(csr, spec, authority, now)).decode()
    return {**request, "status": {**status, "certificate": certificate}}


def find_signing_problem(spec: Document, csr: x509.CertificateSigningRequest) -> str:
    """Return why the signer rejects the request, "" if it signs (certificates/v1 helpers of Kubernetes)."""
    if get_organizations(csr) != ["system:nodes"]:
        return "subject organization is not system:nodes"
    names = get_alternative_names(csr)
    if not _select_names(names):
        return "DNS or IP subjectAltName is required"
    if any(isinstance(name, x509.RFC822Name) for name in names):
        return "Email subjectAltNames are not allowed"
    if any(isinstance(name, x509.UniformResourceIdentifier) for name in names):
        return "URI subjectAltNames are not allowed"
    if not _NEEDED <= set(spec.get("usages", [])) <= _ALLOWED:
        return f"usages did not match [{' '.join(sorted(_ALLOWED))}]"
    if not get_common_name(csr).startswith("system:node:"):
        return "subject common name does not begin with system:node:"
    return ""


def _issue_certificate(
    csr: x509.CertificateSigningRequest, spec: Document, authority: CertificateAuthority, now: datetime
) -> bytes:
    if not isinstance(authority.key, ec.EllipticCurvePrivateKey):
        raise TypeError("the cluster's authority has a P-256 key")
    lifetime = _LIFETIME
    if "expirationSeconds" in spec:
        lifetime = min(lifetime, timedelta(seconds=spec["expirationSeconds"]))
    usages = [
        usage.replace(" ", "_") for usage in spec.get("usages", []) if usage in _ALLOWED - {"server auth"}
    ]
    end = now + lifetime - (_BACKDATED if lifetime >= _SHORT else timedelta())
    builder = (
        start_certificate(csr.subject, authority.certificate.subject, csr.public_key(), now - _BACKDATED, end)
        .add_extension(build_key_usage(*usages), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(_select_names(get_alternative_names(csr))), critical=False)
    )
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _select_names(names: list[x509.GeneralName]) -> list[x509.GeneralName]:
    """Return the names for the certificate; kinds that Go does not support are dropped silently.

    An IPv4-mapped IPv6 address becomes the IPv4 address.
    """
    kept: list[x509.GeneralName] = [name for name in names if isinstance(name, x509.DNSName)]
    for name in names:
        if isinstance(name, x509.IPAddress):
            mapped = getattr(name.value, "ipv4_mapped", None)
            kept.append(x509.IPAddress(mapped) if mapped else name)
    return kept
