"""Reads what only kubelets and pods know: logs, settings, and the Talos credential of metadata's pod."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from cli.cluster.kube_events import KubeEvent
from cli.cluster.kube_reader import get_bytes, get_or_unavailable, list_all, own_connections
from cli.cluster.pod_commands import run_inside
from cli.cluster.pods import Pod
from cli.cluster.unavailable import NOT_QUERIED, RemoteClock, Unavailable, list_known
from cli.doctor.snapshot import CredentialProbe, InstallationSnapshot, UnreadyPods
from cli.inside.talos_credential import REPORT_DECODER
from libs.common.contract.ip_addresses import list_node_ips
from libs.common.contract.node import Node
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import KubeError
from libs.common.kube.objects import namespaced_resource
from services.lifecycle.core.evidence import is_ready

_REQUEST_SECONDS: Final = 5.0  # for a kubelet, which may hang
_MAX_UNREADY: Final = 10  # limit for pods whose last log line is read
_MAX_LOG_BYTES: Final = 64 * 2**10  # limit for one log line, which a kubelet returns at any length
_MAX_KUBELETS: Final = 50  # limit for queried kubelets
_MAX_SETTINGS_BYTES: Final = 2**20  # a kubelet's settings have a few kB; a larger response is rejected
_MAX_MACHINES: Final = 3  # limit for queried machines
_PROBE_SECONDS: Final = 60.0


async def read_unready_pods(kube: KubeApi, seen: InstallationSnapshot) -> UnreadyPods:
    """Return Events and last log lines of unready pods, as far as the caller may read them."""
    names = tuple(f"{workload.name}-" for workload in seen.installation.workloads)
    unready = [
        pod for pod in list_known(seen.pods) if pod.name.startswith(names) and not pod.has_condition("Ready")
    ]
    if not unready:
        return UnreadyPods()
    resource = namespaced_resource("events", KubeEvent, seen.installation.namespace, {}, page_size=500)
    selector = {"fieldSelector": "involvedObject.kind=Pod,type=Warning"}
    try:
        events = await list_all(kube, msgspec.structs.replace(resource, query=selector))
    except KubeError:
        events = ()
    some = unready[:_MAX_UNREADY]
    place = f"/api/v1/namespaces/{seen.installation.namespace}/pods"
    async with own_connections(kube, len(some)) as own:
        lines = await asyncio.gather(*(_fetch_last_line(own, f"{place}/{pod.name}/log", pod) for pod in some))
    by_pod = {pod.name: line for pod, line in zip(some, lines, strict=True) if line}
    return UnreadyPods(events=events, last_lines=by_pod)


async def _fetch_last_line(kube: KubeApi, path: str, pod: Pod) -> str:
    """Return the last log line of the first container that is not ready; "" if it cannot be read."""
    for status in pod.all_containers:
        if status.ready or (status.state.terminated and not status.state.terminated.exit_code):
            continue
        crashed = {"previous": "true"} if status.state.waiting and status.restart_count else {}
        query = {"container": status.name, "tailLines": "1", **crashed}
        try:
            line = await get_bytes(kube, path, query, seconds=_REQUEST_SECONDS, most_bytes=_MAX_LOG_BYTES)
        except KubeError:
            continue
        return line.decode(errors="replace").strip()
    return ""


async def query_serving_certificates(
    kube: KubeApi, seen: InstallationSnapshot
) -> dict[str, bool | Unavailable]:
    """Return by Node whether its kubelet requests serving certificates.

    Only ready Nodes without a request are queried.
    """
    if isinstance(seen.requests, Unavailable) or not seen.installation.runs_service("csr"):
        return {}
    filed = {one.node_name for one in seen.requests}
    silent = [node.name for node in list_known(seen.nodes) if node.name not in filed and is_ready(node)]
    silent = silent[:_MAX_KUBELETS]
    async with own_connections(kube, max(1, len(silent))) as own:
        queries = (_query_server_tls_bootstrap(own, name) for name in silent)
        answers = await asyncio.gather(*(get_or_unavailable(each, "get nodes/proxy") for each in queries))
    return dict(zip(silent, answers, strict=True))


async def _query_server_tls_bootstrap(kube: KubeApi, name: str) -> bool:
    """Return serverTLSBootstrap of the kubelet's settings (flag --rotate-server-certificates)."""
    path = f"/api/v1/nodes/{name}/proxy/configz"
    text = await get_bytes(kube, path, seconds=_REQUEST_SECONDS, most_bytes=_MAX_SETTINGS_BYTES)
    try:
        settings: Any = json.loads(text)["kubeletconfig"]
        return bool(settings.get("serverTLSBootstrap", False))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise KubeError(f"its configuration is unreadable: {error!r}") from error


async def probe_credential_in_pod(kube: KubeApi, seen: InstallationSnapshot) -> CredentialProbe | Unavailable:
    """Probe the Talos credential in a pod of metadata."""
    process = seen.installation.find_process("metadata")
    if process is None or not seen.installation.talos_account:
        return NOT_QUERIED
    if isinstance(seen.pods, Unavailable):
        return seen.pods
    addresses = _list_addresses(list_known(seen.nodes))[:_MAX_MACHINES]
    endpoints = process.container.last_flag_value("talos-endpoints")
    # ready or not: an invalid credential makes it unready
    own = [pod for pod in seen.pods if pod.name.startswith(f"{process.workload.name}-")]
    running = sorted((pod for pod in own if pod.status.phase == "Running"), key=lambda p: not p.is_ready)
    if not running:
        return Unavailable(reason="no pod of metadata is running")
    arguments = ["talos", *(word for address in addresses for word in ("--node-ip", address))]
    asked = datetime.now(UTC)
    found = await run_inside(
        kube,
        seen.installation.namespace,
        running[0].name,
        process.container.name,
        (*arguments, "--endpoints", endpoints) if endpoints else tuple(arguments),
        decoder=REPORT_DECODER,
        timeout_seconds=_PROBE_SECONDS,
    )
    if isinstance(found, Unavailable):
        return found
    answered = datetime.now(UTC)
    clock = RemoteClock(earliest=found.at, latest=found.at, requested_at=asked, responded_at=answered)
    return CredentialProbe(report=found, clock=clock)


def _list_addresses(nodes: Sequence[Node]) -> tuple[str, ...]:
    announced = (list_node_ips(node.provided_node_ip) for node in nodes)
    return tuple(str(ips[0]) for ips in announced if ips)
