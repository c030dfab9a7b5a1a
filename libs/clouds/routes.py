"""The interface of every cloud adapter to routes: which Node a network sends the traffic of a pod CIDR to."""

from typing import Protocol

import msgspec

from libs.clouds.balancers import WriteResult
from libs.clouds.instances import Credential, Instance, NotFound, Unanswered


class Route(msgspec.Struct, frozen=True, order=True):
    """One route: the destination is a CIDR in its canonical form, the gateway an address in the network."""

    destination: str
    gateway: str

    def __str__(self) -> str:
        return f"{self.destination} via {self.gateway}"


class RouteTable(msgspec.Struct, frozen=True, kw_only=True):
    """All routes of a network, of any owner, and how many it may have; None = the cloud does not tell.

    A cloud may need more than the route: the port of an instance must allow the pod CIDR, too. `partial` has
    what lacks one of both: a route whose gateway does not allow its destination, and a destination that a
    port allows without a route. Creating it adds what is missing, deleting it removes what is there.
    """

    routes: frozenset[Route]
    limit: int | None
    partial: frozenset[Route] = frozenset()

    def is_complete(self, route: Route) -> bool:
        """Return whether the network sends the traffic, and the gateway receives it."""
        return route in self.routes and route not in self.partial

    def has_part(self, route: Route) -> bool:
        """Return whether anything of the route exists."""
        return route in self.routes or route in self.partial


class Routes(Protocol):
    """The routes of one network, or of one router, by the credential of its account.

    Clouds do not label routes, so nothing here shows their owner. No call raises. A write ends by its
    deadline: `write_deadline_seconds` after it began, with any result. One change follows another.
    """

    write_deadline_seconds: float

    @property
    def credential(self) -> Credential: ...

    @property
    def network(self) -> str:
        """The id of the network; "" while the credential file, which names it, is unreadable."""
        ...

    @property
    def kind(self) -> str:
        """What has the routes, such as "network", for operators."""
        ...

    # The next two are about the last table: they need one.

    def can_route(self, destination: str) -> bool:
        """Return whether the network has routes of that IP family."""
        ...

    def find_gateway(self, instance: Instance, destination: str) -> str:
        """Return the instance's address in the network, of the destination's IP family; "" without one."""
        ...

    async def read_routes(self) -> RouteTable | NotFound | Unanswered:
        """Return the routes, or that the credential finds no such network."""
        ...

    async def create_route(self, route: Route) -> WriteResult:
        """Create one route, or what is missing of it. An equal one may exist: then the cloud rejects it."""
        ...

    async def delete_route(self, route: Route) -> WriteResult | NotFound:
        """Delete exactly this route."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
