"""Translates gRPC statuses to MachineFaults, in words for operators."""

import re
from typing import Final

import msgspec

from libs.common.contract.machine import FaultKind, MachineFault

MAX_MESSAGE_CHARS: Final = 500

_KINDS: Final[dict[str, FaultKind]] = {
    "CANCELLED": "refused",  # the forwarding connection was drained or the machine went away
    "DEADLINE_EXCEEDED": "timeout",
    "NOT_FOUND": "not_found",
    "PERMISSION_DENIED": "permission",
    "UNAVAILABLE": "refused",
    "UNAUTHENTICATED": "certificate",
}

# What grpc-go writes around the error of a connection that Talos could not open.
_NO_CONNECTION: Final = re.compile(
    r'connection error: desc = "transport: (?:Error while dialing: )?(?P<reason>.+)"', re.DOTALL
)
# Texts only refine the code; an unknown text falls back to the code.
_OTHER_MACHINE: Final = ("certificate is valid for", "is not valid for any", "doesn't contain any IP SANs")


class Status(msgspec.Struct, frozen=True):
    """The gRPC status of a call that a server ended."""

    code: str  # its name, see https://grpc.io/docs/guides/status-codes/
    message: str

    @property
    def is_absent(self) -> bool:
        """Whether the resource does not exist, at least not in this version of Talos."""
        return self.code == "NOT_FOUND" or self.is_unsupported

    @property
    def is_unsupported(self) -> bool:
        """Whether this version of Talos does not have the type of the resource."""
        return self.code == "PERMISSION_DENIED" and self.message.endswith("is not supported")

    @property
    def is_endpoint_error(self) -> bool:
        """Whether another endpoint may answer: a proxy before Talos failed, or the endpoint is a worker."""
        if self.code == "UNAVAILABLE":
            return self.message.startswith("Received :status")  # an HTTP 502, 503, 504 or 429
        return self.code == "PERMISSION_DENIED" and "no request forwarding" in self.message


def translate_status(status: Status, *, step: str, asked: str) -> MachineFault:
    """Return the fault of a gRPC status; `asked` is the endpoint and the machine behind it."""
    return MachineFault(
        kind=_classify(status), step=step, endpoint=asked, message=_describe(status)[:MAX_MESSAGE_CHARS]
    )


def _classify(status: Status) -> FaultKind:
    if status.is_unsupported:
        return "not_found"
    if status.code == "UNAVAILABLE" and "authentication handshake failed" in status.message:
        return "wrong_machine" if any(text in status.message for text in _OTHER_MACHINE) else "certificate"
    return _KINDS.get(status.code, "internal")


def _describe(status: Status) -> str:
    if status.code == "UNAVAILABLE" and (found := _NO_CONNECTION.fullmatch(status.message)):
        return found["reason"].replace('\\"', '"')
    text = f"{status.code}: {status.message or 'no message'}"
    if status.code != "PERMISSION_DENIED":
        return text
    if "no request forwarding" in status.message:
        return f"{text} (this endpoint is not a control plane: it answers only for itself)"
    if "not authorized" in status.message:
        return f"{text} (the client certificate's roles do not allow it; os:reader is needed)"
    return text
