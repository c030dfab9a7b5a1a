"""One term of leadership, from winning it to losing it; nothing but what the stream holds outlives it."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, NoReturn

from libs.common.bus import BusError, NoStream
from libs.common.delivery import TemporaryError
from libs.common.node import Node
from libs.common.process.service import Parts
from libs.common.publisher import OrderedPublisher
from libs.common.signing_request import SigningRequest
from services.watcher.held import HeldFlow
from services.watcher.kinds import CSR, NODE, Kind, Seen
from services.watcher.leader import Candidacy
from services.watcher.queues import expected_durables
from services.watcher.reign import Reign
from services.watcher.rounds import Rounds
from services.watcher.settings import WatcherSettings
from services.watcher.watch_objects import SourceMaker, Sources
from services.watcher.watch_queues import WatchQueues, WatchUsable
from services.watcher.watched import Watched

log = logging.getLogger(__name__)

_RESYNC_STEPS: Final = 100  # of a round, at least
_RESYNC_STEP_SECONDS: Final = 1.0


class Term:
    """Watches Nodes and CSRs, says what is news of them, keeps the stream complete, says that it leads."""

    def __init__(
        self,
        parts: Parts,
        settings: WatcherSettings,
        *,
        candidacy: Candidacy,
        lease_transitions: int,
        held: HeldFlow,
        publisher: OrderedPublisher,
        sources: Sources,
    ) -> None:
        """`held` must be followed, and call `wake` when it changes."""
        self._parts = parts
        self._in_flight = settings.in_flight
        self._resync_seconds = settings.resync_seconds
        self._candidacy = candidacy
        self._held = held
        self._publisher = publisher
        self._reign = Reign(held, identity=parts.identity, lease_transitions=lease_transitions)
        self._nodes = self._watched(NODE, sources.nodes)
        self._requests = self._watched(CSR, sources.requests) if settings.watches_requests else None
        self._rounds = Rounds(
            parts,
            candidacy=candidacy,
            reign=self._reign,
            held=held,
            nodes=self._nodes,
            requests=self._requests,
            publisher=publisher,
            leading_seconds=settings.renew_deadline_seconds,
        )
        self._queues = WatchQueues(
            parts.bus,
            expected=expected_durables(settings.controllers),
            clock=parts.monotonic,
            on_look=self._rounds.looked,
        )
        self._usable = WatchUsable(lambda: self._nodes.objects, parts.now)
        self._renewed = asyncio.Event()

    def _watched(self, kind: Kind[Seen], source: SourceMaker[Seen]) -> Watched[Seen]:
        return Watched(
            kind,
            source,
            self._parts,
            held=self._held,
            publisher=self._publisher,
            in_flight=self._in_flight,
            on_change=self.wake,
            on_rewound=self._on_rewound,
            on_no_stream=self._on_no_stream,
            on_full=self._on_full,
        )

    def problems(self) -> tuple[str, ...]:
        """Why the stream is not all that Kubernetes holds, in words for /readyz."""
        parts = (self._held, self._rounds, *self._kinds())
        return tuple(problem for part in parts for problem in part.problems())

    def _kinds(self) -> Iterable[Watched[Node] | Watched[SigningRequest]]:
        return (self._nodes,) if self._requests is None else (self._nodes, self._requests)

    async def run(self) -> NoReturn:
        """Lead until cancelled. Raises LeadershipLost, in a group with whatever else went wrong."""
        async with asyncio.TaskGroup() as tasks:
            for kind in self._kinds():
                for running in kind.running():
                    tasks.create_task(running)
            tasks.create_task(self._rounds.run())
            tasks.create_task(self._resync())
            tasks.create_task(self._say_leading())
            tasks.create_task(self._look_at_queues())
            tasks.create_task(self._usable.run())
            await self._candidacy.keep(self._renewed.set)
        raise AssertionError("a leader leads until it is cancelled or loses the lead")

    def wake(self) -> None:
        """What the cluster or the stream holds has changed, or is no longer known."""
        self._rounds.wake()
        self._usable.changed()

    def publish_void_again(self, subject: str) -> None:
        """A former leader has published on this subject, and followers ignore it.

        If we are the former leader, another one publishes it, or our next round does.
        """
        if self._reign.stands:
            for kind in self._kinds():
                kind.publish_void_again(subject)

    def _on_no_stream(self) -> None:
        self._rounds.begin_again()

    def _on_full(self) -> None:
        self._rounds.grow()

    def _on_rewound(self) -> None:
        log.warning("the API server's resourceVersions went back (a restored etcd?): a new epoch begins")
        self._reign.rewound()
        self._rounds.wake()

    async def _say_leading(self) -> NoReturn:
        """At each renewal and only then: who hears nothing knows that the Lease was not renewed."""
        while True:
            await self._renewed.wait()
            self._renewed.clear()
            try:
                await self._rounds.say_leading()
            except NoStream:
                self._rounds.begin_again()
            except (BusError, TemporaryError) as error:
                log.info("who leads cannot be said this time", extra={"error": str(error)})

    async def _look_at_queues(self) -> NoReturn:
        await self._rounds.first.wait()  # before, there may be no stream to look at
        await self._queues.run()

    async def _resync(self) -> NoReturn:
        await self._rounds.first.wait()
        while True:
            began, reached = self._parts.monotonic(), 0.0
            while reached < 1.0:
                await asyncio.sleep(min(_RESYNC_STEP_SECONDS, self._resync_seconds / _RESYNC_STEPS))
                step = min(1.0, (self._parts.monotonic() - began) / self._resync_seconds)
                for kind in self._kinds():
                    kind.say_again(since=reached, until=step)
                reached = step
            self._rounds.verify()
