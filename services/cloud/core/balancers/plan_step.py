"""Decides the next step of one Service's load balancer. Each step may be the last one before a crash."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from libs.clouds.balancers import Balancer, Ingress
from libs.clouds.instances import NotFound, Unanswered
from libs.common.contract.kube_service import CLASS_FINALIZER, LOAD_BALANCER
from services.cloud.core.balancers.balancer_answers import (
    ABANDON_UNKNOWN,
    View,
    find_next_listing,
    get_balancer,
    get_listing,
    get_own_attempt,
    get_pause,
    is_abandoned,
    is_current,
    list_own,
    observe_balancer,
    prove_gone,
    prove_unsettled_create,
)
from services.cloud.core.balancers.balancer_record import BalancerRecord, is_selected, read_balancer_record
from services.cloud.core.balancers.balancer_status import find_condition, plan_condition, read_ingress
from services.cloud.core.balancers.balancer_steps import (
    Busy,
    ChangeBalancer,
    CloudWrite,
    CreateBalancer,
    DeleteBalancer,
    ForeignController,
    InvalidFields,
    LeaseTooShort,
    ListBalancers,
    ListedLate,
    NotSelected,
    OtherAccount,
    ReadBalancer,
    RecordBalancer,
    Rejected,
    ReleaseService,
    Settled,
    Step,
    Unready,
    Wait,
    WriteStatus,
)
from services.cloud.core.balancers.balancer_view import Listing

_WRITE_AGE: Final = timedelta(seconds=10)  # of the look at a balancer before it is written
_LIST_AGAIN: Final = timedelta(seconds=5)  # while the list shows what is gone
_BUSY_RETRY: Final = timedelta(seconds=10)
_LEASE_RETRY: Final = timedelta(seconds=2)
_RESERVE: Final = timedelta(seconds=30)  # for the patch before the create
_FOREIGN_ADDRESSES: Final = "the status has addresses of another controller"
_LOST: Final = (
    "the record of the load balancer is removed, and none with the tags of this Service is listed: "
    f"if no account has one, remove the finalizer {CLASS_FINALIZER}"
)

AnyStep = Step[Any, Any]
AnyWrite = CloudWrite[Any, Any]


def plan_step(view: View) -> AnyStep:
    """Return the next step for this Service; a wait that an operator should know of is its condition, too."""
    step = _plan(view)
    return plan_condition(view.service, step) if isinstance(step, Wait) else step


def _plan(view: View) -> AnyStep:
    record = read_balancer_record(view.service, view.now)
    is_wanted = is_selected(view.service, view.account) and not view.service.metadata.deletion_timestamp
    if record is not None and record.account != view.account.name:
        if is_wanted and is_abandoned(view, record):
            return ReleaseService(abandoned=record.id or ABANDON_UNKNOWN)
        return Wait(None, OtherAccount(record.account) if is_wanted else NotSelected())
    if record is None and not is_selected(view.service, view.account) and not _is_known(view):
        return _look_for_lost(view)
    return _plan_present(view, record) if is_wanted else _plan_end(view, record)


# ---- a Service that has, or gets, a balancer


def _plan_present(view: View, record: BalancerRecord | None) -> AnyStep:
    known = _recall(view, record)
    if known is None or not known.id:
        return _plan_absent(view, known)
    if known != record or not _has_finalizer(view):
        return RecordBalancer(known)
    found = observe_balancer(view, known.id)
    if isinstance(found, NotFound):
        return prove_gone(view, known) or _plan_absent(view, known)
    return _plan_existing(view, known, found) if isinstance(found, Balancer) else found


def _plan_absent(view: View, record: BalancerRecord | None) -> AnyStep:
    """No balancer is recorded, or the recorded one is gone. The oldest one with our tags is recorded."""
    if record is not None and _may_create(view, record):
        return _explain_foreign_status(view) or _plan_create(view)
    listing = get_listing(view)
    if not isinstance(listing, Listing):
        return listing
    found = list_own(view, listing)
    if record is not None and any(each.id == record.id for each in found):
        return _list_again(view, listing)
    if found:
        oldest = min(found, key=lambda each: (each.created_at, each.id))
        if oldest.has_foreign_tags:
            return _wait_for_other(view, oldest)
        return RecordBalancer(_build_record(view, id=oldest.id))
    if record is not None and (step := prove_unsettled_create(view, record, listing)):
        return step
    if record is not None and record.id and read_ingress(view.service):
        return WriteStatus(ingress=(), condition=find_condition(view.service))
    create = _explain_foreign_status(view) or _plan_create(view)
    if not isinstance(create, CreateBalancer):
        return create
    deadline = view.now + timedelta(seconds=view.write_seconds) + _RESERVE
    return RecordBalancer(_build_record(view, create_deadline=deadline))


def _may_create(view: View, record: BalancerRecord) -> bool:
    """Whether Kubernetes has confirmed the finalizer and the deadline that this process has recorded."""
    attempt = get_own_attempt(view, record)
    if attempt is None or attempt.state != "unsent" or not _has_finalizer(view):
        return False
    return view.now + timedelta(seconds=view.write_seconds) <= attempt.deadline


def _explain_foreign_status(view: View) -> Wait | None:
    """Without a balancer of ours, addresses in the status are another controller's."""
    return Wait(None, ForeignController(_FOREIGN_ADDRESSES)) if read_ingress(view.service) else None


def _plan_create(view: View) -> AnyStep:
    parsed = view.parsed
    if isinstance(parsed, Unanswered):
        return Wait(view.now + get_pause(parsed), Unready(parsed))
    if parsed.invalid:
        return Wait(None, InvalidFields(parsed.invalid))
    return _allow(view, CreateBalancer(desired=parsed.desired, targets=view.selection.plan(())))


def _plan_existing(view: View, record: BalancerRecord, found: Balancer) -> AnyStep:
    if found.owner != view.owner or found.has_foreign_tags:
        return _wait_for_other(view, found)
    ingress = _build_ingress(view, found)
    if _is_overwritten(view, ingress):
        return Wait(None, ForeignController(_FOREIGN_ADDRESSES))
    if view.anchor not in (None, record.anchor):
        return RecordBalancer(_build_record(view, id=record.id))
    double = _end_doubles(view, record)
    if double is not None and not isinstance(double, Wait):
        return double
    step = _plan_fields(view, found, ingress)
    return double if double is not None and isinstance(step, Wait) else step


def _plan_fields(view: View, found: Balancer, ingress: tuple[Ingress, ...] | None) -> AnyStep:
    """Return the step that makes the status and the balancer as desired."""
    if ingress is not None and ingress != read_ingress(view.service):
        return WriteStatus(ingress=ingress, condition=find_condition(view.service))
    parsed = view.parsed
    if isinstance(parsed, Unanswered):
        return Wait(view.now + get_pause(parsed), Unready(parsed))
    targets = view.selection.plan(found.targets)
    changes = view.planner.plan_changes(parsed.desired, targets, found)
    if changes:
        return _make_first(
            view, found, [ChangeBalancer(balancer_id=found.id, change=change) for change in changes]
        )
    settled = Settled(
        balancer_id=found.id,
        desired=parsed.desired,
        targets=targets,
        warnings=parsed.warnings,
        invalid=parsed.invalid,
    )
    return Wait(find_next_listing(view), settled)


def _end_doubles(view: View, record: BalancerRecord) -> AnyStep | None:
    """A double was created by a request whose answer was lost. Only the recorded balancer stays."""
    for double in list_own(view, view.listing):
        if double.id == record.id or any(double.id == gone for gone, _ in view.memory.deleted):
            continue
        found = get_balancer(view, double.id)
        if not isinstance(found, Balancer | NotFound):
            return found
        if isinstance(found, Balancer) and found.owner == view.owner:
            return _plan_removal(view, found, is_double=True)
    return None


# ---- a Service that loses its balancer


def _look_for_lost(view: View) -> AnyStep:
    """Plan the end of a Service without record that has our finalizer: a user removed the record.

    That this account lists nothing does not prove that another account has nothing.
    """
    if CLASS_FINALIZER not in view.service.metadata.finalizers:
        return Wait(None, NotSelected())
    listing = get_listing(view)
    if isinstance(listing, Wait):
        return Wait(listing.until, NotSelected())
    if not isinstance(listing, Listing):
        return listing
    told = find_condition(view.service)  # another account's process may have told something else
    is_ending = view.service.metadata.deletion_timestamp and view.service.spec.type != LOAD_BALANCER
    is_told = is_ending and (told is None or told.message == _LOST)
    return Wait(find_next_listing(view), ForeignController(_LOST) if is_told else NotSelected())


def _plan_end(view: View, record: BalancerRecord | None) -> AnyStep:
    if record is None and not view.service.has_finalizer:
        return Wait(None, NotSelected())
    is_of_class = view.service.spec.load_balancer_class is not None and _has_finalizer(view)
    if record is None and not is_of_class and not _is_known(view):
        return Wait(
            None, ForeignController("the finalizer has no record: another controller may have set it")
        )
    if record is not None and is_abandoned(view, record):
        return _release(view, abandoned=record.id or ABANDON_UNKNOWN)
    known = _recall(view, record)
    if known is not None and known.id and (step := _end_recorded(view, known)):
        return step
    return _end_listed(view, known) or _release(view, kept=_find_kept(view, known))


def _end_recorded(view: View, record: BalancerRecord) -> AnyStep | None:
    """Return the next step until the recorded balancer is gone, or has no tag of ours; then None."""
    found = get_balancer(view, record.id)
    if isinstance(found, NotFound):
        return prove_gone(view, record)
    if not isinstance(found, Balancer):
        return found
    if found.owner != view.owner:
        return None
    if _is_own_status(view, found):
        return WriteStatus(ingress=(), condition=find_condition(view.service))
    return _plan_removal(view, found)


def _end_listed(view: View, record: BalancerRecord | None) -> AnyStep | None:
    """Return the next step until a complete listing shows nothing that is ours; then None."""
    listing = get_listing(view)
    if not isinstance(listing, Listing):
        return listing
    for each in list_own(view, listing):
        found = get_balancer(view, each.id)
        if isinstance(found, Balancer) and found.owner == view.owner:
            return _plan_removal(view, found)
        return _list_again(view, listing) if isinstance(found, Balancer | NotFound) else found
    return None if record is None else prove_unsettled_create(view, record, listing)


def _list_again(view: View, listing: Listing) -> AnyStep:
    """Return the step after a listing that shows what is not found by id any more."""
    until = listing.began_at + _LIST_AGAIN
    return Wait(until, ListedLate()) if view.now < until else ListBalancers()


def _find_kept(view: View, record: BalancerRecord | None) -> str:
    """Return the id of the recorded balancer if it has other tags: it is not deleted."""
    if record is None or not record.id:
        return ""
    return record.id if isinstance(get_balancer(view, record.id), Balancer) else ""


def _release(view: View, *, abandoned: str = "", kept: str = "") -> AnyStep:
    if _is_own_status(view, None) or find_condition(view.service) is not None:
        return WriteStatus(ingress=() if _is_own_status(view, None) else None, condition=None)
    return ReleaseService(abandoned=abandoned, kept=kept)


def _plan_removal(view: View, found: Balancer, *, is_double: bool = False) -> AnyStep:
    """Delete a balancer of ours, or release it if the cloud refuses to delete it."""
    if found.has_foreign_tags:
        return _wait_for_other(view, found)
    if not found.is_protected:
        return _make_first(view, found, [DeleteBalancer(balancer_id=found.id, is_double=is_double)])
    changes = view.planner.plan_release(found)
    return _make_first(
        view,
        found,
        [ChangeBalancer(balancer_id=found.id, change=change, is_release=True) for change in changes],
    )


# ---- writes


def _make_first(view: View, found: Balancer, steps: Sequence[AnyWrite]) -> AnyStep:
    """Return the first write that was not rejected a moment ago, right after a look at the balancer."""
    lookup = view.lookups.get(found.id)
    if not steps or found.is_busy:
        return Wait(view.now + _BUSY_RETRY, Busy(found.id))
    pauses = []
    for step in steps:
        pause = view.memory.find_pause(step, view.now, view.credential.generation)
        if pause is not None:
            pauses.append(pause)
        elif lookup is None or not is_current(view, lookup, _WRITE_AGE):
            return ReadBalancer(found.id)
        else:
            return _allow(view, step)
    until = min(find_next_listing(view), *(pause.until for pause in pauses))
    return Wait(until, Rejected(pauses[0].kind, pauses[0].reason))


def _allow(view: View, step: AnyWrite) -> AnyStep:
    """A write of a process that has lost its Lease may meet one of the next leader."""
    pause = view.memory.find_pause(step, view.now, view.credential.generation)
    if pause is not None:
        return Wait(pause.until, Rejected(pause.kind, pause.reason))
    if view.now + timedelta(seconds=view.write_seconds) > view.lease_until:
        return Wait(view.now + _LEASE_RETRY, LeaseTooShort())
    return step


# ---- the Service


def _wait_for_other(view: View, found: Balancer) -> Wait:
    text = f"load balancer {found.id} has tags of another controller, or not those of this Service"
    return Wait(find_next_listing(view), ForeignController(text))


def _is_known(view: View) -> bool:
    """Whether a balancer has our tags, or had them when this process deleted it.

    It is ours even if a user has removed the record.
    """
    is_deleted = any(number == view.credential.generation for _, number in view.memory.deleted)
    is_own_end = is_deleted and CLASS_FINALIZER in view.service.metadata.finalizers
    return is_own_end or bool(list_own(view, view.listing))


def _has_finalizer(view: View) -> bool:
    return view.service.needed_finalizer in view.service.metadata.finalizers


def _build_record(view: View, *, id: str = "", create_deadline: datetime | None = None) -> BalancerRecord:  # noqa: A002
    return BalancerRecord(
        account=view.account.name, anchor=view.anchor, id=id, create_deadline=create_deadline
    )


def _recall(view: View, record: BalancerRecord | None) -> BalancerRecord | None:
    """Return the record with what this process knows of its create, even if a user removed the record."""
    attempt = view.memory.attempt
    if attempt is None or attempt.state not in ("created", "unknown"):
        return record
    if record is None:
        record = _build_record(view, create_deadline=attempt.deadline)
    if record.create_deadline != attempt.deadline or attempt.state == "unknown":
        return record
    return replace(record, id=attempt.balancer_id, create_deadline=None)


def _build_ingress(view: View, found: Balancer) -> tuple[Ingress, ...] | None:
    if isinstance(view.parsed, Unanswered):
        return None
    ingress: tuple[Ingress, ...] | None = view.planner.build_ingress(view.parsed.desired, found)
    return ingress


def _is_own_status(view: View, found: Balancer | None) -> bool:
    status = read_ingress(view.service)
    expected = (view.memory.ingress, None if found is None else _build_ingress(view, found))
    return bool(status) and status in expected


def _is_overwritten(view: View, ingress: tuple[Ingress, ...] | None) -> bool:
    """Whether another controller has changed the status after this process wrote it."""
    status = read_ingress(view.service)
    return bool(status) and view.memory.ingress is not None and status not in (view.memory.ingress, ingress)
