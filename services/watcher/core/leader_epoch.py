"""The epoch of this leader, and whether another leader or a restored etcd invalidates it."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final

from libs.common.contract.events import Leading, SnapshotComplete
from services.watcher.core.publish_decision import FencingToken, compute_next_epoch
from services.watcher.core.published_state import PublishedState

_REPEATED_SECONDS: Final = 60.0


@dataclass(eq=False)
class LeaderEpoch:
    """Keeps one epoch for the whole term, unless another leader or a restored etcd invalidates it."""

    published: PublishedState
    _: KW_ONLY
    identity: str
    has_lease: bool

    def __post_init__(self) -> None:
        self._transitions = 0
        self._deposed_at = float("-inf")
        self._token: FencingToken | None = None
        self._is_rejected = False
        self._is_rewound = False

    @property
    def token(self) -> FencingToken | None:
        """The token of this leader's messages; None before the first round."""
        return self._token

    @property
    def is_deposed(self) -> bool:
        """Whether another leader has published with an epoch that this leader's epoch does not supersede."""
        if self._token is None:
            return False
        return self._is_rejected or self.published.has_newer_leader(self._token.epoch, self.identity)

    @property
    def is_current(self) -> bool:
        """Whether followers order new messages of this leader after all earlier messages."""
        return self._token is not None and not self._is_rewound and not self.is_deposed

    def begin_term(self, lease_transitions: int) -> None:
        """Make epochs greater than the number of earlier holders of the Lease."""
        self._transitions = lease_transitions

    def mark_rejected(self) -> None:
        """Record a rejected message: the stream contains one with an epoch that is not lower."""
        self._is_rejected = True

    def mark_rewound(self) -> None:
        """Record that resourceVersions went back: followers would ignore new messages of this epoch."""
        self._is_rewound = True

    def find_conflict(self, now: float, *, silence_seconds: float) -> str:
        """Return why this leader must wait, although it holds its Lease; "" if it may publish again.

        Call it when the leader is deposed, at that monotonic time. Another leader no longer leads after
        `silence_seconds` without a heartbeat. A former leader of the same Lease can depose this one once,
        with a late message. The leader of another Lease does it again. Without a limit both would publish
        every object several times a second, each with a higher epoch than the other. Without a Lease the
        watcher that started later leads.
        """
        last, self._deposed_at = self._deposed_at, now
        heartbeat = self.published.leader_heartbeat
        other = "another watcher"
        if heartbeat is not None and heartbeat.holder != self.identity:
            other = heartbeat.holder
        elif self.has_lease:
            return ""
        if self.has_lease and now - last > _REPEATED_SECONDS:
            return ""
        if self.published.seconds_since_leader_heartbeat() >= silence_seconds:
            return ""
        hint = ", and has another Lease" if self.has_lease else ": without a Lease run only one watcher"
        return f"{other} publishes to this stream, too{hint}"

    def next_token(self) -> FencingToken:
        """Return a token for the current stream, with a new epoch if the present one is not current."""
        epoch = self._token.epoch if self._token is not None else 0
        if not self.is_current:
            highest_seen = max(epoch, self.published.greatest_epoch)
            epoch = compute_next_epoch(highest_seen=highest_seen, lease_transitions=self._transitions)
        self._token = FencingToken(stream_id=self.published.stream_id, epoch=epoch)
        self._is_rejected = self._is_rewound = False
        return self._token

    def build_heartbeat(self) -> Leading | None:
        """Build a leader heartbeat; None if this leader must not publish one to this stream.

        The follower also passes the sequence of a later leader's heartbeat to the publisher. So only this
        check prevents the publisher from overwriting that heartbeat.
        """
        if self._token is None or self.is_deposed or not self._is_followed(self._token):
            return None
        return Leading(stream_id=self._token.stream_id, epoch=self._token.epoch, holder=self.identity)

    def build_snapshot(
        self, counts: Mapping[str, int], service_cidrs: tuple[str, ...] | None
    ) -> SnapshotComplete | None:
        """Build a snapshot; None if this leader must not publish one.

        `counts` has the number of objects by `Kind.count_field`. `service_cidrs` is None while the ranges are
        unknown.
        """
        if self._token is None or self.is_deposed or not self._is_followed(self._token):
            return None
        return SnapshotComplete(
            stream_id=self._token.stream_id,
            epoch=self._token.epoch,
            service_cidrs=service_cidrs,
            **counts,
        )

    def _is_followed(self, token: FencingToken) -> bool:
        return self.published.follow_generation > 0 and self.published.stream_id == token.stream_id
