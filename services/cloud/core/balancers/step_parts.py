"""What the steps of a Service that has a load balancer, and of one that loses it, have in common."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from libs.clouds.balancers import BUSY_SECONDS, Balancer, Ingress
from libs.clouds.instances import Unanswered
from libs.common.contract.instances import InstanceAnchor
from libs.common.contract.kube_service import CLASS_FINALIZER, KEEP_ANNOTATION
from libs.common.go_values import parse_bool
from services.cloud.core.balancers.balancer_answers import (
    View,
    find_look,
    find_next_listing,
    list_own,
    read_again,
)
from services.cloud.core.balancers.balancer_record import BalancerRecord
from services.cloud.core.balancers.balancer_status import has_ingress
from services.cloud.core.balancers.balancer_steps import (
    Busy,
    ChangeBalancer,
    CloudWrite,
    ForeignController,
    LeaseTooShort,
    Rejected,
    Step,
    Wait,
)
from services.cloud.core.balancers.balancer_view import Pause

_WRITE_AGE: Final = timedelta(seconds=10)  # of the look at a balancer before it is written
_BUSY_RETRY: Final = timedelta(seconds=10)
_LEASE_RETRY: Final = timedelta(seconds=2)
FOREIGN_ADDRESSES: Final = "the status has addresses of another controller"

AnyStep = Step[Any, Any]
AnyWrite = CloudWrite[Any, Any]


def make_first(view: View, found: Balancer, steps: Sequence[AnyWrite]) -> AnyStep:
    """Return the first write that was not rejected a moment ago, right after a look at the balancer."""
    look = find_look(view, found.id)
    if not steps or found.is_busy:
        return wait_while_busy(view, found)
    pauses = []
    for step in steps:
        pause = view.memory.find_pause(step, view.now, view.credential.generation)
        if pause is not None:
            pauses.append(pause)
        elif look is None or view.now - look.ended_at >= _WRITE_AGE:
            return read_again(view, found.id)
        else:
            return allow_write(view, step)
    until = min(find_next_listing(view), *(pause.until for pause in pauses))
    return Wait(until, Rejected(pauses[0].kind, pauses[0].reason))


def is_stuck(view: View, found: Balancer) -> bool:
    """Whether a change of the balancer runs for longer than clouds need."""
    seconds = BUSY_SECONDS if isinstance(view.parsed, Unanswered) else view.parsed.busy_seconds
    return found.busy_since is not None and view.now - found.busy_since >= timedelta(seconds=seconds)


def wait_while_busy(view: View, found: Balancer) -> Wait:
    """Return the wait for the end of the change that runs."""
    since = found.busy_since if is_stuck(view, found) else None
    return Wait(view.now + _BUSY_RETRY, Busy(found.id, since))


def find_rejected_targets(
    view: View, steps: Sequence[ChangeBalancer[Any]]
) -> dict[ChangeBalancer[Any], Pause]:
    """Return the additions that the cloud has rejected a moment ago because of their target alone.

    The answer "not found" may also be about the balancer: it is read after each write, before this plan.
    """
    pauses = {step: view.memory.find_pause(step, view.now, view.credential.generation) for step in steps}
    return {step: each for step, each in pauses.items() if each is not None and each.target is not None}


def allow_write(view: View, step: AnyWrite) -> AnyStep:
    """A write of a process that has lost its Lease may meet one of the next leader."""
    pause = view.memory.find_pause(step, view.now, view.credential.generation)
    if pause is not None:
        return Wait(pause.until, Rejected(pause.kind, pause.reason))
    if view.now + timedelta(seconds=view.write_seconds) > view.lease_until:
        return Wait(view.now + _LEASE_RETRY, LeaseTooShort())
    return step


def wait_for_other(view: View, found: Balancer) -> Wait:
    """Return the wait for a balancer that another controller or Service has."""
    text = f"load balancer {found.id} has tags of another controller, or not those of this Service"
    return Wait(find_next_listing(view), ForeignController(text))


def has_needed_finalizer(view: View) -> bool:
    """Return whether the Service has the finalizer that it needs."""
    return view.service.needed_finalizer in view.service.metadata.finalizers


def find_anchor(view: View) -> InstanceAnchor | None:
    """Return the anchor of the current credential; None if there is none, or it is not known yet."""
    return None if isinstance(view.anchor, Unanswered) else view.anchor


def build_record(
    view: View,
    *,
    id: str = "",  # noqa: A002
    create_deadline: datetime | None = None,
    is_building: bool = False,
) -> BalancerRecord:
    """Return a record of this account, with the anchor of the current credential."""
    return BalancerRecord(
        account=view.account.name,
        anchor=find_anchor(view),
        id=id,
        create_deadline=create_deadline,
        is_building=is_building,
    )


def recall_record(view: View, record: BalancerRecord | None) -> BalancerRecord | None:
    """Return the record with what this process knows of its create, even if a user removed the record."""
    attempt = view.memory.attempt
    if attempt is None or attempt.state not in ("created", "unknown"):
        return record
    if record is None:
        record = build_record(view, create_deadline=attempt.deadline)
    if record.create_deadline != attempt.deadline or attempt.state == "unknown":
        return record
    return replace(record, id=attempt.balancer_id, create_deadline=None, is_building=attempt.is_building)


def build_ingress(view: View, found: Balancer) -> tuple[Ingress, ...] | None:
    """Return the entries of the status; None while names are unknown, or to leave it unchanged."""
    if isinstance(view.parsed, Unanswered):
        return None
    ingress: tuple[Ingress, ...] | None = view.planner.build_ingress(view.parsed.desired, found)
    return ingress


def is_own_status(view: View, found: Balancer | None) -> bool:
    """Return whether the addresses in the status are those of the balancer, or of this process."""
    expected = (view.memory.ingress, None if found is None else build_ingress(view, found))
    return any(each and has_ingress(view.service, each) for each in expected)


def keeps_balancer(view: View) -> bool:
    """Whether the Service keeps its balancer at its end; a value that cannot be read does, too."""
    try:
        return parse_bool(view.service.metadata.annotations.get(KEEP_ANNOTATION, "false"))
    except ValueError:
        return True


def is_known(view: View) -> bool:
    """Whether a balancer of a Service that has no record and does not select this account is ours to end.

    It has our tags, or had them when this process deleted it.
    """
    if list_own(view, view.listing):
        return True
    is_deleted = any(number == view.credential.generation for _, number in view.memory.deleted)
    return is_deleted and CLASS_FINALIZER in view.service.metadata.finalizers
