"""lifecycle between a bus and an API server: which Nodes it deletes and taints, and which never."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.kube_api.api import KubeApi
from libs.common.kube_api.lease import Lease, get_annotation
from libs.common.kube_api.load_kube_config import load_kube_config
from libs.common.service_spec import LIFECYCLE, LIFECYCLE_LEASE_NAME
from libs.testbed.running_services import grant_rights
from libs.testbed.service_rights import lease_of, user_of
from libs.testbed.sim_apiserver.faults import EmptyClose
from services.lifecycle.deletion_limit import ANNOTATION
from tests.builders import some_facts
from tests.bus_actors import NATS, eventually, until_ready
from tests.lifecycle_actors import GRACE, LEASE, NODES, LifecycleFlow
from tests.lifecycle_cases import another, answering

GOING = msgspec.structs.replace(some_facts(), stage="shutting down")
SHUTDOWN = "node.cloudprovider.kubernetes.io/shutdown"
PERMITTED = {("get", "nodes"), ("patch", "nodes"), ("delete", "nodes"), ("create", "events")}
A_YEAR = 366 * 86400.0
UUIDS = [f"{number:08x}-5b4a-4392-a1b0-c9d8e7f60514" for number in range(1, 20)]


@pytest.fixture
async def flow(tmp_path: Path) -> AsyncIterator[LifecycleFlow]:
    async with LifecycleFlow.on("memory", tmp_path) as running:
        yield running


@pytest.fixture(params=["memory", NATS])
async def any_flow(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LifecycleFlow]:
    async with LifecycleFlow.on(request.param, tmp_path) as running:
        yield running


# ---- what is deleted


async def test_a_node_whose_machine_was_replaced_is_deleted_after_three_looks_and_told_of(
    any_flow: LifecycleFlow,
):
    flow = any_flow
    async with flow.running():
        node = await flow.lost()
        mark = flow.server.audit_mark()
        await flow.proven(node)
        assert await flow.node("web-1") is None
        assert flow.asked(mark)["delete", "nodes"] == 1
        told = await flow.until_decided(
            "web-1", "deleted", "another UUID", "no machine known to us", "3 looks"
        )
        assert told.uid == node.uid
        assert "web-1" in (await flow.lease())["metadata"]["annotations"][ANNOTATION]
        await eventually(lambda: ("create", "events") in flow.asked(mark), "the Event is written")
    assert await flow.told("web-1") == ["DeletingNode"]
    assert flow.asked(mark).keys() <= PERMITTED


async def test_nothing_is_deleted_before_the_grace_is_over(flow: LifecycleFlow):
    async with flow.running(grown_up=False) as service:
        await eventually(lambda: service.replica_status().leading_for is not None, "it leads")
        node = await flow.lost()
        await flow.replaced(node, minutes=0)
        await flow.replaced(node, minutes=4.5)
        await flow.replaced(node, minutes=5.4)
        told = await flow.until_decided("web-1", "kept", "10 min since the start of lifecycle itself")
        assert "10 min since this lifecycle leads" in told.reason
        assert await flow.node("web-1") is not None
        await flow.replaced(node, minutes=5.4)
        await flow.until_decided("web-1", "deleted")


async def test_what_kubernetes_says_at_that_moment_counts_not_what_was_heard(flow: LifecycleFlow):
    async with flow.running():
        node = await flow.lost()
        condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T00:00:00Z"}
        await flow.patch(f"{NODES}/web-1/status", {"status": {"conditions": [condition]}})
        await flow.proven(node, then="kept")
        await flow.until_decided("web-1", "kept", "it is Ready")
        assert ANNOTATION not in (await flow.lease())["metadata"].get("annotations", {}), "nothing is counted"
    assert await flow.node("web-1") is not None


class Meddled(KubeApi):
    """Somebody writes the Node right before it is deleted."""

    meddle: Any = None

    async def delete_node(self, name: str, *, uid: str, resource_version: str) -> None:
        await self.meddle()
        await super().delete_node(name, uid=uid, resource_version=resource_version)


async def test_a_node_that_somebody_wrote_at_the_last_moment_is_kept_and_all_proofs_are_needed_anew(
    flow: LifecycleFlow,
):
    def meddled(api: KubeApi) -> KubeApi:
        api.__class__ = Meddled
        api.meddle = lambda: flow.patch(f"{NODES}/web-1", {"metadata": {"labels": {"a": "b"}}})  # type: ignore[attr-defined]
        return api

    async with flow.running(kube=meddled):
        node = await flow.lost()
        await flow.proven(node, then="kept")
        await flow.until_decided("web-1", "kept", "its deletion failed", "somebody wrote it")
        await flow.replaced(node, minutes=1)
        await flow.until_decided("web-1", "kept", "1 of 3 looks")
    assert await flow.node("web-1") is not None
    assert sorted(await flow.told("web-1")) == ["DeletingNode", "DeletingNodeFailed"]


class Overheard(KubeApi):
    """Something is heard while the deletion is being counted."""

    meddle: Any = None

    async def update_lease(self, namespace: str, name: str, document: Any, **options: Any) -> Lease:
        written = await super().update_lease(namespace, name, document, **options)
        if get_annotation(written, ANNOTATION):
            await self.meddle()
        return written


async def test_what_is_heard_at_the_last_moment_counts(flow: LifecycleFlow):
    def overheard(api: KubeApi) -> KubeApi:
        api.__class__ = Overheard
        api.meddle = machine_answers  # type: ignore[attr-defined]
        return api

    async def machine_answers() -> None:
        await flow.say(answering(node, incarnation=flow.incarnation))
        await eventually(lambda: "web-1" in service.machines.nodes_by_machine_name, "it was heard")

    async with flow.running(kube=overheard) as service:
        node = await flow.lost()
        await flow.proven(node, then="kept")
        await flow.until_decided("web-1", "kept", "its machine answers")
        assert "web-1" in (await flow.lease())["metadata"]["annotations"][ANNOTATION], "it was counted"
    assert await flow.node("web-1") == node


async def test_any_contrary_word_begins_the_looks_anew(flow: LifecycleFlow):
    async with flow.running():
        node = await flow.lost()
        await flow.replaced(node)
        await flow.replaced(node)
        await flow.until_decided("web-1", "kept", "2 of 3 looks")
        await flow.looked(node)  # silence
        await flow.until_decided("web-1", "kept", "silence and errors prove nothing")
        await flow.replaced(node)
        await flow.until_decided("web-1", "kept", "1 of 3 looks")
        await flow.say(answering(node, incarnation=flow.incarnation))
        await flow.until_decided("web-1", "kept", "its machine answers")
        await flow.proven(node)


async def test_another_stream_begins_the_looks_anew(tmp_path: Path):
    async with LifecycleFlow.on("nats", tmp_path) as flow, flow.running() as service:
        node = await flow.lost()
        await flow.replaced(node)
        await flow.replaced(node)
        await flow.until_decided("web-1", "kept", "2 of 3 looks")
        await flow.wipe()
        await until_ready(service, flow.bus)
        await flow.see("web-1")
        await flow.replaced(node)
        await flow.until_decided("web-1", "kept", "1 of 3 looks")
        assert await flow.node("web-1") is not None


async def test_a_stream_that_was_out_of_sight_begins_the_looks_anew(tmp_path: Path):
    async with LifecycleFlow.on("nats", tmp_path) as flow, flow.running() as service:
        assert flow.nats is not None
        node = await flow.lost()
        await flow.replaced(node)
        await flow.replaced(node)
        await flow.until_decided("web-1", "kept", "2 of 3 looks")
        await flow.nats.kill()
        await eventually(lambda: bool(service.problems()), "it is noticed")
        await flow.nats.restart()
        await eventually(lambda: not service.problems(), "it is followed again")
        await flow.replaced(node)
        await flow.until_decided("web-1", "kept", "1 of 3 looks")
        assert await flow.node("web-1") is not None


async def test_while_no_watcher_is_heard_to_lead_nothing_is_written(flow: LifecycleFlow):
    async with flow.running(leader_elect=False, renew_deadline_seconds=10.0) as service:
        node = await flow.lost()
        for told in ("1 of 3", "2 of 3"):
            await flow.replaced(node)
            await flow.until_decided("web-1", "kept", told)
        flow.clock.turn(330)  # nobody says that he leads
        await flow.looked(node, another(looked_at=flow.clock.now()))
        later = await flow.lost("web-2", uuid="")
        await flow.say(answering(later, incarnation=flow.incarnation, node_name="heard-last"))
        await eventually(lambda: "heard-last" in service.machines.nodes_by_machine_name, "all was heard")
        assert any("no leader is heard of" in problem for problem in service.problems())
        assert await flow.node("web-1") is not None
        await flow.replaced(node, minutes=1)
        await flow.until_decided("web-1", "deleted")


# ---- one leads


async def test_a_standby_deletes_nothing_and_after_a_takeover_all_proofs_are_needed_anew(flow: LifecycleFlow):
    async with AsyncExitStack() as stack:
        node = await flow.lost()
        async with flow.running(identity="one"):
            second = await stack.enter_async_context(flow.running(identity="two", grown_up=False))
            flow.clock.turn(GRACE)
            await flow.replaced(node)
            await flow.replaced(node)
            await flow.until_decided("web-1", "kept", "2 of 3 looks")
            assert second.replica_status().leading_for is None
        await eventually(lambda: second.replica_status().leading_for is not None, "the other one leads")
        await flow.replaced(node)
        told = await flow.until_decided("web-1", "kept", "1 of 3 looks")
        assert "10 min since this lifecycle leads" in told.reason
        assert await flow.node("web-1") is not None


async def test_who_lost_the_lease_and_does_not_know_it_yet_deletes_nothing(flow: LifecycleFlow):
    async with flow.running(retry_period_seconds=1000.0) as service:
        node = await flow.lost()
        await flow.patch(LEASE, {"spec": {"holderIdentity": "another"}})
        await flow.proven(node, then="kept")
        await flow.until_decided("web-1", "kept", "another holds the Lease now")
        assert service.replica_status().leading_for is not None, "it does not know yet"
        assert await flow.node("web-1") is not None


async def test_a_lease_that_cannot_be_renewed_ends_the_lead_and_the_looks_begin_anew(flow: LifecycleFlow):
    async with flow.running(evidence_seconds=1.0) as service:
        node = await flow.lost()
        await flow.replaced(node)
        await flow.replaced(node)
        await flow.until_decided("web-1", "kept", "2 of 3 looks")
        flow.server.faults.inject(EmptyClose(), resource="leases")
        await eventually(lambda: any("Lease" in problem for problem in service.problems()), "it is told")
        flow.clock.turn(10_001)
        await flow.replaced(node, minutes=0)
        assert service.replica_status().leading_for is None
        assert await flow.node("web-1") is not None
        flow.server.faults.clear()
        await eventually(lambda: service.replica_status().leading_for is not None, "it leads again")
        await flow.replaced(node, minutes=1)
        await flow.until_decided("web-1", "kept", "1 of 3 looks", "since this lifecycle leads")
        assert await flow.node("web-1") is not None


# ---- the cap


async def test_no_more_than_the_cap_are_deleted_in_an_hour_restarts_included(flow: LifecycleFlow):
    async with flow.running(max_deletions_per_hour=2):
        nodes = [await flow.lost(f"web-{n}", uuid=UUIDS[n]) for n in range(5)]
        await flow.proven(*nodes, then="")
        outcomes: list[str] = []

        async def all_are_decided() -> bool:
            said = [await flow.decided(node.name) for node in nodes]
            outcomes[:] = sorted(one.outcome for one in said if one and "2 of 3" not in one.reason)
            return len(outcomes) == 5

        await eventually(all_are_decided, "all are decided")
        left = [node for node in nodes if await flow.node(node.name)]
        assert (outcomes, len(left)) == (["deleted"] * 2 + ["kept"] * 3, 3)
    async with flow.running(max_deletions_per_hour=2):
        await flow.proven(left[0], then="kept")
        await flow.until_decided(left[0].name, "kept", "2 in the last hour")
        assert await flow.node(left[0].name) is not None
        flow.clock.turn(3600)
        await flow.lead()
        await flow.proven(left[0])


async def test_where_the_record_cannot_be_read_or_written_nothing_is_deleted(flow: LifecycleFlow):
    async with flow.running():
        await flow.patch(LEASE, {"metadata": {"annotations": {ANNOTATION: "nonsense"}}})
        node = await flow.lost()
        await flow.proven(node, then="kept")
        await flow.until_decided("web-1", "kept", "cannot be read")
        await flow.patch(LEASE, {"metadata": {"annotations": {ANNOTATION: "[]"}}})
        flow.server.faults.inject(EmptyClose(), verb="update", resource="leases")
        await flow.replaced(node)
        await flow.until_decided("web-1", "kept", "the record of deletions cannot be written")
        assert await flow.node("web-1") is not None
        flow.server.faults.clear()
        await flow.replaced(node)
        await flow.until_decided("web-1", "deleted")


async def test_without_leader_election_the_deletions_are_counted_all_the_same(flow: LifecycleFlow):
    async with flow.running(leader_elect=False, max_deletions_per_hour=1):
        node, other = await flow.lost(), await flow.lost("web-2", uuid=UUIDS[2])
        await flow.proven(node)
        assert not (await flow.lease())["spec"].get("holderIdentity")
        await flow.proven(other, then="kept")
        await flow.until_decided("web-2", "kept", "1 in the last hour")


# ---- GCP spot machines

SPOT = {
    "node.cloudprovider.kubernetes.io/platform": "gcp",
    "node.cloudprovider.kubernetes.io/lifecycle": "spot",
}
PREEMPTED = [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]


async def test_preempted_spot_machines_are_deleted_under_the_same_cap_and_only_if_asked_for(
    flow: LifecycleFlow,
):
    flow.clock.turn(A_YEAR)  # the API server's clock is today's, and says when the Nodes were created
    await flow.lead()
    spots = [await flow.lost(f"spot-{n}", uuid="", labels=SPOT, taints=PREEMPTED) for n in range(3)]
    plain = await flow.lost("plain", uuid="", taints=PREEMPTED)
    async with flow.running():
        for node in (*spots, plain):
            await flow.looked(node)
        for node in (*spots, plain):
            await flow.until_decided(node.name, "kept", "silence and errors prove nothing")
    async with flow.running(delete_preempted_gcp_spot=True, max_deletions_per_hour=2):
        await eventually(lambda: len(flow.server.api.store.table("nodes").objects) == 2, "two are deleted")
        left = [node for node in spots if await flow.node(node.name)]
        await flow.until_decided(left[0].name, "kept", "2 in the last hour")
    assert await flow.node("plain") == plain


async def test_a_deletion_that_is_refused_is_not_tried_again_and_again(flow: LifecycleFlow):
    flow.clock.turn(A_YEAR)
    await flow.lead()
    await flow.lost("spot-1", uuid="", labels=SPOT, taints=PREEMPTED)
    flow.server.faults.inject(EmptyClose(), verb="delete", resource="nodes")
    async with flow.running(delete_preempted_gcp_spot=True):
        await flow.until_decided("spot-1", "kept", "its deletion failed a moment ago")
        record = (await flow.lease())["metadata"]["annotations"][ANNOTATION]
        assert record.count("spot-1") == 1
        await flow.lost("web-9", uuid="")
        flow.server.faults.clear()
        flow.clock.turn(601)
        await flow.lead()
        await eventually(lambda: len(flow.server.api.store.table("nodes").objects) == 1, "it is deleted")


# ---- nothing at all is written


async def test_a_dry_run_tells_each_once_and_deletes_and_taints_nothing(flow: LifecycleFlow):
    async with flow.running(dry_run=True, max_deletions_per_hour=1):
        node = await flow.lost()
        gone = await flow.lost("web-2", uuid="")
        mark = flow.server.audit_mark()
        await flow.proven(node, then="would-delete")
        await flow.looked(gone, last_known=GOING)
        await flow.until_decided("web-2", "shutdown")
        await flow.replaced(node)
        await flow.replaced(node)
        await eventually(lambda: ("create", "events") in flow.asked(mark), "it is told")
    assert await flow.node("web-1") == node
    assert await flow.node("web-2") == gone
    assert await flow.told("web-1") == ["WouldDeleteNode"]
    assert not {("delete", "nodes"), ("patch", "nodes")} & flow.asked(mark).keys()


async def test_observing_only_writes_nothing_at_all(flow: LifecycleFlow):
    mark = flow.server.audit_mark()
    async with flow.running(observe_only=True):
        node = await flow.lost()
        await flow.proven(node, then="would-delete")
    assert flow.asked(mark).keys() == {("get", "nodes")}
    assert await flow.lease() is None


async def test_in_an_outage_of_an_hour_nothing_is_asked_or_written(flow: LifecycleFlow):
    async with flow.running():
        nodes = [await flow.lost(f"web-{n}", uuid=UUIDS[n]) for n in range(10)]
        mark = flow.server.audit_mark()
        for _ in range(60):
            flow.clock.turn(60)
            await flow.lead()
            for node in nodes:
                await flow.looked(node)
        await flow.until_decided("web-9", "kept", "silence and errors prove nothing")
    assert flow.asked(mark) == {}


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
    async with flow.running(file=file):
        theirs, ours = (
            await flow.lost(labels={"team": "b"}),
            await flow.lost("web-2", labels={"team": "a"}, uuid=UUIDS[2]),
        )
        going = await flow.lost("web-3", uuid="")
        mark = flow.server.audit_mark()
        await flow.looked(going, last_known=GOING)
        for _ in range(3):
            await flow.replaced(theirs)
        await flow.until_decided("web-1", "not-owned", "nodeSelector")
        await flow.until_decided("web-3", "not-owned")
        assert flow.asked(mark) == {}
        await flow.proven(ours)
    assert await flow.node("web-1") == theirs
    assert await flow.node("web-3") == going
    assert await flow.told("web-1") == []


def instance_b(flow: LifecycleFlow) -> Callable[[KubeApi], KubeApi]:
    """As another install's own user, who may write no other Lease than its own."""
    config = load_kube_config(flow.server.kubeconfig(user_of(LIFECYCLE, "b")), {})
    return lambda _: KubeApi(config, user_agent="test", instance="b")


async def test_two_instances_lead_side_by_side_each_by_a_lease_of_its_own(flow: LifecycleFlow):
    await grant_rights(flow.admin, [LIFECYCLE], "b")
    b: dict[str, Any] = {"identity": "b", "lease_name": lease_of("b", LIFECYCLE_LEASE_NAME)}
    async with flow.running() as of_a, flow.running(kube=instance_b(flow), grown_up=False, **b) as of_b:
        await eventually(lambda: of_b.replica_status().leading_for is not None, "the second one leads, too")
        assert of_a.replica_status().leading_for is not None
        assert (await flow.lease())["spec"]["holderIdentity"] == "first"


# ---- shut down


async def test_a_machine_that_shut_down_is_tainted_until_it_answers(flow: LifecycleFlow):
    async with flow.running(grown_up=False):
        await flow.lost("web-2", uuid="")
        node = await flow.see("web-2")
        await flow.looked(node, last_known=some_facts())
        await flow.until_decided("web-2", "kept", "connection refused")
        taint = {"key": "somebody", "effect": "NoSchedule"}
        taints = [msgspec.to_builtins(one) for one in node.spec.taints]
        await flow.patch(f"{NODES}/web-2", {"spec": {"taints": [taint, *taints]}})  # not seen yet
        await flow.looked(node, last_known=GOING)
        told = await flow.until_decided("web-2", "shutdown", "it is shutting down, and has been silent since")
        assert told.changes == (f"set taint {SHUTDOWN}:NoSchedule",)
        tainted = await flow.see("web-2")
        assert {one.key for one in tainted.spec.taints} >= {"somebody", SHUTDOWN}
        others = [one for one in tainted.spec.taints if one.key not in ("somebody", SHUTDOWN)]
        kept = [msgspec.to_builtins(one) for one in tainted.spec.taints if one.key != "somebody"]
        await flow.patch(
            f"{NODES}/web-2", {"spec": {"taints": kept}}
        )  # not seen: ours is at another place now
        await flow.say(answering(tainted, incarnation=flow.incarnation))
        await flow.until_decided("web-2", "kept", "its machine answers")
        after = await flow.node("web-2")
        assert after is not None
        assert list(after.spec.taints) == others


async def test_who_does_not_lead_taints_nothing_and_does_so_when_he_does(flow: LifecycleFlow):
    flow.server.faults.inject(EmptyClose(), resource="leases")
    mark = flow.server.audit_mark()
    async with flow.running(grown_up=False, ready=False) as service:
        node = await flow.lost("web-2", uuid="")
        await flow.looked(node, last_known=GOING)
        await flow.say(
            answering(await flow.lost("web-3", uuid=""), incarnation=flow.incarnation, node_name="last")
        )
        await eventually(lambda: "last" in service.machines.nodes_by_machine_name, "all was heard")
        service.requeue()
        assert flow.asked(mark) == {}
        assert await flow.decided("web-2") is None
        flow.server.faults.clear()
        await flow.until_decided("web-2", "shutdown")
    assert ("patch", "nodes") in flow.asked(mark)
