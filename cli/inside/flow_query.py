"""By which way the flow is asked of."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from cli.inside.flow_snapshot import FlowObject
from libs.common.bus.nats.nats_access import NatsAccess
from libs.common.service.service_spec import READER_USER
from libs.common.settings.flag_values import parse_list


class FlowQuery(msgspec.Struct, frozen=True, kw_only=True):
    """By which way to ask, and of which objects."""

    objects: tuple[FlowObject, ...] = ()
    nats_servers: tuple[str, ...] = ()  # where none is said: NATS_URL, else the watcher's pod is asked
    nats_nkey_file: Path | None = None
    nats_ca_file: Path | None = None
    kubeconfig: Path | None = None
    context: str = ""
    namespace: str = "kube-system"
    release: str = ""  # of the chart; "" = whichever there is


def resolve_nats_access(source: FlowQuery, environment: Mapping[str, str]) -> NatsAccess | None:
    """Where NATS is and who we are there, as the watcher's pod has it; None where nobody says."""
    servers = source.nats_servers or parse_list(environment.get("NATS_URL", ""))
    if not servers:
        return None
    return NatsAccess(
        servers=servers,
        service=READER_USER,  # its key may hear that name's inbox, and no other
        nkey_seed_file=source.nats_nkey_file or _path(environment.get("NATS_NKEY_FILE")),
        tls_ca_file=source.nats_ca_file or _path(environment.get("NATS_CA_FILE")),
    )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
