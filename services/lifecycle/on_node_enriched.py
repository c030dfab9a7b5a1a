"""News of one Node: its shutdown taint, and whether it is to be deleted; what came of it is said."""

import asyncio
import logging
from collections.abc import Callable

from libs.common.cloud_config.rule import Ownership
from libs.common.decisions import Decisions
from libs.common.events import NodeUnreachable
from libs.common.node import Node
from services.lifecycle.decide import Case, Delete, Keep, not_ours
from services.lifecycle.deletions_api import Deletions, Judge
from services.lifecycle.evidence import is_not_ready
from services.lifecycle.known_nodes import KnownNodes
from services.lifecycle.shutdown import is_tainted, why_shut_down
from services.lifecycle.spot import is_spot
from services.lifecycle.taints_api import ShutdownTaints

log = logging.getLogger(__name__)


class OnNodeEnriched:
    """One Node at a time: gather, decide, write, tell. Asked only while we lead and know all there is."""

    def __init__(
        self,
        *,
        known: KnownNodes,
        taints: ShutdownTaints,
        deletions: Deletions,
        decisions: Decisions,
        ownership: Callable[[], Ownership],
        judge: Judge,
        gcp_spot: bool,
    ) -> None:
        self._known = known
        self._taints = taints
        self._deletions = deletions
        self._decisions = decisions
        self._ownership = ownership
        self._judge = judge
        self._gcp_spot = gcp_spot
        self._told: dict[str, str] = {}  # name -> uid, of those of which something was said
        self._deleted: dict[str, str] = {}  # name -> uid: the watcher tells it a little later
        self._attempts: dict[str, int] = {}  # name -> looks since something was said of it
        self._began = 0.0  # the present look
        self._outcomes: dict[str, tuple[str, str]] = {}  # name -> uid and outcome that were logged last

    async def __call__(self, name: str) -> None:
        """Look at it. Raises TemporaryError for what is worth another look."""
        node = self._known.node(name)
        if node is None or not self.wants(name):
            return
        self._attempts[name] = self._attempts.get(name, 0) + 1
        self._began = asyncio.get_running_loop().time()
        why = not_ours(self._ownership(), node)
        if why:
            await self._say(node, "not-owned", why)
            return
        case = self._known.case(node)
        change = await self._taints.apply(node, case.word)
        judged = self._judge(case)
        if isinstance(judged, Delete):
            done = await self._deletions.delete(node, judged)
            if done.outcome == "deleted":
                self._deleted[name] = node.uid
            await self._say(node, done.outcome, done.reason)
        elif self.is_well(case) or (change is not None and not change.is_set):
            await self._say(node, "kept", "its machine answers, or Kubernetes says that the Node is Ready")
            self._told.pop(name, None)
        else:
            await self._kept(case, judged, (change.what,) if change else ())

    def wants(self, name: str) -> bool:
        """Whether there is anything to look at: it is not plainly well, or was not when it was told."""
        node = self._known.node(name)
        if node is None or self._deleted.get(name) == node.uid:
            return False
        return self._told.get(name) == node.uid or not self.is_well(self._known.case(node))

    def is_well(self, case: Case) -> bool:
        """Whether nothing about it concerns us. A Node that is not initialized yet is the labeler's."""
        node = case.node
        if is_tainted(node) or (self._gcp_spot and is_spot(node) and is_not_ready(node)):
            return False
        return not node.initialized or not isinstance(case.word, NodeUnreachable)

    def forget(self, name: str) -> None:
        """The Node is gone, or another one bears its name."""
        self._told.pop(name, None)
        self._deleted.pop(name, None)
        self._attempts.pop(name, None)
        self._outcomes.pop(name, None)
        self._deletions.forget(name)
        self._taints.forget(name)
        self._decisions.forget(name)

    def forget_all(self) -> None:
        """Another stream: nothing has been said to it."""
        self._told.clear()
        self._decisions.forget_all()

    async def _kept(self, case: Case, judged: Keep, changes: tuple[str, ...]) -> None:
        shut_down = why_shut_down(case.node, case.word)
        reason = f"{shut_down}; {judged.reason}" if shut_down else judged.reason
        await self._say(case.node, "shutdown" if shut_down else "kept", reason, changes)

    async def _say(self, node: Node, outcome: str, reason: str, changes: tuple[str, ...] = ()) -> None:
        self._told[node.name] = node.uid
        self._log(node, outcome, reason)
        await self._decisions.publish(node, outcome, reason, changes=changes)

    def _log(self, node: Node, outcome: str, reason: str) -> None:
        """One line for each look; the same outcome again is only worth a debug line."""
        word = self._known.case(node).word
        again = self._outcomes.get(node.name) == (node.uid, outcome)
        self._outcomes[node.name] = (node.uid, outcome)
        told = {
            "node": node.name,
            "event": type(word).__name__ if word is not None else "NodeObserved",
            "attempt": self._attempts.pop(node.name, 1),
            "outcome": outcome,
            "reason": reason,
            "seconds": round(asyncio.get_running_loop().time() - self._began, 4),
        }
        log.log(logging.DEBUG if again else logging.INFO, "handled", extra=told)
