"""Decides the next step of a Service that loses its load balancer, or that a user took the record from."""

from datetime import timedelta
from typing import Final

from msgspec.structs import replace

from libs.clouds.balancers import Balancer
from libs.clouds.instances import NotFound, Unanswered
from libs.common.contract.kube_service import CLASS_FINALIZER, CLEANUP_FINALIZER, LOAD_BALANCER
from services.cloud.core.balancers.balancer_answers import (
    ABANDON_UNKNOWN,
    View,
    find_next_listing,
    find_other_account,
    get_balancer,
    get_listing,
    is_abandoned,
    list_own,
    prove_gone,
    prove_unsettled_create,
)
from services.cloud.core.balancers.balancer_record import BalancerRecord
from services.cloud.core.balancers.balancer_status import find_condition
from services.cloud.core.balancers.balancer_steps import (
    ChangeBalancer,
    DeleteBalancer,
    ForeignController,
    ListBalancers,
    ListedLate,
    NotSelected,
    OtherAccount,
    ReleaseService,
    Wait,
    WriteStatus,
    WriteUnsettled,
)
from services.cloud.core.balancers.balancer_view import Listing
from services.cloud.core.balancers.plan_adoption import get_named
from services.cloud.core.balancers.step_parts import (
    AnyStep,
    has_needed_finalizer,
    is_known,
    is_own_status,
    keeps_balancer,
    make_first,
    recall_record,
    wait_for_other,
)

_LIST_AGAIN: Final = timedelta(seconds=5)  # while the list shows what is gone
_LOST: Final = (
    "the record of the load balancer is removed, and none with the tags of this Service is listed: if no "
    "account and no other controller has one, remove the finalizer "
)


def plan_lost(view: View) -> AnyStep:
    """Plan the end of a Service without record that has our finalizer: a user removed the record.

    That this account lists nothing does not prove that another account has nothing.
    """
    if CLASS_FINALIZER not in view.service.metadata.finalizers:
        return _remove_condition(view) or Wait(None, NotSelected())
    listing = get_listing(view)
    if isinstance(listing, Wait):
        return Wait(listing.until, NotSelected())
    if not isinstance(listing, Listing):
        return listing
    told = find_condition(view.service)  # another account's process may have told something else
    is_ending = view.service.metadata.deletion_timestamp and view.service.spec.type != LOAD_BALANCER
    lost = _LOST + CLASS_FINALIZER
    is_told = is_ending and (told is None or told.message == lost)
    return Wait(find_next_listing(view), ForeignController(lost) if is_told else NotSelected())


def _remove_condition(view: View) -> WriteStatus | None:
    """Remove the condition of a Service that wants no load balancer any more, and never had one."""
    is_free = view.service.spec.type != LOAD_BALANCER and not view.service.has_finalizer
    is_told = is_free and find_condition(view.service) is not None
    return WriteStatus(ingress=None, condition=None) if is_told else None


def plan_end(view: View, record: BalancerRecord | None) -> AnyStep:
    """Return the next step until nothing in the cloud is left of a Service that loses its balancer."""
    if record is None and not view.service.has_finalizer:
        return Wait(None, NotSelected())
    is_of_class = view.service.spec.load_balancer_class is not None and has_needed_finalizer(view)
    if record is None and not is_of_class and not is_known(view):
        listing = get_listing(view)
        if not isinstance(listing, Listing):
            return listing
        finalizers = sorted(
            {CLASS_FINALIZER, CLEANUP_FINALIZER}.intersection(view.service.metadata.finalizers)
        )
        return Wait(find_next_listing(view), ForeignController(_LOST + " and ".join(finalizers)))
    if record is not None and is_abandoned(view, record):
        return _release(view, abandoned=record.id or ABANDON_UNKNOWN)
    known = recall_record(view, record)
    if known is not None and known.id and (step := _end_recorded(view, known)):
        return step
    return _end_listed(view, known) or _end_service(view, known)


def end_tagged(view: View) -> AnyStep | None:
    """Return the next step until no balancer with our tags is left, where another account has the record."""
    return _end_listed(view, None) if list_own(view, view.listing) else None


def _end_recorded(view: View, record: BalancerRecord) -> AnyStep | None:
    """Return the next step until the recorded balancer is gone, or has no tag of ours; then None."""
    found = get_balancer(view, record.id)
    if isinstance(found, NotFound):
        return prove_gone(view, record)
    if not isinstance(found, Balancer):
        return found
    if found.owner != view.owner:
        return None
    return _end_found(view, found)


def _end_found(view: View, found: Balancer) -> AnyStep:
    """Remove the balancer; its addresses go from the status before."""
    if is_own_status(view, found):
        return WriteStatus(ingress=(), condition=find_condition(view.service))
    return plan_removal(view, found)


def _end_listed(view: View, record: BalancerRecord | None) -> AnyStep | None:
    """Return the next step until a complete listing shows nothing that is ours; then None."""
    listing = get_listing(view)
    if not isinstance(listing, Listing):
        return listing
    for each in list_own(view, listing):
        found = get_balancer(view, each.id)
        if isinstance(found, Balancer) and found.owner == view.owner:
            return _end_found(view, found)
        return list_again(view, listing) if isinstance(found, Balancer | NotFound) else found
    step = None if record is None else prove_unsettled_create(view, record, listing)
    return step or prove_unsettled_changes(view, record, listing)


def prove_unsettled_changes(view: View, record: BalancerRecord | None, listing: Listing) -> AnyStep | None:
    """Return the next step until a listing proves that no late change leaves anything of ours; then None.

    It could create a part that outlives its balancer, or tag a prepared one that has no tags yet.
    """
    settled_at = view.memory.find_settled()
    is_named = record is not None and record.id == get_named(view) != ""
    may_leave = view.planner.has_outliving_parts or (is_named and _find_kept(view, record))
    if not may_leave or listing.began_at >= settled_at:
        return None
    until = min(settled_at, find_next_listing(view))
    return Wait(until, WriteUnsettled()) if view.now < until else ListBalancers()


def list_again(view: View, listing: Listing) -> AnyStep:
    """Return the step after a listing that shows what is not found by id any more."""
    until = listing.ended_at + _LIST_AGAIN
    return Wait(until, ListedLate()) if view.now < until else ListBalancers()


def _end_service(view: View, record: BalancerRecord | None) -> AnyStep:
    """Release the Service, unless another account has a balancer of it: that one needs the finalizer."""
    listing = get_listing(view)
    if not isinstance(listing, Listing):
        return listing
    other = find_other_account(view, listing)
    if not other:
        return _release(view, kept=_find_kept(view, record))
    if record is None:
        return Wait(find_next_listing(view), OtherAccount(other))
    return ReleaseService(left_to=other)


def _find_kept(view: View, record: BalancerRecord | None) -> str:
    """Return the id of the recorded balancer if it has other tags: it is not deleted."""
    if record is None or not record.id:
        return ""
    return record.id if isinstance(get_balancer(view, record.id), Balancer) else ""


def _release(view: View, *, abandoned: str = "", kept: str = "") -> AnyStep:
    if is_own_status(view, None) or find_condition(view.service) is not None:
        return WriteStatus(ingress=() if is_own_status(view, None) else None, condition=None)
    return ReleaseService(abandoned=abandoned, kept=kept)


def plan_removal(
    view: View, found: Balancer, *, is_double: bool = False, has_failed: bool = False
) -> AnyStep:
    """Delete a balancer of ours, or release it if the cloud refuses to delete it, or a user keeps it."""
    view = replace(view, shares_listing=False)  # it is read by its id before
    if found.has_foreign_tags:
        return wait_for_other(view, found)
    is_end = not (is_double or has_failed)
    is_kept = is_end and keeps_balancer(view)
    # An address that a user wants to keep must not be lost because the Service cannot be read.
    keeps_address = is_kept or isinstance(view.parsed, Unanswered) or view.parsed.keeps_address
    kept = found.kept_objects + (found.created_addresses if keeps_address else ()) if is_end else ()
    if not found.is_protected and (found.is_remnant or not is_kept):
        delete = DeleteBalancer(
            found.id, is_double=is_double, keeps_address=keeps_address, has_failed=has_failed, kept=kept
        )
        return make_first(view, found, [delete])
    changes = view.planner.plan_release(found, keeps_address=keeps_address)
    # The tags go last: what is left after that, or takes effect later, would stay for ever.
    until = view.memory.find_settled(found.id)
    if len(changes) == 1 and view.now < until:
        return Wait(until, WriteUnsettled())
    return make_first(
        view,
        found,
        [
            ChangeBalancer(balancer_id=found.id, change=change, is_release=True, kept=kept)
            for change in changes[:-1] or changes
        ],
    )
