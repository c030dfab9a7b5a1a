"""The blocker of a waiting Node: one per cause, and one report for a shared cause."""

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.events import NodeEnriched, NodeGone, NodeObserved, NodeUnreachable
from libs.common.contract.machine import MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, Node, NodeCondition
from libs.common.contract.node_patch import NodeChanges
from libs.common.kube.errors import Forbidden, Invalid
from services.labeler.core.blocker import (
    WRITE_FAILED,
    block,
    block_on_fault,
    build_condition,
    describe_failed_write,
    is_reported_on,
)
from services.labeler.core.own_writes import select_latest_node
from services.labeler.core.plan.plan import ClusterConfig, Plan
from services.labeler.core.plan.plan_node import plan_unreachable_node
from services.labeler.core.uninitialized_nodes import (
    FACTS_TIMEOUT_SECONDS,
    HANDLER_GRACE_SECONDS,
    MAX_SEPARATE_REPORTS,
    UninitializedNode,
    UninitializedNodes,
    find_shared_blocker,
)
from services.labeler.uninitialized_node_monitor import PASS_SECONDS, REPORT_SPREAD_SECONDS
from tests.builders import (
    FAULT,
    make_facts,
    make_message,
    make_node,
    make_node_enriched,
    make_node_gone,
    make_node_observed,
    make_unreachable,
)
from tests.node_plans import plan_only_node

# ---- reasons


def test_the_text_names_step_endpoint_and_retry_policy():
    message = block_on_fault(FAULT).message
    assert message == (
        "connect at 10.0.0.1:50000 for 10.0.0.5: connection refused; "
        "retried for ever, with back-off up to 60 s"
    )


def test_the_text_does_not_promise_retries_that_nobody_makes():
    bad = MachineFault(kind="bad_node_ip", step="provided-node-ip", message="'web-1' is not an IP address")
    for text in (
        block_on_fault(bad).message,
        block("ProvidedNodeIPInvalid", why="'web-1' is not an IP address").message,
    ):
        assert "looked at again when it changes" in text
        assert "back-off" not in text
    refused = describe_failed_write(Invalid("labels: too long", status=422))
    assert "back-off" not in block(WRITE_FAILED, error=refused).message
    assert "labels: too long" in block(WRITE_FAILED, error=refused).message
    assert "back-off" in block(WRITE_FAILED, error=describe_failed_write(Forbidden("no", status=403))).message


def test_a_text_from_a_machine_is_bounded_and_one_plain_line():
    assert len(block_on_fault(msgspec.structs.replace(FAULT, message="x" * 5000)).message) <= 1024
    fault = MachineFault(kind="internal", step="look", message="\x1b[2J\x9b31mdone\r\nAll good")
    assert block_on_fault(fault).message.startswith(
        "look: \ufffd[2J\ufffd31mdone\ufffd\ufffdAll good; retried"
    )


def test_a_node_that_says_so_already_is_recognised_by_the_reason_alone():
    blocked = block_on_fault(FAULT)
    node = make_node(conditions=(build_condition(msgspec.structs.replace(blocked, message="another try")),))
    assert is_reported_on(node, blocked)
    assert not is_reported_on(make_node(), blocked)
    other = NodeCondition(type=BLOCKED_CONDITION, status="True", reason="TalosTimeout")
    assert not is_reported_on(make_node(conditions=(other,)), blocked)


# ---- a machine that gives no facts


def test_an_initialized_node_whose_machine_does_not_answer_is_left_as_it_is():
    plan = plan_unreachable_node(make_node(taints=()), make_unreachable(), ClusterConfig())
    assert (plan.outcome, plan.blocker, plan.summary) == ("unchanged", None, ())
    assert "connection refused" in plan.reason


@pytest.mark.parametrize("provider_id", ["", "talos://metal/10.0.0.5", "hcloud://7"])
def test_a_node_that_somebody_else_initialized_is_not_said_to_be_blocked_any_longer(provider_id: str):
    node = make_node(taints=(), provider_id=provider_id, conditions=(build_condition(block_on_fault(FAULT)),))
    plan = plan_unreachable_node(node, make_unreachable(), ClusterConfig())
    assert (plan.outcome, plan.removes_condition, plan.changes, plan.addresses) == (
        "updated",
        True,
        NodeChanges(),
        None,
    )
    assert plan.summary == ("condition TalosInitializationBlocked removed",)


def test_a_condition_on_a_node_that_still_waits_for_somebody_else_stays():
    node = make_node(provider_id="hcloud://7", conditions=(build_condition(block_on_fault(FAULT)),))
    assert plan_unreachable_node(node, make_unreachable(), ClusterConfig()).summary == ()


# ---- why a node waits


def plan_late(node, event, *, waited=0.0, failed_write="") -> Plan | None:
    """The monitor's plan after a replica has applied the event."""
    waiting = UninitializedNode(node=node, since=0.0, failed_write=failed_write, is_reconciled=True)
    return plan_only_node(waiting, event, ClusterConfig(), at=waited)


@pytest.mark.parametrize(
    ("node", "event", "waited", "reason"),
    [
        (make_node(), None, 19.9, None),
        (make_node(), None, 20.0, "NoFactsYet"),
        (make_node(taints=()), None, 99.0, None),
        (make_node(ip=""), None, 99.0, None),
        (make_node(provider_id="kind://x"), None, 99.0, None),
        (make_node(), make_unreachable(), 0.0, "TalosUnreachable"),
        (make_node(taints=()), make_unreachable(), 99.0, None),
        (make_node(ip=""), make_unreachable(), 99.0, None),
        (make_node(provider_id="kind://x"), make_unreachable(), 99.0, None),
        (make_node(uid="new"), make_unreachable(), 0.0, None),
        (make_node(uid="new"), make_unreachable(), 20.0, "NoFactsYet"),
        (make_node(), make_node_enriched(make_node(), make_facts()), 99.0, None),
        (
            make_node(),
            make_node_enriched(make_node(), make_facts(platform="aws")),
            0.0,
            "WaitingForPlatformMetadata",
        ),
        (make_node(uid="new"), make_node_enriched(make_node(), make_facts()), 20.0, "NoFactsYet"),
    ],
)
def test_a_node_waits_for_what_is_known_to_block_it(node, event, waited, reason):
    plan = plan_late(node, event, waited=waited)
    assert (plan.blocker.reason if plan and plan.blocker else None) == reason


READY = NodeCondition(type="Ready", status="True")
REPORTS: Mapping[str, NodeEnriched | NodeUnreachable | None] = {
    "fault": make_unreachable(),
    "facts": make_node_enriched(make_node(), make_facts()),
    "region": make_node_enriched(make_node(), make_facts(region="x")),
    "other": make_node_enriched(make_node(uid="uid-2"), make_facts()),
    "nothing": None,
}
CHANGES = (*REPORTS, "refuse", "take", "ip", "ready", "rules")


@given(st.lists(st.sampled_from(CHANGES), max_size=8))
def test_what_is_remembered_of_a_waiting_node_is_what_would_be_judged_anew(changes):
    waiting, at = UninitializedNode(node=make_node(), since=0.0), 0.0
    event: NodeEnriched | NodeUnreachable | None = None
    config = ClusterConfig()
    for change in changes:
        at += 8.0
        match change:
            case "refuse":
                waiting.failed_write = f"403 at {at}"
            case "take":
                waiting.failed_write = ""
            case "ip":
                waiting.node = make_node(ip="127.0.0.1")
            case "ready":
                status = msgspec.structs.replace(waiting.node.status, conditions=(READY,))
                waiting.node = msgspec.structs.replace(waiting.node, status=status)
            case "rules":
                config = ClusterConfig(prefer_ipv6=not config.prefer_ipv6)
            case _:
                event = REPORTS[change]
        unplanned = msgspec.structs.replace(waiting, planned_from=None)
        assert plan_only_node(waiting, event, config, at=at) == plan_only_node(
            unplanned, event, config, at=at
        )


def test_the_same_messages_are_planned_once():
    waiting, config = UninitializedNode(node=make_node(ip="127.0.0.1"), since=0.0), ClusterConfig()
    event = make_node_enriched(make_node(), make_facts())
    plan = plan_only_node(waiting, event, config, at=60.0)
    assert plan is not None
    assert plan_only_node(waiting, event, config, at=61.0) is plan
    waiting.node = make_node(ip="127.0.0.2")
    assert plan_only_node(waiting, event, config, at=62.0) is not plan


def test_facts_that_arrive_late_are_left_to_the_handler_for_three_seconds():
    nodes, node = UninitializedNodes(), make_node(ip="127.0.0.1")
    event, config = make_node_enriched(node, make_facts()), ClusterConfig()
    for applied, at in ((make_node_observed(node), 0.0), (event, 11.0), (event, 13.0)):
        nodes.apply(applied, at)
    waiting = nodes.by_name[node.name]
    assert plan_only_node(waiting, event, config, at=13.9) is None
    assert plan_only_node(waiting, event, config, at=14.0) is not None
    nodes.record_write(node.name)
    assert plan_only_node(waiting, event, config, at=11.1) is not None


def test_nodes_wait_from_when_they_are_first_seen_until_they_are_initialized():
    waiting = UninitializedNodes()
    waiting.apply(make_node_observed(make_node("a")), 1.0)
    waiting.apply(make_node_observed(make_node("a", resource_version="101", labels={"x": "y"})), 5.0)
    waiting.apply(make_node_observed(make_node("b")), 2.0)
    waiting.apply(make_node_observed(make_node("ready", taints=())), 2.0)
    assert {name: each.since for name, each in waiting.by_name.items()} == {"a": 1.0, "b": 2.0}
    waiting.apply(make_node_observed(make_node("a", uid="uid-2")), 7.0)
    waiting.apply(make_node_gone(make_node("b")), 7.0)
    assert {name: each.since for name, each in waiting.by_name.items()} == {"a": 7.0}
    waiting.apply(make_node_observed(make_node("a", uid="uid-2", taints=())), 8.0)
    assert not waiting.by_name


def test_a_failed_write_is_kept_for_the_node_that_it_was_meant_for_until_one_succeeds():
    waiting = UninitializedNodes()
    waiting.apply(make_node_observed(make_node("a")), 1.0)
    waiting.record_failed_write("a", "another", "no")
    assert waiting.by_name["a"].failed_write == ""
    waiting.record_failed_write("a", "uid-1", "no")
    assert waiting.by_name["a"].failed_write == "no"
    waiting.record_write("a")
    assert waiting.by_name["a"].failed_write == ""


# ---- outages


@pytest.mark.parametrize(
    ("blocked", "waiting", "is_one"),
    [
        ({}, 0, False),
        (dict.fromkeys(range(MAX_SEPARATE_REPORTS), "A"), MAX_SEPARATE_REPORTS, False),
        (dict.fromkeys(range(MAX_SEPARATE_REPORTS + 1), "A"), MAX_SEPARATE_REPORTS + 1, True),
        (dict.fromkeys(range(11), "A"), 21, True),
        (dict.fromkeys(range(11), "A"), 22, False),
        (dict.fromkeys(range(6), "A") | dict.fromkeys(range(6, 12), "B"), 12, False),
        (dict.fromkeys(range(11), "A") | dict.fromkeys(range(11, 20), "B"), 20, True),
    ],
)
def test_trouble_of_more_than_ten_and_more_than_half_is_an_outage(blocked, waiting, is_one):
    found = find_shared_blocker({f"node-{number:02}": reason for number, reason in blocked.items()}, waiting)
    assert (found is not None) is is_one
    if found:
        assert (found.reason, found.first_node) == ("A", "node-00")


# ---- the freshest view


EVENT = make_node_enriched(make_node(), make_facts(), observed_sequence=5)
LATER = make_node(resource_version="101", taints=())


@pytest.mark.parametrize(
    ("observed", "sequence", "node"),
    [
        (make_node_observed(LATER), 6, LATER),
        *((make_node_observed(LATER), sequence, EVENT.node) for sequence in (3, 5)),
        *((make_node_gone(make_node()), sequence, EVENT.node) for sequence in (3, 5)),
        (make_node_gone(make_node()), 6, None),
        (make_node_observed(make_node(uid="uid-2")), 6, None),
    ],
)
def test_only_a_later_observation_counts_and_a_node_that_is_gone_or_another_one_has_no_view(
    observed: NodeObserved | NodeGone, sequence: int, node: Node | None
):
    assert select_latest_node(EVENT, make_message(observed, sequence=sequence)) is node
    assert select_latest_node(EVENT, None) is EVENT.node


def test_silence_is_told_within_thirty_seconds():
    assert FACTS_TIMEOUT_SECONDS + HANDLER_GRACE_SECONDS + REPORT_SPREAD_SECONDS + PASS_SECONDS < 30.0
