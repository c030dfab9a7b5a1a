"""Parses a certificate request in PEM as Go does: the first complete block, ignoring text around it."""

from __future__ import annotations

import base64
import binascii
import re
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID, ObjectIdentifier

_BEGIN: Final = re.compile(rb"(?:^|(?<=\n))-----BEGIN ([^\n]*)\n")
_END: Final = b"\n-----END "
_CURVES: Final = (ec.SECP224R1, ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
_KEYS: Final = (rsa.RSAPublicKey, ec.EllipticCurvePublicKey, ed25519.Ed25519PublicKey)
_EXTENSIONS: Final = ObjectIdentifier("1.2.840.113549.1.9.14")
# Not simulated: Go ignores this attribute, and cryptography treats it like the standard one.
_EXTENSIONS_BY_MICROSOFT: Final = ObjectIdentifier("1.3.6.1.4.1.311.2.1.14")
_UNREADABLE: Final = (
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,  # Go drops such names
    x509.InvalidVersion,  # Go accepts any version
    UnsupportedAlgorithm,
)
_INSECURE: Final = {"md5", "sha1"}


def parse_request_pem(pem: bytes) -> x509.CertificateSigningRequest:
    """Parse the request and all its parts, without checking the signature. Raises ValueError."""
    block = _find_first_block(pem)
    if block is None or block[0] != b"CERTIFICATE REQUEST":
        raise ValueError("PEM block type must be CERTIFICATE REQUEST")
    try:
        csr = x509.load_der_x509_csr(block[1])
        problem = _find_problem(csr)
    except _UNREADABLE as error:
        raise ValueError(f"x509: {error}") from error
    if problem:
        raise ValueError(f"x509: {problem}")
    return csr


def is_signature_valid(csr: x509.CertificateSigningRequest) -> bool:
    """Whether the request is signed by its key, with an algorithm that Go still accepts."""
    try:
        digest = csr.signature_hash_algorithm
    except UnsupportedAlgorithm:
        return False
    if not isinstance(csr.public_key(), _KEYS) or (digest is not None and digest.name in _INSECURE):
        return False
    return csr.is_signature_valid


def get_common_name(csr: x509.CertificateSigningRequest) -> str:
    """Return the last common name, as Go does; "" without one."""
    return ["", *_get_attributes(csr, NameOID.COMMON_NAME)][-1]


def get_organizations(csr: x509.CertificateSigningRequest) -> list[str]:
    """Return all organizations, in order."""
    return _get_attributes(csr, NameOID.ORGANIZATION_NAME)


def get_alternative_names(csr: x509.CertificateSigningRequest) -> list[x509.GeneralName]:
    """Return all subject alternative names of any kind."""
    try:
        return list(csr.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _find_problem(csr: x509.CertificateSigningRequest) -> str:
    """Return an error that Go finds and cryptography accepts, "" if there is none. Raises ValueError."""
    list(csr.subject)  # cryptography parses it on first access
    attributes = [attribute.oid for attribute in csr.attributes]
    if attributes.count(_EXTENSIONS) > 1:
        return "certificate request contains duplicate requested extensions"
    if _EXTENSIONS_BY_MICROSOFT in attributes:
        return "not simulated: Microsoft's attribute for extensions"
    for name in get_alternative_names(csr):
        if isinstance(name, x509.IPAddress) and isinstance(name.value, IPv4Network | IPv6Network):
            return "cannot parse IP address"
        if isinstance(name, x509.DNSName) and not name.value.isascii():
            return "SAN dNSName is malformed"
    key = csr.public_key()
    if isinstance(key, ec.EllipticCurvePublicKey) and not isinstance(key.curve, _CURVES):
        return "unsupported elliptic curve"
    return ""


def _get_attributes(csr: x509.CertificateSigningRequest, oid: ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in csr.subject.get_attributes_for_oid(oid)]


def _find_first_block(pem: bytes) -> tuple[bytes, bytes] | None:
    """Return type and content of the first complete block; skips malformed ones, as Go's pem.Decode."""
    for begin in _BEGIN.finditer(pem):
        label = begin.group(1).rstrip()
        end = pem.find(_END, begin.end() - 1)
        if not label.endswith(b"-----") or end < 0:
            continue
        trailer = pem[end + len(_END) :].split(b"\n", 1)[0].rstrip()
        if trailer != label:
            continue
        lines = pem[begin.end() : max(end, begin.end())].split(b"\n")
        while lines and b":" in lines[0]:  # headers
            del lines[0]
        try:
            content = base64.b64decode(b"".join(b"".join(lines).split()), validate=True)
        except binascii.Error:
            continue
        return label.removesuffix(b"-----"), content
    return None
