"""Read permissions: Talos's policy for clients that are not os:admin, with its order and messages."""

from __future__ import annotations

from collections.abc import Iterable

from libs.testbed.sim_machines.call_rejected import CallRejected, StatusCode, make_not_authorized

_READERS = frozenset({"os:reader", "os:operator", "os:admin"})

_NAMESPACES = frozenset(
    {
        "runtime",
        "hardware",
        "network",
        "network-config",
        "k8s",
        "controlplane",
        "cluster",
        "cluster-raw",
        "config",
    }
)

# The types that `control_plane/machines` registers: those that a cloud controller may read.
_READABLE = (
    "PlatformMetadatas.talos.dev",
    "Versions.runtime.talos.dev",
    "MachineStatuses.runtime.talos.dev",
    "ExtensionStatuses.runtime.talos.dev",
    "SystemInformations.hardware.talos.dev",
    "Processors.hardware.talos.dev",
    "MemoryModules.hardware.talos.dev",
    "AddressStatuses.net.talos.dev",
    "NodeAddresses.net.talos.dev",
    "HostnameStatuses.net.talos.dev",
    "LinkStatuses.net.talos.dev",
    "RouteStatuses.net.talos.dev",
    "Nodenames.kubernetes.talos.dev",
    "NodeIPs.kubernetes.talos.dev",
    "NodeStatuses.kubernetes.talos.dev",
    "ControllerManagerConfigs.kubernetes.talos.dev",
    "Infos.cluster.talos.dev",
    "Identities.cluster.talos.dev",
    "Members.cluster.talos.dev",
    "Affiliates.cluster.talos.dev",
    "MachineTypes.config.talos.dev",
)
_SENSITIVE = (
    "KubeletSpecs.kubernetes.talos.dev",
    "KubeletConfigs.kubernetes.talos.dev",
    "MachineConfigs.config.talos.dev",
)
_MAY_READ = {kind.lower(): True for kind in _READABLE} | {kind.lower(): False for kind in _SENSITIVE}


def authorize_reader(roles: Iterable[str]) -> None:
    """Raise CallRejected unless one of the roles may read."""
    if _READERS.isdisjoint(roles):
        raise make_not_authorized()


def make_unsupported_error(kind: str) -> CallRejected:
    """Return Talos's error for an unknown type."""
    return CallRejected(StatusCode.PERMISSION_DENIED, f'resource type "{kind}" is not supported')


def check_readable(namespace: str, kind: str) -> None:
    """Raise CallRejected unless a reader may read this type (in any case) in this namespace."""
    may_read = _MAY_READ.get(kind.lower())
    if may_read is None:
        raise make_unsupported_error(kind)
    if not may_read:
        raise make_not_authorized()
    if namespace not in _NAMESPACES:
        raise CallRejected(StatusCode.PERMISSION_DENIED, f'namespace "{namespace}" is not supported')
