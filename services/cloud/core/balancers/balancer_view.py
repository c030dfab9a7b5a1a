"""All data that decides the next step of one load balancer, and what the process remembers of its writes."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Literal

import msgspec
from msgspec.structs import replace

from libs.clouds.balancers import (
    Balancer,
    BalancerPlanner,
    ChangeT,
    DesiredT,
    Ingress,
    Owner,
    ParsedRequest,
    RejectionKind,
    Target,
    UnknownOutcome,
    WriteRejection,
    WriteResult,
    WriteSuccess,
)
from libs.clouds.instances import Anchor, Credential, NotFound, Unanswered
from libs.common.contract.instances import InstanceAnchor
from libs.common.contract.kube_service import KubeService
from services.cloud.core.answer import MAX_LATENESS, Answer
from services.cloud.core.balancers.balancer_record import BalancerAccount
from services.cloud.core.balancers.balancer_steps import (
    ChangeBalancer,
    CloudWrite,
    CreateBalancer,
    DeleteBalancer,
    KubeWrite,
    RecordBalancer,
    ReleaseService,
    WriteStatus,
)
from services.cloud.core.balancers.select_targets import TargetSelection

_FIRST_PAUSE: Final = timedelta(seconds=5)  # as k8s.io/cloud-provider
_LONGEST_PAUSE: Final = timedelta(minutes=5)
_MAX_RETRY_AFTER_SECONDS: Final = 3600.0


class Listing(Answer, frozen=True, kw_only=True):
    """All balancers with the tags of this cluster."""

    answer: tuple[Balancer, ...] | Unanswered
    parts_began_at: datetime  # of the last listing that read parts which can outlive their balancer


class Lookup(Answer, frozen=True, kw_only=True):
    """The balancer with exactly this id."""

    balancer_id: str
    answer: Balancer | NotFound | Unanswered


class AnchorLookup(Answer, frozen=True, kw_only=True):
    """The anchor with exactly this id."""

    anchor: InstanceAnchor
    answer: Anchor | NotFound | Unanswered


class CreateAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The create for which this process has recorded the deadline. A record with another one is not ours."""

    deadline: datetime
    state: Literal["unsent", "created", "rejected", "unknown"] = "unsent"
    balancer_id: str = ""
    is_building: bool = False
    generation: int = 0  # of the credential that sent it


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A write that is not repeated before `until`.

    Also after a success: a cloud that stores another value than the written one, or another client that
    changes it back, would be answered by writes without end.
    """

    key: Any  # equal for equal writes
    until: datetime
    failures: int
    kind: RejectionKind | None  # None: its result is unknown
    reason: str
    generation: int  # of the credential
    was_accepted: bool = False
    target: Target | None = None  # the one that the cloud rejects: nothing else waits for the pause


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What this process knows of its own writes for one Service. Losing it costs time, and nothing else.

    All writes of former leaders have ended when the leadership begins.
    """

    led_since: datetime
    written_at: datetime | None = None  # when the last write to the cloud ended
    attempt: CreateAttempt | None = None
    deleted: frozenset[tuple[str, int]] = frozenset()  # ids, with the generation of the credential
    pauses: tuple[Pause, ...] = ()
    ingress: tuple[Ingress, ...] | None = None  # last written into the status
    failed_builds: int = 0  # in a row
    build_after: datetime | None = None  # the next one

    @property
    def valid_from(self) -> datetime:
        """Earlier answers of the cloud are void."""
        return self.written_at or self.led_since

    def find_settled(self, balancer_id: str | None = None) -> datetime:
        """Return when no change of the balancer can take effect any more, also none of a former leader.

        None is for changes of any balancer that the Service had.
        """
        unknown = [each for each in self.pauses if each.kind is None]
        if balancer_id is not None:
            unknown = [each for each in unknown if each.key[:1] == (balancer_id,)]
        return max((self.led_since + MAX_LATENESS, *(each.until for each in unknown)))

    def find_pause(self, step: CloudWrite[Any, Any], now: datetime, generation: int) -> Pause | None:
        """Return the pause of this write, if it is not over. A new credential ends that of a rejection."""
        key = _pause_key(step)
        for each in self.pauses:
            if each.key == key and now < each.until and (each.kind is None or each.generation == generation):
                return each
        return None


class BalancerView(msgspec.Struct, Generic[DesiredT, ChangeT], frozen=True, kw_only=True):
    """The Service as the API server returned it a moment ago, the answers of the cloud, and this process."""

    service: KubeService
    account: BalancerAccount
    # Marks the project by the current credential. None: it has no anchor. Unanswered: not known yet
    anchor: InstanceAnchor | Unanswered | None
    credential: Credential
    owner: Owner
    planner: BalancerPlanner[DesiredT, ChangeT]
    parsed: ParsedRequest[DesiredT] | Unanswered  # with names resolved
    selection: TargetSelection
    listing: Listing | None  # the last one
    lookups: Mapping[str, Lookup]  # the last one of each balancer
    anchor_lookups: Mapping[InstanceAnchor, AnchorLookup]  # the last one of each
    memory: Memory
    lease_until: datetime  # when the Lease expires, unless it is renewed; by the clock of `now`
    write_seconds: float  # `Balancers.write_deadline_seconds`
    now: datetime
    # Whether many Services wait: then one listing is their look at their balancers
    shares_listing: bool = False


def remember_write(
    memory: Memory,
    step: CloudWrite[Any, Any],
    result: WriteResult | NotFound,
    *,
    deadline: datetime,
    ended_at: datetime,
    generation: int,
) -> Memory:
    """Return the memory after a write to the cloud; `deadline` is that of the request."""
    key = _pause_key(step)
    former = next((each for each in memory.pauses if each.key == key), None)
    kept = [each for each in memory.pauses if each.key != key and ended_at < each.until + _LONGEST_PAUSE]
    pause = None
    if isinstance(result, WriteRejection | UnknownOutcome):
        failures = former.failures if former and not former.was_accepted else 0
        pause = Pause(
            key=key,
            until=_find_end(result, failures, deadline, ended_at),
            failures=failures + 1,
            kind=result.kind if isinstance(result, WriteRejection) else None,
            reason=result.reason,
            generation=generation,
            target=result.target if isinstance(result, WriteRejection) else None,
        )
    elif isinstance(step, ChangeBalancer | DeleteBalancer):
        failures = former.failures if former and former.was_accepted else 0
        pause = Pause(
            key=key,
            until=ended_at + _grow_pause(failures),
            failures=failures + 1,
            kind="invalid" if failures else "busy",  # it may show it a moment later
            reason=_describe_accepted(step),
            generation=generation,
            was_accepted=True,
        )
    memory = replace(memory, written_at=ended_at, pauses=(*kept, pause) if pause else tuple(kept))
    match step:
        case CreateBalancer() if memory.attempt is not None:
            attempt = _settle(memory.attempt, result, generation)
            return replace(memory, attempt=attempt)
        case DeleteBalancer() if isinstance(result, WriteSuccess):
            memory = replace(memory, deleted=memory.deleted | {(step.balancer_id, generation)})
            return _remember_failed_build(memory, ended_at) if step.has_failed else memory
    return memory


def _remember_failed_build(memory: Memory, ended_at: datetime) -> Memory:
    """Delay the next create: the cloud may fail to build that one, too."""
    build_after = ended_at + _grow_pause(memory.failed_builds)
    return replace(memory, failed_builds=memory.failed_builds + 1, build_after=build_after)


def remember_settled(memory: Memory) -> Memory:
    """Return the memory after a read that showed no difference: what was accepted has taken effect."""
    pauses = tuple(each for each in memory.pauses if not each.was_accepted)
    return replace(memory, pauses=pauses, failed_builds=0, build_after=None)


def remember_confirmed(memory: Memory, step: KubeWrite) -> Memory:
    """Return the memory after a write that the API server has confirmed; any other result changes nothing."""
    match step:
        case RecordBalancer() if step.record.create_deadline is not None:
            return replace(memory, attempt=CreateAttempt(deadline=step.record.create_deadline))
        case RecordBalancer() if memory.attempt is not None and not step.record.is_building:
            # Only a look at the ready balancer ends the build: a failure after it is no failed build.
            if memory.attempt.balancer_id == step.record.id:
                return replace(memory, attempt=replace(memory.attempt, is_building=False))
        case ReleaseService():
            return replace(memory, attempt=None, deleted=frozenset())
        case WriteStatus() if step.ingress is not None:
            return replace(memory, ingress=step.ingress)
    return memory


def _settle(attempt: CreateAttempt, result: WriteResult | NotFound, generation: int) -> CreateAttempt:
    match result:
        case WriteSuccess():
            attempt = replace(attempt, balancer_id=result.balancer_id, is_building=result.is_building)
            return replace(attempt, state="created", generation=generation)
        case WriteRejection():
            return replace(attempt, state="rejected", generation=generation)
    return replace(attempt, state="unknown", generation=generation)


def _find_end(
    result: WriteRejection | UnknownOutcome, failures: int, deadline: datetime, ended_at: datetime
) -> datetime:
    """Return when the pause ends."""
    if isinstance(result, UnknownOutcome):
        return deadline + MAX_LATENESS
    if result.retry_after_seconds is not None:
        return ended_at + timedelta(seconds=min(result.retry_after_seconds, _MAX_RETRY_AFTER_SECONDS))
    return ended_at + _grow_pause(failures)


def _grow_pause(failures: int) -> timedelta:
    return min(_FIRST_PAUSE * (1 << min(failures, 10)), _LONGEST_PAUSE)


def _describe_accepted(step: ChangeBalancer[Any] | DeleteBalancer) -> str:
    if isinstance(step, DeleteBalancer):
        return f"it accepted the deletion of {step.balancer_id}, and still shows it"
    return f"it accepted {step.change}, and shows another value"


def _pause_key(step: CloudWrite[Any, Any]) -> Any:
    """A create with other fields or targets is another write: it may succeed at once."""
    match step:
        case CreateBalancer():
            return (step.desired, step.targets)
        case ChangeBalancer():
            return (step.balancer_id, step.change)
    return step.balancer_id
