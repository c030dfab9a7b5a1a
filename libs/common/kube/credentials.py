"""The bearer token and TLS context of an identity, reloaded when their source changes."""

import asyncio
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec

from libs.common.client_tls import as_path, make_client_context
from libs.common.clocks import utc_now
from libs.common.kube.kube_config import (
    CredentialSource,
    ExecCredential,
    ExecPlugin,
    KubeConfig,
    KubeConfigError,
)

CHECK_SECONDS: Final = 10.0  # between checks of the files; a 401 checks at once
_BEFORE_EXPIRY: Final = timedelta(seconds=30)
_Seen = tuple[tuple[int, int, int] | None, ...]


def tls_context(config: KubeConfig) -> ssl.SSLContext | None:
    """Return the TLS context for the server, None for plain HTTP. Raises KubeConfigError with the field."""
    if config.server.startswith("http://"):
        return None
    authority = config.certificate_authority
    trusted = authority.read() if authority else None
    if authority and not trusted:  # Python would trust the system's authorities instead
        raise KubeConfigError(f"{authority.field} is empty")
    context = make_client_context()
    try:
        if trusted:
            context.load_verify_locations(cadata=trusted)
        else:
            context.load_default_certs()
    except (ssl.SSLError, ValueError) as error:
        field = authority.field if authority else config.source
        raise KubeConfigError(f"{field}: no usable CA certificate: {error}") from error
    if config.insecure_skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if config.client_certificate and config.client_key:
        _load_pair(context, config.client_certificate, config.client_key)
    return context


def _load_pair(context: ssl.SSLContext, certificate: CredentialSource, key: CredentialSource) -> None:
    with as_path(certificate.read().encode()) as certificate_path, as_path(key.read().encode()) as key_path:
        try:
            context.load_cert_chain(certificate_path, key_path, password=lambda: "")
        except (ssl.SSLError, OSError) as error:
            raise KubeConfigError(
                f"{certificate.field} and {key.field}: not a usable pair: {error}"
            ) from error


class Credentials:
    """Token and TLS context of a KubeConfig, for one event loop.

    Files are checked every 10 s and after a 401: kubelet replaces a service account token long before it
    expires. If a replacement cannot be read, the old credentials stay in use and `problem` has the reason.
    An exec plugin runs when its credential is about to expire, and after a 401.
    """

    def __init__(self, config: KubeConfig) -> None:
        """Read the files. Raises KubeConfigError on failure. An exec plugin first runs in `refresh`."""
        self._config = config
        self._checked_at = float("-inf")
        self._seen: _Seen = ()
        self._given: ExecCredential | None = None
        self._running: asyncio.Task[ExecCredential] | None = None
        self._problem = ""
        self.headers: dict[str, str] = {}
        self.tls: ssl.SSLContext | None = None
        self._load()

    @property
    def problem(self) -> str:
        """Why the credentials may be out of date, "" if nothing is known."""
        token = self._config.token
        if not self._problem and token and token.expires_at and utc_now() >= token.expires_at:
            return f"{token.field} has expired: any command of kubectl renews it, then start again"
        return self._problem

    async def refresh(self, clock: float) -> None:
        """Renew what has changed or is about to expire; `clock` is monotonic, in seconds.

        Raises KubeConfigError only if an exec plugin fails and the last credential has expired.
        """
        if clock - self._checked_at >= CHECK_SECONDS:
            self._checked_at = clock
            self._reload_files()
        if self._config.exec_plugin is not None and self._expiring(_BEFORE_EXPIRY):
            try:
                await self._run(self._config.exec_plugin)
            except KubeConfigError as error:
                self._problem = str(error)
                if self._expiring(timedelta()):
                    raise

    async def renew(self) -> bool:
        """Reload after a 401; return whether something changed. Raises KubeConfigError if a plugin fails."""
        if self._config.exec_plugin is None:
            return self._reload_files()
        before = self.headers, self._given
        await self._run(self._config.exec_plugin)
        return (self.headers, self._given) != before

    def _expiring(self, margin: timedelta) -> bool:
        if self._given is None:
            return True
        until = self._given.expiration_timestamp
        return until is not None and utc_now() + margin >= until

    def _reload_files(self) -> bool:
        if self._stat_files() == self._seen:
            return False
        try:
            self._load()
        except KubeConfigError as error:
            self._problem = str(error)
            return False
        return True

    async def _run(self, plugin: ExecPlugin) -> None:
        # All waiting requests share one run; a request that gives up does not cancel it.
        if self._running is None or self._running.done():
            # Imported here: a pod has no plugin and does not load the library that runs them.
            from libs.common.kube.exec_plugins import run_plugin  # noqa: PLC0415

            self._running = asyncio.create_task(run_plugin(plugin))
        given = await asyncio.shield(self._running)
        if given is not self._given:
            self._load(given)

    def _load(self, given: ExecCredential | None = None) -> None:
        seen = self._stat_files()  # before reading: a change in between is noticed at the next check
        given = given or self._given
        config = _apply_exec_credential(self._config, given) if given else self._config
        token = config.token.read() if config.token else ""
        if config.token and (not token or not token.isascii() or any(c.isspace() for c in token)):
            raise KubeConfigError(f"{config.token.field}: empty or not a bearer token")
        tls = tls_context(config)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.tls, self._seen, self._given, self._problem = tls, seen, given, ""

    def _stat_files(self) -> _Seen:
        config = self._config
        materials = (
            config.certificate_authority,
            config.client_certificate,
            config.client_key,
            config.token,
        )
        return tuple(_stat(m.file) for m in materials if m is not None and m.file is not None)


def _apply_exec_credential(config: KubeConfig, given: ExecCredential) -> KubeConfig:
    """Return the configuration with the plugin's credential."""
    name = config.exec_plugin.field if config.exec_plugin else "exec"
    if given.client_certificate_data:
        config = msgspec.structs.replace(
            config,
            client_certificate=CredentialSource(
                field=f"{name}, certificate", text=given.client_certificate_data
            ),
            client_key=CredentialSource(field=f"{name}, key", text=given.client_key_data),
        )
    if given.token:
        config = msgspec.structs.replace(
            config, token=CredentialSource(field=f"{name}, token", text=given.token)
        )
    return config


def _stat(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino)
