"""What the API server's refusals mean to us: one table from HTTP answers to our errors, and to delivery."""

import re
from typing import Final

import msgspec

from libs.common.bus.delivery import PermanentError, TemporaryError, clamp_retry_after

# How kube-apiserver begins the denial of a webhook, and that of a ValidatingAdmissionPolicy.
_DENIAL: Final = re.compile(
    r"""admission webhook "|[a-z0-9.]+ "[^"]*" is forbidden: ValidatingAdmissionPolicy '"""
)
_DENIALS_WITH: Final = frozenset({404, 409, 410, 422})  # else they would say something of the object

_TEXT_LIMIT: Final = 300  # characters of an answer that is no Status: enough to recognise a proxy's page


class Cause(msgspec.Struct, frozen=True):
    """One element of details.causes: which field was refused, and the machine-readable why."""

    reason: str = ""
    message: str = ""
    field: str = ""


class _Details(msgspec.Struct, frozen=True, rename="camel"):
    causes: tuple[Cause, ...] | None = None
    retry_after_seconds: float | None = None


class Status(msgspec.Struct, frozen=True):
    """meta/v1 Status, as far as we read it: the body of each refusal and the object of a watch's ERROR."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


class KubeError(Exception):
    """The API server did not do it.

    `status` is the HTTP status (0: none came), `reason` the API's CamelCase word for it, `message` its text,
    `causes` the fields it refused, `retry_after_seconds` the wait that it asked for, 60 s at most.
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
    """No answer: refused, TLS, cut off, too slow. The text names the server and what to check."""


class Unauthorized(KubeError, TemporaryError):
    """401: our credentials are not accepted, not even after they were read again."""


class Forbidden(KubeError, TemporaryError):
    """403: a right is missing; somebody has to grant it, so it is worth asking again."""


class NotFound(KubeError, TemporaryError):
    """404: no such object."""


class Conflict(KubeError, TemporaryError):
    """409: somebody else wrote first, or a delete's preconditions do not hold."""


class AlreadyExists(Conflict):
    """409 to a create: an object of that name is there."""


class Gone(KubeError, TemporaryError):
    """410: that resourceVersion or continue token has been compacted away; list again."""


class FenceFailed(KubeError, TemporaryError):
    """422 because the object is no longer what the patch was planned for: read it again and plan anew."""


class TooManyRequests(KubeError, TemporaryError):
    """429 for longer than the request's deadline."""


class ServerError(KubeError, TemporaryError):
    """5xx, and whatever else is the server's or a proxy's affair."""


class Invalid(KubeError, PermanentError):
    """422 for what was asked, or another refusal (400, 405, 413, 415) that no repetition can change.

    An admission webhook chooses the status of its denial. A denial with 404, 409, 410 or 422 is this, too.
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
    """Translate an answer that is no success; `retry_after` is the header, of which only seconds are read."""
    try:
        told = msgspec.json.decode(body, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        told = Status(message=_plain_text(body))
    return error_from_status(told, status, request=request, retry_after_seconds=_seconds(retry_after))


def error_from_status(
    status_object: Status, status: int, *, request: str, retry_after_seconds: float | None = None
) -> KubeError:
    """Translate a Status object that came with this HTTP status, or in an ERROR event of a watch."""
    details = status_object.details or _Details()
    causes = details.causes or ()
    asked = retry_after_seconds if retry_after_seconds is not None else details.retry_after_seconds
    is_denial = status in _DENIALS_WITH and _DENIAL.match(status_object.message) is not None
    kind = Invalid if is_denial else _kind(status, status_object.reason, causes)
    return kind(
        status_object.message or "no message",
        request=request,
        status=status,
        reason=status_object.reason,
        causes=causes,
        retry_after_seconds=None if asked is None else clamp_retry_after(asked),
    )


def _kind(status: int, reason: str, causes: tuple[Cause, ...]) -> type[KubeError]:
    if status == 422:
        return FenceFailed if not causes or any(map(_is_fence, causes)) else Invalid
    if status == 409 and reason == "AlreadyExists":
        return AlreadyExists
    return _BY_STATUS.get(status, ServerError)


def _is_fence(cause: Cause) -> bool:
    """Whether this cause says that the object changed under the patch, not that the patch is wrong."""
    return (
        cause.field == "metadata.uid"
        or (
            cause.reason == "FieldValueDuplicate" and ".taints[" in cause.field
        )  # metadata.taints[2], says 1.36
        or _is_immutable(cause)
    )


def _is_immutable(cause: Cause) -> bool:
    # An immutable field that we set only while it is absent: somebody else has set it since.
    return "is immutable" in cause.message or "may not change" in cause.message


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isascii() and header.isdigit() else None


def _plain_text(body: bytes) -> str:
    return " ".join(body[:_TEXT_LIMIT].decode(errors="replace").split())
