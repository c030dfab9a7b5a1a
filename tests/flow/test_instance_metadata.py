"""cloud and the labeler give a new Node what Talos does not know of its machine, at each provider."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

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
from tests.builders import make_node
from tests.bus_actors import NATS, wait_until
from tests.bus_server import BusServer, run_service
from tests.clocks import ManualClock
from tests.contract.clouds.accounts import OpenStackAccount, open_openstack
from tests.labeler_actors import InMemoryNodes
from tests.named_machines import HCLOUD, OPENSTACK, PUBLIC_IP, NamedCloud
from tests.service_flow import ServiceFlow

TOKEN = "a" * 64
PRIVATE_IP, STORAGE_IP = "10.0.0.5", "10.9.0.5"


class SimAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Account prod at a simulated cloud. All servers have the same addresses."""

    cloud: NamedCloud
    entry: str  # in --cloud-metadata-accounts
    settings: Mapping[str, Any]  # of cloud
    labels: Mapping[str, str]  # of a Node whose machine is such a server
    address: str  # at which such a machine is reached
    uncounted: str  # of a private network that the entry does not name: other machines may have it
    add_server: Callable[[str], str]  # creates one of that name; returns its id


def make_hcloud_account(server: SimHcloudServer, folder: Path) -> SimAccount:
    """Its machines are reached at their public address."""
    project = server.cloud.add_project(TOKEN)
    network = project.add_network()
    token = folder / "token"
    token.write_text(TOKEN)
    return SimAccount(
        cloud=HCLOUD,
        entry="hcloud/prod",
        settings={"credential_file": token, "endpoint": server.endpoint},
        labels={
            "topology.kubernetes.io/region": "fsn1",
            "topology.kubernetes.io/zone": "fsn1-dc14",
            "node.kubernetes.io/instance-type": "cx22",
            "instance.hetzner.cloud/provided-by": "cloud",
        },
        address=PUBLIC_IP,
        uncounted=PRIVATE_IP,
        add_server=lambda name: str(
            project.add_server(name, ipv4=PUBLIC_IP, private=[(network, PRIVATE_IP)])
        ),
    )


def make_openstack_account(account: OpenStackAccount, folder: Path) -> SimAccount:
    """Its machines are reached in the network `nodes`; a floating address leads to each, too."""
    addresses = {
        "nodes": [(PRIVATE_IP, "fixed"), (PUBLIC_IP, "floating")],
        "storage": [(STORAGE_IP, "fixed")],
    }
    return SimAccount(
        cloud=OPENSTACK,
        entry="openstack/prod/nodes",
        settings={"credential_file": account.write_credential(folder)},
        labels={
            "topology.kubernetes.io/region": "RegionOne",
            "topology.kubernetes.io/zone": "az-1-west",
            "node.kubernetes.io/instance-type": "c2.large",
        },
        address=PRIVATE_IP,
        uncounted=STORAGE_IP,
        add_server=lambda name: account.project.add_server(
            name, zone="az-1 (west)", flavor="c2.large", addresses=addresses
        ),
    )


@asynccontextmanager
async def open_account(provider: str, folder: Path) -> AsyncIterator[SimAccount]:
    """The account at that provider."""
    if provider == "hcloud":
        async with SimHcloudServer.start(SimHcloud()) as hcloud:
            yield make_hcloud_account(hcloud, folder)
    else:
        async with open_openstack() as openstack:
            yield make_openstack_account(openstack, folder)


class MetadataFlow(ServiceFlow):
    """Publishes as watcher and metadata; cloud with a simulated project, and the labeler."""

    decisions_of = "labeler.node"

    def __init__(self, buses: BusServer, bus: Bus, account: SimAccount) -> None:
        super().__init__(bus)
        self.buses = buses
        self.account = account
        self.clock = ManualClock()
        self.kube = InMemoryNodes()
        self.cloud: CloudService

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Both services, each in a process of its own; cloud asks only in `look`."""
        account = CloudSettings(
            accounts=(f"{self.account.cloud.provider}/prod",), step_seconds=3600.0,
            requests_per_minute=10_000, metadata_accounts=(self.account.entry,), **self.account.settings,
        )  # fmt: skip
        labeler = LabelerSettings(
            metadata_accounts=(self.account.entry,),
            rollout_spread_seconds=0.0,
            leader_silence_seconds=10_000.0,
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

    def make_machine(self, server_id: str, address: str = "", **fields: Any) -> tuple[Node, MachineFacts]:
        """The Node of a machine that names this server and was reached at the address of such a server."""
        node_ip = address or self.account.address
        name = fields.get("node_name", "web-1")
        node = make_node(name, ip=node_ip, uid=f"uid-{name}")
        return node, self.account.cloud.make_facts(server_id, node_ip=node_ip, **fields)

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


@asynccontextmanager
async def open_flow(kind: str, provider: str, folder: Path) -> AsyncIterator[MetadataFlow]:
    async with (
        BusServer.open(kind, folder) as buses,
        open_account(provider, folder) as account,
        buses.open_bus("watcher") as bus,
    ):
        yield MetadataFlow(buses, bus, account)


@pytest.fixture(params=["hcloud", "openstack"])
def provider(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def flow(provider: str, tmp_path: Path) -> AsyncIterator[MetadataFlow]:
    async with open_flow("memory", provider, tmp_path) as running:
        yield running


@pytest.fixture(params=["memory", NATS])
async def any_flow(
    request: pytest.FixtureRequest, provider: str, tmp_path: Path
) -> AsyncIterator[MetadataFlow]:
    async with open_flow(request.param, provider, tmp_path) as running:
        yield running


async def test_a_new_node_waits_for_its_account_and_gets_what_the_native_controller_writes(
    any_flow: MetadataFlow,
):
    flow = any_flow
    server_id = flow.account.add_server("server-1")
    provider_id = f"{flow.account.cloud.prefix}{server_id}"
    node, facts = flow.make_machine(server_id)
    await flow.start()
    async with flow.run():
        await flow.join(node, facts)
        waits = await flow.wait_for_decision("web-1", "blocked")
        assert f"no answer about {provider_id} yet" in waits.reason
        await flow.look(node, facts)
        await flow.wait_for_decision("web-1", "initialized")
    written = flow.kube.node("web-1")
    assert written.spec.provider_id == provider_id
    assert {key: written.labels[key] for key in flow.account.labels} == flow.account.labels
    assert written.is_initialized


async def test_the_labeler_asks_again_by_itself_for_what_its_account_has_supplied(flow: MetadataFlow):
    node, facts = flow.make_machine(flow.account.add_server("server-1"))
    await flow.start()
    async with flow.run():
        await flow.join(node, facts)
        await flow.wait_for_decision("web-1", "blocked")
        flow.clock.advance(1.0)
        await flow.cloud.metadata.step()
        await flow.wait_for_decision("web-1", "initialized")


async def test_a_machine_that_names_a_neighbour_does_not_get_its_provider_id(flow: MetadataFlow):
    """Not even at an address that the neighbour has in a network that does not count."""
    node_ip = flow.account.uncounted
    node, facts = flow.make_machine(flow.account.add_server("neighbour"), node_ip)
    await flow.start()
    async with flow.run():
        await flow.join(node, facts)
        for _ in range(3):
            await flow.look(node, facts)
            decided = await flow.wait_for_decision("web-1", "blocked")
        await wait_until(lambda: has_reason(flow, f"reached at {node_ip}"), "the reason is published")
        assert decided.outcome == "blocked"
    written = flow.kube.node("web-1")
    assert (written.spec.provider_id, written.is_initialized) == ("", False)


async def has_reason(flow: MetadataFlow, why: str) -> bool:
    decided = await flow.get_decision("web-1")
    return decided is not None and why in decided.reason
