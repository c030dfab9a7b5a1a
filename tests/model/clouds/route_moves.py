"""What processes, the cloud and the cluster may do in the world of routes, and what must hold."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from msgspec.structs import replace

from libs.clouds.instances import NotFound
from libs.clouds.routes import Route, RouteTable
from services.cloud.core.answer import MAX_LATENESS
from services.cloud.core.routes import plan_routes
from services.cloud.core.routes.route_record import RouteRecord
from services.cloud.core.routes.route_view import (
    CreateRoute,
    DeleteRoute,
    InstanceListing,
    InstanceLookup,
    ListInstances,
    LookUpInstance,
    ReadRoutes,
    SetCondition,
    TableAnswer,
    Wait,
    WriteRecord,
)
from tests.model.clouds.route_states import (
    FOREIGN,
    INSTANT,
    LEASE,
    LIMIT,
    OTHER_POD_CIDR,
    POD_CIDR,
    TICK,
    WRITE_SECONDS,
    Faults,
    LateWrite,
    NodeState,
    Physics,
    Process,
    Servers,
    World,
    build_key,
    build_view,
    describe_instance,
    make_start,
)
from tests.model.search import Model, Step

_PAUSE: Final = timedelta(seconds=5)


def build_model(faults: Faults, *, script: tuple[str, ...], physics: Physics | None = None) -> Model[World]:
    """Return the model with that many faults."""
    return Model(
        start=make_start(faults, script, physics or Physics()),
        list_steps=list_steps,
        build_key=build_key,
        find_violation=find_violation,
        find_unfinished=find_unfinished,
    )


# ---- steps


def list_steps(world: World) -> Iterator[Step[World]]:
    """Yield all that may happen next."""
    is_waiting = True
    for step in (
        *_list_process_steps(world, 0),
        *_list_process_steps(world, 1),
        *_list_lease_steps(world),
    ):
        is_waiting = is_waiting and not step.is_progress
        yield step
    yield from _list_cloud_steps(world)
    yield from _list_cluster_steps(world)
    if is_waiting and world.project != 1:
        yield Step("the token becomes the former project's again", _swap(world), True)
    elif is_waiting and not _is_quiet(world):
        yield Step("20 s pass", _pass_time(world), True)
    elif not is_waiting and world.faults.slow:
        slow = replace(world, faults=replace(world.faults, slow=world.faults.slow - 1))
        yield Step("20 s pass while a process is slow", _pass_time(slow), False)


def _list_process_steps(world: World, number: int) -> Iterator[Step[World]]:
    process, name, faults = world.processes[number], f"process {number + 1}", world.faults
    if process.lease_until is None:
        return
    begun = replace(world, now=world.now + INSTANT)
    if process.record is None:
        read = replace(process, record=world.record, revision=world.revision)
        yield Step(f"{name} reads the record", _put(begun, number, read), True)
    else:
        step = plan_routes.plan_route_step(build_view(world, process))
        if not isinstance(step, Wait):
            for text, after in _execute(begun, number, process, step):
                yield Step(f"{name} {text}", after, "lost" not in text)
    if process.is_behind:
        seen = replace(process, is_behind=False)
        yield Step(f"{name} receives a snapshot of all Nodes", _put(world, number, seen), True)
    elif faults.losses:
        used = replace(world, faults=replace(faults, losses=faults.losses - 1))
        yield Step(f"{name} loses messages", _put(used, number, replace(process, is_behind=True)), False)
    if faults.crashes:
        used = replace(world, faults=replace(faults, crashes=faults.crashes - 1))
        restarted = Process(world.now, lease_until=process.lease_until)
        yield Step(f"{name} crashes and starts again", _put(used, number, restarted), False)


def _execute(world: World, number: int, process: Process, step: Any) -> Iterator[tuple[str, World]]:
    asked: dict[str, Any] = {"began_at": world.now, "ended_at": world.now, "generation": world.generation}
    is_ours = world.project == 1
    match step:
        case ReadRoutes():
            table = RouteTable(routes=world.routes, limit=LIMIT)
            answer = TableAnswer(answer=table if is_ours else NotFound(), **asked)
            yield "reads the network", _put(world, number, replace(process, table=answer))
        case ListInstances():
            servers = world.servers if is_ours else ()
            listed = Servers({each: describe_instance(each) for each in servers})
            listing = InstanceListing(answer=listed, **asked)
            yield "lists the servers", _put(world, number, replace(process, listing=listing))
        case LookUpInstance(instance_id=wanted):
            exists = wanted in world.servers and is_ours
            found = InstanceLookup(answer=describe_instance(wanted) if exists else NotFound(), **asked)
            kept = tuple(each for each in process.lookups if each[0] != wanted)
            after = replace(process, lookups=(*kept, (wanted, found)))
            yield f"looks up server {wanted}", _put(world, number, after)
        case WriteRecord(record=record):
            yield _write_record(world, number, process, record)
        case SetCondition(node=node, condition=condition):
            nodes = tuple(
                replace(each, condition=condition) if each.name == node.name else each for each in world.nodes
            )
            yield f"sets {condition.reason} of {node.name}", replace(world, nodes=nodes)
        case CreateRoute(route=route) | DeleteRoute(route=route):
            kind = "creates" if isinstance(step, CreateRoute) else "deletes"
            yield from _write(world, number, process, kind, route)


def _write_record(world: World, number: int, process: Process, record: RouteRecord) -> tuple[str, World]:
    if world.physics.fences_record and process.revision != world.revision:
        return "gets a conflict", _put(world, number, replace(process, record=None))
    revision = world.revision + 1
    after = replace(world, record=record, revision=revision)
    return "writes the record", _put(after, number, replace(process, record=record, revision=revision))


def _write(
    world: World, number: int, process: Process, kind: str, route: Route
) -> Iterator[tuple[str, World]]:
    if number != world.holder:
        world = replace(world, violation=f"process {number + 1} writes to the cloud, and the other one leads")
    if kind == "deletes":
        world = _judge_deletion(world, process, route)
    text, read = f"{kind} {route}", process
    if world.physics.reads_after_writes:
        read = replace(process, table=None)
    paused = replace(read, pauses=(*read.pauses, (route, world.now + _PAUSE)))
    is_blocked = kind == "creates" and any(each.destination == route.destination for each in world.routes)
    if world.project != 1 or is_blocked:
        yield f"{text} in vain", _put(world, number, paused)
        return
    yield text, _put(_take_effect(world, kind, route), number, read)
    if world.faults.lost_answers:
        faults = replace(world.faults, lost_answers=world.faults.lost_answers - 1)
        late = LateWrite(kind, route, world.now + timedelta(seconds=WRITE_SECONDS) + MAX_LATENESS)
        lost = replace(world, faults=faults, late=(*world.late, late))
        yield f"{text}, and the answer is lost", _put(lost, number, paused)


def _take_effect(world: World, kind: str, route: Route) -> World:
    if kind == "deletes":
        return replace(world, routes=world.routes - {route})
    is_blocked = any(each.destination == route.destination for each in world.routes)
    return world if is_blocked else replace(world, routes=world.routes | {route})


def _judge_deletion(world: World, process: Process, route: Route) -> World:
    if route == FOREIGN:
        return replace(world, violation=f"{route} of another owner is deleted")
    if world.needs(route):
        return replace(world, violation=f"{route} is deleted, and a Node needs it")
    entry = process.record.find(route) if process.record else None
    has_node = any(
        each.pod_cidr == route.destination or (entry and each.instance_id == entry.instance_id)
        for each in world.nodes
    )
    if entry and entry.instance_id in world.servers and not has_node:
        return replace(world, violation=f"{route} is deleted, and its server may register again")
    return world


def _list_lease_steps(world: World) -> Iterator[Step[World]]:
    faults, holder = world.faults, world.holder
    if world.is_renewing and faults.handovers:
        used = replace(faults, handovers=faults.handovers - 1)
        text = f"process {holder + 1} fails to renew its Lease"
        yield Step(text, replace(world, is_renewing=False, faults=used), False)
    lease_until = world.processes[holder].lease_until
    if not world.is_renewing and lease_until is not None and world.now >= lease_until:
        leader = Process(world.now, lease_until=world.now + LEASE)
        after = replace(_put(world, 1 - holder, leader), holder=1 - holder, is_renewing=True)
        yield Step(f"process {2 - holder} leads", after, True)
    if world.processes[1 - holder].lease_until is not None:
        stopped = _put(world, 1 - holder, Process(world.now))
        yield Step(f"process {2 - holder} sees that it lost the Lease", stopped, True)


def _list_cloud_steps(world: World) -> Iterator[Step[World]]:
    for late in world.late:
        rest = tuple(each for each in world.late if each is not late)
        after = _take_effect(replace(world, late=rest), late.kind, late.route)
        yield Step(f"the lost write takes effect: {late.kind} {late.route}", after, False)
    if world.faults.swaps and world.project == 1:
        used = replace(world, faults=replace(world.faults, swaps=world.faults.swaps - 1))
        yield Step("the token becomes another project's", _swap(used), False)


def _list_cluster_steps(world: World) -> Iterator[Step[World]]:
    if world.faults.wipes and world.record.entries:
        used = replace(
            world, faults=replace(world.faults, wipes=world.faults.wipes - 1), is_record_wiped=True
        )
        wiped = replace(used, record=RouteRecord(), revision=world.revision + 1)
        yield Step("the record is removed", wiped, False)
    if not world.script:
        return
    text, after = world.script[0], replace(world, script=world.script[1:])
    nodes, servers = {
        "web-1 joins": ((NodeState("web-1", "1", POD_CIDR),), ("1", "2")),
        "web-1 registers again": ((NodeState("web-1", "1", POD_CIDR),), ("1", "2")),
        "web-1 registers again with another pod CIDR": (
            (NodeState("web-1", "1", OTHER_POD_CIDR),),
            ("1", "2"),
        ),
        "web-1 is deleted": ((), ("1", "2")),
        "web-1 and its server are deleted": ((), ("2",)),
        "its server is deleted": ((), ("2",)),
        "web-2 joins with the same pod CIDR": ((NodeState("web-2", "2", POD_CIDR),), ("2",)),
    }[text]
    yield Step(text, replace(after, nodes=nodes, former_nodes=world.nodes, servers=servers), False)


def _swap(world: World) -> World:
    return replace(world, project=3 - world.project, generation=world.generation + 1)


def _pass_time(world: World) -> World:
    """Renew the Lease, and forget what has ended."""
    now = world.now + TICK
    processes = []
    for number, process in enumerate(world.processes):
        is_renewed = number == world.holder and world.is_renewing
        pauses = tuple(each for each in process.pauses if each[1] > now)
        lease_until = now + LEASE if is_renewed else process.lease_until
        processes.append(replace(process, lease_until=lease_until, pauses=pauses))
    late = tuple(each for each in world.late if each.until >= now)
    return replace(world, now=now, processes=(processes[0], processes[1]), late=late)


def _put(world: World, number: int, process: Process) -> World:
    first, second = world.processes
    return replace(world, processes=(process, second) if number == 0 else (first, process))


# ---- what must hold


def find_violation(world: World) -> str:
    """Return what must not be in any state."""
    if world.violation:
        return world.violation
    for route in world.routes - {FOREIGN}:
        if world.record.find(route) is None and not world.is_record_wiped:
            return f"{route} exists, and the record does not have it"
    return ""


def find_unfinished(world: World) -> str:
    """Return what is missing where nothing happens by itself."""
    for node in world.nodes:
        is_available = node.condition is not None and node.condition.status == "False"
        left = any(each.destination == node.pod_cidr for each in world.routes - {node.route})
        if left and world.is_record_wiped:
            continue  # nothing proves that the route in the way is ours
        if node.route not in world.routes or not is_available:
            return f"{node.name} has no route, or does not say so"
    for route in world.routes - {FOREIGN}:
        entry = world.record.find(route)
        if entry is not None and entry.instance_id not in world.servers:
            return f"{route} is left"
    return ""


def _is_quiet(world: World) -> bool:
    """Whether time alone changes nothing any more."""
    process = world.processes[world.holder]
    if world.late or not world.is_renewing or process.lease_until is None or process.pauses:
        return False
    table, record = process.table, process.record
    if table is None or record is None:
        return False
    found = table.answer.routes if isinstance(table.answer, RouteTable) else frozenset()
    is_settled = all(each.route in found or world.needs(each.route) for each in record.entries)
    return found == world.routes and is_settled and not find_unfinished(world)
