"""Polls the machine of one Node: queries its addresses, and detects machines that replace it."""

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass

from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.talos.resources import Part
from services.metadata.core.identity import verify
from services.metadata.machines.query_machine import QueryFailure, QueryResult, QuerySlots, query_in_turn
from services.metadata.machines.replacement_detector import ReplacementDetector
from services.metadata.machines.talos_client import TalosClient
from services.metadata.node_registry import NodeRegistry


@dataclass(eq=False)
class MachinePoller:
    """Polls the machines of all Nodes, a limited number at once."""

    talos: TalosClient
    nodes: NodeRegistry
    replacements: ReplacementDetector
    slots: QuerySlots
    _: KW_ONLY
    deadline_seconds: float

    def acquire_slot(self) -> AbstractAsyncContextManager[None]:
        """Wait for a slot, which a poll needs."""
        return self.slots.acquire()

    async def poll(
        self, name: str, addresses: tuple[str, ...], parts: Collection[Part], *, with_system: bool
    ) -> tuple[QueryResult | QueryFailure, tuple[ForeignMachine, ...]]:
        """Return the facts of the machine of that Node, or a fault and the machines that replace it."""
        found = await query_in_turn(
            self.talos,
            addresses,
            parts=parts,
            deadline_seconds=self.deadline_seconds,
            reject=lambda facts: self._reject(name, facts),
            with_system=with_system,
        )
        return found, await self._detect_replacements(name, found)

    def _reject(self, name: str, facts: MachineFacts) -> MachineFault | None:
        state = self.nodes.get(name)
        node = state.node if state is not None else None
        identity = verify(node, facts, self.nodes.list_nodes()) if node is not None else None
        if not isinstance(identity, MachineFault):
            return None
        self.replacements.record_sighting(facts)
        return identity

    async def _detect_replacements(
        self, name: str, found: QueryResult | QueryFailure
    ) -> tuple[ForeignMachine, ...]:
        before = self.nodes.get(name)
        node = before.node if before is not None else None
        if isinstance(found, QueryResult) or not found.rejected or node is None:
            return ()
        foreign_machines = await self.replacements.detect(node, found.rejected)
        after = self.nodes.get(name)
        # The queried addresses are those of the old status: with another status, the result proves nothing.
        is_same = after is not None and after.node is not None and after.node.status == node.status
        return foreign_machines if is_same else ()
