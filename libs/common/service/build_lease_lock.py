"""Builds the lock of an elected service."""

from libs.common.kube.api import KubeApi
from libs.common.kube.lease_lock import LeaseLock
from libs.common.service.service import Dependencies
from libs.common.settings.lease_times import LeaseSettings


def build_lease_lock(kube: KubeApi, settings: LeaseSettings, dependencies: Dependencies) -> LeaseLock:
    """Return the lock on the Lease of the settings; `kube` has connections of its own for it."""
    return LeaseLock(
        kube,
        namespace=settings.lease_namespace,
        name=settings.lease_name,
        identity=dependencies.identity,
        now=dependencies.now,
        clock=dependencies.monotonic,
        duration_seconds=int(settings.lease_duration_seconds),
        renew_deadline_seconds=settings.renew_deadline_seconds,
    )
