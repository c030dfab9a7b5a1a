"""What a call is refused with: a gRPC status in the words of Talos."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """The gRPC status codes that are in use here."""

    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class Refused(Exception):
    """A call that ends with a status other than OK."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


def not_authorized() -> Refused:
    """Talos's one answer to whoever may not do something."""
    return Refused(Code.PERMISSION_DENIED, "not authorized")


def not_simulated(what: str) -> Refused:
    """Talos can do it, these machines cannot."""
    return Refused(
        Code.UNIMPLEMENTED, f"the simulated machines know no {what}; those on COSI's own server do"
    )
