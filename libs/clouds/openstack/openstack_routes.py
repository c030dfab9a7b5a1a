"""The routes of one router of Neutron, with the allowed address pairs of the ports to which they lead."""

from collections.abc import Callable
from http import HTTPStatus
from ipaddress import ip_network
from typing import Final

import msgspec

from libs.clouds.balancers import WriteRejection, WriteResult, WriteSuccess
from libs.clouds.cloud_writes import explain_failed_write, set_deadline
from libs.clouds.instances import Credential, Instance, NotFound, Unanswered
from libs.clouds.openstack.object_reader import ID, get_object, list_objects
from libs.clouds.openstack.object_responses import OpenStackRejection, read_accepted, read_item, read_page
from libs.clouds.openstack.openstack_api import OpenStackApi
from libs.clouds.openstack.router_changes import (
    PORTS,
    ROUTERS,
    Port,
    Request,
    Router,
    RouterPorts,
    build_table,
    locate_ports,
    plan_creation,
    plan_deletion,
)
from libs.clouds.routes import Route, RouteTable

WRITE_DEADLINE_SECONDS: Final = 30.0
_REQUESTS_PER_MINUTE: Final = 240  # a table takes four, a change two more
_ATTEMPTS: Final = 3  # of a change, while other clients change the same port
# Without the first, Neutron takes the whole list of routes only, and one of two clients loses its changes.
_EXTENSIONS: Final = {
    "extraroute-atomic": "Neutron 15 (Train) or later has it, if the plugin for routers supports it",
    "revision-if-match": "Neutron has it with the service plugin `revisions`",
}


class _Extension(msgspec.Struct, frozen=True):
    alias: str


class _Quota(msgspec.Struct, frozen=True):
    router_route: int = -1  # of each router. Before Neutron 29 the limit is in no answer


class OpenStackRoutes:
    """Implements Routes for a router in the project of a credential, which has to be one that may write."""

    kind = "router"

    def __init__(
        self, api: OpenStackApi, router: str, *, write_deadline_seconds: float = WRITE_DEADLINE_SECONDS
    ) -> None:
        """`router` is an id; "" is that in the credential file. Raise ValueError for any other text."""
        if router and not ID.fullmatch(router):
            raise ValueError(f"the router of routes is {router!r}, and not an id")
        self.write_deadline_seconds = write_deadline_seconds
        self._api = api.open_beside(requests_per_minute=_REQUESTS_PER_MINUTE, services=("network",))
        self._is_in_file = not router
        self._router = router
        self._checked_generation = 0  # of the credential whose Neutron has the extensions
        self._ports = RouterPorts()

    @property
    def credential(self) -> Credential:
        """The last reading of the credential file."""
        return self._api.session.credential

    @property
    def network(self) -> str:
        """The id of the router. That of the credential file counts from its first reading on."""
        if not self._router:
            found = self._api.read_router_id()
            self._router = found if isinstance(found, str) else ""
        return self._router

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    # ---- by the last table

    def can_route(self, destination: str) -> bool:
        """Return whether the router has an interface of that IP family."""
        return ip_network(destination).version in self._ports.families

    def find_gateway(self, instance: Instance, destination: str) -> str:
        """Return the address of the server's port in a subnet to which the router has an interface."""
        return self._ports.find_gateway(instance.id, destination)

    # ---- requests

    async def read_routes(self) -> RouteTable | NotFound | Unanswered:
        """Return the routes of the router."""
        problem = self._explain_change() or await self._explain_missing_extension()
        if problem is not None:
            return problem
        router = await self._get_router()
        if not isinstance(router, Router):
            return router
        ports = await self._list_ports(router)
        if isinstance(ports, Unanswered):
            return ports
        limit = await self._read_limit(router)
        self._ports = ports
        return build_table(router, ports, limit)

    async def create_route(self, route: Route) -> WriteResult:
        """Allow the destination at the port of the gateway, and add the route.

        A rejection may be that of the route: then the pair exists.
        """
        result = await self._change(route, plan_creation)
        missing = WriteRejection(kind="invalid", reason=f"there is no router {self.network}")
        return missing if isinstance(result, NotFound) else result or WriteSuccess()

    async def delete_route(self, route: Route) -> WriteResult | NotFound:
        """Remove the route and the address pair; "not found" may also be that of the router."""
        return await self._change(route, plan_deletion) or NotFound()

    async def _change(
        self,
        route: Route,
        plan: Callable[[Router, Port | None, Route], tuple[Request, ...] | WriteRejection],
    ) -> WriteResult | NotFound | None:
        """Read router and port, and send what is planned; None if that is nothing."""
        deadline = set_deadline(self.write_deadline_seconds)
        for _ in range(_ATTEMPTS):
            router = await self._get_router()
            if isinstance(router, NotFound):
                return router
            port = await self._get_port(route.gateway)
            for each in (router, port):
                if isinstance(each, Unanswered):
                    return WriteRejection(kind="held_back", reason=f"nothing was sent: {each.reason}")
            assert isinstance(router, Router)
            assert not isinstance(port, Unanswered)
            planned = plan(router, port, route)
            if isinstance(planned, WriteRejection):
                return planned
            result = await self._send(planned, deadline)
            if not _is_outdated(result):
                return result
        return WriteRejection(kind="held_back", reason="other clients change the port all the time")

    async def _send(self, requests: tuple[Request, ...], deadline: float) -> WriteResult | None:
        for each in requests:
            result = await self._api.write(
                "network",
                "PUT",
                each.path,
                each.body,
                read_accepted,
                deadline=deadline,
                if_match=each.if_match,
            )
            if isinstance(result, WriteRejection) and each.path.startswith(PORTS):
                return _limit_to_route(result)
            if not isinstance(result, bool):
                return explain_failed_write(result)
        return WriteSuccess() if requests else None

    # ---- reads

    def _explain_change(self) -> Unanswered | None:
        """The record and all conditions name one router, so another one needs another process."""
        found = self._api.read_router_id() if self._is_in_file else self._router
        if isinstance(found, Unanswered):
            return found
        if found == self.network:
            return None
        return Unanswered("rejected", "router-id in the credential file has changed: restart the process")

    async def _explain_missing_extension(self) -> Unanswered | None:
        generation = self.credential.generation
        if self._checked_generation == generation:
            return None
        found = await self._api.get(
            "network", "/extensions", {}, lambda response, _: read_page(response, "extensions", _Extension)
        )
        if isinstance(found, Unanswered):
            return found
        aliases = {each.alias for each in found.items if isinstance(each, _Extension)}
        missing = next((each for each in _EXTENSIONS if each not in aliases), "")
        if missing:
            return Unanswered("rejected", f"Neutron lacks the extension {missing}: {_EXTENSIONS[missing]}")
        self._checked_generation = generation
        return None

    async def _get_router(self) -> Router | NotFound | Unanswered:
        return await get_object(self._api, "network", ROUTERS, self.network, Router)

    async def _list_ports(self, router: Router) -> RouterPorts | Unanswered:
        interfaces = await list_objects(self._api, "network", PORTS, {"device_id": router.id}, Port)
        if isinstance(interfaces, Unanswered):
            return interfaces
        ports: list[Port] = []
        for network in sorted({each.network_id for each in interfaces}):
            listed = await list_objects(self._api, "network", PORTS, {"network_id": network}, Port)
            if isinstance(listed, Unanswered):
                return listed
            ports += listed
        return locate_ports(interfaces, ports)

    async def _get_port(self, gateway: str) -> Port | Unanswered | None:
        """Return the port with that address in the last table, as it is now; None if it is gone."""
        known = self._ports.by_address.get(gateway)
        if known is None:
            return None
        found = await get_object(self._api, "network", PORTS, known.id, Port)
        if isinstance(found, Port) and not found.is_same_place(known):
            return Unanswered("rejected", f"the port of {gateway} has moved")
        return None if isinstance(found, NotFound) else found

    async def _read_limit(self, router: Router) -> int | None:
        found = await self._api.get(
            "network",
            f"/quotas/{router.project_id}",
            {},
            lambda response, _: read_item(response, "quota", _Quota, router.project_id),
        )
        return found.router_route if isinstance(found, _Quota) and found.router_route >= 0 else None


def _limit_to_route(result: WriteRejection) -> WriteRejection:
    """Return a 403 for a port as a rejection of this route only.

    Other ports may be in the project's own network.
    """
    is_refused = isinstance(result, OpenStackRejection) and result.status == HTTPStatus.FORBIDDEN
    return msgspec.structs.replace(result, kind="invalid") if is_refused else result


def _is_outdated(result: WriteResult | None) -> bool:
    """Whether another client has changed the port since it was read."""
    return isinstance(result, OpenStackRejection) and result.status == HTTPStatus.PRECONDITION_FAILED
