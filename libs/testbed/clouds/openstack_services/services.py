"""Starts Neutron and Octavia, and serves them with the simulated Keystone and Nova at one address."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlencode

import msgspec

from libs.testbed.child_process import HANG_SECONDS, ChildProcess, wait_until
from libs.testbed.clouds.api_server import SimRequest
from libs.testbed.clouds.http_faults import Answer
from libs.testbed.clouds.openstack.answers import make_keystone_error
from libs.testbed.clouds.openstack.server import SimOpenStack
from libs.testbed.clouds.openstack.state import SimProject
from libs.testbed.clouds.openstack_services.installation import REPOSITORY, find_or_install
from libs.testbed.ports import allocate_port

BALANCERS: Final = "/v2.0/lbaas"
_START_SECONDS: Final = 300.0  # 12 s on an idle machine
_MEMBER: Final = "member,reader,load-balancer_member"


class OpenStackServices:
    """Both processes. Requests are those of a project, or of an administrator."""

    def __init__(self, folder: Path) -> None:
        self.ports = {"network": allocate_port(), "load-balancer": allocate_port()}
        self.folder = folder
        self.first_ids = itertools.count(1, 1 << 16)
        self.kept_router: RouterProject | None = None  # for the next test

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, folder: Path) -> AsyncIterator[OpenStackServices]:
        """Serve until the context ends; the folder must be empty."""
        python = await asyncio.to_thread(find_or_install)
        services = cls(folder)
        network, balancers = services.ports["network"], services.ports["load-balancer"]
        arguments = {
            "neutron": [str(network)],
            "octavia": [str(balancers), str(network)],
        }
        async with contextlib.AsyncExitStack() as stack:
            children = []
            for name, ports in arguments.items():
                command: list[str | Path] = [python, "-m", f"{__package__}", name, *ports]
                child = ChildProcess.start(name, command, folder, env={"PYTHONPATH": str(REPOSITORY)})
                stack.push_async_callback(child.kill)
                children.append(child)
            for child, service in zip(children, services.ports, strict=True):
                await wait_until(
                    partial(services._is_up, service),
                    child,
                    what="ready",
                    seconds=_START_SECONDS,
                    every_seconds=0.1,
                )
            await asyncio.to_thread(services._create_shared_networks)
            yield services

    def request(
        self,
        service: str,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        project: str = "",
        if_match: str = "",
    ) -> Answer:
        """Send a request, which blocks. Without a project, it is one of an administrator."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[service], timeout=HANG_SECONDS)
        headers = {"Content-Type": "application/json"} | ({"If-Match": if_match} if if_match else {})
        if project:
            headers |= {
                "X-Identity-Status": "Confirmed",
                "X-Project-Id": project,
                "X-Roles": _MEMBER,
                "X-User-Id": project,
            }
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        return Answer(status=response.status, document=msgspec.json.decode(content) if content else None)

    def create(self, service: str, path: str, *, project: str = "", **fields: Any) -> dict[str, Any]:
        """Create an object; its path is in the plural."""
        kind = path.rpartition("/")[2].removesuffix("s")
        answer = self.request(service, "POST", path, msgspec.json.encode({kind: fields}), project=project)
        assert answer.status == 201, answer
        created: dict[str, Any] = answer.document[kind]
        return created

    def list_all(self, service: str, path: str, *, project: str) -> list[dict[str, Any]]:
        """Return all objects of a project."""
        answer = self.request(service, "GET", f"{path}?project_id={project}", project=project)
        assert answer.status == 200, answer
        listed: list[dict[str, Any]] = answer.document[path.rpartition("/")[2]]
        return listed

    @contextlib.contextmanager
    def ending_changes_with(self, what: Literal["hold", "fail"]) -> Iterator[None]:
        """Until the context ends, each change of a load balancer stays PENDING, or ends with ERROR."""
        file = self.folder / what
        file.touch()
        try:
            yield
        finally:
            file.unlink()

    def _create_shared_networks(self) -> None:
        """Create the network of floating addresses, and one behind a router to it. All projects share them.

        Each takes a second of Neutron's time, so that not every project gets its own.
        """
        create = partial(self.create, "network")
        network: Mapping[str, Any] = {"name": "external", "router:external": True}
        self.external_network = create("/v2.0/networks", **network)["id"]
        subnet: Mapping[str, Any] = {"ip_version": 4, "cidr": "203.0.113.0/24"}
        create("/v2.0/subnets", network_id=self.external_network, **subnet)
        self.shared_network = create("/v2.0/networks", name="shared", shared=True)["id"]
        # Tests name addresses outside the pool.
        pool = [{"start": "10.0.1.0", "end": "10.0.255.254"}]
        subnet = {"ip_version": 4, "cidr": "10.0.0.0/16", "allocation_pools": pool}
        self.shared_subnet = create("/v2.0/subnets", network_id=self.shared_network, **subnet)["id"]
        gateway = {"network_id": self.external_network}
        router = create("/v2.0/routers", external_gateway_info=gateway)["id"]
        body = msgspec.json.encode({"subnet_id": self.shared_subnet})
        answer = self.request("network", "PUT", f"/v2.0/routers/{router}/add_router_interface", body)
        assert answer.status == HTTPStatus.OK, answer

    async def _is_up(self, service: str) -> bool:
        try:
            answer = await asyncio.to_thread(self.request, service, "GET", "/")
        except OSError:
            return False
        return answer.status == 200


class RealOpenStack(SimOpenStack):
    """Implements SimCloud: Keystone and Nova are simulated, Neutron and Octavia are the services."""

    def __init__(self, services: OpenStackServices) -> None:
        # Neutron and Octavia keep the objects of earlier projects, so each project has a new id.
        super().__init__(first_id=next(services.first_ids))
        self.services = services

    def answer(self, request: SimRequest) -> Answer:
        """Return the answer of the service whose path it is."""
        service, _, path = request.path.strip("/").partition("/")
        _, _, path = path.partition("/")
        if service not in self.services.ports or path in {"", "v2.0"}:
            return super().answer(request)
        token = self.state.find_token(request.token)
        if token is None:
            return make_keystone_error(401, "Unauthorized")
        query = f"?{urlencode(request.query)}" if request.query else ""
        return self.services.request(
            service,
            request.method,
            f"/{path}{query}",
            request.body or None,
            project=token.project,
            if_match=request.headers.get("If-Match", ""),
        )


class BalancerProject:
    """A project with load balancers, in the networks that all projects share."""

    def __init__(self, services: OpenStackServices, project: SimProject) -> None:
        self.services, self.sim, self.id = services, project, project.id
        self.network, self.subnet = services.shared_network, services.shared_subnet
        self.external = services.external_network

    def list_parts(self, kind: str) -> list[dict[str, Any]]:
        """Return loadbalancers, listeners, pools, healthmonitors or floatingips of the project."""
        if kind == "floatingips":
            return self.services.list_all("network", f"/v2.0/{kind}", project=self.id)
        return self.services.list_all("load-balancer", f"{BALANCERS}/{kind}", project=self.id)

    def list_members(self, pool_id: str) -> list[dict[str, Any]]:
        """Return the members of a pool."""
        return self.services.list_all(
            "load-balancer", f"{BALANCERS}/pools/{pool_id}/members", project=self.id
        )


class RouterProject:
    """A project with a router, and a network behind it."""

    def __init__(self, services: OpenStackServices, project: SimProject) -> None:
        self.services, self.sim, self.id = services, project, project.id
        create = partial(services.create, "network", project=self.id)
        self.network = create("/v2.0/networks", name="nodes")["id"]
        subnet: Mapping[str, Any] = {"network_id": self.network, "ip_version": 4, "cidr": "10.0.0.0/24"}
        self.subnet = create("/v2.0/subnets", **subnet)["id"]
        self.router = create("/v2.0/routers")["id"]
        self.send("PUT", f"/routers/{self.router}/add_router_interface", subnet_id=self.subnet)

    def send(self, method: str, path: str, **document: Any) -> dict[str, Any]:
        """Send a request to Neutron, as another client of the project; return the document."""
        body = msgspec.json.encode(document) if document else None
        answer = self.services.request("network", method, f"/v2.0{path}", body, project=self.id)
        assert answer.status < HTTPStatus.BAD_REQUEST, answer
        return answer.document or {}

    def clear(self) -> None:
        """Delete all routes, and the ports of servers."""
        if self.list_routes():
            self.send("PUT", f"/routers/{self.router}", router={"routes": []})
        for port in self.send("GET", f"/ports?network_id={self.network}")["ports"]:
            if not port["device_owner"].startswith("network:"):
                self.send("DELETE", f"/ports/{port['id']}")

    def retire(self) -> None:
        """Let the next test get another router: `clear` does not undo what this one does."""
        self.services.kept_router = None

    def add_port(self, server_id: str, **fields: Any) -> dict[str, Any]:
        """Attach a server to the network behind the router, or to another one; return the port."""
        port = {"network_id": self.network, "device_id": server_id} | fields
        created: dict[str, Any] = self.send("POST", "/ports", port=port)["port"]
        return created

    def list_routes(self) -> set[tuple[str, str]]:
        """Return destination and next hop of each route of the router."""
        routes = self.send("GET", f"/routers/{self.router}")["router"]["routes"]
        return {(each["destination"], each["nexthop"]) for each in routes}

    def list_pairs(self, port_id: str) -> set[str]:
        """Return the addresses that a port may send from beside its own."""
        pairs = self.send("GET", f"/ports/{port_id}")["port"]["allowed_address_pairs"]
        return {each["ip_address"] for each in pairs}

    def set_route_quota(self, count: int) -> None:
        """Let an administrator set how many routes each router of the project may have."""
        body = msgspec.json.encode({"quota": {"router_route": count}})
        answer = self.services.request("network", "PUT", f"/v2.0/quotas/{self.id}", body)
        assert answer.status == HTTPStatus.OK, answer
