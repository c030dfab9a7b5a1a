"""Recognizes events that only report the labeler's own writes, for which a plan would find no change.

The watcher observes each write, and metadata publishes the Node again because its labels and taints changed.
Neither can know who changed them.
"""

from collections.abc import Callable

import msgspec

from libs.common.contract.events import NodeEnriched
from libs.common.contract.machine import MachineFacts, has_same_facts
from libs.common.contract.node import Node, has_same_planned_fields, trim_node
from services.labeler.core.mutation_cache import ENTRY_TTL_SECONDS
from services.labeler.core.plan import ClusterConfig


class _OwnWrite(msgspec.Struct, frozen=True, kw_only=True):
    written: Node  # the Node after the last write of the plan
    observed_sequence: int  # of the event from which the plan was made, like the next two
    facts: MachineFacts
    verified_by: str
    config: ClusterConfig
    written_at: float  # monotonic seconds


class WriteEchoes:
    """The last write of this replica to each Node, until an event reports it or it expires.

    Another replica, or this one after a restart, knows of no write and plans.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._writes: dict[str, _OwnWrite] = {}  # by Node name, the oldest first

    def record(self, written: Node, event: NodeEnriched, config: ClusterConfig) -> None:
        """Record the response to the last write of a plan that Kubernetes accepted completely."""
        self._drop_expired()
        self._writes.pop(written.name, None)
        self._writes[written.name] = _OwnWrite(
            written=trim_node(written),
            observed_sequence=event.observed_sequence,
            facts=event.facts,
            verified_by=event.verified_by,
            config=config,
            written_at=self._clock(),
        )

    def take(self, event: NodeEnriched, node: Node, config: ClusterConfig) -> bool:
        """Return whether the event adds nothing to the plan of the recorded write; `node` is the newest view.

        The newest view must be the state that the write left. Other writers may have changed only fields from
        which no service plans, as the kubelet and Kubernetes' controllers do while a Node joins. Only a newer
        observation is an echo: metadata's periodic message repeats one, and is planned.
        """
        self._drop_expired()
        own = self._writes.get(node.name)
        if own is None:
            return False
        is_echo = (
            event.observed_sequence > own.observed_sequence
            and event.verified_by == own.verified_by
            and has_same_facts(event.facts, own.facts)
            and config is own.config
            and has_same_planned_fields(node, own.written)
        )
        is_from_before_the_write = event.node.resource_version_number < own.written.resource_version_number
        if not (is_echo and is_from_before_the_write):  # otherwise the echo of the write itself follows
            del self._writes[node.name]
        return is_echo

    def forget(self, name: str) -> None:
        """Forget the write to a Node that is deleted, or that is planned for another reason."""
        self._writes.pop(name, None)

    def forget_all(self) -> None:
        """Forget all writes: the sequences of another stream start again."""
        self._writes.clear()

    def _drop_expired(self) -> None:
        """Drop writes whose echo another replica has received, or never comes."""
        while self._writes:
            name, oldest = next(iter(self._writes.items()))
            if self._clock() - oldest.written_at <= ENTRY_TTL_SECONDS:
                return
            del self._writes[name]
