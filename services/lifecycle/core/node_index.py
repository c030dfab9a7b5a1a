"""The Nodes, the last reports of metadata and clouds, and their histories, kept up to date by the flow."""

from collections.abc import Callable, Collection, Hashable, Mapping
from datetime import datetime
from typing import Generic, TypeVar

import msgspec

from libs.common.contract.events import InstanceReport, NodeEnriched
from libs.common.contract.instances import InstanceAnchor, InstanceRecord, read_instance_record
from libs.common.contract.node import Node
from libs.common.contract.system_uuid import normalize_uuid
from services.lifecycle.core.evidence import (
    MachineIndex,
    MachineReport,
    collect_machine_names,
    is_ready,
    shows_activity,
)
from services.lifecycle.core.instance_reports import (
    MAX_SILENCE,
    InstanceReports,
    InstanceViews,
    drop_silent_accounts,
)
from services.lifecycle.core.query_history import QueryHistory, append_query, extract_query

KeyT = TypeVar("KeyT", bound=Hashable)


class RecordScope(msgspec.Struct, frozen=True):
    """The project in which an account has shown an instance alive.

    A witness of another project proves nothing: the account may have recorded it by a credential of that one.
    """

    account: str
    anchor: InstanceAnchor | None


def scope_of(record: InstanceRecord) -> RecordScope:
    """Return the project that the record shows."""
    return RecordScope(record.account, record.anchor)


class DeletionCase(msgspec.Struct, frozen=True, kw_only=True):
    """All data about one Node that decides about its deletion."""

    node: Node
    now: datetime  # UTC
    monotonic_now: float = 0.0  # in seconds, of the clock that timed the receipt of polls
    report: MachineReport | None = None  # metadata's last one
    history: QueryHistory | None = None
    machines: MachineIndex = MachineIndex()
    instances: InstanceViews = {}  # the reports about it of cloud accounts that still report
    # project of an account, and id of an instance that it has shown alive there -> Nodes with those records
    recorded: Mapping[tuple[RecordScope, str], Collection[str]] = {}
    accounts: Collection[str] = ()  # of its cloud, which report on any Node
    # account -> anchors of its records, and those with which it has shown their instances alive lately
    list_anchors: Callable[[datetime], Mapping[str, Collection[InstanceAnchor]]] = lambda now: {}

    @property
    def record(self) -> InstanceRecord | None:
        """The record that an account has shown its instance alive; None if there is none."""
        return read_instance_record(self.node)


class _NameIndex(Generic[KeyT]):
    """The names of Nodes by the keys that each of them has."""

    def __init__(self) -> None:
        self.names: dict[KeyT, set[str]] = {}
        self._keys: dict[str, Collection[KeyT]] = {}  # by name

    def update(self, name: str, keys: Collection[KeyT]) -> None:
        """Replace the keys of a Node."""
        for key in self._keys.pop(name, ()):
            self.names[key].discard(name)
            if not self.names[key]:
                del self.names[key]
        for key in keys:
            self.names.setdefault(key, set()).add(name)
        if keys:
            self._keys[name] = keys

    def clear(self) -> None:
        """Remove all Nodes."""
        self.names.clear()
        self._keys.clear()


class NodeIndex:
    """Indexes by Node name. Any contradicting event ends a poll history."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._reports: dict[str, MachineReport] = {}
        self._histories: dict[str, QueryHistory] = {}
        self._instances = InstanceReports()
        self._recorded = _NameIndex[tuple[RecordScope, str]]()
        self._uuids = _NameIndex[str]()
        self._machine_names = _NameIndex[str]()
        self.machines = MachineIndex(
            nodes_by_uuid=self._uuids.names, nodes_by_machine_name=self._machine_names.names
        )

    def get_node(self, name: str) -> Node | None:
        """Return the Node as last observed; None if there is none."""
        return self._nodes.get(name)

    def list_names(self) -> list[str]:
        """Return the names of all Nodes."""
        return list(self._nodes)

    def build_case(self, node: Node, now: datetime, monotonic_now: float) -> DeletionCase:
        """Return all data about a Node; `node` may be newer than the last observation.

        Accounts of clouds that are silent by that monotonic time, in seconds, are none any more.
        """
        return DeletionCase(
            node=node,
            now=now,
            monotonic_now=monotonic_now,
            report=self._reports.get(node.name),
            history=self._histories.get(node.name),
            machines=self.machines,
            instances=drop_silent_accounts(self._instances.get(node.name), monotonic_now),
            recorded=self._recorded.names,
            accounts=self._instances.list_accounts(node.spec.provider_id, monotonic_now),
            list_anchors=self._collect_anchors,
        )

    def _collect_anchors(self, now: datetime) -> dict[str, set[InstanceAnchor]]:
        anchors: dict[str, set[InstanceAnchor]] = {}
        for (scope, _), names in self._recorded.names.items():
            if scope.anchor is not None:
                anchors.setdefault(scope.account, set()).add(scope.anchor)
            for name in names:
                view = self._instances.get(name).get(scope.account)
                seen = view.seen if view is not None else None
                if seen is not None and seen.anchor is not None and now - seen.asked_at <= MAX_SILENCE:
                    anchors.setdefault(scope.account, set()).add(seen.anchor)
        return anchors

    def count_histories(self) -> int:
        """Return the number of Nodes at whose addresses other machines answer."""
        return len(self._histories)

    # ---- events of the flow

    def upsert_node(self, node: Node) -> None:
        """Store the Node's current state."""
        before = self._nodes.get(node.name)
        if before is not None and (before.uid != node.uid or shows_activity(before, node)):
            self.forget_history(node.name)
        self._nodes[node.name] = node
        record, uuid = read_instance_record(node), normalize_uuid(node.status.node_info.system_uuid)
        self._recorded.update(node.name, [_instance_of(record)] if record is not None else ())
        self._uuids.update(node.name, [uuid] if uuid else ())

    def remove_node(self, name: str) -> None:
        """Record that no Node of that name exists."""
        self._nodes.pop(name, None)
        self._recorded.update(name, ())
        self._uuids.update(name, ())
        self._instances.forget(name)
        self.forget_history(name)

    def upsert_report(self, report: MachineReport, received_at: float) -> None:
        """Store metadata's report; `received_at` is monotonic time in seconds."""
        name, machine_names = report.node.name, collect_machine_names(report)
        self._reports[name] = report
        self._machine_names.update(name, machine_names)
        for machine_name in machine_names:
            self.forget_history(machine_name)  # a machine with that name answers: its Node is not proven gone
        query = extract_query(report, received_at)
        node = self._nodes.get(name)
        if isinstance(report, NodeEnriched):
            self.forget_history(name)
        elif query is None or node is None or node.uid != report.node.uid or is_ready(node):
            self._histories.pop(name, None)
        else:
            self._histories[name] = append_query(self._histories.get(name), node.uid, query)

    def remove_report(self, name: str) -> None:
        """Drop metadata's report and the poll history."""
        self._reports.pop(name, None)
        self._machine_names.update(name, ())
        self.forget_history(name)

    def forget_history(self, name: str) -> None:
        """Drop the histories of a Node, of polls and of its instance."""
        self._histories.pop(name, None)
        self._instances.forget_histories(name)

    def forget_histories(self) -> None:
        """Drop all histories, because messages may have been missed."""
        self._histories.clear()
        self._instances.forget_histories()

    # ---- reports of clouds

    def apply_instance_report(self, report: InstanceReport, received_at: float) -> bool:
        """Store the report of an account, and return whether it is news; `received_at` is monotonic."""
        is_new = self._instances.apply(report, received_at)
        node = self._nodes.get(report.name)
        if node is None or is_ready(node):
            self._instances.forget_histories(report.name)
        return is_new

    def forget_instances(self) -> None:
        """Drop all reports of clouds, and nothing else, because the stream is another one."""
        self._instances.clear()

    def clear(self) -> None:
        """Drop everything but the reports of clouds, which are followed on their own."""
        for known in (
            self._nodes,
            self._reports,
            self._histories,
            self._uuids,
            self._machine_names,
            self._recorded,
        ):
            known.clear()


def _instance_of(record: InstanceRecord) -> tuple[RecordScope, str]:
    """Return the project, and the id that the cloud gives its instance: the end of the providerID."""
    return scope_of(record), record.provider_id.rsplit("/", 1)[-1]
