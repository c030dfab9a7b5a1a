"""What a response of the Hetzner Cloud API means: strictly decoded objects, or why it answers nothing."""

import ipaddress
from typing import Annotated, Final, Generic, Protocol, TypeVar

import msgspec

from libs.clouds.error_responses import explain_error, explain_malformed, read_number
from libs.clouds.http_reader import HttpResponse
from libs.clouds.instances import Instance, InstanceAddress, NotFound, RateLimit, Unanswered
from libs.common.json_errors import JSON_ERRORS

PER_PAGE: Final = 50  # the API's maximum

# The API no longer names datacenters. The cloud's own controller writes these as zones, and for a location
# that is not in the table the location itself.
_ZONES: Final = {
    "ash": "ash-dc1",
    "fsn1": "fsn1-dc14",
    "hel1": "hel1-dc2",
    "hil": "hil-dc1",
    "nbg1": "nbg1-dc3",
    "sin": "sin-dc1",
}

_ObjectId = Annotated[int, msgspec.Meta(gt=0)]
_Name = Annotated[str, msgspec.Meta(min_length=1)]


class Entity(msgspec.Struct, frozen=True):
    """Any object of a project; `type` distinguishes images."""

    id: _ObjectId
    type: str = ""


class _Named(msgspec.Struct, frozen=True):
    name: _Name


class _PublicAddress(msgspec.Struct, frozen=True):
    ip: str


class _PublicNet(msgspec.Struct, frozen=True):
    ipv4: _PublicAddress | None
    ipv6: _PublicAddress | None


class _PrivateNet(msgspec.Struct, frozen=True):
    network: _ObjectId
    ip: str


class Server(msgspec.Struct, frozen=True):
    """The fields of a server that this client reads."""

    id: _ObjectId
    name: _Name
    status: _Name
    server_type: _Named
    location: _Named
    public_net: _PublicNet
    private_net: tuple[_PrivateNet, ...]


class Pagination(msgspec.Struct, frozen=True):
    """The position of a page. The API may leave out the totals."""

    page: int
    per_page: int
    next_page: int | None
    last_page: int | None
    total_entries: int | None


class _Item(Protocol):
    @property
    def id(self) -> int: ...


ItemT = TypeVar("ItemT", bound=_Item)


class Page(msgspec.Struct, Generic[ItemT], frozen=True):
    """One page of a list."""

    items: tuple[ItemT, ...]
    pagination: Pagination

    @property
    def has_next(self) -> bool:
        """Whether there is a page after this one."""
        return self.pagination.next_page is not None


class _Meta(msgspec.Struct, frozen=True):
    pagination: Pagination


class _Error(msgspec.Struct, frozen=True):
    # Of a read, only this becomes text.
    code: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_]{1,64}$")]


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _Error


def read_item(response: HttpResponse, key: str, item: type[ItemT]) -> ItemT | NotFound | Unanswered:
    """Return the object below `key`."""
    if response.status != 200:
        return _read_error(response)
    try:
        body = msgspec.json.decode(response.body, type=dict[str, msgspec.Raw])
        return msgspec.json.decode(body.get(key, b""), type=item)
    except JSON_ERRORS as error:
        return explain_malformed(key, error)


def read_page(response: HttpResponse, key: str, item: type[ItemT]) -> Page[ItemT] | Unanswered:
    """Return the page of the list below `key`."""
    if response.status != 200:
        error = _read_error(response)
        return error if isinstance(error, Unanswered) else Unanswered("malformed", f"no list of {key}: 404")
    try:
        body = msgspec.json.decode(response.body, type=dict[str, msgspec.Raw])
        items: tuple[ItemT, ...] = msgspec.json.decode(body.get(key, b""), type=tuple[item, ...])  # type: ignore[valid-type]
        meta = msgspec.json.decode(body.get("meta", b""), type=_Meta)
    except JSON_ERRORS as error:
        return explain_malformed(key, error)
    return Page(items, meta.pagination)


def explain_contradiction(pages: list[Page[ItemT]]) -> str:
    """Return why these pages, the first ones in their order, are not those of one list, "" if they may be.

    Between two pages, an object that comes or goes shifts the others, so that one is missing or listed twice.
    """
    first, last = pages[0].pagination, pages[-1].pagination
    count = sum(len(page.items) for page in pages)
    if last.page != len(pages) or last.per_page != PER_PAGE:
        return f"page {last.page} of {last.per_page} instead of page {len(pages)} of {PER_PAGE}"
    if (last.last_page, last.total_entries) != (first.last_page, first.total_entries):
        return "the list changed while it was read"
    if last.next_page is None:
        is_complete = last.last_page in {None, last.page} and last.total_entries in {None, count}
        return "" if is_complete and len(pages[-1].items) <= PER_PAGE else "the list ends too early"
    return "" if last.next_page == last.page + 1 and count == last.page * PER_PAGE else "a page is not full"


def build_instance(server: Server) -> Instance | Unanswered:
    """Return the instance of a server, with the values that the cloud's own controller writes."""
    public = server.public_net
    try:
        addresses = [InstanceAddress(str(ipaddress.IPv4Address(each.ip))) for each in (public.ipv4,) if each]
        if public.ipv6:  # the cloud names the /64; a server has the first address in it
            addresses.append(InstanceAddress(str(ipaddress.IPv6Network(public.ipv6.ip)[1])))
        private = [
            InstanceAddress(str(ipaddress.ip_address(each.ip)), str(each.network))
            for each in server.private_net
        ]
    except (ValueError, IndexError):
        return Unanswered("malformed", f"server {server.id}: an address is none")
    location = server.location.name
    return Instance(
        id=str(server.id),
        name=server.name,
        is_shut_down=server.status == "off",
        region=location,
        zone=_ZONES.get(location, location),
        instance_type=server.server_type.name,
        addresses=(*addresses, *private),
    )


def read_rate_limit(response: HttpResponse, *, unix_time: float) -> tuple[RateLimit, float] | None:
    """Return the rate limit of the project, and the seconds until all of it is there again."""
    limit = read_number(response, "RateLimit-Limit")
    remaining = read_number(response, "RateLimit-Remaining")
    reset = read_number(response, "RateLimit-Reset")
    if limit is None or remaining is None or reset is None or not 0 <= remaining <= limit != 0:
        return None
    return RateLimit(limit, remaining), reset - unix_time


def read_error_code(response: HttpResponse) -> str:
    """Return the code of an error in the API's own form, "" for that of a proxy."""
    try:
        return msgspec.json.decode(response.body, type=_ErrorBody).error.code
    except JSON_ERRORS:
        return ""


def _read_error(response: HttpResponse) -> NotFound | Unanswered:
    code = read_error_code(response)
    if response.status == 404 and code == "not_found":
        return NotFound()
    return explain_error(response, code or "without an error of the Hetzner Cloud API")
