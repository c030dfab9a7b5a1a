"""Queries the flow: from NATS if it is configured, else by exec in the watcher's pod."""

import os
from typing import Final

from cli.cluster.credentials import AccessError
from cli.inside.flow_query import FlowQuery, resolve_nats_access
from cli.inside.flow_snapshot import (
    CertificateSnapshot,
    FlowSnapshot,
    FlowUnavailable,
    decode_certificates,
    decode_result,
)
from libs.common.kube.pod_exec import ExecResult

__all__ = ["FlowQuery", "fetch_certificates", "query_flow"]

_MAX_OUTPUT: Final = 500  # maximum characters of a failed command's output


async def query_flow(source: FlowQuery) -> FlowSnapshot | FlowUnavailable:
    """Return the flow, or why it is unavailable; failures of NATS or Kubernetes raise nothing."""
    nats = resolve_nats_access(source, os.environ)
    if nats is None:
        return await _query_watcher_pod(source)
    from cli.inside.flow_reader import query_nats  # noqa: PLC0415 - loaded only if needed

    return await query_nats(nats, source.objects)


async def fetch_certificates(source: FlowQuery) -> tuple[CertificateSnapshot, ...]:
    """Return metadata's Talos certificate by exec in its pod; () if it is unavailable."""
    from cli.cluster.pod_commands import run_in_pod  # noqa: PLC0415 - loaded only if needed

    if resolve_nats_access(source, os.environ) is not None:
        return ()  # there are no pods to query, or this process may not exec
    try:
        ran = await run_in_pod(
            "metadata",
            ("inside", "certificates"),
            source=source,
            namespace=source.namespace,
            release=source.release,
        )
        return decode_certificates(ran.stdout)
    except (AccessError, ValueError):
        return ()


async def _query_watcher_pod(source: FlowQuery) -> FlowSnapshot | FlowUnavailable:
    from cli.cluster.pod_commands import AllInOneError, run_in_pod  # noqa: PLC0415 - loaded only if needed

    arguments = ["inside", "flow", *(word for each in source.objects for word in ("--object", str(each)))]
    try:
        ran = await run_in_pod(
            "watcher",
            tuple(arguments),
            source=source,
            namespace=source.namespace,
            release=source.release,
        )
    except AllInOneError as error:
        return FlowUnavailable(reason=str(error), is_all_in_one=True)
    except AccessError as error:
        return FlowUnavailable(reason=str(error))
    return _parse_result(ran)


def _parse_result(ran: ExecResult) -> FlowSnapshot | FlowUnavailable:
    try:
        return decode_result(ran.stdout)
    except ValueError as error:
        said = " ".join(ran.stderr.decode(errors="replace").split())[-_MAX_OUTPUT:]
        if "No such command" in said:
            return FlowUnavailable(
                reason="the watcher's pod has a version that does not support this query: upgrade the chart"
            )
        why = f"it exited with status {ran.exit_status}: {said}" if said else str(error)
        return FlowUnavailable(reason=f"`talos-ccm inside flow` failed in the watcher's pod: {why}")
