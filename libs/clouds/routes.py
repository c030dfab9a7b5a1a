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
    """All routes of a network, of any owner, and how many it may have."""

    routes: frozenset[Route]
    limit: int


class Routes(Protocol):
    """The routes of one network, by the credential of its account.

    Clouds do not label routes, so nothing here shows their owner. No call raises. A write ends by its
    deadline: `write_deadline_seconds` after it began, with any result. One change follows another.
    """

    write_deadline_seconds: float

    @property
    def credential(self) -> Credential: ...

    @property
    def network(self) -> str:
        """The id of the network."""
        ...

    def can_route(self, destination: str) -> bool:
        """Return whether this cloud has routes of that IP family."""
        ...

    def find_gateway(self, instance: Instance) -> str:
        """Return the address at which the network reaches the instance; "" if it is not attached."""
        ...

    async def read_routes(self) -> RouteTable | NotFound | Unanswered:
        """Return the routes, or that the credential finds no such network."""
        ...

    async def create_route(self, route: Route) -> WriteResult:
        """Create one route. An equal one may exist: then the cloud rejects it."""
        ...

    async def delete_route(self, route: Route) -> WriteResult | NotFound:
        """Delete exactly this route."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
