"""One kind of object for one term: what is known of it, who hears of it and who says it."""

from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Generic

from libs.common.process.service import Parts
from libs.common.publisher import OrderedPublisher
from services.watcher.held import HeldFlow
from services.watcher.kinds import Kind, Seen
from services.watcher.observe import Stamp
from services.watcher.publish_objects import ObjectPublisher
from services.watcher.resync import due
from services.watcher.store import Store
from services.watcher.watch_objects import ObjectWatch, SourceMaker


class Watched(Generic[Seen]):
    """A round begins for each kind on its own, once there is a list of it: another may have none."""

    def __init__(
        self,
        kind: Kind[Seen],
        source: SourceMaker[Seen],
        parts: Parts,
        *,
        held: HeldFlow,
        publisher: OrderedPublisher,
        in_flight: int,
        on_change: Callable[[], None],
        on_rewound: Callable[[], None],
        on_no_stream: Callable[[], None],
        on_full: Callable[[], None],
    ) -> None:
        """`on_change` hears that a list or a change came, or that something was said."""
        self._kind = kind
        self._held = held
        self._store = Store(kind)
        self._on_change = on_change
        self._begun = False
        self._watch = ObjectWatch(
            kind, source, self._store, now=parts.now, on_rewound=on_rewound, on_news=self._on_news
        )
        self._publisher = ObjectPublisher(
            kind,
            self._store,
            held=held,
            publisher=publisher,
            in_flight=in_flight,
            now=parts.now,
            jitter=parts.random.random,
            absent_as_of=self._watch.absent_as_of,
            on_settled=on_change,
            on_no_stream=on_no_stream,
            on_full=on_full,
        )

    def __len__(self) -> int:
        return len(self._store)

    @property
    def listed(self) -> bool:
        """Whether it is known what exists."""
        return self._store.listed

    @property
    def objects(self) -> Iterable[Seen] | None:
        """All that exist as far as is known, None before a list."""
        return self._store if self._store.listed else None

    @property
    def is_due(self) -> bool:
        """Whether the first list may come at any moment: it neither came nor failed."""
        return not self.listed and not self._watch.failing

    @property
    def is_late(self) -> bool:
        """Whether it was listed after the round had begun, and so is not said in it."""
        return self.listed and not self._begun

    @property
    def all_said(self) -> bool:
        """Whether all of the round has been said, or cannot be; so it is before there is one."""
        return not self._begun or self._publisher.round_complete

    @property
    def count(self) -> int | None:
        """How many objects were said in the round, None before there is one."""
        return len(self._store) if self._begun else None

    def problems(self) -> tuple[str, ...]:
        """Why the stream may lack some, in words for /readyz."""
        return (*self._watch.problems(), *self._publisher.problems())

    def running(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """What is to run for as long as the term does."""
        return (self._publisher.run(), self._watch.run())

    def pause(self) -> None:
        """Say nothing until the next round: the stream may be another one."""
        self._begun = False
        self._publisher.pause()

    def say_all(self, stamp: Stamp) -> None:
        """Begin a round."""
        self._begun = True
        self._publisher.say_all(stamp, self._store.names() | self._held.existing(self._kind))

    def say_again(self, *, since: float, until: float) -> None:
        """Those whose turn in the resync lies between these parts of it."""
        names = self._absent_by_uid() | self._store.names_by_uid()
        self._publisher.say_again([names[uid] for uid in due(names, since=since, until=until)])

    def publish_void_again(self, subject: str) -> None:
        """Publish what followers ignored on this subject, if it is one of this kind."""
        if subject.startswith(f"{self._kind.subject}."):
            self._publisher.say((subject.removeprefix(f"{self._kind.subject}."),))

    def _absent_by_uid(self) -> dict[str, str]:
        """Objects that followers may hold and the store has not: a former leader may publish one late."""
        held = self._held.objects(self._kind)
        return {uid: name for name, uid in held if self._store.get(name) is None}

    def _on_news(self, names: Collection[str]) -> None:
        self._publisher.say(names)
        self._on_change()  # the first list, or none, or too many objects for the stream
