"""lifecycle between a bus and an API server: which Nodes it deletes and taints, and which never."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.node import Node
from libs.common.kube.api import KubeApi
from libs.common.kube.lease import Lease, get_annotation
from libs.testbed.sim_apiserver.faults import EmptyClose, TooManyRequestsFault
from services.lifecycle.core.deletion_limit import ANNOTATION
from services.lifecycle.core.node_index import DeletionCase
from tests.builders import make_facts
from tests.bus_actors import wait_until, wait_until_ready
from tests.bus_server import make_flow_fixtures
from tests.lifecycle_actors import (
    GRACE,
    LEASE,
    NODES,
    REFUSED,
    LifecycleFlow,
    make_answering,
    make_foreign_machine,
)

GOING = msgspec.structs.replace(make_facts(), stage="shutting down")
SHUTDOWN = "node.cloudprovider.kubernetes.io/shutdown"
PERMITTED = {("get", "nodes"), ("patch", "nodes"), ("delete", "nodes"), ("create", "events")}
A_YEAR = 366 * 86400.0
UUIDS = [f"{number:08x}-5b4a-4392-a1b0-c9d8e7f60514" for number in range(1, 20)]


flow, any_flow = make_flow_fixtures(LifecycleFlow.open)


# ---- what is deleted


async def test_a_node_whose_machine_was_replaced_is_deleted_after_three_looks_and_told_of(
    any_flow: LifecycleFlow,
):
    flow = any_flow
    async with flow.run_lifecycle():
        node = await flow.add_lost_node()
        mark = flow.server.audit_mark()
        await flow.publish_proof(node)
        assert await flow.get_node("web-1") is None
        assert flow.count_requests(mark)["delete", "nodes"] == 1
        told = await flow.wait_for_decision(
            "web-1", "deleted", "another UUID", "no machine known to us", "3 polls"
        )
        assert told.uid == node.uid
        assert "web-1" in (await flow.get_lease())["metadata"]["annotations"][ANNOTATION]
        await wait_until(lambda: ("create", "events") in flow.count_requests(mark), "the Event is written")
    assert await flow.list_event_reasons("web-1") == ["DeletingNode"]
    assert flow.count_requests(mark).keys() <= PERMITTED


async def test_nothing_is_deleted_before_the_grace_is_over(flow: LifecycleFlow):
    async with flow.run_lifecycle(grown_up=False) as service:
        await wait_until(lambda: service.replica_status().leading_for is not None, "it leads")
        node = await flow.add_lost_node()
        await flow.publish_replacement(node, minutes=0)
        await flow.publish_replacement(node, minutes=4.5)
        await flow.publish_replacement(node, minutes=5.4)
        told = await flow.wait_for_decision("web-1", "kept", "10 min since the start of lifecycle itself")
        assert "10 min since this lifecycle leads" in told.reason
        assert await flow.get_node("web-1") is not None
        await flow.publish_replacement(node, minutes=5.4)
        await flow.wait_for_decision("web-1", "deleted")


async def test_what_kubernetes_says_at_that_moment_counts_not_what_was_heard(flow: LifecycleFlow):
    async with flow.run_lifecycle():
        node = await flow.add_lost_node()
        condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T00:00:00Z"}
        await flow.patch(f"{NODES}/web-1/status", {"status": {"conditions": [condition]}})
        await flow.publish_proof(node, then="kept")
        await flow.wait_for_decision("web-1", "kept", "it is Ready")
        assert ANNOTATION not in (await flow.get_lease())["metadata"].get("annotations", {}), (
            "nothing is counted"
        )
    assert await flow.get_node("web-1") is not None


class InterruptedApi(KubeApi):
    """Something happens right before a Node is deleted, or while its deletion is being counted."""

    before_delete: Any = None
    while_counted: Any = None

    async def delete_node(self, name: str, **options: Any) -> None:
        if self.before_delete is not None:
            await self.before_delete()
        await super().delete_node(name, **options)

    async def write_lease(self, document: Any, **options: Any) -> Lease:
        written = await super().write_lease(document, **options)
        if self.while_counted is not None and get_annotation(written, ANNOTATION):
            await self.while_counted()
        return written


def interrupt(**callbacks: Any) -> Callable[[KubeApi], KubeApi]:
    def wrap(api: KubeApi) -> KubeApi:
        api.__class__ = InterruptedApi
        api.__dict__.update(callbacks)
        return api

    return wrap


async def test_a_node_that_somebody_wrote_at_the_last_moment_is_kept_and_all_proofs_are_needed_anew(
    flow: LifecycleFlow,
):
    def write() -> Any:
        return flow.patch(f"{NODES}/web-1", {"metadata": {"labels": {"a": "b"}}})

    async with flow.run_lifecycle(kube=interrupt(before_delete=write)):
        node = await flow.add_lost_node()
        await flow.publish_proof(node, then="kept")
        await flow.wait_for_decision("web-1", "kept", "its deletion failed", "another client wrote it")
        await flow.publish_replacement(node, minutes=1)
        await flow.wait_for_decision("web-1", "kept", "1 of 3 polls")
    assert await flow.get_node("web-1") is not None
    assert sorted(await flow.list_event_reasons("web-1")) == ["DeletingNode", "DeletingNodeFailed"]


async def test_what_is_heard_at_the_last_moment_counts(flow: LifecycleFlow):
    async def machine_answers() -> None:
        await flow.publish(make_answering(node, stream_id=flow.stream_id))
        await wait_until(
            lambda: "web-1" in service._node_index.machines.nodes_by_machine_name, "it was heard"
        )

    async with flow.run_lifecycle(kube=interrupt(while_counted=machine_answers)) as service:
        node = await flow.add_lost_node()
        await flow.publish_proof(node, then="kept")
        await flow.wait_for_decision("web-1", "kept", "its machine answers")
        assert "web-1" in (await flow.get_lease())["metadata"]["annotations"][ANNOTATION], "it was counted"
    assert await flow.get_node("web-1") == node


@pytest.mark.parametrize("lost", ["stream", "connection"])
async def test_where_messages_may_have_been_missed_the_looks_begin_anew(tmp_path: Path, lost: str):
    async with LifecycleFlow.open("nats", tmp_path) as flow, flow.run_lifecycle() as service:
        assert flow.buses.nats is not None
        node = await flow.add_lost_node()
        await flow.publish_replacement(node)
        await flow.publish_replacement(node)
        await flow.wait_for_decision("web-1", "kept", "2 of 3 polls")
        if lost == "stream":
            await flow.wipe()
            await wait_until_ready(service, flow.bus)
            await flow.observe_node("web-1")
        else:
            await flow.buses.nats.kill()
            await wait_until(lambda: bool(service.problems()), "it is noticed")
            await flow.buses.nats.restart()
            await wait_until(lambda: not service.problems(), "it is followed again")
        await flow.publish_replacement(node)
        await flow.wait_for_decision("web-1", "kept", "1 of 3 polls")
        assert await flow.get_node("web-1") is not None


async def test_a_deletion_that_the_server_postpones_is_not_sent_by_what_was_known_before(flow: LifecycleFlow):
    postponed = TooManyRequestsFault(retry_after_seconds=5)
    flow.server.faults.inject(postponed, verb="delete", resource="nodes", times=1)
    async with flow.run_lifecycle(leader_elect=False, renew_deadline_seconds=10.0):
        node = await flow.add_lost_node()
        await flow.publish_proof(node, then="")
        await flow.wait_for_decision("web-1", "kept", "its deletion failed", "429")
        assert await flow.get_node("web-1") is not None


async def test_after_a_message_that_cannot_be_read_the_looks_begin_anew(flow: LifecycleFlow):
    newer: Any = "of a newer version"
    async with flow.run_lifecycle():
        node = await flow.add_lost_node()
        await flow.publish_replacement(node)
        await flow.publish_replacement(node)
        await flow.wait_for_decision("web-1", "kept", "2 of 3 polls")
        await flow.publish_poll_result(node, fault=msgspec.structs.replace(REFUSED, kind=newer))
        await flow.publish_replacement(node)
        await flow.wait_for_decision("web-1", "kept", "1 of 3 polls")
        assert await flow.get_node("web-1") is not None


async def test_while_no_watcher_is_heard_to_lead_nothing_is_written(flow: LifecycleFlow):
    async with flow.run_lifecycle(leader_elect=False, renew_deadline_seconds=10.0) as service:
        node = await flow.add_lost_node()
        for told in ("1 of 3", "2 of 3"):
            await flow.publish_replacement(node)
            await flow.wait_for_decision("web-1", "kept", told)
        flow.clock.advance(330)  # no leader heartbeat
        await flow.publish_poll_result(node, make_foreign_machine(queried_at=flow.clock.now()))
        later = await flow.add_lost_node("web-2", uuid="")
        await flow.publish(make_answering(later, stream_id=flow.stream_id, node_name="heard-last"))
        await wait_until(
            lambda: "heard-last" in service._node_index.machines.nodes_by_machine_name, "all was heard"
        )
        assert any("no leader heartbeat" in problem for problem in service.problems())
        assert await flow.get_node("web-1") is not None
        await flow.publish_replacement(node, minutes=1)
        await flow.wait_for_decision("web-1", "deleted")


# ---- one leads


async def test_a_standby_deletes_nothing_and_after_a_takeover_all_proofs_are_needed_anew(flow: LifecycleFlow):
    async with AsyncExitStack() as stack:
        node = await flow.add_lost_node()
        async with flow.run_lifecycle(identity="one"):
            second = await stack.enter_async_context(flow.run_lifecycle(identity="two", grown_up=False))
            flow.clock.advance(GRACE)
            await flow.publish_replacement(node)
            await flow.publish_replacement(node)
            await flow.wait_for_decision("web-1", "kept", "2 of 3 polls")
            assert second.replica_status().leading_for is None
        await wait_until(lambda: second.replica_status().leading_for is not None, "the other one leads")
        await flow.publish_replacement(node)
        told = await flow.wait_for_decision("web-1", "kept", "1 of 3 polls")
        assert "10 min since this lifecycle leads" in told.reason
        assert await flow.get_node("web-1") is not None


async def test_who_lost_the_lease_and_does_not_know_it_yet_deletes_nothing(flow: LifecycleFlow):
    async with flow.run_lifecycle(retry_period_seconds=1000.0) as service:
        node = await flow.add_lost_node()
        await flow.patch(LEASE, {"spec": {"holderIdentity": "another"}})
        await flow.publish_proof(node, then="kept")
        await flow.wait_for_decision("web-1", "limited", "another holds the Lease now")
        assert service.replica_status().leading_for is not None, "it does not know yet"
        assert await flow.get_node("web-1") is not None


# ---- the cap


async def test_no_more_than_the_cap_are_deleted_in_an_hour_restarts_included(flow: LifecycleFlow):
    async with flow.run_lifecycle(max_deletions_per_hour=2):
        nodes = [await flow.add_lost_node(f"web-{n}", uuid=UUIDS[n]) for n in range(5)]
        await flow.publish_proof(*nodes, then="")
        outcomes: list[str] = []

        async def all_are_decided() -> bool:
            said = [await flow.get_decision(node.name) for node in nodes]
            outcomes[:] = sorted(one.outcome for one in said if one and "2 of 3" not in one.reason)
            return len(outcomes) == 5

        await wait_until(all_are_decided, "all are decided")
        left = [node for node in nodes if await flow.get_node(node.name)]
        assert (outcomes, len(left)) == (["deleted"] * 2 + ["limited"] * 3, 3)
    async with flow.run_lifecycle(max_deletions_per_hour=2):
        await flow.publish_proof(left[0], then="limited")
        await flow.wait_for_decision(left[0].name, "limited", "2 in the last hour")
        assert await flow.get_node(left[0].name) is not None
        flow.clock.advance(3600)
        await flow.publish_leading()
        await flow.publish_proof(left[0])


async def test_where_the_record_cannot_be_read_or_written_nothing_is_deleted(flow: LifecycleFlow):
    async with flow.run_lifecycle():
        await flow.patch(LEASE, {"metadata": {"annotations": {ANNOTATION: "nonsense"}}})
        node = await flow.add_lost_node()
        await flow.publish_proof(node, then="kept")
        await flow.wait_for_decision("web-1", "limited", "is invalid")
        await flow.patch(LEASE, {"metadata": {"annotations": {ANNOTATION: "[]"}}})
        flow.server.faults.inject(EmptyClose(), verb="update", resource="leases")
        await flow.publish_replacement(node)
        await flow.wait_for_decision("web-1", "limited", "cannot write the record of deletions")
        assert await flow.get_node("web-1") is not None
        flow.server.faults.clear()
        await flow.publish_replacement(node)
        await flow.wait_for_decision("web-1", "deleted")


async def test_without_leader_election_the_deletions_are_counted_all_the_same(flow: LifecycleFlow):
    async with flow.run_lifecycle(leader_elect=False, max_deletions_per_hour=1):
        node, other = await flow.add_lost_node(), await flow.add_lost_node("web-2", uuid=UUIDS[2])
        await flow.publish_proof(node)
        assert not (await flow.get_lease())["spec"].get("holderIdentity")
        await flow.publish_proof(other, then="kept")
        await flow.wait_for_decision("web-2", "limited", "1 in the last hour")


# ---- GCP spot machines

SPOT = {
    "node.cloudprovider.kubernetes.io/platform": "gcp",
    "node.cloudprovider.kubernetes.io/lifecycle": "spot",
}
PREEMPTED = [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]


async def test_preempted_spot_machines_are_deleted_under_the_same_cap_and_only_if_asked_for(
    flow: LifecycleFlow,
):
    flow.clock.advance(A_YEAR)  # the API server's clock is today's, and says when the Nodes were created
    await flow.publish_leading()
    spots = [await flow.add_lost_node(f"spot-{n}", uuid="", labels=SPOT, taints=PREEMPTED) for n in range(3)]
    plain = await flow.add_lost_node("plain", uuid="", taints=PREEMPTED)
    async with flow.run_lifecycle():
        for node in (*spots, plain):
            await flow.publish_poll_result(node)
        for node in (*spots, plain):
            await flow.wait_for_decision(node.name, "kept", "silence and errors prove nothing")
    async with flow.run_lifecycle(delete_preempted_gcp_spot=True, max_deletions_per_hour=2):
        await wait_until(lambda: len(flow.server.api.store.table("nodes").objects) == 2, "two are deleted")
        left = [node for node in spots if await flow.get_node(node.name)]
        await flow.wait_for_decision(left[0].name, "limited", "2 in the last hour")
    assert await flow.get_node("plain") == plain


async def test_a_deletion_that_is_refused_is_not_tried_again_and_again(flow: LifecycleFlow):
    flow.clock.advance(A_YEAR)
    await flow.publish_leading()
    await flow.add_lost_node("spot-1", uuid="", labels=SPOT, taints=PREEMPTED)
    flow.server.faults.inject(EmptyClose(), verb="delete", resource="nodes")
    async with flow.run_lifecycle(delete_preempted_gcp_spot=True):
        await flow.wait_for_decision("spot-1", "kept", "its deletion failed a moment ago")
        record = (await flow.get_lease())["metadata"]["annotations"][ANNOTATION]
        assert record.count("spot-1") == 1
        await flow.add_lost_node("web-9", uuid="")
        flow.server.faults.clear()
        flow.clock.advance(601)
        await flow.publish_leading()
        await wait_until(lambda: len(flow.server.api.store.table("nodes").objects) == 1, "it is deleted")


# ---- nothing at all is written


async def test_a_dry_run_tells_each_once_and_deletes_and_taints_nothing(flow: LifecycleFlow):
    async with flow.run_lifecycle(dry_run=True, max_deletions_per_hour=1):
        node = await flow.add_lost_node()
        gone = await flow.add_lost_node("web-2", uuid="")
        mark = flow.server.audit_mark()
        await flow.publish_proof(node, then="would-delete")
        await flow.publish_poll_result(gone, last_known=GOING)
        off = await flow.wait_for_decision("web-2", "shutdown")
        assert off.changes == (f"would have set taint {SHUTDOWN}:NoSchedule",)
        await flow.publish_replacement(node)
        await flow.publish_replacement(node)
        await wait_until(lambda: ("create", "events") in flow.count_requests(mark), "it is reported")
    assert await flow.get_node("web-1") == node
    assert await flow.get_node("web-2") == gone
    assert await flow.list_event_reasons("web-1") == ["WouldDeleteNode"]
    assert not {("delete", "nodes"), ("patch", "nodes")} & flow.count_requests(mark).keys()


async def test_observing_only_writes_nothing_at_all(flow: LifecycleFlow):
    mark = flow.server.audit_mark()
    async with flow.run_lifecycle(observe_only=True):
        node = await flow.add_lost_node()
        await flow.publish_proof(node, then="would-delete")
    assert flow.count_requests(mark).keys() == {("get", "nodes")}
    assert await flow.get_lease() is None


CONFIG = """
ownership:
  controllers:
    - name: cloud-node-lifecycle
      nodeSelector:
        - matchExpressions:
            - {key: team, operator: In, values: [a]}
"""


async def test_a_node_of_somebody_else_is_neither_read_nor_written_and_told_as_such(flow: LifecycleFlow):
    file = parse_cloud_config(CONFIG, "config.yaml")
    async with flow.run_lifecycle(file=file):
        theirs, ours = (
            await flow.add_lost_node(labels={"team": "b"}),
            await flow.add_lost_node("web-2", labels={"team": "a"}, uuid=UUIDS[2]),
        )
        going = await flow.add_lost_node("web-3", uuid="")
        mark = flow.server.audit_mark()
        await flow.publish_poll_result(going, last_known=GOING)
        for _ in range(3):
            await flow.publish_replacement(theirs)
        await flow.wait_for_decision("web-1", "not-owned", "nodeSelector")
        await flow.wait_for_decision("web-3", "not-owned")
        assert flow.count_requests(mark) == {}
        await flow.publish_proof(ours)
    assert await flow.get_node("web-1") == theirs
    assert await flow.get_node("web-3") == going
    assert await flow.list_event_reasons("web-1") == []


async def test_a_defect_that_one_node_triggers_does_not_stop_the_others(flow: LifecycleFlow):
    async with flow.run_lifecycle() as service:
        await flow.add_lost_node()
        other = await flow.add_lost_node("web-2")
        await wait_until(lambda: len(service._node_index.list_names()) == 2, "both are observed")
        reconciler = service._reconciler
        build_case = reconciler.build_case

        def fail_for_one(node: Node) -> DeletionCase:
            if node.name == "web-1":
                raise ZeroDivisionError("a defect")
            return build_case(node)

        reconciler.build_case = fail_for_one
        reconciler._queue.add(["web-1"])
        await flow.publish_poll_result(other)
        await flow.wait_for_decision("web-2", "kept")


async def test_a_node_that_got_another_owner_a_moment_ago_is_not_tainted(flow: LifecycleFlow):
    async with flow.run_lifecycle(file=parse_cloud_config(CONFIG, "config.yaml")) as service:
        node = await flow.add_lost_node(labels={"team": "a"})
        await flow.patch(f"{NODES}/web-1", {"metadata": {"labels": {"team": "b"}}})  # not observed yet
        await flow.publish_poll_result(node, last_known=GOING)
        await wait_until(lambda: "web-1" in service._reconciler._retries, "the patch has failed")
        theirs = await flow.observe_node("web-1")
        await flow.wait_for_decision("web-1", "not-owned")
    assert theirs.spec.taints == node.spec.taints


# ---- shut down


async def test_a_machine_that_shut_down_is_tainted_until_it_answers(flow: LifecycleFlow):
    async with flow.run_lifecycle(grown_up=False) as service:
        await flow.add_lost_node("web-2", uuid="")
        node = await flow.observe_node("web-2")
        await flow.publish_poll_result(node, last_known=make_facts())
        await flow.wait_for_decision("web-2", "kept", "(refused)")
        taint = {"key": "other.example/taint", "effect": "NoSchedule"}
        taints = [msgspec.to_builtins(one) for one in node.spec.taints]
        await flow.patch(f"{NODES}/web-2", {"spec": {"taints": [taint, *taints]}})  # not seen yet
        await flow.publish_poll_result(node, last_known=GOING)
        told = await flow.wait_for_decision(
            "web-2", "shutdown", "it is shutting down, and has been silent since"
        )
        assert told.changes == (f"set taint {SHUTDOWN}:NoSchedule",)
        tainted = await flow.observe_node("web-2")
        assert {one.key for one in tainted.spec.taints} >= {"other.example/taint", SHUTDOWN}
        others = [one for one in tainted.spec.taints if one.key not in ("other.example/taint", SHUTDOWN)]
        kept = [msgspec.to_builtins(one) for one in tainted.spec.taints if one.key != "other.example/taint"]
        await flow.patch(
            f"{NODES}/web-2", {"spec": {"taints": kept}}
        )  # not seen: ours is at another place now
        await flow.publish(make_answering(tainted, stream_id=flow.stream_id))
        await wait_until(lambda: "web-2" in service._reconciler._retries, "the patch has failed")
        await flow.observe_node("web-2")
        await flow.wait_for_decision("web-2", "kept", "its machine answers")
        after = await flow.get_node("web-2")
        assert after is not None
        assert list(after.spec.taints) == others


@pytest.mark.parametrize("spot", [False, True])
async def test_a_node_that_fails_again_is_retried_less_often(spot: bool, flow: LifecycleFlow):
    flow.server.faults.inject(EmptyClose(), verb="patch", resource="nodes")
    async with flow.run_lifecycle(delete_preempted_gcp_spot=spot) as service:
        reconciler = service._reconciler
        await flow.publish_poll_result(await flow.add_lost_node("web-2", uuid=""), last_known=GOING)
        await wait_until(lambda: reconciler._retries.get("web-2", 0.0) > flow.clock(), "it failed twice")
        reconciler.requeue()
        assert len(reconciler._queue) == 0
        flow.server.faults.clear()
        flow.clock.advance(60.0)
        await flow.publish_leading()
        await flow.wait_for_decision("web-2", "shutdown")


async def test_who_does_not_lead_taints_nothing_and_does_so_when_he_does(flow: LifecycleFlow):
    flow.server.faults.inject(EmptyClose(), resource="leases")
    mark = flow.server.audit_mark()
    async with flow.run_lifecycle(grown_up=False, ready=False) as service:
        node = await flow.add_lost_node("web-2", uuid="")
        await flow.publish_poll_result(node, last_known=GOING)
        await flow.publish(
            make_answering(
                await flow.add_lost_node("web-3", uuid=""), stream_id=flow.stream_id, node_name="last"
            )
        )
        await wait_until(
            lambda: "last" in service._node_index.machines.nodes_by_machine_name, "all was heard"
        )
        service._reconciler.requeue()
        assert flow.count_requests(mark) == {}
        assert await flow.get_decision("web-2") is None
        flow.server.faults.clear()
        await flow.wait_for_decision("web-2", "shutdown")
    assert ("patch", "nodes") in flow.count_requests(mark)
