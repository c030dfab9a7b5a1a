"""cloud reports what a simulated Hetzner Cloud says of the instances of Nodes, on both buses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import pytest

from libs.common.bus.protocol import Bus
from libs.common.contract.events import (
    AccountReport,
    AnyInstanceReport,
    InstanceExists,
    InstanceGone,
    InstanceMetadata,
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
from libs.common.observability import metrics
from libs.testbed.clouds.hcloud.project import SimProject
from libs.testbed.clouds.hcloud.server import SimHcloud, SimHcloudServer
from services.cloud.core.instance_schedule import ACCOUNT_REPORT_SECONDS
from services.cloud.service import CloudService
from services.cloud.settings import CloudSettings
from tests.builders import NOW, make_node
from tests.bus_actors import NATS, wait_until
from tests.bus_server import BusServer, make_flow_fixtures, run_service
from tests.clocks import ManualClock
from tests.named_machines import HCLOUD
from tests.service_flow import ServiceFlow

TOKEN = "a" * 64
OTHER_TOKEN = "b" * 64
BY_TOKEN = InstanceAnchor(kind="credential", id=sha256(TOKEN.encode()).hexdigest()[:16])
MINUTE = 61.0
ReportT = TypeVar("ReportT", bound=InstanceReport)


def make_server_node(
    name: str, server_id: int, *, is_ready: bool = True, anchor: InstanceAnchor = BY_TOKEN
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
        self.service: CloudService
        self.token_file = folder / "token"
        self.token_file.write_text(TOKEN)

    @classmethod
    @asynccontextmanager
    async def open(cls, kind: str, tmp_path: Path) -> AsyncIterator["CloudFlow"]:
        async with (
            BusServer.open(kind, tmp_path) as buses,
            SimHcloudServer.start(SimHcloud()) as server,
            buses.open_bus("watcher") as bus,
        ):
            yield cls(buses, bus, server, tmp_path)

    @asynccontextmanager
    async def run(self, *, step_seconds: float = 3600.0, **settings: Any) -> AsyncIterator[None]:
        """The service, in a process of its own, which by default asks only in `look`."""
        chosen = CloudSettings(
            accounts=("hcloud/prod",), credential_file=self.token_file, endpoint=self.server.endpoint,
            step_seconds=step_seconds, requests_per_minute=10_000, **settings,
        )  # fmt: skip
        async with run_service(
            self.buses, "cloud", lambda parts: CloudService(parts, chosen), kube=None, clock=self.clock
        ) as self.service:
            if step_seconds == 3600.0:
                await self.look()
            yield

    async def look(self, *, seconds: float = 0.0) -> None:
        """Advance the clock, and do what is due."""
        self.clock.advance(seconds)
        await self.service.poller.step()
        await self.service.poller.step_round()
        await self.service.metadata.step()
        await self.service.reports.publish_due()

    async def change_node(self, node: Node) -> None:
        """Publish the Node, and wait until the service knows it."""
        await self.publish_node(node)
        table = self.service.nodes

        def is_known() -> bool:
            known = table.get(node.name)
            if known is None or node.spec.provider_id != known.provider_id:
                return known is None and table.parse_provider_id(node.spec.provider_id) is None
            ready = node.find_condition("Ready")
            return known.is_ready == (ready is not None and ready.status == "True")

        await wait_until(is_known, f"{node.name} is known")

    async def get_report(self, name: str) -> AnyInstanceReport | None:
        message = await self.bus.get_last(f"{CLOUD_REPORTS}.prod.instance.{name}")
        return None if message is None else message.event  # type: ignore[return-value]

    async def expect(self, name: str, kind: type[ReportT]) -> ReportT:
        """The last report, which is of that kind and about the time of the last look."""
        report = await self.get_report(name)
        assert isinstance(report, kind), report
        assert report.asked_at == self.clock.now()
        return report


flow, any_flow = make_flow_fixtures(CloudFlow.open)


async def test_a_server_is_seen_shut_down_and_gone_beside_another(any_flow: CloudFlow):
    flow = any_flow
    one, other = flow.project.add_server("web-1"), flow.project.add_server("web-2")
    await flow.start(make_server_node("web-1", one), make_server_node("web-2", other))
    async with flow.run():
        seen = await flow.expect("web-1", InstanceExists)
        assert (seen.provider_id, seen.node_uid, seen.anchor) == (f"hcloud://{one}", "uid-web-1", BY_TOKEN)
        flow.project.update_server(one, status="off")
        await flow.change_node(make_server_node("web-1", one, is_ready=False))
        await flow.look(seconds=MINUTE)
        await flow.expect("web-1", InstanceShutDown)
        flow.project.remove("servers", one)
        for _ in range(2):
            await flow.look(seconds=MINUTE)
            gone = await flow.expect("web-1", InstanceGone)
            assert (gone.witness.kind, gone.witness.id) == ("instance", str(other))
    assert {request.method for request in flow.server.requests} == {"GET"}


async def test_the_service_asks_by_itself_for_new_nodes_and_in_rounds(flow: CloudFlow):
    one, other = flow.project.add_server("web-1"), flow.project.add_server("web-2")
    await flow.start(make_server_node("web-1", one, is_ready=False), make_server_node("web-2", other))

    async def is_seen(name: str, kind: type) -> bool:
        return isinstance(await flow.get_report(name), kind)

    async with flow.run(step_seconds=0.02):
        for name in ("web-1", "web-2"):
            await wait_until(partial(is_seen, name, InstanceExists), f"{name} exists")
        flow.project.update_server(one, status="off")
        flow.clock.advance(MINUTE)
        await wait_until(partial(is_seen, "web-1", InstanceShutDown), "web-1 is shut down")


async def test_the_token_of_another_project_proves_nothing(flow: CloudFlow):
    one, other = flow.project.add_server("web-1"), flow.project.add_server("web-2")
    elsewhere = flow.server.cloud.add_project(OTHER_TOKEN)
    elsewhere.add_server("web-9")
    network = InstanceAnchor(kind="network", id=str(flow.project.add_network()))
    nodes = [make_server_node("web-1", one, anchor=network), make_server_node("web-2", other, anchor=network)]
    await flow.start(*nodes)
    async with flow.run():
        await flow.expect("web-1", InstanceExists)
        await flow.expect("web-2", InstanceExists)
        flow.token_file.write_text(OTHER_TOKEN)
        for name, server_id in (("web-1", one), ("web-2", other)):
            await flow.change_node(make_server_node(name, server_id, is_ready=False, anchor=network))
        await flow.look(seconds=MINUTE)
        assert "credential changed" in (await flow.expect("web-1", InstanceUnknown)).reason
        for _ in range(3):
            await flow.look(seconds=MINUTE)
            for name in ("web-1", "web-2"):
                assert "another project" in (await flow.expect(name, InstanceUnknown)).reason


async def test_what_another_token_finds_is_neither_anchor_nor_witness(flow: CloudFlow):
    """Servers of the other project are Nodes too, and are even recorded for the account."""
    mine = flow.project.add_server("web-1")
    anchor = InstanceAnchor(kind="network", id=str(flow.project.add_network()))
    elsewhere = flow.server.cloud.add_project(OTHER_TOKEN)
    theirs = elsewhere.add_server("web-2")
    other = InstanceAnchor(kind="network", id=str(elsewhere.add_network()))
    await flow.start(
        make_server_node("web-1", mine, anchor=anchor), make_server_node("web-2", theirs, anchor=other)
    )
    async with flow.run():
        assert (await flow.expect("web-1", InstanceExists)).anchor == anchor
        flow.token_file.write_text(OTHER_TOKEN)
        await flow.change_node(make_server_node("web-1", mine, is_ready=False, anchor=anchor))
        await flow.look(seconds=MINUTE)  # web-2 comes first and ends the round, which is void
        for _ in range(3):
            await flow.look(seconds=MINUTE)
            await flow.expect("web-1", InstanceUnknown)
        seen = await flow.get_report("web-2")
        assert isinstance(seen, InstanceExists)
        assert seen.anchor == other
        flow.token_file.write_text(TOKEN)
        await flow.look(seconds=MINUTE)
        await flow.expect("web-1", InstanceUnknown)
        await flow.look(seconds=MINUTE)
        assert (await flow.expect("web-1", InstanceExists)).anchor == anchor


async def test_a_token_that_no_header_may_have_ends_nothing(flow: CloudFlow):
    one = flow.project.add_server("web-1")
    await flow.start(make_server_node("web-1", one, is_ready=False))
    async with flow.run():
        await flow.expect("web-1", InstanceExists)
        flow.token_file.write_text(f"{TOKEN}\n{TOKEN}")
        for _ in range(2):
            await flow.look(seconds=MINUTE)
        assert "characters that no header may have" in (await flow.expect("web-1", InstanceUnknown)).reason
        assert flow.service.problems()
        await flow.change_node(make_node("web-1", provider_id="other://1"))
        await flow.look()
        assert not flow.service.problems()  # nothing is asked any more


async def test_without_an_anchor_a_new_token_proves_nothing_until_it_has_seen_the_server(flow: CloudFlow):
    one, other = flow.project.add_server("web-1"), flow.project.add_server("web-2")
    await flow.start(make_server_node("web-1", one, is_ready=False), make_server_node("web-2", other))
    async with flow.run():
        await flow.expect("web-1", InstanceExists)
        flow.server.cloud.tokens[OTHER_TOKEN] = flow.project
        flow.token_file.write_text(OTHER_TOKEN)
        flow.project.remove("servers", one)
        for _ in range(3):
            await flow.look(seconds=MINUTE)
            await flow.expect("web-1", InstanceUnknown)


async def test_many_servers_of_another_account_are_left_to_the_list(flow: CloudFlow):
    other = flow.project.add_server("web-0")
    theirs = [
        make_node(
            f"db-{number}", uid="u", provider_id=f"hcloud://{9000 + number}",
            conditions=(NodeCondition(type="Ready", status="True"),),
        )
        for number in range(40)
    ]  # fmt: skip
    await flow.start(make_server_node("web-0", other), *theirs)
    async with flow.run():
        report = await flow.expect("db-7", InstanceUnknown)
        assert (report.absent_from, report.reason) == (None, "the list of all instances does not have it")
        before = len(flow.server.requests)
        await flow.look(seconds=MINUTE)
        assert len(flow.server.requests) == before


async def test_the_server_of_another_account_is_absent_by_its_id_while_its_node_is_not_ready(flow: CloudFlow):
    other = flow.project.add_server("web-2")
    theirs = make_node("web-1", uid="uid-web-1", provider_id="hcloud://4711")
    await flow.start(theirs, make_server_node("web-2", other))
    async with flow.run():
        for _ in range(2):
            assert (await flow.expect("web-1", InstanceUnknown)).absent_from == BY_TOKEN
            await flow.look(seconds=MINUTE)
        namesake = flow.project.add_server("web-1")
        await flow.look(seconds=MINUTE)
        report = await flow.expect("web-1", InstanceUnknown)
        assert (report.absent_from, report.namesake) == (None, str(namesake))


async def test_a_list_that_lacks_a_server_is_no_proof(flow: CloudFlow):
    one, other = flow.project.add_server("web-1"), flow.project.add_server("web-2")
    await flow.start(make_server_node("web-1", one), make_server_node("web-2", other))
    async with flow.run():
        flow.server.add_fault("empty_list", "/servers", count=1)
        before = len(flow.server.requests)
        await flow.look(seconds=601.0)
        for name in ("web-1", "web-2"):
            await flow.expect(name, InstanceExists)
        paths = [request.path for request in flow.server.requests[before:]]
        assert paths == ["/servers", f"/servers/{one}", f"/servers/{other}"]


@pytest.mark.parametrize("kind", [NATS])
async def test_a_new_stream_gets_every_report_and_a_deleted_node_none(kind: str, tmp_path: Path):
    async with CloudFlow.open(kind, tmp_path) as flow:  # the stream in memory ends with its process
        one, other = flow.project.add_server("web-1"), flow.project.add_server("web-2")
        nodes = [make_server_node("web-1", one), make_server_node("web-2", other)]
        await flow.start(*nodes)
        async with flow.run():
            for node in nodes:
                await flow.expect(node.name, InstanceExists)
            before = flow.stream_id
            await flow.buses.delete_stream()
            await flow.start(nodes[0])
            await wait_until(lambda: not flow.service.problems(), "the new stream is followed")
            requests = len(flow.server.requests)
            await flow.service.reports.publish_due()
            report = await flow.expect("web-1", InstanceExists)
            assert report.stream_id == flow.stream_id != before
            assert await flow.get_report("web-2") is None
            assert len(flow.server.requests) == requests  # published again, not asked again


async def test_nothing_more_is_published_about_a_node_that_has_changed(flow: CloudFlow):
    one, other = flow.project.add_server("web-1"), flow.project.add_server("web-2")
    await flow.start(make_server_node("web-1", one, is_ready=False), make_server_node("web-2", other))
    async with flow.run():
        await flow.expect("web-1", InstanceExists)
        await flow.change_node(make_node("web-1", uid="uid-web-1", provider_id=f"hcloud://bm-{one}"))
        last = await flow.bus.get_last(f"{CLOUD_REPORTS}.prod.instance.web-1")
        for _ in range(3):
            await flow.look(seconds=601.0)
            await flow.expect("web-2", InstanceExists)
        assert await flow.bus.get_last(f"{CLOUD_REPORTS}.prod.instance.web-1") == last


async def test_the_account_reports_whether_its_cloud_answers_and_what_remains_of_its_rate_limit(
    flow: CloudFlow,
):
    one, other = flow.project.add_server("web-1"), flow.project.add_server("web-2")
    flow.project.update_server(other, status="off")
    await flow.start(make_server_node("web-1", one), make_server_node("web-2", other))

    async def get_account_report() -> AccountReport:
        message = await flow.bus.get_last(f"{CLOUD_REPORTS}.prod.report")
        assert message is not None
        assert isinstance(message.event, AccountReport)
        return message.event

    async with flow.run():
        assert (await get_account_report()).instances["exists"] == 1
        await flow.look(seconds=ACCOUNT_REPORT_SECONDS)
        report = await get_account_report()
        assert (report.account, report.provider, report.failure) == ("prod", "hcloud", "")
        assert {state: count for state, count in report.instances.items() if count} == {
            "exists": 1,
            "shut-down": 1,
        }
        assert report.rate_limit == 3600
        assert report.requests_left is not None
        assert 3500 < report.requests_left < 3600
        values = [
            metrics.REGISTRY.get_sample_value(name, {"account": "prod"})
            for name in (
                "talosccm_cloud_rate_limit_remaining_requests",
                "talosccm_cloud_rate_limit_requests",
            )
        ]
        assert values == [report.requests_left, 3600]
        flow.token_file.write_text("c" * 64)
        await flow.look(seconds=600.0)
        assert "401" in (await get_account_report()).failure
        published = await flow.bus.get_last(f"{CLOUD_REPORTS}.prod.report")
        await flow.look(seconds=ACCOUNT_REPORT_SECONDS - 1)
        assert await flow.bus.get_last(f"{CLOUD_REPORTS}.prod.report") == published  # nothing is new
        await flow.look(seconds=1)
        assert await flow.bus.get_last(f"{CLOUD_REPORTS}.prod.report") != published


METADATA_ON: dict[str, Any] = {"metadata_accounts": ("hcloud/prod",)}


async def get_metadata(flow: CloudFlow, name: str) -> InstanceMetadata | None:
    message = await flow.bus.get_last(f"{CLOUD_REPORTS}.prod.metadata.{name}")
    return None if message is None else message.event  # type: ignore[return-value]


async def test_the_instance_that_a_machine_names_is_asked_for(any_flow: CloudFlow):
    flow = any_flow
    server_id = flow.project.add_server("server-1", ipv4="192.0.2.5")
    await flow.start()
    async with flow.run(**METADATA_ON):
        await flow.enrich(make_node("web-1"), HCLOUD.make_facts(str(server_id)))
        await flow.enrich(make_node("web-2"), HCLOUD.make_facts("1"))
        machines = flow.service.metadata.machines
        await wait_until(lambda: len(machines.select_due(0.0)) == 2, "the machines are known")
        await flow.look()
        found = await get_metadata(flow, "web-1")
        assert found is not None
        assert (found.provider_id, found.addresses) == (f"hcloud://{server_id}", ("192.0.2.5",))
        withheld = await get_metadata(flow, "web-2")
        assert withheld is not None
        assert withheld.why_withheld == "it has no instance 1"
        paths = [request.path for request in flow.server.requests]
        assert {f"/servers/{server_id}", "/servers/1"} <= set(paths)


async def test_many_machines_are_answered_by_one_list(flow: CloudFlow):
    ids = flow.project.add_servers(30)
    await flow.start()
    async with flow.run(**METADATA_ON):
        for server_id in ids:
            await flow.enrich(make_node(f"web-{server_id}"), HCLOUD.make_facts(str(server_id)))
        machines = flow.service.metadata.machines
        await wait_until(lambda: len(machines.select_due(0.0)) == 30, "the machines are known")
        await flow.service.metadata.step()
        assert [request.path for request in flow.server.requests] == ["/servers"]
        for server_id in ids:
            assert await get_metadata(flow, f"web-{server_id}") is not None


async def test_machines_that_a_list_lacks_are_asked_for_by_id_and_not_listed_again(flow: CloudFlow):
    await flow.start()
    async with flow.run(**METADATA_ON):
        for number in range(1, 31):
            await flow.enrich(make_node(f"db-{number}"), HCLOUD.make_facts(str(9000 + number)))
        machines = flow.service.metadata.machines
        await wait_until(lambda: len(machines.select_due(0.0)) == 30, "the machines are known")
        for _ in range(3):
            await flow.service.metadata.step()
        paths = [request.path for request in flow.server.requests]
        assert sorted(paths) == ["/servers", *(f"/servers/{9000 + number}" for number in range(1, 31))]


async def test_a_token_that_changed_during_the_query_supplies_nothing(flow: CloudFlow):
    server_id = flow.project.add_server("server-1")
    await flow.start()
    async with flow.run(**METADATA_ON):
        await flow.enrich(make_node("web-1"), HCLOUD.make_facts(str(server_id)))
        machines = flow.service.metadata.machines
        await wait_until(lambda: bool(machines.select_due(0.0)), "the machine is known")
        flow.token_file.write_text(OTHER_TOKEN)
        await flow.service.metadata.step()
        assert await get_metadata(flow, "web-1") is None
        flow.token_file.write_text(TOKEN)
        await flow.service.metadata.step()  # the token has changed again
        await flow.service.metadata.step()
        assert await get_metadata(flow, "web-1") is not None


async def test_an_account_supplies_nothing_by_default(flow: CloudFlow):
    server_id = flow.project.add_server("web-1")
    await flow.start(make_server_node("web-1", server_id))
    async with flow.run():
        await flow.enrich(make_node("web-2"), HCLOUD.make_facts(str(server_id)))
        await flow.change_node(make_server_node("web-3", server_id))  # follows in the stream
        await flow.look()
        assert await get_metadata(flow, "web-2") is None


@pytest.mark.parametrize(("count", "per_hour"), [(10, 7), (100, 13), (1000, 121)])
async def test_an_account_sends_as_many_requests_in_an_hour_as_its_page_says(
    flow: CloudFlow, count: int, per_hour: int
):
    """docs/clouds.md: a list each ten minutes, of pages of 50 servers, and the anchor once."""
    flow.project.add_network()
    servers = [(f"web-{n}", flow.project.add_server(f"web-{n}")) for n in range(count)]
    await flow.start(*(make_server_node(name, server_id) for name, server_id in servers))
    async with flow.run():
        await flow.expect("web-1", InstanceExists)
        before = len(flow.server.requests)
        for _ in range(60):
            await flow.look(seconds=60.0)
        assert len(flow.server.requests) - before == per_hour
