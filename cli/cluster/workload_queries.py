"""Lists the workloads of a cluster."""

import asyncio

import msgspec

from cli.cluster.kube_objects import COLLECTIONS, Workload
from cli.cluster.kube_reader import KubeReader
from cli.cluster.unavailable import Unavailable
from libs.common.kube.errors import Forbidden


async def list_workloads(
    ask_kube: KubeReader, namespace: str
) -> tuple[tuple[Workload, ...] | Unavailable, bool]:
    """Return the workloads, and whether they are those of the whole cluster.

    Without the permission to list them cluster-wide, they are those of the namespace. Raises KubeError,
    except Forbidden.
    """
    for place, everywhere in (("", True), (f"/namespaces/{namespace}", False)):
        try:
            return await list_workloads_at(ask_kube, place), everywhere
        except Forbidden:
            continue
    right = f"list deployments.apps --namespace {namespace}"
    return Unavailable(reason=f"this requires permission to {right}", required_permission=right), False


async def list_workloads_at(ask_kube: KubeReader, place: str) -> tuple[Workload, ...]:
    """Return the workloads of `/namespaces/NAME`, or of the cluster if `place` is "". Raises KubeError."""
    lists = await asyncio.gather(
        *(ask_kube.list_all(f"/apis/apps/v1{place}/{plural}", Workload) for plural in COLLECTIONS.values())
    )
    kinds = zip(COLLECTIONS, lists, strict=True)
    return tuple(msgspec.structs.replace(each, kind=kind) for kind, found in kinds for each in found)
