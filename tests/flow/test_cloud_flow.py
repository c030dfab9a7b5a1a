"""cloud reports what a simulated Hetzner Cloud says of the instances of Nodes, on both buses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from libs.common.bus.protocol import Bus
from libs.common.contract.events import (
    AnyInstanceReport,
    InstanceExists,
    InstanceGone,
    InstanceReport,
    InstanceShutDown,
    InstanceUnknown,
)
from libs.common.contract.instances import (
    RECORD_ANNOTATION,
    RECORD_DIGEST_LABEL,
    InstanceAnchor,
    InstanceRecord,
    encode_instance_record,
)
from libs.common.contract.node import Node, NodeCondition
from libs.common.contract.protected_annotation import compute_digest
from libs.common.contract.subjects import CLOUD_REPORTS
from libs.testbed.clouds.hcloud.project import SimProject
from libs.testbed.clouds.hcloud.server import SimHcloudServer
from services.cloud.service import CloudService
from services.cloud.settings import CloudSettings
from tests.builders import NOW, make_node
from tests.bus_actors import wait_for_value
from tests.bus_server import BusServer, make_flow_fixtures, run_service
from tests.manual_clock import ManualClock
from tests.service_flow import ServiceFlow

TOKEN = "a" * 64
OTHER_TOKEN = "b" * 64
MINUTE = 61.0
ReportT = TypeVar("ReportT", bound=InstanceReport)


def make_server_node(
    name: str, server_id: int, *, is_ready: bool = True, anchor: InstanceAnchor | None = None
) -> Node:
    """A Node with the record of the account."""
    provider_id = f"hcloud://{server_id}"
    record = encode_instance_record(
        InstanceRecord(
            account="prod", provider_id=provider_id, node_uid=f"uid-{name}", system_uuid="u", anchor=anchor,
            seen_at=NOW,
        )
    )  # fmt: skip
    return make_node(
        name,
        uid=f"uid-{name}",
        provider_id=provider_id,
        conditions=(NodeCondition(type="Ready", status="True" if is_ready else "Unknown"),),
        annotations={RECORD_ANNOTATION: record},
        labels={RECORD_DIGEST_LABEL: compute_digest(record)},
    )


class CloudFlow(ServiceFlow):
    """Publishes Nodes, runs the simulated cloud, and reads the reports."""

    def __init__(self, buses: BusServer, bus: Bus, server: SimHcloudServer, folder: Path) -> None:
        super().__init__(bus)
        self.buses = buses
        self.server = server
        self.project: SimProject = server.cloud.add_project(TOKEN)
        self.clock = ManualClock()
        self.token_file = folder / "token"
        self.token_file.write_text(TOKEN)

    @classmethod
    @asynccontextmanager
    async def open(cls, kind: str, tmp_path: Path) -> AsyncIterator["CloudFlow"]:
        async with (
            BusServer.open(kind, tmp_path) as buses,
            SimHcloudServer.start() as server,
            buses.open_bus("watcher") as bus,
        ):
            yield cls(buses, bus, server, tmp_path)

    @asynccontextmanager
    async def run(self, **settings: Any) -> AsyncIterator[CloudService]:
        """The service, in a process of its own."""
        chosen = CloudSettings(
            account="prod", credential_file=self.token_file, endpoint=self.server.endpoint, step_seconds=0.02,
            requests_per_minute=10_000, **settings,
        )  # fmt: skip
        async with run_service(
            self.buses, "cloud", lambda parts: CloudService(parts, chosen), kube=None, clock=self.clock
        ) as service:
            yield service

    async def get_report(self, name: str) -> AnyInstanceReport | None:
        message = await self.bus.get_last(f"{CLOUD_REPORTS}.prod.instance.{name}")
        return None if message is None else message.event  # type: ignore[return-value]

    async def wait_for_report(self, name: str, kind: type[ReportT], after: Any = NOW) -> ReportT:
        """The report of that kind, of a round that began at that time or later."""
        report = await wait_for_value(
            lambda: self.get_report(name),
            lambda found: isinstance(found, kind) and found.asked_at >= after,
            f"{kind.__name__} of {name}",
        )
        assert isinstance(report, kind)
        return report


flow, any_flow = make_flow_fixtures(CloudFlow.open)


async def test_a_server_is_seen_shut_down_and_gone_beside_another(any_flow: CloudFlow):
    flow = any_flow
    one, other = flow.project.add_server("web-1"), flow.project.add_server("web-2")
    await flow.start(make_server_node("web-1", one), make_server_node("web-2", other))
    async with flow.run():
        seen = await flow.wait_for_report("web-1", InstanceExists)
        assert (seen.provider_id, seen.node_uid, seen.anchor) == (f"hcloud://{one}", "uid-web-1", None)
        flow.project.update_server(one, status="off")
        await flow.publish_node(make_server_node("web-1", one, is_ready=False))
        await flow.wait_for_report("web-1", InstanceShutDown)
        flow.project.remove("servers", one)
        flow.clock.advance(MINUTE)
        gone = await flow.wait_for_report("web-1", InstanceGone)
        assert (gone.witness.kind, gone.witness.id) == ("instance", str(other))
        flow.clock.advance(MINUTE)
        assert (await flow.wait_for_report("web-1", InstanceGone, flow.clock.now())).asked_at > gone.asked_at
    assert {request.method for request in flow.server.requests} == {"GET"}


async def test_the_token_of_another_project_proves_nothing(flow: CloudFlow):
    one, other = flow.project.add_server("web-1"), flow.project.add_server("web-2")
    elsewhere = flow.server.cloud.add_project(OTHER_TOKEN)
    elsewhere.add_server("web-9")
    network = InstanceAnchor(kind="network", id=str(flow.project.add_network()))
    nodes = [make_server_node("web-1", one, anchor=network), make_server_node("web-2", other, anchor=network)]
    await flow.start(*nodes)
    async with flow.run():
        await flow.wait_for_report("web-2", InstanceExists)
        await flow.wait_for_report("web-1", InstanceExists)
        flow.token_file.write_text(OTHER_TOKEN)
        for name, server_id in (("web-1", one), ("web-2", other)):
            await flow.publish_node(make_server_node(name, server_id, is_ready=False, anchor=network))
        flow.clock.advance(MINUTE)
        report = await flow.wait_for_report("web-1", InstanceUnknown)
        assert "credential changed" in report.reason
        for _ in range(3):
            flow.clock.advance(MINUTE)
            for name in ("web-1", "web-2"):
                report = await flow.wait_for_report(name, InstanceUnknown, flow.clock.now())
                assert "another project" in report.reason


async def test_what_another_token_finds_is_neither_anchor_nor_witness(flow: CloudFlow):
    """Servers of the other project are Nodes too, and are even recorded for the account."""
    mine = flow.project.add_server("web-1")
    anchor = InstanceAnchor(kind="network", id=str(flow.project.add_network()))
    elsewhere = flow.server.cloud.add_project(OTHER_TOKEN)
    theirs = elsewhere.add_server("web-2")
    other = InstanceAnchor(kind="network", id=str(elsewhere.add_network()))
    nodes = [make_server_node("web-1", mine, anchor=anchor), make_server_node("web-2", theirs, anchor=other)]
    await flow.start(*nodes)
    async with flow.run():
        assert (await flow.wait_for_report("web-1", InstanceExists)).anchor == anchor
        flow.token_file.write_text(OTHER_TOKEN)
        await flow.publish_node(make_server_node("web-1", mine, is_ready=False, anchor=anchor))
        for _ in range(3):
            flow.clock.advance(MINUTE)
            await flow.wait_for_report("web-1", InstanceUnknown, flow.clock.now())
        assert (await flow.wait_for_report("web-2", InstanceExists)).anchor in {other, None}
        flow.token_file.write_text(TOKEN)
        flow.clock.advance(MINUTE)
        await flow.wait_for_report("web-1", InstanceUnknown, flow.clock.now())  # the token has changed
        flow.clock.advance(MINUTE)
        assert (await flow.wait_for_report("web-1", InstanceExists)).anchor in {anchor, None}


async def test_a_token_that_no_header_may_have_ends_nothing(flow: CloudFlow):
    one = flow.project.add_server("web-1")
    await flow.start(make_server_node("web-1", one, is_ready=False))
    async with flow.run() as service:
        await flow.wait_for_report("web-1", InstanceExists)
        flow.token_file.write_text(f"{TOKEN}\n{TOKEN}")
        for _ in range(2):
            flow.clock.advance(MINUTE)
            report = await flow.wait_for_report("web-1", InstanceUnknown, flow.clock.now())
        assert "no HTTP header" in report.reason
        assert service.problems()


async def test_the_last_server_is_gone_beside_the_recorded_anchor(flow: CloudFlow):
    one = flow.project.add_server("web-1")
    network = InstanceAnchor(kind="network", id=str(flow.project.add_network()))
    await flow.start(make_server_node("web-1", one, is_ready=False, anchor=network))
    async with flow.run():
        seen = await flow.wait_for_report("web-1", InstanceExists)
        assert seen.anchor == network
        flow.project.remove("servers", one)
        flow.clock.advance(MINUTE)
        gone = await flow.wait_for_report("web-1", InstanceGone)
        assert (gone.witness.kind, gone.witness.id) == ("anchor", f"network/{network.id}")
        flow.project.remove("networks", int(network.id))
        flow.clock.advance(MINUTE)
        await flow.wait_for_report("web-1", InstanceUnknown)


async def test_a_server_that_was_replaced_under_its_name_is_not_gone(flow: CloudFlow):
    one, other = flow.project.add_server("web-1"), flow.project.add_server("web-2")
    await flow.start(make_server_node("web-1", one, is_ready=False), make_server_node("web-2", other))
    async with flow.run():
        await flow.wait_for_report("web-2", InstanceExists)
        await flow.wait_for_report("web-1", InstanceExists)
        flow.project.remove("servers", one)
        rebuilt = flow.project.add_server("web-1")
        flow.clock.advance(MINUTE)
        assert (await flow.wait_for_report("web-1", InstanceUnknown)).namesake == str(rebuilt)


@pytest.mark.parametrize(
    "fault", ["unauthorized", "forbidden", "rate_limited", "service_error", "proxy_not_found", "cut_off"]
)
async def test_a_failing_api_proves_nothing(flow: CloudFlow, fault: str):
    one, other = flow.project.add_server("web-1"), flow.project.add_server("web-2")
    await flow.start(make_server_node("web-1", one, is_ready=False), make_server_node("web-2", other))
    async with flow.run() as service:
        await flow.wait_for_report("web-2", InstanceExists)
        await flow.wait_for_report("web-1", InstanceExists)
        flow.project.remove("servers", one)
        flow.server.add_fault(fault)
        flow.clock.advance(MINUTE)
        await flow.wait_for_report("web-1", InstanceUnknown)
        assert service.problems()


async def test_a_list_that_lacks_a_server_is_no_proof(flow: CloudFlow):
    one, other = flow.project.add_server("web-1"), flow.project.add_server("web-2")
    await flow.start(make_server_node("web-1", one), make_server_node("web-2", other))
    async with flow.run():
        await flow.wait_for_report("web-1", InstanceExists)
        flow.server.add_fault("empty_list")
        flow.clock.advance(601.0)
        await flow.wait_for_report("web-1", InstanceExists, flow.clock.now())


async def test_a_new_stream_gets_every_report_and_a_deleted_node_none(any_flow: CloudFlow):
    flow = any_flow
    one, other = flow.project.add_server("web-1"), flow.project.add_server("web-2")
    nodes = [make_server_node("web-1", one), make_server_node("web-2", other)]
    await flow.start(*nodes)
    async with flow.run():
        for node in nodes:
            await flow.wait_for_report(node.name, InstanceExists)
        await flow.publish_node_gone(nodes[1])
        before = flow.stream_id
        if flow.buses.nats is None:
            return  # the stream in memory ends with its process
        await flow.buses.delete_stream()
        flow.clock.advance(MINUTE)
        await flow.start(nodes[0])
        report = await flow.wait_for_report("web-1", InstanceExists)
        assert report.stream_id == flow.stream_id != before
        assert await flow.get_report("web-2") is None


async def test_nothing_more_is_published_about_a_node_that_has_changed(flow: CloudFlow):
    one, other = flow.project.add_server("web-1"), flow.project.add_server("web-2")
    await flow.start(make_server_node("web-1", one, is_ready=False), make_server_node("web-2", other))
    async with flow.run():
        await flow.wait_for_report("web-1", InstanceExists)
        await flow.publish_node(make_node("web-1", uid="uid-web-1", provider_id=f"hcloud://bm-{one}"))
        last = await flow.bus.get_last(f"{CLOUD_REPORTS}.prod.instance.web-1")
        for _ in range(4):  # lists, and so longer than any report waits to be published again
            before = flow.clock.now()  # a list in progress began no earlier
            flow.clock.advance(601.0)
            await flow.wait_for_report("web-2", InstanceExists, before)
        assert await flow.bus.get_last(f"{CLOUD_REPORTS}.prod.instance.web-1") == last
