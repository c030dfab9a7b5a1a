"""One term of leadership, from winning it to losing it; nothing but what the stream holds outlives it."""

import asyncio
import logging
from collections.abc import Collection
from typing import Final, NoReturn

from libs.common.bus import BusError, NoStream
from libs.common.delivery import TemporaryError
from libs.common.process.service import Parts
from libs.common.publisher import OrderedPublisher
from services.watcher.cluster import Cluster
from services.watcher.held import HeldFlow
from services.watcher.leader import Candidacy
from services.watcher.publish_nodes import NodePublisher
from services.watcher.reign import Reign
from services.watcher.resync import due
from services.watcher.rounds import Rounds
from services.watcher.settings import WatcherSettings
from services.watcher.watch_nodes import NodeSourceMaker, NodeWatch

log = logging.getLogger(__name__)

_RESYNC_STEPS: Final = 100  # of a round, at least
_RESYNC_STEP_SECONDS: Final = 1.0


class Term:
    """Watches Nodes, says what is news of them, keeps the stream complete, and says that it leads."""

    def __init__(
        self,
        parts: Parts,
        settings: WatcherSettings,
        *,
        candidacy: Candidacy,
        lease_transitions: int,
        held: HeldFlow,
        publisher: OrderedPublisher,
        source: NodeSourceMaker,
    ) -> None:
        """`held` must be followed, and call `wake` when it changes."""
        self._parts = parts
        self._resync_seconds = settings.resync_seconds
        self._candidacy = candidacy
        self._held = held
        self._cluster = Cluster()
        self._reign = Reign(held, identity=parts.identity, lease_transitions=lease_transitions)
        self._nodes = self._node_publisher(publisher, settings)
        self._rounds = self._rounds_of(publisher, settings)
        self._watch = NodeWatch(
            source, self._cluster, now=parts.now, on_rewound=self._on_rewound, on_news=self._on_news
        )
        self._renewed = asyncio.Event()

    def _node_publisher(self, publisher: OrderedPublisher, settings: WatcherSettings) -> NodePublisher:
        return NodePublisher(
            cluster=self._cluster,
            held=self._held,
            publisher=publisher,
            in_flight=settings.in_flight,
            now=self._parts.now,
            jitter=self._parts.random.random,
            on_settled=self.wake,
            on_no_stream=self._on_no_stream,
        )

    def _rounds_of(self, publisher: OrderedPublisher, settings: WatcherSettings) -> Rounds:
        return Rounds(
            self._parts,
            candidacy=self._candidacy,
            reign=self._reign,
            cluster=self._cluster,
            held=self._held,
            nodes=self._nodes,
            publisher=publisher,
            leading_seconds=settings.renew_deadline_seconds,
        )

    def problems(self) -> tuple[str, ...]:
        """Why the stream is not all that Kubernetes holds, in words for /readyz."""
        parts = (self._watch, self._held, self._rounds, self._nodes)
        return tuple(problem for part in parts for problem in part.problems())

    async def run(self) -> NoReturn:
        """Lead until cancelled. Raises LeadershipLost, in a group with whatever else went wrong."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._nodes.run())
            tasks.create_task(self._watch.run())
            tasks.create_task(self._rounds.run())
            tasks.create_task(self._resync())
            tasks.create_task(self._say_leading())
            await self._candidacy.keep(self._renewed.set)
        raise AssertionError("a leader leads until it is cancelled or loses the lead")

    def wake(self) -> None:
        """What the stream holds has changed, or is no longer known."""
        self._rounds.wake()

    def _on_news(self, names: Collection[str]) -> None:
        self._nodes.say(names)
        self._rounds.wake()  # the first list, or too many nodes for the stream

    def _on_no_stream(self) -> None:
        self._rounds.begin_again()

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

    async def _resync(self) -> NoReturn:
        await self._rounds.first.wait()
        while True:
            began, reached = self._parts.monotonic(), 0.0
            while reached < 1.0:
                await asyncio.sleep(min(_RESYNC_STEP_SECONDS, self._resync_seconds / _RESYNC_STEPS))
                step = min(1.0, (self._parts.monotonic() - began) / self._resync_seconds)
                names = self._cluster.names_by_uid()
                self._nodes.say_again([names[uid] for uid in due(names, since=reached, until=step)])
                reached = step
            self._rounds.verify()
