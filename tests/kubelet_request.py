"""A kubelet's request for a serving certificate, as bytes."""

import ipaddress
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@cache
def make_request_pem(*addresses: str) -> bytes:
    """A kubelet's request for these addresses."""
    names = [x509.DNSName("web-1"), *(x509.IPAddress(ipaddress.ip_address(text)) for text in addresses)]
    builder = x509.CertificateSigningRequestBuilder(x509.Name([]))
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    signed = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)
