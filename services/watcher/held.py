"""What the stream holds of observations, as far as the watcher must know to say only what is news."""

from collections.abc import Callable, Iterator
from datetime import datetime
from math import nan

import msgspec

from libs.common.bus import Message, Opened, Unreadable
from libs.common.events import CsrGone, CsrObserved, Leading, NodeGone, NodeObserved, SnapshotComplete
from libs.common.flow_table import GONE_KEPT, why_not_followed
from libs.common.ordering import epoch_of, incarnation_of, is_from_former_leader
from libs.common.subjects import SNAPSHOT, subject_of
from services.watcher.kinds import Kind, Said, Seen


class _Held(msgspec.Struct, frozen=True):
    sequence: int
    event: Said | SnapshotComplete
    void: bool = False  # of a former leader, behind a newer epoch: followers ignore it


class HeldFlow:
    """A bus `Follower` that also takes the watcher's own word at once, before it comes back from the stream.

    Leaner than a FlowTable: what others make of an observation is not heard, and an own one is kept once, as
    the object that was published. `learned` hears each sequence, `on_void` that another stream has taken the
    place of the known one, `on_change` that following began, was lost or caught up, or that a leader spoke.
    `on_void_message` gets the subject of a message that followers ignore: what they keep of it is older.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        learned: Callable[[str, int], None] = lambda subject, sequence: None,
        on_void: Callable[[], None] = lambda: None,
        on_change: Callable[[], None] = lambda: None,
        on_void_message: Callable[[str], None] = lambda subject: None,
    ) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._learned = learned
        self._on_void = on_void
        self._on_change = on_change
        self._on_void_message = on_void_message
        self._held: dict[str, _Held] = {}
        self._replayed: set[str] = set()
        self._opened = Opened(incarnation="", last_sequence=0)
        self._leading: Leading | None = None
        self._led_at = float("-inf")
        self._followed_since = 0.0
        self._generation = 0
        self._greatest_epoch = 0
        self._sequence = 0  # up to which the stream was heard
        self._replaying = True
        self._lost = "not connected yet"

    @property
    def incarnation(self) -> str:
        """That of the stream which is followed; "" before the first."""
        return self._opened.incarnation

    @property
    def generation(self) -> int:
        """Counts how often following began and has been read to its end; 0 while it is not.

        Another one than before means that something may have been missed or lost meanwhile.
        """
        return 0 if self._lost or self._replaying else self._generation

    @property
    def greatest_epoch(self) -> int:
        """The greatest epoch of any observation, snapshot or Leading heard in this incarnation."""
        return self._greatest_epoch

    @property
    def leading(self) -> Leading | None:
        """The last word of the leader with the greatest epoch, None if there was none in this incarnation."""
        return self._leading

    def seconds_since_leading(self) -> float:
        """How long ago that was heard; infinite if never."""
        return self._clock() - self._led_at

    def leader_silence_seconds(self) -> float:
        """How long it has been followed without hearing a leader; NaN while it is not followed."""
        return nan if self.generation == 0 else self._clock() - max(self._followed_since, self._led_at)

    def is_outranked(self, epoch: int, identity: str) -> bool:
        """Whether somebody else has spoken with an epoch that is not below this one."""
        said = self._leading
        same = said is not None and said.epoch == epoch and said.holder != identity
        return same or self._greatest_epoch > epoch

    @property
    def snapshot(self) -> SnapshotComplete | None:
        """The last one that the stream holds."""
        held = self._held.get(SNAPSHOT)
        return held.event if held is not None and isinstance(held.event, SnapshotComplete) else None

    def problems(self) -> tuple[str, ...]:
        """Why this is not what the stream holds, in words for /readyz."""
        return why_not_followed(self._lost, replaying=self._replaying)

    def of(self, kind: Kind[Seen], name: str) -> Said | None:
        """What was last said of that name."""
        held = self._held.get(f"{kind.subject}.{name}")
        return held.event if held is not None and not isinstance(held.event, SnapshotComplete) else None

    def is_void(self, kind: Kind[Seen], name: str) -> bool:
        """Whether followers ignore the last message of that name and keep an older one."""
        held = self._held.get(f"{kind.subject}.{name}")
        return held is not None and held.void

    def objects(self, kind: Kind[Seen]) -> Iterator[tuple[str, str]]:
        """Name and uid of each object that followers may hold.

        These exist by the last message of their subject, or a void message says that they are gone.
        """
        for subject, held in self._held.items():
            event = held.event
            if (found := kind.said(event)) is not None:
                yield found.name, found.uid
            elif (
                held.void
                and isinstance(event, NodeGone | CsrGone)
                and subject == f"{kind.subject}.{event.name}"
            ):
                yield event.name, event.uid

    def existing(self, kind: Kind[Seen]) -> set[str]:
        """Names of the objects that followers may hold."""
        return {name for name, _ in self.objects(kind)}

    @property
    def subjects(self) -> int:
        """Of how many subjects the stream holds what a watcher says."""
        return len(self._held)

    def said(self, event: Said | SnapshotComplete, sequence: int) -> None:
        """We have published this ourselves, under this sequence."""
        if event.incarnation == self.incarnation:
            self._keep(subject_of(event), event, sequence)

    # ---- bus.Follower

    def begin(self, opened: Opened) -> None:
        another = opened.incarnation != self._opened.incarnation
        self._opened = opened
        self._generation += 1
        self._sequence = 0 if another else min(self._sequence, opened.last_sequence)
        self._replayed.clear()
        self._replaying = True
        self._lost = ""
        if another:
            self._held.clear()
            self._greatest_epoch = 0
            self._leading = None
            self._on_void()
        # What lies beyond the stream's end was acknowledged once and went with a disk.
        self._drop({subject for subject, held in self._held.items() if held.sequence > opened.last_sequence})
        self._on_change()

    def apply(self, message: Message) -> None:
        if self._replaying:
            self._replayed.add(message.subject)
        self._learned(message.subject, message.sequence)
        is_new, self._sequence = message.sequence > self._sequence, max(message.sequence, self._sequence)
        event = message.event
        if isinstance(event, Unreadable) or incarnation_of(event) != self.incarnation:
            return  # no observation of this stream, whatever it is
        match event:
            case Leading():
                self._hear(event)
            case NodeObserved() | NodeGone() | CsrObserved() | CsrGone() | SnapshotComplete():
                void = is_new and is_from_former_leader(event, self._greatest_epoch)
                self._keep(message.subject, event, message.sequence, void=void)
                if isinstance(event, SnapshotComplete):
                    self._drop(self._long_gone(message.published_at))
            case _:
                return  # what others made of it
        if epoch_of(event) > self._greatest_epoch:
            self._greatest_epoch = epoch_of(event)
            self._on_change()

    def caught_up(self) -> None:
        end = self._opened.last_sequence
        self._drop({s for s, held in self._held.items() if held.sequence <= end and s not in self._replayed})
        self._replayed.clear()
        self._replaying = False
        self._followed_since = self._clock()
        self._on_change()

    def lost(self, reason: str) -> None:
        self._lost = reason or "connection lost"
        self._on_change()

    def _hear(self, leading: Leading) -> None:
        if self._leading is None or leading.epoch >= self._leading.epoch:  # else a former leader: ignored
            self._leading = leading
            self._led_at = self._clock()
            self._on_change()

    def _keep(
        self, subject: str, event: Said | SnapshotComplete, sequence: int, *, void: bool = False
    ) -> None:
        known = self._held.get(subject)
        if known is None or sequence > known.sequence:
            self._held[subject] = _Held(sequence, event, void)
        elif void and sequence == known.sequence:  # our own, behind another leader's
            self._held[subject] = _Held(sequence, known.event, void)
        else:
            return
        if void:
            self._on_void_message(subject)

    def _long_gone(self, now: datetime) -> set[str]:
        return {
            subject
            for subject, held in self._held.items()
            if isinstance(held.event, NodeGone | CsrGone) and now - held.event.observed_at > GONE_KEPT
        }

    def _drop(self, subjects: set[str]) -> None:
        for subject in subjects:
            del self._held[subject]  # aged out, or lost
