"""Our place among leaders: with which epoch we speak, and whether somebody has gone past it."""

from libs.common.contract.events import Leading, SnapshotComplete
from services.watcher.publish_decision import FencingToken, compute_next_epoch
from services.watcher.published_state import PublishedState


class LeaderEpoch:
    """One epoch from the first word to the last, unless another leader or a restored etcd goes past it."""

    def __init__(self, published: PublishedState, *, identity: str, lease_transitions: int) -> None:
        self._published = published
        self._identity = identity
        self._transitions = lease_transitions
        self._token: FencingToken | None = None
        self._is_rejected = False
        self._is_rewound = False

    @property
    def token(self) -> FencingToken | None:
        """What our messages bear; None before the first round."""
        return self._token

    @property
    def is_deposed(self) -> bool:
        """Whether another leader has spoken whom ours does not replace."""
        if self._token is None:
            return False
        return self._is_rejected or self._published.has_newer_leader(self._token.epoch, self._identity)

    @property
    def is_current(self) -> bool:
        """Whether what we say now has its place behind all that was said before."""
        return self._token is not None and not self._is_rewound and not self.is_deposed

    def mark_rejected(self) -> None:
        """A word of ours was not taken, because the stream holds one of an epoch that is not lower."""
        self._is_rejected = True

    def mark_rewound(self) -> None:
        """ResourceVersions went back: within our epoch nothing that is said now would be believed."""
        self._is_rewound = True

    def next_token(self) -> FencingToken:
        """Another epoch if there must be one; always the incarnation that is followed now."""
        epoch = self._token.epoch if self._token is not None else 0
        if not self.is_current:
            heard = max(epoch, self._published.greatest_epoch)
            epoch = compute_next_epoch(highest_seen=heard, lease_transitions=self._transitions)
        self._token = FencingToken(stream_id=self._published.stream_id, epoch=epoch)
        self._is_rejected = self._is_rewound = False
        return self._token

    def build_heartbeat(self) -> Leading | None:
        """That we lead; None while we must not say so, or not to this stream.

        Having followed, we know the sequence of a later leader's word: nothing but this keeps us from
        replacing it.
        """
        if self._token is None or self.is_deposed or not self._is_followed(self._token):
            return None
        return Leading(stream_id=self._token.stream_id, epoch=self._token.epoch, holder=self._identity)

    def build_snapshot(self, nodes: int, requests: int | None = None) -> SnapshotComplete | None:
        """That everything has been said, `requests` None: but for CSRs. None while we must not say so."""
        if self._token is None or self.is_deposed or not self._is_followed(self._token):
            return None
        return SnapshotComplete(
            stream_id=self._token.stream_id, epoch=self._token.epoch, nodes=nodes, requests=requests
        )

    def _is_followed(self, token: FencingToken) -> bool:
        return self._published.follow_generation > 0 and self._published.stream_id == token.stream_id
