"""Whose requests are pending, and which of them is the newest: only that one is decided."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from libs.common.signing_request import SigningRequest

MOST_REQUESTERS: Final = 50_000  # identities whose requests are long gone must not pile up
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class Place(NamedTuple):
    """Where a request stands among those of its requester. Clocks go back; versions, if etcd is restored."""

    version: int  # of the first word of it: what is written to it later does not make it newer
    created: datetime  # in whole seconds
    name: str


class _Decided(NamedTuple):
    """The newest request of a node that was decided."""

    place: Place
    seen_pending: bool  # else its version is that of a later write

    def supersedes(self, pending: Place) -> bool:
        """Whether that is older for certain: a request that waits for ever is worse than one too many."""
        if self.place.created == pending.created:
            return self.seen_pending and self.place > pending
        return self.place.created > pending.created and self.place.version >= pending.version


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A request that nobody has decided."""

    uid: str
    node: str  # whose identity asks
    place: Place


class Requesters:
    """Kept from what the watcher says."""

    def __init__(self) -> None:
        self.pending: dict[str, Pending] = {}  # by the name of the request
        self.unissued: set[str] = set()  # approved, and the signer has not answered yet
        self._of_node: dict[str, dict[str, Place]] = {}
        self._decided: dict[str, _Decided] = {}  # by node; it may have gone since

    def observed(self, request: SigningRequest) -> str:
        """The request is so now; the one that is to be looked at on account of that, "" if none.

        It was the newest before and is superseded, or it is the newest now that this one is decided.
        """
        if not request.is_by_node:
            return ""  # it is never answered, and must not keep the node's own from it
        before = self.newest(request.node_name)
        known = self.pending.get(request.name)
        if known is not None and (known.uid, known.node) != (request.uid, request.node_name):
            self._forget(request.name)
            known = None
        if request.pending:
            self._keep(request, known)
        else:
            self._decide(request, known)
        newest = self.newest(request.node_name)
        if newest and newest not in {before, request.name}:
            return newest
        return before if before in self.pending and before != newest else ""

    def gone(self, name: str) -> str:
        """The request is no more; the older one that is to be decided now, as nobody has decided this."""
        self.unissued.discard(name)
        pending = self.pending.get(name)
        was_newest = pending is not None and self.newest(pending.node) == name
        self._forget(name)
        return self.newest(pending.node) if pending and was_newest else ""

    def newest(self, node: str) -> str:
        """The name of the request of that node that is to be decided, "" if there is none."""
        places, decided = self._of_node.get(node, {}).values(), self._decided.get(node)
        left = (place for place in places if decided is None or not decided.supersedes(place))
        newest = max(left, default=None)
        return newest.name if newest else ""

    def superseded_by(self, name: str) -> str:
        """The newer request of the same node, decided or not, on account of which this one gets no write."""
        pending = self.pending.get(name)
        if pending is None:
            return ""
        newest = self.newest(pending.node) or self._decided[pending.node].place.name
        return newest if newest != name else ""

    def superseded(self) -> int:
        """How many pending requests there are that get no write."""
        return len(self.pending) - sum(1 for _ in self.all_newest())

    def all_newest(self) -> Iterator[Pending]:
        """The requests that are to be decided, one of each node."""
        for node in self._of_node:
            if name := self.newest(node):
                yield self.pending[name]

    def clear(self) -> None:
        """Everything known is void."""
        for known in (self.pending, self.unissued, self._of_node, self._decided):
            known.clear()

    def _keep(self, request: SigningRequest, known: Pending | None) -> None:
        self.unissued.discard(request.name)
        place = known.place if known else _place(request)
        self.pending[request.name] = Pending(uid=request.uid, node=request.node_name, place=place)
        self._of_node.setdefault(request.node_name, {})[request.name] = place

    def _decide(self, request: SigningRequest, known: Pending | None) -> None:
        self._forget(request.name)
        (self.unissued.add if request.owed else self.unissued.discard)(request.name)
        decided = _Decided(known.place if known else _place(request), known is not None)
        node = request.node_name
        self._decided[node] = max(decided, self._decided.pop(node, decided), key=_created_last)
        if len(self._decided) > MOST_REQUESTERS:
            del self._decided[next(iter(self._decided))]

    def _forget(self, name: str) -> Pending | None:
        pending = self.pending.pop(name, None)
        if pending is not None:
            places = self._of_node[pending.node]
            del places[name]
            if not places:
                del self._of_node[pending.node]
        return pending


def _created_last(decided: _Decided) -> tuple[datetime, bool, Place]:
    return decided.place.created, decided.seen_pending, decided.place


def _place(request: SigningRequest) -> Place:
    created = request.metadata.creation_timestamp or _LONG_AGO
    created = created if created.tzinfo else created.replace(tzinfo=UTC)  # two kinds could not be compared
    return Place(request.version, created, request.name)
