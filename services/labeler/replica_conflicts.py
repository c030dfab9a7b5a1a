"""Whether another replica writes a Node by other rules than ours, and which of the two should wait.

A changed ConfigMap reaches the replicas up to a minute apart. Until then each would undo what the other has
written as soon as it hears of it. Whoever has held its rules for longer waits: the other has newer ones.
"""

import math
from collections.abc import Callable
from typing import Final

import msgspec

from libs.common.contract.node import FIELD_OWNERSHIP_DIGEST_LABEL, Node
from services.labeler.ownership_record import read_ownership_record
from services.labeler.plan import Plan

# For so long rules count as new, and somebody else's are waited for: after that they may be gone for good.
ROLLOUT_SECONDS: Final = 120.0


class _AppliedRecord(msgspec.Struct):
    uid: str
    record: str  # its digest as it was when we had done with the Node
    conflict_since: float | None = None  # when we first found another one there that we would change


class ReplicaConflicts:
    """Kept for each Node that was handled here by the rules that hold now."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._rules_since = -math.inf  # rules of the start may be anybody's old ones
        self._applied: dict[str, _AppliedRecord] = {}
        self._planned: dict[str, _AppliedRecord] = {}  # what will be left when the plan has been carried out

    def on_rules_changed(self) -> None:
        """Ours are new ones."""
        self._rules_since = self._clock()
        self._applied.clear()

    def record_plan(self, node: Node, plan: Plan) -> None:
        """That is going to be carried out on the Node as it is."""
        record = plan.changes.labels.get(FIELD_OWNERSHIP_DIGEST_LABEL) or _record_digest(node)
        self._planned[node.name] = _AppliedRecord(node.uid, record)

    def record_applied(self, name: str) -> None:
        """What was planned last has been carried out."""
        if planned := self._planned.pop(name, None):
            self._applied[name] = planned

    def forget(self, name: str) -> None:
        """The Node is gone."""
        self._applied.pop(name, None)
        self._planned.pop(name, None)

    def why_wait(self, node: Node, plan: Plan) -> str:
        """Why this plan is not to be carried out for now, "" if it is."""
        left = self._applied.get(node.name)
        if left is None or left.uid != node.uid or not node.is_initialized or not plan.node_summary:
            return ""
        now = self._clock()
        if left.record == _record_digest(node) or now - self._rules_since < ROLLOUT_SECONDS:
            return ""
        if read_ownership_record(node).state != "read":  # that was no replica
            return ""
        if left.conflict_since is None:
            left.conflict_since = now
        if now - left.conflict_since >= ROLLOUT_SECONDS:
            return ""
        return "another replica has written this Node since; its rules may be newer than ours"


def _record_digest(node: Node) -> str:
    return node.labels.get(
        FIELD_OWNERSHIP_DIGEST_LABEL, ""
    )  # the record itself may have been changed by its kubelet
