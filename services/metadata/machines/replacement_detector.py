"""Queries all addresses of a Node, and discovery, to detect machines that replace its machine."""

import asyncio
import logging
import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import KW_ONLY, dataclass
from typing import Final

from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import Node
from libs.talos.api import MachineUnavailable
from services.metadata.core.machine_replacement import (
    Inconclusive,
    judge_replacement,
    list_remaining_addresses,
)
from services.metadata.machines.query_machine import query_each
from services.metadata.machines.talos_client import TalosClient

log = logging.getLogger(__name__)

MEMBERS_TTL_SECONDS: Final = 10.0  # discovery lists a member for half an hour after it is gone
SIGHTING_TTL_SECONDS: Final = 1800.0  # as long as discovery keeps a machine


@dataclass(eq=False)
class MemberCache:
    """Caches the members that discovery lists. It queries them at most once in ten seconds."""

    talos: TalosClient
    _: KW_ONLY
    deadline_seconds: float
    monotonic: Callable[[], float]

    def __post_init__(self) -> None:
        self._queried_at = -math.inf
        self._query_task: asyncio.Task[frozenset[str] | MachineFault] | None = None

    async def get_names(self) -> frozenset[str] | MachineFault:
        """Return the node names of all members, or the fault of the query."""
        now = self.monotonic()
        if self._query_task is None or now - self._queried_at >= MEMBERS_TTL_SECONDS:
            self._queried_at = now
            self._query_task = asyncio.create_task(self._query(), name="members")
        return await asyncio.shield(self._query_task)

    async def close(self) -> None:
        """Cancel the current query."""
        if self._query_task is not None:
            self._query_task.cancel()
            await asyncio.wait({self._query_task})

    async def _query(self) -> frozenset[str] | MachineFault:
        try:
            return await self.talos.list_member_names(deadline_seconds=self.deadline_seconds)
        except MachineUnavailable as unavailable:
            return unavailable.fault
        except Exception as error:
            # A response is hostile input: one that breaks our parser must not end the Node's only task.
            log.exception("unexpected error, query of discovery failed")
            return MachineFault(kind="internal", step="Member", message=type(error).__name__)


class MachineSightings:
    """Machines that answered at an address of another Node, by node name.

    Discovery may have lost a machine that moved and still runs. A sighting proves that it runs.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._sightings: dict[
            str, tuple[str, float]
        ] = {}  # node name -> (address, monotonic time); the oldest first

    def record(self, facts: MachineFacts) -> None:
        """Record that this machine answered, and drop expired sightings."""
        now = self._monotonic()
        while self._sightings and now - next(iter(self._sightings.values()))[1] >= SIGHTING_TTL_SECONDS:
            del self._sightings[next(iter(self._sightings))]
        if facts.node_name:
            self._sightings.pop(facts.node_name, None)
            self._sightings[facts.node_name] = (facts.node_ip, now)

    def explain_alive(self, name: str) -> str:
        """Return where the machine of that name answered, as a reason; "" without a recent sighting."""
        address, at = self._sightings.get(name, ("", -math.inf))
        if self._monotonic() - at >= SIGHTING_TTL_SECONDS:
            return ""
        return f"a machine with its name answered at {address} within the last half hour"


@dataclass(eq=False)
class ReplacementDetector:
    """Detects replacements for all Nodes, with one cache of members and sightings."""

    talos: TalosClient
    _: KW_ONLY
    get_reachable_nodes: Callable[[], AbstractSet[str]]  # those verified by node name
    is_enabled: bool = True  # if not, it queries nothing for `detect`
    deadline_seconds: float
    monotonic: Callable[[], float]

    def __post_init__(self) -> None:
        self._members = MemberCache(
            self.talos, deadline_seconds=self.deadline_seconds, monotonic=self.monotonic
        )
        self._sightings = MachineSightings(self.monotonic)

    def record_sighting(self, facts: MachineFacts) -> None:
        """Record that a machine answered at an address of another Node."""
        if self.is_enabled:
            self._sightings.record(facts)

    async def detect(
        self, node: Node, wrong_machines: tuple[MachineFacts, ...]
    ) -> tuple[ForeignMachine, ...]:
        """Return the replacements, () without proof. `wrong_machines` answered at the dialled addresses."""
        if not self.is_enabled:
            return ()
        found = await self.judge(node, wrong_machines)
        if isinstance(found, Inconclusive):
            log.debug("no proof of a replacement", extra={"reason": found.reason})
            return ()
        return found

    async def judge(
        self, node: Node, wrong_machines: tuple[MachineFacts, ...]
    ) -> tuple[ForeignMachine, ...] | Inconclusive:
        """Return the machines that replace the Node's machine, or why there is no proof."""
        further = list_remaining_addresses(node, wrong_machines)
        if isinstance(further, Inconclusive):
            return further
        names, answers = await asyncio.gather(
            self._members.get_names(),
            query_each(self.talos, further, deadline_seconds=self.deadline_seconds, with_system=True),
        )
        if isinstance(names, MachineFault):
            return Inconclusive(f"query of discovery failed: {names.message}")
        why_alive = self._sightings.explain_alive(node.name)
        for facts in answers.values():
            if isinstance(facts, MachineFacts):
                self._sightings.record(facts)
        if why_alive:
            return Inconclusive(why_alive)
        known = {facts.node_ip: facts for facts in wrong_machines}
        reachable = self.get_reachable_nodes()
        return judge_replacement(node, {**answers, **known}, members=names, reachable_nodes=reachable)

    async def close(self) -> None:
        """Cancel the current query of members."""
        await self._members.close()
