"""Which calls are rejected, and the messages of Talos."""

from __future__ import annotations

from enum import IntEnum

_APID_PORT = 50000


class StatusCode(IntEnum):
    """The gRPC status codes that the machines use."""

    NOT_FOUND = 5
    UNIMPLEMENTED = 12
    UNAVAILABLE = 14


class CallRejected(Exception):
    """A call that ends with a status other than OK."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


def make_not_simulated(what: str) -> CallRejected:
    """Return the error for a feature of Talos that these machines lack."""
    return CallRejected(
        StatusCode.UNIMPLEMENTED, f"the simulated machines do not support {what}; COSI's own server does"
    )


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
