"""Parses a kubelet's PKCS #10 request. The bytes are untrusted: no input may raise or take long.

The API server and the signer parse the same bytes with Go. This parser rejects bytes that two parsers could
read differently.
"""

import base64
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtensionOID, NameOID

from libs.common.contract.ip_addresses import format_ip
from libs.common.contract.signing_request import REQUEST_LIMIT

MAX_SANS: Final = 100  # names and addresses; a kubelet requests as many as its Node has, about ten at most
_MAX_QUOTED_LENGTH: Final = 80  # characters of a quoted value
# Accepted keys: supported by Go's TLS, strong, cheap to verify with.
_CURVES: Final = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}
_RSA_BITS: Final = range(2048, 8192 + 1)
# the limit of Go's crypto/rsa; a large exponent makes verifying as slow as signing
_MAX_RSA_EXPONENT: Final = 2**31 - 1

# Exactly one block: Go takes the first block of any label, other parsers the first one with this label.
_PEM: Final = re.compile(
    rb"\s*-----BEGIN CERTIFICATE REQUEST-----\r?\n([A-Za-z0-9+/=\r\n]+)-----END CERTIFICATE REQUEST-----\s*"
)


class CertificateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a request asks for, and its problems."""

    common_names: tuple[str, ...] = ()
    organizations: tuple[str, ...] = ()
    other_subject_attributes: tuple[str, ...] = ()  # "OID=value", values quoted
    dns_names: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()  # canonical; an IPv4-mapped address stays IPv6
    other_sans: tuple[str, ...] = ()  # "e-mail 'a@b'", "URI ..."
    key: str  # "ECDSA P-256"
    key_problem: str = ""
    # None: csr does not accept the key, so the signature was not verified
    is_signature_valid: bool | None = None
    problems: tuple[str, ...] = ()


class MalformedRequest(msgspec.Struct, frozen=True):
    """Bytes that are no request, with the reason in printable characters."""

    reason: str


# csr evaluates a request again after each wait. 8 MB if all are of the largest size.
@lru_cache(maxsize=256)
def parse_request(pem: bytes) -> CertificateRequest | MalformedRequest:
    """Parse the request in these PEM bytes."""
    return parse_with(_parse_der, pem)


def parse_with(
    parse: Callable[[bytes], CertificateRequest], pem: bytes
) -> CertificateRequest | MalformedRequest:
    """Parse exactly one PEM block with that DER parser."""
    if not pem:
        return MalformedRequest(f"it is empty, or larger than {REQUEST_LIMIT} bytes")
    if len(pem) > REQUEST_LIMIT:
        return MalformedRequest(f"it has {len(pem)} bytes, more than {REQUEST_LIMIT}")
    block = _PEM.fullmatch(pem)
    if block is None:
        return MalformedRequest("it is not exactly one PEM block CERTIFICATE REQUEST")
    try:
        return parse(base64.b64decode(b"".join(block[1].split()), validate=True))
    except Exception as error:  # noqa: BLE001 the parser does not document its long list of exceptions:
        # ValueError, TypeError, OverflowError, InvalidVersion, DuplicateExtension, UnsupportedAlgorithm,
        # UnsupportedGeneralNameType, InternalError... Each means that csr cannot parse these bytes.
        return _make_malformed(error)
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise  # a signal or the end of the process
        # PanicException: a failed assertion inside the parser, which remains usable
        return _make_malformed(error)


def _make_malformed(error: BaseException) -> MalformedRequest:
    return MalformedRequest(
        f"it is no PKCS #10 request that can be read: {type(error).__name__}: {quote_untrusted(str(error))}"
    )


def quote_untrusted(text: str, limit: int = _MAX_QUOTED_LENGTH) -> str:
    """Quote an untrusted text, bounded and printable."""
    return ascii(text if len(text) <= limit else text[:limit] + "...")


def _parse_der(der: bytes) -> CertificateRequest:
    csr = x509.load_der_x509_csr(der)
    key, key_problem = inspect_key(csr)
    subject, extensions = csr.subject, csr.extensions  # each access parses them again
    names = _subject_alternative_names(extensions)
    problems = tuple(_find_problems(csr, subject, extensions, len(names)))
    names = names[:MAX_SANS]
    return CertificateRequest(
        common_names=_values(subject, NameOID.COMMON_NAME),
        organizations=_values(subject, NameOID.ORGANIZATION_NAME),
        other_subject_attributes=tuple(_find_other_subject_attributes(subject)),
        dns_names=tuple(name.value for name in names if isinstance(name, x509.DNSName)),
        ips=tuple(format_ip(name.value) for name in names if _is_one_address(name)),
        other_sans=tuple(_describe_name(name) for name in names if not _is_name_or_address(name)),
        key=key,
        key_problem=key_problem,
        is_signature_valid=None if key_problem else csr.is_signature_valid,
        problems=problems,
    )


def _find_problems(
    csr: x509.CertificateSigningRequest, subject: x509.Name, extensions: x509.Extensions, name_count: int
) -> Iterator[str]:
    """Find what a kubelet never requests. Go ignores Microsoft's variant of the extension request."""
    oids = [attribute.oid for attribute in csr.attributes]
    for oid in oids:
        if oid != _EXTENSION_REQUEST:
            yield f"it has an attribute {oid.dotted_string}"
    if oids.count(_EXTENSION_REQUEST) > 1:
        yield "it lists its extensions more than once"
    for extension in extensions:
        if extension.oid != ExtensionOID.SUBJECT_ALTERNATIVE_NAME:
            yield f"it asks for extension {extension.oid.dotted_string}"
    if any(len(list(rdn)) != 1 for rdn in subject.rdns):
        yield "a part of its subject has several values"
    if name_count > MAX_SANS:
        yield f"it asks for {name_count} names and addresses, more than {MAX_SANS}"


def _subject_alternative_names(extensions: x509.Extensions) -> list[x509.GeneralName]:
    for extension in extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            return list(extension.value)
    return []


def _values(subject: x509.Name, oid: x509.ObjectIdentifier) -> tuple[str, ...]:
    return tuple(_text(attribute.value) for attribute in subject.get_attributes_for_oid(oid))


def _find_other_subject_attributes(subject: x509.Name) -> Iterator[str]:
    for attribute in subject:
        if attribute.oid not in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME):
            yield f"{attribute.oid.dotted_string}={quote_untrusted(_text(attribute.value))}"


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else repr(value)


def _is_one_address(name: x509.GeneralName) -> bool:
    # An address of 8 or 32 bytes is a network, which only name constraints may contain.
    return isinstance(name, x509.IPAddress) and isinstance(name.value, IPv4Address | IPv6Address)


def _is_name_or_address(name: x509.GeneralName) -> bool:
    return isinstance(name, x509.DNSName) or _is_one_address(name)


def _describe_name(name: x509.GeneralName) -> str:
    kind = _KINDS.get(type(name), type(name).__name__)
    return f"{kind} {quote_untrusted(str(name.value))}"


_EXTENSION_REQUEST: Final = x509.ObjectIdentifier("1.2.840.113549.1.9.14")
_KINDS: Final[dict[type, str]] = {
    x509.RFC822Name: "e-mail",
    x509.UniformResourceIdentifier: "URI",
    x509.IPAddress: "network",
    x509.DirectoryName: "directory name",
    x509.RegisteredID: "registered id",
    x509.OtherName: "other name",
}


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
