"""Combines informer, store and publisher of one resource kind during one leadership term."""

from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import partial
from typing import Any, Generic

from libs.common.bus.ordered_publisher import OrderedPublisher
from libs.common.service.service import Dependencies
from services.watcher.informer import Informer, ObjectSourceFactory
from services.watcher.kinds import Kind, ObjectT
from services.watcher.observation_publisher import ObservationPublisher
from services.watcher.publish_decision import FencingToken
from services.watcher.published_state import PublishedState
from services.watcher.republish_schedule import select_due
from services.watcher.store import Store


class KindController(Generic[ObjectT]):
    """Lists, watches and publishes one kind.

    Each kind joins a resync round on its own, once it is listed, because the list of another kind may fail.
    """

    def __init__(
        self,
        kind: Kind[ObjectT],
        source: ObjectSourceFactory[ObjectT],
        dependencies: Dependencies,
        *,
        published: PublishedState,
        publisher: OrderedPublisher,
        in_flight: int,
        on_change: Callable[[], None],
        on_rewound: Callable[[], None],
        on_no_stream: Callable[[], None],
        on_full: Callable[[], None],
    ) -> None:
        """`on_change` is called after a list, a change or the end of a publish attempt."""
        self._kind = kind
        self._published = published
        self._store = Store(kind)
        self._on_change = on_change
        self._is_in_round = False
        self._informer = Informer(
            kind,
            source,
            self._store,
            now=dependencies.now,
            has_later=partial(published.has_later, kind),
            on_rewound=on_rewound,
            on_changed_names=self._on_changed_names,
        )
        self._publisher = ObservationPublisher(
            kind,
            self._store,
            published=published,
            publisher=publisher,
            in_flight=in_flight,
            now=dependencies.now,
            jitter=dependencies.random.random,
            absent_as_of=self._informer.absent_as_of_version,
            on_settled=on_change,
            on_no_stream=on_no_stream,
            on_full=on_full,
        )

    def __len__(self) -> int:
        return len(self._store)

    @property
    def has_synced(self) -> bool:
        """Whether the store contains a list."""
        return self._store.has_synced

    @property
    def objects(self) -> Iterable[ObjectT] | None:
        """The objects of the store; None before the first list."""
        return self._store if self._store.has_synced else None

    @property
    def is_sync_pending(self) -> bool:
        """Whether the first list is still expected: it has neither arrived nor failed."""
        return not self.has_synced and not self._informer.is_failing

    @property
    def is_missing_from_round(self) -> bool:
        """Whether the kind was listed after the round had begun, so the round does not include it."""
        return self.has_synced and not self._is_in_round

    @property
    def is_round_published(self) -> bool:
        """Whether every object of the round was published or skipped; True outside a round."""
        return not self._is_in_round or self._publisher.is_round_complete

    @property
    def published_count(self) -> int | None:
        """Number of objects of this kind in the round; None before it takes part."""
        return len(self._store) if self._is_in_round else None

    def problems(self) -> tuple[str, ...]:
        """Return why objects of this kind may be missing in the stream, in words for /readyz."""
        return (*self._informer.problems(), *self._publisher.problems())

    def coroutines(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Return the coroutines to run during the term."""
        return (self._publisher.run(), self._informer.run())

    def pause(self) -> None:
        """Publish nothing until the next round: the stream may have been replaced."""
        self._is_in_round = False
        self._publisher.pause()

    def publish_all(self, token: FencingToken) -> None:
        """Begin a round with every object of the store and of the stream."""
        self._is_in_round = True
        self._publisher.start_round(token, self._store.names() | self._published.names(self._kind))

    def republish(self, *, since: float, until: float) -> None:
        """Publish unchanged objects with an offset in [since, until), both fractions of a resync period."""
        names = self._absent_by_uid() | self._store.republished_names_by_uid()
        self._publisher.enqueue_republish([names[uid] for uid in select_due(names, since=since, until=until)])

    def republish_fenced(self, subject: str) -> None:
        """Publish the object of a fenced message again, if it is of this kind."""
        if subject.startswith(f"{self._kind.subject}."):
            self._publisher.enqueue((subject.removeprefix(f"{self._kind.subject}."),))

    def _absent_by_uid(self) -> dict[str, str]:
        """Return objects of the stream that the store lacks: a former leader may publish one late."""
        published = self._published.objects(self._kind)
        return {uid: name for name, uid in published if self._store.get(name) is None}

    def _on_changed_names(self, names: Collection[str]) -> None:
        self._publisher.enqueue(names)
        self._on_change()  # after the first list, a failed list, or a change that may require a larger stream
