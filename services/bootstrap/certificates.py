"""Creates the certificate authority of one installation, and the certificates that it issues."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID as Usage
from cryptography.x509.oid import NameOID

AUTHORITY_LIFETIME: Final = timedelta(days=3650)
_CLOCK_SKEW: Final = timedelta(minutes=5)
_KEY_USAGES: Final = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
_RENEWAL_FRACTION: Final = 1 / 3  # renew when this part of the lifetime is left


class KeyPair(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def make_authority(key: ec.EllipticCurvePrivateKey, *, name: str, now: datetime, serial: int) -> KeyPair:
    """Return a self-signed CA of that name."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    made = (
        _builder(subject, subject, key, serial)
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage("digital_signature", "key_cert_sign", "crl_sign"), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(certificate=made.public_bytes(Encoding.PEM), key=_encode_pem(key))


def issue_certificate(
    authority: KeyPair,
    key: ec.EllipticCurvePrivateKey,
    *,
    names: Sequence[str],
    lifetime: timedelta,
    now: datetime,
    serial: int,
) -> KeyPair:
    """Issue a certificate for a server, which is also a client of the other servers of its cluster.

    It expires no later than the authority. Raises ValueError for an invalid authority.
    """
    parent, parent_key = _parse_key_pair(authority)
    ends = min(now + lifetime, parent.not_valid_after_utc)
    subject_key = x509.SubjectKeyIdentifier.from_public_key(parent_key.public_key())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(subject_key)
    made = (
        _builder(x509.Name([]), parent.subject, key, serial)
        .not_valid_before(max(now - _CLOCK_SKEW, parent.not_valid_before_utc))
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([Usage.SERVER_AUTH, Usage.CLIENT_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(_general_name, names))), critical=True)
        .add_extension(issuer, critical=False)
        .sign(parent_key, hashes.SHA256())
    )
    return KeyPair(certificate=made.public_bytes(Encoding.PEM), key=_encode_pem(key))


def explain_renewal(
    current: KeyPair | None, authority: KeyPair, *, names: Sequence[str], lifetime: timedelta, now: datetime
) -> str:
    """Return why a server needs another certificate; "" if it can keep the current one."""
    if current is None:
        return "the server has none yet"
    try:
        certificate, key = _parse_key_pair(current)
        certificate.verify_directly_issued_by(_parse_key_pair(authority)[0])
    except Exception as error:  # noqa: BLE001 - InvalidSignature, ValueError, TypeError, and what a new version of the library adds: all mean one thing
        return f"it is not valid with the present authority ({type(error).__name__})"
    if certificate.public_key() != key.public_key():
        return "its key belongs to another certificate"
    if _read_names(certificate) != set(map(_general_name, names)):
        return "its names differ from the configured ones"
    if certificate.not_valid_after_utc - now > lifetime:
        return "it is valid for longer than --certificate-lifetime"
    # The shorter one: close to the expiry of the authority, a certificate gets less than a full lifetime.
    life = min(lifetime, certificate.not_valid_after_utc - certificate.not_valid_before_utc)
    if certificate.not_valid_after_utc - now < life * _RENEWAL_FRACTION:
        return f"it expires at {certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
    return ""


def get_expiry(pair: KeyPair) -> datetime:
    """Return the expiry time of the certificate. Raises ValueError if it is invalid."""
    return x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc


def check_key_pair(pair: KeyPair) -> None:
    """Validate a certificate and its key. Raises ValueError if they are invalid or do not match."""
    certificate, key = _parse_key_pair(pair)
    if certificate.public_key() != key.public_key():
        raise ValueError("the key belongs to another certificate")


def _parse_key_pair(pair: KeyPair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = load_pem_private_key(pair.key, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not an elliptic curve key")  # noqa: TRY004 - the file is wrong, no argument
    return x509.load_pem_x509_certificate(pair.certificate), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, serial: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(serial)
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _read_names(certificate: x509.Certificate) -> set[x509.GeneralName]:
    return set(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def _key_usage(*used: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in used for usage in _KEY_USAGES})


def _encode_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
