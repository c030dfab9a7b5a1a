"""Reads the pods of an installation, and the Events and last log lines of unready ones."""

import asyncio
from typing import Final

from cli.cluster.kube_objects import PodEvent
from cli.cluster.kube_reader import KubeReader, get_or_unavailable
from cli.cluster.pods import Pod
from cli.cluster.unavailable import Unavailable
from cli.doctor.installation_snapshot import InstallationSnapshot
from libs.common.kube.errors import KubeError

_UNREADY: Final = 10  # limit for pods whose last log line is read
_LOG_SECONDS: Final = 5.0
_LOG_BYTES: Final = 64 * 2**10  # limit for one log line, which a kubelet returns at any length


async def list_pods(ask_kube: KubeReader, namespace: str) -> tuple[Pod, ...] | Unavailable:
    """Return all pods of the namespace."""
    listing = ask_kube.list_all(f"/api/v1/namespaces/{namespace}/pods", Pod)
    return await get_or_unavailable(listing, f"list pods --namespace {namespace}")


async def fetch_last_messages(
    ask_kube: KubeReader, seen: InstallationSnapshot
) -> tuple[tuple[PodEvent, ...], dict[str, str]]:
    """Return Events and last log lines of unready pods; none for those that the caller may not read."""
    if isinstance(seen.pods, Unavailable):
        return (), {}
    names = tuple(f"{workload.name}-" for workload in seen.installation.workloads)
    pods = [pod for pod in seen.pods if pod.name.startswith(names) and not pod.has_condition("Ready")][
        :_UNREADY
    ]
    if not pods:
        return (), {}
    place = f"/api/v1/namespaces/{seen.installation.namespace}"
    query = {"fieldSelector": "involvedObject.kind=Pod,type=Warning"}
    try:
        events = await ask_kube.list_all(f"{place}/events", PodEvent, query)
    except KubeError:
        events = ()
    # one connection per kubelet: the one of a dead machine hangs
    async with ask_kube.with_connections(len(pods)) as ask:
        lines = await asyncio.gather(*(_fetch_last_line(ask, place, pod) for pod in pods))
    return events, {pod.name: line for pod, line in zip(pods, lines, strict=True) if line}


async def _fetch_last_line(ask_kube: KubeReader, place: str, pod: Pod) -> str:
    """Return the last log line of the first container that is not ready; "" if it cannot be read."""
    for status in pod.all_containers:
        if status.ready or (status.state.terminated and not status.state.terminated.exit_code):
            continue
        crashed = {"previous": "true"} if status.state.waiting and status.restart_count else {}
        try:
            query = {"container": status.name, "tailLines": "1", **crashed}
            path = f"{place}/pods/{pod.name}/log"
            said = await ask_kube.get_bytes(path, query, seconds=_LOG_SECONDS, most_bytes=_LOG_BYTES)
        except KubeError:
            continue
        return said.decode(errors="replace").strip()
    return ""
