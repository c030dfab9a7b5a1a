"""The requests that wait: for what, on which nodes, and since when. Found by the node that changes."""

from collections.abc import Iterator
from typing import Final

import msgspec

MAX_WAITING: Final = 20_000  # beyond it the oldest is left to its next delivery
LONG_WAIT_SECONDS: Final = 30.0  # a wait of one reason that lasts longer is told on the Node


class WaitingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request that could not be decided."""

    name: str
    uid: str
    requester: str  # the node whose identity asks
    reason: str  # a word that stays the same while the wait does
    message: str
    nodes: frozenset[str]  # a change of any of them may end it
    rivals: tuple[str, ...] = ()  # nodes that claim the same, with the same right
    retry_at: float | None = None  # when it ends by itself, in monotonic seconds


class _RequesterWait(msgspec.Struct):
    reason: str
    since: float
    is_reported: bool = False


class WaitingRequests:
    """By the name of the request; a requester's wait goes on while the reason is the same."""

    def __init__(self) -> None:
        self.by_name: dict[str, WaitingRequest] = {}
        self._names_by_node: dict[str, set[str]] = {}  # node -> names of requests
        self._waits_by_requester: dict[
            str, _RequesterWait
        ] = {}  # requester -> how long it has waited for the same thing

    def add(self, request: WaitingRequest, at: float) -> None:
        """It could not be decided, at that monotonic time."""
        self._forget(request.name)
        if len(self.by_name) >= MAX_WAITING:
            self._forget(next(iter(self.by_name)))
        self.by_name[request.name] = request
        for node in request.nodes:
            self._names_by_node.setdefault(node, set()).add(request.name)
        wait = self._waits_by_requester.get(request.requester)
        if wait is None or wait.reason != request.reason:
            self._waits_by_requester[request.requester] = _RequesterWait(request.reason, at)
            if len(self._waits_by_requester) > MAX_WAITING:
                del self._waits_by_requester[next(iter(self._waits_by_requester))]

    def remove(self, name: str) -> None:
        """It is gone, or a newer one of its requester has its place: the wait may go on with that."""
        self._forget(name)

    def finish(self, name: str, requester: str) -> None:
        """It waits no more, and neither does its requester."""
        self._forget(name)
        self._waits_by_requester.pop(requester, None)

    def on_node_gone(self, node: str) -> None:
        """Another one may come to have its name, and has not waited yet."""
        self._waits_by_requester.pop(node, None)

    def find_by_node(self, node: str) -> frozenset[str]:
        """The requests that wait on that node."""
        return frozenset(self._names_by_node.get(node, ()))

    def find_due(self, at: float) -> list[str]:
        """The requests whose wait has ended by itself."""
        return [
            name for name, each in self.by_name.items() if each.retry_at is not None and each.retry_at <= at
        ]

    def take_unreported(self, at: float) -> Iterator[WaitingRequest]:
        """Those whose wait has become a long one, each once until its reason changes."""
        for request in self.by_name.values():
            wait = self._waits_by_requester.get(request.requester)
            is_same = wait is not None and wait.reason == request.reason
            if wait is not None and is_same and not wait.is_reported and at - wait.since >= LONG_WAIT_SECONDS:
                wait.is_reported = True
                yield request

    def clear(self) -> None:
        """Everything known is void."""
        self.by_name.clear()
        self._names_by_node.clear()
        self._waits_by_requester.clear()

    def _forget(self, name: str) -> None:
        request = self.by_name.pop(name, None)
        for node in request.nodes if request else ():
            names = self._names_by_node[node]
            names.discard(name)
            if not names:
                del self._names_by_node[node]
