"""Selects the machine of a call by its headers, in the order of apid's director; errors of connections."""

from __future__ import annotations

import re
from collections.abc import Sequence

from libs.testbed.sim_machines.call_rejected import CallRejected, StatusCode

_APID_PORT = 50000
_WITH_PORT = re.compile(r"(?:\[[^][]*\]|[^][:]*):[^][:]*")  # accepted by Go's SplitHostPort


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
