"""Our place among leaders: with which epoch we speak, and whether somebody has gone past it."""

from libs.common.events import Leading, SnapshotComplete
from services.watcher.held import HeldFlow
from services.watcher.observe import Stamp, next_epoch


class Reign:
    """One epoch from the first word to the last, unless another leader or a restored etcd goes past it."""

    def __init__(self, held: HeldFlow, *, identity: str, lease_transitions: int) -> None:
        self._held = held
        self._identity = identity
        self._transitions = lease_transitions
        self._stamp: Stamp | None = None
        self._refused = False
        self._rewound = False

    @property
    def stamp(self) -> Stamp | None:
        """What our messages bear; None before the first round."""
        return self._stamp

    @property
    def outranked(self) -> bool:
        """Whether another leader has spoken whom ours does not replace."""
        if self._stamp is None:
            return False
        return self._refused or self._held.is_outranked(self._stamp.epoch, self._identity)

    @property
    def stands(self) -> bool:
        """Whether what we say now has its place behind all that was said before."""
        return self._stamp is not None and not self._rewound and not self.outranked

    def refused(self) -> None:
        """A word of ours was not taken, because the stream holds one of an epoch that is not lower."""
        self._refused = True

    def rewound(self) -> None:
        """ResourceVersions went back: within our epoch nothing that is said now would be believed."""
        self._rewound = True

    def next_stamp(self) -> Stamp:
        """Another epoch if there must be one; always the incarnation that is followed now."""
        epoch = self._stamp.epoch if self._stamp is not None else 0
        if not self.stands:
            heard = max(epoch, self._held.greatest_epoch)
            epoch = next_epoch(heard=heard, lease_transitions=self._transitions)
        self._stamp = Stamp(incarnation=self._held.incarnation, epoch=epoch)
        self._refused = self._rewound = False
        return self._stamp

    def leading(self) -> Leading | None:
        """That we lead; None while we must not say so, or not to this stream.

        Having followed, we know the sequence of a later leader's word: nothing but this keeps us from
        replacing it.
        """
        if self._stamp is None or self.outranked or not self._is_followed(self._stamp):
            return None
        return Leading(incarnation=self._stamp.incarnation, epoch=self._stamp.epoch, holder=self._identity)

    def snapshot(self, nodes: int, requests: int | None = None) -> SnapshotComplete | None:
        """That everything has been said, `requests` None: but for CSRs. None while we must not say so."""
        if self._stamp is None or self.outranked or not self._is_followed(self._stamp):
            return None
        return SnapshotComplete(
            incarnation=self._stamp.incarnation, epoch=self._stamp.epoch, nodes=nodes, requests=requests
        )

    def _is_followed(self, stamp: Stamp) -> bool:
        return self._held.generation > 0 and self._held.incarnation == stamp.incarnation
