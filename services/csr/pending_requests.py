"""Whose requests are pending, and which of them is the newest: only that one is decided."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from libs.common.contract.signing_request import SigningRequest

MAX_REQUESTERS: Final = 50_000  # identities whose requests are long gone must not pile up
_NO_TIMESTAMP: Final = datetime.min.replace(tzinfo=UTC)


class RequestOrder(NamedTuple):
    """Where a request stands among those of its requester. Clocks go back; versions, if etcd is restored."""

    version: int  # of the first word of it: what is written to it later does not make it newer
    created_at: datetime  # in whole seconds
    name: str


class _DecidedRequest(NamedTuple):
    """The newest request of a node that was decided."""

    order: RequestOrder
    was_pending: bool  # else its version is that of a later write

    def supersedes(self, pending: RequestOrder) -> bool:
        """Whether that is older for certain: a request that waits for ever is worse than one too many."""
        if self.order.created_at == pending.created_at:
            return self.was_pending and self.order > pending
        return self.order.created_at > pending.created_at and self.order.version >= pending.version


class PendingCsr(msgspec.Struct, frozen=True, kw_only=True):
    """A request that nobody has decided."""

    uid: str
    node: str  # whose identity asks
    order: RequestOrder


class PendingRequests:
    """Kept from what the watcher says."""

    def __init__(self) -> None:
        self.by_name: dict[str, PendingCsr] = {}  # by the name of the request
        self.awaiting_signer: set[str] = set()  # approved, and the signer has not answered yet
        self._orders_by_node: dict[str, dict[str, RequestOrder]] = {}
        self._decided: dict[str, _DecidedRequest] = {}  # by node; it may have gone since

    def upsert(self, request: SigningRequest) -> str:
        """The request is so now; the one that is to be looked at on account of that, "" if none.

        It was the newest before and is superseded, or it is the newest now that this one is decided.
        """
        if not request.is_requested_by_node:
            return ""  # it is never answered, and must not keep the node's own from it
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
        return before if before in self.by_name and before != newest else ""

    def remove(self, name: str) -> str:
        """The request is no more; the older one that is to be decided now, as nobody has decided this."""
        self.awaiting_signer.discard(name)
        pending = self.by_name.get(name)
        was_newest = pending is not None and self.find_newest(pending.node) == name
        self._forget(name)
        return self.find_newest(pending.node) if pending and was_newest else ""

    def find_newest(self, node: str) -> str:
        """The name of the request of that node that is to be decided, "" if there is none."""
        places, decided = self._orders_by_node.get(node, {}).values(), self._decided.get(node)
        left = (place for place in places if decided is None or not decided.supersedes(place))
        newest = max(left, default=None)
        return newest.name if newest else ""

    def find_superseding(self, name: str) -> str:
        """The newer request of the same node, decided or not, on account of which this one gets no write."""
        pending = self.by_name.get(name)
        if pending is None:
            return ""
        newest = self.find_newest(pending.node) or self._decided[pending.node].order.name
        return newest if newest != name else ""

    def count_superseded(self) -> int:
        """How many pending requests there are that get no write."""
        return len(self.by_name) - sum(1 for _ in self.iterate_newest())

    def iterate_newest(self) -> Iterator[PendingCsr]:
        """The requests that are to be decided, one of each node."""
        for node in self._orders_by_node:
            if name := self.find_newest(node):
                yield self.by_name[name]

    def clear(self) -> None:
        """Everything known is void."""
        for known in (self.by_name, self.awaiting_signer, self._orders_by_node, self._decided):
            known.clear()

    def _add_pending(self, request: SigningRequest, known: PendingCsr | None) -> None:
        self.awaiting_signer.discard(request.name)
        place = known.order if known else _request_order(request)
        self.by_name[request.name] = PendingCsr(uid=request.uid, node=request.node_name, order=place)
        self._orders_by_node.setdefault(request.node_name, {})[request.name] = place

    def _add_decided(self, request: SigningRequest, known: PendingCsr | None) -> None:
        self._forget(request.name)
        (self.awaiting_signer.add if request.is_awaiting_certificate else self.awaiting_signer.discard)(
            request.name
        )
        decided = _DecidedRequest(known.order if known else _request_order(request), known is not None)
        node = request.node_name
        self._decided[node] = max(decided, self._decided.pop(node, decided), key=_decided_order)
        if len(self._decided) > MAX_REQUESTERS:
            del self._decided[next(iter(self._decided))]

    def _forget(self, name: str) -> PendingCsr | None:
        pending = self.by_name.pop(name, None)
        if pending is not None:
            places = self._orders_by_node[pending.node]
            del places[name]
            if not places:
                del self._orders_by_node[pending.node]
        return pending


def _decided_order(decided: _DecidedRequest) -> tuple[datetime, bool, RequestOrder]:
    return decided.order.created_at, decided.was_pending, decided.order


def _request_order(request: SigningRequest) -> RequestOrder:
    created = request.metadata.creation_timestamp or _NO_TIMESTAMP
    created = created if created.tzinfo else created.replace(tzinfo=UTC)  # two kinds could not be compared
    return RequestOrder(request.resource_version_number, created, request.name)
