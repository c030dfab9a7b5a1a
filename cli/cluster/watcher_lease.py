"""The watcher Lease: the one that the caller names, or the one in the flags of the watcher's workload."""

from typing import Final

import msgspec

from cli.cluster.installation import find_installations
from cli.cluster.kube_reader import KubeReader
from cli.cluster.lease_state import LeaseState, read_lease_state
from cli.cluster.workload_queries import list_workloads_at
from cli.inside.flow_query import LeaseQuery
from libs.common.contract.services import LEASE_NAMESPACE, WATCHER_LEASE_NAME
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import KubeError, NotFound
from libs.common.kube.lease import LeaseSpec

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


async def fetch_watcher_lease(kube: KubeApi, where: LeaseQuery) -> LeaseState:
    """Return the state of the watcher Lease; without a holder if the Lease does not exist.

    The Lease that the caller names takes precedence over the workload's flags. Raises KubeError,
    LeaseNameUnknown.
    """
    place = LeaseName()
    if not (where.lease_name and where.lease_namespace):
        place = await _read_name_from_workload(kube, where.namespace, where.release)
    place = msgspec.structs.replace(
        place,
        namespace=where.lease_namespace or place.namespace,
        name=where.lease_name or place.name,
    )
    try:
        spec = (await kube.get_lease(place.namespace, place.name)).spec
    except NotFound:
        spec = LeaseSpec()
    if place.default_reason and not spec.holder_identity:
        raise LeaseNameUnknown(f"the Lease of the watcher is unknown: {place.default_reason}; {_HINT}")
    return read_lease_state(spec, "" if place == LeaseName() else str(place))


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
