"""The states of the model of the hand-over: cluster, Lease, stream, two watchers and one follower.

The cluster begins with two Nodes of resourceVersion 1. Later n-1 changes once and n-2 is deleted once.
"""

from typing import Final

import msgspec

CHANGED_NODE: Final = 0
DELETED_NODE: Final = 1
SNAPSHOT: Final = 2
LEADING: Final = 3
SUBJECTS: Final = ("n-1", "n-2", "SnapshotComplete", "Leading")
NODES: Final = (CHANGED_NODE, DELETED_NODE)
NO_WATCHER: Final = -1


class Rules(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The rules of docs/design.md, each of which a mutant leaves out."""

    followers_ignore_former_leaders: bool = True
    leader_corrects_former_leaders: bool = True
    cut_off_leader_steps_down: bool = True
    publishes_with_expected_sequence: bool = True
    snapshot_waits_for_all: bool = True
    new_leader_has_new_epoch: bool = True
    round_follows_own_leading: bool = True
    other_stream_voids_messages: bool = True
    leader_corrects_other_streams: bool = True
    snapshot_waits_until_nothing_is_pending: bool = True


class Cluster(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The Nodes in Kubernetes: resourceVersions of the change and of the deletion, 0 before."""

    changed_at: int = 0
    deleted_at: int = 0

    @property
    def version(self) -> int:
        """The last resourceVersion."""
        return max(1, self.changed_at, self.deleted_at)

    def node_as_of(self, node: int, version: int) -> int:
        """Return the resourceVersion that the Node had then, 0 if it was deleted."""
        if node == DELETED_NODE:
            return 0 if 0 < self.deleted_at <= version else 1
        return self.changed_at if 0 < self.changed_at <= version else 1


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message of a watcher; `version` of a snapshot is that of its list, which only the model knows."""

    subject: int
    stream: int
    epoch: int
    version: int = 0
    exists: bool = True  # False = NodeGone

    @property
    def order(self) -> tuple[int, int]:
        return (self.epoch, self.version if self.subject in NODES else 0)


class Stored(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message in the stream; `is_fenced`: a message with a higher epoch came before."""

    message: Message
    sequence: int
    is_fenced: bool
    replaced: "Stored | None" = None  # the last message for this stream, if this one is for another stream


class Stream(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The last message of each subject."""

    number: int = 1
    last_sequence: int = 0
    greatest_epoch: int = 0
    stored: tuple[Stored | None, ...] = (None,) * len(SUBJECTS)

    def sequence_of(self, subject: int) -> int:
        """Return the last sequence of a subject, 0 without one."""
        stored = self.stored[subject]
        return stored.sequence if stored is not None else 0

    def valid(self, subject: int) -> Stored | None:
        """Return the last message of a subject if it was published for this stream."""
        stored = self.stored[subject]
        return stored if stored is not None and stored.message.stream == self.number else None

    def known(self, subject: int) -> Stored | None:
        """Return the last message for this stream, which watchers keep although another one replaced it."""
        stored = self.stored[subject]
        return stored.replaced if stored is not None and stored.message.stream != self.number else stored

    def list_after(self, sequence: int) -> list[Stored]:
        """Return the messages after that sequence, in stream order."""
        later = [stored for stored in self.stored if stored is not None and stored.sequence > sequence]
        return sorted(later, key=lambda stored: stored.sequence)


class OutgoingMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message on its way to the stream, and the last sequence that its sender expects."""

    message: Message
    expected: int


class Watcher(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One watcher; it believes that it leads until it learns otherwise."""

    leads: bool = False
    as_of: int = 0  # the resourceVersion of its store, 0 before the list
    stream: int = 0  # the token's
    epoch: int = 0  # the token's, 0 before the first round
    is_rejected: bool = False
    listed_at: int = 0  # resourceVersion at the start of the round, 0 before its Leading
    unpublished: frozenset[int] = frozenset()  # subjects of the round
    in_flight: OutgoingMessage | None = None


class Follower(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A service that follows the stream; its gate is open while it has a snapshot of this stream."""

    stream: int = 0
    sequence: int = 0
    epoch: int = 0
    table: tuple[Stored | None, ...] = (None, None, None)
    snapshot: Stored | None = None  # received, and not in effect while messages are pending

    @property
    def is_open(self) -> bool:
        return self.table[SNAPSHOT] is not None


class State(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything at one moment."""

    rules: Rules
    faults: int  # that may still happen
    renewals: int = 0  # renewals, each of which moves Leading to the end of the stream
    is_follower_slow: bool = False  # other steps may come between a message and its delivery
    cluster: Cluster = Cluster()
    stream: Stream = Stream()
    holder: int = 0  # the watcher with the Lease
    transitions: int = 1  # how often the Lease changed its holder
    cut: int = NO_WATCHER  # the watcher that cannot reach NATS
    watchers: tuple[Watcher, Watcher] = (Watcher(leads=True, as_of=1), Watcher())
    late: tuple[OutgoingMessage, ...] = ()  # messages of processes that lead no more
    follower: Follower = Follower(stream=1)
