"""Runs one reconciler per object that the watcher observes, as a task until the object is forgotten."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, Protocol, TypeVar

from libs.common.bus.delivery import backoff_seconds
from libs.common.bus.ordered_publisher import OrderedPublisher
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import SnapshotComplete
from libs.common.contract.subjects import object_name_in
from libs.common.service.service import Dependencies
from services.metadata.clock import Clock
from services.metadata.core.object_state import (
    EnrichedT,
    Observation,
    ObservedT,
    Publication,
    make_observation,
)
from services.metadata.enrichment_publisher import EnrichmentPublisher, ObjectKind

log = logging.getLogger(__name__)

ObservedT_contra = TypeVar("ObservedT_contra", contravariant=True)
EnrichedT_contra = TypeVar("EnrichedT_contra", contravariant=True)


class ObjectState(Protocol):
    """The state of one object, whatever its kind."""

    @property
    def observation(self) -> Observation[Any]: ...


class Reconciler(Protocol[ObservedT_contra, EnrichedT_contra]):
    """Owns the state of one object and takes its steps one by one."""

    @property
    def state(self) -> ObjectState: ...
    @property
    def publisher(self) -> EnrichmentPublisher[Any]: ...

    async def run(self) -> None:
        """Run until the object needs no more messages."""

    def on_started(self, *, is_live: bool) -> None:
        """Tell others about the object: it is in the pool now. `is_live`: no replay has delivered it."""

    def on_observed(self, message: Message, event: ObservedT_contra, *, is_live: bool) -> None:
        """Apply a newer observation of the watcher."""

    def on_stored(self, event: EnrichedT_contra | None, sequence: int, /) -> None:
        """Apply the last enriched message of the stream, perhaps our own; (None, 0) if it has none."""

    def on_stream_replaced(self) -> None:
        """Forget the published message, which is lost, and wait until the stream has the object."""

    def on_bus_reconnect(self) -> None:
        """Publish within a second what the bus rejected before."""

    def on_forgotten(self) -> None:
        """Release what others know about the object: it left the pool."""


ReconcilerT = TypeVar("ReconcilerT", bound=Reconciler[Any, Any])


# Returns the reconciler of a new object by its name, its observation, the message in the stream and the
# publisher; None if the object needs none.
Create = Callable[
    [str, Observation[ObservedT], Publication[EnrichedT], EnrichmentPublisher[EnrichedT]], ReconcilerT | None
]


@dataclass(eq=False)
class ReconcilerPool(Mapping[str, ReconcilerT], Generic[ObservedT, EnrichedT, ReconcilerT]):
    """The reconcilers of one kind, by object name. A defect in one does not affect the others.

    The stream cache keeps the observations, and the enriched messages only while it replays.
    """

    kind: ObjectKind[ObservedT, EnrichedT]
    create: Create[ObservedT, EnrichedT, ReconcilerT]
    _: KW_ONLY
    stream_cache: StreamCache
    publisher: OrderedPublisher
    clock: Clock
    dependencies: Dependencies

    def __post_init__(self) -> None:
        self._reconcilers: dict[str, ReconcilerT] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __getitem__(self, name: str) -> ReconcilerT:
        return self._reconcilers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._reconcilers)

    def __len__(self) -> int:
        return len(self._reconcilers)

    def on_message(self, message: Message) -> None:
        """Handle a message of the stream about this kind, or a SnapshotComplete."""
        event, is_live = message.event, not self.stream_cache.is_replaying
        if isinstance(event, self.kind.enriched_types):
            self._on_enriched(message)
        elif is_live and isinstance(event, self.kind.observed_types):
            self._observe(message, event, is_live=True)
        elif is_live and isinstance(event, SnapshotComplete):
            self._forget_absent()

    def on_caught_up(self) -> None:
        """Compare all objects with the stream cache, which now has all messages of the stream."""
        observed_prefix, enriched_prefix = self.kind.observed_prefix, self.kind.enriched_prefix
        for name, reconciler in self._reconcilers.items():
            message = self.stream_cache.get(f"{observed_prefix}.{name}")
            if message is None or message.sequence < reconciler.state.observation.sequence:
                reconciler.on_stream_replaced()  # NATS lost the observation, and reuses the lost sequences
        for message in self.stream_cache.list_under(observed_prefix):
            if isinstance(message.event, self.kind.observed_types):
                self._observe(message, message.event, is_live=False)
        self._forget_absent()
        for name, reconciler in self._reconcilers.items():
            stored = self.stream_cache.get(f"{enriched_prefix}.{name}")
            if stored is not None and stored.sequence < reconciler.publisher.last_sequence:
                stored = None  # NATS lost a later message
            event = self.kind.read_enriched(stored)
            reconciler.on_stored(event, stored.sequence if stored is not None else 0)
            reconciler.on_bus_reconnect()
        for message in self.stream_cache.list_under(enriched_prefix):
            self.stream_cache.forget(message.subject)

    def on_stream_replaced(self) -> None:
        """Mark all objects stale: their published messages are lost with the old stream."""
        for reconciler in self._reconcilers.values():
            reconciler.on_stream_replaced()

    async def close(self) -> None:
        """Cancel all tasks. The next start repeats the polls and publishes that this interrupts."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _observe(self, message: Message, event: ObservedT, *, is_live: bool) -> None:
        """Pass an observation to the reconciler of its object, or start one."""
        try:
            name = object_name_in(message.subject, self.kind.observed_prefix)
            if name in self._reconcilers:
                self._reconcilers[name].on_observed(message, event, is_live=is_live)
            else:
                self._start(name, make_observation(message, event), is_live=is_live)
            if is_live and name in self._reconcilers:
                self._reconcilers[name].publisher.record_received(message)
        except Exception:
            # Other clients write these objects: one that raises here must not block the others.
            log.exception("unexpected error, observation ignored", extra={"subject": message.subject})

    def _on_enriched(self, message: Message) -> None:
        is_last = message.sequence >= self.publisher.last_sequence_of(message.subject)
        self.publisher.record_sequence(message.subject, message.sequence)
        reconciler = self.get(object_name_in(message.subject, self.kind.enriched_prefix))
        if is_last and reconciler is not None:
            reconciler.on_stored(self.kind.read_enriched(message), message.sequence)

    def _forget_absent(self) -> None:
        """Forget each object that the complete stream does not have: its end was not observed."""
        if not self.stream_cache.is_complete:
            return
        messages = self.stream_cache.list_under(self.kind.observed_prefix)
        present = {object_name_in(each.subject, self.kind.observed_prefix) for each in messages}
        for name in self._reconcilers.keys() - present:
            self._tasks[name].cancel()
            self._forget(name)

    def _start(self, name: str, observation: Observation[ObservedT], *, is_live: bool) -> None:
        publisher = EnrichmentPublisher(self.kind, name, self.publisher, self.dependencies.bus, self.clock)
        reconciler = self.create(name, observation, self._get_publication(name), publisher)
        if reconciler is not None:
            self._reconcilers[name] = reconciler
            task_name = f"{self.kind.log_field} {name}"
            self._tasks[name] = asyncio.create_task(self._run(name, reconciler), name=task_name)
            reconciler.on_started(is_live=is_live)

    def _get_publication(self, name: str) -> Publication[EnrichedT]:
        """Return the publication of a new object by the stream, to be republished when it is old."""
        stored = self.stream_cache.get(f"{self.kind.enriched_prefix}.{name}")
        age = max(0.0, (self.clock.now() - stored.published_at).total_seconds()) if stored else 0.0
        republish_in = max(0.0, self.clock.intervals.republish - age)
        event = self.kind.read_enriched(stored)
        return Publication(event=event, republish_at=self.clock.monotonic() + republish_in)

    async def _run(self, name: str, reconciler: ReconcilerT) -> None:
        await supervise(reconciler.run, self.dependencies.random, **{self.kind.log_field: name})
        self._forget(name)

    def _forget(self, name: str) -> None:
        del self._tasks[name]
        self._reconcilers.pop(name).on_forgotten()


async def supervise(run: Callable[[], Awaitable[None]], jitter: random.Random, **fields: str) -> None:
    """Run until `run` returns; restart it with back-off if it raises. `fields` name the object in logs."""
    failures = 0
    while True:
        try:
            return await run()
        except Exception:
            log.exception("reconciler failed, will restart", extra=fields)
            failures += 1
        await asyncio.sleep(backoff_seconds(failures, jitter.random()))
