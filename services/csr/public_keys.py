"""Validates public keys for serving certificates: supported by Go's TLS, strong, cheap to verify with."""

from collections.abc import Callable
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

_CURVES: Final = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}
_RSA_BITS: Final = range(2048, 8192 + 1)
# the limit of Go's crypto/rsa; a large exponent makes verifying as slow as signing
_MAX_RSA_EXPONENT: Final = 2**31 - 1


def inspect_key(csr: x509.CertificateSigningRequest) -> tuple[str, str]:
    """Return the key in words, and its problem or "". Raises whatever the parser raises."""
    oid = csr.public_key_algorithm_oid.dotted_string  # type: ignore[attr-defined] # only the stub lacks it
    inspector = _INSPECTORS.get(oid)
    if inspector is None:  # not parsed: DSA and similar keys have parameters of any size
        name = f"algorithm {oid}"
        return name, f"its key is of {name}, none of RSA, ECDSA, Ed25519"
    return inspector(csr)


def _inspect_rsa(csr: x509.CertificateSigningRequest) -> tuple[str, str]:
    try:
        key = csr.public_key()
    except ValueError as error:  # too small for the library to parse
        return "RSA", f"its RSA key is not usable: {error}"
    if not isinstance(key, rsa.RSAPublicKey):
        return "RSA", "its algorithm is RSA, and its key is none"
    name = f"RSA {key.key_size}"
    if key.key_size not in _RSA_BITS:
        return name, f"its RSA key has {key.key_size} bits, not {_RSA_BITS.start} to {_RSA_BITS.stop - 1}"
    if key.public_numbers().e > _MAX_RSA_EXPONENT:
        return name, "its RSA key has an exponent of more than 31 bits"
    return name, ""


def _inspect_ecdsa(csr: x509.CertificateSigningRequest) -> tuple[str, str]:
    key = csr.public_key()
    curve = key.curve.name if isinstance(key, ec.EllipticCurvePublicKey) else "none"
    if curve in _CURVES:
        return f"ECDSA {_CURVES[curve]}", ""
    return f"ECDSA {curve}", f"its key is on curve {curve}, none of {', '.join(_CURVES.values())}"


def _inspect_ed25519(csr: x509.CertificateSigningRequest) -> tuple[str, str]:
    is_one = isinstance(csr.public_key(), ed25519.Ed25519PublicKey)
    return "Ed25519", "" if is_one else "its algorithm is Ed25519, and its key is none"


_INSPECTORS: Final[dict[str, Callable[[x509.CertificateSigningRequest], tuple[str, str]]]] = {
    "1.2.840.113549.1.1.1": _inspect_rsa,
    "1.2.840.10045.2.1": _inspect_ecdsa,
    "1.3.101.112": _inspect_ed25519,
}
