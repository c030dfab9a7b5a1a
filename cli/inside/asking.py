"""Asks what the reader sees of the flow: NATS where it can be reached, else by exec in the watcher's pod."""

import os
from typing import Final

from cli.credentials import NoAccess
from cli.inside.seen import CertificateSeen, FlowSeen, Unknown, certificates_decoded, decoded
from cli.inside.source import FlowSource, nats_of
from libs.common.kube_api.pod_exec import ExecResult

__all__ = ["FlowSource", "ask", "certificates_of"]

_SAID: Final = 500  # characters of what a command that failed has said


async def ask(source: FlowSource) -> FlowSeen | Unknown:
    """What there is to see, or why that cannot be told; raises nothing that NATS or Kubernetes cause."""
    nats = nats_of(source, os.environ)
    if nats is None:
        return await _ask_watcher(source)
    from cli.inside.gather import ask_nats  # noqa: PLC0415 - loaded where it is of use

    return await ask_nats(nats, source.objects)


async def certificates_of(source: FlowSource) -> tuple[CertificateSeen, ...]:
    """Of metadata's way to the machines, by exec in its pod; () where that cannot be told."""
    from cli.exec.pods import run_in  # noqa: PLC0415 - loaded where it is of use

    if nats_of(source, os.environ) is not None:
        return ()  # there are no pods to ask, or we are in one that may not
    try:
        ran = await run_in(
            "metadata",
            ("inside", "certificates"),
            source=source,
            namespace=source.namespace,
            release=source.release,
        )
        return certificates_decoded(ran.stdout)
    except (NoAccess, ValueError):
        return ()


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


def _answer(ran: ExecResult) -> FlowSeen | Unknown:
    try:
        return decoded(ran.stdout)
    except ValueError as error:
        said = " ".join(ran.stderr.decode(errors="replace").split())[-_SAID:]
        if "No such command" in said:
            return Unknown(reason="the watcher's pod is of a version that cannot be asked: upgrade the chart")
        why = f"it ended with status {ran.exit_status}, saying: {said}" if said else str(error)
        return Unknown(reason=f"`talos-ccm inside flow` in the watcher's pod does not tell: {why}")
