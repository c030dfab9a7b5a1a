"""Asks who answers in the place of a Node's machine: at all of its addresses, and what discovery knows."""

import asyncio
import logging
import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final

from libs.common.machine import AnotherMachine, MachineFacts, MachineFault
from libs.common.node import Node
from services.metadata.ask_machine import Seen, Talos, ask_at
from services.metadata.in_its_place import NotProven, still_to_ask, who_answers
from services.metadata.talos_api.api import MachineUnavailable

log = logging.getLogger(__name__)

KEPT_SECONDS: Final = 10.0  # a member that is gone stays known for half an hour
MET_SECONDS: Final = 1800.0  # as long as discovery remembers a machine, we do


class Members:
    """Whom discovery knows; asked once in ten seconds at most, whoever wants to know."""

    def __init__(self, talos: Talos, *, deadline_seconds: float, monotonic: Callable[[], float]) -> None:
        self._talos = talos
        self._deadline_seconds = deadline_seconds
        self._monotonic = monotonic
        self._asked_at = -math.inf
        self._asking: asyncio.Task[frozenset[str] | MachineFault] | None = None

    async def names(self) -> frozenset[str] | MachineFault:
        """The node names of all members, or why they are not known."""
        now = self._monotonic()
        if self._asking is None or now - self._asked_at >= KEPT_SECONDS:
            self._asked_at = now
            self._asking = asyncio.create_task(self._ask(), name="members")
        return await asyncio.shield(self._asking)

    async def close(self) -> None:
        """End a question under way."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})

    async def _ask(self) -> frozenset[str] | MachineFault:
        try:
            return await self._talos.member_names(deadline_seconds=self._deadline_seconds)
        except MachineUnavailable as unavailable:
            return unavailable.fault
        except Exception as error:
            # Answers are hostile input: what breaks our reading of one must not end the Node's only task.
            log.exception("a question for members ended in a way nobody foresaw")
            return MachineFault(kind="internal", step="Member", message=type(error).__name__)


class Met:
    """Machines that answered where another Node's was looked for, by the name that they bear.

    Discovery may have lost one that was moved and still lives: who has met it elsewhere knows better.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._met: dict[str, tuple[str, float]] = {}  # name -> at which address, when; the oldest first

    def note(self, facts: MachineFacts) -> None:
        """It answered."""
        now = self._monotonic()
        while self._met and now - next(iter(self._met.values()))[1] >= MET_SECONDS:
            del self._met[next(iter(self._met))]
        if facts.node_name:
            self._met.pop(facts.node_name, None)
            self._met[facts.node_name] = (facts.node_ip, now)

    def why_alive(self, name: str) -> str:
        """Where the machine of that name was met, in words; "" if it was not, or long ago."""
        address, at = self._met.get(name, ("", -math.inf))
        if self._monotonic() - at >= MET_SECONDS:
            return ""
        return f"a machine that bears its name answered at {address} within the last half hour"


class Others:
    """Who answers in the place of which Node's machine, for all Nodes."""

    def __init__(
        self,
        talos: Talos,
        *,
        reached: Callable[[], AbstractSet[str]],
        wanted: bool,
        deadline_seconds: float,
        monotonic: Callable[[], float],
    ) -> None:
        """`reached` names the Nodes whose machines say what they are. Not `wanted`: nobody is asked."""
        self._talos = talos
        self._reached = reached
        self._wanted = wanted
        self._deadline_seconds = deadline_seconds
        self._members = Members(talos, deadline_seconds=deadline_seconds, monotonic=monotonic)
        self._met = Met(monotonic)

    def met(self, facts: MachineFacts) -> None:
        """A machine answered where another Node's was looked for."""
        if self._wanted:
            self._met.note(facts)

    async def answer(self, node: Node, answered: tuple[MachineFacts, ...]) -> tuple[AnotherMachine, ...]:
        """Those who do, () if that is not proven. `answered`: what was said where it was expected."""
        if not self._wanted:
            return ()
        found = await ask_others(
            self._talos,
            node,
            answered,
            members=self._members,
            reached=self._reached,
            deadline_seconds=self._deadline_seconds,
            met=self._met,
        )
        if isinstance(found, NotProven):
            log.debug("nothing says that another machine took its place", extra={"reason": found.reason})
            return ()
        return found

    async def close(self) -> None:
        """Ask nobody any more."""
        await self._members.close()


async def ask_others(
    talos: Talos,
    node: Node,
    answered: tuple[MachineFacts, ...],
    *,
    members: Members,
    reached: Callable[[], AbstractSet[str]],
    deadline_seconds: float,
    met: Met | None = None,
) -> tuple[AnotherMachine, ...] | NotProven:
    """Who has taken the place of the Node's machine. `answered`: what other machines said where it was
    looked for; `reached` names the Nodes whose machines say what they are; `met`, by whoever looks at all
    Nodes, who answered in others' places, and is told of more.
    """
    further = still_to_ask(node, answered)
    if isinstance(further, NotProven):
        return further
    names, answers = await asyncio.gather(members.names(), _ask_each(talos, further, deadline_seconds))
    if isinstance(names, MachineFault):
        return NotProven(f"discovery cannot be asked: {names.message}")
    if met is not None:
        for facts in answers.values():
            if isinstance(facts, MachineFacts):
                met.note(facts)
        if why := met.why_alive(node.name):
            return NotProven(why)
    said = {facts.node_ip: facts for facts in answered}
    return who_answers(node, {**answers, **said}, members=names, reached=reached())


async def _ask_each(
    talos: Talos, addresses: tuple[str, ...], deadline_seconds: float
) -> dict[str, MachineFacts | MachineFault]:
    asking = (ask_at(talos, one, parts=(), deadline_seconds=deadline_seconds) for one in addresses)
    found = zip(addresses, await asyncio.gather(*asking), strict=True)
    return {address: seen.facts if isinstance(seen, Seen) else seen for address, seen in found}
