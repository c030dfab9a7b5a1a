"""Reads responses to writes: only an error in the API's own form proves that nothing has changed."""

from typing import Annotated, Final, TypeVar

import msgspec

from libs.clouds.balancers import RejectionKind, WriteRejection, WriteSuccess
from libs.clouds.error_responses import explain_error, explain_malformed, read_number, shorten_message
from libs.clouds.hcloud.balancers.documents import Action, Resource
from libs.clouds.hcloud.responses import read_error_code
from libs.clouds.http_reader import HttpResponse
from libs.clouds.instances import NotFound, Unanswered
from libs.common.json_errors import JSON_ERRORS

_KINDS: Final[dict[str, RejectionKind]] = {
    "conflict": "busy",
    "locked": "busy",
    "robot_unavailable": "busy",
    "resource_limit_exceeded": "limit",
    "resource_unavailable": "limit",
    "no_subnet_available": "limit",
    "placement_error": "limit",
    "protected": "in_use",
    "resource_in_use": "in_use",
    "resource_locked": "in_use",
    "unauthorized": "unauthorized",
    "forbidden": "unauthorized",
    "token_readonly": "unauthorized",
    "rate_limit_exceeded": "rate_limited",
}
# Each reports a failure of the cloud; none proves that nothing has changed.
_FAILURES: Final = frozenset({"service_error", "server_error", "unknown_error", "bad_gateway", "timeout"})
# Of an addition: the target is the reason. "not_found" may also name the balancer, which the caller reads.
_TARGET_ERRORS: Final = frozenset(
    {
        "cloud_resource_ip_not_allowed",
        "invalid_input",  # "cloud target was not found": a server that is deleted, or another project's
        "ip_not_in_vswitch_subnet",
        "ip_not_owned",
        "missing_ipv4",
        "network_has_no_vswitch_subnet",
        "not_found",
        "resolve_cloud_private_targets_error",  # formerly server_not_attached_to_network
        "resolve_cloud_public_targets_error",  # formerly missing_ipv4
        "robot_unavailable",
        "server_not_attached_to_network",
    }
)
# Of a create: the balancer may be possible without targets. An invalid input may also be another field.
_CREATION_ERRORS: Final = _TARGET_ERRORS | {
    "load_balancer_not_attached_to_network",
    "load_balancer_public_interface_disabled",  # of a dedicated server by its public address
}

ResultT = TypeVar("ResultT", bound=msgspec.Struct)


class ApiRejection(WriteRejection, frozen=True, kw_only=True):
    """A rejection in the API's own form."""

    code: str

    @property
    def is_of_a_target(self) -> bool:
        """Whether the addition of another target may succeed."""
        return self.code in _TARGET_ERRORS

    @property
    def may_create_without_targets(self) -> bool:
        """Whether a create may succeed without targets."""
        return self.code in _CREATION_ERRORS


class StartedCreation(msgspec.Struct, frozen=True):
    """The response to a create."""

    load_balancer: Resource
    action: Action


class StartedAction(msgspec.Struct, frozen=True):
    """The response to a change of a balancer, or to its deletion."""

    action: Action


class CreatedCertificate(msgspec.Struct, frozen=True):
    """The response to the creation of a certificate; the cloud issues it later."""

    certificate: Resource


class UpdatedBalancer(msgspec.Struct, frozen=True):
    """The response to another name or labels; there is no action."""

    load_balancer: Resource


class _FieldName(msgspec.Struct, frozen=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.\[\]-]{1,100}$")]


class _Details(msgspec.Struct, frozen=True):
    fields: tuple[_FieldName, ...] = ()
    limits: tuple[_FieldName, ...] = ()


class _ErrorWithDetails(msgspec.Struct, frozen=True):
    details: _Details


class _DetailsBody(msgspec.Struct, frozen=True):
    error: _ErrorWithDetails


class _ErrorWithMessage(msgspec.Struct, frozen=True):
    message: str


class _MessageBody(msgspec.Struct, frozen=True):
    error: _ErrorWithMessage


def read_write(response: HttpResponse, result: type[ResultT]) -> ResultT | ApiRejection | Unanswered:
    """Return the document, the rejection, or why the outcome is unknown."""
    if response.status in {200, 201}:
        try:
            return msgspec.json.decode(response.body, type=result)
        except JSON_ERRORS as error:
            return explain_malformed("response to a write", error)
    return _read_rejection(response)


def read_deletion(
    response: HttpResponse,
) -> StartedAction | WriteSuccess | NotFound | ApiRejection | Unanswered:
    """Return the deletion, or that the balancer was not there."""
    if response.status == 204 and not response.body:  # there may be no action for it
        return WriteSuccess()
    answer = read_write(response, StartedAction)
    is_missing = isinstance(answer, ApiRejection) and answer.code == "not_found"
    return NotFound() if is_missing and response.status == 404 else answer


def _read_rejection(response: HttpResponse) -> ApiRejection | Unanswered:
    code = read_error_code(response)
    if not code or code in _FAILURES or not 400 <= response.status < 500:
        return explain_error(response, code or "without an error of the Hetzner Cloud API")
    names, message = ", ".join(_read_names(response)), shorten_message(_read_message(response))
    named = f"{code} ({names})" if names else code
    return ApiRejection(
        code=code,
        kind=_KINDS.get(code, "invalid"),
        reason=f"{named}: {message}" if message else named,
        retry_after_seconds=read_number(response, "Retry-After"),
    )


def _read_names(response: HttpResponse) -> list[str]:
    """Return the fields or limits that the error names."""
    try:
        details = msgspec.json.decode(response.body, type=_DetailsBody).error.details
    except JSON_ERRORS:
        return []
    return [each.name for each in (*details.fields, *details.limits)]


def _read_message(response: HttpResponse) -> str:
    """Return the cloud's own words: many causes have the code "invalid_input", and no field."""
    try:
        return msgspec.json.decode(response.body, type=_MessageBody).error.message
    except JSON_ERRORS:
        return ""
