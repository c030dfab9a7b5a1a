"""Gathers the Kubernetes objects around a Node; parts that the caller may not read are unavailable."""

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from cli.cluster.certificate_signing_request import CertificateSigningRequest, find_newest
from cli.cluster.chart_config import read_chart_config
from cli.cluster.kube_events import list_cluster_events, make_event_resource, summarize_events
from cli.cluster.kube_listing import list_all
from cli.cluster.pod_commands import list_pods
from cli.cluster.pods import Pod
from cli.cluster.watcher_lease import LeaseNameUnknown, fetch_watcher_lease
from cli.explain.node.node_context import NodeContext
from cli.inside.flow_query import LeaseQuery
from libs.common.contract.node import Node
from libs.common.kube.api import SIGNING_REQUESTS, KubeApi
from libs.common.kube.errors import KubeError, NotFound
from libs.common.kube.objects import Resource

_REQUESTS: Final = Resource(
    plural=SIGNING_REQUESTS.plural,
    path=SIGNING_REQUESTS.path,
    item=CertificateSigningRequest,
    query=SIGNING_REQUESTS.query,
)

FoundT = TypeVar("FoundT")


async def gather_context(kube: KubeApi, node: Node, where: LeaseQuery) -> NodeContext:
    """Return everything that the caller may read, and the unavailable parts."""
    untold: list[str] = []
    namespace, release = where.namespace, where.release

    async def found(what: str, asking: Awaitable[FoundT], otherwise: FoundT) -> FoundT:
        try:
            return await asking
        except (KubeError, LeaseNameUnknown) as error:
            untold.append(f"{what}: {error}")
            return otherwise

    events, of_cluster, requests, lease, pods, (file, file_source) = await asyncio.gather(
        found("Events of the Node", list_all(kube, make_event_resource(node.name)), []),
        found("Events of the cluster", list_cluster_events(kube), ()),
        found("certificate signing requests", list_all(kube, _REQUESTS), []),
        found("Lease", fetch_watcher_lease(kube, where), None),
        found("pods of the chart", _list_pods(kube, namespace, release), []),
        found("--cloud-config of the chart", read_chart_config(kube, namespace, release), ("", "")),
    )
    own = [one for one in requests if one.signing_request.node_name == node.name]
    return NodeContext(
        events=summarize_events(events, node.uid),
        cluster_events=of_cluster,
        request=find_newest(own),
        lease=lease,
        pods=tuple(pods),
        file=file,
        file_source=file_source,
        unavailable_parts=tuple(untold),
    )


async def _list_pods(kube: KubeApi, namespace: str, release: str) -> list[Pod]:
    try:
        return await list_pods(kube, namespace, release)
    except NotFound:
        return []
