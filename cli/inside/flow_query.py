"""The objects that a flow query reads, and its credentials and addresses."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from cli.inside.flow_snapshot import FlowObject
from libs.common.bus.nats.nats_access import NatsAccess
from libs.common.contract.services import READER_USER
from libs.common.settings.command_line import parse_list


class FlowQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The objects that a command reads, with its credentials and addresses."""

    objects: tuple[FlowObject, ...] = ()
    nats_servers: tuple[str, ...] = ()  # (): use NATS_URL, else the watcher's pod
    nats_nkey_file: Path | None = None
    nats_ca_file: Path | None = None
    kubeconfig: Path | None = None
    context: str = ""
    namespace: str = "kube-system"
    release: str = ""  # the chart's release; "" = any


class LeaseQuery(FlowQuery, frozen=True, kw_only=True):
    """The same for a command that also reads the watcher's Lease."""

    lease_name: str = ""  # "" = read it from the watcher's workload; the same for the namespace
    lease_namespace: str = ""


def resolve_nats_access(source: FlowQuery, environment: Mapping[str, str]) -> NatsAccess | None:
    """Return address and credentials of NATS, as configured in the watcher's pod; None without an address."""
    servers = source.nats_servers or parse_list(environment.get("NATS_URL", ""))
    if not servers:
        return None
    return NatsAccess(
        servers=servers,
        service=READER_USER,  # this key may receive only on the inbox of this user
        nkey_seed_file=source.nats_nkey_file or _path(environment.get("NATS_NKEY_FILE")),
        tls_ca_file=source.nats_ca_file or _path(environment.get("NATS_CA_FILE")),
    )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
