"""Detects that another replica writes a Node by newer rules, and delays this replica's write.

A changed ConfigMap reaches the replicas up to a minute apart. Until then, each replica would undo the writes
of the other. The replica that loaded its rules earlier waits, because the other one has newer rules.
"""

import math
from collections.abc import Callable
from typing import Final

import msgspec

from libs.common.contract.node import FIELD_OWNERSHIP_DIGEST_LABEL, Node
from services.labeler.core.plan import Plan
from services.labeler.core.plan.ownership_record import read_ownership_record

# How long rules count as new, and how long a replica waits for another one. After that, the other replica may
# no longer exist.
ROLLOUT_SECONDS: Final = 120.0


class _AppliedRecord(msgspec.Struct):
    uid: str
    record: str  # digest of the ownership record after this replica's last write
    conflict_since: float | None = None  # monotonic seconds; when a plan first met another digest


class ReplicaConflicts:
    """Remembers the record of each Node that this replica has reconciled with its current rules."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._rules_since = -math.inf  # the rules at the start may be old
        self._applied: dict[str, _AppliedRecord] = {}
        self._planned: dict[str, _AppliedRecord] = {}  # the records once the plans are applied

    def on_rules_changed(self) -> None:
        """Note that this replica has loaded new rules."""
        self._rules_since = self._clock()
        self._applied.clear()

    def record_plan(self, node: Node, plan: Plan) -> None:
        """Remember the record that the Node will have once this plan is applied."""
        record = plan.changes.labels.get(FIELD_OWNERSHIP_DIGEST_LABEL) or _record_digest(node)
        self._planned[node.name] = _AppliedRecord(node.uid, record)

    def record_applied(self, name: str) -> None:
        """Note that the last plan for the Node has been applied."""
        if planned := self._planned.pop(name, None):
            self._applied[name] = planned

    def forget(self, name: str) -> None:
        """Forget a deleted Node."""
        self._applied.pop(name, None)
        self._planned.pop(name, None)

    def why_wait(self, node: Node, plan: Plan) -> str:
        """Return why this plan must not be applied now, or ""."""
        applied = self._applied.get(node.name)
        if applied is None or applied.uid != node.uid or not node.is_initialized or not plan.node_summary:
            return ""
        now = self._clock()
        if applied.record == _record_digest(node) or now - self._rules_since < ROLLOUT_SECONDS:
            return ""
        if read_ownership_record(node).state != "read":  # the writer was not a replica
            return ""
        if applied.conflict_since is None:
            applied.conflict_since = now
        if now - applied.conflict_since >= ROLLOUT_SECONDS:
            return ""
        return "another replica has written this Node since, and may have newer rules"


def _record_digest(node: Node) -> str:
    return node.labels.get(
        FIELD_OWNERSHIP_DIGEST_LABEL, ""
    )  # not of the annotation, which the kubelet may have changed
