"""What the services said last of a Node, as the reader sees it. Pure."""

import msgspec

from cli.inside.seen import FlowSeen, Unknown
from libs.common.events import DeadLetter, Decided, NodeEnriched, NodeObserved, NodeUnreachable
from libs.common.node import Node


class LastWords(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; `problem` says why nothing could be."""

    observed: NodeObserved | None = None  # the watcher's
    of_machine: NodeEnriched | NodeUnreachable | None = None  # metadata's
    decided: tuple[Decided, ...] = ()
    dead: tuple[DeadLetter, ...] = ()
    unreadable: tuple[str, ...] = ()  # subjects
    problem: str = ""

    def of(self, service: str, node: Node) -> Decided | None:
        """What a service decided last of this very Node."""
        return next((one for one in self.decided if (one.service, one.uid) == (service, node.uid)), None)

    def machine_of(self, node: Node) -> NodeEnriched | NodeUnreachable | None:
        """What metadata said of this very Node's machine."""
        said = self.of_machine
        return said if said is not None and said.node.uid == node.uid else None


def last_words(seen: FlowSeen | Unknown | None, name: str) -> LastWords | None:
    """Of what was seen of the flow; None if nobody looked."""
    if seen is None:
        return None
    if isinstance(seen, Unknown):
        return LastWords(problem=seen.reason)
    if seen.stream is None:
        return LastWords(problem="NATS has no stream TALOSCCM: the watcher that leads makes it")
    found = seen.of("node", name)
    if found is None:
        return LastWords()
    words = tuple(filter(None, (found.observed, found.enriched, *found.decided, *found.dead)))
    said = [word.event for word in words]
    return LastWords(
        observed=next((event for event in said if isinstance(event, NodeObserved)), None),
        of_machine=next((event for event in said if isinstance(event, NodeEnriched | NodeUnreachable)), None),
        decided=tuple(event for event in said if isinstance(event, Decided)),
        dead=tuple(event for event in said if isinstance(event, DeadLetter)),
        unreadable=tuple(word.subject for word in words if word.unreadable),
    )
