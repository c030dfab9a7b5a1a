"""Runs one reconciler per object that the watcher observes, as a task until the object is forgotten."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from libs.common.bus.delivery import backoff_seconds
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.subjects import object_name_in
from services.metadata.core.object_state import Observation, ObservedT
from services.metadata.enrichment_publisher import EnrichmentPublisher

log = logging.getLogger(__name__)

ObservedT_contra = TypeVar("ObservedT_contra", contravariant=True)


class ObjectState(Protocol):
    """The state of one object, whatever its kind."""

    @property
    def observation(self) -> Observation[Any]: ...


class Reconciler(Protocol[ObservedT_contra]):
    """Owns the state of one object and takes its steps one by one."""

    @property
    def state(self) -> ObjectState: ...
    @property
    def publisher(self) -> EnrichmentPublisher[Any]: ...

    async def run(self) -> None:
        """Run until the object needs no more messages."""

    def on_started(self) -> None:
        """Tell others about the object: it is in the pool now."""

    def on_observed(self, message: Message, event: ObservedT_contra, *, is_live: bool) -> None:
        """Apply a newer observation of the watcher."""

    def on_stream_replaced(self) -> None:
        """Forget the published message, which is lost, and wait until the stream has the object."""

    def on_bus_reconnect(self) -> None:
        """Publish within a second what the bus rejected before."""

    def on_forgotten(self) -> None:
        """Release what others know about the object: it left the pool."""


ReconcilerT = TypeVar("ReconcilerT", bound=Reconciler[Any])
# Returns the reconciler of a new object by its name and observation, and whether that is live; None if the
# object needs none.
Create = Callable[[str, Message, ObservedT, bool], ReconcilerT | None]


class ReconcilerPool(Mapping[str, ReconcilerT], Generic[ObservedT, ReconcilerT]):
    """The reconcilers of one kind, by object name. A defect in one does not affect the others."""

    def __init__(
        self,
        kind: str,
        prefix: str,
        types: tuple[type[ObservedT], ...],
        *,
        create: Create[ObservedT, ReconcilerT],
        stream_cache: StreamCache,
        jitter: random.Random,
    ) -> None:
        """`kind` is the log field with the object name, `prefix` the part of the subject before it."""
        self._kind = kind
        self._prefix = prefix
        self._types = types
        self._create = create
        self._stream_cache = stream_cache
        self._jitter = jitter
        self._reconcilers: dict[str, ReconcilerT] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __getitem__(self, name: str) -> ReconcilerT:
        return self._reconcilers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._reconcilers)

    def __len__(self) -> int:
        return len(self._reconcilers)

    def observe(self, message: Message, event: ObservedT, *, is_live: bool = True) -> None:
        """Pass an observation to the reconciler of its object, or start one."""
        try:
            name = object_name_in(message.subject, self._prefix)
            if name in self._reconcilers:
                self._reconcilers[name].on_observed(message, event, is_live=is_live)
            elif (reconciler := self._create(name, message, event, is_live)) is not None:
                self._start(name, reconciler)
            if is_live and name in self._reconcilers:
                self._reconcilers[name].publisher.record_received(message)
        except Exception:
            # Other clients write these objects: one that raises here must not block the others.
            log.exception("unexpected error, observation ignored", extra={"subject": message.subject})

    def on_caught_up(self) -> None:
        """Compare all objects with the stream cache, which now has all messages of the stream."""
        for name, reconciler in self._reconcilers.items():
            message = self._stream_cache.get(f"{self._prefix}.{name}")
            if message is None or message.sequence < reconciler.state.observation.sequence:
                reconciler.on_stream_replaced()  # NATS lost the observation, and reuses the lost sequences
        for message in self._stream_cache.list_under(self._prefix):
            if isinstance(message.event, self._types):
                self.observe(message, message.event, is_live=False)
        self.forget_absent()
        for reconciler in self._reconcilers.values():
            reconciler.on_bus_reconnect()

    def on_stream_replaced(self) -> None:
        """Mark all objects stale: their published messages are lost with the old stream."""
        for reconciler in self._reconcilers.values():
            reconciler.on_stream_replaced()

    def forget_absent(self) -> None:
        """Forget each object that the complete stream does not have: its end was not observed."""
        if not self._stream_cache.is_complete:
            return
        messages = self._stream_cache.list_under(self._prefix)
        present = {object_name_in(each.subject, self._prefix) for each in messages}
        for name in self._reconcilers.keys() - present:
            self._tasks[name].cancel()
            self._forget(name)

    async def close(self) -> None:
        """Cancel all tasks. The next start repeats the polls and publishes that this interrupts."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _start(self, name: str, reconciler: ReconcilerT) -> None:
        self._reconcilers[name] = reconciler
        self._tasks[name] = asyncio.create_task(self._run(name, reconciler), name=f"{self._kind} {name}")
        reconciler.on_started()

    async def _run(self, name: str, reconciler: ReconcilerT) -> None:
        await supervise(reconciler.run, self._jitter, **{self._kind: name})
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
