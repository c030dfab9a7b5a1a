"""The text of nats.conf: how a server listens, what it stores, and who may do what there."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

import msgspec

from libs.common.subjects import STREAM
from libs.common.wiring import READER, SERVICES
from services.bootstrap.nats_rights import (
    SYSTEM,
    NatsRights,
    nobodys_requests,
    reader_rights,
    service_rights,
    system_rights,
)

_MEMORY_BYTES: Final = 64 * 2**20  # followers' consumers; the stream itself is on the file store
_MOST_CONSUMERS: Final = 128
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - recognised here, not listened on


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One server as it is to run."""

    name: str
    listen_address: str
    client_port: int
    route_port: int
    monitor_port: int  # 0 = none
    routes: tuple[str, ...]  # hosts of all servers of its cluster; none if it is alone
    files: PurePath  # where its certificate and the CA's are
    store_dir: PurePath
    store_bytes: int

    @property
    def own_host(self) -> str:
        """Where who runs beside it finds it."""
        return "127.0.0.1" if self.listen_address in _EVERYWHERE else self.listen_address

    @property
    def own_address(self) -> str:
        """The same, with the port for clients."""
        return _address(self.own_host, self.client_port)


def rights_by_user() -> dict[str, NatsRights]:
    """Every identity that a server knows, but that of the system."""
    return {wiring.service: service_rights(wiring) for wiring in SERVICES} | {READER: reader_rights()}


def server_config(server: Server, public_keys: Mapping[str, str]) -> str:
    """The configuration; `public_keys` has one for each of `rights_by_user`, and for `system`."""
    parts = [
        "# Made by `python -m services.bootstrap`; changed here, it is made anew.",
        f"server_name: {_text(server.name)}",
        *_listening(server),
        *_encrypting(server.files, more="timeout: 5"),
        "jetstream {",
        f"  store_dir: {_text(server.store_dir)}",
        f"  max_memory_store: {_MEMORY_BYTES}",
        f"  max_file_store: {server.store_bytes}",
        "  sync_interval: always",  # what was acknowledged survives a crash
        "}",
        *(_clustered(server) if server.routes else []),
        "accounts {",
        f"  {STREAM} {{",
        *_account_limits(server),
        *_users({user: (public_keys[user], rights) for user, rights in rights_by_user().items()}),
        "  }",
        "  SYS {",
        *_unheard(),
        *_users({SYSTEM: (public_keys[SYSTEM], system_rights())}),
        "  }",
        "}",
        "system_account: SYS",
    ]
    return "\n".join(parts) + "\n"


def _unheard() -> list[str]:
    """JetStream takes requests in this account, and so those that an answer to such a subject is."""
    nowhere = _text("unheard")
    return [
        "    mappings: {",
        *(f"      {_text(subject)}: {nowhere}" for subject in nobodys_requests()),
        "    }",
    ]


def _account_limits(server: Server) -> list[str]:
    """All servers together: a stream that lies on three of them counts three times."""
    servers = max(1, len(server.routes))
    return [
        f"    jetstream: {{ max_mem: {servers * _MEMORY_BYTES}, max_file: {servers * server.store_bytes},",
        f"                  max_streams: 1, max_consumers: {_MOST_CONSUMERS} }}",
    ]


def _listening(server: Server) -> list[str]:
    listening = [f"host: {_text(server.listen_address)}", f"port: {server.client_port}"]
    if server.monitor_port:
        listening.append(f"http: {_text(_address(server.listen_address, server.monitor_port))}")
    return listening


def _clustered(server: Server) -> list[str]:
    """Servers prove to one another who they are by the certificates that only the bootstrap gives."""
    return [
        "cluster {",
        f"  name: {STREAM}",
        f"  listen: {_text(_address(server.listen_address, server.route_port))}",
        "  routes: [",
        *(f"    {_text(f'tls://{host}:{server.route_port}')}" for host in server.routes),
        "  ]",
        *(f"  {line}" for line in _encrypting(server.files, more="verify: true, timeout: 5")),
        "}",
    ]


def _encrypting(files: PurePath, *, more: str) -> list[str]:
    return [
        "tls {",
        f"  cert_file: {_text(files / 'tls.crt')}, key_file: {_text(files / 'tls.key')}",
        f"  ca_file: {_text(files / 'ca.crt')}, {more}",
        "}",
    ]


def _users(users: Mapping[str, tuple[str, NatsRights]]) -> list[str]:
    lines = ["    users: ["]
    for user, (public_key, rights) in users.items():
        lines += [
            f"      # {user}",
            f"      {{ nkey: {public_key}, permissions: {{",
            *_permission("publish", rights.publish, rights.deny),
            *_permission("subscribe", rights.subscribe, ()),
            "      } }",
        ]
    return [*lines, "    ]"]


def _permission(name: str, allow: tuple[str, ...], deny: tuple[str, ...]) -> list[str]:
    lines = [f"        {name}: {{", "          allow: [", *_subjects(allow), "          ]"]
    if deny:
        lines += ["          deny: [", *_subjects(deny), "          ]"]
    return [*lines, "        }"]


def _subjects(subjects: tuple[str, ...]) -> list[str]:
    return [f"            {_text(subject)}" for subject in subjects]


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _text(value: object) -> str:
    """As JSON has it, which nats-server reads: without quotes a `$` begins a variable, a `#` a comment."""
    return msgspec.json.encode(str(value)).decode()
