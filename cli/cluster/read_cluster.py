"""Reads the snapshot of a cluster with the caller's credentials; only reads."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar

import msgspec

from cli.cluster.installation import get_lease_name, list_containers
from cli.cluster.kept_keys import ManagedNode
from cli.cluster.kube_events import KubeEvent, select_events
from cli.cluster.kube_objects import COLLECTIONS, CertificateSigningRequest, Workload
from cli.cluster.kube_reader import get_or_unavailable, list_all, read_last_date
from cli.cluster.lease_state import LeaseState, read_lease_state
from cli.cluster.pod_commands import build_label_selector
from cli.cluster.pods import Pod
from cli.cluster.query import ClusterQuery
from cli.cluster.snapshot import ClaimPages, ClusterSnapshot, ConfigFile
from cli.cluster.unavailable import NOT_QUERIED, Unavailable
from cli.command_exit import CommandError
from libs.common.contract.services import (
    CLAIM_PAGES_NAMESPACE,
    LEASE_NAMESPACE,
    WATCHER,
    WATCHER_LEASE,
    WATCHER_LEASE_NAME,
)
from libs.common.kube.api import NODES, SIGNING_REQUESTS, KubeApi, raise_unreadable
from libs.common.kube.errors import NotFound
from libs.common.kube.event_recorder import CLUSTER_REFERENCE
from libs.common.kube.events import ObjectReference, event_namespace
from libs.common.kube.lease import LeaseSpec
from libs.common.kube.objects import (
    ConfigMap,
    Resource,
    config_map_resource,
    namespaced_path,
    namespaced_resource,
)
from services.ipam.core.pages import is_page

T = TypeVar("T")
Part = Literal["nodes", "requests", "lease", "pods", "events", "config", "claims"]

_MANAGED_NODES: Final[Resource[ManagedNode]] = Resource(
    plural=NODES.plural, path=NODES.path, item=ManagedNode
)
_SERVING_REQUESTS: Final[Resource[CertificateSigningRequest]] = Resource(
    plural=SIGNING_REQUESTS.plural,
    path=SIGNING_REQUESTS.path,
    item=CertificateSigningRequest,
    query=SIGNING_REQUESTS.query,
    page_size=SIGNING_REQUESTS.page_size,
)
_CONFIG_KEY: Final = "ccm-config.yaml"  # in the chart's ConfigMap
_DEFAULT_LEASE: Final = (LEASE_NAMESPACE, WATCHER_LEASE_NAME)


async def read_cluster(kube: KubeApi, query: ClusterQuery, *parts: Part) -> ClusterSnapshot:
    """Return these parts; a part that cannot be read is Unavailable.

    The claims are read before and after all other parts.
    """

    async def read(part: Part) -> Any:
        reader, right = _READERS[part]
        return await get_or_unavailable(reader(kube, query), right.format(query=query))

    started = datetime.now(UTC)
    others: list[Part] = [part for part in _READERS if part in parts and part != "claims"]
    before = await read("claims") if "claims" in parts else ()
    found = dict(zip(others, await asyncio.gather(*map(read, others)), strict=True))
    if "lease" in parts:
        found["lease"] = await get_or_unavailable(
            fetch_watcher_lease(kube, query, found.get("pods", NOT_QUERIED)), "get leases.coordination.k8s.io"
        )
    if "claims" in parts:
        found["claims"] = _join_claims(before, await read("claims"))
    clock = read_last_date(kube, started)
    now = datetime.now(UTC)
    return ClusterSnapshot(
        at=now if isinstance(clock, Unavailable) else now + clock.offset, query=query, **found
    )


def require(part: tuple[T, ...] | Unavailable) -> tuple[T, ...]:
    """Return the objects. Raises CommandError if they could not be listed."""
    if isinstance(part, Unavailable):
        raise CommandError(f"the Kubernetes API request failed: {part.reason}")
    return part


async def list_pods(kube: KubeApi, namespace: str, labels: Mapping[str, str]) -> tuple[Pod, ...]:
    """Return the pods of the namespace that have all these labels. Raises KubeError."""
    return await list_all(kube, namespaced_resource("pods", Pod, namespace, labels, page_size=100))


async def list_workloads(kube: KubeApi, namespace: str = "") -> tuple[Workload, ...]:
    """Return the workloads of the namespace, or of the whole cluster if it is "". Raises KubeError."""
    place = f"/namespaces/{namespace}" if namespace else ""
    lists = await asyncio.gather(
        *(
            list_all(kube, Resource(plural=plural, path=f"/apis/apps/v1{place}/{plural}", item=Workload))
            for plural in COLLECTIONS.values()
        )
    )
    kinds = zip(COLLECTIONS, lists, strict=True)
    return tuple(msgspec.structs.replace(each, kind=kind) for kind, found in kinds for each in found)


async def list_events(kube: KubeApi, about: ObjectReference) -> tuple[KubeEvent, ...]:
    """Return the Events about an object, newest first. Raises KubeError."""
    query = {"fieldSelector": f"involvedObject.name={about.name}"}
    path = namespaced_path(event_namespace(about), "events")
    found = await list_all(kube, Resource(plural="events", path=path, item=KubeEvent, query=query))
    return select_events(found, about)


async def fetch_lease_state(kube: KubeApi, namespace: str, name: str, shown_name: str) -> LeaseState:
    """Return the state of a Lease; without a holder if it does not exist. Raises KubeError."""
    try:
        spec = (await kube.get_lease(namespace, name)).spec
    except NotFound:
        spec = LeaseSpec()
    return read_lease_state(spec, shown_name)


async def fetch_watcher_lease(
    kube: KubeApi, query: ClusterQuery, pods: tuple[Pod, ...] | Unavailable
) -> LeaseState | Unavailable:
    """Return the state of the watcher Lease; without a holder if the Lease does not exist.

    The Lease that the caller names takes precedence over the flags of the watcher's pods. Without such pods
    it is the default: the watcher may run outside the cluster. Raises KubeError.
    """
    is_named = bool(query.lease_name and query.lease_namespace)
    containers = () if is_named else list_containers(pods, WATCHER)
    found = {get_lease_name(each, WATCHER_LEASE) for each in containers} or {_DEFAULT_LEASE}
    unknown = "" if is_named or not isinstance(pods, Unavailable) else pods.reason
    if len(found) > 1:
        unknown = f"namespace {query.namespace} has several releases: select one with --release"
    place, name = _DEFAULT_LEASE if len(found) > 1 else found.pop()
    place, name = query.lease_namespace or place, query.lease_name or name
    shown = "" if (place, name) == _DEFAULT_LEASE else f"{place}/{name}"
    lease = await fetch_lease_state(kube, place, name, shown)
    if unknown and not lease.holder:
        why = f"{unknown}; set --lease-name and --lease-namespace"
        return Unavailable(reason=f"the Lease of the watcher is unknown: {why}")
    return lease


async def _read_config(kube: KubeApi, query: ClusterQuery) -> ConfigFile | None:
    """Return the file in the ConfigMap of the chart, if exactly one has it."""
    resource = config_map_resource(query.namespace, build_label_selector(query.release))
    maps = await list_all(kube, resource, raise_unreadable)
    found = [each for each in maps if _CONFIG_KEY in each.data]
    if len(found) != 1:
        return None
    place = f"ConfigMap {query.namespace}/{found[0].metadata.name}"
    return ConfigFile(text=found[0].data[_CONFIG_KEY], source=place)


async def _list_claim_pages(kube: KubeApi, _: ClusterQuery) -> tuple[ConfigMap, ...]:
    """Return all pages, selected by name: another client may have removed their labels."""
    maps = await list_all(kube, config_map_resource(CLAIM_PAGES_NAMESPACE, {}), raise_unreadable)
    return tuple(filter(is_page, maps))


def _join_claims(
    before: tuple[ConfigMap, ...] | Unavailable, after: tuple[ConfigMap, ...] | Unavailable
) -> ClaimPages | Unavailable:
    if isinstance(before, Unavailable):
        return before
    return after if isinstance(after, Unavailable) else ClaimPages(before=before, after=after)


# The function that reads each part, and the permission that it requires.
_READERS: Final[Mapping[Part, tuple[Callable[[KubeApi, ClusterQuery], Awaitable[Any]], str]]] = {
    "nodes": (lambda kube, query: list_all(kube, _MANAGED_NODES, raise_unreadable), "list nodes"),
    "requests": (
        lambda kube, query: list_all(kube, _SERVING_REQUESTS, raise_unreadable),
        "list certificatesigningrequests.certificates.k8s.io",
    ),
    "pods": (
        lambda kube, query: list_pods(kube, query.namespace, build_label_selector(query.release)),
        "list pods --namespace {query.namespace}",
    ),
    "events": (
        lambda kube, query: list_events(kube, CLUSTER_REFERENCE),
        "list events --namespace default",
    ),
    "config": (_read_config, "list configmaps --namespace {query.namespace}"),
    "claims": (_list_claim_pages, f"list configmaps --namespace {CLAIM_PAGES_NAMESPACE}"),
}
PARTS: Final[frozenset[Part]] = frozenset((*_READERS, "lease"))
