"""Plans the next step: from Nodes, the record and the network to one change."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

import msgspec

from libs.clouds.instances import Deleted, Instance, NotFound, Unanswered
from libs.clouds.routes import Route, RouteTable
from libs.common.contract.node import NETWORK_UNAVAILABLE, NO_ROUTE_CREATED, Node, NodeCondition
from services.cloud.core.routes.destinations import index_routes, is_inside_any, list_canonical
from services.cloud.core.routes.route_record import RecordedRoute, is_settled
from services.cloud.core.routes.route_view import (
    ROUND,
    CreateRoute,
    DeleteRoute,
    ListInstances,
    LookUpInstance,
    ReadRoutes,
    RouteStep,
    RouteView,
    SetCondition,
    Wait,
    WriteRecord,
)

_PATIENCE: Final = timedelta(seconds=15)  # after a request that was not answered
# The list of instances has the gateways. A Node that joined lately may be missing in it.
_LISTING_AGE: Final = timedelta(minutes=15)  # the process lists all instances every ten minutes anyway
_JOINING: Final = timedelta(minutes=10)
_PAUSE: Final = timedelta(seconds=20)  # between two such answers
_MAX_LOOKUPS: Final = 3  # of single instances; for more, a list costs less
# One write of the record covers the creates of this time.
_RECORD_AHEAD: Final = timedelta(minutes=5)
_NETWORKS_UNKNOWN: Final = (
    "the pod networks of the cluster are not known yet: no control plane has reported them to metadata, and "
    "--route-pod-network is not set"
)


class RoutedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A Node of this account's cloud with pod CIDRs that this cloud can route."""

    node: Node
    instance_id: str
    is_listed: bool  # False: the account does not list the instance, which may be another account's
    gateways: Mapping[str, str]  # by destination; "": the network does not reach the instance

    @property
    def is_reached(self) -> bool:
        """Whether each of its pod CIDRs has a gateway."""
        return all(self.gateways.values())

    @property
    def routes(self) -> tuple[Route, ...]:
        """The routes that the Node needs; none without a gateway."""
        return tuple(Route(destination, gateway) for destination, gateway in self.gateways.items() if gateway)


def plan_route_step(view: RouteView) -> RouteStep:
    """Return the next step. After each write, the routes are read again."""
    if not view.is_complete:
        return Wait(until=view.now + _PATIENCE, problem="Nodes may be missing")
    read = view.table
    if read is None or not view.is_current(read):
        return ReadRoutes()
    table = read.answer
    if not isinstance(table, RouteTable):
        problem = f"the credential finds no {view.network}"
        if isinstance(table, Unanswered):
            problem = table.reason
        retry_at = read.ended_at + _PATIENCE
        return ReadRoutes() if view.now >= retry_at else Wait(until=retry_at, problem=problem)
    nodes = tuple(_list_routed_nodes(view))
    problems = {each.node.uid: _explain_unroutable(view, each, table) for each in nodes}
    reached = tuple(each for each in nodes if not problems[each.node.uid])
    return (
        _plan_listing(view, nodes)
        or _plan_record(view, nodes, table)
        # A Node whose routes exist does not wait for the routes of others: each takes seconds.
        or _plan_condition(view, reached, problems)
        or _plan_deletion(view, nodes, table)
        or _plan_creation(view, nodes, table)
        or _plan_condition(view, nodes, problems)
        or _plan_wait(view, nodes, problems)
    )


def _list_routed_nodes(view: RouteView) -> Iterator[RoutedNode]:
    """Yield the oldest Node first: a later one that claims its pod CIDR, too, does not get the route."""
    for node in sorted(view.nodes, key=_get_age_key):
        instance_id = view.parse_provider_id(node.spec.provider_id)
        destinations = tuple(filter(view.can_route, list_canonical(node.spec.pod_cidrs)))
        if instance_id is not None and destinations:
            found = _find_instance(view, instance_id)
            yield RoutedNode(
                node=node,
                instance_id=instance_id,
                is_listed=found is not None,
                gateways={each: view.find_gateway(found, each) if found else "" for each in destinations},
            )


def _get_age_key(node: Node) -> tuple[bool, str, str]:
    created = node.metadata.creation_timestamp
    return created is None, "" if created is None else created.isoformat(), node.name


def _find_instance(view: RouteView, instance_id: str) -> Instance | None:
    """Return the instance by the newest answer; None if the account has no such instance."""
    listing, lookup = view.listing, view.lookups.get(instance_id)
    is_newer = lookup is not None and (listing is None or lookup.began_at > listing.began_at)
    if lookup is not None and is_newer and isinstance(lookup.answer, Instance):
        return lookup.answer if view.is_current(lookup, _LISTING_AGE) else None
    if listing is None or isinstance(listing.answer, Unanswered):
        return None
    return listing.answer.get(instance_id)


def _plan_listing(
    view: RouteView, nodes: tuple[RoutedNode, ...]
) -> ListInstances | LookUpInstance | ReadRoutes | Wait | None:
    """List all instances, or ask for single ones that joined after the list, and read the routes after it."""
    listing = view.listing
    if listing is None or not view.is_current(listing, _LISTING_AGE):
        return ListInstances()
    if isinstance(listing.answer, Unanswered):
        retry_at = listing.ended_at + _PATIENCE
        waits = Wait(until=retry_at, problem=listing.answer.reason)
        return ListInstances() if view.now >= retry_at else waits
    joining = [each for each in nodes if not each.is_reached and _is_joining(view, each.node)]
    latest = listing.began_at
    if len(joining) > _MAX_LOOKUPS and view.now - listing.ended_at >= _PAUSE:
        return ListInstances()
    for each in joining if len(joining) <= _MAX_LOOKUPS else ():
        lookup = view.lookups.get(each.instance_id)
        if lookup is None or not view.is_current(lookup, _PAUSE):
            return LookUpInstance(each.instance_id)
        latest = max(latest, lookup.began_at)
    # The table may be older than what attached the instance to the network.
    is_outdated = view.table is not None and view.table.began_at < latest
    return ReadRoutes() if is_outdated and any(each.is_listed for each in joining) else None


def _is_joining(view: RouteView, node: Node) -> bool:
    created = node.metadata.creation_timestamp
    return created is not None and view.now - created <= _JOINING


def _plan_record(view: RouteView, nodes: tuple[RoutedNode, ...], table: RouteTable) -> WriteRecord | None:
    """Record the Nodes' routes that exist, and drop those that are gone and not needed any more."""
    needed = {route: each for each in nodes for route in each.routes}
    adopted = [
        RecordedRoute(route=route, instance_id=each.instance_id)
        for route, each in needed.items()
        if table.is_complete(route) and not _is_recorded(view, route, each)
    ]
    read_at = view.table.began_at if view.table is not None else view.led_since
    gone = frozenset(
        each.route
        for each in view.record.entries
        if not table.has_part(each.route)
        and each.route not in needed
        and is_settled(each, read_at, view.led_since)
    )
    return WriteRecord(view.record.update(*adopted, without=gone)) if adopted or gone else None


def _is_recorded(view: RouteView, route: Route, node: RoutedNode) -> bool:
    """Whether the record has this route of this instance. A later instance may have the same address."""
    entry = view.record.find(route)
    return entry is not None and entry.instance_id == node.instance_id


def _plan_deletion(
    view: RouteView, nodes: tuple[RoutedNode, ...], table: RouteTable
) -> DeleteRoute | LookUpInstance | Wait | None:
    needed = {route for each in nodes for route in each.routes}
    for entry in view.record.entries:
        if not table.has_part(entry.route) or entry.route in needed or entry.route in view.pauses:
            continue
        found = _judge_unneeded(view, nodes, entry)
        if isinstance(found, LookUpInstance):
            return found
        if found:
            return _wait_for_lease(view) or DeleteRoute(entry.route, found)
    return None


def _judge_unneeded(
    view: RouteView, nodes: tuple[RoutedNode, ...], entry: RecordedRoute
) -> str | LookUpInstance:
    """Return why a recorded route that no Node needs has to go; "" if it stays.

    The table of Nodes is complete, and the network was found by this credential: so "not found" of the
    instance is by the credential of the right project.
    """
    destination = entry.route.destination
    owners = [each for each in view.nodes if destination in list_canonical(each.spec.pod_cidrs)]
    # A kubelet may claim the pod CIDR of another Node, whose instance is perhaps not listed for a moment.
    owner = min(
        owners,
        key=lambda each: view.parse_provider_id(each.spec.provider_id) != entry.instance_id,
        default=None,
    )
    if owner is not None:
        routed = next((each for each in nodes if each.node.uid == owner.uid), None)
        reason = _judge_other_owner(view, routed, owner, destination)
        # Of another account, perhaps: only the route's own instance shows whether it may go.
        if reason or routed is None or routed.is_listed or routed.instance_id == entry.instance_id:
            return reason
    for node in view.nodes:
        if view.parse_provider_id(node.spec.provider_id) == entry.instance_id:
            has_others = bool(node.spec.pod_cidrs)
            return f"Node {node.name} has other pod CIDRs" if has_others else ""
    lookup = view.lookups.get(entry.instance_id)
    longest = _LISTING_AGE if lookup is not None and isinstance(lookup.answer, Instance) else None
    is_current = lookup is not None and (
        view.is_current(lookup, longest) if longest else view.is_current(lookup)
    )
    if lookup is None or not is_current:
        return LookUpInstance(entry.instance_id)
    is_gone = isinstance(lookup.answer, NotFound | Deleted)
    return f"neither a Node nor instance {entry.instance_id} exists" if is_gone else ""


def _judge_other_owner(view: RouteView, routed: RoutedNode | None, owner: Node, destination: str) -> str:
    """Return why a route may not lead elsewhere than to the Node that has its destination."""
    is_elsewhere = bool(owner.spec.provider_id) and view.parse_provider_id(owner.spec.provider_id) is None
    is_reached = routed is not None and bool(routed.gateways.get(destination))
    return f"Node {owner.name} has this pod CIDR" if is_elsewhere or is_reached else ""


def _plan_creation(
    view: RouteView, nodes: tuple[RoutedNode, ...], table: RouteTable
) -> WriteRecord | CreateRoute | Wait | None:
    missing = {
        route: each
        for each in nodes
        for route in each.routes
        if not table.is_complete(route) and not _explain_missing(view, table, route)
    }
    new = [route for route in missing if route not in table.routes]
    room = len(new) if table.limit is None else max(0, table.limit - len(table.routes))
    excess = frozenset(new[room:])
    # New ones come last: they may not find room, and what is missing of the others needs none.
    ordered = sorted(missing, key=lambda route: route not in table.routes)
    batch = {route: missing[route] for route in ordered if route not in excess}
    if not batch:
        return None
    if not view.pod_networks:
        return Wait(until=view.now + _PATIENCE, problem=_NETWORKS_UNKNOWN)
    ends_at = view.now + timedelta(seconds=view.write_seconds)
    first, node = next(iter(batch.items()))
    entry = view.record.find(first)
    if entry is None or entry.create_deadline is None or entry.create_deadline < ends_at:
        deadline = view.now + _RECORD_AHEAD
        entries = (
            RecordedRoute(route=route, instance_id=each.instance_id, create_deadline=deadline)
            for route, each in batch.items()
        )
        return WriteRecord(view.record.update(*entries))
    return _wait_for_lease(view) or CreateRoute(first, node.node.name)


def _wait_for_lease(view: RouteView) -> Wait | None:
    """A write must end while this process leads: the next leader may begin right after."""
    if view.lease_seconds > view.write_seconds:
        return None
    return Wait(until=view.now + timedelta(seconds=1), problem="the Lease ends before a write would")


def _explain_missing(view: RouteView, table: RouteTable, route: Route) -> str:
    """Return why a missing route cannot be created now; "" if it can, or pod networks are unknown.

    A kubelet may register its Node with any pod CIDR. So a route leads to no address that another one leads
    to, and stays inside the pod networks.
    """
    if view.pod_networks and not is_inside_any(route.destination, view.pod_networks):
        return f"it is outside the pod networks of the cluster, {', '.join(view.pod_networks)}"
    # A partial route that exists is in no one's way.
    is_new = route not in table.routes
    other = index_routes(table.routes).find_overlapping(route.destination) if is_new else None
    if other is not None:
        whose = "an earlier route" if view.record.find(other) else "a route of another owner"
        return f"{whose} exists: {other}"
    pause = view.pauses.get(route, view.create_pause)
    if pause is None or (pause.is_limit and not is_new):
        return ""  # what is missing of a route that exists takes no room
    return pause.reason


def _plan_condition(
    view: RouteView, nodes: tuple[RoutedNode, ...], problems: Mapping[str, str]
) -> SetCondition | None:
    for each in nodes:
        problem = problems[each.node.uid]
        if not each.is_listed or each.node.uid in view.unwritable_uids:
            continue  # it may be an instance of another account
        wanted = NodeCondition(
            type=NETWORK_UNAVAILABLE,
            status="True" if problem else "False",
            reason=NO_ROUTE_CREATED if problem else "RouteCreated",
            message=problem or f"{_capitalize(view.network)} routes {', '.join(each.gateways)} to this Node",
        )
        # The stream shows a write later, or never: then another client writes the condition, too.
        found = view.written.get(each.node.uid, each.node.find_condition(NETWORK_UNAVAILABLE))
        is_same = found is not None and _list_fields(found) == _list_fields(wanted)
        if not is_same:
            return SetCondition(each.node, wanted)
    return None


def _list_fields(condition: NodeCondition) -> tuple[str, str, str]:
    return condition.status, condition.reason, condition.message


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _explain_unroutable(view: RouteView, node: RoutedNode, table: RouteTable) -> str:
    """Return why the network does not route all pod CIDRs of the Node; "" if it does."""
    if not node.is_listed:
        return f"The account does not list instance {node.instance_id}"
    if not node.routes:
        return f"Instance {node.instance_id} is not attached to {view.network}"
    if not node.is_reached:
        destination = next(each for each, gateway in node.gateways.items() if not gateway)
        return f"Instance {node.instance_id} has no address for {destination} at {view.network}"
    for route in node.routes:
        if table.is_complete(route):
            continue
        reason = _explain_missing(view, table, route)
        is_full = table.limit is not None and len(table.routes) >= table.limit
        if not reason and is_full and route not in table.routes:
            reason = f"{view.network} has {len(table.routes)} of at most {table.limit} routes"
        return f"No route for {route.destination}: {reason or 'it is created soon'}"
    return ""


def _plan_wait(view: RouteView, nodes: tuple[RoutedNode, ...], problems: Mapping[str, str]) -> Wait:
    read = view.table
    until = view.now + ROUND if read is None else read.find_end(ROUND)
    pauses = [each.until for each in view.pauses.values()]
    pauses += [view.create_pause.until] if view.create_pause is not None else []
    own = (each for each in nodes if each.is_listed)  # others may be of another account
    blocked = sum(bool(problems[each.node.uid]) for each in own)
    return Wait(until=min([until, *pauses]), blocked=blocked)
