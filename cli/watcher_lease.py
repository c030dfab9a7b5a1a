"""Which Lease the watcher holds: the one that the caller names, or else the one that its workload is told."""

from typing import Final

import msgspec

from cli.doctor.installation import find_installations
from cli.doctor.kube_reader import KubeReader
from cli.doctor.workload_queries import list_workloads_at
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import KubeError, NotFound
from libs.common.kube.lease import Lease
from libs.common.service.service_spec import LEASE_NAMESPACE, WATCHER_LEASE_NAME

_HINT: Final = "--lease-name and --lease-namespace name it"


class LeaseName(msgspec.Struct, frozen=True, kw_only=True):
    """Where the Lease is. `default_reason` is why the workload was not read: this is the default then."""

    namespace: str = LEASE_NAMESPACE
    name: str = WATCHER_LEASE_NAME
    default_reason: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class LeaseNameUnknown(Exception):
    """It cannot be told which Lease the watcher holds; says why, and what to do about it."""


class WatcherLease(msgspec.Struct, frozen=True, kw_only=True):
    """The Lease, and where it is; None = there is none."""

    lease_name: LeaseName
    lease: Lease | None


async def fetch_watcher_lease(
    kube: KubeApi, *, namespace: str, release: str, name: str = "", lease_namespace: str = ""
) -> WatcherLease:
    """The watcher's Lease, of that release in that namespace. Raises KubeError, LeaseNameUnknown.

    `name` and `lease_namespace` win over what the workload says; "" = not given.
    """
    place = LeaseName()
    if not (name and lease_namespace):
        place = await _read_name_from_workload(kube, namespace, release)
    place = msgspec.structs.replace(
        place, namespace=lease_namespace or place.namespace, name=name or place.name
    )
    try:
        lease = await kube.get_lease(place.namespace, place.name)
    except NotFound:
        lease = None
    if place.default_reason and (lease is None or not lease.holder):
        raise LeaseNameUnknown(f"which Lease the watcher holds is unknown: {place.default_reason}; {_HINT}")
    return WatcherLease(lease_name=place, lease=lease)


async def _read_name_from_workload(kube: KubeApi, namespace: str, release: str) -> LeaseName:
    """The default where no workload of ours is there: a process beside the cluster may hold it."""
    try:
        workloads = await list_workloads_at(KubeReader(kube), f"/namespaces/{namespace}")
    except NotFound:
        return LeaseName()
    except KubeError as error:
        return LeaseName(default_reason=str(error))
    found = {one.lease for one in find_installations(workloads) if release in ("", one.release)}
    if len(found) > 1:
        return LeaseName(default_reason=f"namespace {namespace} has several releases, choose by --release")
    return next((LeaseName(namespace=place, name=name) for place, name in found), LeaseName())
