"""Decides which query comes next. The adapter limits how many are sent; this decides which of them."""

import math
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from libs.common.contract.events import (
    AnyInstanceReport,
    InstanceExists,
    InstanceShutDown,
)
from libs.common.contract.instances import InstanceAnchor
from services.cloud.core.node_table import CloudNode

ACCOUNT_REPORT_SECONDS: Final = 30.0  # a reader considers an account silent after some of them
# A round asks for each of its instances, and for the names of those that are not found. With 15 requests a
# minute it ends within seven minutes, so that the evidence of two rounds is not ten minutes apart.
MAX_PER_ROUND: Final = 50
_RESERVED: Final = 10  # places for Nodes that are only not ready: another account may need the answer
_ROUNDS_FIRST: Final = (
    30  # then others have their turn: enough for a deletion, unless something else delays it
)
MAX_WITNESSES: Final = 3  # to ask for in a round
MAX_NEW_PER_STEP: Final = 20  # asked for by id
# A list answers all at once, but not before its last page. Pages of other clouds are larger.
_MIN_ANSWERS_PER_REQUEST: Final = 2
_INSTANCES_PER_REQUEST: Final = 50


class QueryIntervals(msgspec.Struct, frozen=True, kw_only=True):
    """How long each kind of query waits for the next one, in seconds."""

    list: float = 600.0  # of 1000 servers: 20 of the 200 requests of ten minutes
    round: float = 60.0
    anchor: float = 3600.0


class Knowledge(msgspec.Struct, kw_only=True):
    """What this process knows of one Node's instance. Times are monotonic, in seconds."""

    uid: str
    provider_id: str
    missing_since: float | None = None  # not found, by id or in a list; None: found since
    rounds_missing: int = 0  # in which it was asked for since then
    report: AnyInstanceReport | None = None
    began: float = 0.0  # the query of the report

    @property
    def is_seen(self) -> bool:
        """Whether the last report says that the instance exists."""
        return isinstance(self.report, InstanceExists | InstanceShutDown)

    def is_about(self, node: CloudNode) -> bool:
        """Whether this is about that Node and its present providerID."""
        return (self.uid, self.provider_id) == (node.uid, node.provider_id)


class InstanceSchedule(msgspec.Struct, kw_only=True):
    """The knowledge about all Nodes, and when the next list, round and look for an anchor are due."""

    intervals: QueryIntervals = QueryIntervals()
    by_name: dict[str, Knowledge] = {}
    next_list_at: float = 0.0
    next_round_at: float = 0.0
    next_anchor_at: float = 0.0
    requests_per_list: float = 1.0  # as the last list took; infinite if it got no answer

    def update(self, nodes: Iterable[CloudNode]) -> None:
        """Start to know new Nodes, and forget those that are gone."""
        before, self.by_name = self.by_name, {}
        for node in nodes:
            known = before.get(node.name)
            if known is None or not known.is_about(node):
                known = Knowledge(uid=node.uid, provider_id=node.provider_id)
            self.by_name[node.name] = known

    def record(self, name: str, report: AnyInstanceReport, now: float) -> None:
        """Record the report of a round or list about a Node that is known."""
        known = self.by_name[name]
        known.report = report
        if known.is_seen:
            known.missing_since, known.rounds_missing = None, 0
        else:
            known.rounds_missing += 1
            self.record_absence(name, now)

    def record_absence(self, name: str, now: float) -> None:
        """Record that the instance of that Node was not found, by its id or in a complete list."""
        known = self.by_name[name]
        if known.missing_since is None:
            known.missing_since = now

    def record_list(self, instances: int | None, now: float) -> None:
        """Record that a list had so many instances, or None: it got no answer."""
        self.next_list_at = now + self.intervals.list
        self.requests_per_list = math.inf if instances is None else 1 + instances // _INSTANCES_PER_REQUEST

    def is_list_cheaper(self, waiting: int) -> bool:
        """Return whether to list all instances rather than ask for so many of them by id."""
        return waiting > _MIN_ANSWERS_PER_REQUEST * self.requests_per_list

    def list_new(self, nodes: Iterable[CloudNode]) -> list[CloudNode]:
        """Return the Nodes whose instance was never asked for."""
        known = self.by_name
        return [node for node in nodes if node.name in known and known[node.name].report is None]

    def select_suspects(self, nodes: Iterable[CloudNode], now: float) -> list[CloudNode]:
        """Return the Nodes of the next round, if it is due: those that are missing for longest.

        Nodes that are not ready have the rest of the places, and at least ten: those asked for longest ago.
        """
        if now < self.next_round_at:
            return []
        missing: list[tuple[tuple[int, float], str, CloudNode]] = []
        not_ready: list[tuple[float, str, CloudNode]] = []
        for node in nodes:
            known = self.by_name.get(node.name)
            if known is None or known.report is None:
                continue
            if known.missing_since is not None and node.record is not None:
                batch = known.rounds_missing // _ROUNDS_FIRST
                missing.append(((batch, known.missing_since), node.name, node))
            elif not node.is_ready:  # also of another account, perhaps, which needs this one's answer
                not_ready.append((known.report.asked_at.timestamp(), node.name, node))
        first = sorted(missing, key=_order)[: MAX_PER_ROUND - min(len(not_ready), _RESERVED)]
        ordered = (*first, *sorted(not_ready, key=_order))
        return [node for _, _, node in ordered[:MAX_PER_ROUND]]

    def select_witnesses(
        self, nodes: Iterable[CloudNode], suspects: Iterable[CloudNode], anchor: InstanceAnchor
    ) -> tuple[CloudNode, ...]:
        """Return Nodes with this recorded anchor whose instance was seen last, without those of the round."""
        excluded = {node.name for node in suspects} | {node.instance_id for node in suspects}
        seen = [
            (report.asked_at.timestamp(), node.name, node)
            for node in nodes
            if node.record is not None
            and node.record.anchor == anchor
            and not excluded & {node.name, node.instance_id}
            and node.name in self.by_name
            and isinstance(report := self.by_name[node.name].report, InstanceExists | InstanceShutDown)
        ]
        latest = sorted(seen, key=_order, reverse=True)[:MAX_WITNESSES]
        return tuple(node for _, _, node in latest)


def _order(each: tuple[Any, str, CloudNode]) -> tuple[Any, str]:
    return each[:2]
