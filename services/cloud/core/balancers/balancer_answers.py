"""What the answers of the cloud prove about a Service's balancers, and which question comes next."""

from datetime import datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from libs.clouds.balancers import Balancer
from libs.clouds.instances import CREDENTIAL_ANCHOR, NotFound, Unanswered
from libs.common.contract.kube_service import ABANDON_ANNOTATION
from services.cloud.core.answer import MAX_LATENESS, Answer
from services.cloud.core.balancers.balancer_record import BalancerRecord
from services.cloud.core.balancers.balancer_steps import (
    ListBalancers,
    ListedSoon,
    NoWitness,
    ReadAnchor,
    ReadBalancer,
    Unready,
    Wait,
    WriteUnsettled,
)
from services.cloud.core.balancers.balancer_view import (
    BalancerView,
    CreateAttempt,
    Listing,
)

# An older answer is asked for again: the balancers are listed each minute. So long may a double live.
ANSWER_AGE: Final = timedelta(minutes=1)
# Parts that can outlive their balancer, such as target groups, are read again at the latest by then.
PART_AGE: Final = timedelta(minutes=10)
_SHARED_PAUSE: Final = timedelta(seconds=5)  # between listings that replace reads of many balancers
_RETRY: Final = timedelta(seconds=10)  # after no answer, unless the cloud names a time
_MAX_RETRY_SECONDS: Final = 3600.0
# The annotation's value where the record has no id: what a create of unknown result may have left is given
# up.
ABANDON_UNKNOWN: Final = "unknown"

View = BalancerView[Any, Any]
Question = ListBalancers | ReadBalancer | ReadAnchor | Wait


def is_current(view: View, answer: Answer) -> bool:
    """Whether nothing has made the answer void: a write of ours, another credential, or time."""
    is_of_credential = answer.generation == view.credential.generation
    return is_of_credential and answer.began_at >= view.memory.valid_from and _is_young(view, answer)


def _is_young(view: View, answer: Answer) -> bool:
    """Whether it is younger than ANSWER_AGE. One from the future is of another clock, and proves nothing."""
    return answer.began_at <= view.now < answer.find_end(ANSWER_AGE)


def get_listing(view: View) -> Listing | Question:
    """Return the last complete listing, or the step to it. It proves what is left, so it has read parts."""
    listing = view.listing
    if listing is None or not is_current(view, listing):
        return ListBalancers()
    if isinstance(listing.answer, Unanswered):
        return _wait_after(view, listing.answer, listing) or ListBalancers()
    return listing if listing.parts_began_at == listing.began_at else ListBalancers()


def list_own(view: View, listing: Listing | None) -> tuple[Balancer, ...]:
    """Return the listed balancers with the tags of this Service."""
    if listing is None or isinstance(listing.answer, Unanswered):
        return ()
    return tuple(each for each in listing.answer if each.owner == view.owner)


def find_other_account(view: View, listing: Listing) -> str:
    """Return another account that has a balancer of this Service, "" without one.

    Balancers that were read by their id count, too. A balancer that the annotation gives up does not count,
    because its account may never return.
    """
    assert not isinstance(listing.answer, Unanswered)
    read = (each.answer for each in view.lookups.values() if is_current(view, each))
    given_up = view.service.metadata.annotations.get(ABANDON_ANNOTATION, "")
    for each in (*listing.answer, *read):
        owner = each.owner if isinstance(each, Balancer) and each.id != given_up else None
        if owner not in (None, view.owner) and replace(owner, account=view.owner.account) == view.owner:
            return owner.account
    return ""


def get_balancer(view: View, balancer_id: str) -> Balancer | NotFound | Question:
    """Return the balancer with this id, by a current answer, or the step to it."""
    lookup = view.lookups.get(balancer_id)
    if lookup is None or not is_current(view, lookup):
        return ReadBalancer(balancer_id)
    if isinstance(lookup.answer, Unanswered):
        return _wait_after(view, lookup.answer, lookup) or ReadBalancer(balancer_id)
    return lookup.answer


def observe_balancer(view: View, balancer_id: str) -> Balancer | NotFound | Question:
    """As `get_balancer`, but a listing is enough: an idle balancer costs no request of its own."""
    listing, lookup = view.listing, view.lookups.get(balancer_id)
    if listing is None or listing.generation != view.credential.generation:
        return ListBalancers()
    if _has_old_parts(view, listing) or not _is_young(view, listing):
        return ListBalancers(reads_parts=_has_old_parts(view, listing))
    if is_current(view, listing) and (lookup is None or lookup.began_at < listing.began_at):
        listed = (each for each in list_own(view, listing) if each.id == balancer_id)
        return next(listed, None) or ReadBalancer(balancer_id)
    found = get_balancer(view, balancer_id)
    return read_again(view, balancer_id) if isinstance(found, ReadBalancer) else found


def read_again(view: View, balancer_id: str) -> Question:
    """Return the step to a newer answer about a recorded balancer that a listing has shown."""
    listing = view.listing
    if not view.shares_listing or listing is None or isinstance(listing.answer, Unanswered):
        return ReadBalancer(balancer_id)
    until = listing.ended_at + _SHARED_PAUSE
    return Wait(until, ListedSoon()) if view.now < until else ListBalancers()


def find_look(view: View, balancer_id: str) -> Answer | None:
    """Return the last current answer that shows the balancer with all parts; of many Services, a listing."""
    listing, lookup = view.listing, view.lookups.get(balancer_id)
    shown = {each.id for each in list_own(view, listing)} if view.shares_listing else set()
    answers: list[Answer] = [] if lookup is None else [lookup]
    if listing is not None and balancer_id in shown and listing.parts_began_at == listing.began_at:
        answers.append(listing)
    current = (each for each in answers if is_current(view, each))
    return max(current, key=lambda each: each.began_at, default=None)


def _has_old_parts(view: View, listing: Listing) -> bool:
    """Whether parts may have changed since they were read: by a late change of ours, or by another client."""
    settled_at, read_at = view.memory.find_settled(), listing.parts_began_at
    is_old = read_at < settled_at <= view.now or view.now - read_at >= PART_AGE
    return is_old and view.planner.has_outliving_parts


def get_pause(answer: Unanswered) -> timedelta:
    """Return when to ask again after no answer."""
    seconds = answer.retry_after_seconds
    return _RETRY if seconds is None else timedelta(seconds=min(seconds, _MAX_RETRY_SECONDS))


def _wait_after(view: View, answer: Unanswered, asked: Answer) -> Wait | None:
    """Return the wait after no answer; None if it is over."""
    until = asked.ended_at + get_pause(answer)
    return Wait(until, Unready(answer)) if view.now < until else None


def find_next_listing(view: View) -> datetime:
    """Return when the next listing is due."""
    listing = view.listing
    if listing is None or not _is_young(view, listing):
        return view.now + ANSWER_AGE
    return listing.find_end(ANSWER_AGE)


# ---- what proves that something is gone


def prove_gone(view: View, record: BalancerRecord) -> Question | None:
    """Return the next step until it is proven that the recorded balancer, which is not found, is gone.

    Proof is our own DELETE by this credential. Without it, the credential must find the recorded anchor.
    """
    if (record.id, view.credential.generation) in view.memory.deleted or is_abandoned(view, record):
        return None
    return _find_witness(view, record, view.lookups[record.id])


def prove_unsettled_create(view: View, record: BalancerRecord, listing: Listing) -> Question | None:
    """Return the next step until a listing without our tags proves that the recorded create left nothing."""
    deadline, attempt = record.create_deadline, get_own_attempt(view, record)
    if deadline is None or (attempt is not None and attempt.state in ("unsent", "rejected")):
        return None
    # Another process wrote its deadline by its own clock, and sent nothing after this one began to lead.
    ended_at = deadline if attempt is not None else max(deadline, view.memory.led_since)
    settled_at = ended_at + MAX_LATENESS
    if listing.began_at < settled_at:
        until = min(settled_at, find_next_listing(view))
        return Wait(until, WriteUnsettled()) if view.now < until else ListBalancers()
    if attempt is not None and attempt.generation == view.credential.generation:
        return None
    return _find_witness(view, record, listing)


def _find_witness(view: View, record: BalancerRecord, absence: Answer) -> Question | None:
    """Return the next step until the credential is proven to be the recorded project's; then None."""
    anchor = record.anchor
    if (
        anchor is not None
        and anchor.kind == CREDENTIAL_ANCHOR
        and anchor.id == view.credential.fingerprint != ""
    ):
        return None
    if anchor is None or anchor.kind == CREDENTIAL_ANCHOR:
        return Wait(find_next_listing(view), NoWitness(anchor=anchor))
    lookup = view.anchor_lookups.get(anchor)
    if lookup is None or not is_current(view, lookup) or lookup.began_at < absence.ended_at:
        return ReadAnchor(anchor)
    if isinstance(lookup.answer, Unanswered):
        return _wait_after(view, lookup.answer, lookup) or ReadAnchor(anchor)
    if isinstance(lookup.answer, NotFound):
        return Wait(lookup.find_end(ANSWER_AGE), NoWitness(anchor=anchor))
    return None


def is_abandoned(view: View, record: BalancerRecord) -> bool:
    """Return whether an operator has given up the recorded balancer, or what a create may have left."""
    named = view.service.metadata.annotations.get(ABANDON_ANNOTATION, "")
    return named == (record.id or ABANDON_UNKNOWN)


def get_own_attempt(view: View, record: BalancerRecord) -> CreateAttempt | None:
    """Return the create of this process for which the deadline was recorded, if it is this process's."""
    attempt = view.memory.attempt
    return attempt if attempt is not None and attempt.deadline == record.create_deadline else None
