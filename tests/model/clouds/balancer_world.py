"""A cloud with two projects, one Service, and two processes, for the search.

They overlap as leaders of one account, or each of them leads an account of its own.
"""

from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, Literal

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
from services.cloud.core.balancers.balancer_record import BalancerAccount, BalancerRecord
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
from tests.builders import NOW
from tests.clouds.balancers import ACCOUNT, make_service
from tests.model.search import number_keys

TICK: Final = timedelta(seconds=20)
INSTANT: Final = timedelta(microseconds=1)  # of one step of a process: it orders what has the same tick
WRITE_SECONDS: Final = 20.0
LEASE: Final = timedelta(seconds=70)
MAX_AGE: Final = timedelta(seconds=60)  # older answers are as good as none
FOREIGN: Final = 0  # instead of the uid of a Service of ours
OTHER_ACCOUNT: Final = BalancerAccount(name="other", load_balancer_class="talos-ccm/other")
_CLASSES: Final = {each.name: each.load_balancer_class for each in (ACCOUNT, OTHER_ACCOUNT)}
_SELECTION: Final = TargetSelection(is_complete=True)
# What users do, in this order, and each at any time.
LIFE: Final = ("create the Service", "change the Service", "delete the Service", "create it again")
BEGIN: Final = LIFE[:2]
CHANGE_OF_CLASS: Final = ("create the Service", "give it the other class")
CHANGE_OF_TYPE: Final = ("create the Service", "make it ClusterIP", "make it LoadBalancer again")


class Paid(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """A balancer. `maker` and `account`: for which Service and by which account it was created."""

    id: str
    project: int
    maker: int
    owner: int | None  # the Service of its tags
    version: int = 1
    is_protected: bool = False
    account: str = ACCOUNT.name
    state: Literal["building", "ready", "failed"] = "ready"
    has_served: bool = False  # its address was in the status


class PendingCreate(msgspec.Struct, frozen=True, gc=False):
    """A create whose answer was lost: it takes effect until then, or never."""

    project: int
    maker: int
    version: int
    until: datetime
    account: str


class Kube(msgspec.Struct, frozen=True, cache_hash=True):
    """The Service; uid 0 = there is none."""

    uid: int = 0
    revision: int = 0
    version: int = 1
    is_wanted: bool = True  # its type is LoadBalancer
    account: str = ACCOUNT.name  # of its class
    is_deleting: bool = False
    has_finalizer: bool = False
    record: BalancerRecord | None = None
    condition: BlockedCondition | None = None
    ingress: tuple[Ingress, ...] = ()


class Process(msgspec.Struct, frozen=True, cache_hash=True):
    """A process with its answers of the cloud. `snapshot`: a Service that it has read a while ago."""

    memory: Memory
    lease_until: datetime | None = None  # None: it does not act
    account: BalancerAccount = ACCOUNT
    uid: int = 0  # of the Service that the rest belongs to
    snapshot: Kube | None = None
    listing: Listing | None = None
    lookups: tuple[Lookup, ...] = ()
    anchor_lookup: AnchorLookup | None = None


class Faults(msgspec.Struct, frozen=True, cache_hash=True, kw_only=True):
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
    forged_accounts: int = 0  # the record names the other account
    breakages: int = 0  # a balancer fails; only where the cloud takes time to build one
    overwrites: int = 0  # another controller writes its address while the Service ends


class Physics(msgspec.Struct, frozen=True, kw_only=True):
    """Rules that are not the core's: the adapter's and the writer's."""

    tags_in_create: bool = True
    account_in_tags: bool = True
    builds_slowly: bool = False
    fences_patches: bool = True
    shares_listing: bool = False  # other Services wait, too


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
    is_account_forged: bool = False  # in the record
    physics: Physics = Physics()
    other_project: int = 1  # of the other account

    @property
    def has_two_accounts(self) -> bool:
        """Whether each process leads an account of its own."""
        return self.processes[1].account == OTHER_ACCOUNT

    def leads(self, number: int) -> bool:
        """Whether this process leads its account."""
        return self.has_two_accounts or number == self.holder

    def get_project(self, account: BalancerAccount) -> int:
        """Return the project of the account's token."""
        return self.project if account == ACCOUNT else self.other_project


OTHER_INGRESS: Final = (Ingress(ip="other"),)  # of another controller
START_PAID: Final = (
    Paid("f", 1, FOREIGN, FOREIGN),  # of the same cluster, for another Service
    Paid("g", 1, FOREIGN, None),
)


# ---- in the types of the core


class _Planner:
    """The desired balancer is a version."""

    has_outliving_parts = False

    def read_request(self, request: Any) -> ParsedRequest[int]:
        raise NotImplementedError

    def plan_changes(self, desired: int, targets: tuple[Target, ...], balancer: Balancer) -> tuple[Any, ...]:
        return () if balancer.details == desired or balancer.has_failed else (desired,)

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


class _PublishingPlanner(_Planner):
    """The address of a balancer is its id, once it is built."""

    def build_ingress(self, desired: int, balancer: Balancer) -> tuple[Ingress, ...] | None:
        return () if balancer.is_building else (Ingress(ip=balancer.id),)


_PLANNER: Final = _Planner()
_PUBLISHING_PLANNER: Final = _PublishingPlanner()


def put(world: World, number: int, process: Process) -> World:
    """Return the world with this process."""
    first, second = world.processes
    return replace(world, processes=(process, second) if number == 0 else (first, process))


def find_paid(world: World, account: BalancerAccount, balancer_id: str) -> Paid | None:
    """Return the balancer with this id, if it is in the project of the token."""
    project = world.get_project(account)
    return next((each for each in world.paid if each.id == balancer_id and each.project == project), None)


def get_anchor(project: int) -> InstanceAnchor:
    """Return the anchor of this project."""
    return InstanceAnchor(kind="network", id=str(project))


def list_tagged(world: World, account: BalancerAccount) -> tuple[Balancer, ...]:
    """Return the listing of the project of the token."""
    project = world.get_project(account)
    return tuple(
        describe(world, account, each)
        for each in world.paid
        if each.project == project and each.owner is not None
    )


@cache
def _own(uid: int, account: str) -> Owner:
    return Owner(cluster_uid="uid-kube-system", service_uid=f"uid-{uid}", account=account)


def describe(world: World, account: BalancerAccount, paid: Paid) -> Balancer:
    """Return the balancer as the adapter of this account does."""
    return _describe(paid, paid.account if world.physics.account_in_tags else account.name)


@cache
def _describe(paid: Paid, account: str) -> Balancer:
    return Balancer(
        id=paid.id,
        name="web",
        created_at=NOW,
        owner=None if paid.owner is None else _own(paid.owner, account),
        has_foreign_tags=False,
        is_busy=paid.state == "building",
        is_building=paid.state == "building",
        has_failed=paid.state == "failed",
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
        ingress=kube.ingress,
        is_deleting=kube.is_deleting,
        kind="LoadBalancer" if kube.is_wanted else "ClusterIP",
        own_class=_CLASSES[kube.account],
    )


@cache
def _parse(version: int) -> ParsedRequest[int]:
    return ParsedRequest(desired=version)


def build_view(world: World, process: Process, service: Kube) -> BalancerView[int, Any]:
    """Return what the process knows when it has read this Service."""
    assert process.lease_until is not None
    return BalancerView(
        service=_encode(replace(service, revision=0)),
        account=process.account,
        anchor=get_anchor(world.get_project(process.account)),
        credential=Credential(world.generation, NOW),
        owner=_own(service.uid, process.account.name),
        planner=_PUBLISHING_PLANNER if world.physics.builds_slowly else _PLANNER,
        parsed=_parse(service.version),
        selection=_SELECTION,
        listing=process.listing,
        lookups={each.balancer_id: each for each in process.lookups},
        anchor_lookups={each.anchor: each for each in (process.anchor_lookup,) if each is not None},
        memory=process.memory,
        lease_until=process.lease_until,
        write_seconds=WRITE_SECONDS,
        now=world.now,
        shares_listing=world.physics.shares_listing,
    )


# ---- equal states: times count from now


def build_key(world: World) -> Any:
    """Return a key that is equal where the future is."""
    now, kube = world.now.replace(microsecond=0), world.kube
    return (
        _key_of_kube(kube, now),
        world.paid,
        tuple(
            (each.project, each.maker, each.version, _seconds(each.until - now), each.account)
            for each in world.pending
        ),
        *(_key_of_process(each, now, world.generation, kube.uid, kube.revision) for each in world.processes),
        world.faults,
        world.holder,
        world.is_renewing,
        world.project,
        world.created,
        world.script,
        world.violation,
        world.is_record_removed,
        world.is_account_forged,
    )


@number_keys
def _key_of_kube(kube: Kube, now: datetime) -> Any:
    record = kube.record
    if record is not None and record.create_deadline is not None:
        key: Any = (record.account, record.anchor, _until(record.create_deadline, now))
    else:
        key = record
    fields = (kube.uid, kube.version, kube.is_wanted, kube.account, kube.is_deleting, kube.has_finalizer)
    return (*fields, key, kube.condition, kube.ingress)


@number_keys
def _key_of_process(process: Process, now: datetime, generation: int, uid: int, revision: int) -> Any:
    """Return its key while the Service has this uid and revision."""
    if process.lease_until is None:  # it begins again when it leads
        return None
    memory, snapshot = process.memory, process.snapshot
    lease_seconds = _seconds(process.lease_until - now)
    read = snapshot and (snapshot.revision == revision, _key_of_kube(snapshot, now))
    if process.uid != (snapshot.uid if snapshot else uid):  # it forgets all of the former Service
        return lease_seconds, read
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
            attempt.is_building,
            attempt.generation == generation,
        ),
        frozenset((each, number == generation) for each, number in memory.deleted),
        tuple((each.key, _seconds(each.until - now)) for each in memory.pauses),
        memory.failed_builds,
        memory.build_after and max(_seconds(memory.build_after - now), 0),
        memory.ingress,
        lease_seconds,
        process.uid,
        read,
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
