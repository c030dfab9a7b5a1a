"""Loads Talos credentials from a file, and again whenever another program changes it."""

import hashlib
import os
import ssl
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from libs.common.client_tls import as_path, make_client_context
from libs.talos.talosconfig import (
    CredentialsError,
    Endpoint,
    TalosConfig,
    parse_talosconfig,
    read_client_certificate,
)

MAX_FILE_BYTES: Final = 1 << 20


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Everything needed to query Talos, from one reading of one file."""

    cluster_name: str  # "" if the file names no cluster
    endpoints: tuple[Endpoint, ...]
    tls: ssl.SSLContext
    roles: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    source: Path
    written_at: datetime
    digest: str  # hash of the file and the endpoints: changes with the credentials

    def problem(self, now: datetime) -> str:
        """Return why the credentials are not valid at that time, and what to check; "" if they are.

        `now` and `written_at` are by the same clock.
        """
        if now < self.not_before:
            ahead = _format_duration(self.not_before - now)
            return (
                f"our client certificate is valid only in {ahead} (from {self.not_before:%FT%TZ}): "
                "is the clock of this host behind?"
            )
        if now <= self.not_after:
            return ""
        ago = _format_duration(now - self.not_after)
        expired = f"our client certificate expired {ago} ago ({self.not_after:%FT%TZ})"
        if self.written_at > self.not_after:
            return f"{expired}, before the file was written: is the clock of this host ahead?"
        return f"{expired} and was not renewed: see the status of the talos.dev ServiceAccount"


@dataclass(eq=False)
class CredentialStore:
    """The current credentials of the first existing file of `paths`.

    If the file becomes unreadable, the loaded credentials stay in use until they expire, and `problem` has
    the reason.
    """

    paths: Sequence[Path]
    _: KW_ONLY
    endpoints: str = ""
    recheck_seconds: float = 5.0

    def __post_init__(self) -> None:
        self._loaded: Credentials | None = None
        self._version: tuple[str, int, int, int, int] | None = None
        self._checked_at: datetime | None = None
        self.problem = ""

    def current(self, now: datetime) -> Credentials:
        """Return the credentials; check the file every `recheck_seconds`. Raises CredentialsError."""
        if self._loaded is not None and self._checked_at is not None:
            age = (now - self._checked_at).total_seconds()
            if 0 <= age < self.recheck_seconds:  # check at once if the clock was set back
                return self._loaded
        return self._refresh(now, always_read=False)

    def reload(self, now: datetime) -> Credentials:
        """Read the file even if it looks unchanged, because Talos rejected the credentials."""
        return self._refresh(now, always_read=True)

    def _refresh(self, now: datetime, *, always_read: bool) -> Credentials:
        self._checked_at = now
        try:
            path, found, resolved = self._locate()
            # A replaced file differs, without reading it: an update of a Secret swaps a symlink.
            version = (resolved, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
            if self._loaded is None or always_read or version != self._version:
                self._loaded = self._read(path, found)
                self._version = version
        except CredentialsError as error:
            self.problem = str(error)
            if self._loaded is None or now > self._loaded.not_after:
                raise
            return self._loaded
        problem = self._loaded.problem(now)
        self.problem = f"{self._loaded.source}: {problem}" if problem else ""
        return self._loaded

    def _locate(self) -> tuple[Path, os.stat_result, str]:
        for path in self.paths:
            try:
                return path, path.stat(), str(path.resolve())
            except FileNotFoundError:
                continue
            except OSError as error:
                raise CredentialsError(f"{path}: {error.strerror or error}") from error
        tried = ", ".join(str(path) for path in self.paths)
        raise CredentialsError(f"no talosconfig: none of these files exists: {tried}")

    def _read(self, path: Path, found: os.stat_result) -> Credentials:
        if found.st_size > MAX_FILE_BYTES:
            raise CredentialsError(f"{path}: {found.st_size} bytes are too many for a talosconfig")
        try:
            text = path.read_bytes()
        except OSError as error:
            raise CredentialsError(f"{path}: {error.strerror or error}") from error
        digest = hashlib.sha256(text + b"\0" + self.endpoints.encode()).hexdigest()
        if self._loaded is not None and self._loaded.digest == digest:
            return self._loaded
        written_at = datetime.fromtimestamp(found.st_mtime_ns / 1e9, UTC)
        return load_credentials(text, path, endpoints=self.endpoints, written_at=written_at, digest=digest)


def load_credentials(
    text: bytes, source: Path, *, endpoints: str, written_at: datetime, digest: str
) -> Credentials:
    """Load credentials from the text of a talosconfig. Raises CredentialsError."""
    config = parse_talosconfig(text, source=str(source), endpoints=endpoints)
    where = f"{source}: context {config.context!r}"
    client, roles = read_client_certificate(config.certificate, config.key, where=where)
    return Credentials(
        cluster_name=config.cluster,
        endpoints=config.endpoints,
        tls=_build_tls_context(config, where),
        roles=roles,
        not_before=client.not_valid_before_utc,
        not_after=client.not_valid_after_utc,
        source=source,
        written_at=written_at,
        digest=digest,
    )


def _build_tls_context(config: TalosConfig, where: str) -> ssl.SSLContext:
    context = make_client_context()
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(cadata=config.ca.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
        raise CredentialsError(f"{where}: field ca: the certificate is not readable: {error}") from error
    try:
        with as_path(config.key + b"\n" + config.certificate) as name:
            context.load_cert_chain(name)
    except (ssl.SSLError, OSError) as error:
        raise CredentialsError(f"{where}: fields crt and key: OpenSSL rejects them: {error}") from error
    return context


def _format_duration(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
