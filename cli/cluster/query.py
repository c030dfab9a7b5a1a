"""The installation that a command reads, and how it reaches NATS. Pure."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from libs.common.bus.nats.nats_access import NatsAccess
from libs.common.contract.services import READER_USER
from libs.common.settings.command_line import parse_list


class ClusterQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The installation that a command reads, with addresses and credentials; "" = not given."""

    kubeconfig: Path | None = None
    context: str = ""
    namespace: str = "kube-system"  # of the chart
    release: str = ""  # of the chart; "" = any
    lease_name: str = ""  # "" = that of the running watcher; the same for the namespace
    lease_namespace: str = ""
    nats_servers: tuple[str, ...] = ()  # (): use NATS_URL, else the watcher's pod
    nats_nkey_file: Path | None = None
    nats_ca_file: Path | None = None
    talosconfig: Path | None = None
    talos_endpoints: str = ""


class ObjectQuery(ClusterQuery, frozen=True, kw_only=True):
    """The object to explain."""

    name: str
    without_talos: bool = False


def resolve_nats_access(query: ClusterQuery, environment: Mapping[str, str]) -> NatsAccess | None:
    """Return address and credentials of NATS, as configured in the watcher's pod; None without an address."""
    servers = query.nats_servers or parse_list(environment.get("NATS_URL", ""))
    if not servers:
        return None
    return NatsAccess(
        servers=servers,
        service=READER_USER,  # this key may receive only on the inbox of this user
        nkey_seed_file=query.nats_nkey_file or _path(environment.get("NATS_NKEY_FILE")),
        tls_ca_file=query.nats_ca_file or _path(environment.get("NATS_CA_FILE")),
    )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
