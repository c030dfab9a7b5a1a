"""Whether another replica writes a Node by other rules than ours, and which of the two should wait.

A changed ConfigMap reaches the replicas up to a minute apart. Until then each would undo what the other has
written as soon as it hears of it. Whoever has held its rules for longer waits: the other has newer ones.
"""

import math
from collections.abc import Callable
from typing import Final

import msgspec

from libs.common.node import RECORD_DIGEST, Node
from services.labeler.owned import record_of
from services.labeler.plan import Plan

# For so long rules count as new, and somebody else's are waited for: after that they may be gone for good.
APART_SECONDS: Final = 120.0


class _Left(msgspec.Struct):
    uid: str
    record: str  # its digest as it was when we had done with the Node
    changed_at: float | None = None  # when we first found another one there that we would change


class OtherRules:
    """Kept for each Node that was handled here by the rules that hold now."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._since = -math.inf  # rules of the start may be anybody's old ones
        self._left: dict[str, _Left] = {}
        self._planned: dict[str, _Left] = {}  # what will be left when the plan has been carried out

    def changed(self) -> None:
        """Ours are new ones."""
        self._since = self._clock()
        self._left.clear()

    def planned(self, node: Node, plan: Plan) -> None:
        """That is going to be carried out on the Node as it is."""
        record = plan.changes.labels.get(RECORD_DIGEST) or _record(node)
        self._planned[node.name] = _Left(node.uid, record)

    def done(self, name: str) -> None:
        """What was planned last has been carried out."""
        if planned := self._planned.pop(name, None):
            self._left[name] = planned

    def forget(self, name: str) -> None:
        """The Node is gone."""
        self._left.pop(name, None)
        self._planned.pop(name, None)

    def why_wait(self, node: Node, plan: Plan) -> str:
        """Why this plan is not to be carried out for now, "" if it is."""
        left = self._left.get(node.name)
        if left is None or left.uid != node.uid or not node.initialized or not plan.node_writes:
            return ""
        now = self._clock()
        if left.record == _record(node) or now - self._since < APART_SECONDS:
            return ""
        if record_of(node).state != "read":  # that was no replica
            return ""
        if left.changed_at is None:
            left.changed_at = now
        if now - left.changed_at >= APART_SECONDS:
            return ""
        return "another replica has written this Node since; its rules may be newer than ours"


def _record(node: Node) -> str:
    return node.labels.get(RECORD_DIGEST, "")  # the record itself may have been changed by its kubelet
