"""Nodes, metadata's last words of them, and the histories of looks; kept up to date as it is heard."""

from libs.common.contract.node import Node
from libs.common.contract.system_uuid import normalize_uuid
from services.lifecycle.decide import DeletionCase
from services.lifecycle.evidence import (
    MachineIndex,
    MachineReport,
    collect_machine_names,
    is_ready,
    shows_activity,
)
from services.lifecycle.poll_history import PollHistory, append_poll, extract_poll


class NodeIndex:
    """By name. What contradicts a history ends it."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._reports: dict[str, MachineReport] = {}
        self._histories: dict[str, PollHistory] = {}
        self._by_uuid: dict[str, set[str]] = {}
        self._nodes_by_machine_name: dict[str, set[str]] = {}
        self.machines = MachineIndex(
            nodes_by_uuid=self._by_uuid, nodes_by_machine_name=self._nodes_by_machine_name
        )

    def get_node(self, name: str) -> Node | None:
        """As the watcher saw it last."""
        return self._nodes.get(name)

    def list_names(self) -> list[str]:
        """Of all Nodes."""
        return list(self._nodes)

    def build_case(self, node: Node) -> DeletionCase:
        """All that is known about it; `node` may be newer than what the watcher saw."""
        return DeletionCase(
            node=node,
            report=self._reports.get(node.name),
            history=self._histories.get(node.name),
            machines=self.machines,
        )

    def get_history(self, name: str) -> PollHistory | None:
        """The looks that were not contradicted."""
        return self._histories.get(name)

    def count_histories(self) -> int:
        """How many Nodes there are in whose place others answer."""
        return len(self._histories)

    # ---- what is heard

    def upsert_node(self, node: Node) -> None:
        """How the Node is now."""
        before = self._nodes.get(node.name)
        if before is not None and (before.uid != node.uid or shows_activity(before, node)):
            self.forget_history(node.name)
        if before is not None:
            _remove_from_index(self._by_uuid, _system_uuid(before), node.name)
        self._nodes[node.name] = node
        if uuid := _system_uuid(node):
            self._by_uuid.setdefault(uuid, set()).add(node.name)

    def remove_node(self, name: str) -> None:
        """There is no such Node any more."""
        before = self._nodes.pop(name, None)
        if before is not None:
            _remove_from_index(self._by_uuid, _system_uuid(before), name)
        self.forget_history(name)

    def upsert_report(self, report: MachineReport, received_at: float) -> None:
        """Metadata's word; `heard` by our monotonic clock."""
        name = report.node.name
        self.discard_report(name)
        self._reports[name] = report
        for borne in collect_machine_names(report):
            self._nodes_by_machine_name.setdefault(borne, set()).add(name)
            self.forget_history(borne)  # a machine bears that name: what was seen of its Node is contradicted
        look = extract_poll(report, received_at)
        node = self._nodes.get(name)
        if look is None or node is None or node.uid != report.node.uid or is_ready(node):
            self.forget_history(name)
        else:
            self._histories[name] = append_poll(self._histories.get(name), node.uid, look)

    def discard_report(self, name: str) -> None:
        """Metadata's word is void, or replaced; what it proved is judged by the next one."""
        word = self._reports.pop(name, None)
        if word is not None:
            for borne in collect_machine_names(word):
                _remove_from_index(self._nodes_by_machine_name, borne, name)

    def remove_report(self, name: str) -> None:
        """Metadata has nothing to say of it any more."""
        self.discard_report(name)
        self.forget_history(name)

    def forget_history(self, name: str) -> None:
        """What was seen of it counts no more."""
        self._histories.pop(name, None)

    def forget_histories(self) -> None:
        """What was seen counts no more: something may have been missed."""
        self._histories.clear()

    def clear(self) -> None:
        """Everything known is void."""
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
