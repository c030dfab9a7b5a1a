"""What processes, the cloud and users may do in the world of load balancers, and what must hold."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from libs.clouds.balancers import (
    UnknownOutcome,
    WriteRejection,
    WriteResult,
    WriteSuccess,
)
from libs.clouds.instances import Anchor, NotFound
from services.cloud.core.answer import MAX_LATENESS
from services.cloud.core.balancers.balancer_record import BalancerAccount
from services.cloud.core.balancers.balancer_steps import (
    BalancerFailed,
    ChangeBalancer,
    CreateBalancer,
    DeleteBalancer,
    ListBalancers,
    NotSelected,
    NoWitness,
    ReadAnchor,
    ReadBalancer,
    RecordBalancer,
    ReleaseService,
    Settled,
    Wait,
    WriteStatus,
)
from services.cloud.core.balancers.balancer_view import (
    AnchorLookup,
    Listing,
    Lookup,
    Memory,
    remember_confirmed,
    remember_write,
)
from services.cloud.core.balancers.plan_step import plan_step
from tests.builders import NOW
from tests.clouds.balancers import ACCOUNT
from tests.model.clouds.balancer_world import (
    FOREIGN,
    INSTANT,
    LEASE,
    LIFE,
    MAX_AGE,
    OTHER_ACCOUNT,
    OTHER_INGRESS,
    START_PAID,
    TICK,
    WRITE_SECONDS,
    Faults,
    Kube,
    Paid,
    PendingCreate,
    Physics,
    Process,
    World,
    build_key,
    build_view,
    describe,
    find_paid,
    get_anchor,
    list_tagged,
    put,
)
from tests.model.search import Model, Step


def build_model(
    faults: Faults,
    *,
    script: tuple[str, ...] = LIFE,
    physics: Physics | None = None,
    other_project: int | None = None,
) -> Model[World]:
    """Return the model with that many faults.

    `other_project` is that of a second account, whose process is the second one. None: there is one account.
    """
    fresh = Memory(led_since=NOW)
    leader, other = Process(memory=fresh, lease_until=NOW + LEASE), Process(memory=fresh)
    if other_project is not None:
        other = replace(leader, account=OTHER_ACCOUNT)
    start = World(
        NOW,
        Kube(),
        START_PAID,
        (),
        (leader, other),
        faults,
        script=script,
        physics=physics or Physics(),
        other_project=other_project or 1,
    )
    return Model(
        start=start,
        list_steps=list_steps,
        build_key=build_key,
        find_violation=find_violation,
        find_unfinished=find_unfinished,
    )


# ---- steps


def list_steps(world: World) -> Iterator[Step[World]]:
    """Return all that may happen next."""
    is_waiting = True
    for number in (0, 1):
        for step in _list_process_steps(world, number):
            is_waiting = is_waiting and not step.is_progress
            yield step
    for step in _list_lease_steps(world):
        is_waiting = is_waiting and not step.is_progress
        yield step
    for step in _list_cloud_steps(world):
        is_waiting = is_waiting and not step.is_progress
        yield step
    yield from _list_user_steps(world)
    faults = world.faults
    if is_waiting and not _is_quiet(world):
        if isinstance(_find_wait_reason(world, world.holder), NoWitness):
            yield Step("the token becomes the recorded project's again", _swap(world), True)
        else:
            yield Step("20 s pass", _pass_time(world), True)
    elif not is_waiting and faults.slow:
        slow = replace(world, faults=replace(faults, slow=faults.slow - 1))
        yield Step("20 s pass while a process is slow", _pass_time(slow), False)


def _list_process_steps(world: World, number: int) -> Iterator[Step[World]]:
    process = world.processes[number]
    if process.lease_until is None:
        return
    is_progress, name, faults = world.leads(number), f"process {number + 1}", world.faults
    if world.kube.uid == 0 and process.snapshot is None:
        return
    service = process.snapshot or world.kube
    if process.snapshot is None and faults.stale_reads:
        used = replace(world, faults=replace(faults, stale_reads=faults.stale_reads - 1))
        stale = put(used, number, replace(process, snapshot=service))
        yield Step(f"{name} reads the Service, and acts later", stale, False)
    if process.uid != service.uid:
        memory = Memory(led_since=world.now)
        process = Process(memory, process.lease_until, process.account, uid=service.uid)
    step = plan_step(build_view(world, process, service))
    process = replace(process, snapshot=None)
    if isinstance(step, Wait):
        if world.processes[number].snapshot is not None:
            yield Step(f"{name} waits", put(world, number, process), is_progress)
        elif world.has_two_accounts and isinstance(step.reason, NotSelected):
            yield from _list_periodically(world, number, process)
    else:
        begun = replace(world, now=world.now + INSTANT)
        for text, after in _execute(begun, number, process, service, step):
            yield Step(f"{name} {text}", after, is_progress and "lost" not in text)
    if faults.crashes:
        used = replace(world, faults=replace(faults, crashes=faults.crashes - 1))
        restarted = Process(Memory(led_since=world.now), process.lease_until, process.account)
        yield Step(f"{name} crashes and starts again", put(used, number, restarted), False)


def _list_periodically(world: World, number: int, process: Process) -> Iterator[Step[World]]:
    """A process also lists for other Services; a balancer of ours that is not expected is looked at then."""
    known, found = process.listing, list_tagged(world, process.account)
    if known is None or known.answer != found or known.began_at < process.memory.valid_from:
        for text, after in _execute(world, number, process, world.kube, ListBalancers()):
            yield Step(f"process {number + 1} {text} for another Service", after, True)


def _execute(
    world: World, number: int, process: Process, service: Kube, step: Any
) -> Iterator[tuple[str, World]]:
    now, generation, account = world.now, world.generation, process.account
    asked: dict[str, Any] = {"began_at": now, "ended_at": now, "generation": generation}
    match step:
        case ListBalancers():
            after = replace(
                process, listing=Listing(answer=list_tagged(world, account), parts_began_at=now, **asked)
            )
            yield "lists", put(world, number, after)
        case ReadBalancer(balancer_id=balancer_id):
            paid = find_paid(world, account, balancer_id)
            answer = describe(world, account, paid) if paid else NotFound()
            lookup = Lookup(balancer_id=balancer_id, answer=answer, **asked)
            kept = tuple(each for each in process.lookups if each.balancer_id != balancer_id)
            after = replace(process, lookups=(*kept, lookup))
            yield f"reads {balancer_id}", put(world, number, after)
        case ReadAnchor(anchor=anchor):
            is_found = anchor == get_anchor(world.get_project(account))
            proof = Anchor(anchor.kind, anchor.id) if is_found else NotFound()
            after = replace(process, anchor_lookup=AnchorLookup(anchor=anchor, answer=proof, **asked))
            yield "reads the anchor", put(world, number, after)
        case RecordBalancer() | ReleaseService() | WriteStatus():
            yield _patch(world, number, process, service, step)
        case _:
            yield from _write(world, number, process, service, step)


def _patch(world: World, number: int, process: Process, service: Kube, step: Any) -> tuple[str, World]:
    kube = world.kube
    if kube.uid != service.uid or (world.physics.fences_patches and kube.revision != service.revision):
        return "gets a conflict", put(world, number, process)
    match step:
        case RecordBalancer(record=record):
            text = f"records {record.id or 'the deadline of a create'}"
            kube = replace(kube, record=record, has_finalizer=kube.has_finalizer or not kube.is_deleting)
        case WriteStatus(condition=condition, ingress=ingress):
            text, kube = "writes the status", replace(kube, condition=condition)
            if ingress is not None:
                if kube.ingress == OTHER_INGRESS:
                    world = replace(world, violation="the address of another controller goes")
                kube = replace(kube, ingress=ingress)
                served = {each.ip for each in ingress}
                paid = (replace(each, has_served=each.has_served or each.id in served) for each in world.paid)
                world = replace(world, paid=tuple(paid))
        case _:
            is_kept = kube.has_finalizer and bool(step.left_to)
            text, kube = "releases the Service", replace(kube, record=None, has_finalizer=is_kept)
    process = replace(process, memory=remember_confirmed(process.memory, step))
    return text, put(_change_kube(world, kube), number, process)


def _change_kube(world: World, kube: Kube) -> World:
    if kube.is_deleting and not kube.has_finalizer:
        kube = Kube()
    return replace(world, kube=replace(kube, revision=world.kube.revision + 1))


def _write(
    world: World, number: int, process: Process, service: Kube, step: Any
) -> Iterator[tuple[str, World]]:
    deadline = world.now + timedelta(seconds=WRITE_SECONDS)
    if not world.leads(number):
        text = f"process {number + 1} writes to the cloud, and the other one leads"
        world = replace(world, violation=text)
    account = process.account
    text, after, result = _send(world, account, service, step)
    results: list[tuple[str, World, WriteResult | NotFound]] = [(text, after, result)]
    left = world.faults.lost_answers
    if left and isinstance(result, WriteSuccess):
        if isinstance(step, CreateBalancer):
            text = "creates a balancer"
            until = deadline + MAX_LATENESS
            pending = PendingCreate(
                world.get_project(account), service.uid, step.desired, until, account.name
            )
            after = replace(world, pending=(*world.pending, pending), violation=after.violation)
        after = replace(after, faults=replace(after.faults, lost_answers=left - 1))
        results.append((f"{text}, and the answer is lost", after, UnknownOutcome(reason="lost")))
    for said, changed, answer in results:
        memory = remember_write(
            process.memory,
            step,
            answer,
            deadline=deadline,
            ended_at=world.now,
            generation=world.generation,
        )
        yield said, put(changed, number, replace(process, memory=memory))


def _send(
    world: World, account: BalancerAccount, service: Kube, step: Any
) -> tuple[str, World, WriteResult | NotFound]:
    """Return what the process does, the world after it, and the answer."""
    if isinstance(step, CreateBalancer):
        balancer_id, after = _create(world, account, service, step.desired)
        is_building = world.physics.builds_slowly
        result = WriteSuccess(balancer_id=balancer_id, is_building=is_building)
        return f"creates {balancer_id}", after, result
    paid, name = find_paid(world, account, step.balancer_id), step.balancer_id
    if paid is not None and paid.account != account.name:
        text = f"account {account.name} writes to {name} of account {paid.account}"
        world = replace(world, violation=text)
    match step:
        case ChangeBalancer(change=change):
            if paid is None or paid.state != "ready":
                return f"changes {name} in vain", world, _rejection("invalid")
            after = _change_paid(world, paid, None if change == "untag" else change)
            return f"changes {name}", after, WriteSuccess()
        case DeleteBalancer() if paid is not None and paid.is_protected:
            return f"may not delete {name}", world, _rejection("in_use")
    if paid is None:
        return f"deletes {name} in vain", world, NotFound()
    if _wants_recorded(account, service, paid):
        world = replace(world, violation=f"{name} is deleted, and its Service wants it")
    return f"deletes {name}", _delete_paid(world, paid), WriteSuccess()


def _wants_recorded(account: BalancerAccount, service: Kube, paid: Paid) -> bool:
    """Whether the Service, as the process has read it, is to keep this balancer."""
    is_wanted = service.is_wanted and not service.is_deleting and service.account == account.name
    record = service.record
    is_recorded = record is not None and (record.account, record.id) == (account.name, paid.id)
    return is_wanted and is_recorded and service.uid == paid.maker and paid.state != "failed"


def _create(world: World, account: BalancerAccount, service: Kube, version: int) -> tuple[str, World]:
    project = world.get_project(account)
    is_double = any(each.maker == service.uid and each.project == project for each in world.paid)
    if is_double and not world.is_record_removed:
        world = replace(world, violation="a balancer is created beside another one")
    owner = service.uid if world.physics.tags_in_create else None
    state: Any = "building" if world.physics.builds_slowly else "ready"
    new = Paid(f"b{world.created + 1}", project, service.uid, owner, version, False, account.name, state)
    return new.id, replace(world, paid=(*world.paid, new), created=world.created + 1)


def _rejection(kind: Any) -> WriteRejection:
    return WriteRejection(kind=kind, reason=kind)


def _change_paid(world: World, paid: Paid, version: int | None) -> World:
    changed = replace(paid, owner=None) if version is None else replace(paid, version=version)
    if paid.maker == FOREIGN:
        world = replace(world, violation=f"the foreign balancer {paid.id} is changed")
    return replace(world, paid=tuple(changed if each.id == paid.id else each for each in world.paid))


def _delete_paid(world: World, paid: Paid) -> World:
    if paid.maker == FOREIGN:
        world = replace(world, violation=f"the foreign balancer {paid.id} is deleted")
    kube = world.kube
    is_needed = kube.uid == paid.maker and kube.is_wanted and not kube.is_deleting
    if is_needed and paid.state == "failed" and paid.has_served:
        world = replace(world, violation=f"{paid.id} has served, and is deleted as one that was never ready")
    return replace(world, paid=tuple(each for each in world.paid if each.id != paid.id))


def _list_lease_steps(world: World) -> Iterator[Step[World]]:
    if world.has_two_accounts:
        return
    faults, holder = world.faults, world.holder
    if world.is_renewing and faults.handovers:
        used = replace(faults, handovers=faults.handovers - 1)
        yield Step(
            f"process {holder + 1} fails to renew its Lease",
            replace(world, is_renewing=False, faults=used),
            False,
        )
    lease_until = world.processes[holder].lease_until
    if not world.is_renewing and lease_until is not None and world.now >= lease_until:
        leader = Process(memory=Memory(led_since=world.now), lease_until=world.now + LEASE)
        after = replace(put(world, 1 - holder, leader), holder=1 - holder, is_renewing=True)
        yield Step(f"process {2 - holder} leads", after, True)
    follower = world.processes[1 - holder]
    if follower.lease_until is not None:
        stopped = Process(memory=Memory(led_since=world.now))
        yield Step(f"process {2 - holder} sees that it lost the Lease", put(world, 1 - holder, stopped), True)


def _list_cloud_steps(world: World) -> Iterator[Step[World]]:
    faults = world.faults
    for pending in world.pending:
        new = Paid(
            f"b{world.created + 1}",
            pending.project,
            pending.maker,
            pending.maker,
            pending.version,
            account=pending.account,
        )
        rest = tuple(each for each in world.pending if each is not pending)
        after = replace(world, pending=rest, paid=(*world.paid, new), created=world.created + 1)
        yield Step(f"the lost create takes effect: {new.id}", after, False)
    if faults.swaps and world.project == 1:
        used = replace(world, faults=replace(faults, swaps=faults.swaps - 1))
        yield Step("the token becomes another project's", _swap(used), False)
    for paid in world.paid:
        if paid.maker == FOREIGN:
            continue
        others = tuple(each for each in world.paid if each is not paid)
        if paid.state == "building":
            yield Step(
                f"{paid.id} is built", replace(world, paid=(*others, replace(paid, state="ready"))), True
            )
        if faults.breakages and world.physics.builds_slowly and paid.state != "failed":
            used = replace(world, faults=replace(faults, breakages=faults.breakages - 1))
            failed = replace(paid, state="failed")
            yield Step(f"{paid.id} fails", replace(used, paid=(*others, failed)), False)
        if faults.protections and not paid.is_protected:
            used = replace(world, faults=replace(faults, protections=faults.protections - 1))
            yield Step(
                f"{paid.id} is protected",
                replace(used, paid=(*others, replace(paid, is_protected=True))),
                False,
            )
        if faults.removals:
            used = replace(world, faults=replace(faults, removals=faults.removals - 1))
            yield Step(f"{paid.id} is deleted in the console", replace(used, paid=others), False)


def _list_user_steps(world: World) -> Iterator[Step[World]]:
    kube, faults = world.kube, world.faults
    if world.script:
        text, after = world.script[0], replace(world, script=world.script[1:])
        changed = {
            "create the Service": Kube(uid=1),
            "change the Service": replace(kube, version=2),
            "delete the Service": replace(kube, is_deleting=True),
            "create it again": Kube(uid=2) if kube.uid == 0 else None,
            "make it ClusterIP": replace(kube, is_wanted=False),
            "make it LoadBalancer again": replace(kube, is_wanted=True),
            "give it the other class": replace(kube, account=OTHER_ACCOUNT.name),
        }[text]
        if changed is not None:
            yield Step(text, _change_kube(after, changed), False)
    if kube.is_deleting and faults.overwrites:
        after = replace(world, faults=replace(faults, overwrites=faults.overwrites - 1))
        changed = replace(kube, ingress=OTHER_INGRESS)
        yield Step("another controller writes its address", _change_kube(after, changed), False)
    if kube.record is not None and faults.wipes:
        used = replace(faults, wipes=faults.wipes - 1)
        after = replace(world, faults=used, is_record_removed=True)
        yield Step("a user removes the record", _change_kube(after, replace(kube, record=None)), False)
    if kube.record is not None and faults.forgeries:
        for paid in START_PAID:
            after = replace(world, faults=replace(faults, forgeries=faults.forgeries - 1))
            forged = replace(kube.record, id=paid.id, create_deadline=None)
            text = f"a user records the foreign balancer {paid.id}"
            yield Step(text, _change_kube(after, replace(kube, record=forged)), False)
    if kube.record is not None and faults.forged_accounts:
        used = replace(faults, forged_accounts=faults.forged_accounts - 1)
        after = replace(world, faults=used, is_account_forged=True)
        (name,) = {ACCOUNT.name, OTHER_ACCOUNT.name} - {kube.record.account}
        forged = replace(kube.record, account=name)
        text = f"a user makes the record name account {name}"
        yield Step(text, _change_kube(after, replace(kube, record=forged)), False)


def _swap(world: World) -> World:
    return replace(world, project=3 - world.project, generation=world.generation + 1)


def _pass_time(world: World) -> World:
    """Renew the Lease, and forget what has become void."""
    now = world.now + TICK
    processes = []
    for number, process in enumerate(world.processes):
        is_renewed = world.leads(number) and world.is_renewing
        processes.append(
            replace(
                process,
                lease_until=now + LEASE if is_renewed else process.lease_until,
                memory=replace(
                    process.memory, pauses=tuple(each for each in process.memory.pauses if each.until > now)
                ),
                listing=_keep(process.listing, now),
                lookups=tuple(each for each in process.lookups if _keep(each, now)),
                anchor_lookup=_keep(process.anchor_lookup, now),
            )
        )
    pending = tuple(create for create in world.pending if create.until >= now)
    return replace(world, now=now, processes=(processes[0], processes[1]), pending=pending)


def _keep(answer: Any, now: datetime) -> Any:
    return answer if answer is not None and now - answer.began_at < MAX_AGE else None


# ---- what must hold


def find_violation(world: World) -> str:
    """Return what must not be in any state."""
    if world.violation:
        return world.violation
    for paid in world.paid:
        is_ours = paid.maker != FOREIGN and not (paid.is_protected and paid.owner is None)
        if is_ours and (world.kube.uid != paid.maker or not world.kube.has_finalizer):
            return f"{paid.id} exists, and no finalizer leads to it"
    return ""


def find_unfinished(world: World) -> str:
    """Return what is missing where nothing happens by itself."""
    kube = world.kube
    ours = [each for each in world.paid if each.maker != FOREIGN and each.owner is not None]
    if kube.uid == 0:
        return f"{len(ours)} balancers, and no Service" if ours else ""
    if not kube.is_wanted and not kube.has_finalizer:
        return f"{len(ours)} balancers, and no Service that has one" if ours else ""
    if kube.is_deleting or not kube.is_wanted:
        return "the Service keeps its finalizer for ever"
    if _has_forged_record(world):
        return ""
    if len(ours) != 1:
        return f"the Service has {len(ours)} balancers"
    record = kube.record
    if ours[0].account != kube.account:
        return "its balancer is another account's"
    is_recorded = record is not None and (record.account, record.id) == (kube.account, ours[0].id)
    if not is_recorded or not kube.has_finalizer:
        return "its balancer is not recorded"
    if ours[0].state == "failed":
        return "" if kube.condition else "its balancer has failed, and no condition reports it"
    return "" if ours[0].version == kube.version else "its balancer is not as desired"


def _has_forged_record(world: World) -> bool:
    """Whether the record waits for an operator: the named project has no such balancer, or no anchor."""
    record, kube = world.kube.record, world.kube
    if record is None:
        return False
    is_elsewhere = world.is_account_forged and world.other_project != world.project
    return record.id in [each.id for each in START_PAID] or (is_elsewhere and record.account != kube.account)


def _is_quiet(world: World) -> bool:
    """Whether time alone changes nothing any more."""
    if world.pending or not world.is_renewing:
        return False
    kube = world.kube
    if kube.uid == 0 or not (kube.is_wanted or kube.has_finalizer or kube.record):
        return True
    if _has_forged_record(world) and not world.kube.is_deleting:
        return True
    return all(_is_settled(world, number) for number in (0, 1) if world.leads(number))


def _is_settled(world: World, number: int) -> bool:
    process = world.processes[number]
    listing = process.listing
    if listing is None or listing.began_at < process.memory.valid_from:
        return False
    is_current = listing.answer == list_tagged(world, process.account)
    return is_current and isinstance(_find_wait_reason(world, number), Settled | NotSelected | BalancerFailed)


def _find_wait_reason(world: World, number: int) -> Any:
    process, kube = world.processes[number], world.kube
    if kube.uid == 0 or process.uid != kube.uid:
        return None
    step = plan_step(build_view(world, process, kube))
    return step.reason if isinstance(step, Wait) else None
