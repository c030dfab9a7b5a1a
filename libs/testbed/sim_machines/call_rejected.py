"""Rejected calls: a gRPC status with the message of Talos."""

from __future__ import annotations

from enum import IntEnum


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
