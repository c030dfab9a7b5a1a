"""csr between a bus and an API server in memory: which requests it approves and denies."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.bus import flow as flow_module
from libs.common.contract.machine import AddressStatus
from libs.common.contract.signing_request import (
    SigningRequest,
    SigningRequestCondition,
    SigningRequestStatus,
)
from libs.common.contract.subjects import ENRICHED_CSR, OBSERVED_CSR
from libs.common.kube.errors import Forbidden, Invalid, KubeError, Unreachable
from libs.common.observability import metrics
from services.csr.core.pending_requests import BURST
from tests.builders import make_facts, make_node
from tests.bus_actors import wait_until
from tests.bus_server import make_flow_fixtures
from tests.clocks import ManualClock
from tests.csr_actors import SOON, CsrServiceFlow, make_serving_request
from tests.service_flow import REFUSED

HONEST = make_facts()
BEFORE = make_node("old-1", uid="uid-old", ip="10.0.0.5")


flow, any_flow = make_flow_fixtures(CsrServiceFlow.open)


def decided_by_somebody(request: SigningRequest) -> SigningRequest:
    """As it is when a person has approved it."""
    condition = SigningRequestCondition(type="Approved", reason="Kubectl", message="by hand")
    return msgspec.structs.replace(request, status=SigningRequestStatus(conditions=(condition,)))


# ---- what is approved


async def test_a_request_for_what_the_machine_attests_is_approved_with_one_write(any_flow: CsrServiceFlow):
    flow = any_flow
    approved = metrics.CSR_APPROVALS.value("approve")
    async with flow.run_csr():
        await flow.enrich(make_node(), HONEST)
        await flow.file_and_enrich(make_serving_request(), facts=HONEST, node_uid="uid-1")
        decided = await flow.wait_for_decision("csr-1", "approved")
    assert flow.kube.patched == ["csr-1"]
    [condition] = flow.kube.request("csr-1").status.conditions
    assert (condition.type, condition.reason) == ("Approved", "Approved by TalosCloudControllerManager")
    assert condition.message.startswith("This CSR was approved by Talos Cloud Controller Manager")
    assert metrics.CSR_APPROVALS.value("approve") == approved + 1
    assert decided.uid == "uid-of-csr-1"
    assert flow.kube.events == []


OTHER_ADDRESS = make_facts(addresses=(AddressStatus(address="10.9.9.9/24", link="eth1", flags=128),))


@pytest.mark.parametrize("known", [{"facts": OTHER_ADDRESS}, {"fault": REFUSED}], ids=["address", "outage"])
async def test_a_request_filed_before_its_machine_attests_it_is_approved_as_soon_as_it_does(
    flow: CsrServiceFlow, known: dict[str, Any]
):
    async with flow.run_csr():
        await flow.publish_node(make_node())
        place = await flow.file_request(make_serving_request())
        await flow.enrich_request(make_serving_request(), observed=place, node_uid="uid-1", **known)
        await flow.wait_for_decision("csr-1", "waiting")
        await flow.enrich(make_node(), HONEST)
        await flow.enrich_request(make_serving_request(), observed=place, facts=HONEST, node_uid="uid-1")
        await flow.wait_for_decision("csr-1", "approved", seconds=SOON)
    assert flow.kube.patched == ["csr-1"]


@asynccontextmanager
async def run_csr_with_a_waiting_request(flow: CsrServiceFlow) -> AsyncIterator[None]:
    """A request waits for the Node that answered at its address before, and is unreachable now."""
    async with flow.run_csr():
        await flow.publish_unreachable(BEFORE, last_known=make_facts(node_name="old-1"))
        await flow.enrich(make_node(), HONEST)
        await flow.file_and_enrich(
            make_serving_request(), facts=HONEST, node_uid="uid-1", answering_addresses=("10.0.0.5",)
        )
        assert "old-1" in (await flow.wait_for_decision("csr-1", "waiting")).reason
        yield


async def test_what_waits_on_another_node_is_decided_when_that_changes_and_nobody_delivers_it_again(
    any_flow: CsrServiceFlow,
):
    flow = any_flow
    async with run_csr_with_a_waiting_request(flow):
        await flow.publish_node_gone(BEFORE)
        await flow.wait_for_decision("csr-1", "approved", seconds=SOON)
    assert flow.kube.patched == ["csr-1"]


async def test_a_csr_that_was_away_decides_at_its_start_what_has_become_right_meanwhile(
    any_flow: CsrServiceFlow,
):
    flow = any_flow
    async with run_csr_with_a_waiting_request(flow):
        pass
    await flow.publish_node_gone(BEFORE)
    async with flow.run_csr(seed=2):
        await flow.publish_leading()  # the stream's last Leading may be old: a live one is needed
        await flow.wait_for_decision("csr-1", "approved", seconds=SOON)
    assert flow.kube.patched == ["csr-1"]


async def test_without_talos_the_node_object_counts_within_the_allowed_networks_and_that_is_told(
    flow: CsrServiceFlow,
):
    alone = metrics.CSR_APPROVED_WITHOUT_TALOS._value.get()
    async with flow.run_csr(allowed_networks=("10.0.0.0/8",)):
        await flow.publish_node(make_node())
        await flow.file_and_enrich(make_serving_request(), without_talos=True)
        assert "Node object only" in (await flow.wait_for_decision("csr-1", "approved")).reason
    assert flow.kube.get_decision("csr-1") == "Approved"
    assert metrics.CSR_APPROVED_WITHOUT_TALOS._value.get() == alone + 1


# ---- newest and older ones


async def test_only_the_newest_of_a_nodes_requests_is_answered(flow: CsrServiceFlow):
    old, new = make_serving_request("csr-old", age_seconds=60), make_serving_request("csr-new")
    async with flow.run_csr():
        await flow.enrich(make_node(), HONEST)
        first, second = await flow.file_request(old), await flow.file_request(new)
        await flow.enrich_request(old, observed=first, facts=HONEST, node_uid="uid-1")
        assert "csr-new" in (await flow.wait_for_decision("csr-old", "superseded")).reason
        await flow.enrich_request(new, observed=second, facts=HONEST, node_uid="uid-1")
        await flow.wait_for_decision("csr-new", "approved")
        await flow.enrich_request(old, observed=first, facts=HONEST, node_uid="uid-1")
        await flow.delete_request(new)  # approved before: the older one is useless
        other = make_serving_request("csr-other", node="web-2", ips=("10.0.0.6",))
        await flow.file_and_enrich(other)
        await flow.wait_for_decision("csr-other", "waiting")  # csr has received every event before it
    assert flow.kube.patched == ["csr-new"]


async def test_an_older_request_whose_facts_were_dropped_is_answered_with_those_that_follow(
    flow: CsrServiceFlow,
):
    old = make_serving_request("csr-old", age_seconds=60)
    new = make_serving_request("csr-new", ips=("10.0.0.5", "10.0.0.99"))
    async with flow.run_csr():
        await flow.enrich(make_node(), HONEST)
        first, second = await flow.file_request(old), await flow.file_request(new)
        await flow.enrich_request(new, observed=second, facts=HONEST, node_uid="uid-1")
        await flow.wait_for_decision("csr-new", "waiting")
        await flow.enrich_request(old, observed=first)
        await flow.wait_for_decision("csr-old", "superseded")
        await flow.delete_request(new)
        await flow.wait_for_decision("csr-old", "waiting", seconds=SOON)
        await flow.enrich_request(old, observed=first, facts=HONEST, node_uid="uid-1")
        await flow.wait_for_decision("csr-old", "approved", seconds=SOON)
    assert flow.kube.patched == ["csr-old"]


# ---- what is not approved


async def test_a_denial_is_counted_and_told_on_the_node_once(flow: CsrServiceFlow):
    hostile = make_serving_request(dns=("web-1", "kubernetes"))
    denied = metrics.CSR_APPROVALS.value("deny")
    async with flow.run_csr():
        await flow.enrich(make_node(), HONEST)
        await flow.file_and_enrich(hostile, facts=HONEST, node_uid="uid-1")
        await flow.wait_for_decision("csr-1", "denied")
        again = make_serving_request("csr-2", dns=("web-1", "kubernetes"))
        await flow.file_and_enrich(again, facts=HONEST, node_uid="uid-1")
        await flow.wait_for_decision("csr-2", "denied")
    assert flow.kube.list_event_reasons("web-1") == ["CSRDenied"]
    [condition] = flow.kube.request("csr-1").status.conditions
    assert condition.message.startswith("This CSR was denied by Talos Cloud Controller Manager, Reason: ")
    assert metrics.CSR_APPROVALS.value("deny") == denied + 2


async def test_what_waits_for_hours_is_said_again_before_the_stream_forgets_it(flow: CsrServiceFlow):
    clock = ManualClock()
    async with flow.run_csr(clock=clock) as csr:
        await flow.publish_unreachable(make_node(), last_known=HONEST)
        await flow.file_and_enrich(make_serving_request(), fault=REFUSED, node_uid="uid-1")
        first = await flow.wait_for_decision("csr-1", "waiting")
        clock.advance(3000)
        await flow.publish_leading()
        csr._waiting_request_reconciler.enqueue(["csr-1"])  # as its next delivery does

        async def said_again() -> bool:
            decided = await flow.get_decision("csr-1")
            return decided is not None and decided.decided_at > first.decided_at

        await wait_until(said_again)


async def test_a_node_object_with_a_machines_full_name_makes_its_request_wait_and_denies_it_nothing(
    flow: CsrServiceFlow,
):
    """Every holder of the join token can register a Node of any free name."""
    facts, bare = make_facts(hostname="web-1.example.com"), make_node("web-1.example.com", uid="uid-2", ip="")
    request = make_serving_request(dns=("web-1", "web-1.example.com"))
    async with flow.run_csr():
        await flow.enrich(make_node(), facts)
        await flow.publish_node(bare)
        await flow.file_and_enrich(request, facts=facts, node_uid="uid-1")
        waits = await flow.wait_for_decision("csr-1", "waiting", "denied")
        assert (waits.outcome, "Node web-1.example.com, too" in waits.reason) == ("waiting", True)
        await flow.publish_node_gone(bare)
        await flow.wait_for_decision("csr-1", "approved", seconds=SOON)


async def test_a_wait_that_somebody_else_ended_is_over_and_the_next_one_is_told_in_its_turn(
    flow: CsrServiceFlow,
):
    clock = ManualClock()
    async with flow.run_csr(clock=clock) as csr:
        await flow.publish_unreachable(make_node(), last_known=HONEST)
        await flow.file_and_enrich(make_serving_request(age_seconds=3600), fault=REFUSED, node_uid="uid-1")
        await flow.wait_for_decision("csr-1", "waiting")
        clock.advance(31)
        await flow.publish_leading()
        await wait_until(lambda: flow.kube.list_event_reasons("web-1") == ["CSRWaiting"], "it is reported")
        # another replica, or a person
        await flow.observe_request(decided_by_somebody(flow.kube.request("csr-1")))
        await wait_until(lambda: not csr._state.requests.by_name, "csr has received it")
        await flow.file_and_enrich(make_serving_request("csr-2"), fault=REFUSED, node_uid="uid-1")
        await flow.wait_for_decision("csr-2", "waiting")
        csr._waiting_request_reconciler.run_periodic_checks()
        assert len(flow.kube.events) == 1, "it has waited for a moment only"
        clock.advance(31)
        await flow.publish_leading()
        await wait_until(
            lambda: flow.kube.list_event_reasons("web-1") == ["CSRWaiting"] * 2, "the other one, too"
        )


async def test_a_noisy_node_slows_down_itself_and_nobody_else(flow: CsrServiceFlow):
    clock = ManualClock()
    async with flow.run_csr(clock=clock) as csr:
        await flow.enrich(make_node(), HONEST)
        for number in range(BURST):
            await flow.file_and_enrich(
                make_serving_request(f"csr-{number:02}"), facts=HONEST, node_uid="uid-1"
            )
            await flow.wait_for_decision(f"csr-{number:02}", "approved")
        await flow.file_and_enrich(make_serving_request("csr-more"), facts=HONEST, node_uid="uid-1")
        assert "lately" in (await flow.wait_for_decision("csr-more", "waiting")).reason
        await flow.join_and_file("csr-quiet", "web-2", "10.0.0.6")
        await flow.wait_for_decision("csr-quiet", "approved")
        csr._waiting_request_reconciler.enqueue(["csr-more"])
        more = csr._state.requests.by_name["csr-more"]
        await wait_until(lambda: more.retry_at <= clock() + 60, "it is due once the node may get an answer")
        clock.advance(61)
        await flow.publish_leading()
        await flow.wait_for_decision("csr-more", "approved")


# ---- when nothing is decided


async def test_what_came_before_the_table_was_complete_is_decided_as_soon_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(flow_module, "SYNC_TIMEOUT_SECONDS", 0.01)
    async with (
        CsrServiceFlow.open("memory", tmp_path, requests=None) as flow,
        flow.run_csr(ready=False) as csr,
    ):
        await flow.enrich(make_node(), HONEST)
        await flow.file_and_enrich(make_serving_request(), facts=HONEST, node_uid="uid-1")
        await handed_back(5)
        assert "node-csr-approval" in "; ".join(csr.problems())
        assert flow.kube.patched == []
        assert await flow.get_decision("csr-1") is None
        await flow.publish_snapshot(requests=1)
        await flow.wait_for_decision("csr-1", "approved", seconds=SOON)


async def test_what_came_while_no_leader_was_heard_is_decided_as_soon_as_one_is(flow: CsrServiceFlow):
    clock = ManualClock()
    async with flow.run_csr(clock=clock) as csr:
        await flow.enrich(make_node(), HONEST)
        clock.advance(11)
        assert any("no leader" in problem for problem in csr.problems())
        await flow.file_and_enrich(make_serving_request(), facts=HONEST, node_uid="uid-1")
        await handed_back(5)
        assert flow.kube.patched == []
        await flow.publish_leading()
        await flow.wait_for_decision("csr-1", "approved", seconds=SOON)


async def handed_back(times: int) -> None:
    """Return once what was delivered has been handed back that often: the next delivery is seconds away."""
    retried = metrics.HANDLED.labels("csr", "CsrEnriched", "retried")
    before = retried._value.get()
    await wait_until(lambda: retried._value.get() >= before + times, "it was handed back")


async def test_observe_only_tells_what_it_would_do_and_writes_nothing(flow: CsrServiceFlow):
    async with flow.run_csr(observe_only=True):
        await flow.enrich(make_node(), HONEST)
        await flow.file_and_enrich(make_serving_request(), facts=HONEST, node_uid="uid-1")
        await flow.wait_for_decision("csr-1", "would-approve")
        await flow.file_and_enrich(
            make_serving_request("csr-2", dns=("kubernetes",)), facts=HONEST, node_uid="uid-1"
        )
        await flow.wait_for_decision("csr-2", "would-deny")
    assert flow.kube.patched == []
    assert flow.kube.events == []


# ---- one does not touch another


async def test_two_replicas_write_once(any_flow: CsrServiceFlow):
    flow = any_flow
    async with flow.run_csr(), flow.run_csr(seed=2):
        for n in range(1, 21):
            await flow.join_and_file(f"csr-{n}", f"web-{n}", f"10.0.1.{n}")
        for n in range(1, 21):
            await flow.wait_for_decision(f"csr-{n}", "approved")
    assert [flow.kube.get_decision(f"csr-{n}") for n in range(1, 21)] == ["Approved"] * 20
    assert sorted(flow.kube.patched) == sorted(f"csr-{n}" for n in range(1, 21))


async def test_a_second_replica_that_writes_too_fails_at_the_fence_and_lets_it_be(flow: CsrServiceFlow):
    async with flow.run_csr() as csr:
        await flow.enrich(make_node(), HONEST)
        place = await flow.file_request(make_serving_request())
        flow.kube.put(decided_by_somebody(flow.kube.request("csr-1")))  # the watcher has not told of it yet
        await flow.enrich_request(make_serving_request(), observed=place, facts=HONEST, node_uid="uid-1")
        await wait_until(lambda: flow.kube.patched == ["csr-1"], "it was tried")
        await flow.observe_request(flow.kube.request("csr-1"))
        await wait_until(lambda: not csr._state.requests.by_name, "csr has received it")
    assert flow.kube.patched == ["csr-1"]
    [condition] = flow.kube.request("csr-1").status.conditions
    assert condition.message == "by hand"


async def test_a_written_request_is_not_written_again_before_the_watcher_has_observed_it(
    flow: CsrServiceFlow,
):
    flow.kube.watchers = None
    handled = metrics.HANDLED.labels("csr", "CsrEnriched", "handled")
    before = handled._value.get()
    async with flow.run_csr() as csr:
        await flow.join_and_file("csr-1", "web-1", "10.0.0.5")
        await wait_until(lambda: handled._value.get() == before + 1, "it is approved")
        csr._waiting_request_reconciler.enqueue(["csr-1"])
        await wait_until(lambda: handled._value.get() == before + 2, "it is evaluated again")
    assert flow.kube.patched == ["csr-1"]


async def test_one_request_that_kubernetes_does_not_take_keeps_nobody_else_waiting(flow: CsrServiceFlow):
    flow.kube.failing = {"csr-1": Unreachable("no answer")}
    async with flow.run_csr():
        await flow.join_and_file("csr-1", "web-1", "10.0.0.5")
        await flow.join_and_file("csr-2", "web-2", "10.0.0.6")
        await flow.wait_for_decision("csr-2", "approved")
        flow.kube.failing.clear()
        await flow.wait_for_decision("csr-1", "approved")


@pytest.mark.parametrize(
    "refusal",
    [
        Forbidden("csr lacks the right", status=403),
        # the status of a ValidatingAdmissionPolicy, unless it names another one
        Invalid("ValidatingAdmissionPolicy 'csr' denied the request", status=422),
    ],
)
async def test_a_request_that_csr_may_not_answer_waits_and_names_the_cause(
    flow: CsrServiceFlow, refusal: KubeError
):
    flow.kube.failing = {"csr-1": refusal}
    async with flow.run_csr() as csr:
        await flow.join_and_file("csr-1", "web-1", "10.0.0.5")
        waiting = await flow.wait_for_decision("csr-1", "waiting")
        assert refusal.message in waiting.reason
        flow.kube.failing.clear()
        csr._enqueue_all()
        await flow.wait_for_decision("csr-1", "approved")


async def test_a_request_that_kubernetes_does_not_take_no_longer_waits_for_what_has_arrived(
    flow: CsrServiceFlow,
):
    request = make_serving_request(ips=("10.0.0.5",))
    flow.kube.failing = {"csr-1": Unreachable("no answer")}
    async with flow.run_csr() as csr:
        await flow.enrich(make_node(), make_facts(addresses=()))
        await flow.file_and_enrich(request, facts=make_facts(addresses=()), node_uid="uid-1")
        assert "not on the machine" in (await flow.wait_for_decision("csr-1", "waiting")).reason
        await flow.enrich_request(request, facts=HONEST, node_uid="uid-1")
        await wait_until(lambda: bool(flow.kube.patched), "the write fails")
        await wait_until(lambda: not csr._state.waiting.by_name, "no Event says that it lacks the address")
        flow.kube.failing.clear()
        await flow.wait_for_decision("csr-1", "approved")


async def test_nothing_is_remembered_of_requests_that_are_gone(flow: CsrServiceFlow):
    async with flow.run_csr() as csr:
        requests = [make_serving_request(f"csr-{n}", node=f"web-{n}") for n in range(50)]
        for request in requests:
            await flow.file_and_enrich(request)
        for request in requests:
            await flow.wait_for_decision(request.name, "waiting")
        assert len(csr._state.waiting.by_name) == 50
        for request in requests:
            await flow.delete_request(request)
        await wait_until(lambda: not csr._state.waiting.by_name, "forgotten")
        assert not csr._state.requests.by_name
        assert not csr._state.waiting.by_cause
        assert not csr._decision_publisher._published
        # for an hour the stream has the events of deleted requests: for a kubelet with a hundred a second it
        # holds hundreds of thousands by then
        assert not csr._flow.cache.list_under(OBSERVED_CSR)
        await wait_until(lambda: not csr._flow.cache.list_under(ENRICHED_CSR), "forgotten")


async def test_a_burst_of_word_about_nodes_looks_at_each_waiting_request_a_few_times_only(
    flow: CsrServiceFlow,
):
    count = 200
    waiting = metrics.HANDLED.labels("csr", "CsrEnriched", "waiting")
    nodes = [make_node(f"web-{n}", uid=f"uid-{n}") for n in range(count)]
    async with flow.run_csr():
        for n, node in enumerate(nodes):
            await flow.publish_node(node)
            facts = make_facts(node_name=node.name, node_ip="10.9.9.9", addresses=())
            await flow.file_and_enrich(
                make_serving_request(f"csr-{n}", node=node.name), facts=facts, node_uid=node.uid
            )
        for n in range(count):
            await flow.wait_for_decision(f"csr-{n}", "waiting")
        before = waiting._value.get()
        for node in nodes:
            await flow.publish_unreachable(node)
        await wait_until(lambda: waiting._value.get() - before >= count, "each was looked at again")
    assert waiting._value.get() - before <= 4 * count


async def test_what_has_no_word_of_its_machine_is_not_looked_at_for_word_of_nodes(flow: CsrServiceFlow):
    waiting = metrics.HANDLED.labels("csr", "CsrEnriched", "waiting")
    async with flow.run_csr():
        await flow.file_and_enrich(make_serving_request())
        await flow.wait_for_decision("csr-1", "waiting")
        before = waiting._value.get()
        for _ in range(5):
            await flow.enrich(make_node(), HONEST)
        await flow.file_and_enrich(make_serving_request("csr-2", node="web-2"))
        await flow.wait_for_decision("csr-2", "waiting")
        assert waiting._value.get() - before <= 1
        await flow.enrich_request(make_serving_request(), facts=HONEST, node_uid="uid-1")
        await flow.wait_for_decision("csr-1", "approved", seconds=SOON)


async def test_gauges_tell_what_waits_for_how_long_and_what_the_signer_owes(flow: CsrServiceFlow):
    clock = ManualClock()
    async with flow.run_csr(clock=clock) as csr:
        await flow.publish_unreachable(make_node(), last_known=HONEST)
        await flow.file_and_enrich(
            make_serving_request("csr-old", age_seconds=90), fault=REFUSED, node_uid="uid-1"
        )
        await flow.file_and_enrich(
            make_serving_request("csr-new", age_seconds=60), fault=REFUSED, node_uid="uid-1"
        )
        await flow.wait_for_decision("csr-new", "waiting")
        await flow.observe_request(decided_by_somebody(make_serving_request("csr-2", node="web-2")))
        await wait_until(lambda: bool(csr._state.requests.awaiting_signer), "csr has received it")
        await wait_until(
            lambda: csr._state.waiting.by_name.keys() == {"csr-new"}, "the older one waits no more"
        )
        [waiting] = csr._state.waiting.by_name.values()
        csr._waiting_request_reconciler.run_periodic_checks()
        assert metrics.CSR_WAITING.labels(waiting.reason)._value.get() == 1
        assert metrics.CSR_SUPERSEDED._value.get() == 1
        assert metrics.CSR_OLDEST_PENDING_AGE._value.get() == 60
        assert metrics.CSR_APPROVED_NOT_ISSUED._value.get() == 1
        await flow.delete_request(flow.kube.request("csr-new"))
        await flow.delete_request(flow.kube.request("csr-old"))
        await wait_until(lambda: not csr._state.requests.by_name, "both are gone")
        ahead = make_serving_request("csr-ahead", age_seconds=-60)
        await flow.file_request(ahead)
        await wait_until(lambda: bool(csr._state.requests.by_name), "csr has received it")
        csr._waiting_request_reconciler.run_periodic_checks()
        assert metrics.CSR_OLDEST_PENDING_AGE._value.get() == 0, "the API server's clock is ahead of ours"
        await flow.delete_request(ahead)
        await wait_until(lambda: not csr._state.requests.by_name, "it is gone")
        csr._waiting_request_reconciler.run_periodic_checks()
        assert metrics.CSR_WAITING.labels(waiting.reason)._value.get() == 0
        assert metrics.CSR_OLDEST_PENDING_AGE._value.get() == 0
