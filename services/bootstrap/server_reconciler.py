"""Keeps keys, certificate and files of one server up to date, and lets the server reload changed ones."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from libs.common.bus.nats.connection import Connection
from libs.common.bus.nats.jetstream import ApiError
from libs.common.bus.nats.nats_access import NatsAccess, generate_seed, public_key_of
from libs.common.bus.protocol import BusError
from libs.common.json_errors import JSON_ERRORS
from libs.common.kube.errors import KubeError
from libs.common.observability import metrics
from services.bootstrap.certificates import (
    KeyPair,
    check_key_pair,
    explain_renewal,
    get_expiry,
    issue_certificate,
    make_authority,
)
from services.bootstrap.key_stores import read_file, write_file
from services.bootstrap.resource_names import CA, CERTIFICATE, KEY, SEED
from services.bootstrap.server_config import (
    SYSTEM_USER,
    find_own_address,
    find_own_host,
    render_server_config,
)
from services.bootstrap.settings import BootstrapSettings

log = logging.getLogger(__name__)

CONFIG = "nats.conf"
SYSTEM_SEED = "system.nk"
# Trusted by the reload request: until the reload, the server shows a certificate of an older authority.
TRUSTED_CERTIFICATES = "trusted.crt"

_RETRY_SECONDS: Final = 2.0
_CONNECT_SECONDS: Final = 5.0
_RELOAD_SECONDS: Final = 10.0


class KeyStore(Protocol):
    """Stores the keys and the authority."""

    async def get_secret(self, name: str, /) -> Mapping[str, bytes] | None: ...
    async def create_secret(self, name: str, data: Mapping[str, bytes], /) -> Mapping[str, bytes]: ...
    async def publish_authority(self, name: str, certificate: str, /) -> None: ...
    async def close(self) -> None: ...


class InvalidSecretError(Exception):
    """A stored Secret is invalid; an operator must delete it."""


def _generate_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


class _ReloadAnswer(msgspec.Struct, frozen=True):
    error: ApiError | None = None


@dataclass(eq=False)
class ServerReconciler:
    """Reconciles the keys, the certificate and the configuration of one server."""

    store: KeyStore
    settings: BootstrapSettings  # `out` is absolute
    _: KW_ONLY
    now: Callable[[], datetime]

    def __post_init__(self) -> None:
        self._names, self._out = self.settings.names, self.settings.out
        self._problem = "the files of the server have not been written yet"
        # Initially true: an earlier process may have ended between its write and the reload.
        self._needs_reload = True

    def problems(self) -> tuple[str, ...]:
        """Return why keys, certificate or configuration of the server may be out of date."""
        return (self._problem,) if self._problem else ()

    async def run_once(self) -> None:
        """Retry until everything was written once."""
        while True:
            if await self._try(self.update_files):
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def run(self) -> None:
        """Reconcile periodically until cancelled."""
        interval_seconds = self.settings.reconcile_interval_seconds
        while True:
            done = await self._try(self._reconcile)
            await asyncio.sleep(interval_seconds if done else min(_RETRY_SECONDS, interval_seconds))

    async def update_files(self) -> None:
        """Create missing keys, and bring the files of the server up to date.

        Raises InvalidSecretError, KubeError or OSError.
        """
        authority = await self._ensure_authority()
        keys = {user: await self._ensure_public_key(user) for user in self._names.users}
        await self.store.publish_authority(self._names.authority, authority.certificate.decode())
        self._out.mkdir(parents=True, exist_ok=True)
        self._trust(authority)
        pair, certificate_change = self._ensure_certificate(authority)
        system = read_file(self._out / SYSTEM_SEED) or generate_seed()
        content = {
            SYSTEM_SEED: system,
            KEY: pair.key,
            CERTIFICATE: pair.certificate,
            CA: authority.certificate,
            CONFIG: render_server_config(self.settings, keys | {SYSTEM_USER: public_key_of(system)}).encode(),
        }
        changed = [name for name, each in content.items() if write_file(self._out / name, each)]
        if changed:
            self._needs_reload = True
            fields = {"files": ",".join(changed), "certificate": certificate_change}
            log.info("server files written", extra=fields)
        for name, of_name in (("server", pair), ("authority", authority)):
            metrics.NATS_CERTIFICATE_EXPIRES.labels(name).set(get_expiry(of_name).timestamp())

    async def _reconcile(self) -> None:
        await self.update_files()
        if self._needs_reload:
            await self._reload_server()
            # Trust only the current authority, now that the server has loaded the new files.
            write_file(self._out / TRUSTED_CERTIFICATES, read_file(self._out / CA) or b"")
            self._needs_reload = False
            log.info("server configuration reloaded")

    async def _ensure_authority(self) -> KeyPair:
        name = self._names.authority
        data = await self.store.get_secret(name)
        if data is None:
            serial = x509.random_serial_number()
            made = make_authority(_generate_key(), name=self._names.nats, now=self.now(), serial=serial)
            log.info("certificate authority created", extra={"secret": name})
            data = await self.store.create_secret(name, {CERTIFICATE: made.certificate, KEY: made.key})
        try:
            pair = KeyPair(certificate=data[CERTIFICATE], key=data[KEY])
            check_key_pair(pair)
        except (KeyError, ValueError) as error:
            raise InvalidSecretError(
                f"{name}: no valid certificate and key of an authority: {error!r}"
            ) from error
        return pair

    async def _ensure_public_key(self, user: str) -> str:
        name = self._names.seed_secret(user)
        data = await self.store.get_secret(name)
        if data is None:
            log.info("key created", extra={"secret": name})
            data = await self.store.create_secret(name, {SEED: generate_seed()})
        try:
            return public_key_of(data[SEED])
        except (KeyError, ValueError) as error:
            raise InvalidSecretError(f"{name}: no key {SEED} with a valid NKey seed: {error!r}") from error

    def _ensure_certificate(self, authority: KeyPair) -> tuple[KeyPair, str]:
        """Return the current certificate or a new one, and the change in words for the log."""
        now, lifetime = self.now(), timedelta(seconds=self.settings.certificate_seconds)
        certificate, key = read_file(self._out / CERTIFICATE), read_file(self._out / KEY)
        current = KeyPair(certificate=certificate, key=key) if certificate and key else None
        hosts = (*self._names.list_hosts(), find_own_host(self.settings), *self.settings.tls_names)
        names = tuple(dict.fromkeys(hosts))
        why = explain_renewal(current, authority, names=names, lifetime=lifetime, now=now)
        if current is not None and not why:
            return current, "kept"
        serial = x509.random_serial_number()
        try:
            pair = issue_certificate(
                authority, _generate_key(), names=names, lifetime=lifetime, now=now, serial=serial
            )
        except ValueError as error:  # the authority has expired, or was created with a clock years ahead
            until = f"the authority is valid until {get_expiry(authority):%Y-%m-%dT%H:%M:%SZ}"
            clock = f"the clock says {now:%Y-%m-%dT%H:%M:%SZ}"
            raise InvalidSecretError(f"{until}, and {clock}: {error}") from error
        return pair, f"renewed: {why}"

    def _trust(self, authority: KeyPair) -> None:
        trusted = read_file(self._out / TRUSTED_CERTIFICATES) or b""
        if authority.certificate not in trusted:
            write_file(self._out / TRUSTED_CERTIFICATES, authority.certificate + trusted)

    async def _try(self, attempt: Callable[[], Awaitable[object]]) -> bool:
        """Return whether the attempt succeeded; the caller retries after a failure."""
        problem = ""
        try:
            await attempt()
        except (KubeError, BusError, OSError, InvalidSecretError) as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.warning("reconcile failed, will retry", extra={"reason": problem})
        self._problem = problem
        return not problem

    async def _reload_server(self) -> None:
        """Let the server reload its configuration, by a request of its system account. Raises BusError."""
        access = NatsAccess(
            servers=(f"tls://{find_own_address(self.settings)}",),
            service=SYSTEM_USER,
            nkey_seed_file=self._out / SYSTEM_SEED,
            tls_ca_file=self._out / TRUSTED_CERTIFICATES,
        )
        connection = await Connection.open(
            access, access.servers[0], seconds=_CONNECT_SECONDS, on_violation=lambda text: None
        )
        try:
            subject = f"$SYS.REQ.SERVER.{connection.server_id}.RELOAD"
            answer = await connection.request(subject, seconds=_RELOAD_SECONDS)
        finally:
            await connection.abort("done")
        try:
            error = msgspec.json.decode(answer.data, type=_ReloadAnswer).error
        except JSON_ERRORS as broken:
            raise BusError(f"{subject}: not an answer of a server: {broken}") from broken
        if error is not None:
            raise BusError(f"{access}: configuration not reloaded: {error.description}")
