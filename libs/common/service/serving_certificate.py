"""The TLS certificate of a server: from files, or self-signed in memory."""

import asyncio
import logging
import os
import socket
import ssl
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from libs.common.client_tls import as_path
from libs.common.settings.read_settings import SettingsError

log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 60.0
_LIFETIME: Final = timedelta(days=3650)  # clients cannot verify it; it must only outlive the process


class ServingCertificate:
    """A TLS context for a server; `refresh` loads changed files."""

    def __init__(
        self,
        certificate: Path | None,
        key: Path | None,
        *,
        now: datetime,
        flags: tuple[str, str] = ("--tls-cert-file", "--tls-private-key-file"),
    ) -> None:
        """Load these files, both or none. Raises SettingsError, which names the files by their flags.

        Without files it may fork: call it before threads start.
        """
        self._flags = flags
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._files = (certificate, key) if certificate and key else None
        self._seen: object = None
        if self._files is None:
            with as_path(_made_apart(lambda: _self_signed(socket.gethostname(), now))) as pem:
                self.context.load_cert_chain(pem)
        else:
            self.refresh()

    def refresh(self) -> None:
        """Load changed files. Raises SettingsError; then the loaded certificate stays in use."""
        if self._files is None:
            return
        certificate, key = self._files
        try:
            seen = [(file.stat().st_mtime_ns, file.stat().st_ino) for file in self._files]
            if seen != self._seen:
                # In a context of its own first: after a failure, a context has no certificate to serve.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
                self.context.load_cert_chain(certificate, key)
                self._seen = seen
        except (OSError, ssl.SSLError) as error:
            named = f"{self._flags[0]} {certificate} and {self._flags[1]} {key}"
            raise SettingsError(f"{named} cannot be used: {error}") from error

    async def keep_fresh(self) -> None:
        """Load changed files until cancelled; log those that cannot be used."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                self.refresh()
            except SettingsError as error:
                log.warning("reload of serving certificate failed", extra={"error": str(error)})


def _made_apart(make: Callable[[], bytes]) -> bytes:
    """Return the result of `make` from a forked child, so that the parent never loads its library.

    This saves a sixth of a small service's memory. If the library is loaded already, it calls `make`
    directly.
    """
    if "cryptography" in sys.modules or not hasattr(os, "fork"):
        return make()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, make())  # smaller than the buffer of a pipe
        finally:
            os._exit(0)  # the child must not continue in the parent's code; an empty pipe means failure
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        made = pipe.read()
    os.waitpid(child, 0)
    return made or make()  # after a failure in the child, this raises the error


def _self_signed(host: str, now: datetime) -> bytes:
    from cryptography import x509  # noqa: PLC0415 - 60 ms and 11 MB, see _made_apart
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host[:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host), x509.DNSName("localhost")]), False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)
