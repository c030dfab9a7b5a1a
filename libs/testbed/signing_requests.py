"""Certificate requests as kubelets create them, and their outcome."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from libs.common.contract.signing_request import NODES_GROUP
from libs.testbed.pki import make_name

CSRS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
# with RSA keys, a kubelet adds "key encipherment"
SERVING_USAGES: Final = ("digital signature", "server auth")
APPROVED: Final = {"type": "Approved", "status": "True", "reason": "Testbed", "message": "approved unread"}


class SigningOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a request: its conditions by type, and the certificate (PEM) if there is one."""

    conditions: Mapping[str, Mapping[str, str]] = {}
    certificate: bytes = b""

    @property
    def is_final(self) -> bool:
        """Whether the outcome is final: issued, denied or failed."""
        return bool(self.certificate) or not self.conditions.keys().isdisjoint({"Denied", "Failed"})


def read_outcome(request: Mapping[str, Any]) -> SigningOutcome:
    """Return the outcome in an API object."""
    status = request.get("status", {})
    return SigningOutcome(
        conditions={condition["type"]: condition for condition in status.get("conditions", [])},
        certificate=base64.b64decode(status.get("certificate", "")),
    )


def build_signing_request(
    pem: bytes, *, usages: Sequence[str], expiration_seconds: int | None, signer: str
) -> dict[str, Any]:
    """Return the CertificateSigningRequest to create."""
    spec = {"request": base64.b64encode(pem).decode(), "signerName": signer, "usages": list(usages)}
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "csr-"},
        "spec": spec if expiration_seconds is None else spec | {"expirationSeconds": expiration_seconds},
    }


def make_request_pem(
    *,
    common_name: str,
    dns: Sequence[str],
    ips: Sequence[str],
) -> bytes:
    """Return a kubelet's request with a new key that is discarded; "" = without a common name."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = make_name(common_name, [NODES_GROUP])
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns]
    names += [x509.IPAddress(ipaddress.ip_address(ip)) for ip in ips]
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
