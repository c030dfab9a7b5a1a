"""Which Lease the watcher holds: the one that the caller names, or else the one that its workload is told."""

from typing import Final

import msgspec

from cli.doctor.ask_kubernetes import Ask
from cli.doctor.ask_workloads import workloads_in
from cli.doctor.installation import installations
from libs.common.kube_api.api import KubeApi
from libs.common.kube_api.errors import KubeError, NotFound
from libs.common.kube_api.lease import Lease
from libs.common.service_spec import LEASE_NAMESPACE, WATCHER_LEASE_NAME

_SAY: Final = "--lease-name and --lease-namespace name it"


class LeaseName(msgspec.Struct, frozen=True, kw_only=True):
    """Where the Lease is. `guessed` is why the workload was not read: this is the default then."""

    namespace: str = LEASE_NAMESPACE
    name: str = WATCHER_LEASE_NAME
    guessed: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class UnknownLease(Exception):
    """It cannot be told which Lease the watcher holds; says why, and what to do about it."""


class LeaseRead(msgspec.Struct, frozen=True, kw_only=True):
    """The Lease, and where it is; None = there is none."""

    place: LeaseName
    lease: Lease | None


async def read_lease(
    kube: KubeApi, *, namespace: str, release: str, name: str = "", lease_namespace: str = ""
) -> LeaseRead:
    """The watcher's Lease, of that release in that namespace. Raises KubeError, UnknownLease.

    `name` and `lease_namespace` win over what the workload says; "" = not given.
    """
    place = LeaseName()
    if not (name and lease_namespace):
        place = await _as_told(kube, namespace, release)
    place = msgspec.structs.replace(
        place, namespace=lease_namespace or place.namespace, name=name or place.name
    )
    try:
        lease = await kube.get_lease(place.namespace, place.name)
    except NotFound:
        lease = None
    if place.guessed and (lease is None or not lease.holder):
        raise UnknownLease(f"which Lease the watcher holds is unknown: {place.guessed}; {_SAY}")
    return LeaseRead(place=place, lease=lease)


async def _as_told(kube: KubeApi, namespace: str, release: str) -> LeaseName:
    """The default where no workload of ours is there: a process beside the cluster may hold it."""
    try:
        workloads = await workloads_in(Ask(kube), f"/namespaces/{namespace}")
    except NotFound:
        return LeaseName()
    except KubeError as error:
        return LeaseName(guessed=str(error))
    found = {one.lease for one in installations(workloads) if release in ("", one.release)}
    if len(found) > 1:
        return LeaseName(guessed=f"namespace {namespace} has several releases, choose by --release")
    return next((LeaseName(namespace=place, name=name) for place, name in found), LeaseName())
