"""A cloud with two projects, one Service, and two processes that overlap as leaders, for the search."""

from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from libs.clouds.balancers import (
    Balancer,
    Ingress,
    Owner,
    ParsedRequest,
    Target,
)
from libs.clouds.instances import Credential
from libs.common.contract.instances import InstanceAnchor
from libs.common.contract.kube_service import KubeService
from services.cloud.core.balancers.balancer_record import BalancerRecord
from services.cloud.core.balancers.balancer_steps import (
    BlockedCondition,
)
from services.cloud.core.balancers.balancer_view import (
    AnchorLookup,
    BalancerView,
    Listing,
    Lookup,
    Memory,
)
from services.cloud.core.balancers.select_targets import TargetSelection
from tests.balancers import ACCOUNT, make_service
from tests.builders import NOW

TICK: Final = timedelta(seconds=20)
INSTANT: Final = timedelta(microseconds=1)  # of one step of a process: it orders what has the same tick
WRITE_SECONDS: Final = 20.0
LEASE: Final = timedelta(seconds=70)
MAX_AGE: Final = timedelta(seconds=60)  # older answers are as good as none
FOREIGN: Final = 0  # instead of the uid of a Service of ours
_SELECTION: Final = TargetSelection(is_complete=True)
# What users do, in this order, and each at any time.
LIFE: Final = ("create the Service", "change the Service", "delete the Service", "create it again")
BEGIN: Final = LIFE[:2]
CHANGE_OF_TYPE: Final = ("create the Service", "make it ClusterIP", "make it LoadBalancer again")


class Paid(msgspec.Struct, frozen=True, gc=False):
    """A balancer. `maker`: the Service for which it was created, whatever its tags."""

    id: str
    project: int
    maker: int
    owner: int | None  # the Service of its tags
    version: int = 1
    is_protected: bool = False


class PendingCreate(msgspec.Struct, frozen=True, gc=False):
    """A create whose answer was lost: it takes effect until then, or never."""

    project: int
    maker: int
    version: int
    until: datetime


class Kube(msgspec.Struct, frozen=True):
    """The Service; uid 0 = there is none."""

    uid: int = 0
    revision: int = 0
    version: int = 1
    is_wanted: bool = True  # its type is LoadBalancer
    is_deleting: bool = False
    has_finalizer: bool = False
    record: BalancerRecord | None = None
    condition: BlockedCondition | None = None


class Process(msgspec.Struct, frozen=True):
    """A process with its answers of the cloud. `snapshot`: a Service that it has read a while ago."""

    memory: Memory
    lease_until: datetime | None = None  # None: it does not act
    uid: int = 0  # of the Service that the rest belongs to
    snapshot: Kube | None = None
    listing: Listing | None = None
    lookups: tuple[Lookup, ...] = ()
    anchor_lookup: AnchorLookup | None = None


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """How often each may happen."""

    crashes: int = 0
    lost_answers: int = 0
    slow: int = 0  # time passes while a process could act
    stale_reads: int = 0
    handovers: int = 0  # the leader stops renewing its Lease, and goes on
    swaps: int = 0  # of the token, to another project's
    protections: int = 0
    removals: int = 0  # of the balancer, in the cloud's console
    wipes: int = 0  # of the record, by whoever may edit Services
    forgeries: int = 0  # the record gets the id of a foreign balancer


class Physics(msgspec.Struct, frozen=True, kw_only=True):
    """Rules that are not the core's: the adapter's and the writer's."""

    tags_in_create: bool = True
    fences_patches: bool = True


class World(msgspec.Struct, frozen=True):
    """One state."""

    now: datetime
    kube: Kube
    paid: tuple[Paid, ...]
    pending: tuple[PendingCreate, ...]
    processes: tuple[Process, Process]
    faults: Faults
    holder: int = 0
    is_renewing: bool = True
    project: int = 1
    generation: int = 1
    created: int = 0
    script: tuple[str, ...] = LIFE  # what is left of it
    violation: str = ""
    is_record_removed: bool = False
    physics: Physics = Physics()


START_PAID: Final = (
    Paid("f", 1, FOREIGN, FOREIGN),  # of the same cluster, for another Service
    Paid("g", 1, FOREIGN, None),
)


# ---- in the types of the core


class _Planner:
    """The desired balancer is a version."""

    def read_request(self, request: Any) -> ParsedRequest[int]:
        raise NotImplementedError

    def plan_changes(self, desired: int, targets: tuple[Target, ...], balancer: Balancer) -> tuple[Any, ...]:
        return () if balancer.details == desired else (desired,)

    def plan_release(self, balancer: Balancer, *, keeps_address: bool) -> tuple[Any, ...]:
        return ("untag",) if balancer.owner is not None else ()

    def plan_adoption(
        self, desired: int, targets: tuple[Target, ...], balancer: Balancer, owner: Owner
    ) -> Any:
        raise NotImplementedError

    def plan_hand_back(self, balancer: Balancer, service_uid: str) -> Any:
        raise NotImplementedError

    def build_ingress(self, desired: int, balancer: Balancer) -> tuple[Ingress, ...] | None:
        return None


_PLANNER: Final = _Planner()


def put(world: World, number: int, process: Process) -> World:
    """Return the world with this process."""
    first, second = world.processes
    return replace(world, processes=(process, second) if number == 0 else (first, process))


def find_paid(world: World, balancer_id: str) -> Paid | None:
    """Return the balancer with this id, if it is in the project of the token."""
    return next(
        (each for each in world.paid if each.id == balancer_id and each.project == world.project), None
    )


def get_anchor(project: int) -> InstanceAnchor:
    """Return the anchor of this project."""
    return InstanceAnchor(kind="network", id=str(project))


def list_tagged(world: World) -> tuple[Balancer, ...]:
    """Return the listing of the project of the token."""
    return tuple(
        describe(each) for each in world.paid if each.project == world.project and each.owner is not None
    )


@cache
def _own(uid: int) -> Owner:
    return Owner(cluster_uid="uid-kube-system", service_uid=f"uid-{uid}")


@cache
def describe(paid: Paid) -> Balancer:
    """Return the balancer as an adapter does."""
    return Balancer(
        id=paid.id,
        name="web",
        created_at=NOW,
        owner=None if paid.owner is None else _own(paid.owner),
        has_foreign_tags=False,
        is_busy=False,
        is_protected=paid.is_protected,
        targets=(),
        details=paid.version,
    )


@cache
def _encode(kube: Kube) -> KubeService:
    return make_service(
        record=kube.record,
        finalizer=kube.has_finalizer,
        condition=kube.condition,
        is_deleting=kube.is_deleting,
        kind="LoadBalancer" if kube.is_wanted else "ClusterIP",
    )


@cache
def _parse(version: int) -> ParsedRequest[int]:
    return ParsedRequest(desired=version)


def build_view(world: World, process: Process, service: Kube) -> BalancerView[int, Any]:
    """Return what the process knows when it has read this Service."""
    assert process.lease_until is not None
    return BalancerView(
        service=_encode(replace(service, revision=0)),
        account=ACCOUNT,
        anchor=get_anchor(world.project),
        credential=Credential(world.generation, NOW),
        owner=_own(service.uid),
        planner=_PLANNER,
        parsed=_parse(service.version),
        selection=_SELECTION,
        listing=process.listing,
        lookups={each.balancer_id: each for each in process.lookups},
        anchor_lookups={each.anchor: each for each in (process.anchor_lookup,) if each is not None},
        memory=process.memory,
        lease_until=process.lease_until,
        write_seconds=WRITE_SECONDS,
        now=world.now,
    )


# ---- equal states: times count from now


def build_key(world: World) -> Any:
    """Return a key that is equal where the future is."""
    now = world.now
    return (
        _key_of_kube(world.kube, now),
        world.paid,
        tuple((each.project, each.maker, each.version, _seconds(each.until - now)) for each in world.pending),
        tuple(_key_of_process(each, world) for each in world.processes),
        world.faults,
        world.holder,
        world.is_renewing,
        world.project,
        world.created,
        world.script,
        world.violation,
        world.is_record_removed,
    )


def _key_of_kube(kube: Kube, now: datetime) -> Any:
    record = kube.record
    if record is not None and record.create_deadline is not None:
        key: Any = (record.anchor, _until(record.create_deadline, now))
    else:
        key = record
    fields = (kube.uid, kube.version, kube.is_wanted, kube.is_deleting, kube.has_finalizer)
    return (*fields, key, kube.condition)


def _key_of_process(process: Process, world: World) -> Any:
    now, memory, snapshot, generation = world.now, process.memory, process.snapshot, world.generation
    attempt, since = memory.attempt, memory.valid_from
    answers = [
        each for each in (process.listing, *process.lookups, process.anchor_lookup) if each is not None
    ]
    order = sorted(range(len(answers)), key=lambda each: answers[each].began_at)
    return (
        max(_seconds(since - now), -round(MAX_AGE.total_seconds())),
        max(_seconds(memory.led_since - now), -round(MAX_AGE.total_seconds())),
        attempt
        and (
            _until(attempt.deadline, now),
            attempt.state,
            attempt.balancer_id,
            attempt.generation == generation,
        ),
        frozenset((each, number == generation) for each, number in memory.deleted),
        tuple((each.key, _seconds(each.until - now)) for each in memory.pauses),
        process.lease_until and _seconds(process.lease_until - now),
        process.uid,
        snapshot and (snapshot.revision == world.kube.revision, _key_of_kube(snapshot, now)),
        tuple(order),
        tuple(
            (
                getattr(each, "balancer_id", ""),
                _seconds(each.began_at - now),
                each.began_at >= since,
                each.generation == generation,
                each.answer,
            )
            for each in answers
        ),
    )


def _until(deadline: datetime, now: datetime) -> int:
    """Return the seconds to a deadline; all that are long past are the same."""
    return max(_seconds(deadline - now), -3 * round(MAX_AGE.total_seconds()))


def _seconds(time: timedelta) -> int:
    return round(time.total_seconds())
