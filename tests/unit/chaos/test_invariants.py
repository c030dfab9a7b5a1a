"""Each invariant of the observer, on recorded histories that keep it and on one that violates it."""

from typing import Any

import msgspec
import pytest

from libs.testbed.control_plane.audit_log import AuditEntry
from tests.chaos.expectation import (
    Expectation,
    OperatorKeys,
    Undisturbed,
    describe_end_state,
    find_differences,
)
from tests.chaos.history import History, NodeState, SigningRequest
from tests.chaos.invariants import INVARIANTS, Evidence, find_violations
from tests.chaos.run import find_unfinished
from tests.chaos.workload import LAST_REVISION, RULE_LABEL

FIRST = (("InternalIP", "10.0.0.1"), ("ExternalIP", "198.51.100.1"))
TAINT = {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}
TEAM = {"key": "operator.example.com/dedicated", "value": "db", "effect": "NoSchedule"}
UNDISTURBED = Undisturbed(nodes={}, first_addresses={"web-1": FIRST}, requests_per_node=10.0)
BLOCK = ("10.244.1.0/24",)


def a_state(version: int, *, name: str = "web-1", uid: str = "", **fields: Any) -> NodeState:
    return NodeState(name=name, uid=uid or f"uid-{name}", version=version, **fields)


JOINED = a_state(1, taints=(TAINT,), addresses=FIRST[:1])
ADDRESSED = a_state(2, taints=(TAINT,), addresses=FIRST)
USABLE = a_state(3, addresses=FIRST, pod_cidrs=BLOCK)
SHRUNK = a_state(4, addresses=FIRST[:1], pod_cidrs=BLOCK)


def a_request(digest: str, *conditions: str, version: int = 1, **fields: Any) -> SigningRequest:
    return SigningRequest(
        name=f"csr-{digest}",
        uid=f"uid-{digest}",
        version=version,
        user="system:node:web-1",
        digest=digest,
        conditions=frozenset(conditions),
        **fields,
    )


def an_entry(
    at: float, user: str, source: str, verb: str, target: dict[str, str], **entry: Any
) -> AuditEntry:
    """A request that was received `at` and, unless `took` differs, answered 0.1 s later."""
    times = {"requestReceivedTimestamp": at, "stageTimestamp": at + entry.pop("took", 0.1)}
    written = {"user": {"username": user}, "verb": verb, "sourceIPs": [source], "objectRef": target}
    return msgspec.convert(written | times | entry, AuditEntry, strict=False)


def a_deletion(at: float, *, user: str = "talos-ccm-lifecycle") -> AuditEntry:
    return an_entry(at, user, "127.0.0.2", "delete", {"resource": "nodes", "name": "web-1"})


def a_renewal(at: float, *, source: str = "127.0.0.2", took: float = 0.1, **spec: Any) -> AuditEntry:
    """A renewal; keywords replace fields of the Lease's spec."""
    renewed = {"holderIdentity": f"of-{source}", "renewTime": at, "leaseDurationSeconds": 15}
    target = {"resource": "leases", "name": "talos-ccm-lifecycle"}
    answer = {"spec": renewed | spec}
    return an_entry(at, "talos-ccm-lifecycle", source, "update", target, took=took, responseObject=answer)


def a_release(at: float) -> AuditEntry:
    return a_renewal(at, holderIdentity="", renewTime=0, leaseDurationSeconds=1)


def a_record(after: AuditEntry) -> AuditEntry:
    """A write of 127.0.0.2 to the Lease that renews nothing: the count of deletions."""
    return a_renewal(after.received.timestamp() + 0.5, **after.answer["spec"])


OF_ANOTHER = a_renewal(1, source="127.0.0.3")


def violated(*states: NodeState, expected: Expectation | None = None, **history: Any) -> set[str]:
    evidence = Evidence(
        history=History(states=states, **history),
        expected=expected or Expectation(legitimate=frozenset({"good"}), untouched=frozenset({"other"})),
        undisturbed=UNDISTURBED,
        joined=2,
    )
    return {violation.invariant for violation in find_violations(evidence)}


def test_a_run_in_which_everything_is_right_violates_nothing():
    assert not violated(
        JOINED,
        ADDRESSED,
        USABLE,
        requests=(
            a_request("good", "Approved", is_issued=True),
            a_request("forged", "Denied"),
            a_request("other"),
        ),
        request_counts={"patch nodes": 59},
        writes=(a_deletion(1, user="admin"),),
    )


CASES: list[tuple[str, tuple[NodeState, ...], dict[str, Any]]] = [
    ("addresses before taint removal", (JOINED, a_state(2, addresses=FIRST[:1])), {}),
    ("addresses never shrink", (JOINED, ADDRESSED, USABLE, SHRUNK), {}),
    ("only legitimate requests are approved", (), {"requests": (a_request("forged", "Approved"),)}),
    ("only legitimate requests are approved", (), {"requests": (a_request("good", "Denied"),)}),
    ("only legitimate requests are approved", (), {"requests": (a_request("other", "Denied"),)}),
    (
        "pod CIDRs are disjoint",
        (USABLE, a_state(9, name="web-2", pod_cidrs=("10.244.0.0/22",))),
        {},
    ),
    (
        "pod CIDRs are disjoint",
        (USABLE, a_state(9, uid="uid-of-the-next-web-1", pod_cidrs=BLOCK)),
        {},
    ),
    (
        "pod CIDRs never change",
        (ADDRESSED, USABLE, a_state(4, addresses=FIRST, pod_cidrs=("10.244.2.0/24",))),
        {},
    ),
    ("no deletion without proof", (), {"writes": (a_renewal(1), a_deletion(2))}),
    ("no request storm", (), {"request_counts": {"patch nodes": 40, "list nodes": 20}}),
]


@pytest.mark.parametrize(("invariant", "states", "history"), CASES)
def test_a_violation_is_found_and_no_other(
    invariant: str, states: tuple[NodeState, ...], history: dict[str, Any]
):
    assert violated(*states, **history) == {invariant}


def test_every_invariant_has_a_history_that_violates_it():
    tested_below = {"no write without the Lease", "operator's keys stay"}
    assert {invariant for invariant, _, _ in CASES} | tested_below == INVARIANTS.keys()


def test_a_restore_of_etcd_frees_what_was_written_after_the_backup():
    behind = a_state(2, taints=(TAINT,), restores=1)
    another = a_state(9, name="web-2", pod_cidrs=BLOCK, restores=1)
    assert not violated(ADDRESSED, USABLE, behind, another)
    same = a_state(4, addresses=FIRST, pod_cidrs=BLOCK, restores=1)
    assert violated(behind, another, same) == {"pod CIDRs are disjoint"}


def test_a_forged_request_that_a_restore_of_etcd_removed_is_judged():
    restored = a_request("good", "Approved", restores=1)
    assert violated(requests=(a_request("forged", "Approved"), restored)) == {
        "only legitimate requests are approved"
    }
    assert not violated(requests=(a_request("forged"), restored))


def test_a_request_is_judged_once_by_its_last_version_before_a_restore_and_at_the_end():
    forged = (a_request("forged", "Approved", version=3), a_request("forged", version=2))
    again = a_request("forged", "Approved", version=1, restores=1)
    assert History(requests=(*forged, again)).last_requests() == [again, forged[0]]


def test_addresses_that_the_workload_moves_may_disappear():
    moving = Expectation(moving={"web-1": frozenset({"198.51.100.1"})})
    assert not violated(ADDRESSED, USABLE, SHRUNK, expected=moving)


@pytest.mark.parametrize(
    ("writes", "holds"),
    [
        ((a_renewal(1), a_deletion(2)), True),
        ((OF_ANOTHER, a_deletion(2)), False),
        ((OF_ANOTHER, a_record(OF_ANOTHER), a_deletion(2)), False),
        ((a_renewal(1), a_renewal(20, source="127.0.0.3"), a_deletion(21)), False),
        ((a_renewal(1), a_deletion(17)), False),
        ((a_renewal(1, took=4), a_deletion(15)), True),
        ((a_renewal(1, took=4), a_deletion(17)), False),
        ((a_renewal(1), a_release(2), a_deletion(2.2)), False),
        ((a_deletion(1),), False),
    ],
    ids=[
        "holder",
        "other holder",
        "other holder, but recorded",
        "former holder",
        "expired",
        "slow answer",
        "expired after a slow answer",
        "released",
        "no Lease",
    ],
)
def test_only_the_holder_of_the_lease_may_delete(writes: tuple[AuditEntry, ...], holds: bool):
    proven = Expectation(deletable=frozenset({"web-1"}))
    assert violated(writes=writes, expected=proven) == (set() if holds else {"no write without the Lease"})


@pytest.mark.parametrize(
    "after",
    [
        {"labels": {}},
        {"labels": {"team": "b"}},
        {"labels": {"team": "a"}, "annotations": {"note": "other"}},
        {"labels": {"team": "a"}, "taints": ()},
    ],
)
def test_operators_keys_stay_as_they_were_written(after: dict[str, Any]):
    keys = OperatorKeys(labels={"team": "a"}, annotations={"note": "one"}, taints=(TEAM,))
    before = a_state(3, labels={"team": "a"}, annotations={"note": "one"}, taints=(TEAM,))
    same: dict[str, Any] = {"labels": {"team": "a"}, "annotations": {"note": "one"}, "taints": (TEAM,)}
    expected = Expectation(operator_keys={"web-1": keys})
    joined = a_state(2, taints=(TEAM,))
    assert not violated(joined, before, a_state(4, **same), expected=expected)
    changed = a_state(5, **(same | after))
    assert violated(joined, before, changed, expected=expected) == {"operator's keys stay"}


def test_states_are_compared_in_the_order_of_their_versions_and_per_uid():
    returned = a_state(9, uid="uid-of-the-next-web-1", taints=(TAINT,), addresses=FIRST[:1])
    assert not violated(returned, USABLE, ADDRESSED, JOINED, USABLE)


def test_the_end_must_equal_that_of_the_undisturbed_run():
    end = describe_end_state(USABLE)
    undisturbed = Undisturbed(nodes={"web-1": end}, first_addresses={}, requests_per_node=1.0)
    nothing = Expectation()
    assert not find_differences([USABLE], undisturbed, nothing)
    assert find_differences([], undisturbed, nothing) == ["Node web-1 is missing"]
    other = a_state(1, name="web-2")
    assert find_differences([USABLE, other], undisturbed, nothing) == ["Node web-2 is left over"]
    assert find_differences([USABLE, other], undisturbed, Expectation(deletable=frozenset({"web-2"}))) == []
    assert [text.split(" is ")[0] for text in find_differences([ADDRESSED], undisturbed, nothing)] == [
        "Node web-1: pod_cidr_families",
        "Node web-1: taints",
    ]


UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("taints", "problems"),
    [
        ((), []),
        ((TEAM,), []),
        ((UNREACHABLE,), ["Node web-1 is not finished"]),
        ((TAINT,), ["Node web-1 is not finished"]),
    ],
    ids=["no taint", "of an operator", "will go", "will be removed"],
)
def test_a_node_with_a_taint_that_will_go_is_not_finished(taints: tuple[Any, ...], problems: list[str]):
    node = a_state(1, labels={RULE_LABEL: f"r{LAST_REVISION}-of-aws"}, pod_cidrs=BLOCK, taints=taints)
    assert find_unfinished([node], Expectation()) == problems
    assert find_unfinished([node], Expectation(deletable=frozenset({"web-1"}))) == []
