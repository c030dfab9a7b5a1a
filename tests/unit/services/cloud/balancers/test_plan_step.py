"""Each clause: what must be known before a paid object is created, changed, deleted or forgotten."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from libs.clouds.balancers import (
    Balancer,
    Ingress,
    ParsedRequest,
    Target,
    UnknownOutcome,
    WriteRejection,
    WriteSuccess,
)
from libs.clouds.instances import CREDENTIAL_ANCHOR, Credential, NotFound, Unanswered
from libs.common.contract.instances import InstanceAnchor
from libs.common.contract.kube_service import (
    CLASS_FINALIZER,
    CLEANUP_FINALIZER,
    KEEP_ANNOTATION,
    USE_ANNOTATION,
    LoadBalancerIngress,
    LoadBalancerStatus,
)
from services.cloud.core.balancers.balancer_answers import find_next_listing
from services.cloud.core.balancers.balancer_record import BalancerAccount, BalancerRecord
from services.cloud.core.balancers.balancer_steps import (
    AnchorUnknown,
    BlockedCondition,
    Busy,
    ChangeBalancer,
    CreateBalancer,
    DeleteBalancer,
    ForeignController,
    InvalidFields,
    LeaseTooShort,
    LeftOutTarget,
    ListBalancers,
    ListedLate,
    ListedSoon,
    NotSelected,
    NoWitness,
    OtherAccount,
    ReadAnchor,
    ReadBalancer,
    RecordBalancer,
    Rejected,
    ReleaseService,
    Settled,
    Unready,
    Wait,
    WriteStatus,
    WriteUnsettled,
)
from services.cloud.core.balancers.balancer_view import (
    AnchorLookup,
    CreateAttempt,
    Listing,
    Lookup,
    Memory,
    remember_confirmed,
    remember_settled,
    remember_write,
)
from services.cloud.core.balancers.plan_step import plan_step
from services.cloud.core.balancers.select_targets import TargetSelection
from tests.builders import NOW
from tests.clouds.balancers import (
    ADDRESS,
    ANCHOR,
    CREDENTIAL,
    FOUND_ANCHOR,
    NODE,
    OTHER_OWNER,
    OWNER,
    SILENCE,
    WRITE_SECONDS,
    VersionPlanner,
    at,
    make_anchor_lookup,
    make_balancer,
    make_invalid,
    make_listing,
    make_lookup,
    make_service,
    make_view,
)

DEADLINE = at(60)
LONG_AGO = at(-3600)
RESERVED = BalancerRecord(account="prod", anchor=ANCHOR, create_deadline=DEADLINE)
RECORDED = BalancerRecord(account="prod", anchor=ANCHOR, id="1")
UNANCHORED = replace(RECORDED, anchor=None)
BALANCER = make_balancer()
OF_OTHER_ACCOUNT = make_balancer(owner=replace(OWNER, account="other"))
FOUND = make_lookup("1", BALANCER)
MISSING = make_lookup("1", NotFound())
EMPTY = make_listing()
UNSENT = Memory(led_since=LONG_AGO, attempt=CreateAttempt(deadline=DEADLINE))
RENEWED = Credential(2, NOW, "f2")


class ProxyPlanner(VersionPlanner):
    """Its balancers have addresses with ipMode Proxy."""

    def build_ingress(self, desired: str, balancer: Balancer) -> tuple[Ingress, ...] | None:
        return (replace(ADDRESS, is_proxy=True),)


def remember_create(result: Any, *, ended_at: Any = NOW) -> Memory:
    create = CreateBalancer(desired="v1", targets=())
    return remember_write(UNSENT, create, result, deadline=at(30), ended_at=ended_at, generation=1)


def wait_reason(step: Any) -> Any:
    assert isinstance(step, Wait), step
    return step.reason


def blocked_reason(step: Any) -> str:
    """The reason of the condition that this step writes."""
    assert isinstance(step, WriteStatus), step
    assert step.condition is not None
    assert step.ingress is None
    return step.condition.reason


# ---- whose Service it is


@pytest.mark.parametrize(
    "service",
    [
        make_service(own_class="other"),
        make_service(kind="ClusterIP"),
        make_service(is_deleting=True),
    ],
)
def test_a_service_that_is_not_this_accounts_is_left_alone(service: Any):
    listing = make_listing(BALANCER)
    assert wait_reason(plan_step(make_view(service, FOUND, listing=listing))) == NotSelected()


def test_a_service_that_wants_no_balancer_any_more_loses_the_condition():
    condition = BlockedCondition(reason="InvalidField", message="ports: no such value")
    view = make_view(make_service(kind="ClusterIP", condition=condition), listing=EMPTY)
    assert plan_step(view) == WriteStatus(ingress=None, condition=None)
    other = make_service(own_class="other", condition=condition)
    assert plan_step(replace(view, service=other)) == Wait(None, NotSelected()), "another account's, perhaps"


BESIDE = [
    make_service(record=replace(RECORDED, account="other"), is_deleting=True),
    make_service(record=replace(RECORDED, account="other"), own_class="other"),
    make_service(record=replace(RECORDED, account="other"), own_class="other", abandon="1"),
]


@pytest.mark.parametrize("service", BESIDE)
def test_of_a_service_with_the_record_of_another_account_only_what_has_our_tags_ends(service: Any):
    for listing in (None, EMPTY, make_listing(OF_OTHER_ACCOUNT)):
        view = make_view(service, make_lookup("1", OF_OTHER_ACCOUNT), listing=listing)
        assert plan_step(view) == Wait(None, NotSelected())
    assert plan_step(make_view(service, FOUND, listing=make_listing(BALANCER))) == DeleteBalancer("1")


@pytest.mark.parametrize("is_deleting", [False, True])
@pytest.mark.parametrize("listing", [EMPTY, make_listing(OF_OTHER_ACCOUNT)])
def test_a_record_that_names_this_account_by_mistake_is_removed_and_the_finalizer_stays(
    listing: Any, is_deleting: bool
):
    service = make_service(record=RECORDED, own_class="other", is_deleting=is_deleting)
    read = make_lookup("1", OF_OTHER_ACCOUNT)
    step = plan_step(make_view(service, read, listing=listing))
    assert step == ReleaseService(left_to="other")
    given_up = make_service(record=RECORDED, own_class="other", is_deleting=is_deleting, abandon="1")
    assert plan_step(make_view(given_up, read, listing=listing)) == ReleaseService(abandoned="1")


def test_while_another_account_has_a_balancer_nothing_is_created_and_the_finalizer_stays():
    for service in (make_service(), make_service(finalizer=True, is_deleting=True)):
        step = plan_step(make_view(service, listing=make_listing(OF_OTHER_ACCOUNT)))
        assert step == Wait(at(60), OtherAccount("other"))
    renamed = make_service(abandon="1")  # the other account has another name now
    step = plan_step(make_view(renamed, listing=make_listing(OF_OTHER_ACCOUNT)))
    assert step == RecordBalancer(RESERVED)
    elsewhere = make_listing(make_balancer(owner=replace(OTHER_OWNER, account="other")))
    assert plan_step(make_view(make_service(), listing=elsewhere)) == RecordBalancer(RESERVED)


def test_a_double_is_one_of_this_account():
    listing = make_listing(BALANCER, replace(OF_OTHER_ACCOUNT, id="2"))
    assert isinstance(wait_reason(plan_step(make_view(make_recorded(), listing=listing))), Settled)


def test_another_account_ends_its_balancer_before_this_one_begins():
    record = replace(RECORDED, account="other")
    view = make_view(make_service(record=record), listing=EMPTY)
    assert wait_reason(plan_step(view)) == OtherAccount("other")
    given_up = make_view(make_service(record=record, abandon="1"), listing=EMPTY)
    assert plan_step(given_up) == ReleaseService(abandoned="1")


CLASSES = {"ours": "talos-ccm/prod", "other": "talos-ccm/other", "none": None}
RECORDS = {"ours": RECORDED, "other": replace(RECORDED, account="other"), "none": None}


@pytest.mark.parametrize("is_deleting", [False, True])
@pytest.mark.parametrize("kind", ["LoadBalancer", "ClusterIP"])
@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("own_class", CLASSES)
def test_a_balancer_with_our_tags_ends_unless_the_service_lives_and_selects_us(
    own_class: str, record: str, kind: str, is_deleting: bool
):
    service = make_service(
        own_class=CLASSES[own_class],
        record=RECORDS[record],
        kind=kind,
        is_deleting=is_deleting,
        finalizer=True,
    )
    is_kept = kind == "LoadBalancer" and not is_deleting and own_class == "ours"
    step = plan_step(make_view(service, FOUND, listing=make_listing(BALANCER)))
    assert (step == DeleteBalancer("1")) is not is_kept, step
    assert isinstance(step, DeleteBalancer | Wait | RecordBalancer | WriteStatus), step


@pytest.mark.parametrize("own_class", ["talos-ccm/other", None])
def test_a_live_service_of_another_class_without_record_loses_what_has_our_tags(own_class: str | None):
    service = make_service(own_class=own_class, finalizer=True)
    view = make_view(service, FOUND, listing=make_listing(BALANCER))
    assert plan_step(view) == DeleteBalancer("1")
    outdated = replace(view, lookups={}, listing=make_listing(BALANCER, at_second=-61))
    assert plan_step(outdated) == ListBalancers()
    assert plan_step(replace(view, listing=EMPTY)).reason == NotSelected()  # type: ignore[union-attr]


@pytest.mark.parametrize("is_deleting", [False, True])
def test_a_listed_balancer_ends_also_where_somebody_has_removed_the_record(is_deleting: bool):
    service = make_service(kind="ClusterIP", own_class=None, finalizer=True, is_deleting=is_deleting)
    assert plan_step(make_view(service, FOUND, listing=make_listing(BALANCER))) == DeleteBalancer("1")


def make_lost(*, is_deleting: bool = True, condition: BlockedCondition | None = None) -> Any:
    """A Service that had a class, without its record and type."""
    service = make_service(kind="ClusterIP", own_class=None, is_deleting=is_deleting, condition=condition)
    return replace(service, metadata=replace(service.metadata, finalizers=(CLASS_FINALIZER,)))


@pytest.mark.parametrize("is_deleting", [False, True])
def test_our_finalizer_without_record_and_type_is_released_after_the_tagged_balancer(is_deleting: bool):
    view = make_view(make_lost(is_deleting=is_deleting))
    assert plan_step(view) == ListBalancers()
    listed = make_view(view.service, FOUND, listing=make_listing(BALANCER))
    assert plan_step(listed) == DeleteBalancer("1")
    memory = remember_write(
        view.memory, DeleteBalancer("1"), WriteSuccess(), deadline=NOW, ended_at=NOW, generation=1
    )
    gone = replace(listed, memory=memory, lookups={"1": MISSING}, listing=EMPTY)
    assert plan_step(gone) == ReleaseService()
    renewed = replace(gone, credential=RENEWED, listing=make_listing(generation=2))
    assert plan_step(renewed) != ReleaseService()
    other = replace(view.service, metadata=replace(view.service.metadata, finalizers=(CLEANUP_FINALIZER,)))
    assert wait_reason(plan_step(replace(gone, service=other))) == NotSelected()
    assert remember_confirmed(memory, ReleaseService()).deleted == frozenset()


def test_our_finalizer_of_which_nothing_is_known_says_what_to_do():
    step = plan_step(make_view(make_lost(), listing=EMPTY))
    assert isinstance(step, WriteStatus)
    assert step.condition is not None
    assert f"remove the finalizer {CLASS_FINALIZER}" in step.condition.message
    told = plan_step(make_view(make_lost(condition=step.condition), listing=EMPTY))
    assert told == Wait(at(60), ForeignController(step.condition.message))
    other = BlockedCondition(reason="CloudRejected", message="quota")
    refused = make_listing(answer=Unanswered("unauthorized", "bad token"))
    for view in (
        make_view(make_lost(condition=other), listing=EMPTY),
        make_view(make_lost(is_deleting=False), listing=EMPTY),
        make_view(make_lost(), listing=refused),
    ):
        assert wait_reason(plan_step(view)) == NotSelected()


def test_a_finalizer_without_a_record_stays_where_another_controller_may_have_set_it():
    account = BalancerAccount(name="prod", load_balancer_class="talos-ccm/prod", is_default=True)
    service = make_service(own_class=None, finalizer=True, is_deleting=True)
    view = make_view(service, account=account, listing=EMPTY)
    assert blocked_reason(plan_step(view)) == "OtherController"
    assert f"remove the finalizer {CLEANUP_FINALIZER}" in plan_step(view).condition.message  # type: ignore[union-attr]
    assert plan_step(replace(view, listing=None)) == ListBalancers()
    own = make_service(finalizer=True, is_deleting=True)
    foreign = replace(own, metadata=replace(own.metadata, finalizers=(CLEANUP_FINALIZER,)))
    assert blocked_reason(plan_step(make_view(foreign, listing=EMPTY))) == "OtherController"
    assert plan_step(make_view(own, listing=EMPTY)) == ReleaseService()
    assert plan_step(make_view(own, FOUND, listing=make_listing(BALANCER))) == DeleteBalancer("1")


# ---- creation


def test_a_create_is_recorded_with_the_finalizer_before_it_is_sent():
    service = make_service()
    assert plan_step(make_view(service)) == ListBalancers()
    step = plan_step(make_view(service, listing=EMPTY))
    assert step == RecordBalancer(RESERVED)
    memory = remember_confirmed(Memory(led_since=LONG_AGO), RecordBalancer(RESERVED))
    selection = TargetSelection(targets=frozenset({NODE}), is_complete=True)
    view = make_view(make_service(record=RESERVED), memory=memory, selection=selection)
    assert plan_step(view) == CreateBalancer(desired="v1", targets=(NODE,))


@pytest.mark.parametrize(
    "changes",
    [
        {"service": make_service()},  # a stale view: the record is not there
        {"service": make_service(record=RESERVED, finalizer=False)},
        {"memory": Memory(led_since=LONG_AGO)},  # another process recorded it
        {"memory": replace(UNSENT, attempt=CreateAttempt(deadline=at(59)))},
        {"now": at(31)},  # the create would end after the recorded deadline
    ],
)
def test_nothing_is_created_without_a_confirmed_finalizer_and_an_own_deadline(changes: dict[str, Any]):
    fields = {"service": make_service(record=RESERVED), "memory": UNSENT, "listing": EMPTY} | changes
    assert not isinstance(plan_step(make_view(**fields)), CreateBalancer)


def test_a_create_waits_for_the_look_for_the_anchor_without_which_its_record_proves_nothing():
    missing = Unanswered("forbidden", "HTTP 403")
    step = plan_step(make_view(make_service(), listing=EMPTY, anchor=missing))
    assert step == Wait(at(10), AnchorUnknown("HTTP 403"))
    lacking = wait_reason(plan_step(make_view(make_service(), listing=EMPTY, anchor=None)))
    assert lacking == AnchorUnknown("the credential does not find it")
    kept = make_view(make_service(record=RECORDED), FOUND, listing=make_listing(BALANCER), anchor=missing)
    assert plan_step(kept) == WriteStatus(ingress=(ADDRESS,), condition=None), "the recorded anchor stays"


def test_the_id_of_a_created_balancer_is_recorded():
    memory = remember_create(WriteSuccess(balancer_id="1"))
    assert plan_step(make_view(make_service(record=RESERVED), memory=memory)) == RecordBalancer(RECORDED)


@pytest.mark.parametrize("result", [UnknownOutcome(reason="no answer"), "of another process"])
def test_a_create_of_unknown_result_is_repeated_only_after_a_late_listing_shows_nothing(result: Any):
    is_own = isinstance(result, UnknownOutcome)
    memory = remember_create(result) if is_own else Memory(led_since=LONG_AGO)
    service = make_service(record=RESERVED)
    settled_at = 60 + 60
    fields: dict[str, Any] = {"memory": memory, "lease_until": at(1000)}
    early = make_view(service, now=at(20), listing=make_listing(at_second=5), **fields)
    assert plan_step(early) == Wait(at(65), WriteUnsettled())
    before = make_view(service, now=at(119), listing=make_listing(at_second=100), **fields)
    assert plan_step(before) == Wait(at(settled_at), WriteUnsettled())
    after = make_view(service, now=at(121), listing=make_listing(at_second=119), **fields)
    assert plan_step(after) == ListBalancers()
    witness = make_anchor_lookup(at_second=122)
    late = make_view(
        service, now=at(122), listing=make_listing(at_second=121), anchor_lookup=witness, **fields
    )
    step = plan_step(late)
    assert isinstance(step, RecordBalancer)
    assert step.record == replace(RESERVED, create_deadline=at(122 + 60))


def test_a_create_of_a_process_whose_clock_is_behind_may_take_effect_a_minute_after_it_led():
    memory = Memory(led_since=at(100))
    service = make_service(record=RESERVED)
    view = make_view(service, now=at(150), memory=memory, listing=make_listing(at_second=149))
    assert plan_step(view) == Wait(at(160), WriteUnsettled())
    late = replace(view, now=at(161), listing=make_listing(at_second=160))
    assert plan_step(late) == ReadAnchor(ANCHOR)


def test_a_create_of_unknown_result_that_is_listed_is_recorded():
    memory = remember_create(UnknownOutcome(reason="no answer"))
    service = make_service(record=RESERVED)
    assert (
        plan_step(make_view(service, now=at(1), memory=memory, listing=make_listing(at_second=-1)))
        == ListBalancers()
    )
    view = make_view(service, now=at(2), memory=memory, listing=make_listing(BALANCER, at_second=1))
    assert plan_step(view) == RecordBalancer(RECORDED)


def test_an_absent_balancer_proves_nothing_by_the_credential_of_another_project():
    service = make_service(record=RESERVED)
    fields: dict[str, Any] = {"now": at(125), "listing": make_listing(at_second=121), "lease_until": at(1000)}
    assert plan_step(make_view(service, **fields)) == ReadAnchor(ANCHOR)
    before = make_anchor_lookup(at_second=120)
    assert plan_step(make_view(service, anchor_lookup=before, **fields)) == ReadAnchor(ANCHOR)
    elsewhere = make_anchor_lookup(NotFound(), at_second=122)
    assert (
        blocked_reason(plan_step(make_view(service, anchor_lookup=elsewhere, **fields))) == "ProjectNotProven"
    )
    silent = make_anchor_lookup(SILENCE, at_second=122)
    view = make_view(service, anchor_lookup=silent, **fields)
    assert plan_step(view) == Wait(at(132), Unready(SILENCE))
    assert plan_step(replace(view, now=at(132))) == ReadAnchor(ANCHOR)


def test_the_credential_that_sent_a_create_needs_no_witness_for_its_absence():
    memory = remember_create(UnknownOutcome(reason="no answer"))
    fields: dict[str, Any] = {"now": at(125), "memory": memory, "lease_until": at(1000)}
    service = make_service(record=RESERVED)
    own = make_view(service, listing=make_listing(at_second=121), **fields)
    assert isinstance(plan_step(own), RecordBalancer)
    other = make_listing(at_second=121, generation=2)
    renewed = make_view(service, listing=other, credential=RENEWED, **fields)
    assert plan_step(renewed) == ReadAnchor(ANCHOR)


@pytest.mark.parametrize(
    "service", [make_service(), make_service(record=RESERVED), make_service(finalizer=True, is_deleting=True)]
)
def test_a_listing_without_an_answer_proves_nothing(service: Any):
    view = make_view(service, listing=make_listing(answer=SILENCE))
    assert plan_step(view) == Wait(at(10), Unready(SILENCE))
    assert plan_step(replace(view, now=at(10))) == ListBalancers()
    recorded = make_view(make_recorded(), FOUND, listing=make_listing(answer=SILENCE))
    assert isinstance(wait_reason(plan_step(recorded)), Settled)


def test_a_rejected_create_is_repeated_after_a_pause_with_another_deadline():
    memory = remember_create(WriteRejection(kind="limit", reason="5 of 5 balancers", retry_after_seconds=20))
    service = make_service(record=RESERVED)
    listing = make_listing(at_second=1)
    paused = plan_step(make_view(service, now=at(2), memory=memory, listing=listing))
    assert paused == WriteStatus(
        ingress=None,
        condition=BlockedCondition(
            reason="CloudRejected", message="the cloud does not accept a change: 5 of 5 balancers"
        ),
    )
    told = make_service(record=RESERVED, condition=paused.condition)
    assert wait_reason(plan_step(make_view(told, now=at(2), memory=memory, listing=listing))) == Rejected(
        "limit", "5 of 5 balancers"
    )
    step = plan_step(make_view(service, now=at(21), memory=memory, listing=listing))
    assert step == RecordBalancer(replace(RESERVED, create_deadline=at(21 + 60)))


@pytest.mark.parametrize("service", [make_service(), make_service(record=RESERVED)])
def test_an_invalid_field_prevents_the_creation(service: Any):
    view = make_view(service, memory=UNSENT, listing=EMPTY, parsed=make_invalid())
    step = plan_step(view)
    assert blocked_reason(step) == "InvalidField"
    told = make_service(
        record=RESERVED if service.metadata.finalizers else None,
        condition=step.condition,  # type: ignore[union-attr]
    )
    reason = wait_reason(plan_step(replace(view, service=told)))
    assert reason == InvalidFields(make_invalid().invalid)


@pytest.mark.parametrize("record", [None, RESERVED])
@pytest.mark.parametrize("state", ["unsent", "rejected"])
def test_addresses_of_another_controller_stop_the_creation(record: BalancerRecord | None, state: Any):
    service = make_service(record=record, ingress=(ADDRESS,))
    memory = replace(UNSENT, attempt=CreateAttempt(deadline=DEADLINE, state=state))
    view = make_view(service, memory=memory, listing=EMPTY)
    assert blocked_reason(plan_step(view)) == "OtherController"


def test_nothing_is_created_before_all_names_are_known():
    for service in (make_service(), make_service(record=RESERVED)):
        view = make_view(service, memory=UNSENT, listing=EMPTY, parsed=SILENCE)
        assert plan_step(view) == Wait(at(10), Unready(SILENCE))


def test_what_a_balancer_needs_first_is_made_before_it_and_after_all_other_changes():
    needing = ParsedRequest(desired="v1", needed="a certificate")
    step = ChangeBalancer(balancer_id="", change="a certificate")
    for service in (make_service(), make_service(record=RESERVED)):
        assert plan_step(make_view(service, memory=UNSENT, listing=EMPTY, parsed=needing)) == step
    listing = make_listing(BALANCER)
    view = make_view(make_recorded(), FOUND, listing=listing, parsed=needing)
    assert plan_step(view) == step
    drifted = make_lookup("1", make_balancer(details="v0"))
    view = make_view(make_recorded(), drifted, listing=listing, parsed=needing)
    assert plan_step(view) == ChangeBalancer(balancer_id="1", change="set v1")


def test_a_create_of_before_says_nothing_about_a_later_record():
    memory = remember_create(WriteSuccess(balancer_id="1"), ended_at=at(-1))
    later = make_service(record=replace(RECORDED, id="9"), is_deleting=True)
    assert plan_step(make_view(later, memory=memory)) == ReadBalancer("9")
    reserved = make_service(record=replace(RESERVED, create_deadline=at(59)), is_deleting=True)
    assert plan_step(make_view(reserved, memory=memory)) == ListBalancers()


def test_the_oldest_balancer_is_recorded_if_none_is():
    young, old = make_balancer("1", created_at=at(-10)), make_balancer("2", created_at=at(-20))
    other = make_balancer("3", created_at=at(-30), owner=OTHER_OWNER)
    service = make_service(ingress=(ADDRESS,))  # its record was removed
    step = plan_step(make_view(service, listing=make_listing(young, old, other)))
    assert step == RecordBalancer(replace(RECORDED, id="2"))


def test_a_balancer_with_tags_of_another_controller_is_not_recorded():
    listing = make_listing(make_balancer(has_foreign_tags=True))
    assert blocked_reason(plan_step(make_view(make_service(), listing=listing))) == "OtherController"


# ---- an existing balancer


def make_recorded(**changes: Any) -> Any:
    fields: dict[str, Any] = {"record": RECORDED, "ingress": (ADDRESS,)}
    return make_service(**(fields | changes))


def test_an_idle_balancer_needs_one_listing_a_minute_and_no_other_request():
    view = make_view(make_recorded(), listing=make_listing(BALANCER))
    step = plan_step(view)
    assert isinstance(wait_reason(step), Settled)
    assert step == Wait(at(60), step.reason)  # type: ignore[union-attr]
    assert plan_step(replace(view, now=at(60))) == ListBalancers(reads_parts=False)


def test_a_difference_in_the_list_is_confirmed_by_id_before_it_is_changed():
    drifted = make_balancer(details="v0")
    view = make_view(make_recorded(), listing=make_listing(drifted))
    assert plan_step(view) == ReadBalancer("1")
    confirmed = make_view(make_recorded(), make_lookup("1", drifted), listing=make_listing(drifted))
    assert plan_step(confirmed) == ChangeBalancer(balancer_id="1", change="set v1")
    old = make_view(make_recorded(), make_lookup("1", drifted), now=at(11), listing=make_listing(drifted))
    assert plan_step(old) == ReadBalancer("1")


def test_a_new_node_costs_two_reads_beside_its_change():
    selection = TargetSelection(targets=frozenset({NODE}), is_complete=True)
    fields: dict[str, Any] = {"selection": selection, "listing": make_listing(BALANCER)}
    service = make_recorded()
    assert plan_step(make_view(service, **fields)) == ReadBalancer("1")
    change = ChangeBalancer(balancer_id="1", change="add 1")
    assert plan_step(make_view(service, FOUND, **fields)) == change
    memory = remember_write(
        Memory(led_since=LONG_AGO), change, WriteSuccess(), deadline=at(30), ended_at=at(1), generation=1
    )
    assert plan_step(make_view(service, FOUND, now=at(2), memory=memory, **fields)) == ReadBalancer("1")
    changed = make_lookup("1", make_balancer(targets=(NODE,)), at_second=2)
    step = plan_step(make_view(service, changed, now=at(3), memory=memory, **fields))
    assert isinstance(wait_reason(step), Settled)


def test_many_services_look_at_their_balancers_and_at_their_changes_by_one_listing():
    fields: dict[str, Any] = {
        "selection": TargetSelection(targets=frozenset({NODE}), is_complete=True),
        "planner": _OutlivingParts(),
        "shares_listing": True,
    }
    change = ChangeBalancer(balancer_id="1", change="add 1")
    view = make_view(make_recorded(), listing=make_listing(BALANCER), **fields)
    assert plan_step(replace(view, now=at(9))) == change
    assert plan_step(replace(view, now=at(10))) == ListBalancers(), "the look is too old"
    without_parts = replace(view, listing=make_listing(BALANCER, parts_at_second=-20))
    assert plan_step(without_parts) == Wait(at(5), ListedSoon())
    assert plan_step(replace(without_parts, now=at(5))) == ListBalancers()
    memory = remember_write(
        Memory(led_since=LONG_AGO), change, WriteSuccess(), deadline=at(30), ended_at=at(1), generation=1
    )
    after = replace(view, memory=memory, now=at(2))
    assert plan_step(after) == Wait(at(5), ListedSoon())
    assert plan_step(replace(after, now=at(5))) == ListBalancers()
    changed = make_listing(make_balancer(targets=(NODE,)), at_second=5)
    assert isinstance(wait_reason(plan_step(replace(after, now=at(5), listing=changed))), Settled)
    unchanged = replace(after, now=at(5), listing=make_listing(BALANCER, at_second=5))
    assert isinstance(wait_reason(plan_step(unchanged)), Rejected), "it may show the change a moment later"


def test_many_services_read_each_balancer_while_no_listing_shows_it():
    selection = TargetSelection(targets=frozenset({NODE}), is_complete=True)
    view = make_view(make_recorded(), FOUND, selection=selection, shares_listing=True, now=at(10))
    for listing in (make_listing(answer=SILENCE, at_second=9), make_listing(at_second=9)):
        assert plan_step(replace(view, listing=listing)) == ReadBalancer("1")


def test_a_double_is_read_by_its_id_before_its_end_also_where_many_services_share_a_listing():
    listing = make_listing(BALANCER, make_balancer("2"), at_second=9)
    view = make_view(make_recorded(), listing=listing, shares_listing=True, now=at(10))
    assert plan_step(view) == ReadBalancer("2")
    view = replace(view, lookups={"2": make_lookup("2", make_balancer("2"), at_second=10)})
    assert plan_step(view) == DeleteBalancer("2", is_double=True)
    later = replace(view, now=at(20), listing=replace(listing, ended_at=at(19)))
    assert plan_step(later) == ReadBalancer("2")


def test_a_rejected_change_blocks_no_other_one():
    drifted = make_balancer(details="v0")
    selection = TargetSelection(targets=frozenset({NODE}), is_complete=True)
    change = ChangeBalancer(balancer_id="1", change="add 1")
    memory = remember_write(
        Memory(led_since=LONG_AGO),
        change,
        WriteRejection(kind="limit", reason="25 of 25 targets"),
        deadline=at(30),
        ended_at=NOW,
        generation=1,
    )
    fields: dict[str, Any] = {"selection": selection, "listing": make_listing(drifted), "memory": memory}
    service = make_recorded()
    step = plan_step(make_view(service, make_lookup("1", drifted), **fields))
    assert step == ChangeBalancer(balancer_id="1", change="set v1")
    done = make_view(service, FOUND, **fields)
    assert blocked_reason(plan_step(done)) == "CloudRejected"
    assert plan_step(replace(done, now=at(5))) == change  # the first pause is over
    assert plan_step(replace(done, credential=RENEWED)) == ListBalancers()
    renewed = make_view(
        service,
        make_lookup("1", BALANCER, generation=2),
        credential=RENEWED,
        **(fields | {"listing": make_listing(BALANCER, generation=2)}),
    )
    assert plan_step(renewed) == change  # the rejection was the old credential's


def reject_target(memory: Memory, *, target: Target | None = NODE, ended_at: Any = NOW) -> Memory:
    return remember_write(
        memory,
        ChangeBalancer(balancer_id="1", change="add 1"),
        WriteRejection(kind="invalid", reason="not_found", target=target),
        deadline=at(30),
        ended_at=ended_at,
        generation=1,
    )


def view_rejected_target(memory: Memory, *, found: Any = BALANCER, **changes: Any) -> Any:
    selection = TargetSelection(targets=frozenset({NODE, Target(instance_id="2")}), is_complete=True)
    fields: dict[str, Any] = {"selection": selection, "listing": make_listing(found), "memory": memory}
    return make_view(make_recorded(), make_lookup("1", found), **(fields | changes))


WITH_SECOND = make_balancer(targets=(Target(instance_id="2"),))


def test_a_rejected_target_is_left_out_and_blocks_no_other_change():
    memory = reject_target(Memory(led_since=LONG_AGO))
    drifted = make_balancer(details="v0")
    assert plan_step(view_rejected_target(memory, found=drifted)) == ChangeBalancer(
        balancer_id="1", change="add 2"
    )
    ported = replace(drifted, targets=WITH_SECOND.targets)
    assert plan_step(view_rejected_target(memory, found=ported)) == ChangeBalancer(
        balancer_id="1", change="set v1"
    )
    step = plan_step(view_rejected_target(memory, found=WITH_SECOND))
    settled = wait_reason(step)
    assert isinstance(settled, Settled)
    assert (settled.left_out, settled.targets) == (
        (LeftOutTarget(NODE, "not_found"),),
        WITH_SECOND.targets,
    )
    assert settled.condition_reason == ""


def test_a_rejected_target_is_retried_with_growing_pauses():
    memory = reject_target(Memory(led_since=LONG_AGO))
    step = plan_step(view_rejected_target(memory, found=WITH_SECOND))
    assert isinstance(step, Wait)
    assert step.until == at(5)
    again = view_rejected_target(memory, found=WITH_SECOND, now=at(5))
    assert plan_step(again) == ChangeBalancer(balancer_id="1", change="add 1")
    memory = reject_target(memory, ended_at=at(5))
    assert memory.pauses[0].until == at(15)


def test_a_target_that_the_cloud_accepts_is_left_out_no_more():
    memory = reject_target(Memory(led_since=LONG_AGO))
    both = replace(WITH_SECOND, targets=(NODE, *WITH_SECOND.targets))
    settled = wait_reason(plan_step(view_rejected_target(memory, found=both)))
    assert (settled.left_out, settled.targets) == ((), both.targets)


def test_a_rejection_that_names_no_target_blocks_the_service():
    memory = reject_target(Memory(led_since=LONG_AGO), target=None)
    assert blocked_reason(plan_step(view_rejected_target(memory, found=WITH_SECOND))) == "CloudRejected"


def test_a_rejected_target_hides_no_other_rejection():
    memory = remember_write(
        reject_target(Memory(led_since=LONG_AGO)),
        ChangeBalancer(balancer_id="1", change="set v1"),
        WriteRejection(kind="limit", reason="5 of 5 ports"),
        deadline=at(30),
        ended_at=NOW,
        generation=1,
    )
    step = plan_step(view_rejected_target(memory, found=replace(WITH_SECOND, details="v0")))
    assert blocked_reason(step) == "CloudRejected"


def test_a_balancer_that_is_not_found_is_no_rejected_target():
    memory = reject_target(Memory(led_since=LONG_AGO), ended_at=at(1))
    before = view_rejected_target(memory, found=WITH_SECOND, now=at(2))
    assert plan_step(before) == ReadBalancer("1")  # what was found before the answer is void
    gone = replace(before, lookups={"1": make_lookup("1", NotFound(), at_second=2)})
    assert plan_step(gone) == ReadAnchor(ANCHOR)


def test_a_service_with_a_rejected_target_ends():
    memory = reject_target(Memory(led_since=LONG_AGO))
    ending = make_service(record=RECORDED, is_deleting=True)
    view = replace(view_rejected_target(memory), service=ending)
    assert plan_step(view) == DeleteBalancer("1")


def test_a_change_of_unknown_result_is_not_repeated_for_a_minute_after_its_deadline():
    drifted = make_balancer(details="v0")
    change = ChangeBalancer(balancer_id="1", change="set v1")
    memory = remember_write(
        Memory(led_since=LONG_AGO),
        change,
        UnknownOutcome(reason="no answer"),
        deadline=at(30),
        ended_at=at(10),
        generation=1,
    )
    fields: dict[str, Any] = {"memory": memory, "lease_until": at(1000)}

    def plan_at(second: float, generation: int = 1) -> Any:
        view = make_view(
            make_recorded(),
            make_lookup("1", drifted, at_second=second, generation=generation),
            now=at(second),
            listing=make_listing(drifted, at_second=second - 1, generation=generation),
            credential=RENEWED if generation == 2 else CREDENTIAL,
            **fields,
        )
        return plan_step(view)

    assert wait_reason(plan_at(20)) == Rejected(None, "no answer")
    assert wait_reason(plan_at(89, generation=2)) == Rejected(None, "no answer")
    assert plan_at(90) == change


def test_a_change_that_is_needed_again_after_it_took_effect_is_made_at_once():
    change = ChangeBalancer(balancer_id="1", change="set v1")
    memory = remember_write(
        Memory(led_since=LONG_AGO), change, WriteSuccess(), deadline=at(30), ended_at=at(-1), generation=1
    )
    drifted = make_balancer(details="v0")
    view = make_view(make_recorded(), make_lookup("1", drifted), listing=make_listing(drifted), memory=memory)
    assert wait_reason(plan_step(view)) == Rejected("busy", "it accepted set v1, and shows another value")
    assert plan_step(replace(view, memory=remember_settled(memory))) == change


def test_pauses_grow_until_five_minutes():
    change = ChangeBalancer(balancer_id="1", change="set v1")
    memory, seconds = Memory(led_since=LONG_AGO), []
    now = NOW
    for _ in range(9):
        rejection = WriteRejection(kind="limit", reason="quota")
        memory = remember_write(memory, change, rejection, deadline=now, ended_at=now, generation=1)
        seconds.append((memory.pauses[0].until - now).total_seconds())
        now = memory.pauses[0].until
    assert seconds == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    memory = remember_write(memory, change, WriteSuccess(), deadline=now, ended_at=now, generation=1)
    assert (memory.pauses[0].until - now).total_seconds() == 5


def test_a_change_that_the_cloud_accepts_and_does_not_show_is_repeated_with_growing_pauses():
    drifted, change = make_balancer(details="v0"), ChangeBalancer(balancer_id="1", change="set v1")
    memory, second, pauses = Memory(led_since=LONG_AGO), 0.0, []
    for _ in range(4):
        now = at(second)
        view = make_view(
            make_recorded(),
            make_lookup("1", drifted, at_second=second),
            now=now,
            listing=make_listing(drifted, at_second=second),
            memory=memory,
            lease_until=at(1000),
        )
        assert plan_step(view) == change
        memory = remember_write(memory, change, WriteSuccess(), deadline=now, ended_at=now, generation=1)
        step = plan_step(replace(view, memory=memory))
        assert isinstance(step, Wait | WriteStatus)
        pauses.append((memory.pauses[0].until - now).total_seconds())
        second += pauses[-1]
    assert pauses == [5, 10, 20, 40]
    assert blocked_reason(step) == "CloudRejected"


@pytest.mark.parametrize("second", [WRITE_SECONDS - 1, WRITE_SECONDS])
def test_a_write_begins_only_if_the_lease_outlives_its_deadline(second: float):
    drifted = make_balancer(details="v0")
    views = {
        "create": make_view(make_service(record=RESERVED), memory=UNSENT),
        "change": make_view(make_recorded(), make_lookup("1", drifted), listing=make_listing(drifted)),
        "delete": make_view(make_service(record=RECORDED, is_deleting=True), FOUND),
    }
    for view in views.values():
        step = plan_step(replace(view, lease_until=at(second)))
        if second < WRITE_SECONDS:
            assert wait_reason(step) == LeaseTooShort()
        else:
            assert isinstance(step, CreateBalancer | ChangeBalancer | DeleteBalancer)


@pytest.mark.parametrize("result", [WriteSuccess(), NotFound()])
def test_a_balancer_that_the_cloud_still_shows_is_deleted_again_with_growing_pauses(result: Any):
    memory, now, deletes = Memory(led_since=LONG_AGO), 0.0, []
    while now < 40:
        view = make_view(ENDINGS["deleted"], make_lookup("1", BALANCER, at_second=now), memory=memory)
        step = plan_step(replace(view, now=at(now), listing=make_listing(BALANCER, at_second=now)))
        if isinstance(step, DeleteBalancer):
            deletes.append(now)
            memory = remember_write(memory, step, result, deadline=at(now), ended_at=at(now), generation=1)
        now += 1
    assert deletes == [0, 5, 15, 35]


def test_a_deletion_that_takes_effect_at_once_is_not_made_again():
    memory = Memory(led_since=LONG_AGO)
    step = DeleteBalancer("1")
    memory = remember_write(memory, step, WriteSuccess(), deadline=at(1), ended_at=at(1), generation=1)
    view = make_view(ENDINGS["deleted"], FOUND, now=at(1), memory=memory, listing=make_listing(BALANCER))
    assert plan_step(view) == ReadBalancer("1")
    gone = replace(view, lookups={"1": make_lookup("1", NotFound(), at_second=1)})
    assert plan_step(gone) == ListBalancers()
    assert plan_step(replace(gone, listing=make_listing(at_second=1))) == ReleaseService()


def test_a_busy_balancer_is_not_changed():
    busy = make_balancer(details="v0", is_busy=True)
    view = make_view(make_recorded(), make_lookup("1", busy), listing=make_listing(busy))
    assert wait_reason(plan_step(view)) == Busy("1")


@pytest.mark.parametrize("changes", [{"owner": OTHER_OWNER}, {"owner": None}, {"has_foreign_tags": True}])
@pytest.mark.parametrize("is_deleting", [True, False])
def test_a_recorded_balancer_with_other_tags_is_not_touched(changes: dict[str, Any], is_deleting: bool):
    other = make_balancer(details="v0", **changes)
    view = make_view(
        make_recorded(is_deleting=is_deleting, ingress=()),
        make_lookup("1", other),
        listing=make_listing(other),
    )
    step = plan_step(view)
    if is_deleting and "owner" in changes:
        assert step == ReleaseService(kept="1")
    else:
        assert blocked_reason(step) == "OtherController"


def test_a_double_is_deleted_if_the_recorded_balancer_exists():
    double = make_balancer("2", created_at=at(-99))
    listing = make_listing(BALANCER, double)
    service = make_recorded()
    assert plan_step(make_view(service, listing=listing)) == ReadBalancer("2")
    found = make_lookup("2", double)
    assert plan_step(make_view(service, found, listing=listing)) == DeleteBalancer("2", is_double=True)
    untagged = make_lookup("2", replace(double, owner=None))
    assert isinstance(wait_reason(plan_step(make_view(service, untagged, listing=listing))), Settled)
    gone = make_lookup("2", NotFound())
    assert isinstance(wait_reason(plan_step(make_view(service, gone, listing=listing))), Settled)
    drifted = make_lookup("1", make_balancer(details="v0"))
    assert isinstance(plan_step(make_view(service, found, drifted, listing=listing)), DeleteBalancer)
    deleted = Memory(led_since=LONG_AGO, deleted=frozenset({("2", 1)}))
    listed_late = make_view(service, memory=deleted, listing=listing)
    assert isinstance(wait_reason(plan_step(listed_late)), Settled)
    missing = make_view(service, found, MISSING, listing=make_listing(double))
    assert plan_step(missing) == ReadAnchor(ANCHOR)


def test_a_double_that_cannot_be_deleted_now_delays_no_change():
    double = make_balancer("2")
    memory = remember_write(
        Memory(led_since=LONG_AGO),
        DeleteBalancer("2", is_double=True),
        WriteRejection(kind="in_use", reason="protected"),
        deadline=at(30),
        ended_at=at(-1),
        generation=1,
    )
    drifted = make_lookup("1", make_balancer(details="v0"))
    view = make_view(
        make_recorded(),
        drifted,
        make_lookup("2", double),
        memory=memory,
        listing=make_listing(BALANCER, double),
    )
    assert plan_step(view) == ChangeBalancer(balancer_id="1", change="set v1")


def test_a_lost_finalizer_is_added_again():
    view = make_view(make_recorded(finalizer=False), listing=make_listing(BALANCER))
    assert plan_step(view) == RecordBalancer(RECORDED)


def test_the_anchor_is_recorded_again_when_the_account_has_another_one():
    anchor = InstanceAnchor(kind="network", id="4712")
    view = make_view(make_recorded(), anchor=anchor, listing=make_listing(BALANCER))
    assert plan_step(view) == RecordBalancer(replace(RECORDED, anchor=anchor))
    unknown = make_view(make_recorded(), anchor=None, listing=make_listing(BALANCER))
    assert isinstance(wait_reason(plan_step(unknown)), Settled)


def test_a_balancer_that_vanished_is_replaced_after_a_witness():
    missing = make_lookup("1", NotFound(), at_second=2)
    view = make_view(make_recorded(), FOUND, now=at(3), listing=make_listing(at_second=1))
    assert plan_step(view) == ReadBalancer("1")  # the listing is newer than what was found by id
    view = replace(view, lookups={"1": missing})
    assert plan_step(view) == ReadAnchor(ANCHOR)
    proven = replace(view, anchor_lookups={ANCHOR: make_anchor_lookup(at_second=3)})
    listed = replace(proven, listing=make_listing(BALANCER, at_second=1))
    assert plan_step(listed) == Wait(at(6), ListedLate())
    assert plan_step(replace(listed, now=at(6))) == ListBalancers()
    assert plan_step(proven) == WriteStatus(ingress=(), condition=None)
    without_address = replace(proven, service=make_recorded(ingress=()))
    assert plan_step(replace(without_address, parsed=make_invalid())) == ReleaseService()
    assert plan_step(without_address) == RecordBalancer(replace(RESERVED, create_deadline=at(63)))


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (WriteSuccess(balancer_id="1"), RecordBalancer(RECORDED)),
        (UnknownOutcome(reason="lost"), Wait(at(61), WriteUnsettled())),
        (WriteRejection(kind="limit", reason="quota", retry_after_seconds=0), RecordBalancer(RESERVED)),
    ],
)
def test_this_process_knows_of_its_create_even_if_a_user_removes_the_record(result: Any, expected: Any):
    memory = remember_create(result)
    view = make_view(make_service(), memory=memory, now=at(1), listing=make_listing(at_second=1))
    step = plan_step(view)
    if isinstance(step, RecordBalancer) and isinstance(result, WriteRejection):
        assert step.record.create_deadline == at(61)
    else:
        assert step == expected
    ending = make_service(finalizer=True, is_deleting=True)
    step = plan_step(replace(view, service=ending))
    is_over = isinstance(result, WriteRejection)
    assert isinstance(step, ReleaseService) is is_over
    released = remember_confirmed(memory, ReleaseService())
    assert released.attempt is None


# ---- the status


def test_the_addresses_are_written_and_repaired():
    view = make_view(make_service(record=RECORDED), FOUND, listing=make_listing(BALANCER))
    assert plan_step(view) == WriteStatus(ingress=(ADDRESS,), condition=None)
    other = make_service(record=RECORDED, ingress=(replace(ADDRESS, ip="192.0.2.9"),))
    assert plan_step(replace(view, service=other)) == WriteStatus(ingress=(ADDRESS,), condition=None)
    proxy = make_service(record=RECORDED, ingress=(replace(ADDRESS, is_proxy=True),))
    assert plan_step(replace(view, service=proxy)) == WriteStatus(ingress=(ADDRESS,), condition=None)


def test_kubernetes_that_stores_no_ip_mode_shows_our_status():
    written = replace(ADDRESS, is_proxy=True)
    memory = Memory(led_since=LONG_AGO, ingress=(written,))
    service = make_service(record=RECORDED, ingress=(ADDRESS,))
    stored = replace(
        service,
        status=replace(
            service.status, load_balancer=LoadBalancerStatus(ingress=(LoadBalancerIngress(ip=ADDRESS.ip),))
        ),
    )
    listing = make_listing(BALANCER)
    seen = make_view(stored, FOUND, listing=listing, memory=memory, planner=ProxyPlanner())
    assert isinstance(wait_reason(plan_step(seen)), Settled)
    ending = replace(stored, metadata=replace(stored.metadata, deletion_timestamp=NOW))
    assert plan_step(replace(seen, service=ending)) == WriteStatus(ingress=(), condition=None)
    assert blocked_reason(plan_step(replace(seen, service=service))) == "OtherController", "it has a mode"


def test_a_status_that_another_controller_overwrites_stays_and_targets_follow_the_nodes():
    written = remember_confirmed(Memory(led_since=LONG_AGO), WriteStatus(ingress=(ADDRESS,), condition=None))
    other = make_service(record=RECORDED, ingress=(replace(ADDRESS, ip="192.0.2.9"),))
    view = make_view(other, FOUND, listing=make_listing(BALANCER), memory=written)
    assert blocked_reason(plan_step(view)) == "OtherController"
    left = make_lookup("1", make_balancer(targets=(NODE,)))
    assert plan_step(replace(view, lookups={"1": left})) == ChangeBalancer(balancer_id="1", change="remove 1")
    emptied = replace(view, service=make_service(record=RECORDED))
    assert plan_step(emptied) == WriteStatus(ingress=(ADDRESS,), condition=None)


def test_a_condition_goes_when_the_balancer_is_as_desired_and_stays_while_that_is_unknown():
    condition = BlockedCondition(reason="CloudRejected", message="quota")
    view = make_view(make_recorded(condition=condition), listing=make_listing(BALANCER))
    assert plan_step(view) == WriteStatus(ingress=None, condition=None)
    silent = replace(view, parsed=SILENCE)
    assert wait_reason(plan_step(silent)) == Unready(SILENCE)


def test_invalid_fields_of_an_existing_balancer_are_told_and_other_changes_go_on():
    drifted = make_balancer(details="v0")
    view = make_view(
        make_recorded(), make_lookup("1", drifted), listing=make_listing(drifted), parsed=make_invalid()
    )
    assert plan_step(view) == ChangeBalancer(balancer_id="1", change="set v1")
    assert blocked_reason(plan_step(replace(view, lookups={"1": FOUND}))) == "InvalidField"


def test_a_credential_that_is_rejected_is_a_condition():
    rejected = Unanswered("unauthorized", "the token is not valid")
    view = make_view(make_recorded(), make_lookup("1", rejected), listing=make_listing(answer=rejected))
    assert blocked_reason(plan_step(view)) == "CredentialRejected"
    silent = make_view(make_recorded(), make_lookup("1", SILENCE), listing=make_listing(answer=SILENCE))
    assert plan_step(silent) == Wait(at(10), Unready(SILENCE))
    assert plan_step(replace(silent, now=at(10))) == ReadBalancer("1")


def test_addresses_that_this_process_wrote_are_its_own():
    memory = Memory(led_since=LONG_AGO, ingress=(ADDRESS,))
    view = make_view(make_recorded(), listing=make_listing(BALANCER), memory=memory)
    assert isinstance(wait_reason(plan_step(view)), Settled)
    moved = Memory(led_since=LONG_AGO, ingress=(replace(ADDRESS, ip="192.0.2.9"),))
    former = make_service(record=RECORDED, ingress=(replace(ADDRESS, ip="192.0.2.9"),))
    expected = WriteStatus(ingress=(ADDRESS,), condition=None)
    assert plan_step(replace(view, service=former, memory=moved)) == expected
    emptied = Memory(led_since=LONG_AGO, ingress=())
    ending = make_service(record=RECORDED, is_deleting=True)
    assert plan_step(make_view(ending, FOUND, memory=emptied)) == DeleteBalancer("1")


def test_what_another_hand_has_changed_and_is_left_so_is_reported():
    changed = make_balancer(warnings=("moved",))
    step = plan_step(make_view(make_recorded(), listing=make_listing(changed)))
    assert wait_reason(step).warnings == ("moved",)


@pytest.mark.parametrize("details", ["v1", "v2"])
def test_a_balancer_that_stays_busy_is_reported_after_a_quarter_of_an_hour(details: str):
    service = make_service(record=RECORDED, ingress=(ADDRESS,))
    for seconds, since in ((899, None), (900, at(-900))):
        busy = make_balancer(is_busy=True, busy_since=at(-seconds), details=details)
        step = plan_step(make_view(service, make_lookup("1", busy), listing=make_listing(busy)))
        if details == "v2" or since is not None:
            assert step == Wait(at(10), Busy("1", since))
        else:
            assert isinstance(wait_reason(step), Settled)
    ending = make_view(ENDINGS["deleted"], make_lookup("1", busy), listing=make_listing(busy))
    assert wait_reason(plan_step(ending)) == Busy("1", at(-900))


def test_a_cloud_may_set_the_time_after_which_a_busy_balancer_is_reported():
    busy = make_balancer(is_busy=True, busy_since=at(-300), details="v2")
    parsed = ParsedRequest(desired="v1", busy_seconds=300)
    service, found = ENDINGS["deleted"], make_lookup("1", busy)
    for changes, since in (({}, None), ({"parsed": parsed}, at(-300)), ({"parsed": SILENCE}, None)):
        view = make_view(service, found, listing=make_listing(busy), **changes)
        assert wait_reason(plan_step(view)) == Busy("1", since)


# ---- a balancer that the cloud fails to build

BUILDING = replace(RECORDED, is_building=True)
FAILED = make_balancer(has_failed=True)
REPLACE = DeleteBalancer("1", has_failed=True)


def test_a_created_balancer_that_the_cloud_still_builds_is_recorded_as_such_until_it_is_ready():
    memory = remember_create(WriteSuccess(balancer_id="1", is_building=True), ended_at=at(-1))
    step = plan_step(make_view(make_service(record=RESERVED), memory=memory))
    assert step == RecordBalancer(BUILDING)
    building = make_balancer(is_busy=True, is_building=True)
    found = plan_step(make_view(make_service(), listing=make_listing(building)))
    assert found == RecordBalancer(BUILDING)
    service = make_service(record=BUILDING)
    waiting = make_view(service, make_lookup("1", building), listing=make_listing(building))
    assert not isinstance(plan_step(waiting), RecordBalancer)
    ready = make_view(service, FOUND, listing=make_listing(BALANCER))
    assert plan_step(ready) == RecordBalancer(RECORDED)  # before its address is in the status
    remembered = remember_confirmed(memory, RecordBalancer(BUILDING))
    without_record = make_view(make_service(), memory=remembered)
    assert plan_step(without_record) == RecordBalancer(BUILDING)
    served = replace(without_record, memory=remember_confirmed(remembered, RecordBalancer(RECORDED)))
    assert plan_step(served) == RecordBalancer(RECORDED)  # also if a user removes the record


@pytest.mark.parametrize(
    ("service", "balancer"),
    [
        (make_service(record=RECORDED), FAILED),  # it was ready, or that is unknown
        (make_service(record=BUILDING, ingress=(ADDRESS,)), FAILED),
        (make_service(record=BUILDING), replace(FAILED, is_protected=True)),
    ],
)
def test_a_failed_balancer_that_may_have_served_stays_and_is_reported(service: Any, balancer: Any):
    step = plan_step(make_view(service, make_lookup("1", balancer), listing=make_listing(balancer)))
    assert isinstance(step, ChangeBalancer | WriteStatus)
    idle = make_view(
        service,
        make_lookup("1", balancer),
        listing=make_listing(balancer),
        parsed=ParsedRequest(desired=balancer.details),
        planner=_Refusing(),
    )
    assert blocked_reason(plan_step(idle)) == "CloudRejected"


class _Refusing(VersionPlanner):
    """A cloud that plans nothing for what has failed."""

    def plan_changes(self, desired: str, targets: Any, balancer: Any) -> tuple[str, ...]:
        return ()


def test_a_failed_balancer_of_another_owner_is_not_replaced():
    for changes in ({"owner": replace(OWNER, account="other")}, {"has_foreign_tags": True}, {"owner": None}):
        foreign = replace(FAILED, **changes)
        step = plan_step(
            make_view(make_service(record=BUILDING), make_lookup("1", foreign), listing=make_listing())
        )
        assert blocked_reason(step) == "OtherController"


def test_a_balancer_that_failed_before_it_was_ready_is_replaced_after_a_growing_pause():
    view = make_view(make_service(record=BUILDING), make_lookup("1", FAILED), listing=make_listing(FAILED))
    assert plan_step(view) == REPLACE
    memory = view.memory
    for pause in (5, 10, 20):
        memory = remember_write(memory, REPLACE, WriteSuccess(), deadline=at(30), ended_at=NOW, generation=1)
        gone = replace(view, memory=memory, lookups={"1": MISSING}, listing=EMPTY)
        step = plan_step(gone)
        assert blocked_reason(step) == "CloudRejected"
        assert plan_step(replace(gone, now=at(pause))) == RecordBalancer(
            replace(RESERVED, create_deadline=at(pause + 60))
        )
    assert remember_settled(memory).failed_builds == 0


# ---- the end

ENDINGS = {
    "deleted": make_service(record=RECORDED, is_deleting=True),
    "another type": make_service(record=RECORDED, kind="ClusterIP"),
    "another class": make_service(record=RECORDED, own_class="other"),
    "without a class": make_service(record=RECORDED, own_class=None),
    "without its finalizer": make_service(record=RECORDED, kind="ClusterIP", finalizer=False),
}


@pytest.mark.parametrize("service", ENDINGS.values(), ids=ENDINGS)
def test_the_finalizer_goes_after_our_delete_then_not_found_and_an_empty_list(service: Any):
    assert plan_step(make_view(service)) == ReadBalancer("1")
    delete = DeleteBalancer("1")
    assert plan_step(make_view(service, FOUND)) == delete
    memory = remember_write(
        Memory(led_since=LONG_AGO), delete, WriteSuccess(), deadline=at(30), ended_at=at(1), generation=1
    )
    fields: dict[str, Any] = {"now": at(3), "memory": memory}
    assert plan_step(make_view(service, MISSING, listing=EMPTY, **fields)) == ReadBalancer("1")
    gone = make_lookup("1", NotFound(), at_second=2)
    assert plan_step(make_view(service, gone, listing=EMPTY, **fields)) == ListBalancers()
    listed = make_view(service, gone, listing=make_listing(BALANCER, at_second=2), **fields)
    assert plan_step(listed) == Wait(at(7), ListedLate())
    assert plan_step(replace(listed, now=at(7))) == ListBalancers()
    empty = make_listing(at_second=2)
    assert plan_step(make_view(service, gone, listing=empty, **fields)) == ReleaseService()
    renewed = make_view(
        service,
        make_lookup("1", NotFound(), at_second=2, generation=2),
        listing=make_listing(at_second=2, generation=2),
        credential=RENEWED,
        **fields,
    )
    assert plan_step(renewed) == ReadAnchor(ANCHOR)


def test_not_found_after_a_delete_is_no_proof():
    memory = remember_write(
        Memory(led_since=LONG_AGO),
        DeleteBalancer("1"),
        NotFound(),
        deadline=at(30),
        ended_at=at(-1),
        generation=1,
    )
    view = make_view(ENDINGS["deleted"], MISSING, listing=EMPTY, memory=memory)
    assert plan_step(view) == ReadAnchor(ANCHOR)


@pytest.mark.parametrize(
    ("record", "changes", "expected"),
    [
        (RECORDED, {}, ReadAnchor(ANCHOR)),
        (RECORDED, {"anchor_lookup": make_anchor_lookup()}, ReleaseService()),
        (RECORDED, {"anchor_lookup": make_anchor_lookup(at_second=-1)}, ReadAnchor(ANCHOR)),
        (RECORDED, {"anchor_lookup": make_anchor_lookup(generation=2)}, ReadAnchor(ANCHOR)),
        (RECORDED, {"anchor_lookup": make_anchor_lookup(NotFound())}, "ProjectNotProven"),
        (UNANCHORED, {}, "ProjectNotProven"),
        (
            replace(RECORDED, anchor=InstanceAnchor(kind="network", id="f1")),
            {},
            ReadAnchor(InstanceAnchor(kind="network", id="f1")),
        ),
        (replace(RECORDED, anchor=InstanceAnchor(kind=CREDENTIAL_ANCHOR, id="f1")), {}, ReleaseService()),
        (replace(RECORDED, anchor=InstanceAnchor(kind=CREDENTIAL_ANCHOR, id="f2")), {}, "ProjectNotProven"),
        (
            replace(RECORDED, anchor=InstanceAnchor(kind=CREDENTIAL_ANCHOR, id="")),
            {"credential": Credential(1, NOW)},
            "ProjectNotProven",
        ),
    ],
)
def test_without_our_delete_not_found_needs_a_witness(record: Any, changes: dict[str, Any], expected: Any):
    service = make_service(record=record, is_deleting=True)
    step = plan_step(make_view(service, MISSING, listing=EMPTY, **changes))
    assert (blocked_reason(step) if isinstance(expected, str) else step) == expected


@pytest.mark.parametrize(
    "memory", [Memory(led_since=LONG_AGO), remember_create(UnknownOutcome(reason="lost"))]
)
def test_a_create_that_may_take_effect_keeps_the_finalizer(memory: Memory):
    service = make_service(record=RESERVED, is_deleting=True)
    view = make_view(service, now=at(100), memory=memory, listing=make_listing(at_second=90))
    assert plan_step(view) == Wait(at(120), WriteUnsettled())
    witness = make_anchor_lookup(at_second=121)
    late = make_view(
        service, now=at(122), memory=memory, listing=make_listing(at_second=121), anchor_lookup=witness
    )
    assert plan_step(late) == ReleaseService()


def test_a_create_that_was_not_sent_or_rejected_keeps_no_finalizer():
    service = make_service(record=RESERVED, is_deleting=True)
    rejected = remember_create(WriteRejection(kind="limit", reason="quota"), ended_at=at(-1))
    for memory in (UNSENT, rejected):
        assert plan_step(make_view(service, memory=memory, listing=EMPTY)) == ReleaseService()


def test_what_was_created_and_not_recorded_is_deleted():
    service = make_service(record=RESERVED, is_deleting=True)
    memory = remember_create(WriteSuccess(balancer_id="1"), ended_at=at(-1))
    assert plan_step(make_view(service, memory=memory)) == ReadBalancer("1")
    assert plan_step(make_view(service, FOUND, memory=memory)) == DeleteBalancer("1")


def test_every_balancer_of_the_service_is_deleted():
    double = make_balancer("2")
    memory = Memory(led_since=LONG_AGO, deleted=frozenset({("1", 1)}))
    fields: dict[str, Any] = {"memory": memory, "listing": make_listing(double)}
    service = ENDINGS["deleted"]
    assert plan_step(make_view(service, MISSING, **fields)) == ReadBalancer("2")
    assert plan_step(make_view(service, MISSING, make_lookup("2", double), **fields)) == DeleteBalancer("2")


def test_what_is_left_of_a_balancer_is_neither_recorded_nor_deleted_while_the_service_exists():
    remnant = make_balancer("address/1", is_remnant=True)
    absent = plan_step(make_view(make_service(), listing=make_listing(remnant)))
    assert isinstance(absent, RecordBalancer)
    assert absent.record.id == ""  # the deadline of a create
    present = make_view(make_recorded(), listing=make_listing(BALANCER, remnant))
    assert isinstance(wait_reason(plan_step(present)), Settled)


def test_what_is_left_of_a_balancer_is_deleted_before_the_finalizer_goes():
    remnant = make_balancer("address/1", is_remnant=True)
    memory = Memory(led_since=LONG_AGO, deleted=frozenset({("1", 1)}))
    fields: dict[str, Any] = {"memory": memory, "listing": make_listing(remnant)}
    found = make_lookup("address/1", remnant)
    step = plan_step(make_view(ENDINGS["deleted"], MISSING, found, **fields))
    assert step == DeleteBalancer("address/1")


@pytest.mark.parametrize(
    ("parsed", "keeps"),
    [
        (ParsedRequest(desired="v1"), False),
        (ParsedRequest(desired="v1", keeps_address=True), True),
        (SILENCE, True),  # a Service that cannot be read may ask for it
    ],
)
def test_a_deletion_keeps_the_address_that_the_service_names(parsed: Any, keeps: bool):
    step = plan_step(make_view(ENDINGS["deleted"], FOUND, parsed=parsed))
    assert step == DeleteBalancer("1", keeps_address=keeps)


@pytest.mark.parametrize("keeps", [False, True])
def test_the_end_of_a_balancer_names_what_outlives_it(keeps: bool):
    found = make_balancer(kept_objects=("certificate 7",), created_addresses=("address 8",))
    kept = ("certificate 7", "address 8") if keeps else ("certificate 7",)
    parsed = ParsedRequest(desired="v1", keeps_address=keeps)
    ending = make_view(ENDINGS["deleted"], make_lookup("1", found), parsed=parsed)
    assert plan_step(ending) == DeleteBalancer("1", keeps_address=keeps, kept=kept)
    protected = make_lookup("1", replace(found, is_protected=True))
    step = plan_step(make_view(ENDINGS["deleted"], protected, parsed=parsed))
    assert step == ChangeBalancer(balancer_id="1", change="untag", is_release=True, kept=kept)


def test_a_protected_balancer_is_released_and_stays():
    protected = make_balancer(is_protected=True)
    release = ChangeBalancer(balancer_id="1", change="untag", is_release=True)
    service = ENDINGS["deleted"]
    assert plan_step(make_view(service, make_lookup("1", protected))) == release
    released = make_lookup("1", replace(protected, owner=None))
    assert plan_step(make_view(service, released, listing=EMPTY)) == ReleaseService(kept="1")


@pytest.mark.parametrize("value", ["true", "maybe", ""])
def test_a_balancer_that_the_service_keeps_is_released_and_stays(value: str):
    service = make_service(record=RECORDED, annotations={KEEP_ANNOTATION: value}, is_deleting=True)
    release = ChangeBalancer(balancer_id="1", change="untag", is_release=True)
    assert plan_step(make_view(service, FOUND)) == release
    released = make_lookup("1", replace(BALANCER, owner=None))
    assert plan_step(make_view(service, released, listing=EMPTY)) == ReleaseService(kept="1")


def test_the_service_keeps_neither_a_double_nor_a_balancer_without_the_annotation():
    keeping = make_service(record=RECORDED, annotations={KEEP_ANNOTATION: "true"})
    double = make_balancer("2")
    view = make_view(keeping, make_lookup("2", double), listing=make_listing(BALANCER, double))
    assert plan_step(view) == DeleteBalancer("2", is_double=True)
    service = make_service(record=RECORDED, annotations={KEEP_ANNOTATION: "false"}, is_deleting=True)
    assert plan_step(make_view(service, FOUND)) == DeleteBalancer("1")


def test_an_address_that_is_left_of_a_kept_balancer_stays():
    remnant = make_balancer("address/1", is_remnant=True)
    memory = Memory(led_since=LONG_AGO, deleted=frozenset({("1", 1)}))
    service = make_service(record=RECORDED, annotations={KEEP_ANNOTATION: "true"}, is_deleting=True)
    found = make_lookup("address/1", remnant)
    step = plan_step(make_view(service, MISSING, found, memory=memory, listing=make_listing(remnant)))
    assert step == DeleteBalancer("address/1", keeps_address=True)


def test_the_tags_stay_until_no_change_can_take_effect_any_more():
    lookup = make_lookup("1", make_balancer(is_protected=True))
    lost = remember_write(
        Memory(led_since=LONG_AGO),
        ChangeBalancer(balancer_id="1", change="add 7"),
        UnknownOutcome(reason="lost"),
        deadline=at(20),
        ended_at=at(-1),
        generation=1,
    )
    wait = Wait(at(80), WriteUnsettled())
    assert plan_step(make_view(ENDINGS["deleted"], lookup, memory=lost)) == wait
    leader = Memory(led_since=at(-5))
    wait = Wait(at(55), WriteUnsettled())
    assert plan_step(make_view(ENDINGS["deleted"], lookup, memory=leader)) == wait


class _OutlivingParts(VersionPlanner):
    """A cloud whose changes may create what outlives its balancer."""

    has_outliving_parts = True


def test_a_service_ends_when_no_late_change_can_leave_a_part_behind():
    deleted = Memory(led_since=LONG_AGO, deleted=frozenset({("1", 1)}))
    lost = remember_write(
        deleted,
        ChangeBalancer(balancer_id="1", change="add 7"),
        UnknownOutcome(reason="lost"),
        deadline=at(-70),
        ended_at=at(-71),
        generation=1,
    )
    view = make_view(ENDINGS["deleted"], MISSING, planner=_OutlivingParts(), memory=deleted, listing=EMPTY)
    assert plan_step(view) == ReleaseService()
    late = replace(view, memory=lost, listing=make_listing(at_second=-11))
    assert plan_step(late) == ListBalancers()
    assert plan_step(replace(late, listing=EMPTY)) == ReleaseService()
    leader = replace(view, memory=replace(deleted, led_since=at(-5)))
    assert plan_step(leader) == Wait(at(55), WriteUnsettled())
    assert plan_step(replace(leader, planner=VersionPlanner())) == ReleaseService()


def test_only_a_listing_that_has_read_parts_proves_that_no_part_is_left():
    memory = Memory(led_since=LONG_AGO, deleted=frozenset({("1", 1)}))
    listing = make_listing(at_second=-1, parts_at_second=-30)
    view = make_view(ENDINGS["deleted"], MISSING, planner=_OutlivingParts(), memory=memory, listing=listing)
    assert plan_step(view) == ListBalancers()
    assert plan_step(replace(view, listing=make_listing(at_second=-1))) == ReleaseService()


def test_an_idle_service_has_parts_read_when_they_may_have_changed_and_every_ten_minutes():
    lost = remember_write(
        Memory(led_since=LONG_AGO),
        ChangeBalancer(balancer_id="1", change="add 7"),
        UnknownOutcome(reason="lost"),
        deadline=at(-90),
        ended_at=at(-95),
        generation=1,
    )
    idle = make_view(
        make_recorded(),
        planner=_OutlivingParts(),
        listing=make_listing(BALANCER, at_second=-60, parts_at_second=-599),
    )
    assert plan_step(idle) == ListBalancers(reads_parts=False)
    assert plan_step(replace(idle, now=at(1))) == ListBalancers()
    leader = Memory(led_since=at(-630))
    young = replace(idle, listing=make_listing(BALANCER, at_second=-1, parts_at_second=-60))
    assert isinstance(wait_reason(plan_step(young)), Settled)
    assert plan_step(replace(young, memory=lost)) == ListBalancers()  # it may have taken effect until at(-30)
    read = make_listing(BALANCER, at_second=-1, parts_at_second=-29)
    assert isinstance(wait_reason(plan_step(replace(young, memory=lost, listing=read))), Settled)
    assert plan_step(replace(idle, memory=leader)) == ListBalancers()  # a change of the former leader
    assert plan_step(replace(idle, planner=VersionPlanner(), memory=leader)) == ListBalancers(
        reads_parts=False
    )


def test_a_service_that_gets_no_balancer_keeps_its_record_until_nothing_of_the_former_one_is_left():
    reason = InvalidFields(make_invalid().invalid)
    told = BlockedCondition(reason=reason.condition_reason, message=reason.explain())
    view = make_view(
        make_recorded(ingress=(), condition=told),
        MISSING,
        memory=Memory(led_since=LONG_AGO, deleted=frozenset({("1", 1)})),
        parsed=make_invalid(),
        planner=_OutlivingParts(),
        listing=make_listing(make_balancer("address/1", is_remnant=True)),
    )
    assert plan_step(view) == Wait(at(60), reason)  # another client may delete it
    gone = replace(view, listing=EMPTY)
    assert plan_step(gone) == ReleaseService()
    leader = replace(gone, memory=replace(view.memory, led_since=at(-5)))
    assert plan_step(leader) == Wait(at(55), reason)  # a change of the former leader may leave a part
    assert plan_step(replace(leader, now=at(55))) == ListBalancers()


def test_a_service_ends_when_no_late_change_can_tag_its_prepared_balancer():
    prepared = make_lookup("1", make_balancer(owner=None))
    lost = remember_write(
        Memory(led_since=LONG_AGO),
        ChangeBalancer(balancer_id="1", change="tag"),
        UnknownOutcome(reason="lost"),
        deadline=at(20),
        ended_at=at(-2),
        generation=1,
    )
    service = ENDINGS["deleted"]
    annotations = {**service.metadata.annotations, USE_ANNOTATION: "1"}
    named = replace(service, metadata=replace(service.metadata, annotations=annotations))
    view = make_view(named, prepared, memory=lost, listing=make_listing(at_second=-1))
    assert plan_step(view) == Wait(at(59), WriteUnsettled())
    settled = replace(view, memory=Memory(led_since=LONG_AGO))
    assert plan_step(settled) == ReleaseService(kept="1")


class _TargetRelease(VersionPlanner):
    """A cloud with one target beside the tags."""

    def plan_release(self, balancer: Any, *, keeps_address: bool) -> tuple[str, ...]:
        return ("remove 7", "untag")


def test_the_tags_stay_while_a_target_cannot_be_removed():
    step = ChangeBalancer(balancer_id="1", change="remove 7", is_release=True)
    locked = remember_write(
        Memory(led_since=LONG_AGO),
        step,
        WriteRejection(kind="busy", reason="locked"),
        deadline=at(20),
        ended_at=at(-1),
        generation=1,
    )
    lookup = make_lookup("1", make_balancer(is_protected=True))
    view = make_view(ENDINGS["deleted"], lookup, planner=_TargetRelease())
    assert plan_step(view) == step
    assert wait_reason(plan_step(replace(view, memory=locked))) == Rejected("busy", "locked")


class _NoRelease(VersionPlanner):
    """A cloud that cannot release what it protects."""

    def plan_release(self, balancer: Any, *, keeps_address: bool) -> tuple[str, ...]:
        return ()


def test_a_protected_balancer_that_cannot_be_released_keeps_the_finalizer():
    protected = make_lookup("1", make_balancer(is_protected=True))
    view = make_view(ENDINGS["deleted"], protected, planner=_NoRelease())
    assert isinstance(wait_reason(plan_step(view)), Busy)


@pytest.mark.parametrize(
    ("record", "named", "is_given_up"),
    [
        (RECORDED, "1", True),
        (RECORDED, "2", False),
        (RESERVED, "unknown", True),
        (RECORDED, "unknown", False),
    ],
)
def test_an_operator_may_give_up_the_balancer_by_its_id(record: Any, named: str, is_given_up: bool):
    service = make_service(record=record, is_deleting=True, abandon=named)
    rejected = Unanswered("unauthorized", "the token is not valid")
    view = make_view(service, make_lookup("1", rejected), listing=make_listing(answer=rejected))
    expected = ReleaseService(abandoned=named)
    assert (plan_step(view) == expected) is is_given_up


def test_a_vanished_balancer_of_another_project_is_given_up_and_replaced():
    view = make_view(make_service(record=RECORDED, abandon="1"), MISSING, listing=EMPTY)
    assert plan_step(view) == RecordBalancer(RESERVED)


def test_the_addresses_go_before_the_balancer_but_only_ours():
    service = make_service(record=RECORDED, is_deleting=True, ingress=(ADDRESS,))
    assert plan_step(make_view(service, FOUND)) == WriteStatus(ingress=(), condition=None)
    other = make_service(record=RECORDED, is_deleting=True, ingress=(replace(ADDRESS, ip="192.0.2.9"),))
    assert plan_step(make_view(other, FOUND)) == DeleteBalancer("1")
    written = Memory(led_since=LONG_AGO, deleted=frozenset({("1", 1)}), ingress=(ADDRESS,))
    gone = make_view(service, MISSING, listing=EMPTY, memory=written)
    assert plan_step(gone) == WriteStatus(ingress=(), condition=None)


def test_the_condition_goes_with_the_finalizer():
    condition = BlockedCondition(reason="CloudRejected", message="quota")
    service = make_service(record=RESERVED, is_deleting=True, condition=condition)
    view = make_view(service, memory=UNSENT, listing=EMPTY)
    assert plan_step(view) == WriteStatus(ingress=None, condition=None)


def test_answers_of_another_credential_and_those_before_a_write_are_void():
    service = make_recorded()
    other = make_view(service, FOUND, listing=make_listing(BALANCER, generation=2))
    assert plan_step(other) == ListBalancers()
    memory = Memory(led_since=at(1))
    before = make_view(service, FOUND, now=at(2), memory=memory, listing=make_listing(BALANCER))
    assert plan_step(before) == ReadBalancer("1")
    assert plan_step(replace(before, lookups={})) == ReadBalancer("1")
    ending = make_view(ENDINGS["deleted"], FOUND, now=at(2), memory=memory)
    assert plan_step(ending) == ReadBalancer("1")
    created = make_view(make_service(), now=at(2), memory=memory, listing=EMPTY)
    assert plan_step(created) == ListBalancers()
    assert plan_step(make_view(make_service(), now=at(60), listing=EMPTY)) == ListBalancers()
    assert isinstance(plan_step(make_view(make_service(), now=at(59), listing=EMPTY)), RecordBalancer)


def test_answers_from_the_future_prove_nothing():
    unknown = remember_create(UnknownOutcome(reason="timeout"), ended_at=at(9))
    later = make_listing(at_second=600)  # as of a create before the clock was set back
    for service in (make_service(record=RESERVED), make_service(record=RESERVED, is_deleting=True)):
        sent = make_view(service, now=at(10), memory=unknown, listing=later)
        assert plan_step(sent) == ListBalancers()
    idle = make_view(make_recorded(), now=at(-1), listing=make_listing(BALANCER))
    assert isinstance(plan_step(idle), ListBalancers)
    assert find_next_listing(idle) == at(59)
    assert plan_step(make_view(ENDINGS["deleted"], FOUND, now=at(-1))) == ReadBalancer("1")


def test_a_witness_is_the_recorded_anchor():
    other = replace(make_anchor_lookup(), anchor=InstanceAnchor(kind="network", id="4712"))
    view = make_view(ENDINGS["deleted"], MISSING, listing=EMPTY, anchor_lookup=other)
    assert plan_step(view) == ReadAnchor(ANCHOR)


def test_what_is_foreign_is_never_deleted_at_the_end():
    foreign = make_balancer(has_foreign_tags=True)
    view = make_view(ENDINGS["deleted"], make_lookup("1", foreign))
    assert blocked_reason(plan_step(view)) == "OtherController"
    told = make_service(
        record=RECORDED,
        is_deleting=True,
        condition=plan_step(view).condition,  # type: ignore[union-attr]
    )
    assert isinstance(wait_reason(plan_step(replace(view, service=told))), ForeignController)


def test_no_witness_is_read_again_after_a_minute():
    condition = BlockedCondition(reason="ProjectNotProven", message=NoWitness(anchor=ANCHOR).explain())
    service = make_service(record=RECORDED, is_deleting=True, condition=condition)
    view = make_view(service, MISSING, anchor_lookup=make_anchor_lookup(NotFound()))
    assert plan_step(view) == Wait(at(60), NoWitness(anchor=ANCHOR))
    assert plan_step(replace(view, now=at(60))) == ReadBalancer("1")


# ---- slow clouds


@pytest.mark.parametrize("seconds", [1, 61, 600])
@pytest.mark.parametrize(
    ("service", "is_there", "expected"),
    [
        (make_service(record=RECORDED, ingress=(ADDRESS,)), True, Wait),
        (make_service(), False, RecordBalancer),
        (make_service(record=RECORDED, is_deleting=True), True, DeleteBalancer),
        (make_service(record=RECORDED, is_deleting=True), False, ReleaseService),
    ],
)
def test_a_slow_cloud_is_asked_each_question_once(
    service: Any, is_there: bool, expected: type, seconds: float
):
    """Each request takes that long."""
    view, asked = make_view(service), []
    while isinstance(step := plan_step(view), ListBalancers | ReadBalancer | ReadAnchor):
        asked.append(step)
        assert len(set(asked)) == len(asked), asked
        times: Any = {
            "began_at": view.now,
            "ended_at": view.now + timedelta(seconds=seconds),
            "generation": 1,
        }
        view = replace(view, now=times["ended_at"], lease_until=times["ended_at"] + timedelta(minutes=5))
        match step:
            case ListBalancers():
                listed = (BALANCER,) if is_there else ()
                listing = Listing(answer=listed, parts_began_at=times["began_at"], **times)
                view = replace(view, listing=listing)
            case ReadBalancer():
                answer = BALANCER if is_there else NotFound()
                view = replace(view, lookups={"1": Lookup(balancer_id="1", answer=answer, **times)})
            case ReadAnchor():
                found = AnchorLookup(anchor=ANCHOR, answer=FOUND_ANCHOR, **times)
                view = replace(view, anchor_lookups={ANCHOR: found})
    assert isinstance(step, expected), step
    if isinstance(step, Wait):
        assert step.until == view.now + timedelta(seconds=60 + 2 * seconds), "a pause before the next listing"
