"""The watcher Lease: the one that the caller names, or the one in the flags of the watcher's workload."""

from typing import Final

import msgspec

from cli.doctor.installation import find_installations
from cli.doctor.kube_reader import KubeReader
from cli.doctor.workload_queries import list_workloads_at
from libs.common.contract.services import LEASE_NAMESPACE, WATCHER_LEASE_NAME
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import KubeError, NotFound
from libs.common.kube.lease import Lease

_HINT: Final = "set --lease-name and --lease-namespace"


class LeaseName(msgspec.Struct, frozen=True, kw_only=True):
    """Namespace and name of the Lease.

    `default_reason` says why the workload could not be read, in which case this is the default.
    """

    namespace: str = LEASE_NAMESPACE
    name: str = WATCHER_LEASE_NAME
    default_reason: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class LeaseNameUnknown(Exception):
    """The watcher's Lease name is unknown; the text gives the reason and what to do."""


class WatcherLease(msgspec.Struct, frozen=True, kw_only=True):
    """The name of the Lease, and the Lease itself; None if it does not exist."""

    lease_name: LeaseName
    lease: Lease | None


async def fetch_watcher_lease(
    kube: KubeApi, *, namespace: str, release: str, name: str = "", lease_namespace: str = ""
) -> WatcherLease:
    """Return the watcher Lease of that release in that namespace. Raises KubeError, LeaseNameUnknown.

    `name` and `lease_namespace` take precedence over the workload's flags; "" = not given.
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
        raise LeaseNameUnknown(f"the Lease of the watcher is unknown: {place.default_reason}; {_HINT}")
    return WatcherLease(lease_name=place, lease=lease)


async def _read_name_from_workload(kube: KubeApi, namespace: str, release: str) -> LeaseName:
    """Read the name from the workload's flags.

    Return the default if there is no workload: the watcher may run outside the cluster.
    """
    try:
        workloads = await list_workloads_at(KubeReader(kube), f"/namespaces/{namespace}")
    except NotFound:
        return LeaseName()
    except KubeError as error:
        return LeaseName(default_reason=str(error))
    found = {one.lease for one in find_installations(workloads) if release in ("", one.release)}
    if len(found) > 1:
        return LeaseName(
            default_reason=f"namespace {namespace} has several releases: select one with --release"
        )
    return next((LeaseName(namespace=place, name=name) for place, name in found), LeaseName())
