"""Parses and validates the client certificate of a talosconfig: key, validity, local clock."""

from datetime import datetime, timedelta
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from libs.talos.talosconfig import CredentialsError

# Talos labels its PKCS#8 keys in a way that OpenSSL does not know.
_TALOS_KEY_LABEL: Final = b"ED25519 PRIVATE KEY-----"
_PKCS8_KEY_LABEL: Final = b"PRIVATE KEY-----"


class ClientCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed client certificate, and the PEM texts in the form that OpenSSL reads."""

    not_before: datetime
    not_after: datetime
    roles: tuple[str, ...]  # "os:reader" ...
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"ClientCertificate(until {self.not_after})"  # without the key


def read_client_certificate(certificate: bytes, key: bytes, *, where: str) -> ClientCertificate:
    """Parse a certificate and its key; `where` is file and context for errors. Raises CredentialsError."""
    key = key.replace(_TALOS_KEY_LABEL, _PKCS8_KEY_LABEL)
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        public = parsed.public_key()
        roles = tuple(str(a.value) for a in parsed.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME))
    except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm) as error:
        raise CredentialsError(f"{where}: field crt: the certificate is not readable: {error}") from error
    try:
        private = load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CredentialsError(f"{where}: field key: the private key is not readable: {error}") from error
    if private.public_key() != public:
        raise CredentialsError(f"{where}: field key: the key does not match the certificate in field crt")
    return ClientCertificate(
        not_before=parsed.not_valid_before_utc,
        not_after=parsed.not_valid_after_utc,
        roles=roles,
        certificate=certificate,
        key=key,
    )


def describe_validity_problem(
    *, not_before: datetime, not_after: datetime, written_at: datetime, now: datetime
) -> str:
    """Return a problem with the validity by this clock, and what to check; "" without one.

    `written_at` is the file's modification time, by the same clock as `now`.
    """
    if now < not_before:
        ahead = _duration(not_before - now)
        return (
            f"our client certificate is valid only in {ahead} (from {not_before:%FT%TZ}): "
            "is the clock of this host behind?"
        )
    if now <= not_after:
        return ""
    expired = f"our client certificate expired {_duration(now - not_after)} ago ({not_after:%FT%TZ})"
    if written_at > not_after:
        return f"{expired}, before the file was written: is the clock of this host ahead?"
    return f"{expired} and was not renewed: see the status of the talos.dev ServiceAccount"


def _duration(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
