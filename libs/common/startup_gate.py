"""Which machines metadata has yet to report on before a service decides about anybody's addresses."""

from typing import NamedTuple

from libs.common.events import EnrichedNodeGone, NodeEnriched, NodeGone, NodeObserved, NodeUnreachable
from libs.common.subjects import ENRICHED_NODE, OBSERVED_NODE, name_in


class _Identity(NamedTuple):
    """Which Node is awaited, and at which addresses metadata queries its machine."""

    uid: str
    provided_node_ip: str


class StartupGate:
    """Closed until metadata has reported on every Node that existed when the flow became complete.

    After a wiped stream these are all Nodes. "Unreachable" is a report, too. A Node without
    provided-node-ip is not awaited, because metadata never reports on it. A Node that joins later is not
    awaited either: it must not stop the others. The same holds for a Node whose provided-node-ip changes
    later. Only its own kubelet writes that annotation, and metadata never reports while it keeps changing.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _Identity] = {}  # by name, of the Nodes on which metadata reports
        self._reported: dict[str, str] = {}  # uid by name, as in the last report
        self._awaited: dict[str, _Identity] | None = None  # by name; None until the flow was complete

    @property
    def is_set(self) -> bool:
        """Whether it is known which Nodes are awaited."""
        return self._awaited is not None

    @property
    def is_open(self) -> bool:
        """Whether metadata has reported on all of them."""
        return self._awaited is not None and not self._awaited

    def why_closed(self) -> str:
        """The reason in words for /readyz; "" if the gate is open, or not set yet."""
        if not self._awaited:
            return ""
        count = len(self._awaited)
        machines = f"{count} machines" if count > 1 else "1 machine"
        return f"waits for metadata's first report on {machines}, such as {min(self._awaited)}"

    def set(self) -> None:
        """The flow is complete: await every Node on which it holds no report."""
        self._awaited = {
            name: node for name, node in self._nodes.items() if self._reported.get(name) != node.uid
        }

    def unset(self) -> None:
        """The flow is not complete any more: the next complete one counts."""
        self._awaited = None

    def clear(self) -> None:
        """Another stream: everything known is void."""
        self.unset()
        self._nodes.clear()
        self._reported.clear()

    def take_in(self, event: object) -> bool:
        """Take in an event of the flow. Whether it opened the gate."""
        match event:
            case NodeObserved(node=node):
                if node.provided_node_ip:
                    self._nodes[node.name] = _Identity(node.uid, node.provided_node_ip)
                else:
                    self._nodes.pop(node.name, None)
                return self._opened_by(node.name)
            case NodeGone(name=name):
                return self._gone(name)
            case NodeEnriched(node=node) | NodeUnreachable(node=node):
                self._reported[node.name] = node.uid
                return self._opened_by(node.name)
            case EnrichedNodeGone(name=name):
                self._reported.pop(name, None)
        return False

    def dropped(self, subject: str) -> bool:
        """The stream holds that subject no more. Whether that opened the gate."""
        if subject.startswith(f"{ENRICHED_NODE}."):
            self._reported.pop(name_in(subject, ENRICHED_NODE), None)
        if subject.startswith(f"{OBSERVED_NODE}."):
            return self._gone(name_in(subject, OBSERVED_NODE))
        return False

    def _gone(self, name: str) -> bool:
        self._nodes.pop(name, None)
        return self._opened_by(name)

    def _opened_by(self, name: str) -> bool:
        """Whether that Node was the last one awaited, and is awaited no more."""
        awaited = (self._awaited or {}).get(name)
        if self._awaited is None or awaited is None:
            return False
        if self._nodes.get(name) == awaited and self._reported.get(name) != awaited.uid:
            return False
        del self._awaited[name]
        return not self._awaited
