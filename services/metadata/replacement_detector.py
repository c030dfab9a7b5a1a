"""Asks who answers in the place of a Node's machine: at all of its addresses, and what discovery knows."""

import asyncio
import logging
import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final

from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import Node
from libs.talos.api import MachineUnavailable
from services.metadata.machine_replacement import Inconclusive, judge_replacement, list_remaining_addresses
from services.metadata.query_machine import QueryResult, TalosClient, query_address

log = logging.getLogger(__name__)

MEMBERS_TTL_SECONDS: Final = 10.0  # a member that is gone stays known for half an hour
SIGHTING_TTL_SECONDS: Final = 1800.0  # as long as discovery remembers a machine, we do


class MemberCache:
    """Whom discovery knows; asked once in ten seconds at most, whoever wants to know."""

    def __init__(
        self, talos: TalosClient, *, deadline_seconds: float, monotonic: Callable[[], float]
    ) -> None:
        self._talos = talos
        self._deadline_seconds = deadline_seconds
        self._monotonic = monotonic
        self._queried_at = -math.inf
        self._query_task: asyncio.Task[frozenset[str] | MachineFault] | None = None

    async def get_names(self) -> frozenset[str] | MachineFault:
        """The node names of all members, or why they are not known."""
        now = self._monotonic()
        if self._query_task is None or now - self._queried_at >= MEMBERS_TTL_SECONDS:
            self._queried_at = now
            self._query_task = asyncio.create_task(self._query(), name="members")
        return await asyncio.shield(self._query_task)

    async def close(self) -> None:
        """End a question under way."""
        if self._query_task is not None:
            self._query_task.cancel()
            await asyncio.wait({self._query_task})

    async def _query(self) -> frozenset[str] | MachineFault:
        try:
            return await self._talos.list_member_names(deadline_seconds=self._deadline_seconds)
        except MachineUnavailable as unavailable:
            return unavailable.fault
        except Exception as error:
            # Answers are hostile input: what breaks our reading of one must not end the Node's only task.
            log.exception("a question for members ended in a way nobody foresaw")
            return MachineFault(kind="internal", step="Member", message=type(error).__name__)


class MachineSightings:
    """Machines that answered where another Node's was looked for, by the name that they bear.

    Discovery may have lost one that was moved and still lives: who has met it elsewhere knows better.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._sightings: dict[str, tuple[str, float]] = {}  # name -> at which address, when; the oldest first

    def record(self, facts: MachineFacts) -> None:
        """It answered."""
        now = self._monotonic()
        while self._sightings and now - next(iter(self._sightings.values()))[1] >= SIGHTING_TTL_SECONDS:
            del self._sightings[next(iter(self._sightings))]
        if facts.node_name:
            self._sightings.pop(facts.node_name, None)
            self._sightings[facts.node_name] = (facts.node_ip, now)

    def explain_alive(self, name: str) -> str:
        """Where the machine of that name was met, in words; "" if it was not, or long ago."""
        address, at = self._sightings.get(name, ("", -math.inf))
        if self._monotonic() - at >= SIGHTING_TTL_SECONDS:
            return ""
        return f"a machine that bears its name answered at {address} within the last half hour"


class ReplacementDetector:
    """Who answers in the place of which Node's machine, for all Nodes."""

    def __init__(
        self,
        talos: TalosClient,
        *,
        get_reachable_nodes: Callable[[], AbstractSet[str]],
        is_enabled: bool,
        deadline_seconds: float,
        monotonic: Callable[[], float],
    ) -> None:
        """`reached` names the Nodes whose machines say what they are. Not `wanted`: nobody is asked."""
        self._talos = talos
        self._get_reachable_nodes = get_reachable_nodes
        self._is_enabled = is_enabled
        self._deadline_seconds = deadline_seconds
        self._members = MemberCache(talos, deadline_seconds=deadline_seconds, monotonic=monotonic)
        self._sightings = MachineSightings(monotonic)

    def record_sighting(self, facts: MachineFacts) -> None:
        """A machine answered where another Node's was looked for."""
        if self._is_enabled:
            self._sightings.record(facts)

    async def detect(
        self, node: Node, wrong_machines: tuple[MachineFacts, ...]
    ) -> tuple[ForeignMachine, ...]:
        """Those who do, () if that is not proven. `answered`: what was said where it was expected."""
        if not self._is_enabled:
            return ()
        found = await detect_replacements(
            self._talos,
            node,
            wrong_machines,
            members=self._members,
            reachable_nodes=self._get_reachable_nodes,
            deadline_seconds=self._deadline_seconds,
            sightings=self._sightings,
        )
        if isinstance(found, Inconclusive):
            log.debug("nothing says that another machine took its place", extra={"reason": found.reason})
            return ()
        return found

    async def close(self) -> None:
        """Ask nobody any more."""
        await self._members.close()


async def detect_replacements(
    talos: TalosClient,
    node: Node,
    wrong_machines: tuple[MachineFacts, ...],
    *,
    members: MemberCache,
    reachable_nodes: Callable[[], AbstractSet[str]],
    deadline_seconds: float,
    sightings: MachineSightings | None = None,
) -> tuple[ForeignMachine, ...] | Inconclusive:
    """Who has taken the place of the Node's machine. `answered`: what other machines said where it was
    looked for; `reached` names the Nodes whose machines say what they are; `met`, by whoever looks at all
    Nodes, who answered in others' places, and is told of more.
    """
    further = list_remaining_addresses(node, wrong_machines)
    if isinstance(further, Inconclusive):
        return further
    names, answers = await asyncio.gather(members.get_names(), _query_each(talos, further, deadline_seconds))
    if isinstance(names, MachineFault):
        return Inconclusive(f"discovery cannot be asked: {names.message}")
    if sightings is not None:
        for facts in answers.values():
            if isinstance(facts, MachineFacts):
                sightings.record(facts)
        if why := sightings.explain_alive(node.name):
            return Inconclusive(why)
    said = {facts.node_ip: facts for facts in wrong_machines}
    return judge_replacement(node, {**answers, **said}, members=names, reachable_nodes=reachable_nodes())


async def _query_each(
    talos: TalosClient, addresses: tuple[str, ...], deadline_seconds: float
) -> dict[str, MachineFacts | MachineFault]:
    asking = (query_address(talos, one, parts=(), deadline_seconds=deadline_seconds) for one in addresses)
    found = zip(addresses, await asyncio.gather(*asking), strict=True)
    return {address: seen.facts if isinstance(seen, QueryResult) else seen for address, seen in found}
