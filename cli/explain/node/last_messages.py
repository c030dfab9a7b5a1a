"""The last message of each service about one Node. Pure."""

import msgspec

from cli.inside.flow_snapshot import FlowSnapshot, FlowUnavailable
from libs.common.contract.events import DeadLetter, Decided, NodeEnriched, NodeObserved, NodeUnreachable
from libs.common.contract.node import Node


class LastMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The last messages; `problem` says why they could not be read."""

    observed: NodeObserved | None = None  # from the watcher
    machine_event: NodeEnriched | NodeUnreachable | None = None  # from metadata
    decisions: tuple[Decided, ...] = ()
    dead_letters: tuple[DeadLetter, ...] = ()
    unreadable: tuple[str, ...] = ()  # subjects
    problem: str = ""

    def find_decision(self, service: str, node: Node) -> Decided | None:
        """Return the last decision of a service about this Node, matched by UID."""
        return next((one for one in self.decisions if (one.service, one.uid) == (service, node.uid)), None)

    def find_machine_event(self, node: Node) -> NodeEnriched | NodeUnreachable | None:
        """Return the last event of metadata about this Node's machine, matched by UID."""
        said = self.machine_event
        return said if said is not None and said.node.uid == node.uid else None


def select_last_messages(seen: FlowSnapshot | FlowUnavailable | None, name: str) -> LastMessages | None:
    """Return the last messages about the Node; None if the flow was not queried."""
    if seen is None:
        return None
    if isinstance(seen, FlowUnavailable):
        return LastMessages(problem=seen.reason)
    if seen.stream is None:
        return LastMessages(problem="NATS has no stream TALOSCCM; the leading watcher creates it")
    found = seen.find_object("node", name)
    if found is None:
        return LastMessages()
    words = tuple(filter(None, (found.observed, found.enriched, *found.decided, *found.dead)))
    said = [word.event for word in words]
    return LastMessages(
        observed=next((event for event in said if isinstance(event, NodeObserved)), None),
        machine_event=next(
            (event for event in said if isinstance(event, NodeEnriched | NodeUnreachable)), None
        ),
        decisions=tuple(event for event in said if isinstance(event, Decided)),
        dead_letters=tuple(event for event in said if isinstance(event, DeadLetter)),
        unreadable=tuple(word.subject for word in words if word.unreadable),
    )
