"""Tracks pending requests, and limits decisions. csr decides only the newest request of each node."""

import math
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from libs.common.contract.signing_request import SigningRequest

MAX_REQUESTERS: Final = 50_000  # requesters whose requests are long deleted must not accumulate
BURST: Final = 20  # decisions in a row for one node
REFILL_SECONDS: Final = 60.0  # until one more decision
_NO_TIMESTAMP: Final = datetime.min.replace(tzinfo=UTC)


class RequestOrder(NamedTuple):
    """Orders the requests of one requester. Clocks can go back; versions can, if etcd is restored."""

    version: int  # at the first observation: later writes do not make a request newer
    created_at: datetime  # in whole seconds
    name: str


class _DecidedRequest(NamedTuple):
    """The newest decided request of a node."""

    order: RequestOrder
    was_pending: bool  # False: its version is that of a later write

    def supersedes(self, pending: RequestOrder) -> bool:
        """Whether `pending` is certainly older; in doubt both are decided, so that none waits forever."""
        if self.order.created_at == pending.created_at:
            return self.was_pending and self.order > pending
        return self.order.created_at > pending.created_at and self.order.version >= pending.version


class PendingRequest(msgspec.Struct, kw_only=True):
    """A request without a decision, and what this replica did about it. Times are monotonic, in seconds."""

    uid: str
    node: str  # the requester
    order: RequestOrder
    written_at: float = -math.inf  # own write, which the watcher has not reported yet
    retry_at: float = math.inf  # next evaluation, if the bus will not redeliver the message


class PendingRequests:
    """Follows the watcher's observations of requests."""

    def __init__(self) -> None:
        self.by_name: dict[str, PendingRequest] = {}  # by the name of the request
        self.awaiting_signer: set[str] = set()  # approved, and the signer has not issued the certificate yet
        self._by_node: dict[str, dict[str, PendingRequest]] = {}  # the same by the requester
        self._decided: dict[str, _DecidedRequest] = {}  # by node; the request may be deleted since

    def upsert(self, request: SigningRequest) -> str | None:
        """Store the request's current state; return the other request to evaluate because of it, if any.

        That is the former newest request if this one supersedes it, or the new newest one if this one is
        decided.
        """
        if not request.is_requested_by_node:
            return None  # csr never answers it, and it must not supersede the node's own request
        before = self.find_newest(request.node_name)
        known = self.by_name.get(request.name)
        if known is not None and (known.uid, known.node) != (request.uid, request.node_name):
            self._forget(request.name)
            known = None
        if request.is_pending:
            self._add_pending(request, known)
        else:
            self._add_decided(request, known)
        newest = self.find_newest(request.node_name)
        if newest and newest not in {before, request.name}:
            return newest
        return before if before in self.by_name and before != newest else None

    def remove(self, name: str) -> str | None:
        """Remove a request; return the older one to decide now if the removed one was the newest."""
        self.awaiting_signer.discard(name)
        pending = self.by_name.get(name)
        was_newest = pending is not None and self.find_newest(pending.node) == name
        self._forget(name)
        return self.find_newest(pending.node) if pending and was_newest else None

    def find_newest(self, node: str) -> str | None:
        """Return the name of the node's request to decide; None if there is none."""
        orders, decided = (
            (each.order for each in self._by_node.get(node, {}).values()),
            self._decided.get(node),
        )
        left = (order for order in orders if decided is None or not decided.supersedes(order))
        newest = max(left, default=None)
        return newest.name if newest else None

    def find_superseding(self, name: str) -> str | None:
        """Return the newer request of the same node, decided or not, that supersedes this one, if any."""
        pending = self.by_name.get(name)
        if pending is None:
            return None
        newest = self.find_newest(pending.node) or self._decided[pending.node].order.name
        return newest if newest != name else None

    def list_newest(self) -> list[PendingRequest]:
        """Return the requests to decide, one per node; all other pending ones are superseded."""
        names = map(self.find_newest, self._by_node)
        return [self.by_name[name] for name in names if name]

    def clear(self) -> None:
        """Drop everything."""
        for known in (self.by_name, self.awaiting_signer, self._by_node, self._decided):
            known.clear()

    def _add_pending(self, request: SigningRequest, known: PendingRequest | None) -> None:
        self.awaiting_signer.discard(request.name)
        if known is None:
            node, order = request.node_name, _request_order(request)
            pending = PendingRequest(uid=request.uid, node=node, order=order)
            self.by_name[request.name] = self._by_node.setdefault(node, {})[request.name] = pending

    def _add_decided(self, request: SigningRequest, known: PendingRequest | None) -> None:
        self._forget(request.name)
        self.awaiting_signer.discard(request.name)
        if request.is_awaiting_certificate:
            self.awaiting_signer.add(request.name)
        decided = _DecidedRequest(known.order if known else _request_order(request), known is not None)
        node = request.node_name
        self._decided[node] = max(decided, self._decided.pop(node, decided), key=_decided_order)
        if len(self._decided) > MAX_REQUESTERS:
            del self._decided[next(iter(self._decided))]

    def _forget(self, name: str) -> None:
        if pending := self.by_name.pop(name, None):
            del self._by_node[pending.node][name]
            if not self._by_node[pending.node]:
                del self._by_node[pending.node]


def _decided_order(decided: _DecidedRequest) -> tuple[datetime, bool, RequestOrder]:
    return decided.order.created_at, decided.was_pending, decided.order


def _request_order(request: SigningRequest) -> RequestOrder:
    created = request.metadata.creation_timestamp or _NO_TIMESTAMP
    # naive and aware times cannot be compared
    created = created if created.tzinfo else created.replace(tzinfo=UTC)
    return RequestOrder(request.resource_version_number, created, request.name)


class NodeRateLimiter:
    """Limits the decisions per node: a noisy kubelet slows down only itself.

    Stores when each node's budget is full again. A node without an entry has a full budget.
    """

    def __init__(self) -> None:
        self._full_at: dict[str, float] = {}

    def seconds_until_allowed(self, node: str, now: float) -> float:
        """Return the seconds until csr may write again for that node; `now` is monotonic, in seconds."""
        missing = self._full_at.get(node, now) - now
        return max(0.0, missing - (BURST - 1) * REFILL_SECONDS)

    def record_write(self, node: str, now: float) -> None:
        """Record one write."""
        full_at = max(now, self._full_at.pop(node, now)) + REFILL_SECONDS
        self._full_at[node] = full_at
        if len(self._full_at) > MAX_REQUESTERS:
            self._evict_full(now)

    def _evict_full(self, now: float) -> None:
        self._full_at = {node: full_at for node, full_at in self._full_at.items() if full_at > now}
        while len(self._full_at) > MAX_REQUESTERS:
            del self._full_at[next(iter(self._full_at))]
