"""One kind of object for one term: what is known of it, who hears of it and who says it."""

from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Generic

from libs.common.bus.ordered_publisher import OrderedPublisher
from libs.common.service.service import Dependencies
from services.watcher.informer import Informer, ObjectSourceFactory
from services.watcher.kinds import Kind, ObjectT
from services.watcher.object_publisher import ObjectPublisher
from services.watcher.publish_decision import FencingToken
from services.watcher.published_state import PublishedState
from services.watcher.republish_schedule import select_due
from services.watcher.store import Store


class KindController(Generic[ObjectT]):
    """A round begins for each kind on its own, once there is a list of it: another may have none."""

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
        """`on_change` hears that a list or a change came, or that something was said."""
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
            on_rewound=on_rewound,
            on_changed_names=self._on_changed_names,
        )
        self._publisher = ObjectPublisher(
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
        """Whether it is known what exists."""
        return self._store.has_synced

    @property
    def objects(self) -> Iterable[ObjectT] | None:
        """All that exist as far as is known, None before a list."""
        return self._store if self._store.has_synced else None

    @property
    def is_sync_pending(self) -> bool:
        """Whether the first list may come at any moment: it neither came nor failed."""
        return not self.has_synced and not self._informer.is_failing

    @property
    def is_missing_from_round(self) -> bool:
        """Whether it was listed after the round had begun, and so is not said in it."""
        return self.has_synced and not self._is_in_round

    @property
    def is_round_published(self) -> bool:
        """Whether all of the round has been said, or cannot be; so it is before there is one."""
        return not self._is_in_round or self._publisher.is_round_complete

    @property
    def published_count(self) -> int | None:
        """How many objects were said in the round, None before there is one."""
        return len(self._store) if self._is_in_round else None

    def problems(self) -> tuple[str, ...]:
        """Why the stream may lack some, in words for /readyz."""
        return (*self._informer.problems(), *self._publisher.problems())

    def coroutines(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """What is to run for as long as the term does."""
        return (self._publisher.run(), self._informer.run())

    def pause(self) -> None:
        """Say nothing until the next round: the stream may be another one."""
        self._is_in_round = False
        self._publisher.pause()

    def publish_all(self, token: FencingToken) -> None:
        """Begin a round."""
        self._is_in_round = True
        self._publisher.start_round(token, self._store.names() | self._published.names(self._kind))

    def republish(self, *, since: float, until: float) -> None:
        """Those whose turn in the resync lies between these parts of it."""
        names = self._absent_by_uid() | self._store.republished_names_by_uid()
        self._publisher.enqueue_republish([names[uid] for uid in select_due(names, since=since, until=until)])

    def republish_fenced(self, subject: str) -> None:
        """Publish what followers ignored on this subject, if it is one of this kind."""
        if subject.startswith(f"{self._kind.subject}."):
            self._publisher.enqueue((subject.removeprefix(f"{self._kind.subject}."),))

    def _absent_by_uid(self) -> dict[str, str]:
        """Objects that followers may hold and the store has not: a former leader may publish one late."""
        held = self._published.objects(self._kind)
        return {uid: name for name, uid in held if self._store.get(name) is None}

    def _on_changed_names(self, names: Collection[str]) -> None:
        self._publisher.enqueue(names)
        self._on_change()  # the first list, or none, or too many objects for the stream
