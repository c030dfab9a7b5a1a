"""cloud and the labeler give a new Node what Talos does not know of its machine, on both buses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from libs.common.bus.protocol import Bus
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node
from libs.testbed.clouds.hcloud.server import SimHcloud, SimHcloudServer
from services.cloud.service import CloudService
from services.cloud.settings import CloudSettings
from services.labeler.service import LabelerService
from services.labeler.settings import LabelerSettings
from tests.builders import NOW, make_node
from tests.bus_actors import wait_until
from tests.bus_server import BusServer, make_flow_fixtures, run_service
from tests.clocks import ManualClock
from tests.labeler_actors import InMemoryNodes
from tests.named_machines import PUBLIC_IP, make_hetzner_facts
from tests.service_flow import ServiceFlow

TOKEN = "a" * 64
LABELS = {
    "topology.kubernetes.io/region": "fsn1",
    "topology.kubernetes.io/zone": "fsn1-dc14",
    "node.kubernetes.io/instance-type": "cx22",
    "instance.hetzner.cloud/provided-by": "cloud",
}


class MetadataFlow(ServiceFlow):
    """Publishes as watcher and metadata; cloud with a simulated project, and the labeler."""

    decisions_of = "labeler.node"

    def __init__(self, buses: BusServer, bus: Bus, server: SimHcloudServer, folder: Path) -> None:
        super().__init__(bus)
        self.buses = buses
        self.server = server
        self.project = server.cloud.add_project(TOKEN)
        self.clock = ManualClock()
        self.kube = InMemoryNodes()
        self.cloud: CloudService
        self.token_file = folder / "token"
        self.token_file.write_text(TOKEN)

    @classmethod
    @asynccontextmanager
    async def open(cls, kind: str, tmp_path: Path) -> AsyncIterator["MetadataFlow"]:
        async with (
            BusServer.open(kind, tmp_path) as buses,
            SimHcloudServer.start(SimHcloud()) as server,
            buses.open_bus("watcher") as bus,
        ):
            yield cls(buses, bus, server, tmp_path)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Both services, each in a process of its own; cloud asks only in `look`."""
        accounts = ("hcloud/prod",)
        account = CloudSettings(
            accounts=accounts, credential_file=self.token_file, endpoint=self.server.endpoint,
            step_seconds=3600.0, requests_per_minute=10_000, metadata_accounts=accounts,
        )  # fmt: skip
        labeler = LabelerSettings(
            metadata_accounts=accounts, rollout_spread_seconds=0.0, leader_silence_seconds=10_000.0
        )
        async with (
            run_service(
                self.buses, "cloud", lambda parts: CloudService(parts, account), kube=None, clock=self.clock
            ) as self.cloud,
            run_service(
                self.buses, "labeler", lambda parts: LabelerService(parts, labeler), kube=self.kube,
                clock=self.clock,
            ),
        ):  # fmt: skip
            await self.publish_leading()
            yield

    async def join(self, node: Node, facts: MachineFacts) -> None:
        """The Node joins; cloud knows what its machine names."""
        self.kube.put(node)
        await self.enrich(node, facts)
        machines = self.cloud.metadata.machines
        await wait_until(
            lambda: any(each.name == node.name for each in machines.select_due(0.0)), "the machine is known"
        )

    async def look(self, node: Node, facts: MachineFacts) -> None:
        """cloud asks later than metadata, which then publishes the Node again."""
        self.clock.advance(61.0)
        await self.cloud.metadata.step()
        await self.enrich(node, facts)


flow, any_flow = make_flow_fixtures(MetadataFlow.open)


async def test_a_new_node_waits_for_its_account_and_gets_what_the_native_controller_writes(
    any_flow: MetadataFlow,
):
    flow = any_flow
    server_id = flow.project.add_server("server-1", ipv4=PUBLIC_IP)
    node, facts = make_node(ip=PUBLIC_IP), make_hetzner_facts(str(server_id))
    await flow.start()
    async with flow.run():
        await flow.join(node, facts)
        waits = await flow.wait_for_decision("web-1", "blocked")
        assert f"no answer about hcloud://{server_id} yet" in waits.reason
        await flow.look(node, facts)
        await flow.wait_for_decision("web-1", "initialized")
    written = flow.kube.node("web-1")
    assert written.spec.provider_id == f"hcloud://{server_id}"
    assert {key: written.labels[key] for key in LABELS} == LABELS
    assert written.is_initialized


async def test_the_labeler_asks_again_by_itself_for_what_its_account_has_supplied(flow: MetadataFlow):
    server_id = flow.project.add_server("server-1", ipv4=PUBLIC_IP)
    node, facts = make_node(ip=PUBLIC_IP), make_hetzner_facts(str(server_id))
    await flow.start()
    async with flow.run():
        await flow.join(node, facts)
        await flow.wait_for_decision("web-1", "blocked")
        flow.clock.advance(1.0)
        await flow.cloud.metadata.step()
        await flow.wait_for_decision("web-1", "initialized")


@pytest.mark.parametrize(
    ("node_ip", "why"),
    [("192.0.2.9", "reached at 192.0.2.9"), ("10.0.0.5", "reached at 10.0.0.5")],
    ids=["own-address", "same-private-address-elsewhere"],
)
async def test_a_machine_with_a_neighbours_serial_number_does_not_get_its_provider_id(
    flow: MetadataFlow, node_ip: str, why: str
):
    network = flow.project.add_network()
    server_id = flow.project.add_server("neighbour", ipv4=PUBLIC_IP, private=[(network, "10.0.0.5")])
    node, facts = make_node(ip=node_ip), make_hetzner_facts(str(server_id), node_ip=node_ip)
    await flow.start()
    async with flow.run():
        await flow.join(node, facts)
        for _ in range(3):
            await flow.look(node, facts)
            decided = await flow.wait_for_decision("web-1", "blocked")
        await wait_until(lambda: has_reason(flow, why), "the reason is published")
        assert decided.outcome == "blocked"
    written = flow.kube.node("web-1")
    assert (written.spec.provider_id, written.is_initialized) == ("", False)


async def has_reason(flow: MetadataFlow, why: str) -> bool:
    decided = await flow.get_decision("web-1")
    return decided is not None and why in decided.reason


async def test_of_two_machines_that_name_one_server_neither_gets_its_provider_id(flow: MetadataFlow):
    server_id = flow.project.add_server("neighbour", ipv4=PUBLIC_IP)
    node, facts = make_node(ip=PUBLIC_IP), make_hetzner_facts(str(server_id))
    liar = make_node("web-2", uid="uid-2", ip="192.0.2.9")
    lie = make_hetzner_facts(str(server_id), node_name="web-2", node_ip="192.0.2.9")
    await flow.start()
    async with flow.run():
        await flow.join(liar, lie)
        await flow.join(node, facts)
        await flow.look(node, facts)
        await flow.enrich(liar, lie)
        await wait_until(
            lambda: has_reason(flow, "the machine of Node web-2 names"), "the reason is published"
        )
        await flow.wait_for_decision("web-2", "blocked")
    assert [flow.kube.node(name).spec.provider_id for name in ("web-1", "web-2")] == ["", ""]


async def test_a_query_from_before_the_machine_was_reached_does_not_count(flow: MetadataFlow):
    server_id = flow.project.add_server("server-1", ipv4=PUBLIC_IP)
    node, facts = make_node(ip=PUBLIC_IP), make_hetzner_facts(str(server_id))
    later = msgspec.structs.replace(facts, queried_at=NOW + timedelta(seconds=100))
    await flow.start()
    async with flow.run():
        await flow.join(node, facts)
        await flow.look(node, later)  # cloud asked at 61 s
        await wait_until(lambda: has_reason(flow, "since the machine was last reached"), "it waits")
        assert flow.kube.node("web-1").spec.provider_id == ""
        await flow.look(node, later)  # at 122 s
        await flow.wait_for_decision("web-1", "initialized")
