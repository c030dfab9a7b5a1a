"""Asks what the reader sees of the flow: NATS where it can be reached, else by exec in the watcher's pod."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from cli.credentials import NoAccess
from cli.inside.seen import FlowSeen, Object, Unknown, decoded
from libs.common.bus import BusError
from libs.common.kube_api.exec import Ran
from libs.common.nats_bus.access import Access
from libs.common.settings.flag_values import parse_list
from libs.common.wiring import READER

_SAID: Final = 500  # characters of what a command that failed has said


class FlowSource(msgspec.Struct, frozen=True, kw_only=True):
    """By which way to ask, and of which objects."""

    objects: tuple[Object, ...] = ()
    nats_servers: tuple[str, ...] = ()  # where none is said: NATS_URL, else the watcher's pod is asked
    nats_nkey_file: Path | None = None
    nats_ca_file: Path | None = None
    kubeconfig: Path | None = None
    context: str = ""
    namespace: str = "kube-system"
    release: str = ""  # of the chart; "" = whichever there is


async def ask(source: FlowSource) -> FlowSeen | Unknown:
    """What there is to see, or why that cannot be told; raises nothing that NATS or Kubernetes cause."""
    nats = nats_of(source, os.environ)
    return await ask_nats(nats, source.objects) if nats else await _ask_watcher(source)


async def ask_nats(nats: Access, objects: tuple[Object, ...]) -> FlowSeen | Unknown:
    """The same of NATS itself."""
    from cli.inside.gather import flow_seen  # noqa: PLC0415 - loaded where it is of use

    try:
        return await flow_seen(nats, objects)
    except BusError as error:
        return Unknown(reason=f"NATS does not tell: {error}")


def nats_of(source: FlowSource, environment: Mapping[str, str]) -> Access | None:
    """Where NATS is and who we are there, as the watcher's pod has it; None where nobody says."""
    servers = source.nats_servers or parse_list(environment.get("NATS_URL", ""))
    if not servers:
        return None
    return Access(
        servers=servers,
        service=READER,  # its key may hear that name's inbox, and no other
        nkey_seed_file=source.nats_nkey_file or _path(environment.get("NATS_NKEY_FILE")),
        tls_ca_file=source.nats_ca_file or _path(environment.get("NATS_CA_FILE")),
    )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


async def _ask_watcher(source: FlowSource) -> FlowSeen | Unknown:
    from cli.exec.pods import AllInOne, run_in  # noqa: PLC0415 - loaded where it is of use

    arguments = ["inside", "flow", *(word for each in source.objects for word in ("--object", str(each)))]
    try:
        ran = await run_in(
            "watcher",
            tuple(arguments),
            source=source,
            namespace=source.namespace,
            release=source.release,
        )
    except AllInOne as error:
        return Unknown(reason=str(error), all_in_one=True)
    except NoAccess as error:
        return Unknown(reason=str(error))
    return _answer(ran)


def _answer(ran: Ran) -> FlowSeen | Unknown:
    try:
        return decoded(ran.out)
    except ValueError as error:
        said = " ".join(ran.err.decode(errors="replace").split())[-_SAID:]
        if "No such command" in said:
            return Unknown(reason="the watcher's pod is of a version that cannot be asked: upgrade the chart")
        why = f"it ended with status {ran.exit_status}, saying: {said}" if said else str(error)
        return Unknown(reason=f"`talos-ccm inside flow` in the watcher's pod does not tell: {why}")
