"""Delays decisions about addresses until metadata has reported on all existing machines."""

from typing import NamedTuple

from libs.common.contract import events
from libs.common.contract.machine import is_access_fault


class _Identity(NamedTuple):
    """An awaited Node, and the addresses at which metadata queries its machine."""

    uid: str
    provided_node_ip: str


class StartupGate:
    """Closed until metadata has reported on every Node that existed when the flow became complete.

    After the loss of the stream these are all Nodes. A NodeUnreachable is a report if it describes the
    machine: by last known facts, or by a fault other than a failed access to Talos. A Node without
    provided-node-ip is not awaited, because metadata never reports on it. A Node that joins later is not
    awaited either, because it must not stop the others. The same holds for a Node whose provided-node-ip
    changes later: only its kubelet writes it, and metadata does not report while it keeps changing.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _Identity] = {}  # by name: Nodes on which metadata reports
        self._reported: dict[str, str] = {}  # uid by name, as in the last report
        self._access_faults: dict[str, str] = {}  # message by name, if that is the last report
        self._has_facts = False  # whether any machine has returned facts
        self._awaited: dict[str, _Identity] | None = None  # by name; None until the flow was complete

    @property
    def is_set(self) -> bool:
        """Whether the awaited Nodes are known."""
        return self._awaited is not None

    @property
    def is_open(self) -> bool:
        """Whether metadata has reported on all awaited Nodes."""
        return self._awaited is not None and not self._awaited

    @property
    def is_waiting(self) -> bool:
        """Whether the gate is set and a report is missing."""
        return bool(self._awaited)

    def why_closed(self) -> str:
        """Return the reason in words for /readyz; "" if the gate is open or not set."""
        if not self._awaited:
            return ""
        count = len(self._awaited)
        machines = f"{count} machines" if count > 1 else "1 machine"
        waits = f"waits for metadata's first report on {machines}, such as {min(self._awaited)}"
        unqueried = self._awaited.keys() & self._access_faults.keys()
        fault = self._access_faults[min(unqueried)] if unqueried else ""
        return f"{waits}; metadata cannot query Talos: {fault}" if fault else waits

    def set(self) -> None:
        """Await every Node without a report; call it when the stream cache is complete."""
        self._awaited = {
            name: node for name, node in self._nodes.items() if self._reported.get(name) != node.uid
        }

    def unset(self) -> None:
        """Stop until the stream cache is complete again."""
        self._awaited = None

    def clear(self) -> None:
        """Forget everything, because the stream was replaced."""
        self.unset()
        self._nodes.clear()
        self._reported.clear()
        self._access_faults.clear()
        self._has_facts = False

    def apply(self, event: object) -> bool:
        """Apply an event; return whether it opened the gate."""
        match event:
            case events.NodeObserved(node=node):
                if node.provided_node_ip:
                    self._nodes[node.name] = _Identity(node.uid, node.provided_node_ip)
                else:
                    self._nodes.pop(node.name, None)
                return self._stop_awaiting(node.name)
            case events.NodeGone(name=name):
                return self._remove_node(name)
            case events.NodeEnriched() | events.NodeUnreachable():
                self._record_report(event)
                return self._stop_awaiting(event.node.name)
            case events.EnrichedNodeGone(name=name):
                self._forget_report(name)
        return False

    def _record_report(self, report: events.NodeEnriched | events.NodeUnreachable) -> None:
        name = report.node.name
        if isinstance(report, events.NodeEnriched):
            self._has_facts = True
        elif report.last_known is None and is_access_fault(report.fault, has_facts=self._has_facts):
            self._access_faults[name] = report.fault.message
            return
        self._access_faults.pop(name, None)
        self._reported[name] = report.node.uid

    def _forget_report(self, name: str) -> None:
        self._reported.pop(name, None)
        self._access_faults.pop(name, None)

    def _remove_node(self, name: str) -> bool:
        self._nodes.pop(name, None)
        return self._stop_awaiting(name)

    def _stop_awaiting(self, name: str) -> bool:
        """Stop awaiting the Node if possible; return whether it was the last awaited one."""
        awaited = (self._awaited or {}).get(name)
        if self._awaited is None or awaited is None:
            return False
        if self._nodes.get(name) == awaited and self._reported.get(name) != awaited.uid:
            return False
        del self._awaited[name]
        return not self._awaited
