"""Routes under random schedules: the pure core, a cloud, a table of Nodes and what must never happen."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from libs.clouds.instances import Instance, InstanceAddress, NotFound, Unanswered
from libs.clouds.routes import Route, RouteTable
from libs.common.contract.node import Node, NodeCondition
from services.cloud.core.answer import MAX_LATENESS
from services.cloud.core.routes.plan_routes import plan_route_step
from services.cloud.core.routes.route_record import RouteRecord
from services.cloud.core.routes.route_view import (
    CreateRoute,
    DeleteRoute,
    InstanceListing,
    InstanceLookup,
    ListInstances,
    LookUpInstance,
    ReadRoutes,
    RoutePause,
    RouteStep,
    RouteView,
    SetCondition,
    TableAnswer,
    Wait,
    WriteRecord,
)
from tests.builders import NOW, make_node

NETWORK: Final = "4711"
FOREIGN_PAIR: Final = Route("10.9.9.9", "10.0.1.3")  # of an address that moves between servers
_POOL: Final = tuple(f"10.244.{number}.0/24" for number in range(4))
_LIMIT: Final = 4
_WRITE_SECONDS: Final = 30.0
_MAX_STEPS: Final = 60  # without waiting: more is a loop
Distort = Callable[[RouteView], RouteView]  # leaves a rule out


class Violation(Exception):
    """Something that must never happen."""


class RouteWorld:
    """A cloud with one network, the Nodes of a cluster, and one process after the other."""

    def __init__(self, seed: int, distort: Distort = lambda view: view, *, needs_pairs: bool = False) -> None:
        """With pairs, a route also needs the port of its gateway to allow the destination."""
        self.random = Random(seed)
        self.needs_pairs = needs_pairs
        self.pairs: set[Route] = set()
        self.distort = distort
        self.now = NOW
        self.faults = 0.3  # of each request to the cloud
        self.is_foreign_project = False  # the token's
        self.generation = 1
        self.routes: set[Route] = set()
        self.foreign: set[Route] = set()
        self.instances: dict[str, str] = {}  # with their addresses in the network
        self.nodes: dict[str, Node] = {}
        self.seen_nodes: dict[str, Node] = {}  # of the stream
        self.is_complete = True
        self.record = RouteRecord()  # in its ConfigMap
        self.late: list[tuple[datetime, Callable[[], None]]] = []
        self.reads = 0  # of the network
        self._count = 0
        self._versions = 0
        self.start_process()

    def start_process(self) -> None:
        """The former process has ended, with all that it remembered."""
        self.led_since = self.now
        self.own_record: RouteRecord | None = None
        self.table: TableAnswer | None = None
        self.listing: InstanceListing | None = None
        self.lookups: dict[str, InstanceLookup] = {}
        self.pauses: dict[Route, RoutePause] = {}
        self.written: dict[str, tuple[NodeCondition, datetime]] = {}

    # ---- what happens

    def join(self) -> None:
        """A server boots, and its Node has a free pod CIDR."""
        free = set(_POOL) - {node.spec.pod_cidr for node in self.nodes.values()}
        if not free:
            return
        self._count += 1
        instance_id = str(1000 + self._count)
        self.instances[instance_id] = f"10.0.1.{self._count % 250 + 2}"
        self._add_node(f"web-{self._count}", instance_id, self.random.choice(sorted(free)))

    def _add_node(self, name: str, instance_id: str, pod_cidr: str) -> None:
        self._versions += 1
        self.nodes[name] = make_node(
            name,
            uid=f"uid-{name}-{self._versions}",
            provider_id=f"hcloud://{instance_id}",
            pod_cidrs=(pod_cidr,),
            resource_version=str(self._versions),
        )

    def remove_node(self) -> None:
        """The server runs on, and may register again with another pod CIDR."""
        if self.nodes:
            self.nodes.pop(self.random.choice(sorted(self.nodes)))

    def register_again(self) -> None:
        """A kubelet whose Node was deleted registers another one."""
        taken = {parse(node.spec.provider_id) for node in self.nodes.values()}
        free = set(_POOL) - {node.spec.pod_cidr for node in self.nodes.values()}
        idle = sorted(self.instances.keys() - taken)
        if idle and free:
            self._add_node(f"again-{idle[0]}", idle[0], self.random.choice(sorted(free)))

    def delete_server(self) -> None:
        """The server goes; its Node may go at once, or later."""
        if self.instances:
            gone = self.random.choice(sorted(self.instances))
            gateway = self.instances.pop(gone)
            if self.random.random() < 0.5:  # its port goes with it
                self.pairs = {each for each in self.pairs if each.gateway != gateway}
            if self.random.random() < 0.7:
                self.nodes = {
                    name: node for name, node in self.nodes.items() if parse(node.spec.provider_id) != gone
                }

    def cancel_scale_up(self) -> None:
        """The newest server goes, and its Node with it."""
        if self.instances:
            newest = max(self.instances)
            del self.instances[newest]
            self.nodes = {
                name: node for name, node in self.nodes.items() if parse(node.spec.provider_id) != newest
            }

    def readdress_server(self) -> None:
        """The server leaves the network and comes back."""
        if self.instances:
            self._count += 1
            self.instances[self.random.choice(sorted(self.instances))] = f"10.0.2.{self._count % 250 + 2}"

    def add_foreign_route(self) -> None:
        """Another client adds a route, perhaps into a pod CIDR."""
        destination = self.random.choice([*_POOL, "10.9.0.0/16"])
        if all(each.destination != destination for each in self.routes) and len(self.routes) < _LIMIT:
            route = Route(destination, "10.0.0.99")
            self.routes.add(route)
            self.foreign.add(route)

    def remove_foreign_route(self) -> None:
        """It goes again."""
        for route in sorted(self.foreign):
            self.foreign.discard(route)
            self.routes.discard(route)
            break

    def change_pairs(self) -> None:
        """Another client allows an address at a port, or takes what we allowed."""
        if not self.needs_pairs:
            return
        self.pairs.add(FOREIGN_PAIR)
        own = sorted(self.pairs - {FOREIGN_PAIR})
        if own:
            self.pairs.discard(self.random.choice(own))

    def swap_token(self) -> None:
        """The credential belongs to another project, or to ours again."""
        self.is_foreign_project = not self.is_foreign_project
        self.generation += 1

    def lose_stream(self) -> None:
        """Messages are missing; Nodes may have expired."""
        self.is_complete = False
        for name in sorted(self.seen_nodes):
            if self.random.random() < 0.5:
                del self.seen_nodes[name]

    def crash(self) -> None:
        """The next process leads after the Lease has expired."""
        self.pass_time(90)
        self.start_process()

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        due = [effect for at, effect in self.late if at <= self.now]
        self.late = [(at, effect) for at, effect in self.late if at > self.now]
        for effect in due:
            effect()

    # ---- the process

    def run_until_waiting(self) -> Wait:
        """Make steps until there is nothing to do, or the process crashes."""
        if self.is_complete or self.random.random() < 0.3:
            self.seen_nodes, self.is_complete = dict(self.nodes), True
        for _ in range(_MAX_STEPS):
            view = self._build_view()
            step = plan_route_step(self.distort(view))
            if isinstance(step, Wait):
                if step.until <= view.now:
                    raise Violation("the process waits for nothing")
                return step
            self.reads += isinstance(step, ReadRoutes)
            self._make(step)
            self.pass_time(self.random.choice([0.1, 0.1, 0.1, 40.0 * self.faults]))
            if self._is_struck(0.1):
                self.crash()
        raise Violation("the steps do not end")

    def _build_view(self) -> RouteView:
        if self.own_record is None:
            self.own_record = self.record
        self.pauses = {route: each for route, each in self.pauses.items() if each.until > self.now}
        return RouteView(
            now=self.now,
            led_since=self.led_since,
            lease_seconds=90.0,
            write_seconds=_WRITE_SECONDS,
            generation=self.generation,
            network=NETWORK,
            nodes=tuple(self.seen_nodes.values()),
            pod_networks=("10.244.0.0/16",),
            is_complete=self.is_complete,
            parse_provider_id=parse,
            can_route=lambda destination: True,
            find_gateway=lambda instance, destination: instance.addresses[0].address,
            record=self.own_record,
            table=self.table,
            listing=self.listing,
            lookups=self.lookups,
            pauses=self.pauses,
            written={
                uid: condition
                for uid, (condition, at) in self.written.items()
                if self.now - at < timedelta(minutes=1)
            },
        )

    def _is_struck(self, share: float = 1.0) -> bool:
        return self.random.random() < self.faults * share

    def _make(self, step: RouteStep) -> None:
        times: dict[str, Any] = {"began_at": self.now, "ended_at": self.now, "generation": self.generation}
        lost = Unanswered("unreachable", "no answer") if self._is_struck() else None
        match step:
            case ReadRoutes():
                table = NotFound() if self.is_foreign_project else self._build_table()
                self.table = TableAnswer(answer=lost or table, **times)
            case ListInstances():
                ids = () if self.is_foreign_project else self.instances
                own = {each: self._build_instance(each) for each in ids}
                self.listing = InstanceListing(answer=lost or own, **times)
            case LookUpInstance(instance_id=instance_id):
                exists = instance_id in self.instances and not self.is_foreign_project
                found = self._build_instance(instance_id) if exists else NotFound()
                self.lookups[instance_id] = InstanceLookup(answer=lost or found, **times)
            case WriteRecord(record=record):
                self.record = self.own_record = record
            case CreateRoute(route=route):
                self._write(partial(self._create, route), route)
            case DeleteRoute(route=route):
                self._check_deletion(route)
                self._write(partial(self._delete, route), route)
            case SetCondition(node=node, condition=condition):
                self._versions += 1
                status = replace(node.status, conditions=(condition,))
                metadata = replace(node.metadata, resource_version=str(self._versions))
                current = self.nodes.get(node.name)
                if current is not None and current.uid == node.uid:
                    self.nodes[node.name] = replace(node, metadata=metadata, status=status)
                self.written[node.uid] = (condition, self.now)

    def _build_instance(self, instance_id: str) -> Instance:
        addresses = (InstanceAddress(self.instances[instance_id], NETWORK),)
        return Instance(id=instance_id, name="any", is_shut_down=False, addresses=addresses)

    def _build_table(self) -> RouteTable:
        ports = set(self.instances.values())
        lacking = {each for each in self.routes if each.gateway in ports and each not in self.pairs}
        unrouted = self.pairs - self.routes
        found = lacking | unrouted if self.needs_pairs else set()
        return RouteTable(routes=frozenset(self.routes), limit=_LIMIT, partial=frozenset(found))

    def _write(self, effect: Callable[[bool], None], route: Route) -> None:
        """Write, lose the answer before or after the effect or the half of it, or let it take effect late."""
        self.table = None
        if self._is_struck():
            if self.random.random() < 0.5:
                latest = _WRITE_SECONDS + MAX_LATENESS.total_seconds()
                due = self.now + timedelta(seconds=self.random.uniform(0, latest))
                self.late.append((due, partial(effect, self.random.random() < 0.5)))
            self.pauses[route] = RoutePause(until=self.now + timedelta(seconds=5), reason="unknown")
        elif not self.is_foreign_project:
            effect(False)
        else:
            self.pauses[route] = RoutePause(until=self.now + timedelta(seconds=5), reason="not found")

    def _create(self, route: Route, is_half: bool) -> None:
        if self.record.find(route) is None:
            raise Violation(f"{route} is created and not recorded")
        if self.needs_pairs:
            self.pairs.add(route)
            if is_half:
                return
        is_free = all(each.destination != route.destination for each in self.routes)
        if is_free and len(self.routes) < _LIMIT:
            self.routes.add(route)

    def _delete(self, route: Route, is_half: bool) -> None:
        self.routes.discard(route)
        if not (self.needs_pairs and is_half):
            self.pairs.discard(route)

    # ---- what must hold

    def _check_deletion(self, route: Route) -> None:
        if route in self.foreign:
            raise Violation(f"{route} of another owner is deleted")
        owners = [node for node in self.nodes.values() if node.spec.pod_cidr == route.destination]
        for node in owners:
            if self.instances.get(parse(node.spec.provider_id) or "") == route.gateway:
                raise Violation(f"{route} of {node.name} is deleted")
        entry = (self.own_record or self.record).find(route)
        if entry is None:
            raise Violation(f"{route} is deleted and not recorded")
        has_other = any(parse(node.spec.provider_id) == entry.instance_id for node in self.nodes.values())
        if not owners and not has_other and entry.instance_id in self.instances:
            raise Violation(f"{route} is deleted while its server may register again")

    def check_end(self) -> None:
        """After 25 minutes without a fault, each Node has its route, and no other is left."""
        if self.is_foreign_project:
            self.swap_token()
        self.faults, self.is_complete = 0.0, True
        for _ in range(25):
            self.run_until_waiting()
            self.pass_time(60)
        for node in self.nodes.values():
            gateway = self.instances.get(parse(node.spec.provider_id) or "")
            blocked = any(each.destination == node.spec.pod_cidr for each in self.foreign)
            needed = Route(node.spec.pod_cidr, gateway or "")
            if gateway and not blocked and needed not in self.routes and len(self.routes) < _LIMIT:
                raise Violation(f"{node.name} has no route {needed}")
            condition = node.find_condition("NetworkUnavailable")
            is_complete = self._build_table().is_complete(needed)
            if gateway and (condition is None or (condition.status == "False") != is_complete):
                raise Violation(f"the condition of {node.name} is not true")
        for route in (self.routes | self.pairs) - self.foreign - {FOREIGN_PAIR}:
            entry = self.record.find(route)
            if entry is None:
                raise Violation(f"{route} is left and not recorded")
            is_owned = any(node.spec.pod_cidr == route.destination for node in self.nodes.values())
            if (
                not is_owned
                and entry.instance_id not in self.instances
                and not self._has_node(entry.instance_id)
            ):
                raise Violation(f"{route} is left")

    def _has_node(self, instance_id: str) -> bool:
        return any(parse(node.spec.provider_id) == instance_id for node in self.nodes.values())


def parse(provider_id: str) -> str | None:
    """Return the id of an instance of this cloud."""
    scheme, _, instance_id = provider_id.partition("://")
    return instance_id if scheme == "hcloud" and instance_id else None


def run_schedule(seed: int, distort: Distort = lambda view: view) -> None:
    """Run one schedule. Every other cloud needs pairs. Raises Violation."""
    world = RouteWorld(seed, distort, needs_pairs=seed % 2 == 1)
    happenings = (
        *([world.join] * 3),
        world.remove_node,
        world.register_again,
        world.delete_server,
        world.cancel_scale_up,
        world.readdress_server,
        world.add_foreign_route,
        world.remove_foreign_route,
        world.change_pairs,
        world.swap_token,
        world.lose_stream,
        world.crash,
    )
    for _ in range(40):
        world.random.choice(happenings)()
        if world.random.random() < 0.7:
            world.run_until_waiting()
        world.pass_time(world.random.choice([1, 15, 70, 400]))
    world.check_end()
