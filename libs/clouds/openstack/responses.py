"""What responses of Nova and Neutron mean: strictly decoded objects, or why they answer nothing."""

import ipaddress
import re
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from libs.clouds.error_responses import collect_all, explain_error, explain_malformed
from libs.clouds.http_reader import HttpResponse
from libs.clouds.instances import Anchor, Instance, InstanceAddress, NotFound, Unanswered
from libs.clouds.openstack.login import Login
from libs.common.json_errors import JSON_ERRORS

PER_PAGE: Final = 100  # 0.3 MB
NETWORK: Final = "network"
_UNNAMED: Final = "(unnamed)"  # Neutron accepts a network without a name, and "" would be a public address
PROJECT: Final = "project"
UUID: Final = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"

# Nothing runs on it until an operator acts. A soft-deleted server can be restored, so it still exists.
_SHUT_DOWN: Final = {"SHUTOFF", "SUSPENDED", "SHELVED", "SHELVED_OFFLOADED", "SOFT_DELETED"}
_OTHER_THAN_LABEL: Final = re.compile(r"[^-A-Za-z0-9_.]+")  # the cloud's own controller replaces it in zones
Service = Literal["compute", "network", "load-balancer"]

_Id = Annotated[str, msgspec.Meta(pattern=f"^{UUID}$")]
_Name = Annotated[str, msgspec.Meta(min_length=1)]


class _Address(msgspec.Struct, frozen=True):
    addr: str
    kind: str = msgspec.field(name="OS-EXT-IPS:type")


class _Flavor(msgspec.Struct, frozen=True):
    original_name: str = ""  # since microversion 2.47


class _Server(msgspec.Struct, frozen=True):
    """The fields of a server that this client reads. While its cell is down, Nova leaves out most."""

    id: _Id
    name: _Name
    status: _Name
    tenant_id: _Name
    flavor: _Flavor
    addresses: dict[str, tuple[_Address, ...]]
    zone: str = msgspec.field(name="OS-EXT-AZ:availability_zone")


class _Network(msgspec.Struct, frozen=True):
    """The fields of a network that this client reads."""

    id: _Id
    project_id: _Name


class _Event(msgspec.Struct, frozen=True):
    """What a part of Nova did for an action."""

    event: str
    result: str | None


class Action(msgspec.Struct, frozen=True):
    """What was done with a server; the events are in the answer for one action only."""

    action: str
    instance_uuid: _Id
    request_id: Annotated[str, msgspec.Meta(pattern=r"^req-[0-9a-f-]{1,64}$")]
    start_time: _Name
    message: str | None  # None: without an error
    events: tuple[_Event, ...] = ()


class Page(msgspec.Struct, frozen=True):
    """One page of a list of servers."""

    items: tuple[Instance, ...]
    has_next: bool


class _Link(msgspec.Struct, frozen=True):
    rel: str


class _Fault(msgspec.Struct, frozen=True):
    message: str
    code: int = 0  # of Nova
    type: str = ""  # of Neutron


ItemT = TypeVar("ItemT")


def read_server(response: HttpResponse, login: Login, server_id: str) -> Instance | NotFound | Unanswered:
    """Return the server with this id."""
    found = _read(response, login, "compute", "server", _Server, object_id=server_id)
    if not isinstance(found, _Server):
        return found
    if found.id != server_id:
        return Unanswered("malformed", f"server {server_id}: the answer has the id {found.id}")
    return _build_instance(found, login)


def read_servers(response: HttpResponse, login: Login) -> Page | Unanswered:
    """Return one page of the project's servers."""
    found = _as_list(_read(response, login, "compute", "servers", tuple[_Server, ...]))
    if isinstance(found, Unanswered):
        return found
    links = _read(response, login, "compute", "servers_links", tuple[_Link, ...], default=b"[]")
    instances = collect_all(_build_instance(server, login) for server in found)
    if isinstance(instances, Unanswered):
        return instances
    if isinstance(links, NotFound | Unanswered):
        return Unanswered("malformed", "servers_links: no list")
    return Page(instances, any(link.rel == "next" for link in links))


def read_anchor(response: HttpResponse, login: Login, network_id: str) -> Anchor | NotFound | Unanswered:
    """Return the network if it belongs to the project; a shared one of another project is no anchor."""
    found = _read(response, login, "network", "network", _Network, object_id=network_id)
    if not isinstance(found, _Network):
        return found
    if (found.id, found.project_id) != (network_id, login.project):
        return Unanswered("malformed", f"network {network_id} is not one of the project")
    return Anchor(NETWORK, network_id)


def read_project(response: HttpResponse, login: Login, anchor: Anchor) -> Anchor | NotFound | Unanswered:
    """Return the anchor if it is the project and region of the login, by any list of its servers."""
    found = read_servers(response, login)
    if isinstance(found, Unanswered):
        return found
    return anchor if anchor == make_project_anchor(login) else NotFound()


def make_project_anchor(login: Login) -> Anchor:
    """Return the anchor of a project without a network of its own."""
    return Anchor(PROJECT, f"{login.project}@{login.region}")


def read_first_anchor(response: HttpResponse, login: Login) -> Anchor | Unanswered:
    """Return the first network that belongs to the project, else the anchor of the project."""
    found = _as_list(_read(response, login, "network", "networks", tuple[_Network, ...]))
    if isinstance(found, Unanswered):
        return found
    ids = [each.id for each in found if each.project_id == login.project]
    return Anchor(NETWORK, min(ids)) if ids else make_project_anchor(login)


def read_last_action(
    response: HttpResponse, login: Login, server_id: str
) -> Action | NotFound | Unanswered | None:
    """Return the newest action of a server, None if Nova has none."""
    found = _read(response, login, "compute", "instanceActions", tuple[Action, ...], object_id=server_id)
    if isinstance(found, NotFound | Unanswered):
        return found
    return max(found, key=lambda each: each.start_time, default=None)


def read_action(response: HttpResponse, login: Login, request_id: str) -> Action | NotFound | Unanswered:
    """Return an action with its events."""
    return _read(response, login, "compute", "instanceAction", Action, object_id=request_id)


def explain_contradiction(pages: list[Page]) -> str:
    """Return why these pages, the first ones in their order, are not those of one list, "" if they may be."""
    *_, last = pages
    if len({len(page.items) for page in pages if page.has_next}) > 1 or len(last.items) > PER_PAGE:
        return "a page is not full"
    # Nova links to a next page whenever one is full.
    return "the list ends too early" if not last.has_next and len(last.items) == PER_PAGE else ""


def is_deletion(action: Action, server_id: str) -> bool:
    """Whether an action, without its events, may be the successful deletion of that server."""
    return action.action == "delete" and action.instance_uuid == server_id and action.message is None


def has_terminated(action: Action) -> bool:
    """Whether the events of a deletion prove that Nova has terminated the server.

    A soft deletion has another event, and a deletion while the server's host was down has none.
    """
    return all(each.result == "Success" for each in action.events) and any(
        each.event == "compute_terminate_instance" for each in action.events
    )


def _build_instance(server: _Server, login: Login) -> Instance | Unanswered:
    """Return the instance of a server. Floating addresses are public, as for the cloud's own controller."""
    if server.tenant_id != login.project:  # an administrator sees those of other projects
        return Unanswered("malformed", f"server {server.id} belongs to another project")
    try:
        addresses = tuple(
            InstanceAddress(
                str(ipaddress.ip_address(each.addr)), "" if each.kind == "floating" else network or _UNNAMED
            )
            for network, listed in server.addresses.items()
            for each in listed
        )
    except ValueError:
        return Unanswered("malformed", f"server {server.id}: an address is none")
    return Instance(
        id=server.id,
        name=server.name,
        is_shut_down=server.status in _SHUT_DOWN,
        region=login.region,
        zone=_OTHER_THAN_LABEL.sub("-", server.zone).strip("-_."),
        instance_type=server.flavor.original_name,
        addresses=addresses,
    )


def _read(
    response: HttpResponse,
    login: Login,
    service: Service,
    key: str,
    item: type[ItemT],
    *,
    object_id: str = "",
    default: bytes = b"",
) -> ItemT | NotFound | Unanswered:
    """Return what is below `key`; NotFound only if `object_id` is one that the service does not have."""
    nova = f"compute {login.microversion}"
    is_from_service = service == "network" or response.headers.get("OpenStack-API-Version") == nova
    if response.status != 200:
        return _read_error(response, login, service, object_id if is_from_service else "")
    if not is_from_service:
        return Unanswered("malformed", f"{key}: no answer of {nova}")
    try:
        body = msgspec.json.decode(response.body, type=dict[str, msgspec.Raw])
        return msgspec.json.decode(body.get(key, default), type=item)
    except JSON_ERRORS as error:
        return explain_malformed(key, error)


def _as_list(found: ItemT | NotFound | Unanswered) -> ItemT | Unanswered:
    return Unanswered("malformed", "no list") if isinstance(found, NotFound) else found


def _read_error(
    response: HttpResponse, login: Login, service: Service, object_id: str
) -> NotFound | Unanswered:
    try:
        ((name, fault),) = msgspec.json.decode(response.body, type=dict[str, _Fault]).items()
    except (*JSON_ERRORS, ValueError):
        name, fault = "", _Fault("")  # of a proxy
    form = (name, fault.code) if service == "compute" else (name, fault.type)
    # A path that the service does not know has the same form, but then its message names no object.
    if (
        response.status == 404
        and form in (("itemNotFound", 404), ("NeutronError", "NetworkNotFound"))
        and object_id
        and object_id in fault.message
    ):
        return NotFound()
    return explain_error(response, name if re.fullmatch("[A-Za-z]{1,64}", name) else "of no service")
