"""The signer of kubelets' serving certificates, as kube-controller-manager has it; no other is simulated."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec.structs import replace

from libs.testbed.pki import Authority
from libs.testbed.sim_apiserver.certificates import RequestCondition, SigningRequest

KUBELET_SERVING: Final = "kubernetes.io/kubelet-serving"
_LIFETIME: Final = timedelta(days=365)


def answer_request(request: SigningRequest, authority: Authority, now: datetime) -> SigningRequest | None:
    """The request with its certificate, or failed; None if it waits for nobody here."""
    waits = request.has("Approved") and not (request.status.certificate or request.has("Failed"))
    if not waits or request.spec.signer_name != KUBELET_SERVING:
        return None
    csr = x509.load_pem_x509_csr(request.spec.request)
    why = refusal_of(request, csr)
    if not why:
        return replace(request, status=replace(request.status, certificate=_signed(csr, authority, now)))
    failed = RequestCondition(type="Failed", status="True", reason="SignerValidationFailure", message=why)
    return replace(request, status=replace(request.status, conditions=[*request.status.conditions, failed]))


def refusal_of(request: SigningRequest, csr: x509.CertificateSigningRequest) -> str:
    """Why the signer would not sign it, "" if it would (certificates/v1 helpers of Kubernetes)."""
    organizations = [a.value for a in csr.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    common_names = [a.value for a in csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if organizations != ["system:nodes"]:
        return "subject organization is not system:nodes"
    if [str(name).startswith("system:node:") for name in common_names] != [True]:
        return "subject common name does not begin with system:node:"
    names = _names(csr)
    if not any(isinstance(name, x509.DNSName | x509.IPAddress) for name in names):
        return "DNS or IP subjectAltName is required"
    if not all(isinstance(name, x509.DNSName | x509.IPAddress) for name in names):
        return "only DNS and IP subjectAltNames are allowed"
    if "server auth" not in request.spec.usages:
        return "usages did not match"
    return ""


def _signed(csr: x509.CertificateSigningRequest, authority: Authority, now: datetime) -> bytes:
    if not isinstance(authority.key, ec.EllipticCurvePrivateKey):
        raise TypeError("the cluster's authority has a P-256 key")
    builder = (
        x509.CertificateBuilder()
        .subject_name(csr.subject)
        .issuer_name(authority.certificate.subject)
        .public_key(csr.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName(_names(csr)), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _names(csr: x509.CertificateSigningRequest) -> list[x509.GeneralName]:
    try:
        return list(csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []
