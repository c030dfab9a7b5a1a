"""The Nodes, the last reports of metadata and clouds, and their histories, kept up to date by the flow."""

from datetime import datetime

from libs.common.contract.events import InstanceReport, NodeEnriched
from libs.common.contract.instances import InstanceAnchor, read_instance_record
from libs.common.contract.node import Node
from libs.common.contract.system_uuid import normalize_uuid
from services.lifecycle.core.decide import DeletionCase
from services.lifecycle.core.evidence import (
    MachineIndex,
    MachineReport,
    collect_machine_names,
    is_ready,
    shows_activity,
)
from services.lifecycle.core.instance_evidence import RecordScope, scope_of
from services.lifecycle.core.instance_reports import MAX_SILENCE, InstanceReports, drop_silent_accounts
from services.lifecycle.core.query_history import QueryHistory, append_query, extract_query


class NodeIndex:
    """Indexes by Node name. Any contradicting event ends a poll history."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._reports: dict[str, MachineReport] = {}
        self._histories: dict[str, QueryHistory] = {}
        self._instances = InstanceReports()
        self._recorded: dict[RecordScope, dict[str, set[str]]] = {}
        self._by_uuid: dict[str, set[str]] = {}
        self._nodes_by_machine_name: dict[str, set[str]] = {}
        self.machines = MachineIndex(
            nodes_by_uuid=self._by_uuid, nodes_by_machine_name=self._nodes_by_machine_name
        )

    def get_node(self, name: str) -> Node | None:
        """Return the Node as last observed; None if there is none."""
        return self._nodes.get(name)

    def list_names(self) -> list[str]:
        """Return the names of all Nodes."""
        return list(self._nodes)

    def build_case(self, node: Node, monotonic_now: float) -> DeletionCase:
        """Return all data about a Node; `node` may be newer than the last observation.

        Accounts of clouds that are silent by that time, in seconds, are none any more.
        """
        return DeletionCase(
            node=node,
            report=self._reports.get(node.name),
            history=self._histories.get(node.name),
            machines=self.machines,
            instances=drop_silent_accounts(self._instances.get(node.name), monotonic_now),
            recorded=self._recorded,
            accounts=self._instances.list_accounts(node.spec.provider_id, monotonic_now),
            list_anchors=self._collect_anchors,
        )

    def _collect_anchors(self, now: datetime) -> dict[str, set[InstanceAnchor]]:
        anchors: dict[str, set[InstanceAnchor]] = {}
        for scope, of_scope in self._recorded.items():
            if scope.anchor is not None:
                anchors.setdefault(scope.account, set()).add(scope.anchor)
            for name in (name for names in of_scope.values() for name in names):
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
        if before is not None:
            self._remove_node_from_indexes(before)
        self._nodes[node.name] = node
        if (record := read_instance_record(node)) is not None:
            instance_id = _instance_id(record.provider_id)
            self._recorded.setdefault(scope_of(record), {}).setdefault(instance_id, set()).add(node.name)
        if uuid := _system_uuid(node):
            self._by_uuid.setdefault(uuid, set()).add(node.name)

    def remove_node(self, name: str) -> None:
        """Record that no Node of that name exists."""
        before = self._nodes.pop(name, None)
        if before is not None:
            self._remove_node_from_indexes(before)
        self._instances.forget(name)
        self.forget_history(name)

    def upsert_report(self, report: MachineReport, received_at: float) -> None:
        """Store metadata's report; `received_at` is monotonic time in seconds."""
        name = report.node.name
        self.discard_report(name)
        self._reports[name] = report
        for machine_name in collect_machine_names(report):
            self._nodes_by_machine_name.setdefault(machine_name, set()).add(name)
            self.forget_history(machine_name)  # a machine with that name answers: its Node is not proven gone
        query = extract_query(report, received_at)
        node = self._nodes.get(name)
        if isinstance(report, NodeEnriched):
            self.forget_history(name)
        elif query is None or node is None or node.uid != report.node.uid or is_ready(node):
            self._histories.pop(name, None)
        else:
            self._histories[name] = append_query(self._histories.get(name), node.uid, query)

    def discard_report(self, name: str) -> None:
        """Drop metadata's report and keep the poll history, which the next report continues or ends."""
        report = self._reports.pop(name, None)
        if report is not None:
            for machine_name in collect_machine_names(report):
                _remove_from_index(self._nodes_by_machine_name, machine_name, name)

    def remove_report(self, name: str) -> None:
        """Drop metadata's report and the poll history."""
        self.discard_report(name)
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
            self._by_uuid,
            self._nodes_by_machine_name,
            self._recorded,
        ):
            known.clear()

    def _remove_node_from_indexes(self, node: Node) -> None:
        _remove_from_index(self._by_uuid, _system_uuid(node), node.name)
        if (record := read_instance_record(node)) is not None:
            scope = scope_of(record)
            of_scope = self._recorded.get(scope, {})
            _remove_from_index(of_scope, _instance_id(record.provider_id), node.name)
            if not of_scope:
                self._recorded.pop(scope, None)


def _system_uuid(node: Node) -> str:
    return normalize_uuid(node.status.node_info.system_uuid)


def _instance_id(provider_id: str) -> str:
    """The id that a cloud gives its instance: the end of the providerID."""
    return provider_id.rsplit("/", 1)[-1]


def _remove_from_index(index: dict[str, set[str]], key: str, name: str) -> None:
    names = index.get(key)
    if names is not None:
        names.discard(name)
        if not names:
            del index[key]
