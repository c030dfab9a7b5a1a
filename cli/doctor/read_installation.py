"""Reads the snapshot for the checks with the caller's permissions; writes nothing: reviews are not stored."""

import asyncio
import importlib.metadata
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from cli.cluster.access import open_kube_client
from cli.cluster.cloud_accounts import list_accounts
from cli.cluster.installation import Installation, find_installations
from cli.cluster.kube_objects import TalosAccount, Workload
from cli.cluster.kube_reader import (
    get_bytes,
    get_object,
    get_or_absent,
    get_or_unavailable,
    list_all,
    own_connections,
    read_clock,
)
from cli.cluster.lease_state import LeaseState, read_lease_state
from cli.cluster.pod_commands import query_flow
from cli.cluster.query import ClusterQuery
from cli.cluster.read_cluster import PARTS, list_pods, list_workloads, read_cluster
from cli.cluster.snapshot import ConfigFile
from cli.cluster.unavailable import Unavailable
from cli.command_exit import CommandError
from cli.doctor.kubelet_queries import (
    probe_credential_in_pod,
    query_serving_certificates,
    read_unready_pods,
)
from cli.doctor.required_permissions import AccessReview, get_role_paths, list_access_reviews
from cli.doctor.snapshot import AccessReviews, InstallationSnapshot, TalosObjects
from libs.common.contract.kube_service import KubeService
from libs.common.kube.access_reviews import UserInfo, review_access
from libs.common.kube.api import SERVICES, KubeApi
from libs.common.kube.errors import Forbidden, KubeError, NotFound
from libs.common.kube.objects import ConfigMap

SYSTEM: Final = "kube-system"
UPSTREAM_LEASES: Final = ("cloud-controller-manager", "cloud-controller-manager-migration")
_CONNECTIONS: Final = 8
_TALOS: Final = "/apis/talos.dev/v1alpha1"
_REVIEW: Final = "create subjectaccessreviews.authorization.k8s.io"

_Reader = Callable[[KubeApi, InstallationSnapshot], Awaitable[Any]]


async def read_installation(query: ClusterQuery, parts: Collection[str]) -> InstallationSnapshot:
    """Return these parts of the snapshot; `query.namespace` may be "", which is any namespace.

    Raises CommandError, KubeError.
    """
    async with (
        open_kube_client(query, command="doctor") as one,
        own_connections(one, _CONNECTIONS) as kube,
    ):
        return await _read_parts(kube, query, parts)


async def _read_parts(kube: KubeApi, query: ClusterQuery, parts: Collection[str]) -> InstallationSnapshot:
    workloads, is_cluster_wide = await list_visible_workloads(kube, query.namespace or SYSTEM)
    found = find_installations(workloads)
    here = select_installation(query, found, is_cluster_wide=is_cluster_wide)
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
        workloads=workloads,
        is_cluster_wide=is_cluster_wide,
    )
    wanted = [part for part in READERS if part in parts]
    values = await asyncio.gather(*(READERS[part](kube, seen) for part in wanted))
    return msgspec.structs.replace(seen, **dict(zip(wanted, values, strict=True)))


async def list_visible_workloads(kube: KubeApi, namespace: str) -> tuple[tuple[Workload, ...], bool]:
    """Return the workloads, and whether they are those of the whole cluster.

    Without the permission to list them cluster-wide, they are those of the namespace. Raises KubeError.
    """
    try:
        return await list_workloads(kube), True
    except Forbidden:
        return await list_workloads(kube, namespace), False


def select_installation(
    query: ClusterQuery, found: Sequence[Installation], *, is_cluster_wide: bool
) -> Installation:
    """Return the first that matches; "" in the query matches any. Raises CommandError without one."""
    for one in found:
        if query.namespace in ("", one.namespace) and query.release in ("", one.release):
            return one
    if found:
        there = "; ".join(f"--namespace {one.namespace} --release {one.release}" for one in found)
        raise CommandError(f"no such installation; found: {there}")
    if is_cluster_wide:
        raise CommandError("this controller is not installed in the cluster; see docs/install.md")
    raise CommandError(
        f"this controller is not installed in namespace {query.namespace or SYSTEM}, and you may not list "
        "other namespaces: set --namespace, or see docs/install.md"
    )


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
        if lease is not None:
            found.append(read_lease_state(lease.spec, f"{SYSTEM}/{name}"))
    return tuple(found)


async def _read_config(kube: KubeApi, seen: InstallationSnapshot) -> ConfigFile | Unavailable | None:
    name, key = seen.installation.config_file
    text = await _read_config_map(kube, seen, name, key) if name else None
    return ConfigFile(text=text, source=f"{name}/{key}") if isinstance(text, str) else text


async def _read_config_map(
    kube: KubeApi, seen: InstallationSnapshot, name: str, key: str
) -> str | Unavailable | None:
    namespace = seen.installation.namespace
    right = f"get configmaps/{name} --namespace {namespace}"
    found = await get_or_absent(kube.get_config_map(namespace, name), right)
    return found.data.get(key) if isinstance(found, ConfigMap) else found


async def _review_accounts(kube: KubeApi, seen: InstallationSnapshot) -> AccessReviews | Unavailable:
    here, reviews = seen.installation, list_access_reviews(seen.installation)
    reviewed = await get_or_unavailable(
        asyncio.gather(*(_review_account(kube, here.namespace, each) for each in reviews)), _REVIEW
    )
    if isinstance(reviewed, Unavailable):
        return reviewed
    paths = sorted({path for one in reviewed if one.is_missing for path in get_role_paths(here, one)})
    existing = await asyncio.gather(*(_exists(kube, path) for path in paths))
    return AccessReviews(
        results=tuple(reviewed),
        existing={path: there for path, there in zip(paths, existing, strict=True) if there is not None},
    )


async def _review_account(kube: KubeApi, namespace: str, asked: AccessReview) -> AccessReview:
    """Return the review with its answer, for a ServiceAccount of that namespace. Raises KubeError."""
    account, groups = "system:serviceaccount", "system:serviceaccounts"
    user = UserInfo(
        username=f"{account}:{namespace}:{asked.service_account}",
        groups=(groups, f"{groups}:{namespace}", "system:authenticated"),
    )
    return msgspec.structs.replace(asked, is_allowed=await review_access(kube, user, asked.attributes))


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
        return TalosObjects(account=None, has_service=True)
    path = f"{_TALOS}/namespaces/{namespace}/serviceaccounts/{name}"
    right = f"get serviceaccounts.talos.dev/{name} --namespace {namespace}"
    account = await get_or_absent(get_object(kube, path, TalosAccount), right)
    has_kind = await _exists(kube, _TALOS) is not False if account is None else True
    service = await get_or_absent(
        get_bytes(kube, "/api/v1/namespaces/default/services/talos"), "get services/talos --namespace default"
    )
    return TalosObjects(
        account=account,
        has_kind=has_kind,
        has_service=service if isinstance(service, Unavailable) else service is not None,
    )


async def _list_services(kube: KubeApi, seen: InstallationSnapshot) -> tuple[KubeService, ...] | Unavailable:
    if not any(each.is_switched_on for each in list_accounts(seen.workloads)):
        return ()
    return await get_or_unavailable(list_all(kube, SERVICES), "list services --all-namespaces")


async def _read_labels(kube: KubeApi, seen: InstallationSnapshot) -> Mapping[str, str] | Unavailable:
    name = seen.installation.namespace
    found = await get_or_unavailable(kube.get_namespace(name), f"get namespaces/{name}")
    return found if isinstance(found, Unavailable) else found.metadata.labels


# The parts beside those of the cluster: their fields in the snapshot, and the functions that read them.
READERS: Final[Mapping[str, _Reader]] = {
    "unready": read_unready_pods,
    "system_pods": lambda kube, seen: get_or_unavailable(
        list_pods(kube, SYSTEM, {}), f"list pods --namespace {SYSTEM}"
    ),
    "upstream_leases": _read_upstream_leases,
    "serving": query_serving_certificates,
    "config": _read_config,
    "reviews": _review_accounts,
    "talos_objects": _read_talos_objects,
    "talos": probe_credential_in_pod,
    "clock": lambda kube, seen: read_clock(kube),
    "flow": lambda kube, seen: query_flow(kube, seen.query, seen.pods),
    "authority": lambda kube, seen: _read_config_map(
        kube, seen, f"{seen.installation.prefix}-nats-ca", "ca.crt"
    ),
    "namespace_labels": _read_labels,
    "services": _list_services,
}
