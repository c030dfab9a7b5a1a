"""A scripted Talos API client, and the metadata service on a bus of its own."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.nats.connection_supervisor import Timeouts
from libs.common.bus.protocol import Bus
from libs.common.contract.machine import FaultKind, Inventory, MachineFacts, MachineFault
from libs.talos.api import (
    InventoryResponse,
    MachineConfigNetworks,
    MachineUnavailable,
    Part,
    WatchSnapshot,
)
from libs.talos.resources import INVENTORY
from services.metadata.machines.talos_client import TalosClient
from services.metadata.service import MetadataService
from services.metadata.settings import MetadataSettings
from tests.bus_actors import run_during
from tests.clocks import ManualClock
from tests.flow_actors import QUICK
from tests.service_flow import make_dependencies

# Within a test, metadata does nothing by itself, except that it opens watches at once.
CALM = MetadataSettings(watches_opened_after_seconds=0.0, watches_opened_per_second=1000.0)
PARTS: Mapping[Part, str] = {part: ref.inventory_field for part, ref in INVENTORY.items()}


class ScriptedTalos:
    """A `TalosClient` with one machine per address, set by the test."""

    def __init__(
        self, *machines: MachineFacts, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._now = now
        self.machines = {facts.node_ip: facts for facts in machines}
        self.faults: dict[str, MachineFault] = {}
        self.held: dict[str, asyncio.Event] = {}  # queries that have begun wait for it
        self.looks: list[str] = []
        self.looking: Counter[str] = Counter()
        self.most_at_once: Counter[str] = Counter()
        self.watching: Counter[str] = Counter()
        self.inventories: dict[str, Inventory] = {}
        self.part_faults: dict[Part, MachineFault] = {}  # the same for all machines
        self.asked: list[tuple[str, frozenset[Part]]] = []  # address and requested parts of the inventory
        self.networks: MachineConfigNetworks | MachineFault = MachineFault(
            kind="refused", step="ControllerManagerConfig", message="connection refused"
        )
        self.members: frozenset[str] | MachineFault = frozenset()  # the node names that discovery lists
        self.questions_for_members = 0
        self.questions = 0  # for the cluster's networks
        self.closed = False
        self.trouble = ""
        self._changes: dict[str, asyncio.Event] = {}
        self._cut: set[str] = set()

    def put(self, facts: MachineFacts) -> None:
        """Add a machine, or change it: live watches report the change."""
        self.machines[facts.node_ip] = facts
        self.faults.pop(facts.node_ip, None)
        if facts.node_ip in self._changes:
            self._changes[facts.node_ip].set()

    def fail_queries(self, ip: str, kind: FaultKind = "refused", step: str = "PlatformMetadata") -> None:
        """Let queries of that address fail."""
        self.faults[ip] = MachineFault(kind=kind, step=step, endpoint="cp:50000", message=f"{ip} {kind}")

    def clear_fault(self, ip: str) -> None:
        """Let queries succeed again; no watch reports it."""
        self.faults.pop(ip, None)

    def cut_watch(self, ip: str) -> None:
        """End the open watch."""
        self._cut.add(ip)
        self._changes[ip].set()

    async def fetch_facts(
        self, node_ip: str, *, deadline_seconds: float, with_system: bool = True
    ) -> MachineFacts:
        self.looks.append(node_ip)
        self.looking[node_ip] += 1
        self.most_at_once[node_ip] = max(self.most_at_once[node_ip], self.looking[node_ip])
        queried_at = self._now()
        try:
            if node_ip in self.held:
                await self.held[node_ip].wait()
        finally:
            self.looking[node_ip] -= 1
        if node_ip in self.faults or node_ip not in self.machines:
            unknown = MachineFault(
                kind="refused", step="PlatformMetadata", message=f"no machine at {node_ip}"
            )
            raise MachineUnavailable(self.faults.get(node_ip, unknown))
        facts = msgspec.structs.replace(self.machines[node_ip], queried_at=queried_at)
        return facts if with_system else msgspec.structs.replace(facts, system=None)

    async def fetch_inventory(
        self, node_ip: str, parts: Collection[Part], *, deadline_seconds: float
    ) -> InventoryResponse:
        self.asked.append((node_ip, frozenset(parts)))
        faults = {part: fault for part, fault in self.part_faults.items() if part in parts}
        held = self.inventories.get(node_ip, Inventory())
        told = {PARTS[part]: getattr(held, PARTS[part]) for part in parts if part not in faults}
        return InventoryResponse(inventory=Inventory(**told), faults=faults)

    async def watch_machine(
        self, node_ip: str, *, read_deadline_seconds: float
    ) -> AsyncGenerator[WatchSnapshot | None, None]:
        changed = self._changes[node_ip] = asyncio.Event()
        self.watching[node_ip] += 1
        now = self.machines[node_ip]
        try:
            yield WatchSnapshot(
                platform=now.platform, addresses=now.addresses, node_name=now.node_name, stage=now.stage
            )
            while True:
                await changed.wait()
                changed.clear()
                if node_ip in self._cut:
                    self._cut.discard(node_ip)
                    return
                yield None
        finally:
            self.watching[node_ip] -= 1

    async def fetch_cluster_networks(self, *, deadline_seconds: float) -> MachineConfigNetworks:
        self.questions += 1
        if isinstance(self.networks, MachineFault):
            raise MachineUnavailable(self.networks)
        return self.networks

    async def list_member_names(self, *, deadline_seconds: float) -> frozenset[str]:
        self.questions_for_members += 1
        if isinstance(self.members, MachineFault):
            raise MachineUnavailable(self.members)
        return self.members

    def problem(self) -> str:
        return self.trouble

    def certificate_expires_at(self) -> datetime | None:
        return None

    async def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def run_metadata(
    url: str,
    talos: TalosClient | None,
    settings: MetadataSettings = CALM,
    *,
    seed: int = 1,
    timing: Timeouts = QUICK,
) -> AsyncIterator[MetadataService]:
    """Run a metadata service on a bus of its own; `talos` None = the client of the settings."""
    bus = await NatsBus.connect((url,), service="metadata", timing=timing)
    try:
        async with run_metadata_on(bus, talos, settings, seed=seed) as service:
            yield service
    finally:
        await bus.close()


@asynccontextmanager
async def run_metadata_on(
    bus: Bus,
    talos: TalosClient | None,
    settings: MetadataSettings,
    *,
    seed: int,
    clock: ManualClock | None = None,
) -> AsyncIterator[MetadataService]:
    """Run a metadata service on this bus; without `clock` by the real time."""
    service = MetadataService(make_dependencies(bus, clock=clock, seed=seed), settings, talos=talos)
    async with run_during(service.run()):
        yield service
