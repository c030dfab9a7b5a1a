"""Our identity on the wire: bearer token and TLS context, made anew when their files change."""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from libs.common.kube_config import KubeConfig, KubeConfigError, Material

CHECK_SECONDS: Final = 10.0  # between looks at the files; a 401 looks at once

_Fingerprint = tuple[tuple[int, int, int] | None, ...]


class Credentials:
    """Token and TLS context of a KubeConfig.

    Files are looked at no more often than every 10 s, and at once after a 401: kubelet replaces a service
    account token long before it expires. What cannot be read during a replacement leaves the old in use;
    `problem` says so.
    """

    def __init__(self, config: KubeConfig) -> None:
        """Raises KubeConfigError if something cannot be read."""
        self._config = config
        self._materials = [
            m
            for m in (
                config.certificate_authority,
                config.client_certificate,
                config.client_key,
                config.token,
            )
            if m is not None
        ]
        self._looked_at = float("-inf")
        self._fingerprint: _Fingerprint = ()
        self.problem = ""
        self.headers: dict[str, str] = {}
        self.tls: ssl.SSLContext | None = None
        self._load()

    def refresh(self, now: float) -> None:
        """Read what has changed, if it is time to look; `now` is monotonic, in seconds."""
        if now - self._looked_at >= CHECK_SECONDS:
            self._looked_at = now
            self.reload()

    def reload(self) -> bool:
        """Read what has changed; whether there was anything and it could be used."""
        if self._look() == self._fingerprint:
            return False
        try:
            self._load()
        except KubeConfigError as error:
            self.problem = str(error)
            return False
        return True

    def _load(self) -> None:
        seen = self._look()  # before reading: a change in between is then noticed at the next look
        token = self._config.token.read() if self._config.token else ""
        if not token.isascii() or any(c.isspace() for c in token):
            raise KubeConfigError(
                f"{self._config.token.field if self._config.token else ''}: is no bearer token"
            )
        tls = tls_context(self._config)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.tls, self._fingerprint, self.problem = tls, seen, ""

    def _look(self) -> _Fingerprint:
        return tuple(_stat(material.file) for material in self._materials if material.file is not None)


def tls_context(config: KubeConfig) -> ssl.SSLContext | None:
    """The TLS context for this server, None for plain HTTP. Raises KubeConfigError naming the bad field."""
    if config.server.startswith("http://"):
        return None
    authority = config.certificate_authority
    try:
        context = ssl.create_default_context(cadata=authority.read() if authority else None)
    except (ssl.SSLError, ValueError) as error:
        field = authority.field if authority else config.source
        raise KubeConfigError(f"{field}: holds no usable CA certificate: {error}") from error
    # Cluster authorities are often made without the extensions that Python 3.13 began to insist on.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if config.insecure_skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.client_certificate and config.client_key:
        _load_pair(context, config.client_certificate, config.client_key)
    return context


def _load_pair(context: ssl.SSLContext, certificate: Material, key: Material) -> None:
    # The ssl module loads a pair from paths only; a key that came as data does not touch the disk.
    with _as_path(certificate.read()) as certificate_path, _as_path(key.read()) as key_path:
        try:
            context.load_cert_chain(certificate_path, key_path, password=lambda: "")
        except (ssl.SSLError, OSError) as error:
            raise KubeConfigError(
                f"{certificate.field} and {key.field}: are no usable pair: {error}"
            ) from error


@contextmanager
def _as_path(text: str) -> Iterator[str]:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("kube-credentials")
        try:
            os.write(descriptor, text.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:  # macOS: readable by us alone, and gone at once
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            yield file.name


def _stat(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)
