"""Reads the snapshot for the checks with the caller's permissions; writes nothing: reviews are not stored."""

import asyncio
import importlib.metadata
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from cli.cluster.access import open_kube_client
from cli.cluster.installation import (
    Installation,
    assume_installation,
    choose_installation,
    find_installations,
)
from cli.cluster.kube_events import KubeEvent
from cli.cluster.kube_objects import TalosAccount, Workload, is_node_ready
from cli.cluster.kube_reader import (
    ClusterUnavailable,
    get_bytes,
    get_object,
    get_or_absent,
    get_or_unavailable,
    list_all,
    read_clock,
)
from cli.cluster.lease_state import LeaseState, read_lease_state
from cli.cluster.pod_commands import run_inside
from cli.cluster.pods import Pod
from cli.cluster.query import ClusterQuery
from cli.cluster.read_cluster import PARTS, list_pods, list_workloads, read_cluster
from cli.cluster.snapshot import ConfigFile
from cli.cluster.unavailable import AbsentObject, RemoteClock, Unavailable
from cli.doctor.access_reviews import review_access
from cli.doctor.required_permissions import get_role_paths, list_access_reviews
from cli.doctor.snapshot import (
    AccessReviews,
    CredentialProbe,
    InstallationSnapshot,
    TalosObjects,
    UnreadyPods,
)
from cli.inside.flow_client import query_flow
from cli.inside.flow_snapshot import FlowSnapshot, FlowUnavailable
from cli.inside.talos_credential import TalosCredentialReport, decode_report
from libs.common.contract.ip_addresses import InvalidNodeIP, parse_node_ips
from libs.common.contract.node import ApiObject, Node
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Forbidden, KubeError, NotFound
from libs.common.kube.objects import ConfigMap, namespaced_resource
from libs.talos.talosconfig import SERVICE_ACCOUNT_FILE

SYSTEM: Final = "kube-system"
UPSTREAM_LEASES: Final = ("cloud-controller-manager", "cloud-controller-manager-migration")
_CONNECTIONS: Final = 8
_TALOS: Final = "/apis/talos.dev/v1alpha1"
_REQUEST_SECONDS: Final = 5.0  # for a kubelet, which may hang
_MAX_UNREADY: Final = 10  # limit for pods whose last log line is read
_MAX_LOG_BYTES: Final = 64 * 2**10  # limit for one log line, which a kubelet returns at any length
_MAX_KUBELETS: Final = 50  # limit for queried kubelets
_MAX_SETTINGS_BYTES: Final = 2**20  # a kubelet's settings have a few kB; a larger response is rejected
_MAX_MACHINES: Final = 3  # limit for queried machines
_PROBE_SECONDS: Final = 60.0

_Reader = Callable[[KubeApi, InstallationSnapshot], Awaitable[Any]]


async def read_installation(query: ClusterQuery, parts: Collection[str]) -> InstallationSnapshot:
    """Return these parts of the snapshot; `query.namespace` may be "", which is any namespace.

    Raises AccessError, ClusterUnavailable, KubeError.
    """
    async with open_kube_client(query.kubeconfig, query.context, command="doctor") as one:
        kube = one.with_own_connections(connections=_CONNECTIONS)
        try:
            return await _read_parts(kube, query, parts)
        finally:
            await kube.close()


async def _read_parts(kube: KubeApi, query: ClusterQuery, parts: Collection[str]) -> InstallationSnapshot:
    workloads, is_cluster_wide = await list_visible_workloads(kube, query.namespace or SYSTEM)
    found = find_installations(workloads) if not isinstance(workloads, Unavailable) else ()
    here = select_installation(query, workloads, found, is_cluster_wide=is_cluster_wide)
    place, name = here.lease
    own = msgspec.structs.replace(
        query, namespace=here.namespace, release=here.release, lease_namespace=place, lease_name=name
    )
    shared = [part for part in PARTS if part in parts and part not in READERS]
    cluster = await read_cluster(kube, own, *shared)
    seen = InstallationSnapshot(
        **msgspec.structs.asdict(cluster),
        version=importlib.metadata.version("talos-ccm"),
        installation=here,
        others=tuple(one for one in found if one is not here),
        workloads=() if isinstance(workloads, Unavailable) else workloads,
        is_cluster_wide=is_cluster_wide,
    )
    wanted = [part for part in READERS if part in parts]
    values = await asyncio.gather(*(READERS[part](kube, seen) for part in wanted))
    return msgspec.structs.replace(seen, **dict(zip(wanted, values, strict=True)))


async def list_visible_workloads(
    kube: KubeApi, namespace: str
) -> tuple[tuple[Workload, ...] | Unavailable, bool]:
    """Return the workloads, and whether they are those of the whole cluster.

    Without the permission to list them cluster-wide, they are those of the namespace. Raises KubeError,
    except Forbidden.
    """
    try:
        return await list_workloads(kube), True
    except Forbidden:
        pass
    try:
        return await list_workloads(kube, namespace), False
    except Forbidden as error:
        right = f"list deployments.apps --namespace {namespace}"
        return Unavailable(reason=str(error), required_permission=right), False


def select_installation(
    query: ClusterQuery,
    workloads: tuple[Workload, ...] | Unavailable,
    found: Sequence[Installation],
    *,
    is_cluster_wide: bool,
) -> Installation:
    """Return the requested installation, or an assumed one if workloads may not be listed.

    Raises ClusterUnavailable if none matches.
    """
    if isinstance(workloads, Unavailable):
        return assume_installation(query.namespace or SYSTEM, query.release, workloads.explanation)
    here = choose_installation(found, query.namespace, query.release)
    if here is not None:
        return here
    if found:
        there = "; ".join(f"--namespace {one.namespace} --release {one.release}" for one in found)
        raise ClusterUnavailable(f"no such installation; found: {there}")
    if is_cluster_wide:
        raise ClusterUnavailable("this controller is not installed in the cluster; see docs/install.md")
    raise ClusterUnavailable(
        f"this controller is not installed in namespace {query.namespace or SYSTEM}, and you may not list "
        "other namespaces: set --namespace, or see docs/install.md"
    )


async def read_unready_pods(kube: KubeApi, seen: InstallationSnapshot) -> UnreadyPods:
    """Return Events and last log lines of unready pods, as far as the caller may read them."""
    names = tuple(f"{workload.name}-" for workload in seen.installation.workloads)
    pods = () if isinstance(seen.pods, Unavailable) else seen.pods
    unready = [pod for pod in pods if pod.name.startswith(names) and not pod.has_condition("Ready")]
    if not unready:
        return UnreadyPods()
    resource = namespaced_resource("events", KubeEvent, seen.installation.namespace, {}, page_size=500)
    selector = {"fieldSelector": "involvedObject.kind=Pod,type=Warning"}
    try:
        events = await list_all(kube, msgspec.structs.replace(resource, query=selector))
    except KubeError:
        events = ()
    some = unready[:_MAX_UNREADY]
    own = kube.with_own_connections(connections=len(some))  # that to the kubelet of a dead machine hangs
    try:
        place = f"/api/v1/namespaces/{seen.installation.namespace}/pods"
        lines = await asyncio.gather(*(_fetch_last_line(own, f"{place}/{pod.name}/log", pod) for pod in some))
    finally:
        await own.close()
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
    silent = [node.name for node in seen.known_nodes if node.name not in filed and is_node_ready(node)]
    silent = silent[:_MAX_KUBELETS]
    own = kube.with_own_connections(connections=max(1, len(silent)))
    try:
        queries = (_query_server_tls_bootstrap(own, name) for name in silent)
        told = await asyncio.gather(*(get_or_unavailable(each, "get nodes/proxy") for each in queries))
    finally:
        await own.close()
    return dict(zip(silent, told, strict=True))


async def _query_server_tls_bootstrap(kube: KubeApi, name: str) -> bool:
    """Return serverTLSBootstrap of the kubelet's settings (flag --rotate-server-certificates)."""
    path = f"/api/v1/nodes/{name}/proxy/configz"
    text = await get_bytes(kube, path, seconds=_REQUEST_SECONDS, most_bytes=_MAX_SETTINGS_BYTES)
    try:
        settings: Any = json.loads(text)["kubeletconfig"]
        return bool(settings.get("serverTLSBootstrap", False))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise KubeError(f"its configuration is unreadable: {error!r}") from error


async def _list_system_pods(kube: KubeApi, _: InstallationSnapshot) -> tuple[Pod, ...] | Unavailable:
    return await get_or_unavailable(list_pods(kube, SYSTEM, {}), f"list pods --namespace {SYSTEM}")


async def _read_upstream_leases(
    kube: KubeApi, _: InstallationSnapshot
) -> tuple[LeaseState, ...] | Unavailable:
    """Return the held Leases of other cloud controllers."""
    found = []
    for name in UPSTREAM_LEASES:
        right = f"get leases.coordination.k8s.io --namespace {SYSTEM}"
        lease = await get_or_absent(kube.get_lease(SYSTEM, name), right)
        if isinstance(lease, Unavailable):
            return lease
        if not isinstance(lease, AbsentObject):
            found.append(read_lease_state(lease.spec, f"{SYSTEM}/{name}"))
    return tuple(found)


async def _read_config(kube: KubeApi, seen: InstallationSnapshot) -> ConfigFile | AbsentObject | Unavailable:
    name, key = seen.installation.config_file
    text = await _read_config_map(kube, seen, name, key) if name else AbsentObject()
    return ConfigFile(text=text, source=f"{name}/{key}") if isinstance(text, str) else text


async def _read_nats_authority(kube: KubeApi, seen: InstallationSnapshot) -> str | AbsentObject | Unavailable:
    return await _read_config_map(kube, seen, f"{seen.installation.prefix}-nats-ca", "ca.crt")


async def _read_config_map(
    kube: KubeApi, seen: InstallationSnapshot, name: str, key: str
) -> str | AbsentObject | Unavailable:
    namespace = seen.installation.namespace
    right = f"get configmaps/{name} --namespace {namespace}"
    found = await get_or_absent(kube.get_config_map(namespace, name), right)
    return found.data.get(key, AbsentObject()) if isinstance(found, ConfigMap) else found


async def _review_access(kube: KubeApi, seen: InstallationSnapshot) -> AccessReviews | Unavailable:
    here = seen.installation
    reviewed = await get_or_unavailable(
        review_access(kube, here.namespace, list_access_reviews(here)),
        "create selfsubjectaccessreviews.authorization.k8s.io",
    )
    if isinstance(reviewed, Unavailable):
        return reviewed
    paths = sorted({path for one in reviewed if one.is_missing for path in get_role_paths(here, one.request)})
    existing = await asyncio.gather(*(_exists(kube, path) for path in paths))
    return AccessReviews(
        results=reviewed,
        existing={path: there for path, there in zip(paths, existing, strict=True) if there is not None},
    )


async def _exists(kube: KubeApi, path: str) -> bool | None:
    """Return whether the object exists; None if it may not be read."""
    try:
        await get_bytes(kube, path)
    except NotFound:
        return False
    except KubeError:
        return None
    return True


async def _read_talos_objects(kube: KubeApi, seen: InstallationSnapshot) -> TalosObjects:
    name, namespace = seen.installation.talos_account, seen.installation.namespace
    if not name:
        return TalosObjects(account=AbsentObject(), has_service=True)
    path = f"{_TALOS}/namespaces/{namespace}/serviceaccounts/{name}"
    right = f"get serviceaccounts.talos.dev/{name} --namespace {namespace}"
    account = await get_or_absent(get_object(kube, path, TalosAccount), right)
    has_kind = await _exists(kube, _TALOS) is not False if isinstance(account, AbsentObject) else True
    service = await get_or_absent(
        get_bytes(kube, "/api/v1/namespaces/default/services/talos"), "get services/talos --namespace default"
    )
    return TalosObjects(
        account=account,
        has_kind=has_kind,
        has_service=service if isinstance(service, Unavailable) else not isinstance(service, AbsentObject),
    )


async def _probe_credential(kube: KubeApi, seen: InstallationSnapshot) -> CredentialProbe | Unavailable:
    """Probe the Talos credential in a pod of metadata, or in this process if it runs in a pod."""
    process = seen.installation.find_process("metadata")
    if process is None or not seen.installation.talos_account:
        return Unavailable(reason="not queried")
    addresses = _list_addresses(seen.known_nodes)[:_MAX_MACHINES]
    endpoints = process.container.last_flag_value("talos-endpoints")
    asked = datetime.now(UTC)
    if SERVICE_ACCOUNT_FILE.exists():
        from cli.inside.talos_probe import probe_credential  # noqa: PLC0415 - loaded only if needed

        found: TalosCredentialReport | Unavailable = await probe_credential(addresses, endpoints)
    elif isinstance(seen.pods, Unavailable):
        return seen.pods
    else:
        # ready or not: an invalid credential makes it unready
        own = [pod for pod in seen.pods if pod.name.startswith(f"{process.workload.name}-")]
        running = sorted((pod for pod in own if pod.status.phase == "Running"), key=lambda p: not p.is_ready)
        if not running:
            return Unavailable(reason="no pod of metadata is running")
        arguments = ["talos", *(word for address in addresses for word in ("--node-ip", address))]
        found = await run_inside(
            kube,
            seen.installation.namespace,
            running[0].name,
            process.container.name,
            (*arguments, "--endpoints", endpoints) if endpoints else tuple(arguments),
            decode=decode_report,
            timeout_seconds=_PROBE_SECONDS,
        )
    if isinstance(found, Unavailable):
        return found
    answered = datetime.now(UTC)
    clock = RemoteClock(earliest=found.at, latest=found.at, requested_at=asked, responded_at=answered)
    return CredentialProbe(report=found, clock=clock)


def _list_addresses(nodes: Sequence[Node]) -> tuple[str, ...]:
    announced = [parse_node_ips(node.provided_node_ip) for node in nodes if node.provided_node_ip]
    return tuple(str(ips[0]) for ips in announced if not isinstance(ips, InvalidNodeIP) and ips)


async def _query_flow(kube: KubeApi, seen: InstallationSnapshot) -> FlowSnapshot | FlowUnavailable:
    """Query the flow; repeat once if a service seems absent, because a consumer may be between two pulls."""
    here = seen.installation
    if here.is_all_in_one:
        return FlowUnavailable(reason="not queried")
    flow = await query_flow(kube, seen.query, seen.pods)
    if isinstance(flow, FlowSnapshot) and any(
        one.is_present is False for one in flow.services if here.runs_service(one.service)
    ):
        await asyncio.sleep(1.0)
        return await query_flow(kube, seen.query, seen.pods)
    return flow


async def _read_labels(kube: KubeApi, seen: InstallationSnapshot) -> Mapping[str, str] | Unavailable:
    path = f"/api/v1/namespaces/{seen.installation.namespace}"
    right = f"get namespaces/{seen.installation.namespace}"
    found = await get_or_unavailable(get_object(kube, path, ApiObject), right)
    return found if isinstance(found, Unavailable) else found.metadata.labels


# The parts beside those of the cluster: their fields in the snapshot, and the functions that read them.
READERS: Final[Mapping[str, _Reader]] = {
    "unready": read_unready_pods,
    "system_pods": _list_system_pods,
    "upstream_leases": _read_upstream_leases,
    "serving": query_serving_certificates,
    "config": _read_config,
    "reviews": _review_access,
    "talos_objects": _read_talos_objects,
    "talos": _probe_credential,
    "clock": lambda kube, seen: read_clock(kube),
    "flow": _query_flow,
    "authority": _read_nats_authority,
    "namespace_labels": _read_labels,
}
