"""Reads responses to writes: only an error in the API's own form proves that nothing has changed."""

import re
from typing import Final, Literal

import msgspec

from libs.clouds.balancers import RejectionKind, WriteRejection
from libs.clouds.error_responses import explain_error, explain_malformed, read_number, shorten_message
from libs.clouds.http_reader import HttpResponse
from libs.clouds.instances import NotFound, Unanswered
from libs.clouds.thalassa.balancers.documents import ObjectId
from libs.clouds.thalassa.responses import ErrorBody
from libs.common.json_errors import JSON_ERRORS

_LIMIT: Final = re.compile(r"quota|limit (reached|exceeded)", re.IGNORECASE)
_KINDS: Final[dict[int, RejectionKind]] = {
    401: "unauthorized",
    403: "unauthorized",
    409: "busy",
    423: "in_use",
    429: "rate_limited",
}


class _Created(msgspec.Struct, frozen=True):
    identity: ObjectId


def read_created(response: HttpResponse) -> str | WriteRejection | Unanswered:
    """Return the identity of the object that the request has created."""
    if response.status not in {200, 201, 202}:
        return _read_rejection(response)
    try:
        return msgspec.json.decode(response.body, type=_Created).identity
    except JSON_ERRORS as error:
        return explain_malformed("created object", error)


def read_accepted(response: HttpResponse) -> Literal[True] | WriteRejection | Unanswered:
    """Return True if the API has accepted the change; with a document or without one."""
    if response.status not in {200, 201, 202, 204}:
        return _read_rejection(response)
    try:
        if response.body:
            msgspec.json.decode(response.body)
    except JSON_ERRORS as error:  # of a proxy
        return explain_malformed("answer to a change", error)
    return True


def read_deletion(response: HttpResponse) -> bool | NotFound | WriteRejection | Unanswered:
    """Return True if the API has accepted the deletion, or that the object was not there."""
    answer = read_accepted(response)
    return NotFound() if response.status == 404 and isinstance(answer, WriteRejection) else answer


def _read_rejection(response: HttpResponse) -> WriteRejection | Unanswered:
    try:
        message = msgspec.json.decode(response.body, type=ErrorBody).message
    except JSON_ERRORS:
        return explain_error(response, "without an error of the Thalassa Cloud API")
    if not 400 <= response.status < 500:
        return explain_error(response, "from the Thalassa Cloud API")
    kind = _KINDS.get(response.status, "invalid")
    is_limit = response.status != 429 and _LIMIT.search(message) is not None
    return WriteRejection(
        kind="limit" if is_limit else kind,
        reason=f"HTTP {response.status}: {shorten_message(message)}",
        retry_after_seconds=read_number(response, "Retry-After"),
    )
