"""What responses of Octavia and Neutron mean: strictly decoded objects, rejections, or no answer."""

import re
from typing import Final, Literal, TypeVar

import msgspec

from libs.clouds.balancers import RejectionKind, WriteRejection
from libs.clouds.error_responses import explain_error, explain_malformed, read_number, shorten_message
from libs.clouds.http_reader import HttpResponse
from libs.clouds.instances import NotFound, Unanswered
from libs.common.json_errors import JSON_ERRORS

PER_PAGE: Final = 500
_BUSY: Final = re.compile(r"is immutable and cannot be updated|Invalid state PENDING_\w+ of")
_IMMUTABLE: Final = re.compile(r"is immutable|Invalid state \w+ of")
_LIMIT: Final = re.compile(r"Quota has been met|No more IP addresses|Insufficient", re.IGNORECASE)
# of a provider that cannot do what a field asks for, by a status of the server
_UNSUPPORTED: Final = re.compile(r"does not support|not implemented", re.IGNORECASE)
_NEUTRON_LIMITS: Final = frozenset(
    {"OverQuota", "RoutesExhausted", "IpAddressGenerationFailure", "ExternalIpAddressExhausted"}
)
# also: another client has changed the object since it was read
_NEUTRON_BUSY: Final = frozenset(
    {"RetryRequest", "RouterInterfaceNotFound", "RevisionNumberConstraintFailed"}
)

ItemT = TypeVar("ItemT")


class _Fault(msgspec.Struct, frozen=True):
    """Octavia's form of an error."""

    faultcode: str
    faultstring: str


class _NeutronFault(msgspec.Struct, frozen=True):
    type: str
    message: str


class _NeutronBody(msgspec.Struct, frozen=True):
    error: _NeutronFault = msgspec.field(name="NeutronError")


class Page(msgspec.Struct, frozen=True):
    """One page of a list; its objects have an `id`."""

    items: tuple[object, ...]
    has_next: bool


class _Link(msgspec.Struct, frozen=True):
    rel: str


class OpenStackRejection(WriteRejection, frozen=True, kw_only=True):
    """A rejection in the form of the service's own errors."""

    status: int
    is_immutable: bool = False  # the balancer's state allows no change


def read_item(
    response: HttpResponse, key: str, item: type[ItemT], object_id: str
) -> ItemT | NotFound | Unanswered:
    """Return what is below `key`; NotFound only in the service's own form, with the exact id."""
    if response.status != 200:
        return _read_error(response, object_id)
    found = _decode(response, key, item)
    if isinstance(found, Unanswered) or getattr(found, "id", object_id) == object_id:
        return found
    return Unanswered("malformed", f"{key} {object_id}: the answer has another id")


def read_page(response: HttpResponse, key: str, item: type[ItemT]) -> Page | Unanswered:
    """Return one page of a list."""
    if response.status != 200:
        found = _read_error(response, "")
        return Unanswered("malformed", f"{key}: no list") if isinstance(found, NotFound) else found
    items = _decode(response, key, tuple[item, ...])  # type: ignore[valid-type]
    if isinstance(items, Unanswered):
        return items
    links = _decode(response, f"{key}_links", tuple[_Link, ...], default=b"[]")
    if isinstance(links, Unanswered):
        return links
    return Page(items, any(each.rel == "next" for each in links))


def read_created(response: HttpResponse, key: str) -> str | OpenStackRejection | Unanswered:
    """Return the id of the object that the request has created."""
    if response.status not in {201, 202}:
        return _read_rejection(response)
    found = _decode(response, key, _Created)
    return found if isinstance(found, Unanswered) else found.id


class _Created(msgspec.Struct, frozen=True):
    id: str


def read_accepted(response: HttpResponse) -> Literal[True] | OpenStackRejection | Unanswered:
    """Return True if the service has accepted the change; without a document, or with one."""
    if response.status not in {200, 201, 202, 204}:
        return _read_rejection(response)
    try:
        if response.body:
            msgspec.json.decode(response.body, type=dict[str, msgspec.Raw])
    except JSON_ERRORS as error:  # of a proxy
        return explain_malformed("answer to a change", error)
    return True


def read_deletion(
    response: HttpResponse, object_id: str
) -> bool | NotFound | OpenStackRejection | Unanswered:
    """Return True if the service has accepted the deletion, or that the object was not there."""
    if response.status == 404:
        return _read_error(response, object_id)
    return read_accepted(response)


def _decode(
    response: HttpResponse, key: str, item: type[ItemT], *, default: bytes = b""
) -> ItemT | Unanswered:
    try:
        body = msgspec.json.decode(response.body, type=dict[str, msgspec.Raw])
        return msgspec.json.decode(body.get(key, default), type=item)
    except JSON_ERRORS as error:
        return explain_malformed(key, error)


def _read_fault(response: HttpResponse) -> tuple[str, str]:
    """Return type and message of the service's own error; the type of one of Octavia is ""."""
    try:
        fault = msgspec.json.decode(response.body, type=_Fault)
    except JSON_ERRORS:
        pass
    else:
        return "", fault.faultstring
    try:
        neutron = msgspec.json.decode(response.body, type=_NeutronBody).error
    except JSON_ERRORS:
        return "", ""
    return neutron.type, neutron.message


def _read_error(response: HttpResponse, object_id: str) -> NotFound | Unanswered:
    kind, message = _read_fault(response)
    if response.status == 404 and object_id and object_id in message:
        return NotFound()
    return _explain(response, kind, message)


def _explain(response: HttpResponse, kind: str, message: str) -> Unanswered:
    if not message:
        return explain_error(response, kind or "of no service")
    return explain_error(response, f"{kind or 'of Octavia'}: {shorten_message(message)}")


def _read_rejection(response: HttpResponse) -> OpenStackRejection | Unanswered:
    kind, message = _read_fault(response)
    is_unsupported = response.status == 501 and _UNSUPPORTED.search(message) is not None
    if not message or not (400 <= response.status < 500 or is_unsupported):
        return _explain(response, kind, message)
    return OpenStackRejection(
        status=response.status,
        kind=_classify(response.status, kind, message),
        reason=f"HTTP {response.status}: {shorten_message(message)}",
        retry_after_seconds=read_number(response, "Retry-After"),
        is_immutable=response.status == 409 and _IMMUTABLE.search(message) is not None,
    )


def _classify(status: int, kind: str, message: str) -> RejectionKind:
    if status == 429:
        return "rate_limited"
    if kind in _NEUTRON_LIMITS or _LIMIT.search(message):  # Octavia answers 403
        return "limit"
    if status in {401, 403}:
        return "unauthorized"
    if status in {409, 412} and (kind in _NEUTRON_BUSY or _BUSY.search(message)):
        return "busy"
    return "invalid"
