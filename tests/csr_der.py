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


def encode_tlv(tag: int, *parts: bytes) -> bytes:
    """One DER element."""
    content = b"".join(parts)
    if len(content) < 128:
        return bytes([tag, len(content)]) + content
    length = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def encode_sequence(*parts: bytes) -> bytes:
    """A SEQUENCE."""
    return encode_tlv(0x30, *parts)


def encode_oid(dotted: str) -> bytes:
    """An OBJECT IDENTIFIER."""
    first, second, *rest = map(int, dotted.split("."))
    content = bytearray()
    for arc in (first * 40 + second, *rest):
        septets = [arc & 0x7F]
        while arc := arc >> 7:
            septets.append(0x80 | (arc & 0x7F))
        content += bytes(reversed(septets))
    return encode_tlv(0x06, bytes(content))


def encode_dns_name(name: str | bytes) -> bytes:
    """A DNS name; text that is not ASCII goes in as UTF-8, which no IA5String may hold."""
    return encode_tlv(0x82, name.encode() if isinstance(name, str) else name)


def encode_ip(address: str | bytes) -> bytes:
    """An IP address, or any bytes in its place."""
    return encode_tlv(0x87, ipaddress.ip_address(address).packed if isinstance(address, str) else address)


def encode_email(address: str) -> bytes:
    """An e-mail address."""
    return encode_tlv(0x81, address.encode())


def encode_uri(text: str) -> bytes:
    """A URI."""
    return encode_tlv(0x86, text.encode())


def encode_directory_name(*rdns: Rdn) -> bytes:
    """A distinguished name in the place of a name."""
    return encode_tlv(0xA4, encode_name(rdns))


def encode_other_name(kind: str, text: str) -> bytes:
    """An otherName, such as Microsoft's user principal name."""
    return encode_tlv(0xA0, encode_oid(kind), encode_tlv(0xA0, encode_tlv(UTF8, text.encode())))


def encode_registered_id(dotted: str) -> bytes:
    """A registeredID."""
    return encode_tlv(0x88, encode_oid(dotted)[2:])


def encode_name(rdns: Sequence[Rdn], tag: int = UTF8) -> bytes:
    """A distinguished name; every inner tuple is one RDN of one or more values."""
    encoding = "utf-16-be" if tag == BMP else "utf-8"
    return encode_sequence(
        *(
            encode_tlv(
                0x31,
                *(
                    encode_sequence(encode_oid(kind), encode_tlv(tag, text.encode(encoding)))
                    for kind, text in rdn
                ),
            )
            for rdn in rdns
        )
    )


def encode_extension(dotted: str, value: bytes, *, critical: bool = False) -> bytes:
    """One extension; DER inside an OCTET STRING."""
    return encode_sequence(
        encode_oid(dotted), *([encode_tlv(0x01, b"\xff")] if critical else []), encode_tlv(0x04, value)
    )


def encode_alternative_names(*names: bytes) -> bytes:
    """The extension subjectAltName."""
    return encode_extension(SAN, encode_sequence(*names))


def encode_attribute(dotted: str, *values: bytes) -> bytes:
    """One attribute of a request."""
    return encode_sequence(encode_oid(dotted), encode_tlv(0x31, *values))


def encode_extensions(dotted: str, *extensions: bytes) -> bytes:
    """The attribute that carries extensions."""
    return encode_attribute(dotted, encode_sequence(*extensions))


class RequestFields(msgspec.Struct, frozen=True, kw_only=True):
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

    def sign(self) -> bytes:
        """The request, signed."""
        key = get_key(self.key)
        spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        unsigned = self.encode_unsigned(spki)
        signature, algorithm = _sign(get_key(self.key, 2) if self.foreign_signature else key, unsigned)
        if self.signed_as:
            algorithm = encode_sequence(encode_oid(_SIGNED_BY[self.signed_as]), encode_tlv(0x05))
        return encode_sequence(unsigned, algorithm, encode_tlv(0x03, b"\0", signature)) + self.trailing

    def encode_unsigned(self, spki: bytes) -> bytes:
        """CertificationRequestInfo."""
        extensions = self.extensions
        if extensions is None:
            extensions = (encode_alternative_names(*self.sans),) if self.sans else ()
        attributes = self.attributes
        if attributes is None:
            attributes = (encode_extensions(EXTENSION_REQUEST, *extensions),) if extensions else ()
        if self.sort_attributes:
            attributes = tuple(sorted(attributes))
        version = encode_tlv(0x02, bytes([self.version]))
        subject = _said_instead(encode_name(self.subject, self.subject_tag))
        return encode_sequence(version, subject, spki, _said_instead(encode_tlv(0xA0, *attributes)))


@contextmanager
def replace_text(instead: Mapping[bytes, bytes]) -> Iterator[None]:
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


def encode_pem(der: bytes, label: str = "CERTIFICATE REQUEST") -> bytes:
    """A PEM block."""
    lines = textwrap.wrap(base64.b64encode(der).decode(), 64)
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""]).encode()


def encode_unsigned_request(spki: bytes, fields: RequestFields) -> bytes:
    """A request with an invented key and an invented signature."""
    algorithm = encode_sequence(encode_oid(_SIGNED_BY["RSA"]), encode_tlv(0x05))
    return encode_sequence(fields.encode_unsigned(spki), algorithm, encode_tlv(0x03, b"\0" + b"\1" * 256))


def encode_rsa_key(modulus: int, exponent: int) -> bytes:
    """A public key of any size, without arithmetic."""

    def integer(number: int) -> bytes:
        return encode_tlv(0x02, number.to_bytes(number.bit_length() // 8 + 1, "big"))

    algorithm = encode_sequence(encode_oid("1.2.840.113549.1.1.1"), encode_tlv(0x05))
    return encode_sequence(
        algorithm, encode_tlv(0x03, b"\0", encode_sequence(integer(modulus), integer(exponent)))
    )


@functools.cache  # an RSA key costs a tenth of a second and more
def get_key(kind: str, number: int = 1) -> Any:
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
        return signature, encode_sequence(encode_oid(_SIGNED_BY["RSA"]), encode_tlv(0x05))
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(data, ec.ECDSA(hashes.SHA256())), encode_sequence(encode_oid(_SIGNED_BY["ECDSA"]))
    if isinstance(key, dsa.DSAPrivateKey):
        return key.sign(data, hashes.SHA256()), encode_sequence(encode_oid("2.16.840.1.101.3.4.3.2"))
    number = "1.3.101.112" if isinstance(key, ed25519.Ed25519PrivateKey) else "1.3.101.113"
    return key.sign(data), encode_sequence(encode_oid(number))
