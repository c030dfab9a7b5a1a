"""All data that decides the next change of a network's routes, and the steps."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.clouds.instances import Deleted, Instance, NotFound, Unanswered
from libs.clouds.routes import Route, RouteTable
from libs.common.contract.node import Node, NodeCondition
from services.cloud.core.answer import Answer
from services.cloud.core.routes.route_record import RouteRecord

# An answer that proves something must be this young; an idle network is read once in this time.
ROUND: Final = timedelta(minutes=1)


class TableAnswer(Answer, frozen=True, kw_only=True):
    """The routes of the network."""

    answer: RouteTable | NotFound | Unanswered


class InstanceListing(Answer, frozen=True, kw_only=True):
    """All instances by their ids."""

    answer: Mapping[str, Instance] | Unanswered


class InstanceLookup(Answer, frozen=True, kw_only=True):
    """The instance with exactly one id."""

    answer: Instance | Deleted | NotFound | Unanswered


class RoutePause(msgspec.Struct, frozen=True, kw_only=True):
    """A change that the cloud did not make, and is not sent again before `until`."""

    until: datetime
    reason: str
    is_limit: bool = False  # there is no room for another route


class RouteView(msgspec.Struct, frozen=True, kw_only=True):
    """One moment: times are by the clock of the term."""

    now: datetime
    led_since: datetime
    lease_seconds: float  # that the Lease lasts
    write_seconds: float  # that a write to the cloud takes at most
    generation: int  # of the credential
    network: str  # what has the routes, such as "network 4711"
    nodes: tuple[Node, ...]  # of all clouds
    pod_networks: tuple[str, ...]  # no route is created outside of them; () = not known yet
    is_complete: bool  # whether no Node is missing
    parse_provider_id: Callable[[str], str | None]
    can_route: Callable[[str], bool]
    find_gateway: Callable[[Instance, str], str]  # of the instance, for a destination
    record: RouteRecord
    table: TableAnswer | None = None  # None: a write has ended since it was read
    listing: InstanceListing | None = None
    lookups: Mapping[str, InstanceLookup] = {}  # by the instance's id
    pauses: Mapping[Route, RoutePause] = {}
    create_pause: RoutePause | None = None  # of all creates: the cause is not one route's
    unwritable_uids: frozenset[str] = frozenset()  # Nodes whose condition cannot be written now
    written: Mapping[str, NodeCondition] = {}  # by uid of the Node, of the last minute

    def is_current(self, answer: Answer, most: timedelta = ROUND) -> bool:
        """Whether it is by this credential, of this term, and not older than `most`; see `find_end`."""
        is_young = self.led_since <= answer.began_at and self.now < answer.find_end(most)
        return is_young and answer.generation == self.generation


# ---- steps


class ReadRoutes(msgspec.Struct, frozen=True):
    """Read the routes of the network."""


class ListInstances(msgspec.Struct, frozen=True):
    """List all instances with their addresses."""


class LookUpInstance(msgspec.Struct, frozen=True):
    """Ask whether the instance exists."""

    instance_id: str


class WriteRecord(msgspec.Struct, frozen=True):
    """Replace the record. Without it, no route is created."""

    record: RouteRecord


class CreateRoute(msgspec.Struct, frozen=True):
    """Create a recorded route, or what is missing of it."""

    route: Route
    node: str


class DeleteRoute(msgspec.Struct, frozen=True):
    """Delete a recorded route."""

    route: Route
    reason: str


class SetCondition(msgspec.Struct, frozen=True):
    """Write NetworkUnavailable of one Node."""

    node: Node
    condition: NodeCondition


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing can be done before `until`, unless a Node changes."""

    until: datetime
    problem: str = ""  # why the routes may differ from what the Nodes need
    blocked: int = 0  # Nodes without all their routes


_Read = ReadRoutes | ListInstances | LookUpInstance
RouteStep = _Read | WriteRecord | CreateRoute | DeleteRoute | SetCondition | Wait
