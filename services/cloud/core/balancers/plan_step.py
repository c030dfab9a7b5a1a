"""Decides the next step of one Service's load balancer. Each step may be the last one before a crash."""

from datetime import timedelta
from typing import Final

from msgspec.structs import replace

from libs.clouds.balancers import Balancer, Ingress
from libs.clouds.instances import NotFound, Unanswered
from services.cloud.core.balancers.balancer_answers import (
    ABANDON_UNKNOWN,
    View,
    find_next_listing,
    find_other_account,
    get_balancer,
    get_listing,
    get_own_attempt,
    get_pause,
    is_abandoned,
    list_own,
    observe_balancer,
    prove_gone,
    prove_unsettled_create,
)
from services.cloud.core.balancers.balancer_record import BalancerRecord, is_selected, read_balancer_record
from services.cloud.core.balancers.balancer_status import (
    find_condition,
    has_ingress,
    plan_condition,
    read_ingress,
)
from services.cloud.core.balancers.balancer_steps import (
    AnchorUnknown,
    BalancerFailed,
    BuildsFailed,
    ChangeBalancer,
    CreateBalancer,
    ForeignController,
    InvalidFields,
    LeftOutTarget,
    NotSelected,
    OtherAccount,
    RecordBalancer,
    ReleaseService,
    Settled,
    Unready,
    Wait,
    WriteStatus,
)
from services.cloud.core.balancers.balancer_view import Listing
from services.cloud.core.balancers.plan_adoption import (
    get_named,
    plan_adoption,
    plan_hand_back,
    plan_use,
)
from services.cloud.core.balancers.plan_end import (
    end_tagged,
    list_again,
    plan_end,
    plan_lost,
    plan_removal,
    prove_unsettled_changes,
)
from services.cloud.core.balancers.step_parts import (
    FOREIGN_ADDRESSES,
    AnyStep,
    allow_write,
    build_ingress,
    build_record,
    find_anchor,
    find_rejected_targets,
    has_needed_finalizer,
    is_known,
    is_stuck,
    make_first,
    recall_record,
    wait_for_other,
    wait_while_busy,
)

_RESERVE: Final = timedelta(seconds=30)  # for the patch before the create


def plan_step(view: View) -> AnyStep:
    """Return the next step for this Service; a wait that an operator should know of is its condition, too."""
    step = _plan(view)
    return plan_condition(view.service, step) if isinstance(step, Wait) else step


def _plan(view: View) -> AnyStep:
    record = read_balancer_record(view.service, view.now)
    is_wanted = is_selected(view.service, view.account) and not view.service.metadata.deletion_timestamp
    if record is not None and record.account != view.account.name:
        return _plan_beside(view, record) if is_wanted else end_tagged(view) or Wait(None, NotSelected())
    if (handing_back := plan_hand_back(view, record)) is not None:
        return handing_back
    if record is None and not is_selected(view.service, view.account) and not is_known(view):
        return plan_lost(view)
    return _plan_present(view, record) if is_wanted else plan_end(view, record)


def _plan_beside(view: View, record: BalancerRecord) -> AnyStep:
    """Another account ends its balancer before this one begins, unless an operator has given it up."""
    if is_abandoned(view, record):
        return ReleaseService(abandoned=record.id or ABANDON_UNKNOWN)
    return Wait(None, OtherAccount(record.account))


def _plan_present(view: View, record: BalancerRecord | None) -> AnyStep:
    known = recall_record(view, record)
    if known is None or not known.id:
        return _plan_absent(view, known)
    if known != record or not has_needed_finalizer(view):
        return RecordBalancer(known)
    found = observe_balancer(view, known.id)
    if isinstance(found, NotFound):
        return prove_gone(view, known) or _plan_absent(view, known)
    return _plan_existing(view, known, found) if isinstance(found, Balancer) else found


def _plan_absent(view: View, record: BalancerRecord | None) -> AnyStep:
    """No balancer is recorded, or the recorded one is gone. The oldest one with our tags is recorded."""
    if record is not None and _may_create(view, record):
        return _plan_create(view)
    listing = get_listing(view)
    if not isinstance(listing, Listing):
        return listing
    # A remnant goes at the end of the Service. An adapter may use it for the next balancer.
    found = [each for each in list_own(view, listing) if not each.is_remnant]
    if record is not None and any(each.id == record.id for each in found):
        return list_again(view, listing)
    if found:
        oldest = min(found, key=lambda each: (each.created_at, each.id))
        if oldest.has_foreign_tags:
            return wait_for_other(view, oldest)
        return RecordBalancer(build_record(view, id=oldest.id, is_building=oldest.is_building))
    return _plan_new(view, record, listing)


def _plan_new(view: View, record: BalancerRecord | None, listing: Listing) -> AnyStep:
    """No balancer with our tags is listed."""
    if record is not None and (step := prove_unsettled_create(view, record, listing)):
        return step
    if other := find_other_account(view, listing):
        return Wait(find_next_listing(view), OtherAccount(other))
    if record is not None and record.id and read_ingress(view.service):
        return WriteStatus(ingress=(), condition=find_condition(view.service))
    create = _plan_create(view)
    if record is not None and isinstance(create, Wait) and isinstance(create.reason, InvalidFields):
        return _plan_invalid(view, record, listing, create)
    if not isinstance(create, CreateBalancer):
        return create
    if view.memory.build_after is not None and view.now < view.memory.build_after:
        return Wait(view.memory.build_after, BuildsFailed(view.memory.failed_builds))
    if view.anchor is None:  # the token of another project, perhaps
        return Wait(find_next_listing(view), AnchorUnknown("the credential does not find it"))
    if isinstance(view.anchor, Unanswered):
        return Wait(view.now + get_pause(view.anchor), AnchorUnknown(view.anchor.reason))
    deadline = view.now + timedelta(seconds=view.write_seconds) + _RESERVE
    return RecordBalancer(build_record(view, create_deadline=deadline))


def _plan_invalid(view: View, record: BalancerRecord, listing: Listing, invalid: Wait) -> AnyStep:
    """Release a Service that gets no balancer, once a listing proves that nothing of ours is left.

    A remnant is paid for, and without the record nothing ends it.
    """
    if list_own(view, listing):
        return replace(invalid, until=find_next_listing(view))
    unsettled = prove_unsettled_changes(view, record, listing)
    if isinstance(unsettled, Wait):
        return replace(invalid, until=unsettled.until)
    return unsettled or ReleaseService()


def _may_create(view: View, record: BalancerRecord) -> bool:
    """Whether Kubernetes has confirmed the finalizer and the deadline that this process has recorded."""
    attempt = get_own_attempt(view, record)
    if attempt is None or attempt.state != "unsent" or not has_needed_finalizer(view):
        return False
    return view.now + timedelta(seconds=view.write_seconds) <= attempt.deadline


def _plan_create(view: View) -> AnyStep:
    """Return the create, the step to the balancer that the Service names instead, or why there is none.

    Without a balancer of ours, addresses in the status are another controller's.
    """
    if get_named(view):
        return plan_use(view)
    if read_ingress(view.service):
        return Wait(None, ForeignController(FOREIGN_ADDRESSES))
    parsed = view.parsed
    if isinstance(parsed, Unanswered):
        return Wait(view.now + get_pause(parsed), Unready(parsed))
    if parsed.invalid:
        return Wait(None, InvalidFields(parsed.invalid))
    if parsed.needed is not None:
        return allow_write(view, ChangeBalancer(balancer_id="", change=parsed.needed))
    return allow_write(view, CreateBalancer(desired=parsed.desired, targets=view.selection.plan(())))


def _plan_existing(view: View, record: BalancerRecord, found: Balancer) -> AnyStep:
    if found.owner != view.owner or found.has_foreign_tags:
        return plan_adoption(view, found)
    is_building = record.is_building and (found.is_busy or found.has_failed)
    present = replace(record, anchor=find_anchor(view) or record.anchor, is_building=is_building)
    if present != record:
        return RecordBalancer(present)
    if _may_replace(view, record, found):
        return plan_removal(view, found, has_failed=True)
    double = _end_doubles(view, record)
    if double is not None and not isinstance(double, Wait):
        return double
    step = _plan_fields(view, found)
    return double if double is not None and isinstance(step, Wait) else step


def _may_replace(view: View, record: BalancerRecord, found: Balancer) -> bool:
    """Whether the balancer has failed before it had clients: its address was never published."""
    is_unused = record.is_building and not found.is_protected and not read_ingress(view.service)
    return found.has_failed and is_unused


def _plan_fields(view: View, found: Balancer) -> AnyStep:
    """Return the step that makes the status and the balancer as desired.

    A status of another controller stays, and a balancer that has failed gets no clients. The balancer has our
    tags alone, so its targets follow the Nodes.
    """
    ingress = build_ingress(view, found)
    is_overwritten = _is_overwritten(view, ingress)
    status = read_ingress(view.service)
    is_refused = is_overwritten or (found.has_failed and not set(ingress or ()) <= set(status))
    if ingress is not None and not has_ingress(view.service, ingress) and not is_refused:
        return WriteStatus(ingress=ingress, condition=find_condition(view.service))
    parsed = view.parsed
    if isinstance(parsed, Unanswered):
        return Wait(view.now + get_pause(parsed), Unready(parsed))
    targets = view.selection.plan(found.targets)
    changes = view.planner.plan_changes(parsed.desired, targets, found)
    writes = [ChangeBalancer(balancer_id=found.id, change=change) for change in changes]
    if parsed.needed is not None:
        writes.append(ChangeBalancer(balancer_id="", change=parsed.needed))
    rejected = find_rejected_targets(view, writes)
    writes = [write for write in writes if write not in rejected]
    if writes:
        return make_first(view, found, writes)
    if found.has_failed:
        return Wait(find_next_listing(view), BalancerFailed(found.id))
    if is_stuck(view, found):
        return wait_while_busy(view, found)
    if is_overwritten:
        return Wait(find_next_listing(view), ForeignController(FOREIGN_ADDRESSES))
    left_out = tuple(LeftOutTarget(each.target, each.reason) for each in rejected.values() if each.target)
    missing = {each.target for each in left_out}
    settled = Settled(
        balancer_id=found.id,
        desired=parsed.desired,
        targets=tuple(each for each in targets if each not in missing),
        left_out=left_out,
        warnings=parsed.warnings + found.warnings + _explain_unused(view, found),
        invalid=parsed.invalid,
    )
    return Wait(min((find_next_listing(view), *(each.until for each in rejected.values()))), settled)


def _explain_unused(view: View, found: Balancer) -> tuple[str, ...]:
    named = get_named(view)
    text = f"load balancer {named} is not used: the Service has load balancer {found.id}"
    return (text,) if named not in ("", found.id) else ()


def _end_doubles(view: View, record: BalancerRecord) -> AnyStep | None:
    """A double was created by a request whose answer was lost. Only the recorded balancer stays."""
    for double in list_own(view, view.listing):
        is_gone = any(double.id == gone for gone, _ in view.memory.deleted)
        if double.id == record.id or is_gone or double.is_remnant:
            continue
        found = get_balancer(view, double.id)
        if not isinstance(found, Balancer | NotFound):
            return found
        if isinstance(found, Balancer) and found.owner == view.owner:
            return plan_removal(view, found, is_double=True)
    return None


def _is_overwritten(view: View, ingress: tuple[Ingress, ...] | None) -> bool:
    """Whether another controller has changed the status after this process wrote it."""
    is_ours = any(has_ingress(view.service, each) for each in (view.memory.ingress, ingress))
    return bool(read_ingress(view.service)) and view.memory.ingress is not None and not is_ours
