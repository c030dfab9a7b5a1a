"""A network, two servers, and two processes that overlap as leaders, for the search of routes."""

from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

import msgspec

from libs.clouds.instances import Instance, InstanceAddress
from libs.clouds.routes import Route
from libs.common.contract.node import Node, NodeCondition
from services.cloud.core.routes.route_record import RouteRecord
from services.cloud.core.routes.route_view import (
    InstanceListing,
    InstanceLookup,
    RoutePause,
    RouteView,
    TableAnswer,
)
from tests.builders import NOW, make_node
from tests.model.search import number_keys

TICK: Final = timedelta(seconds=20)
INSTANT: Final = timedelta(microseconds=1)  # of one step of a process: it orders what has the same tick
WRITE_SECONDS: Final = 20.0
LEASE: Final = timedelta(seconds=70)
FORGOTTEN: Final = timedelta(minutes=3)  # all that is older is the same
ADDRESSES: Final = {"1": "10.0.1.1", "2": "10.0.1.2"}  # of the servers in the network
POD_CIDR, OTHER_POD_CIDR = "10.244.1.0/24", "10.244.2.0/24"
FOREIGN: Final = Route("10.244.9.0/24", "10.0.1.99")  # of another cluster
LIMIT: Final = 10
# What happens to the cluster, in this order, and each at any time.
RECREATION: Final = ("web-1 joins", "web-1 is deleted", "web-1 registers again with another pod CIDR")
REUSE: Final = ("web-1 joins", "web-1 and its server are deleted", "web-2 joins with the same pod CIDR")
END: Final = ("web-1 joins", "web-1 is deleted", "its server is deleted")
RETURN: Final = ("web-1 joins", "web-1 is deleted", "web-1 registers again")
MOVE: Final = ("web-1 joins", "web-1 registers again with another pod CIDR")


class NodeState(msgspec.Struct, frozen=True):
    """A Node and its NetworkUnavailable."""

    name: str
    instance_id: str
    pod_cidr: str
    condition: NodeCondition | None = None

    @property
    def route(self) -> Route:
        """The route that it needs while its server exists."""
        return Route(self.pod_cidr, ADDRESSES[self.instance_id])


class Servers(dict[str, Instance]):
    """Listed servers. What a state contains has a hash, and never changes."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))


class LateWrite(msgspec.Struct, frozen=True):
    """A write whose answer was lost: it takes effect until then, or never."""

    kind: str
    route: Route
    until: datetime


class Process(msgspec.Struct, frozen=True, cache_hash=True):
    """A process with its answers."""

    led_since: datetime
    lease_until: datetime | None = None  # None: it does not act
    record: RouteRecord | None = None  # None: not read
    revision: int = 0  # of the record when it was read
    table: TableAnswer | None = None
    listing: InstanceListing | None = None
    lookups: tuple[tuple[str, InstanceLookup], ...] = ()
    pauses: tuple[tuple[Route, datetime], ...] = ()
    is_behind: bool = False  # messages are missing: it sees the Nodes as they were before the last change


class Faults(msgspec.Struct, frozen=True, cache_hash=True, kw_only=True):
    """How often each may happen."""

    crashes: int = 0
    lost_answers: int = 0
    handovers: int = 0  # the leader stops renewing its Lease, and goes on
    slow: int = 0  # time passes while a process could act
    swaps: int = 0  # of the token, to another project's
    losses: int = 0  # of messages about Nodes
    wipes: int = 0  # of the record, by an operator


class Physics(msgspec.Struct, frozen=True, kw_only=True):
    """Rules that are not the core's: the controller's."""

    fences_record: bool = True
    reads_after_writes: bool = True


class World(msgspec.Struct, frozen=True):
    """One state."""

    now: datetime
    processes: tuple[Process, Process]
    faults: Faults
    script: tuple[str, ...]  # what is left of it
    nodes: tuple[NodeState, ...] = ()
    former_nodes: tuple[NodeState, ...] = ()
    servers: tuple[str, ...] = ("1", "2")
    routes: frozenset[Route] = frozenset({FOREIGN})
    late: tuple[LateWrite, ...] = ()
    record: RouteRecord = RouteRecord()
    revision: int = 0
    is_record_wiped: bool = False
    holder: int = 0
    is_renewing: bool = True
    project: int = 1
    generation: int = 1
    violation: str = ""
    physics: Physics = Physics()

    def needs(self, route: Route) -> bool:
        """Whether a Node with an existing server needs it."""
        return any(each.route == route and each.instance_id in self.servers for each in self.nodes)


# ---- in the types of the core


def parse_provider_id(provider_id: str) -> str | None:
    """Return the id of an instance of this cloud."""
    return provider_id.removeprefix("hcloud://") or None


@cache
def describe_instance(instance_id: str) -> Instance:
    """Return the server as an adapter does."""
    addresses = (InstanceAddress(ADDRESSES[instance_id], "4711"),)
    return Instance(id=instance_id, name="any", is_shut_down=False, addresses=addresses)


@cache
def _encode(node: NodeState) -> Node:
    made = make_node(
        node.name,
        uid=f"{node.name}-{node.pod_cidr}",
        provider_id=f"hcloud://{node.instance_id}",
        pod_cidrs=(node.pod_cidr,),
        conditions=(node.condition,) if node.condition else (),
    )
    return msgspec.structs.replace(
        made, metadata=msgspec.structs.replace(made.metadata, creation_timestamp=None)
    )


def build_view(world: World, process: Process) -> RouteView:
    """Return what the process knows."""
    assert process.lease_until is not None
    assert process.record is not None
    return RouteView(
        now=world.now,
        led_since=process.led_since,
        lease_seconds=(process.lease_until - world.now).total_seconds(),
        write_seconds=WRITE_SECONDS,
        generation=world.generation,
        network="4711",
        nodes=tuple(map(_encode, world.former_nodes if process.is_behind else world.nodes)),
        pod_networks=("10.244.0.0/16",),
        is_complete=not process.is_behind,
        parse_provider_id=parse_provider_id,
        can_route=lambda destination: True,
        find_gateway=lambda instance, destination: instance.addresses[0].address,
        record=process.record,
        table=process.table,
        listing=process.listing,
        lookups=dict(process.lookups),
        pauses={route: RoutePause(until=until, reason="unknown") for route, until in process.pauses},
    )


# ---- equal states: times count from now


def build_key(world: World) -> Any:
    """Return a key that is equal where the future is."""
    now = world.now.replace(microsecond=0)
    may_be_behind = world.faults.losses or any(each.is_behind for each in world.processes)
    return (
        world.nodes,
        world.former_nodes if may_be_behind else (),
        world.servers,
        world.routes,
        tuple((each.kind, each.route, _seconds(each.until - now)) for each in world.late),
        _key_of_record(world.record, now),
        world.is_record_wiped,
        *(
            _key_of_process(each, now, world.generation, each.revision == world.revision)
            for each in world.processes
        ),
        world.faults,
        world.holder,
        world.is_renewing,
        world.project,
        world.script,
        world.violation,
    )


@number_keys
def _key_of_record(record: RouteRecord, now: datetime) -> Any:
    return tuple(
        (each.route, each.instance_id, each.create_deadline and _seconds(each.create_deadline - now))
        for each in record.entries
    )


@number_keys
def _key_of_process(process: Process, now: datetime, generation: int, is_current: bool) -> Any:
    if process.lease_until is None:  # it begins again when it leads
        return None
    since = process.led_since
    answers = [("table", process.table), ("listing", process.listing), *process.lookups]
    given = [(name, each) for name, each in answers if each is not None]
    return (
        _seconds(process.lease_until - now),
        _seconds(since - now),
        process.record and _key_of_record(process.record, now),
        is_current,
        tuple(name for name, _ in sorted(given, key=lambda each: each[1].began_at)),
        tuple(
            (
                name,
                _seconds(each.began_at - now),
                each.began_at >= since,
                each.generation == generation,
                each.answer,
            )
            for name, each in given
        ),
        tuple((route, _seconds(until - now)) for route, until in process.pauses),
        process.is_behind,
    )


def _seconds(time: timedelta) -> int:
    return round(max(time, -FORGOTTEN).total_seconds())


def make_start(faults: Faults, script: tuple[str, ...], physics: Physics) -> World:
    """Return the state in which the first process leads, and nothing has happened."""
    leader, other = Process(NOW, lease_until=NOW + LEASE), Process(NOW)
    return World(NOW, (leader, other), faults, script, physics=physics)
