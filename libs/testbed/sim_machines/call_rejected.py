"""Which calls are rejected, in the order of apid's director and policy, and with the messages of Talos."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum

_APID_PORT = 50000
_WITH_PORT = re.compile(r"(?:\[[^][]*\]|[^][:]*):[^][:]*")  # accepted by Go's SplitHostPort
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


class StatusCode(IntEnum):
    """The gRPC status codes that the machines use."""

    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallRejected(Exception):
    """A call that ends with a status other than OK."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


def make_not_authorized() -> CallRejected:
    """Return Talos's error for any missing permission."""
    return CallRejected(StatusCode.PERMISSION_DENIED, "not authorized")


def make_not_simulated(what: str) -> CallRejected:
    """Return the error for a feature of Talos that these machines lack."""
    return CallRejected(
        StatusCode.UNIMPLEMENTED, f"the simulated machines do not support {what}; COSI's own server does"
    )


def choose_target(node: Sequence[str], nodes: Sequence[str], method: str) -> str | None:
    """Return the value of the `node` header; None for the called machine itself. Raises CallRejected."""
    if len(node) > 1:
        raise CallRejected(StatusCode.INVALID_ARGUMENT, "node metadata must be single-valued")
    if nodes:
        words = f"one-2-many proxying is not supported for method {method}"
        raise CallRejected(StatusCode.INVALID_ARGUMENT, words)
    return node[0] if node else None


def check_target(node: str) -> None:
    """Raise CallRejected for a target with a port; apid adds its own."""
    if not node or _WITH_PORT.fullmatch(node):
        raise CallRejected(StatusCode.INTERNAL, f'invalid target "{node}"')


def make_dial_error(node: str) -> CallRejected:
    """Return the error for an address without a listener."""
    dialled = f"dial tcp {_format_dialled(node)}: connect: connection refused"
    words = f'connection error: desc = "transport: Error while dialing: {dialled}"'
    return CallRejected(StatusCode.UNAVAILABLE, words)


def make_reset_error(node: str) -> CallRejected:
    """Return the error for a machine that went down during the call."""
    words = f"error reading from server: read tcp {_format_dialled(node)}: read: connection reset by peer"
    return CallRejected(StatusCode.UNAVAILABLE, words)


def _format_dialled(node: str) -> str:
    return f"[{node}]:{_APID_PORT}" if ":" in node else f"{node}:{_APID_PORT}"


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
