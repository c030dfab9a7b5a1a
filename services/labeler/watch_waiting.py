"""Sees to it that no Node waits in silence: what blocks it is on the Node itself within 30 s.

Driven by what is known now, not by messages: it works when metadata is down, and after a restart. Every
replica does it; each waits a random while and writes only what the Node does not say by then.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from libs.common import metrics
from libs.common.bus import Unreadable
from libs.common.delivery import PermanentError, TemporaryError
from libs.common.events import Event, NodeObserved
from libs.common.flow_table import FlowTable
from libs.common.kube_api.errors import FenceFailed, NotFound
from libs.common.node import Node
from libs.common.subjects import ENRICHED_NODE, OBSERVED_NODE
from services.labeler.blocked import Blocked, by_defect, says_so_already
from services.labeler.decisions import Decisions
from services.labeler.node_api import NodeApi
from services.labeler.ownership import why_not_ours
from services.labeler.plan import Global, Notice, Plan, why_left_alone
from services.labeler.shared_trouble import MANY, SharedTrouble, shared_trouble
from services.labeler.waiting import (
    NO_FACTS_AFTER_SECONDS,
    Waiting,
    WaitingNodes,
    is_nobodys,
    is_ours,
    not_ours_for_certain,
    why_still_blocked,
)

log = logging.getLogger(__name__)

PASS_SECONDS: Final = 1.0
SAID_WITHIN_SECONDS: Final = 5.0  # the random while: replicas rarely speak at once, brief trouble goes unsaid
WRITES_PER_PASS: Final = 50  # an outage must not become a storm of writes on the API server
_AGAIN_AFTER_SECONDS: Final = 5.0


class _Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One Node of ours that waits, as of now."""

    node: Node
    waiting: Waiting
    blocked: Blocked | None


class WatchWaiting:
    """Looks once a second at the Nodes that are not initialised; with none there is nothing to do."""

    def __init__(
        self,
        *,
        table: FlowTable,
        waiting: WaitingNodes,
        nodes: NodeApi,
        decisions: Decisions,
        config: Callable[[], Global],
        paused: Callable[[], str],
        clock: Callable[[], float],
        random: random.Random,
    ) -> None:
        """`config` is what holds now; `paused` says why nothing may be written for now, "" if it may.

        `clock` is monotonic, in seconds.
        """
        self._table = table
        self._waiting = waiting
        self._nodes = nodes
        self._decisions = decisions
        self._config = config
        self._paused = paused
        self._clock = clock
        self._random = random
        self._outage: SharedTrouble | None = None
        self._outage_due: float | None = None

    def problems(self) -> tuple[str, ...]:
        """The trouble that most waiting Nodes share."""
        return () if self._outage is None else (f"outage: {self._outage}",)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(PASS_SECONDS)
            await self.look()

    async def look(self) -> None:
        """One pass over all Nodes that wait."""
        if self._table.problems() or self._paused():
            return  # what is known may be half of it, or another one leads: conclude nothing, write nothing
        at = self._clock()
        waits = {name: wait for name in tuple(self._waiting.by_name) if (wait := self._wait(name, at))}
        blocked = {name: wait.blocked for name, wait in waits.items() if wait.blocked}
        metrics.BLOCKED_NODES.set(len(blocked))
        self._judge_outage({name: each.reason for name, each in blocked.items()}, len(waits), at)
        for wait in waits.values():
            self._schedule(wait, at)
        due = [
            name for name, wait in waits.items() if wait.waiting.due is not None and wait.waiting.due <= at
        ]
        for name in due[:WRITES_PER_PASS]:
            await self._say(name)
        await self._say_outage(waits, at)
        await self._disown(at)

    def _wait(self, name: str, at: float) -> _Wait | None:
        """What is known of a Node that waits; None when it is not ours, or does not wait any more."""
        waiting = self._waiting.by_name.get(name)
        node = self._node(name)
        if waiting is None or node is None or node.uid != waiting.uid:
            self._waiting.by_name.pop(name, None)
            return None
        enriched = self._event(f"{ENRICHED_NODE}.{name}")
        if self._nodes.newest(node).initialized:
            return None  # so Kubernetes has answered; the watcher's word of it rests for some seconds
        if not is_ours(node, enriched, self._config()):
            return None
        blocked: Blocked | None
        try:
            blocked = why_still_blocked(waiting, node, enriched, self._config(), at=at)
        except Exception as error:  # noqa: BLE001 - one Node must not silence all; its handler logs where and why
            blocked = None if is_nobodys(node, self._config()) else by_defect(error)
        return _Wait(node=node, waiting=waiting, blocked=blocked)

    def _schedule(self, wait: _Wait, at: float) -> None:
        waiting, blocked = wait.waiting, wait.blocked
        if blocked is None:
            waiting.due = None
        elif says_so_already(wait.node, blocked):
            waiting.due, waiting.written = None, ""
        elif waiting.written != blocked.reason and waiting.due is None:
            waiting.due = self._in_a_while(at)

    async def _say(self, name: str) -> None:
        """Write the condition, from the newest view: the writes before this one have taken their time."""
        wait = self._wait(name, self._clock())
        if wait is None or wait.blocked is None or says_so_already(wait.node, wait.blocked):
            return
        shared = self._outage is not None and self._outage.reason == wait.blocked.reason
        wait.waiting.due = None
        try:
            await self._nodes.block(wait.node, wait.blocked, with_event=not shared)
        except (NotFound, FenceFailed):
            return  # gone, or another one by now: the watcher will tell
        except (TemporaryError, PermanentError) as error:
            wait.waiting.due = self._clock() + _AGAIN_AFTER_SECONDS * (1.0 + self._random.random())
            log.warning("a Node cannot be told why it waits", extra={"node": name, "error": str(error)})
            if wait.waiting.failed_write:  # then the Node itself may never say it
                await self._publish(wait.node, wait.blocked)
            return
        wait.waiting.written = wait.blocked.reason
        log.info("a Node waits", extra={"node": name, "reason": wait.blocked.reason})
        if self._event(f"{ENRICHED_NODE}.{name}") is None:  # else whoever handled that has published it
            await self._publish(wait.node, wait.blocked)

    async def _publish(self, node: Node, blocked: Blocked) -> None:
        plan = Plan(outcome="blocked", reason=blocked.message, blocked=blocked)
        await self._decisions.publish(node, plan)

    def _judge_outage(self, reasons: Mapping[str, str], waiting: int, at: float) -> None:
        before, self._outage = self._outage, shared_trouble(reasons, waiting)
        if self._outage is None:
            self._outage_due = None
            if before is not None:
                log.info("the outage is over", extra={"reason": before.reason})
        elif before is None or before.reason != self._outage.reason:
            self._outage_due = self._in_a_while(at)
            log.warning("many Nodes wait for the same thing", extra={"reason": str(self._outage)})

    async def _say_outage(self, waits: Mapping[str, _Wait], at: float) -> None:
        """One Event for all of them, on the first by name."""
        wait = waits.get(self._outage.first) if self._outage is not None else None
        if self._outage_due is None or at < self._outage_due or wait is None or wait.blocked is None:
            return
        text = f"{self._outage}; here: {wait.blocked.message}"
        if await self._nodes.say(wait.node, Notice(reason=wait.blocked.reason, message=text)):
            self._outage_due = None

    async def _disown(self, at: float) -> None:
        """Nodes without provided-node-ip: nobody asks about them, so it is here that they are disowned."""
        for name in tuple(self._waiting.unclaimed):
            self._waiting.unclaimed.discard(name)
            node = self._node(name)
            if node is not None and not node.provided_node_ip:
                await self._decisions.publish(node, _not_ours(node, self._config()))
        names = [name for name, each in self._waiting.by_name.items() if self._long(each, at)]
        strangers = [stranger for name in names if (stranger := self._stranger(name)) is not None]
        if len(strangers) > MANY:
            return  # the fleet of another cloud controller manager, that has trouble of its own
        for node, notice in strangers:
            self._nodes.tell(node, Plan(outcome="not-ours", reason=notice.message, notices=(notice,)))

    def _stranger(self, name: str) -> tuple[Node, Notice] | None:
        node = self._node(name)
        enriched = self._event(f"{ENRICHED_NODE}.{name}")
        notice = not_ours_for_certain(node, enriched, self._config()) if node else None
        return (node, notice) if node and notice else None

    def _long(self, waiting: Waiting, at: float) -> bool:
        return at - waiting.since >= NO_FACTS_AFTER_SECONDS

    def _in_a_while(self, at: float) -> float:
        return at + self._random.uniform(0.0, SAID_WITHIN_SECONDS)

    def _node(self, name: str) -> Node | None:
        heard = self._event(f"{OBSERVED_NODE}.{name}")
        return heard.node if isinstance(heard, NodeObserved) else None

    def _event(self, subject: str) -> Event | None:
        message = self._table.last(subject)
        return message.event if message is not None and not isinstance(message.event, Unreadable) else None


def _not_ours(node: Node, config: Global) -> Plan:
    reason = why_left_alone(node, None, config) or why_not_ours(node, None)
    return Plan(outcome="not-ours", reason=reason)
