"""Translates HTTP responses of the API server to errors, which determine the message delivery."""

import re
from typing import Final

import msgspec

from libs.common.bus.delivery import PermanentError, TemporaryError, clamp_retry_after
from libs.common.json_errors import JSON_ERRORS

# Start of kube-apiserver's messages for denials by a webhook or a ValidatingAdmissionPolicy.
_DENIAL: Final = re.compile(
    r"""admission webhook "|[a-z0-9.]+ "[^"]*" is forbidden: ValidatingAdmissionPolicy '"""
)
_DENIALS_WITH: Final = frozenset({404, 409, 410, 422})  # without a denial, these describe the object

_TEXT_LIMIT: Final = 300  # characters of a response that is no Status: enough to recognize a proxy's page


class Cause(msgspec.Struct, frozen=True):
    """One element of details.causes: the rejected field and the machine-readable reason."""

    reason: str = ""
    message: str = ""
    field: str = ""


class _Details(msgspec.Struct, frozen=True, rename="camel"):
    causes: tuple[Cause, ...] | None = None
    retry_after_seconds: float | None = None


class Status(msgspec.Struct, frozen=True):
    """The fields of a meta/v1 Status that this client reads: of an error, of a watch, or of an exec."""

    status: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


class KubeError(Exception):
    """The request failed.

    `status` is the HTTP status (0 = no response), `reason` the API's CamelCase reason, `message` its text,
    `causes` the rejected fields, `retry_after_seconds` the requested wait, 60 s at most.
    """

    def __init__(
        self,
        message: str,
        *,
        request: str = "",
        status: int = 0,
        reason: str = "",
        causes: tuple[Cause, ...] = (),
        retry_after_seconds: float | None = None,
    ) -> None:
        self.request = request
        self.message = message
        self.status = status
        self.reason = reason or type(self).__name__
        self.causes = causes
        self.retry_after_seconds = retry_after_seconds
        answered = f"{status} {self.reason}: " if status else ""
        Exception.__init__(self, f"{request}: {answered}{message}" if request else f"{answered}{message}")


class Unreachable(KubeError, TemporaryError):
    """No response: connection refused, TLS failure, timeout. The text names the server and what to check."""


class Unauthorized(KubeError, TemporaryError):
    """401: the API server rejects the credentials, also after they were read again."""


class Forbidden(KubeError, TemporaryError):
    """403: a permission is missing; the request succeeds after an operator grants it."""


class NotFound(KubeError, TemporaryError):
    """404: the object does not exist."""


class Conflict(KubeError, TemporaryError):
    """409: another client wrote first, or the preconditions of a deletion do not hold."""


class AlreadyExists(Conflict):
    """409 to a create: an object of that name exists."""


class Gone(KubeError, TemporaryError):
    """410: the resourceVersion or continue token was compacted; list again."""


class FenceFailed(KubeError, TemporaryError):
    """422 because the object changed after the patch was planned: fetch it and plan again."""


class TooManyRequests(KubeError, TemporaryError):
    """429 for longer than the request's deadline."""


class ServerError(KubeError, TemporaryError):
    """5xx, or another failure of the server or a proxy."""


class Invalid(KubeError, PermanentError):
    """422 for the request itself, or another rejection (400, 405, 413, 415) that no retry can change.

    An admission webhook chooses the status of its denial: 404, 409, 410 and 422 are included.
    """


_BY_STATUS: Final[dict[int, type[KubeError]]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: Invalid,
    409: Conflict,
    410: Gone,
    413: Invalid,
    415: Invalid,
    429: TooManyRequests,
}


def error_from(status: int, body: bytes, *, request: str, retry_after: str | None = None) -> KubeError:
    """Translate an error response; of `retry_after`, the header, only seconds are read."""
    try:
        decoded = msgspec.json.decode(body, type=Status)
    except JSON_ERRORS:
        decoded = Status(message=_plain_text(body))
    return error_from_status(decoded, status, request=request, retry_after_seconds=_seconds(retry_after))


def error_from_status(
    status_object: Status, status: int, *, request: str, retry_after_seconds: float | None = None
) -> KubeError:
    """Translate a Status object with this HTTP status, or from an ERROR event of a watch."""
    details = status_object.details or _Details()
    causes = details.causes or ()
    requested = retry_after_seconds if retry_after_seconds is not None else details.retry_after_seconds
    is_denial = status in _DENIALS_WITH and _DENIAL.match(status_object.message) is not None
    kind = Invalid if is_denial else _kind(status, status_object.reason, causes)
    return kind(
        status_object.message or "no message",
        request=request,
        status=status,
        reason=status_object.reason,
        causes=causes,
        retry_after_seconds=None if requested is None else clamp_retry_after(requested),
    )


def _kind(status: int, reason: str, causes: tuple[Cause, ...]) -> type[KubeError]:
    if status == 422:
        return FenceFailed if not causes or any(map(_is_fence, causes)) else Invalid
    if status == 409 and reason == "AlreadyExists":
        return AlreadyExists
    return _BY_STATUS.get(status, ServerError)


def _is_fence(cause: Cause) -> bool:
    """Whether the cause is a change of the object under the patch, not an error in the patch."""
    return (
        cause.field == "metadata.uid"
        # kube-apiserver 1.36 reports metadata.taints[2]
        or (cause.reason == "FieldValueDuplicate" and ".taints[" in cause.field)
        # An immutable field, set only while it is absent: another client has set it since.
        or "is immutable" in cause.message
        or "may not change" in cause.message
    )


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isascii() and header.isdigit() else None


def _plain_text(body: bytes) -> str:
    return " ".join(body[:_TEXT_LIMIT].decode(errors="replace").split())
