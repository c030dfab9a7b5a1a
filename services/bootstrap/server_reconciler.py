"""Keeps keys, certificate and files of one server up to date, and lets the server reload changed ones."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from pathlib import Path
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
from services.bootstrap.resource_names import CA, CERTIFICATE, KEY, SEED, ResourceNames
from services.bootstrap.server_config import SYSTEM_USER, NatsServerConfig, render_server_config

log = logging.getLogger(__name__)

CONFIG = "nats.conf"
SYSTEM_SEED = "system.nk"
TRUSTED_CERTIFICATES = (
    "trusted.crt"  # by who has the server reload: until then it shows what an older authority signed
)


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


class InstallationKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that all servers of an installation share."""

    authority: KeyPair
    public_keys: Mapping[str, str]


class ServerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The desired state of one server and its certificate."""

    server: NatsServerConfig
    tls_names: tuple[str, ...]
    certificate_lifetime: timedelta


class WriteResult(msgspec.Struct, frozen=True, kw_only=True):
    """The written files of the server, and whether any of them changed."""

    certificate: KeyPair
    authority: KeyPair
    is_changed: bool


async def ensure_installation_keys(store: KeyStore, names: ResourceNames, now: datetime) -> InstallationKeys:
    """Read the keys and create missing ones. Raises InvalidSecretError, KubeError or OSError."""
    authority = await _ensure_authority(store, names, now)
    keys = {user: await _ensure_public_key(store, names.seed_secret(user)) for user in names.users}
    await store.publish_authority(names.authority, authority.certificate.decode())
    return InstallationKeys(authority=authority, public_keys=keys)


def write_server_files(out: Path, spec: ServerSpec, keys: InstallationKeys, now: datetime) -> WriteResult:
    """Bring the files of one server up to date. Raises InvalidSecretError or OSError."""
    out.mkdir(parents=True, exist_ok=True)
    _add_trusted_authority(out, keys.authority.certificate)
    pair, certificate_change = _ensure_certificate(out, spec, keys.authority, now)
    system = read_file(out / SYSTEM_SEED) or generate_seed()
    config = render_server_config(spec.server, {**keys.public_keys, SYSTEM_USER: public_key_of(system)})
    content = {
        SYSTEM_SEED: system,
        KEY: pair.key,
        CERTIFICATE: pair.certificate,
        CA: keys.authority.certificate,
        CONFIG: config.encode(),
    }
    changed = [name for name, each in content.items() if write_file(out / name, each)]
    if changed:
        fields = {"files": ",".join(changed), "certificate": certificate_change}
        log.info("server files written", extra=fields)
    return WriteResult(certificate=pair, authority=keys.authority, is_changed=bool(changed))


def drop_old_authority(out: Path) -> None:
    """Trust only the current authority, after the server has loaded the new files."""
    write_file(out / TRUSTED_CERTIFICATES, read_file(out / CA) or b"")


async def _ensure_authority(store: KeyStore, names: ResourceNames, now: datetime) -> KeyPair:
    data = await store.get_secret(names.authority)
    if data is None:
        made = make_authority(_generate_key(), name=names.nats, now=now, serial=x509.random_serial_number())
        log.info("certificate authority created", extra={"secret": names.authority})
        data = await store.create_secret(names.authority, {CERTIFICATE: made.certificate, KEY: made.key})
    try:
        pair = KeyPair(certificate=data[CERTIFICATE], key=data[KEY])
        check_key_pair(pair)
    except (KeyError, ValueError) as error:
        raise InvalidSecretError(
            f"{names.authority}: no valid certificate and key of an authority: {error!r}"
        ) from error
    return pair


async def _ensure_public_key(store: KeyStore, name: str) -> str:
    data = await store.get_secret(name)
    if data is None:
        log.info("key created", extra={"secret": name})
        data = await store.create_secret(name, {SEED: generate_seed()})
    try:
        return public_key_of(data[SEED])
    except (KeyError, ValueError) as error:
        raise InvalidSecretError(f"{name}: no key {SEED} with a valid NKey seed: {error!r}") from error


def _ensure_certificate(
    out: Path, spec: ServerSpec, authority: KeyPair, now: datetime
) -> tuple[KeyPair, str]:
    """Return the current certificate or a new one, and the change in words for the log."""
    certificate, key = read_file(out / CERTIFICATE), read_file(out / KEY)
    current = KeyPair(certificate=certificate, key=key) if certificate and key else None
    names, lifetime = spec.tls_names, spec.certificate_lifetime
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
        raise InvalidSecretError(f"{until}, and the clock says {now:%Y-%m-%dT%H:%M:%SZ}: {error}") from error
    return pair, f"renewed: {why}"


def _add_trusted_authority(out: Path, authority: bytes) -> None:
    trusted = read_file(out / TRUSTED_CERTIFICATES) or b""
    if authority not in trusted:
        write_file(out / TRUSTED_CERTIFICATES, authority + trusted)


def _generate_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


class _ReloadAnswer(msgspec.Struct, frozen=True):
    error: ApiError | None = None


@dataclass(eq=False)
class ServerReconciler:
    """Reconciles the keys, the certificate and the configuration of one server."""

    store: KeyStore
    names: ResourceNames
    directory: Path
    spec: ServerSpec
    _: KW_ONLY
    now: Callable[[], datetime]
    interval_seconds: float

    def __post_init__(self) -> None:
        self._problem = "the files of the server have not been written yet"
        # Initially true: an earlier process may have ended between its write and the reload.
        self._needs_reload = True

    def problems(self) -> tuple[str, ...]:
        """Return why keys, certificate or configuration of the server may be out of date."""
        return (self._problem,) if self._problem else ()

    async def run_once(self) -> None:
        """Retry until everything was written once."""
        while True:
            if await self._try(self._update_files):
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def run(self) -> None:
        """Reconcile periodically until cancelled."""
        while True:
            done = await self._try(self._reconcile)
            await asyncio.sleep(self.interval_seconds if done else min(_RETRY_SECONDS, self.interval_seconds))

    async def _reconcile(self) -> None:
        made = await self._update_files()
        self._needs_reload = self._needs_reload or made.is_changed
        if self._needs_reload:
            await _reload_server(self._access())
            drop_old_authority(self.directory)
            self._needs_reload = False
            log.info("server configuration reloaded")

    async def _update_files(self) -> WriteResult:
        kept = await ensure_installation_keys(self.store, self.names, self.now())
        made = write_server_files(self.directory, self.spec, kept, self.now())
        for name, pair in (("server", made.certificate), ("authority", made.authority)):
            metrics.NATS_CERTIFICATE_EXPIRES.labels(name).set(get_expiry(pair).timestamp())
        return made

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

    def _access(self) -> NatsAccess:
        server = self.spec.server
        return NatsAccess(
            servers=(f"tls://{server.own_address}",),
            service=SYSTEM_USER,
            nkey_seed_file=self.directory / SYSTEM_SEED,
            tls_ca_file=self.directory / TRUSTED_CERTIFICATES,
        )


async def _reload_server(access: NatsAccess) -> None:
    """Let the server reload its configuration, by a request of its system account. Raises BusError."""
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
