"""The routes of one network of Hetzner Cloud."""

import ipaddress
from typing import Annotated, Final

import msgspec

from libs.clouds.balancers import UnknownOutcome, WriteResult, WriteSuccess
from libs.clouds.cloud_writes import explain_failed_write, set_deadline
from libs.clouds.hcloud.balancers.action_times import FIRST_POLL_SECONDS
from libs.clouds.hcloud.balancers.action_waiter import ActionWaiter
from libs.clouds.hcloud.balancers.write_responses import ApiRejection, StartedAction, read_write
from libs.clouds.hcloud.hcloud_api import ID, HcloudApi
from libs.clouds.instances import Credential, Instance, NotFound, Unanswered
from libs.clouds.routes import Route, RouteTable

WRITE_DEADLINE_SECONDS: Final = 30.0
MAX_ROUTES: Final = 100  # of one network; the API does not report it
_PATH: Final = "/networks"
# A change is a write and one or two requests for its end.
_REQUESTS_PER_MINUTE: Final = 120
_ADD: Final = "add_route"
_DELETE: Final = "delete_route"


class _Route(msgspec.Struct, frozen=True):
    destination: str
    gateway: str


class _Network(msgspec.Struct, frozen=True):
    id: Annotated[int, msgspec.Meta(gt=0)]
    routes: tuple[_Route, ...]


class HcloudRoutes:
    """Implements Routes for a network in the project of a token, which has to be one that may write."""

    kind = "network"

    def __init__(
        self, api: HcloudApi, network: str, *, write_deadline_seconds: float = WRITE_DEADLINE_SECONDS
    ) -> None:
        """Raise ValueError if `network` is not an id."""
        if not ID.fullmatch(network):
            raise ValueError(f"the network of routes is {network!r}, and not an id")
        self.network = network
        self.write_deadline_seconds = write_deadline_seconds
        # A network refuses a change while another one runs.
        self._api = api.open_beside(requests_per_minute=_REQUESTS_PER_MINUTE, max_concurrent=1)
        self._actions = ActionWaiter(self._api, first_poll_seconds=FIRST_POLL_SECONDS)

    @property
    def credential(self) -> Credential:
        """The last reading of the token."""
        return self._api.session.credential

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    # ---- pure

    def can_route(self, destination: str) -> bool:
        """Return whether it is an IPv4 range: networks have no others."""
        return isinstance(ipaddress.ip_network(destination), ipaddress.IPv4Network)

    def find_gateway(self, instance: Instance, destination: str) -> str:
        """Return the server's address in the network."""
        return next((each.address for each in instance.addresses if each.network == self.network), "")

    # ---- requests

    async def read_routes(self) -> RouteTable | NotFound | Unanswered:
        """Return the routes of the network."""
        found = await self._api.get_item(_PATH, "network", self.network, _Network)
        if not isinstance(found, _Network):
            return found
        routes = frozenset(Route(each.destination, each.gateway) for each in found.routes)
        return RouteTable(routes=routes, limit=MAX_ROUTES)

    async def create_route(self, route: Route) -> WriteResult:
        """Create the route, and return when the cloud has finished it."""
        return await self._change(_ADD, route)

    async def delete_route(self, route: Route) -> WriteResult | NotFound:
        """Delete the route; "not found" may also be that of the network."""
        result = await self._change(_DELETE, route)
        is_missing = isinstance(result, ApiRejection) and result.code == "not_found"
        return NotFound() if is_missing else result

    async def _change(self, action: str, route: Route) -> WriteResult:
        deadline = set_deadline(self.write_deadline_seconds)
        started = await self._api.write(
            "POST",
            f"{_PATH}/{self.network}/actions/{action}",
            msgspec.json.encode(route),
            lambda response: read_write(response, StartedAction),
            deadline=deadline,
        )
        if not isinstance(started, StartedAction):
            return explain_failed_write(started)
        ended = await self._actions.wait_for(started.action, deadline)
        if ended.status == "success":
            return WriteSuccess()
        return UnknownOutcome(reason=f"{action} of {route} ended with status {ended.status}")
