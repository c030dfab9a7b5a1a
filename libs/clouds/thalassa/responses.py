"""What a response of the Thalassa Cloud API means: strictly decoded objects, or why it answers nothing."""

import ipaddress
from typing import Annotated, Final, TypeVar

import msgspec

from libs.clouds.error_responses import explain_error, explain_malformed
from libs.clouds.http_reader import HttpResponse
from libs.clouds.instances import Deleted, Instance, InstanceAddress, NotFound, Unanswered
from libs.common.json_errors import JSON_ERRORS

IDENTITY: Final = "[0-9A-Za-z_-]{1,128}"

_Identity = Annotated[str, msgspec.Meta(pattern=f"^{IDENTITY}$")]
_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Status(msgspec.Struct, frozen=True):
    status: _Text


class _Slug(msgspec.Struct, frozen=True):
    slug: _Text


class Organisation(msgspec.Struct, frozen=True):
    """Whose an object is."""

    identity: str = ""
    slug: str = ""


class Vpc(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a VPC that this client reads."""

    identity: _Identity
    cloud_region: _Slug | None = None
    organisation: Organisation | None = None


class _Interface(msgspec.Struct, frozen=True, rename="camel"):
    ip_addresses: tuple[str, ...] | None  # in Go, an empty list may be null


class Machine(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a machine that this client reads."""

    identity: _Identity
    name: _Text
    slug: _Text
    status: _Status
    # The Go client gives this field no name in JSON, and reads it in any case.
    state: str | None = None
    capital_state: str | None = msgspec.field(name="State", default=None)
    organisation: Organisation | None = None
    vpc: Vpc | None = None
    machine_type: _Slug | None = None
    availability_zone: str | None = None
    interfaces: tuple[_Interface, ...] | None = None


class AccessToken(msgspec.Struct, frozen=True):
    """An access token for client credentials (RFC 6749, section 5.1)."""

    access_token: Annotated[str, msgspec.Meta(pattern=r"^[\x21-\x7e]+\Z")]
    token_type: Annotated[str, msgspec.Meta(pattern=r"^[Bb]earer\Z")]
    expires_in: Annotated[int, msgspec.Meta(ge=0)] = 300  # seconds; a server may leave it out

    @property
    def renew_after_seconds(self) -> float:
        """The age at which to replace the token: a minute before its end, or half of a short life."""
        return self.expires_in - min(60.0, self.expires_in / 2)


class ErrorBody(msgspec.Struct, frozen=True):
    """An error of the API. The message may repeat what was sent, so it is shown of writes only."""

    message: _Text


ItemT = TypeVar("ItemT", bound=msgspec.Struct)  # with an `identity`; some name their organisation


def read_item(
    response: HttpResponse, identity: str, item: type[ItemT], *, organisation: str
) -> ItemT | NotFound | Unanswered:
    """Return the object with exactly this identity, if it is one of the organisation."""
    if response.status != 200:
        return _read_error(response)
    try:
        found = msgspec.json.decode(response.body, type=item)
    except JSON_ERRORS as error:
        return explain_malformed(item.__name__, error)
    if (other := _get_identity(found)) != identity:  # the API may find objects by their slug too
        return Unanswered("malformed", f"{identity}: the answer has the identity {other}")
    if _is_foreign(found, organisation):
        return Unanswered("malformed", f"{identity} belongs to another organisation")
    return found


def read_list(
    response: HttpResponse, item: type[ItemT], *, organisation: str
) -> tuple[ItemT, ...] | Unanswered:
    """Return the objects of a list, which has no pages, if all are of the organisation."""
    if response.status != 200:
        error = _read_error(response)
        return error if isinstance(error, Unanswered) else Unanswered("malformed", f"no {item.__name__}: 404")
    try:
        items: tuple[ItemT, ...] = (
            msgspec.json.decode(response.body, type=tuple[item, ...] | None) or ()  # type: ignore[valid-type]
        )
    except JSON_ERRORS as error:
        return explain_malformed(item.__name__, error)
    if len({_get_identity(each) for each in items}) != len(items):
        return Unanswered("malformed", f"a {item.__name__} is listed twice")
    if any(_is_foreign(each, organisation) for each in items):
        return Unanswered("malformed", f"a {item.__name__} belongs to another organisation")
    return items


def _get_identity(found: msgspec.Struct) -> str:
    identity: str = getattr(found, "identity")  # noqa: B009  # each object has one
    return identity


def _is_foreign(found: msgspec.Struct, organisation: str) -> bool:
    """Whether the object names an organisation, and not the one of the request, by its slug or identity."""
    named: Organisation | None = getattr(found, "organisation", None)
    return named is not None and organisation not in {named.identity, named.slug}


def build_instance(machine: Machine) -> Instance | Deleted | Unanswered:
    """Return the instance of a machine, with the values that the cloud's own controller writes.

    A machine is deleted only if both of its states are `deleted`: one of them may be the desired state.
    """
    if {machine.status.status, machine.state, machine.capital_state} - {"", None} == {"deleted"}:
        return Deleted()
    vpc = machine.vpc
    try:
        addresses = tuple(
            InstanceAddress(str(ipaddress.ip_address(address)), vpc.identity)
            for interface in machine.interfaces or ()
            for address in interface.ip_addresses or ()
            if vpc is not None  # without its network, an address would read as a public one
        )
    except ValueError:
        return Unanswered("malformed", f"machine {machine.identity}: an address is none")
    return Instance(
        id=machine.identity,
        name=machine.slug,
        is_shut_down=machine.status.status == "stopped",
        region=vpc.cloud_region.slug if vpc is not None and vpc.cloud_region is not None else "",
        zone=machine.availability_zone or "",
        instance_type=machine.machine_type.slug if machine.machine_type is not None else "",
        addresses=addresses,
    )


def read_access_token(response: HttpResponse) -> AccessToken | Unanswered:
    """Return the token that client credentials were exchanged for."""
    if response.status == 400:  # for invalid_client, beside 401 (RFC 6749, section 5.2)
        return Unanswered("unauthorized", "HTTP 400 from the token endpoint")
    if response.status != 200:
        return explain_error(response, "from the token endpoint")
    try:
        return msgspec.json.decode(response.body, type=AccessToken)
    except JSON_ERRORS as error:
        return explain_malformed("access token", error)


def _read_error(response: HttpResponse) -> NotFound | Unanswered:
    try:
        msgspec.json.decode(response.body, type=ErrorBody)
    except JSON_ERRORS:
        return explain_error(response, "without an error of the Thalassa Cloud API")
    return NotFound() if response.status == 404 else explain_error(response, "from the Thalassa Cloud API")
