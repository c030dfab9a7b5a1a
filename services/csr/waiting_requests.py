"""The waiting requests: reason, nodes that can end the wait, and start. Found by node."""

from collections.abc import Iterator
from typing import Final

import msgspec

MAX_WAITING: Final = 20_000  # beyond it the oldest waits for its next delivery
LONG_WAIT_SECONDS: Final = 30.0  # a longer wait for one reason is recorded on the Node


class WaitingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that csr could not decide yet."""

    name: str
    uid: str
    requester: str  # the node that filed the request
    reason: str  # the name of a check, constant during the wait
    message: str
    nodes: frozenset[str]  # a change of any of them may end the wait
    rivals: tuple[str, ...] = ()  # nodes with an equally strong claim
    retry_at: float | None = None  # when the wait ends without a change, in monotonic seconds


class _RequesterWait(msgspec.Struct):
    reason: str
    since: float
    is_reported: bool = False


class WaitingRequests:
    """Stores waiting requests by name. A requester's wait continues while the reason is the same."""

    def __init__(self) -> None:
        self.by_name: dict[str, WaitingRequest] = {}
        self._names_by_node: dict[str, set[str]] = {}  # node -> names of requests
        self._waits_by_requester: dict[str, _RequesterWait] = {}  # requester -> reason and start of its wait

    def add(self, request: WaitingRequest, at: float) -> None:
        """Add a request that could not be decided, at that monotonic time."""
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
        """Remove a deleted or superseded request; the requester's wait may continue with another request."""
        self._forget(name)

    def finish(self, name: str, requester: str) -> None:
        """End the wait of a request and of its requester."""
        self._forget(name)
        self._waits_by_requester.pop(requester, None)

    def on_node_gone(self, node: str) -> None:
        """End the wait of a deleted Node: a new Node of that name has not waited yet."""
        self._waits_by_requester.pop(node, None)

    def find_by_node(self, node: str) -> frozenset[str]:
        """Return the requests that wait on that node."""
        return frozenset(self._names_by_node.get(node, ()))

    def find_due(self, at: float) -> list[str]:
        """Return the requests whose retry time has passed."""
        return [
            name for name, each in self.by_name.items() if each.retry_at is not None and each.retry_at <= at
        ]

    def take_unreported(self, at: float) -> Iterator[WaitingRequest]:
        """Yield the requests with a long wait, each once until its reason changes."""
        for request in self.by_name.values():
            wait = self._waits_by_requester.get(request.requester)
            is_same = wait is not None and wait.reason == request.reason
            if wait is not None and is_same and not wait.is_reported and at - wait.since >= LONG_WAIT_SECONDS:
                wait.is_reported = True
                yield request

    def clear(self) -> None:
        """Drop everything."""
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
