"""Keys, authority, certificate, configuration: gathered or made, and written where the server reads them."""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from libs.common.nats_bus.keys import new_seed, public_key_of
from services.bootstrap.certificates import Pair, check, expires, issue, make_authority, why_anew
from services.bootstrap.files_api import read_file, write_file
from services.bootstrap.names import CA, CERTIFICATE, KEY, KEY_USERS, SEED, Names
from services.bootstrap.nats_rights import SYSTEM
from services.bootstrap.server_config import Server, server_config

log = logging.getLogger(__name__)

CONFIG = "nats.conf"
SYSTEM_SEED = "system.nk"
TRUSTED = "trusted.crt"  # by who has the server reload: until then it shows what an older authority signed


class Store(Protocol):
    """Where keys and the authority are kept."""

    async def secret(self, name: str, /) -> Mapping[str, bytes] | None: ...
    async def create_secret(self, name: str, data: Mapping[str, bytes], /) -> Mapping[str, bytes]: ...
    async def publish_authority(self, name: str, certificate: str, /) -> None: ...
    async def close(self) -> None: ...


class Unusable(Exception):
    """What is kept is not what it must be; somebody has to delete it."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What all servers of an installation share."""

    authority: Pair
    public_keys: Mapping[str, str]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """One server and its certificate, as they are to be."""

    server: Server
    tls_names: tuple[str, ...]
    certificate_lifetime: timedelta


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What the server has now, and whether anything of it is new."""

    certificate: Pair
    authority: Pair
    changed: bool


async def gather(store: Store, names: Names, now: datetime) -> Kept:
    """Read what is kept, and make what is not. Raises Unusable, KubeError or OSError."""
    authority = await _authority(store, names, now)
    keys = {user: await _public_key(store, names.seed_of(user)) for user in KEY_USERS}
    await store.publish_authority(names.authority, authority.certificate.decode())
    return Kept(authority=authority, public_keys=keys)


def write(out: Path, wanted: Wanted, kept: Kept, now: datetime) -> Made:
    """Bring the files of one server up to date. Raises Unusable or OSError."""
    out.mkdir(parents=True, exist_ok=True)
    _trust(out, kept.authority.certificate)
    pair, anew = _certificate(out, wanted, kept.authority, now)
    system = read_file(out / SYSTEM_SEED) or new_seed()
    config = server_config(wanted.server, {**kept.public_keys, SYSTEM: public_key_of(system)})
    content = {
        SYSTEM_SEED: system,
        KEY: pair.key,
        CERTIFICATE: pair.certificate,
        CA: kept.authority.certificate,
        CONFIG: config.encode(),
    }
    changed = [name for name, each in content.items() if write_file(out / name, each)]
    if changed:
        log.info("files of the server were written", extra={"files": ",".join(changed), "certificate": anew})
    return Made(certificate=pair, authority=kept.authority, changed=bool(changed))


def reloaded(out: Path) -> None:
    """The server obeys what was written: an older authority need not be trusted any more."""
    write_file(out / TRUSTED, read_file(out / CA) or b"")


async def _authority(store: Store, names: Names, now: datetime) -> Pair:
    held = await store.secret(names.authority)
    if held is None:
        made = make_authority(_key(), name=names.nats, now=now, serial=x509.random_serial_number())
        log.info("a new authority was made", extra={"secret": names.authority})
        held = await store.create_secret(names.authority, {CERTIFICATE: made.certificate, KEY: made.key})
    try:
        pair = Pair(certificate=held[CERTIFICATE], key=held[KEY])
        check(pair)
    except (KeyError, ValueError) as error:
        raise Unusable(f"{names.authority}: no certificate and key of an authority: {error!r}") from error
    return pair


async def _public_key(store: Store, name: str) -> str:
    held = await store.secret(name)
    if held is None:
        log.info("a new key was made", extra={"secret": name})
        held = await store.create_secret(name, {SEED: new_seed()})
    try:
        return public_key_of(held[SEED])
    except (KeyError, ValueError) as error:
        raise Unusable(f"{name}: no key {SEED} with an NKey seed: {error!r}") from error


def _certificate(out: Path, wanted: Wanted, authority: Pair, now: datetime) -> tuple[Pair, str]:
    """The certificate that the server has, or a new one and why."""
    certificate, key = read_file(out / CERTIFICATE), read_file(out / KEY)
    held = Pair(certificate=certificate, key=key) if certificate and key else None
    names, lifetime = wanted.tls_names, wanted.certificate_lifetime
    why = why_anew(held, authority, names=names, lifetime=lifetime, now=now)
    if held is not None and not why:
        return held, "kept"
    serial = x509.random_serial_number()
    try:
        pair = issue(authority, _key(), names=names, lifetime=lifetime, now=now, serial=serial)
    except ValueError as error:  # no time is left, or the clock was years ahead when the authority was made
        until = f"the authority is good until {expires(authority):%Y-%m-%dT%H:%M:%SZ}"
        raise Unusable(f"{until}, and it is {now:%Y-%m-%dT%H:%M:%SZ} here: {error}") from error
    return pair, f"anew: {why}"


def _trust(out: Path, authority: bytes) -> None:
    trusted = read_file(out / TRUSTED) or b""
    if authority not in trusted:
        write_file(out / TRUSTED, authority + trusted)


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())
