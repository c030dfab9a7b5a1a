"""The Nodes, metadata's last reports and the poll histories, kept up to date by the flow."""

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
from services.lifecycle.core.query_history import QueryHistory, append_query, extract_query


class NodeIndex:
    """Indexes by Node name. Any contradicting event ends a poll history."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._reports: dict[str, MachineReport] = {}
        self._histories: dict[str, QueryHistory] = {}
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

    def build_case(self, node: Node) -> DeletionCase:
        """Return all data about a Node; `node` may be newer than the last observation."""
        return DeletionCase(
            node=node,
            report=self._reports.get(node.name),
            history=self._histories.get(node.name),
            machines=self.machines,
        )

    def get_history(self, name: str) -> QueryHistory | None:
        """Return the polls that no event has contradicted; None if there are none."""
        return self._histories.get(name)

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
            _remove_from_index(self._by_uuid, _system_uuid(before), node.name)
        self._nodes[node.name] = node
        if uuid := _system_uuid(node):
            self._by_uuid.setdefault(uuid, set()).add(node.name)

    def remove_node(self, name: str) -> None:
        """Record that no Node of that name exists."""
        before = self._nodes.pop(name, None)
        if before is not None:
            _remove_from_index(self._by_uuid, _system_uuid(before), name)
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
        if query is None or node is None or node.uid != report.node.uid or is_ready(node):
            self.forget_history(name)
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
        """Drop the poll history of a Node."""
        self._histories.pop(name, None)

    def forget_histories(self) -> None:
        """Drop all poll histories, because messages may have been missed."""
        self._histories.clear()

    def clear(self) -> None:
        """Drop everything."""
        for known in (
            self._nodes,
            self._reports,
            self._histories,
            self._by_uuid,
            self._nodes_by_machine_name,
        ):
            known.clear()


def _system_uuid(node: Node) -> str:
    return normalize_uuid(node.status.node_info.system_uuid)


def _remove_from_index(index: dict[str, set[str]], key: str, name: str) -> None:
    names = index.get(key)
    if names is not None:
        names.discard(name)
        if not names:
            del index[key]
