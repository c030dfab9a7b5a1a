"""Own writes to each Node: the API server's last response, the plan behind it, and its record.

A joining Node often changes several times within a second: its kubelet reports, a controller rewrites taints.
These events were observed before the labeler's own writes, so a plan on them would repeat the writes. The
watcher observes each write, too, and metadata publishes the Node again. Neither can know who changed it.
"""

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from libs.common.bus.protocol import Message
from libs.common.contract.events import NodeEnriched, NodeObserved, NodeUnreachable
from libs.common.contract.machine import MachineFacts, has_same_facts
from libs.common.contract.node import (
    FIELD_OWNERSHIP_DIGEST_LABEL,
    Node,
    has_same_planned_fields,
    trim_node,
)
from libs.common.contract.node_patch import NodeChanges
from services.labeler.core.plan.ownership_record import read_ownership_record
from services.labeler.core.plan.plan import ClusterConfig, Plan

# The watcher publishes within 9 s. Entries expire, and end with the epoch, because a restored etcd goes back
# to older versions.
ENTRY_TTL_SECONDS: Final = 12.0
# How long rules count as new, and how long a replica waits for another one. After that, the other replica may
# no longer exist.
ROLLOUT_SECONDS: Final = 120.0


class _PlanInput(NamedTuple):
    """From what the last write was planned, if Kubernetes accepted it completely."""

    observed_sequence: int
    facts: MachineFacts
    verified_by: str
    config: ClusterConfig


class _OwnWrite(msgspec.Struct, kw_only=True):
    response: Node
    received_at: float  # monotonic seconds
    planned_from: _PlanInput | None = None


class OwnWrites:
    """The last responses by Node name; resourceVersions order two views (KEP-5504).

    Another replica, or this one after a restart, knows of no write and plans.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._writes: dict[str, _OwnWrite] = {}  # the oldest first

    def store(self, response: Node) -> None:
        """Store a response of the API server, unless a newer one is stored."""
        newest = self.latest(response)
        self.forget(response.name)
        self._drop_expired()
        self._writes[response.name] = _OwnWrite(response=trim_node(newest), received_at=self._clock())

    def latest(self, node: Node) -> Node:
        """Return the stored response if it has the same UID and is newer than this view, else this view."""
        own = self._writes.get(node.name)
        if own is None or own.response.uid != node.uid or self._has_expired(own):
            return node
        return own.response if own.response.resource_version_number > node.resource_version_number else node

    def record_plan(self, written: Node, event: NodeEnriched, config: ClusterConfig) -> None:
        """Record from what the plan was made whose last write left this Node."""
        own = self._writes.get(written.name)
        if own is not None and own.response.resource_version_number == written.resource_version_number:
            own.planned_from = _PlanInput(event.observed_sequence, event.facts, event.verified_by, config)

    def take_echo(self, event: NodeEnriched | NodeUnreachable, node: Node, config: ClusterConfig) -> bool:
        """Return whether the event adds nothing to the plan of the last write; `node` is the newest view.

        The newest view must be the state that the write left. Other writers may have changed only fields from
        which no service plans, as the kubelet and Kubernetes' controllers do while a Node joins. Only a newer
        observation is an echo: metadata's periodic message repeats one, and is planned.
        """
        own = self._writes.get(node.name)
        planned = own.planned_from if own is not None and not self._has_expired(own) else None
        if own is None or planned is None:
            return False
        is_echo = (
            isinstance(event, NodeEnriched)
            and event.observed_sequence > planned.observed_sequence
            and event.verified_by == planned.verified_by
            and has_same_facts(event.facts, planned.facts)
            and config is planned.config
            and has_same_planned_fields(node, own.response)
        )
        is_from_before_the_write = event.node.resource_version_number < own.response.resource_version_number
        if not (is_echo and is_from_before_the_write):  # otherwise the echo of the write itself follows
            own.planned_from = None
        return is_echo

    def forget(self, name: str) -> None:
        """Forget a deleted Node."""
        self._writes.pop(name, None)

    def forget_all(self) -> list[str]:
        """Forget all writes, which a restored etcd may have lost; return the names of their Nodes."""
        names = list(self._writes)
        self._writes.clear()
        return names

    def _has_expired(self, own: _OwnWrite) -> bool:
        return self._clock() - own.received_at > ENTRY_TTL_SECONDS

    def _drop_expired(self) -> None:
        while self._writes and self._has_expired(next(iter(self._writes.values()))):
            del self._writes[next(iter(self._writes))]


class _AppliedRecord(msgspec.Struct):
    uid: str
    record: str  # digest of the ownership record after this replica's last plan
    conflict_since: float | None = None  # monotonic seconds; when a plan first met another digest


def is_result_of(changes: NodeChanges, before: Node, after: Node) -> bool:
    """Return whether `after` differs from `before` at most in these changes and in fields that no plan reads.

    Another writer may have changed the Node after the view from which the changes were planned. Then the
    response of the write is no result of that plan alone, and the Node must be planned again.
    """
    return has_same_planned_fields(
        _without_changes(trim_node(before), changes), _without_changes(trim_node(after), changes)
    )


def _without_changes(node: Node, changes: NodeChanges) -> Node:
    metadata, spec = node.metadata, node.spec
    written = {(taint.key, taint.effect) for taint in (*changes.set_taints, *changes.remove_taints)}
    return replace(
        node,
        metadata=replace(
            metadata,
            labels={key: text for key, text in metadata.labels.items() if key not in changes.labels},
            annotations={
                key: text for key, text in metadata.annotations.items() if key not in changes.annotations
            },
        ),
        spec=replace(
            spec,
            provider_id="" if changes.provider_id else spec.provider_id,
            taints=tuple(taint for taint in spec.taints if (taint.key, taint.effect) not in written),
        ),
    )


class ReplicaConflicts:
    """Detects that another replica writes a Node by newer rules, and delays this replica's write.

    A changed ConfigMap reaches the replicas up to a minute apart. Until then, each replica would undo the
    writes of the other. The replica that loaded its rules earlier waits: the other one has newer rules.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._rules_since = -math.inf  # the rules at the start may be old
        self._applied: dict[str, _AppliedRecord] = {}  # by Node name, with the current rules

    def on_rules_changed(self) -> None:
        """Note that this replica has loaded new rules."""
        self._rules_since = self._clock()
        self._applied.clear()

    def record_applied(self, node: Node) -> None:
        """Note that a plan has been applied that left this Node."""
        self._applied[node.name] = _AppliedRecord(node.uid, _record_digest(node))

    def forget(self, name: str) -> None:
        """Forget a deleted Node."""
        self._applied.pop(name, None)

    def must_wait(self, node: Node, plan: Plan) -> bool:
        """Return whether another replica has written this Node since, and may have newer rules."""
        applied = self._applied.get(node.name)
        if applied is None or applied.uid != node.uid or not node.is_initialized or not plan.node_summary:
            return False
        now = self._clock()
        if applied.record == _record_digest(node) or now - self._rules_since < ROLLOUT_SECONDS:
            return False
        if read_ownership_record(node).state != "read":  # the writer was not a replica
            return False
        if applied.conflict_since is None:
            applied.conflict_since = now
        return now - applied.conflict_since < ROLLOUT_SECONDS


def _record_digest(node: Node) -> str:
    # not of the annotation, which the kubelet may have changed
    return node.labels.get(FIELD_OWNERSHIP_DIGEST_LABEL, "")


def select_latest_node(event: NodeEnriched | NodeUnreachable, observed: Message | None) -> Node | None:
    """Return the Node as last observed; None if the event's Node no longer exists.

    `observed` is the watcher's last message about that name. It is newer if its sequence is above the
    event's `observed_sequence`; another UID is another Node.
    """
    if observed is None or observed.sequence <= event.observed_sequence:
        return event.node
    if isinstance(observed.event, NodeObserved) and observed.event.node.uid == event.node.uid:
        return observed.event.node
    return None
