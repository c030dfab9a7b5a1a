"""Gathers the evidence for `status`: from Kubernetes as the caller, from NATS as the reader."""

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec

from cli.cluster.chart_config import read_chart_config
from cli.cluster.credentials import open_kube_client
from cli.cluster.kept_keys import report_kept_keys
from cli.cluster.kube_events import list_cluster_events
from cli.cluster.kube_listing import list_all, list_managed_nodes, run_gathering
from cli.cluster.pod_commands import list_pods
from cli.cluster.pods import Pod
from cli.cluster.server_clock import measure_clock_offset
from cli.cluster.unavailable import Unavailable
from cli.cluster.watcher_lease import LeaseNameUnknown, fetch_watcher_lease
from cli.inside.flow_client import fetch_certificates, query_flow
from cli.inside.flow_query import FlowQuery, LeaseQuery
from cli.inside.flow_snapshot import FlowObject
from cli.status.ipam.from_cluster import list_claim_pages
from cli.status.status_evidence import ClaimsSnapshot, StatusEvidence
from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest
from libs.common.kube.api import SIGNING_REQUESTS, KubeApi
from libs.common.kube.errors import KubeError
from services.ipam.pages import StoredPage

_MAX_QUERIED_OBJECTS: Final = 20  # limit for Nodes and for requests whose last messages are queried
T = TypeVar("T")


def gather_status(source: LeaseQuery) -> StatusEvidence:
    """Return the evidence; reads only.

    Raises ClusterUnavailable if there is no API server to query, or if the caller may not list Nodes.
    """
    return run_gathering(_gather(source))


async def _gather(source: LeaseQuery) -> StatusEvidence:
    kube = open_kube_client(source.kubeconfig, source.context, user_agent="talos-ccm-status")
    try:
        before = await _get_or_unavailable(list_claim_pages(kube))
        (nodes, managed_fields), requests, lease, pods, events, config = await asyncio.gather(
            list_managed_nodes(kube),
            _get_or_unavailable(_list_requests(kube)),
            _get_or_unavailable(fetch_watcher_lease(kube, source)),
            _get_or_unavailable(_list_pods(kube, source)),
            _get_or_unavailable(list_cluster_events(kube)),
            _get_or_unavailable(read_chart_config(kube, source.namespace, source.release)),
        )
        after = await _get_or_unavailable(list_claim_pages(kube))
        # the time of the Kubernetes data: a pod may answer much later
        at = datetime.now(UTC) + measure_clock_offset(kube)
    finally:
        await kube.close()
    asked = _make_flow_query(source, nodes, requests)
    flow, certificates = await asyncio.gather(query_flow(asked), fetch_certificates(asked))
    return StatusEvidence(
        at=at,
        namespace=source.namespace,
        nodes=tuple(nodes),
        kept_keys=tuple(
            report for node in nodes for report in report_kept_keys(node, managed_fields[node.name])
        ),
        config_file=config if isinstance(config, Unavailable) else config[0],
        requests=requests,
        lease=lease,
        pods=pods,
        events=events,
        claims=_make_claims_snapshot(before, after),
        flow=flow,
        certificates=certificates,
    )


def _make_claims_snapshot(
    before: Sequence[StoredPage] | Unavailable, after: Sequence[StoredPage] | Unavailable
) -> ClaimsSnapshot | Unavailable:
    if isinstance(before, Unavailable):
        return before
    return (
        after if isinstance(after, Unavailable) else ClaimsSnapshot(before=tuple(before), pages=tuple(after))
    )


async def _get_or_unavailable(asking: Awaitable[T]) -> T | Unavailable:
    """Return the result, or why it is unavailable: a caller without one permission still sees the rest."""
    try:
        return await asking
    except (KubeError, LeaseNameUnknown) as error:
        return Unavailable(reason=str(error))


async def _list_requests(kube: KubeApi) -> tuple[SigningRequest, ...]:
    return tuple(await list_all(kube, SIGNING_REQUESTS))


async def _list_pods(kube: KubeApi, source: LeaseQuery) -> tuple[Pod, ...]:
    return tuple(await list_pods(kube, source.namespace, source.release))


def _make_flow_query(
    source: LeaseQuery, nodes: Sequence[Node], requests: Sequence[SigningRequest] | Unavailable
) -> FlowQuery:
    """Return a query for the Nodes and requests that wait, limited to _MAX_QUERIED_OBJECTS per kind."""
    stuck = [node for node in nodes if not node.is_initialized]
    pending = [] if isinstance(requests, Unavailable) else [one for one in requests if one.is_pending]
    objects = [
        FlowObject("node", node.name) for node in sorted(stuck, key=_get_age_order)[:_MAX_QUERIED_OBJECTS]
    ]
    objects += [
        FlowObject("csr", one.name) for one in sorted(pending, key=_get_age_order)[-_MAX_QUERIED_OBJECTS:]
    ]
    return msgspec.structs.replace(source, objects=tuple(objects))


def _get_age_order(of: Node | SigningRequest) -> tuple[float, str]:
    created = of.metadata.creation_timestamp
    return (created.timestamp() if created else 0.0, of.name)
