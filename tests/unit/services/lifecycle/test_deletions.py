"""Deletions of Nodes: what is written and recorded, and how many there may be."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.cloud_config.model import Ownership
from libs.common.contract.node import Node
from libs.common.kube.errors import Conflict, NotFound
from libs.common.kube.event_recorder import EventRecorder
from libs.common.kube.events import ObjectEvent
from libs.common.kube.lease import get_annotation
from services.lifecycle.core.decide import REPLACED, Delete, Keep
from services.lifecycle.core.deletion_limit import (
    ANNOTATION,
    WINDOW,
    BudgetDenial,
    Deletion,
    DeletionLimit,
    grant_deletion,
)
from services.lifecycle.core.node_index import NodeIndex
from services.lifecycle.deletion_budget import DeletionBudget
from services.lifecycle.node_deleter import BUDGET_BACKOFF_SECONDS, DeletionResult, NodeDeleter
from services.lifecycle.settings import LifecycleSettings
from tests.builders import NOW
from tests.clocks import ManualClock
from tests.in_memory_api import InMemoryLeases, LeaseConnection, make_lease
from tests.lifecycle_actors import make_lost_node

NODE = make_lost_node()
EVERY_NODE = Ownership()
LIMIT = DeletionLimit(per_hour=10)
PROOF = Delete(kind=REPLACED, reason="others answer", limit=LIMIT)


class Api:
    """One Node of an API server, and a record of deletions; remembers what was asked, in order."""

    def __init__(self, node: Node | None = NODE, *, full: str = "") -> None:
        self.node = node
        self.full = full
        self.asked: list[str] = []

    async def get_node(self, name: str) -> Node:
        self.asked.append("get")
        if self.node is None:
            raise NotFound(name, status=404)
        return self.node

    async def delete_node(
        self, name: str, *, uid: str, resource_version: str, deadline_seconds: float
    ) -> None:
        self.asked.append("delete")
        if self.node is None:
            raise NotFound(name, status=404)
        if (uid, resource_version) != (self.node.uid, self.node.metadata.resource_version):
            raise Conflict(name, status=409)
        self.node = None

    async def spend(self, node: str, limit: DeletionLimit) -> str:
        self.asked.append("spend")
        return self.full

    async def create_event(self, event: ObjectEvent, *, now: Any) -> None: ...


def deletions_of(
    api: Any,
    *,
    clock: ManualClock,
    judge: Callable[[Node], Delete | Keep] = lambda node: PROOF,
    ownership: Ownership = EVERY_NODE,
) -> NodeDeleter:
    return NodeDeleter(
        api,
        node_index=NodeIndex(),
        budget=api,
        event_recorder=EventRecorder(api, component="", now=clock.now, observe_only=True),
        ownership=lambda: ownership,
        decide=judge,
        is_dry_run=False,
        deadline_seconds=1.0,
        clock=clock,
    )


async def test_it_is_asked_counted_and_deleted_in_this_order():
    api = Api()
    done = await deletions_of(api, clock=ManualClock()).delete(NODE, PROOF)
    assert done == DeletionResult(outcome="deleted", reason="others answer")
    assert api.asked == ["get", "spend", "delete"]


@pytest.mark.parametrize(
    ("found", "ownership", "outcome", "reason"),
    [
        (None, Ownership(), "kept", "does not exist any more"),
        (make_lost_node(uid="uid-2"), Ownership(), "kept", "a newer Node has the same name"),
        (NODE, Ownership(provider_id_schemes=("hcloud",)), "not-owned", "providerIDSchemes"),
    ],
)
async def test_what_is_found_at_that_moment_is_judged_before_anything_is_counted(
    found: Node | None, ownership: Ownership, outcome: str, reason: str
):
    api = Api(found)
    done = await deletions_of(api, clock=ManualClock(), ownership=ownership).delete(NODE, PROOF)
    assert (done.outcome, api.asked) == (outcome, ["get"])
    assert reason in done.reason


async def test_while_there_is_no_room_nobody_is_asked_and_then_again():
    clock, api = ManualClock(), Api(full="ten in the last hour")
    deletions = deletions_of(api, clock=clock)
    for _ in range(3):
        done = await deletions.delete(NODE, PROOF)
        assert (done.outcome, done.reason) == ("limited", "others answer; but ten in the last hour")
    assert api.asked == ["get", "spend"]
    api.full = ""
    clock.advance(BUDGET_BACKOFF_SECONDS)
    assert (await deletions.delete(NODE, PROOF)).outcome == "deleted"


async def test_another_kind_of_evidence_at_the_last_moment_is_counted_by_its_own_limit_first():
    other = Delete(kind="another", reason="its cloud", limit=DeletionLimit(per_hour=10, pool="a-cloud"))
    api = Api()
    deletions = deletions_of(api, clock=ManualClock(), judge=lambda node: other)
    assert (await deletions.delete(NODE, PROOF)).reason == "the evidence changed meanwhile"
    assert (await deletions.delete(NODE, other)).outcome == "deleted"


async def test_a_pool_without_room_holds_up_no_other():
    api = Api(full="ten in the last hour")
    clouds = Delete(kind=REPLACED, reason="its cloud", limit=DeletionLimit(per_hour=10, pool="a-cloud"))
    decision = PROOF
    deletions = deletions_of(api, clock=ManualClock(), judge=lambda node: decision)
    assert (await deletions.delete(NODE, PROOF)).outcome == "limited"
    api.full = ""
    assert (await deletions.delete(NODE, PROOF)).outcome == "limited"
    assert (await deletions.delete(NODE, clouds)).reason == "the evidence changed meanwhile"
    decision = clouds
    assert (await deletions.delete(NODE, clouds)).outcome == "deleted"


# ---- the record


@pytest.mark.parametrize(("times", "counted"), [(0, True), (2, True), (3, False), (99, False)])
async def test_a_deletion_counts_only_once_it_is_written(times: int, *, counted: bool):
    leases = InMemoryLeases()
    leases.leases["lease"] = make_lease("me")
    kube: Any = LeaseConnection(leases)
    kube.overtaken = times
    record = DeletionBudget(kube, LifecycleSettings(lease_name="lease"), holder="me", now=lambda: NOW)
    assert (await record.spend("web-1", LIMIT) == "") is counted
    assert len(decode(get_annotation(leases.get("lease"), ANNOTATION) or "[]")) == int(counted)


async def test_a_leader_whose_lease_is_gone_counts_nothing_and_makes_no_lease():
    leases = InMemoryLeases()
    kube: Any = LeaseConnection(leases)
    record = DeletionBudget(kube, LifecycleSettings(lease_name="lease"), holder="me", now=lambda: NOW)
    assert await record.spend("web-1", LIMIT) == "no replica holds the Lease now"
    assert not leases.leases


# ---- the limit


TWO = DeletionLimit(per_hour=2)


def encode(*deletions: Deletion) -> str:
    return msgspec.json.encode(deletions).decode()


def decode(record: str) -> tuple[Deletion, ...]:
    return msgspec.json.decode(record, type=tuple[Deletion, ...])


@given(st.lists(st.floats(-7200, 7200), max_size=40), st.integers(0, 12))
def test_no_hour_sees_more_than_the_most(seconds: list[float], most: int):
    record = ""
    done: list[Deletion] = []
    for number, offset in enumerate(sorted(seconds)):
        now = NOW + timedelta(seconds=offset)
        judged = grant_deletion(record, f"web-{number}", limit=DeletionLimit(per_hour=most), now=now)
        if isinstance(judged, str):
            record = judged
            done.append(decode(record)[-1])
            assert sum(timedelta() <= now - one.at < WINDOW for one in done) <= most
            assert len(decode(record)) <= most


def test_a_deletion_counts_for_an_hour_and_one_that_is_yet_to_come_as_well():
    to_come = Deletion(node="b", at=NOW + timedelta(days=1))
    before = encode(Deletion(node="a", at=NOW - timedelta(minutes=59)), to_come)
    assert grant_deletion(before, "c", limit=TWO, now=NOW) == BudgetDenial(
        reason="2 in the last hour, --lifecycle-max-deletions-per-hour is 2; none before 12:01:00Z"
    )
    in_a_minute = NOW + timedelta(minutes=1)
    later = grant_deletion(before, "c", limit=TWO, now=in_a_minute)
    assert later == encode(to_come, Deletion(node="c", at=in_a_minute))


def test_the_pools_do_not_count_for_each_other():
    other = DeletionLimit(per_hour=1, pool="a-cloud", description="the limit of a-cloud")
    record = ""
    for limit in (TWO, TWO, other):
        judged = grant_deletion(record, "web", limit=limit, now=NOW)
        assert isinstance(judged, str)
        record = judged
    for limit, reason in (
        (TWO, "2 in the last hour, --lifecycle"),
        (other, "1 in the last hour, the limit of"),
    ):
        denied = grant_deletion(record, "web", limit=limit, now=NOW)
        assert isinstance(denied, BudgetDenial)
        assert denied.reason.startswith(reason)


def test_the_record_says_who_and_when():
    assert grant_deletion("", "web-1", limit=TWO, now=NOW) == '[{"node":"web-1","at":"2026-03-01T12:00:00Z"}]'


@pytest.mark.parametrize(
    "text",
    ["nonsense", "{}", "[1]", '[{"node":"a"}]', '[{"node":"a","at":"2026-03-01T12:00:00"}]', "[" * 99999],
)
def test_a_record_that_cannot_be_read_leaves_no_room(text: str):
    assert isinstance(grant_deletion(text, "web-1", limit=TWO, now=NOW), BudgetDenial)
