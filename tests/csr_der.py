"""PKCS #10 requests byte by byte, so that a test can say what no library would sign."""

import base64
import functools
import ipaddress
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

CN, ORGANIZATION, UNIT, COUNTRY, SERIAL, EMAIL = (
    "2.5.4.3",
    "2.5.4.10",
    "2.5.4.11",
    "2.5.4.6",
    "2.5.4.5",
    "1.2.840.113549.1.9.1",
)
SAN, KEY_USAGE, EXT_KEY_USAGE, BASIC_CONSTRAINTS = "2.5.29.17", "2.5.29.15", "2.5.29.37", "2.5.29.19"
EXTENSION_REQUEST, MS_EXTENSION_REQUEST = "1.2.840.113549.1.9.14", "1.3.6.1.4.1.311.2.1.14"
CHALLENGE_PASSWORD = "1.2.840.113549.1.9.7"
UTF8, PRINTABLE, T61, IA5, BMP = 0x0C, 0x13, 0x14, 0x16, 0x1E

_SIGNED_BY = {"RSA": "1.2.840.113549.1.1.11", "ECDSA": "1.2.840.10045.4.3.2", "MD5": "1.2.840.113549.1.1.4"}
_CURVES: dict[str, Any] = {
    "P-192": ec.SECP192R1,
    "P-224": ec.SECP224R1,
    "P-256": ec.SECP256R1,
    "P-384": ec.SECP384R1,
    "P-521": ec.SECP521R1,
    "secp256k1": ec.SECP256K1,
}
Rdn = tuple[tuple[str, str], ...]
_instead: ContextVar[Mapping[bytes, bytes] | None] = ContextVar("instead", default=None)


def tlv(tag: int, *parts: bytes) -> bytes:
    """One DER element."""
    content = b"".join(parts)
    if len(content) < 128:
        return bytes([tag, len(content)]) + content
    length = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def sequence(*parts: bytes) -> bytes:
    """A SEQUENCE."""
    return tlv(0x30, *parts)


def oid(dotted: str) -> bytes:
    """An OBJECT IDENTIFIER."""
    first, second, *rest = map(int, dotted.split("."))
    content = bytearray()
    for arc in (first * 40 + second, *rest):
        septets = [arc & 0x7F]
        while arc := arc >> 7:
            septets.append(0x80 | (arc & 0x7F))
        content += bytes(reversed(septets))
    return tlv(0x06, bytes(content))


def dns(name: str | bytes) -> bytes:
    """A DNS name; text that is not ASCII goes in as UTF-8, which no IA5String may hold."""
    return tlv(0x82, name.encode() if isinstance(name, str) else name)


def ip(address: str | bytes) -> bytes:
    """An IP address, or any bytes in its place."""
    return tlv(0x87, ipaddress.ip_address(address).packed if isinstance(address, str) else address)


def email(address: str) -> bytes:
    """An e-mail address."""
    return tlv(0x81, address.encode())


def uri(text: str) -> bytes:
    """A URI."""
    return tlv(0x86, text.encode())


def directory_name(*rdns: Rdn) -> bytes:
    """A distinguished name in the place of a name."""
    return tlv(0xA4, name_of(rdns))


def other_name(kind: str, text: str) -> bytes:
    """An otherName, such as Microsoft's user principal name."""
    return tlv(0xA0, oid(kind), tlv(0xA0, tlv(UTF8, text.encode())))


def registered_id(dotted: str) -> bytes:
    """A registeredID."""
    return tlv(0x88, oid(dotted)[2:])


def name_of(rdns: Sequence[Rdn], tag: int = UTF8) -> bytes:
    """A distinguished name; every inner tuple is one RDN of one or more values."""
    encoding = "utf-16-be" if tag == BMP else "utf-8"
    return sequence(
        *(
            tlv(0x31, *(sequence(oid(kind), tlv(tag, text.encode(encoding))) for kind, text in rdn))
            for rdn in rdns
        )
    )


def extension(dotted: str, value: bytes, *, critical: bool = False) -> bytes:
    """One extension; DER inside an OCTET STRING."""
    return sequence(oid(dotted), *([tlv(0x01, b"\xff")] if critical else []), tlv(0x04, value))


def alternative_names(*names: bytes) -> bytes:
    """The extension subjectAltName."""
    return extension(SAN, sequence(*names))


def attribute(dotted: str, *values: bytes) -> bytes:
    """One attribute of a request."""
    return sequence(oid(dotted), tlv(0x31, *values))


def extensions_in(dotted: str, *extensions: bytes) -> bytes:
    """The attribute that carries extensions."""
    return attribute(dotted, sequence(*extensions))


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """What a request is made of; defaults are an honest kubelet's."""

    subject: tuple[Rdn, ...] = (((ORGANIZATION, "system:nodes"),), ((CN, "system:node:web-1"),))
    subject_tag: int = UTF8
    sans: tuple[bytes, ...] = ()
    extensions: tuple[bytes, ...] | None = None  # None: the SANs
    attributes: tuple[bytes, ...] | None = None  # None: the extensions
    sort_attributes: bool = True  # as DER wants the elements of a SET
    key: str = "P-256"
    version: int = 0
    foreign_signature: bool = False  # by another key of the same kind
    signed_as: str = ""  # an algorithm that it is not signed by
    trailing: bytes = b""

    def der(self) -> bytes:
        """The request, signed."""
        key = a_key(self.key)
        spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        unsigned = self.unsigned(spki)
        signature, algorithm = _sign(a_key(self.key, 2) if self.foreign_signature else key, unsigned)
        if self.signed_as:
            algorithm = sequence(oid(_SIGNED_BY[self.signed_as]), tlv(0x05))
        return sequence(unsigned, algorithm, tlv(0x03, b"\0", signature)) + self.trailing

    def unsigned(self, spki: bytes) -> bytes:
        """CertificationRequestInfo."""
        extensions = self.extensions
        if extensions is None:
            extensions = (alternative_names(*self.sans),) if self.sans else ()
        attributes = self.attributes
        if attributes is None:
            attributes = (extensions_in(EXTENSION_REQUEST, *extensions),) if extensions else ()
        if self.sort_attributes:
            attributes = tuple(sorted(attributes))
        version = tlv(0x02, bytes([self.version]))
        subject = _said_instead(name_of(self.subject, self.subject_tag))
        return sequence(version, subject, spki, _said_instead(tlv(0xA0, *attributes)))


@contextmanager
def saying(instead: Mapping[bytes, bytes]) -> Iterator[None]:
    """Requests that are made inside say these words instead, each of the same length: odd DER stays odd."""
    assert all(len(one) == len(other) for one, other in instead.items())
    token = _instead.set(instead)
    try:
        yield
    finally:
        _instead.reset(token)


def _said_instead(der: bytes) -> bytes:
    for one, other in (_instead.get() or {}).items():
        der = der.replace(one, other)
    return der


def pem_of(der: bytes, label: str = "CERTIFICATE REQUEST") -> bytes:
    """A PEM block."""
    lines = textwrap.wrap(base64.b64encode(der).decode(), 64)
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""]).encode()


def with_key(spki: bytes, fields: Fields) -> bytes:
    """A request for a key that nobody has, with a signature that nobody made."""
    algorithm = sequence(oid(_SIGNED_BY["RSA"]), tlv(0x05))
    return sequence(fields.unsigned(spki), algorithm, tlv(0x03, b"\0" + b"\1" * 256))


def rsa_spki(modulus: int, exponent: int) -> bytes:
    """A public key of any size, without arithmetic."""

    def integer(number: int) -> bytes:
        return tlv(0x02, number.to_bytes(number.bit_length() // 8 + 1, "big"))

    algorithm = sequence(oid("1.2.840.113549.1.1.1"), tlv(0x05))
    return sequence(algorithm, tlv(0x03, b"\0", sequence(integer(modulus), integer(exponent))))


@functools.cache  # an RSA key costs a tenth of a second and more
def a_key(kind: str, number: int = 1) -> Any:
    """The private key of that kind; the number tells two of them apart."""
    assert number
    if kind.startswith("RSA"):
        return rsa.generate_private_key(65537, int(kind.split()[1]))
    if kind == "DSA":
        return dsa.generate_private_key(1024)
    if kind == "Ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    if kind == "Ed448":
        return ed448.Ed448PrivateKey.generate()
    return ec.generate_private_key(_CURVES[kind]())


def _sign(key: Any, data: bytes) -> tuple[bytes, bytes]:
    if isinstance(key, rsa.RSAPrivateKey):
        signature = key.sign(data, padding.PKCS1v15(), hashes.SHA256())
        return signature, sequence(oid(_SIGNED_BY["RSA"]), tlv(0x05))
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(data, ec.ECDSA(hashes.SHA256())), sequence(oid(_SIGNED_BY["ECDSA"]))
    if isinstance(key, dsa.DSAPrivateKey):
        return key.sign(data, hashes.SHA256()), sequence(oid("2.16.840.1.101.3.4.3.2"))
    number = "1.3.101.112" if isinstance(key, ed25519.Ed25519PrivateKey) else "1.3.101.113"
    return key.sign(data), sequence(oid(number))
