"""lifecycle between cloud accounts and an API server: records, and Nodes whose instance is gone."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from libs.common.cloud_config.model import Ownership
from libs.common.contract.events import AnyInstanceReport
from libs.common.contract.instances import InstanceWitness, read_instance_record
from libs.common.contract.node import Node
from libs.common.kube.api import KubeApi
from services.lifecycle.core.node_change import SHUTDOWN_TAINT
from tests.bus_actors import wait_for_value, wait_until
from tests.bus_server import make_flow_fixtures
from tests.instance_reports import ANCHOR, BY_ANCHOR, PROVIDER_ID, make_exists, make_gone
from tests.lifecycle_actors import NEW_UUID, NODES, OWN_UUID, PATIENT, LifecycleFlow, make_answering

flow, any_flow = make_flow_fixtures(LifecycleFlow.open)
READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T00:00:00Z"}


async def report(flow: LifecycleFlow, make: Any, node: Node, **fields: Any) -> None:
    usual = {"stream_id": flow.stream_id, "at": flow.clock.now()}
    made: AnyInstanceReport = make(node, **(usual | fields))
    await flow.publish(made)


async def add_recorded_node(flow: LifecycleFlow, name: str = "web-1", **fields: Any) -> Node:
    """A Node whose account has shown its instance alive, and whose machine has been silent since."""
    usual: dict[str, Any] = {"provider_id": PROVIDER_ID, "uuid": OWN_UUID}
    node = await flow.add_lost_node(name, **(usual | fields))
    await flow.publish(make_answering(node, stream_id=flow.stream_id, provider_id=node.spec.provider_id))
    await report(flow, make_exists, node)

    async def recorded() -> Node | None:
        found = await flow.get_node(name)
        return found if found is not None and read_instance_record(found) is not None else None

    found = await wait_for_value(recorded, lambda node: True, "the instance is recorded")
    await flow.observe_node(name)
    await flow.publish_poll_result(found)
    return found


async def publish_gone(flow: LifecycleFlow, *nodes: Node, minutes: float = 5.5, **fields: Any) -> None:
    flow.clock.advance(60 * minutes)
    await flow.publish_leading()
    at = flow.clock.now()
    witness = InstanceWitness(kind="anchor", id=BY_ANCHOR, asked_at=at + timedelta(milliseconds=1))
    for node in nodes:
        usual = {"witness": witness, "answered_at": at + timedelta(milliseconds=2)}
        await report(flow, make_gone, node, **(usual | fields))
    flow.clock.advance(1)


async def test_a_node_whose_instance_is_gone_beside_an_anchor_is_deleted_after_three_rounds(
    any_flow: LifecycleFlow,
):
    flow = any_flow
    async with flow.run_lifecycle():
        node = await add_recorded_node(flow)
        record = read_instance_record(node)
        assert record is not None
        assert (record.account, record.anchor) == ("prod", ANCHOR)
        for progress in ("1 of 3", "2 of 3"):
            await publish_gone(flow, node)
            await flow.wait_for_decision("web-1", "kept", progress)
        await publish_gone(flow, node)
        await flow.wait_for_decision("web-1", "deleted", "account prod has no instance", "anchor network/77")
        assert await flow.get_node("web-1") is None


async def test_a_dry_run_writes_the_record_and_nothing_else(flow: LifecycleFlow):
    async with flow.run_lifecycle(dry_run=True):
        node = await add_recorded_node(flow)
        for _ in range(3):
            await publish_gone(flow, node)
        await flow.wait_for_decision("web-1", "would-delete", "no instance")
    assert await flow.get_node("web-1") == node


@pytest.mark.parametrize("lost", ["leadership", "ownership"])
async def test_after_the_first_write_of_an_attempt_the_right_to_write_is_checked_again(
    flow: LifecycleFlow, lost: str
):
    def lose(api: KubeApi) -> KubeApi:
        api.__class__ = LosingApi
        return api

    class LosingApi(KubeApi):
        """The right to write is lost while the Node is written."""

        async def patch_node(self, *arguments: Any, **options: Any) -> Node:
            patched = await super().patch_node(*arguments, **options)
            if lost == "leadership":
                flow.clock.advance(PATIENT["lease_duration_seconds"])
            else:
                service._reconciler.ownership = lambda: Ownership(provider_id_schemes=("other",))
            return patched

    taint = msgspec.to_builtins(SHUTDOWN_TAINT)
    async with flow.run_lifecycle(kube=lose) as service:
        node = await flow.add_lost_node(provider_id=PROVIDER_ID, uuid=OWN_UUID, taints=[taint])
        await report(flow, make_exists, node)
        await wait_until(lambda: bool(service._build_case(node).instances), "the report is received")
        await flow.publish(make_answering(node, stream_id=flow.stream_id, provider_id=PROVIDER_ID))
        if lost == "leadership":
            await wait_until(lambda: "web-1" in service._reconciler._retries, "the second write is given up")
        else:
            await flow.wait_for_decision("web-1", "not-owned")
        found = await flow.get_node("web-1")
        assert found is not None
        assert read_instance_record(found) is not None
        assert SHUTDOWN_TAINT in found.spec.taints


async def test_observing_only_writes_no_record(flow: LifecycleFlow):
    async with flow.run_lifecycle(observe_only=True):
        node = await flow.add_lost_node(provider_id=PROVIDER_ID)
        await flow.publish(make_answering(node, stream_id=flow.stream_id, provider_id=PROVIDER_ID))
        await report(flow, make_exists, node)
        await flow.wait_for_decision("web-1", "kept")
    assert await flow.get_node("web-1") == node


async def test_a_node_whose_kubelet_reports_another_uuid_meanwhile_gets_no_record(flow: LifecycleFlow):
    async with flow.run_lifecycle() as service:
        node = await flow.add_lost_node(provider_id=PROVIDER_ID, uuid=OWN_UUID)
        node_info = {"systemUUID": NEW_UUID}
        await flow.patch(f"{NODES}/web-1/status", {"status": {"nodeInfo": node_info}})  # not observed yet
        await flow.publish(make_answering(node, stream_id=flow.stream_id, provider_id=PROVIDER_ID))
        await report(flow, make_exists, node)
        await wait_until(lambda: "web-1" in service._reconciler._retries, "the patch has failed")
        found = await flow.get_node("web-1")
        assert found is not None
        assert read_instance_record(found) is None


async def test_another_machine_under_the_nodes_name_voids_its_record(flow: LifecycleFlow):
    async with flow.run_lifecycle():
        node = await add_recorded_node(flow)
        await flow.publish(make_answering(node, stream_id=flow.stream_id, provider_id="hcloud://2002"))

        async def is_void() -> bool:
            found = await flow.get_node("web-1")
            return found is not None and read_instance_record(found) is None

        await wait_until(is_void, "the record is void")

        async def is_told() -> bool:
            return "ProviderIDMismatch" in await flow.list_event_reasons("web-1")

        await wait_until(is_told, "the Event is written")
        await flow.observe_node("web-1")
        await flow.publish_poll_result(node)
        for _ in range(4):
            await publish_gone(flow, node)
        await flow.wait_for_decision("web-1", "kept", "a record that an account has shown")
        assert await flow.get_node("web-1") is not None


async def test_an_account_that_shows_it_alive_ends_all_evidence(flow: LifecycleFlow):
    async with flow.run_lifecycle():
        node = await add_recorded_node(flow)
        await publish_gone(flow, node)
        await publish_gone(flow, node)
        await flow.wait_for_decision("web-1", "kept", "2 of 3")
        await report(flow, make_exists, node, account="other")
        await publish_gone(flow, node)
        await flow.wait_for_decision("web-1", "kept", "account other has shown its instance alive")
        await publish_gone(flow, node)
        assert await flow.get_node("web-1") is not None


async def test_after_a_report_that_cannot_be_read_the_rounds_begin_anew(flow: LifecycleFlow):
    newer: Any = "of a newer version"
    async with flow.run_lifecycle():
        node = await add_recorded_node(flow)
        await publish_gone(flow, node)
        await publish_gone(flow, node)
        await flow.wait_for_decision("web-1", "kept", "2 of 3")
        witness = InstanceWitness(kind=newer, id="1", asked_at=flow.clock.now())
        await report(flow, make_gone, node, witness=witness)
        await publish_gone(flow, node)
        await flow.wait_for_decision("web-1", "kept", "1 of 3")
        assert await flow.get_node("web-1") is not None


async def test_a_report_under_the_subject_of_another_account_is_dropped(flow: LifecycleFlow):
    async with flow.run_lifecycle() as service:
        node = await add_recorded_node(flow)
        await publish_gone(flow, node)
        await flow.wait_for_decision("web-1", "kept", "1 of 3")
        view = service._build_case(node).instances["prod"]
        message = await flow.bus.get_last("talosccm.v1.cloud.prod.instance.web-1")
        assert message is not None
        forged = msgspec.structs.replace(message, subject="talosccm.v1.cloud.other.instance.web-1")
        service._cloud_follower.apply(forged)
        assert service._build_case(node).instances == {"prod": view}
