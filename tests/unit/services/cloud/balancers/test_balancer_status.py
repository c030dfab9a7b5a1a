"""Which Events and which condition a step or a wait has."""

from typing import Any

import pytest
from msgspec.structs import replace

from libs.clouds.annotation_values import parse_values
from libs.clouds.balancers import InvalidField, Target, UnknownOutcome, WriteRejection, WriteSuccess
from libs.clouds.hcloud.balancers.annotations import ROWS
from libs.clouds.instances import NotFound, Unanswered
from services.cloud.core.balancers.balancer_record import BalancerRecord
from services.cloud.core.balancers.balancer_status import describe_wait, describe_write, plan_condition
from services.cloud.core.balancers.balancer_steps import (
    BalancerFailed,
    BlockedCondition,
    BuildsFailed,
    Busy,
    ChangeBalancer,
    CreateBalancer,
    DeleteBalancer,
    ForeignController,
    InvalidFields,
    LeaseTooShort,
    LeftOutTarget,
    ListedLate,
    NotSelected,
    NoWitness,
    OtherAccount,
    RecordBalancer,
    Rejected,
    ReleaseService,
    Settled,
    Unready,
    Wait,
    WriteStatus,
    WriteUnsettled,
)
from tests.builders import NOW
from tests.clouds.balancers import ANCHOR, NODE, SILENCE, make_service

CREATE = CreateBalancer(desired="v1", targets=())
CHANGE = ChangeBalancer(balancer_id="1", change="set v1")
RELEASE = ChangeBalancer(balancer_id="1", change="untag", is_release=True)
DELETE = DeleteBalancer("1")
DOUBLE = DeleteBalancer("2", is_double=True)
KEEPING = DeleteBalancer("1", kept=("certificate 7", "certificate 8"))
RESERVE = RecordBalancer(BalancerRecord(account="prod", create_deadline=NOW))
REJECTION = WriteRejection(kind="limit", reason="quota")
LOST = UnknownOutcome(reason="no answer")
INVALID = (InvalidField(field="ports", reason="has no NodePort"),)
SETTLED = Settled(balancer_id="1", desired="v1", targets=(NODE,))
SERVICE = make_service()
QUIET = [Busy("1"), LeaseTooShort(), WriteUnsettled(), ListedLate(), NotSelected(), Rejected("busy", "x")]
# reasons to wait, the reason of the condition ("" = it stays as it is), and a word of the Event
WAITS: list[tuple[Any, str, str]] = [
    (InvalidFields(INVALID), "InvalidField", "no load balancer is created"),
    (replace(SETTLED, invalid=INVALID), "InvalidField", "keeps its former values"),
    (Unready(SILENCE), "", "does not answer"),
    (Unready(Unanswered("unauthorized", "bad token")), "CredentialRejected", "bad token"),
    (Unready(Unanswered("forbidden", "read only")), "CredentialRejected", "read only"),
    (Rejected("unauthorized", "token_readonly"), "CredentialRejected", ""),
    (Rejected("limit", "quota"), "CloudRejected", ""),
    (Rejected("rate_limited", "3600 an hour"), "CloudRejected", ""),
    (Rejected(None, "no answer"), "", ""),
    (Rejected("held_back", "too many requests"), "", ""),
    (NoWitness(anchor=ANCHOR), "ProjectNotProven", "network 4711"),
    (NoWitness(anchor=None), "ProjectNotProven", "no recorded anchor"),
    (ForeignController("tags"), "OtherController", "tags"),
    (OtherAccount("b"), "", "account b"),
    (Busy("1", NOW), "", f"load balancer 1 has been busy since {NOW:%Y-%m-%dT%H:%M:%SZ}"),
    (BalancerFailed("1"), "CloudRejected", "load balancer 1 has failed"),
    (BuildsFailed(2), "CloudRejected", "2 load balancers"),
]


def test_an_invalid_annotation_is_named_before_unknown_ones():
    _, invalid = parse_values({"a": "1", "protocol": "x"}, {"protocol": "protocol"}, ROWS)
    text = InvalidFields(tuple(invalid)).explain()
    assert text.startswith('no load balancer is created: protocol: "x" is not ')
    assert text.endswith("; a: it is not supported: remove it")


@pytest.mark.parametrize(
    ("step", "result", "reasons"),
    [
        (RESERVE, None, ["EnsuringLoadBalancer"]),
        (RecordBalancer(BalancerRecord(account="prod", id="1")), None, []),
        (WriteStatus(ingress=(), condition=None), None, []),
        (ReleaseService(), None, ["DeletedLoadBalancer"]),
        (ReleaseService(abandoned="1"), None, ["LoadBalancerAbandoned"]),
        (ReleaseService(kept="1"), None, ["LoadBalancerReleased"]),
        (DeleteBalancer("1", has_failed=True), WriteSuccess(), ["SyncLoadBalancerFailed"]),
        (DeleteBalancer("1", has_failed=True), LOST, ["SyncLoadBalancerFailed"]),
        (ReleaseService(left_to="other"), None, ["LoadBalancerReleased"]),
        (CREATE, WriteSuccess(balancer_id="1"), []),
        (CREATE, REJECTION, ["SyncLoadBalancerFailed"]),
        (CREATE, LOST, ["SyncLoadBalancerFailed"]),
        (CHANGE, WriteSuccess(), []),
        (CHANGE, REJECTION, ["UpdateLoadBalancerFailed"]),
        (CHANGE, LOST, ["UpdateLoadBalancerFailed"]),
        (CHANGE, replace(REJECTION, target=NODE), []),
        (RELEASE, WriteSuccess(), ["LoadBalancerReleased"]),
        (DELETE, WriteSuccess(), ["DeletingLoadBalancer"]),
        (DELETE, NotFound(), ["DeletingLoadBalancer"]),
        (DELETE, REJECTION, ["DeletingLoadBalancer", "SyncLoadBalancerFailed"]),
        (KEEPING, WriteSuccess(), ["DeletingLoadBalancer", "LoadBalancerReleased"]),
        (KEEPING, NotFound(), ["DeletingLoadBalancer"]),
        (KEEPING, LOST, ["DeletingLoadBalancer", "LoadBalancerReleased", "SyncLoadBalancerFailed"]),
        (KEEPING, REJECTION, ["DeletingLoadBalancer", "LoadBalancerReleased", "SyncLoadBalancerFailed"]),
        (DOUBLE, WriteSuccess(), ["DeletingDuplicateLoadBalancer"]),
        (DOUBLE, REJECTION, ["SyncLoadBalancerFailed"]),
    ],
)
def test_a_write_has_the_events_of_kubernetes(step: Any, result: Any, reasons: list[str]):
    assert [each.reason for each in describe_write(step, result)] == reasons


@pytest.mark.parametrize(
    ("step", "named"),
    [
        (ReleaseService(abandoned="4711"), "4711"),
        (ReleaseService(kept="9"), "9"),
        (RELEASE, "1"),
        (DOUBLE, "2"),
    ],
)
def test_what_is_given_up_or_stays_is_named(step: Any, named: str):
    (event,) = describe_write(step, None if isinstance(step, ReleaseService) else WriteSuccess())
    assert f"load balancer {named}" in event.message
    assert event.is_warning is not isinstance(step, DeleteBalancer)


def test_what_outlives_a_balancer_is_named():
    *_, event = describe_write(KEEPING, WriteSuccess())
    assert (event.message, event.is_warning) == (
        "what load balancer 1 used stays: certificate 7, certificate 8",
        True,
    )
    (event,) = describe_write(replace(RELEASE, kept=("certificate 7",)), WriteSuccess())
    assert event.message.endswith("tags of ours, beside certificate 7")


def test_a_balancer_is_ensured_once_and_updated_when_its_nodes_change():
    assert [each.reason for each in describe_wait(SETTLED, None)] == ["EnsuredLoadBalancer"]
    assert describe_wait(SETTLED, SETTLED) == ()
    changed = replace(SETTLED, desired="v2")
    assert [each.reason for each in describe_wait(changed, SETTLED)] == ["EnsuredLoadBalancer"]
    without = replace(SETTLED, targets=())
    assert [each.reason for each in describe_wait(without, SETTLED)] == [
        "UpdatedLoadBalancer",
        "UnAvailableLoadBalancer",
    ]
    warned = replace(SETTLED, warnings=("UDP port 53 is left out",))
    (event,) = describe_wait(warned, SETTLED)
    assert (event.reason, event.message, event.is_warning) == (
        "LoadBalancerFieldIgnored",
        "UDP port 53 is left out",
        True,
    )


def test_one_event_names_all_targets_that_are_left_out():
    others = (LeftOutTarget(NODE, "not_found"), LeftOutTarget(Target(address="10.0.0.9"), "ip_not_owned"))
    (event,) = describe_wait(replace(SETTLED, left_out=others), SETTLED)
    assert (event.reason, event.message, event.is_warning) == (
        "LoadBalancerTargetIgnored",
        "the cloud rejects targets, will retry: 1 (not_found), 10.0.0.9 (ip_not_owned)",
        True,
    )


@pytest.mark.parametrize(("reason", "name", "word"), WAITS)
def test_a_wait_that_its_owner_can_end_is_reported(reason: Any, name: str, word: str):
    step = plan_condition(SERVICE, Wait(None, reason))
    if name:
        expected = BlockedCondition(reason=name, message=reason.explain())
        assert step == WriteStatus(ingress=None, condition=expected)
        told = make_service(condition=expected)
        assert isinstance(plan_condition(told, Wait(None, reason)), Wait)
    else:
        assert isinstance(step, Wait)
    events = describe_wait(reason, SETTLED)
    assert [each.reason for each in events] == (["SyncLoadBalancerFailed"] if word else [])
    assert all(word in each.message and each.is_warning for each in events)


@pytest.mark.parametrize("reason", QUIET)
def test_a_wait_that_ends_by_itself_changes_nothing(reason: Any):
    told = make_service(condition=BlockedCondition(reason="CloudRejected", message="quota"))
    assert isinstance(plan_condition(told, Wait(None, reason)), Wait)
    assert describe_wait(reason, None) == ()


def test_a_settled_balancer_has_no_condition():
    told = make_service(condition=BlockedCondition(reason="CloudRejected", message="quota"))
    assert plan_condition(told, Wait(None, SETTLED)) == WriteStatus(ingress=None, condition=None)
    assert isinstance(plan_condition(SERVICE, Wait(None, SETTLED)), Wait)
