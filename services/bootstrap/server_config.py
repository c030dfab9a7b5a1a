"""Renders nats.conf: listeners, storage, cluster, and the permissions of each user by the service specs."""

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final

import msgspec

from libs.common.contract.services import (
    CONSOLE,
    DURABLES,
    READER_USER,
    SERVICES,
    ServiceSpec,
    expand_cloud,
)
from libs.common.contract.subjects import ALL_SUBJECTS, FLOW, ROOT, STREAM
from services.bootstrap.settings import BootstrapSettings

SYSTEM_USER: Final = "system"  # requests that a server reloads its configuration
_API: Final = "$JS.API"
_CONSUMER: Final = f"{_API}.CONSUMER"
_FORBIDDEN_STREAM_VERBS: Final = (
    *("DELETE", "PURGE", "MSG.DELETE", "MSG.GET", "SNAPSHOT", "RESTORE"),
    *("LEADER.STEPDOWN", "PEER.REMOVE"),
)
_FORBIDDEN_CONSUMER_VERBS: Final = ("PAUSE", "LEADER.STEPDOWN")
_MEMORY_BYTES: Final = 64 * 2**20  # for the consumers of followers; the stream is in the file store
_MAX_CONSUMERS: Final = 128
_WILDCARD_ADDRESSES: Final = ("0.0.0.0", "::")  # noqa: S104 - recognised here, not listened on


class NatsPermissions(msgspec.Struct, frozen=True, kw_only=True):
    """The subjects to which a user may publish, minus the denied ones, and those that it may receive."""

    allow_publish: tuple[str, ...]
    deny_publish: tuple[str, ...] = ()
    allow_subscribe: tuple[str, ...]


def build_service_permissions(wiring: ServiceSpec) -> NatsPermissions:
    """Return the permissions of a service.

    A reply subject needs no permission: the server replies to any subject, also to one of the stream. So a
    service never reads the subjects outside the flow to which it publishes. Otherwise it could let the server
    publish its own messages to the flow.
    """
    own = [durable.name for durable in wiring.durables]
    return NatsPermissions(
        allow_publish=(
            *wiring.publishes,
            f"{_API}.STREAM.INFO.{STREAM}",
            f"{_API}.DIRECT.GET.{STREAM}.{FLOW}.>",
            *_ordered_consumer_subjects(wiring.follows),
            *_durable_subjects(own),
            *(_provisioning_subjects() if wiring.provisions_stream else ()),
        ),
        deny_publish=() if wiring.provisions_stream else _foreign_durable_subjects(own),
        allow_subscribe=_inbox_subjects(wiring.service),
    )


def build_reader_permissions(user: str) -> NatsPermissions:
    """Return the permissions of a read-only user, which publishes nothing.

    The console follows the whole stream. The reader gets single messages of all subjects.
    """
    followed, read = (ALL_SUBJECTS, FLOW) if user == CONSOLE.service else (f"{FLOW}.>", ROOT)
    return NatsPermissions(
        allow_publish=(
            f"{_API}.STREAM.INFO.{STREAM}",
            f"{_API}.DIRECT.GET.{STREAM}.{read}.>",
            *_ordered_consumer_subjects((followed,)),
            *(f"{_CONSUMER}.INFO.{STREAM}.{durable.name}" for durable in DURABLES),  # for pending counts
        ),
        deny_publish=_foreign_durable_subjects([]),
        allow_subscribe=_inbox_subjects(user),
    )


def build_system_permissions() -> NatsPermissions:
    """Return the permissions of the bootstrap: it may only request a reload of the configuration."""
    return NatsPermissions(
        allow_publish=("$SYS.REQ.SERVER.*.RELOAD",), allow_subscribe=_inbox_subjects(SYSTEM_USER)
    )


def list_forbidden_requests() -> tuple[str, ...]:
    """Return the requests that no user may send, not even through a reply subject."""
    return (
        *(f"{_API}.STREAM.{verb}.{STREAM}" for verb in _FORBIDDEN_STREAM_VERBS),
        *(
            f"{_CONSUMER}.{verb}.{STREAM}.{durable.name}"
            for verb in _FORBIDDEN_CONSUMER_VERBS
            for durable in DURABLES
        ),
    )


def _inbox_subjects(user: str) -> tuple[str, ...]:
    return (f"_INBOX_{user}.>",)


def _ordered_consumer_subjects(filters: Iterable[str]) -> tuple[str, ...]:
    """Return the subjects for a follower's own consumer, whose name is random."""
    created = (f"{_CONSUMER}.CREATE.{STREAM}.*.{each}" for each in filters)
    return (*created, f"{_CONSUMER}.MSG.NEXT.{STREAM}.*", f"{_CONSUMER}.DELETE.{STREAM}.*")


def _durable_subjects(durables: Iterable[str]) -> tuple[str, ...]:
    return tuple(
        subject
        for name in durables
        for subject in (
            f"{_CONSUMER}.INFO.{STREAM}.{name}",
            f"{_CONSUMER}.MSG.NEXT.{STREAM}.{name}",
            f"$JS.ACK.{STREAM}.{name}.>",
        )
    )


def _provisioning_subjects() -> tuple[str, ...]:
    return (
        f"{_API}.STREAM.CREATE.{STREAM}",
        f"{_API}.STREAM.UPDATE.{STREAM}",
        *(
            f"{_CONSUMER}.{verb}.{STREAM}.{durable.name}"
            for durable in DURABLES
            for verb in ("INFO", "DELETE")
        ),
        *(f"{_CONSUMER}.CREATE.{STREAM}.{durable.name}.{durable.filter}" for durable in DURABLES),
    )


def _foreign_durable_subjects(own: Iterable[str]) -> tuple[str, ...]:
    """Return the subjects of durables that the permissions for a follower's consumer would include.

    Only the watcher creates and deletes durables, and only its service reads one.
    """
    made = [f"{_CONSUMER}.{verb}.{STREAM}.{d.name}" for d in DURABLES for verb in ("CREATE", "DELETE")]
    read = [f"{_CONSUMER}.MSG.NEXT.{STREAM}.{d.name}" for d in DURABLES if d.name not in own]
    return (*(f"{each}.>" if ".CREATE." in each else each for each in made), *read)


def find_own_host(settings: BootstrapSettings) -> str:
    """Return the host by which processes in the same pod reach the server."""
    is_wildcard = settings.listen_address in _WILDCARD_ADDRESSES
    return "127.0.0.1" if is_wildcard else settings.listen_address


def find_own_address(settings: BootstrapSettings) -> str:
    """Return the address by which clients in the same pod reach the server."""
    return _join_host_port(find_own_host(settings), settings.client_port)


def build_permissions_by_user(cloud_accounts: Iterable[str]) -> dict[str, NatsPermissions]:
    """Return the permissions of every user except the system user."""
    specs = (*SERVICES, *map(expand_cloud, cloud_accounts))
    return {spec.service: build_service_permissions(spec) for spec in specs} | {
        user: build_reader_permissions(user) for user in (CONSOLE.service, READER_USER)
    }


def render_server_config(settings: BootstrapSettings, public_keys: Mapping[str, str]) -> str:
    """Render the configuration as JSON, which nats-server reads like its own syntax.

    `public_keys` has a key for each user, including the system user.
    """
    text = msgspec.json.format(msgspec.json.encode(_build_config(settings, public_keys)), indent=2).decode()
    return f"# Written by `python -m services.bootstrap`, which overwrites changes.\n{text}\n"


def _build_config(settings: BootstrapSettings, public_keys: Mapping[str, str]) -> dict[str, Any]:
    monitor = {"http": _join_host_port(settings.listen_address, settings.monitor_port)}
    return {
        "server_name": settings.server_name,
        "host": settings.listen_address,
        "port": settings.client_port,
        **(monitor if settings.monitor_port else {}),
        "tls": _build_tls(settings.out),
        "jetstream": {
            "store_dir": str(settings.store_dir),
            "max_memory_store": _MEMORY_BYTES,
            "max_file_store": settings.store_bytes,
            "sync_interval": "always",  # acknowledged messages survive a crash
        },
        **({"cluster": _build_cluster(settings)} if settings.replicas > 1 else {}),
        "accounts": {
            STREAM: {
                "jetstream": _build_account_limits(settings),
                "users": [
                    _build_user(public_keys[user], rights)
                    for user, rights in build_permissions_by_user(settings.cloud_accounts).items()
                ],
            },
            "SYS": {
                # JetStream accepts requests here, even replies: forbidden ones go to an unused subject.
                "mappings": dict.fromkeys(list_forbidden_requests(), "unheard"),
                "users": [_build_user(public_keys[SYSTEM_USER], build_system_permissions())],
            },
        },
        "system_account": "SYS",
    }


def _build_account_limits(settings: BootstrapSettings) -> dict[str, int]:
    """Return the limits of all servers together: a stream with three replicas counts three times."""
    return {
        "max_mem": settings.replicas * _MEMORY_BYTES,
        "max_file": settings.replicas * settings.store_bytes,
        "max_streams": 1,
        "max_consumers": _MAX_CONSUMERS,
    }


def _build_cluster(settings: BootstrapSettings) -> dict[str, Any]:
    """Return the cluster; servers authenticate each other by the certificates of the bootstrap."""
    hosts = settings.names.list_routes(settings.replicas)
    return {
        "name": STREAM,
        "listen": _join_host_port(settings.listen_address, settings.route_port),
        "routes": [f"tls://{host}:{settings.route_port}" for host in hosts],
        "tls": _build_tls(settings.out) | {"verify": True},
    }


def _build_tls(files: PurePath) -> dict[str, Any]:
    names = {"cert_file": "tls.crt", "key_file": "tls.key", "ca_file": "ca.crt"}
    return {key: str(files / name) for key, name in names.items()} | {"timeout": 5}


def _build_user(public_key: str, rights: NatsPermissions) -> dict[str, Any]:
    denied = {"deny": rights.deny_publish} if rights.deny_publish else {}
    publish = {"allow": rights.allow_publish, **denied}
    return {
        "nkey": public_key,
        "permissions": {"publish": publish, "subscribe": {"allow": rights.allow_subscribe}},
    }


def _join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
