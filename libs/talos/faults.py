"""Translates gRPC statuses and connection errors to MachineFaults, in words for operators."""

from typing import Final

import msgspec

from libs.common.contract.machine import CONNECT_STEP, FaultKind, MachineFault

MAX_MESSAGE_CHARS: Final = 500

# https://grpc.io/docs/guides/status-codes/
_NAMES: Final = {
    1: "CANCELLED",
    2: "UNKNOWN",
    3: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    10: "ABORTED",
    11: "OUT_OF_RANGE",
    12: "UNIMPLEMENTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    15: "DATA_LOSS",
    16: "UNAUTHENTICATED",
}
_KINDS: Final[dict[int, FaultKind]] = {
    1: "refused",  # the forwarding connection was drained or the machine went away
    4: "timeout",
    5: "not_found",
    7: "permission",
    14: "refused",
    16: "certificate",
}
_NOT_FOUND: Final = 5
_PERMISSION_DENIED: Final = 7
_UNAVAILABLE: Final = 14

# Texts only refine the code; an unknown text falls back to the code.
_OTHER_MACHINE: Final = ("certificate is valid for", "is not valid for any", "doesn't contain any IP SANs")


class Status(msgspec.Struct, frozen=True):
    """The gRPC status of a call that a server ended."""

    code: int
    message: str

    @property
    def is_absent(self) -> bool:
        """Whether the resource does not exist, at least not in this version of Talos."""
        return self.code == _NOT_FOUND or self.is_unsupported

    @property
    def is_unsupported(self) -> bool:
        """Whether this version of Talos does not have the type of the resource."""
        return self.code == _PERMISSION_DENIED and self.message.endswith("is not supported")

    @property
    def is_endpoint_error(self) -> bool:
        """Whether another endpoint may answer: a proxy before Talos failed, or the endpoint is a worker."""
        if self.code == _UNAVAILABLE:
            return self.message.startswith("Received :status")  # an HTTP 502, 503, 504 or 429
        return self.code == _PERMISSION_DENIED and "no request forwarding" in self.message


def translate_status(status: Status, *, step: str, asked: str) -> MachineFault:
    """Return the fault of a gRPC status; `asked` is the endpoint and the machine behind it."""
    return MachineFault(
        kind=_classify(status), step=step, endpoint=asked, message=_describe(status)[:MAX_MESSAGE_CHARS]
    )


def _classify(status: Status) -> FaultKind:
    if status.is_unsupported:
        return "not_found"
    if status.code == _UNAVAILABLE and "authentication handshake failed" in status.message:
        return "wrong_machine" if any(text in status.message for text in _OTHER_MACHINE) else "certificate"
    return _KINDS.get(status.code, "internal")


def _describe(status: Status) -> str:
    text = f"{_NAMES.get(status.code, status.code)}: {status.message or 'no message'}"
    if status.code != _PERMISSION_DENIED:
        return text
    if "no request forwarding" in status.message:
        return f"{text} (this endpoint is not a control plane: it answers only for itself)"
    if "not authorized" in status.message:
        return f"{text} (the client certificate's roles do not allow it; os:reader is needed)"
    return text


def translate_connection_error(
    kind: FaultKind, reason: str, *, endpoint: str, certificate_problem: str
) -> MachineFault:
    """Return the fault of a failed connection; `certificate_problem` describes our own certificate."""
    hint = f"; {certificate_problem}" if certificate_problem and kind == "certificate" else ""
    message = f"no connection to {endpoint}: {reason}{hint}"
    return MachineFault(kind=kind, step=CONNECT_STEP, endpoint=endpoint, message=message[:MAX_MESSAGE_CHARS])
