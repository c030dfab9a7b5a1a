"""Queries the flow: from NATS if it is configured, else by exec in the watcher's pod."""

import os
from collections.abc import Sequence

from cli.cluster.access import AccessError
from cli.cluster.pod_commands import AllInOneError, choose_pod, run_inside
from cli.cluster.pods import Pod
from cli.cluster.query import ClusterQuery, resolve_nats_access
from cli.cluster.unavailable import Unavailable
from cli.inside.flow_snapshot import (
    FLOW_DECODER,
    CertificateSnapshot,
    FlowObject,
    FlowSnapshot,
    FlowUnavailable,
)
from cli.inside.talos_credential import REPORT_DECODER
from libs.common.kube.api import KubeApi


async def query_flow(
    kube: KubeApi,
    query: ClusterQuery,
    pods: Sequence[Pod] | Unavailable,
    objects: Sequence[FlowObject] = (),
) -> FlowSnapshot | FlowUnavailable:
    """Return the flow and the last messages about the objects, or why the flow is unavailable.

    `pods` are those of the chart.
    """
    nats = resolve_nats_access(query, os.environ)
    if nats is not None:
        from cli.inside.flow_reader import query_nats  # noqa: PLC0415 - loaded only if needed

        return await query_nats(nats, objects)
    try:
        pod = choose_pod(pods, "watcher", query.namespace, query.release)
    except AccessError as error:
        return FlowUnavailable(reason=str(error), is_all_in_one=isinstance(error, AllInOneError))
    arguments = ("flow", *(word for each in objects for word in ("--object", each.kind, each.name)))
    found = await run_inside(kube, query.namespace, pod, "watcher", arguments, decoder=FLOW_DECODER)
    return FlowUnavailable(reason=found.reason) if isinstance(found, Unavailable) else found


async def fetch_certificates(
    kube: KubeApi, query: ClusterQuery, pods: Sequence[Pod] | Unavailable
) -> tuple[CertificateSnapshot, ...]:
    """Return metadata's Talos certificate by exec in its pod; () if it is unavailable."""
    if resolve_nats_access(query, os.environ) is not None:
        return ()  # there are no pods to query, or this process may not exec
    try:
        pod = choose_pod(pods, "metadata", query.namespace, query.release)
    except AccessError:
        return ()
    arguments = ("talos", "--offline")
    found = await run_inside(kube, query.namespace, pod, "metadata", arguments, decoder=REPORT_DECODER)
    if isinstance(found, Unavailable) or found.not_after is None:
        return ()
    return (CertificateSnapshot(name="talos", expires_at=found.not_after),)
