"""Certificate authorities of the testbed, and the certificates that they issue, also for the Talos API."""

from __future__ import annotations

import base64
import ipaddress
import os
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID as Usage
from cryptography.x509.oid import NameOID, ObjectIdentifier

PrivateKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

_TEN_YEARS = timedelta(days=3650)
_ONE_DAY = timedelta(days=1)
_SKEW = timedelta(minutes=1)  # the time of a virtual machine may be set back
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class KeyPair(msgspec.Struct, frozen=True):
    """A certificate with its private key, both PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Write `<name>.crt` and `<name>.key` into the folder, and return both."""
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        write_private(certificate, self.certificate)
        write_private(key, self.key)
        return certificate, key


class CertificateAuthority(msgspec.Struct, frozen=True):
    """A self-signed CA; issued certificates have the same type of key."""

    certificate: x509.Certificate
    key: PrivateKey

    @classmethod
    def make(
        cls, *, common_name: str = "", organization: str = "", key: PrivateKey | None = None
    ) -> CertificateAuthority:
        """Create a CA, valid for ten years; P-256 unless a key is given."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        name = make_name(common_name, [organization] if organization else [])
        now = datetime.now(UTC)
        builder = (
            start_certificate(name, name, key.public_key(), now - _SKEW, now + _TEN_YEARS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(build_key_usage("digital_signature", "key_cert_sign"), critical=True)
            .add_extension(x509.ExtendedKeyUsage([Usage.SERVER_AUTH, Usage.CLIENT_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier(os.urandom(20)), critical=False)
        )
        return cls(builder.sign(key, _digest(key)), key)

    @property
    def pem(self) -> bytes:
        """Return the CA certificate."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def pair(self) -> KeyPair:
        """Return certificate and key of the CA, for a server that signs (the controller manager)."""
        return KeyPair(self.pem, _private_pem(self.key))

    def issue_server(self, names: Sequence[str], *, common_name: str = "") -> KeyPair:
        """Issue a serving certificate for IPs and DNS names, valid for a day."""
        now = datetime.now(UTC)
        sans = x509.SubjectAlternativeName([_general_name(name) for name in names])
        return self._issue(make_name(common_name, []), Usage.SERVER_AUTH, (now - _SKEW, now + _ONE_DAY), sans)

    def issue_client(
        self,
        *,
        common_name: str = "",
        organizations: Sequence[str] = (),
        lifetime: timedelta = _ONE_DAY,
        issued_at: datetime | None = None,
    ) -> KeyPair:
        """Issue a client certificate; `issued_at` in the past makes it expired."""
        name = make_name(common_name, organizations)
        now = datetime.now(UTC)
        validity = (issued_at or now - _SKEW, (issued_at or now) + lifetime)
        return self._issue(name, Usage.CLIENT_AUTH, validity, None)

    def _issue(
        self,
        name: x509.Name,
        usage: ObjectIdentifier,
        validity: tuple[datetime, datetime],
        sans: x509.SubjectAlternativeName | None,
    ) -> KeyPair:
        key = _make_key_like(self.key)
        issuer = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        issued_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer)
        builder = (
            start_certificate(name, self.certificate.subject, key.public_key(), *validity)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(build_key_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(issued_by, critical=False)
        )
        if sans is not None:
            builder = builder.add_extension(sans, critical=False)
        certificate = builder.sign(self.key, _digest(self.key))
        return KeyPair(certificate.public_bytes(Encoding.PEM), _private_pem(key))


def make_service_account_keys() -> KeyPair:
    """Return a key pair for service account tokens; the public key takes the place of a certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return KeyPair(public, _private_pem(key))


def start_certificate(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    """Return a certificate without extensions and signature."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def make_name(common_name: str, organizations: Sequence[str]) -> x509.Name:
    """Return a subject; "" = without a common name."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, one) for one in organizations]
    if common_name:
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
    return x509.Name(attributes)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def build_key_usage(*used: str) -> x509.KeyUsage:
    """Return the extension with only these usages, such as "digital_signature"."""
    return x509.KeyUsage(**{usage: usage in used for usage in _USAGES})


def _make_key_like(key: PrivateKey) -> PrivateKey:
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key(key.curve)


def _digest(key: PrivateKey) -> hashes.SHA256 | None:
    return None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()


def _private_pem(key: PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_server_context(
    certificate: Path, key: Path, *, client_authority: Path | None = None
) -> ssl.SSLContext:
    """Return the TLS context of a server; with an authority, a client may also have a certificate of it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if client_authority is not None:
        context.load_verify_locations(client_authority)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def write_private(path: Path, text: bytes) -> None:
    """Replace the file atomically: a handshake may read it at any time. Only this user can read it."""
    fresh = path.with_suffix(".fresh")
    fresh.touch(mode=0o600)
    fresh.write_bytes(text)
    fresh.replace(path)


class TalosPki:
    """The CA of the Talos API and its certificates, in the formats that Talos writes."""

    def __init__(self, directory: Path, names: Sequence[str], *, writes_ca_key: bool = False) -> None:
        """Write ca.crt, server.crt and server.key into `directory`, for servers with these names.

        `writes_ca_key`: also write ca.key, for a program that issues certificates itself.
        """
        self.directory = directory
        self._names = tuple(names)
        self._writes_ca_key = writes_ca_key
        directory.mkdir(parents=True, exist_ok=True)
        self.rotate()

    def rotate(self) -> None:
        """Replace the CA and the serving certificate; older client certificates become invalid."""
        self.authority = CertificateAuthority.make(
            organization="talos", key=ed25519.Ed25519PrivateKey.generate()
        )
        server = self.authority.issue_server(self._names, common_name="talos-machines")
        if self._writes_ca_key:  # first: a program that notices the new certificate reads the key, too
            write_private(self.directory / "ca.key", self.authority.pair.key)
        write_private(self.directory / "ca.crt", self.authority.pem)
        server.write(self.directory, "server")

    def client(
        self, roles: Sequence[str], *, lifetime: timedelta, issued_at: datetime | None = None
    ) -> KeyPair:
        """Return a client certificate with its roles as organizations; the key has the PEM label of Talos."""
        pair = self.authority.issue_client(
            organizations=sorted(roles), lifetime=lifetime, issued_at=issued_at
        )
        return KeyPair(pair.certificate, pair.key.replace(b" PRIVATE KEY-", b" ED25519 PRIVATE KEY-"))

    def talosconfig(
        self,
        endpoints: Sequence[str],
        *,
        roles: Sequence[str] = ("os:reader",),
        lifetime: timedelta = timedelta(hours=6),
        issued_at: datetime | None = None,
    ) -> str:
        """Return a talosconfig as the Talos ServiceAccount controller writes it into its Secret."""
        client = self.client(roles, lifetime=lifetime, issued_at=issued_at)
        context = {
            "endpoints": list(endpoints),
            "ca": _base64(self.authority.pem),
            "crt": _base64(client.certificate),
            "key": _base64(client.key),
        }
        return msgspec.yaml.encode({"context": "default", "contexts": {"default": context}}).decode()


def _base64(text: bytes) -> str:
    return base64.b64encode(text).decode()
