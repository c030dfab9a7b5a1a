"""Requests that wait, the limit of their writes, and Events about their Nodes."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest, SigningRequestCondition, SigningRequestStatus
from libs.common.kube.event_recorder import EventRecorder
from libs.common.kube.events import event_name
from services.csr.core.flow_state import WaitingRequest
from services.csr.core.pending_requests import BURST, REFILL_SECONDS, NodeRateLimiter, PendingRequests
from services.csr.node_events import COMPONENT, MAX_RIVALS, NodeEvents
from tests.builders import NOW, make_node, make_request
from tests.in_memory_api import InMemoryEvents


def filed(name: str, at: float = 0.0, *, node: str = "web-1", version: int = 100) -> SigningRequest:
    created = NOW + timedelta(seconds=at)
    return make_request(name, uid=f"uid-{name}", node=node, created=created, resource_version=str(version))


def approved(request: SigningRequest, **status: object) -> SigningRequest:
    made = SigningRequestStatus(conditions=(SigningRequestCondition(type="Approved"),), **status)  # type: ignore[arg-type]
    metadata = msgspec.structs.replace(
        request.metadata, resource_version=str(request.resource_version_number + 1000)
    )
    return msgspec.structs.replace(request, metadata=metadata, status=made)


def heard(*requests: SigningRequest) -> PendingRequests:
    requesters = PendingRequests()
    for request in requests:
        requesters.upsert(request)
    return requesters


def test_the_newest_pending_request_of_a_node_is_the_one_that_counts():
    requesters = heard(filed("b", 2), filed("a", 1), filed("other", 3, node="web-2"))
    assert requesters.find_newest("web-1") == "b"
    assert requesters.find_superseding("a") == "b"
    assert requesters.find_superseding("b") == requesters.find_superseding("other") is None
    assert [each.order.name for each in requesters.list_newest()] == ["b", "other"]


def test_a_newer_request_names_the_one_that_it_supersedes():
    requesters = PendingRequests()
    assert requesters.upsert(filed("a", 1)) is None
    assert requesters.upsert(filed("a", 1)) is None
    assert requesters.upsert(filed("b", 2)) == "a"
    assert requesters.upsert(filed("a", 1)) is None
    assert requesters.upsert(approved(filed("c", 3))) == "b"
    assert requesters.upsert(approved(filed("c", 3))) is None


def test_within_one_second_the_version_at_which_it_was_first_seen_says_which_is_newer():
    first, second = filed("z-first", version=101), filed("a-second", version=102)
    requesters = heard(first, second)
    assert requesters.find_newest("web-1") == "a-second"
    requesters.upsert(filed("z-first", version=500))  # a label does not make it newer
    assert requesters.find_newest("web-1") == "a-second"


def test_what_is_older_than_a_decided_request_gets_no_write_even_when_that_is_gone():
    old, new = filed("old", 1), filed("new", 2)
    requesters = heard(old, new, approved(new))
    assert requesters.find_newest("web-1") is None
    assert requesters.find_superseding("old") == "new"
    assert requesters.remove("new") is None
    assert requesters.find_superseding("old") == "new"
    requesters.upsert(filed("newest", 3))
    assert requesters.find_newest("web-1") == "newest"


def test_a_request_that_was_decided_before_we_came_hides_nothing_of_the_same_second():
    requesters = heard(approved(filed("decided")), filed("pending", version=150))
    assert requesters.find_newest("web-1") == "pending"


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_clock_that_was_set_back_supersedes_no_request_that_came_later(is_gone: bool):
    ahead, now = filed("ahead", 3600, version=101), filed("now", 1, version=205)
    requesters = heard(ahead, approved(ahead))
    if is_gone:
        requesters.remove("ahead")
    requesters.upsert(now)
    assert requesters.find_newest("web-1") == "now"
    assert requesters.find_superseding("now") is None
    restarted = heard(approved(filed("ahead", 3600, version=101)), filed("now", 1, version=1205))
    assert restarted.find_newest("web-1") == "now"


def test_of_two_that_are_pending_the_later_one_counts_whatever_the_clocks_say():
    ahead, now = filed("ahead", 3600, version=101), filed("now", 1, version=205)
    requesters = heard(ahead, now)
    assert requesters.find_newest("web-1") == "now"
    assert requesters.find_superseding("ahead") == "now"
    assert requesters.upsert(approved(now)) == "ahead", "nothing says that it is older"
    assert requesters.find_newest("web-1") == "ahead"


def test_after_a_restored_backup_versions_begin_anew_and_supersede_nothing():
    requesters = heard(filed("lost", 1, version=900), approved(filed("lost", 1, version=900)))
    requesters.remove("lost")
    requesters.upsert(filed("new", 60, version=300))
    assert requesters.find_newest("web-1") == "new"


def test_who_only_bears_a_nodes_name_supersedes_nothing_of_that_node():
    groups, created = ("system:authenticated",), NOW + timedelta(seconds=5)
    stranger = make_request("stranger", groups=groups, created=created, resource_version="500")
    requesters = heard(filed("mine", 1), stranger)
    assert requesters.find_newest("web-1") == "mine"
    assert requesters.find_superseding("stranger") is None
    requesters = heard(filed("mine", 1), approved(stranger))
    assert requesters.find_newest("web-1") == "mine"


def test_the_older_one_comes_up_when_the_newest_goes_undecided_and_only_then():
    requesters = heard(filed("a", 1), filed("b", 2), filed("c", 3))
    assert requesters.remove("a") is None
    assert requesters.remove("c") == "b"
    assert requesters.remove("b") is None
    assert requesters.remove("never-seen") is None
    assert not requesters.by_name


def test_another_request_under_the_same_name_is_another_one():
    later = NOW + timedelta(seconds=5)
    requesters = heard(filed("a", 1), make_request("a", uid="uid-2", node="web-2", created=later))
    assert requesters.find_newest("web-1") is None
    assert requesters.find_newest("web-2") == "a"


@pytest.mark.parametrize(
    ("status", "unissued"), [({}, {"a"}), ({"issued": True}, set()), ({"certificate": "x"}, set())]
)
def test_what_is_approved_counts_until_it_is_issued(status: dict[str, object], unissued: set[str]):
    requesters = heard(filed("a"), approved(filed("a"), **status))
    assert requesters.awaiting_signer == unissued
    requesters.remove("a")
    assert not requesters.awaiting_signer


@pytest.mark.parametrize("created", [NOW.replace(tzinfo=None), None], ids=["naive", "none"])
def test_a_timestamp_without_a_zone_ends_nothing(created: Any):
    odd = make_request("odd", uid="uid-odd", created=created)
    requesters = heard(filed("b", 1), odd)
    assert requesters.find_newest("web-1") == "b"


_STEPS = st.tuples(st.sampled_from(["file", "decide", "gone"]), st.integers(0, 4), st.integers(1, 2))


@given(st.lists(_STEPS, max_size=30))
def test_exactly_one_pending_request_of_a_node_is_decided_and_never_one_older_than_a_decided_one(
    steps: list[tuple[str, int, int]],
):
    requesters, decided = PendingRequests(), dict[str, int]()
    for what, age, node in steps:
        name, of = f"r-{node}-{age}", f"web-{node}"
        if what == "file":
            requesters.upsert(filed(name, age, node=of))
        elif what == "decide":
            requesters.upsert(approved(filed(name, age, node=of)))
            decided[of] = max(age, decided.get(of, -1))
        else:
            requesters.remove(name)
        pending = {each.node for each in requesters.by_name.values()}
        newest = requesters.list_newest()
        assert len({each.node for each in newest}) == len(newest)
        assert all(int(each.order.name[-1]) >= decided.get(each.node, -1) for each in newest)
        assert pending - {each.node for each in newest} <= decided.keys()
    for name in list(requesters.by_name):
        requesters.remove(name)
    assert not requesters._by_node


# ---- the limit


def test_a_node_has_a_burst_and_one_more_each_minute_and_others_have_their_own():
    budget = NodeRateLimiter()
    for _ in range(BURST):
        assert budget.seconds_until_allowed("web-1", 0.0) == 0.0
        budget.record_write("web-1", 0.0)
    assert budget.seconds_until_allowed("web-1", 0.0) == REFILL_SECONDS
    assert budget.seconds_until_allowed("web-2", 0.0) == 0.0
    assert budget.seconds_until_allowed("web-1", REFILL_SECONDS) == 0.0
    budget.record_write("web-1", REFILL_SECONDS)
    assert budget.seconds_until_allowed("web-1", REFILL_SECONDS) == REFILL_SECONDS


@given(st.lists(st.floats(0, 120), min_size=1, max_size=60))
def test_whatever_a_node_asks_for_it_gets_no_more_than_its_budget(pauses: list[float]):
    budget, at, spent = NodeRateLimiter(), 0.0, 0
    for pause in pauses:
        at += pause
        if budget.seconds_until_allowed("web-1", at) == 0.0:
            budget.record_write("web-1", at)
            spent += 1
    assert spent <= BURST + at / REFILL_SECONDS


# ---- Events


NODES = {name: make_node(name, uid=f"uid-of-{name}") for name in ("web-1", "web-2")}


def events_on(kube: InMemoryEvents, nodes: dict[str, Node] = NODES, *, later: float = 0.0) -> NodeEvents:
    now = NOW + timedelta(seconds=later)
    return NodeEvents(EventRecorder(kube, component=COMPONENT, now=lambda: now), nodes.get)


def waiting(reason: str, *rivals: str) -> WaitingRequest:
    return WaitingRequest(
        name="csr-1",
        uid="uid-1",
        requester="web-1",
        reason=reason,
        message="10.0.0.5 is claimed twice",
        nodes=frozenset(rivals),
        rivals=rivals,
    )


async def test_a_denial_is_told_again_only_for_another_reason_or_after_an_approval():
    kube = InMemoryEvents()
    events = events_on(kube)
    for why in ("names", "names", "addresses"):
        events.record_denied(make_request(), why, f"because of {why}")
    events.forget_reasons("web-1")
    events.record_denied(make_request(), "names", "because of other names")
    events.record_denied(make_request(node="unknown"), "names", "because")
    assert [queued.event.message for queued in events.recorder._waiting] == [
        "csr-1: because of names",
        "csr-1: because of addresses",
        "csr-1: because of other names",
    ]
    await events.recorder.flush()
    assert {(event.reason, event.type) for event in kube.events} == {("CSRDenied", "Warning")}


async def test_a_wait_is_told_on_every_node_that_has_a_part_in_it_under_one_name_by_all_replicas():
    kube = InMemoryEvents()
    for later in (30.0, 95.0):
        events = events_on(kube, later=later)
        events.record_waiting(make_request(), waiting("addresses", "web-1", "web-2"))
        await events.recorder.flush()
    assert [event.regarding.name for event in kube.events] == ["web-1", "web-2"]
    assert len({event_name(event, NOW) for event in kube.events}) == 2


async def test_what_everybody_claims_is_not_told_on_everybody():
    # a Service's address is on every machine (kube-proxy in IPVS mode): one kubelet that asks for it again
    # and again must not cost an Event on each Node of the cluster
    nodes = {f"web-{n}": make_node(f"web-{n}", uid=f"uid-{n}") for n in range(1, 1001)}
    kube = InMemoryEvents()
    events = events_on(kube, nodes)
    for why in ("rivals", "addresses"):
        events.record_waiting(make_request(), waiting(why, *sorted(nodes)))
    await events.recorder.flush()
    told = [event.regarding.name for event in kube.events]
    assert len(told) == 2 * (1 + MAX_RIVALS)
    assert told.count("web-1") == 2
