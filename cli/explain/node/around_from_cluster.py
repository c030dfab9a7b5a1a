"""Lists what Kubernetes holds around a Node. What the caller may not read is told, and the rest is read."""

import asyncio
from collections.abc import Awaitable
from typing import Final, Protocol, TypeVar

from cli.cluster import listed
from cli.exec.pods import labels_of, pods_of
from cli.explain.filed import Filed, newest
from cli.explain.node.around import Around, HeldEvent, Leadership, leadership, told
from cli.leases import LeaseName, UnknownLease, read_lease
from libs.common.kube_api.api import SIGNING_REQUESTS, KubeApi
from libs.common.kube_api.errors import KubeError, NotFound
from libs.common.kube_api.latest_event_recorder import CLUSTER_REFERENCE
from libs.common.kube_api.objects import Resource
from libs.common.kube_api.pods import Pod
from libs.common.node import Node

_FILE: Final = "ccm-config.yaml"  # in the chart's ConfigMap
_REQUESTS: Final = Resource(
    plural=SIGNING_REQUESTS.plural, path=SIGNING_REQUESTS.path, item=Filed, query=SIGNING_REQUESTS.query
)

Found = TypeVar("Found")


class Installed(Protocol):
    """Where the chart is, and which Lease the caller names; "" = none."""

    @property
    def namespace(self) -> str: ...
    @property
    def release(self) -> str: ...
    @property
    def lease_name(self) -> str: ...
    @property
    def lease_namespace(self) -> str: ...


async def look_around(kube: KubeApi, node: Node, where: Installed) -> Around:
    """All that the caller may read."""
    untold: list[str] = []
    namespace, release = where.namespace, where.release

    async def found(what: str, asking: Awaitable[Found], otherwise: Found) -> Found:
        try:
            return await asking
        except (KubeError, UnknownLease) as error:
            untold.append(f"{what}: {error}")
            return otherwise

    events, of_cluster, requests, lease, pods, (file, file_source) = await asyncio.gather(
        found("Events of the Node", listed(kube, _events(node.name)), []),
        found("Events of the cluster", listed(kube, _events(CLUSTER_REFERENCE.name)), []),
        found("certificate requests", listed(kube, _REQUESTS), []),
        found("the Lease", _lease(kube, where), None),
        found("our pods", _pods(kube, namespace, release), []),
        found("our --cloud-config", _file(kube, namespace, release), ("", "")),
    )
    own = [one for one in requests if one.request.node_name == node.name]
    return Around(
        events=told(events, node.uid),
        of_cluster=told(
            (each for each in of_cluster if each.involved_object.kind == CLUSTER_REFERENCE.kind),
            CLUSTER_REFERENCE.uid,
        ),
        request=newest(own),
        leadership=lease,
        pods=tuple(pods),
        file=file,
        file_source=file_source,
        untold=tuple(untold),
    )


def _events(name: str) -> Resource[HeldEvent]:
    # About what lies in no namespace they live in `default`.
    return Resource(
        plural="events",
        path="/api/v1/namespaces/default/events",
        item=HeldEvent,
        query={"fieldSelector": f"involvedObject.name={name}"},
    )


async def _pods(kube: KubeApi, namespace: str, release: str) -> list[Pod]:
    try:
        return await pods_of(kube, namespace, release)
    except NotFound:
        return []


async def _file(kube: KubeApi, namespace: str, release: str) -> tuple[str, str]:
    """What --cloud-config says there, and where; nothing where the chart is not installed, or twice."""
    maps = [
        each async for page in kube.list_config_maps(namespace, labels_of(release)) for each in page.items
    ]
    found = [each for each in maps if _FILE in each.data]
    if len(found) != 1:
        return "", ""
    return found[0].data[_FILE], f"ConfigMap {namespace}/{found[0].metadata.name}"


async def _lease(kube: KubeApi, where: Installed) -> Leadership:
    read = await read_lease(
        kube,
        namespace=where.namespace,
        release=where.release,
        name=where.lease_name,
        lease_namespace=where.lease_namespace,
    )
    place = "" if read.place == LeaseName() else str(read.place)
    return leadership(read.lease, place) if read.lease is not None else Leadership(place=place)
