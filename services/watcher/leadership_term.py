"""Runs one leadership term, from election to loss; only the contents of the stream outlive it."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, NoReturn

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.ordered_publisher import OrderedPublisher
from libs.common.bus.protocol import BusError, NoStream
from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.subjects import SNAPSHOT
from libs.common.service.leader_elector import LeaderElector
from libs.common.service.service import Dependencies
from services.watcher.informer import ObjectSourceFactory, ObjectSources
from services.watcher.kind_controller import KindController
from services.watcher.kinds import CSR, NODE, Kind, ObjectT
from services.watcher.leader_epoch import LeaderEpoch
from services.watcher.published_state import PublishedState
from services.watcher.resync import Resync
from services.watcher.service_cidr_informer import ServiceCidrInformer
from services.watcher.settings import WatcherSettings
from services.watcher.stall_detector import select_expected_durables
from services.watcher.stats_collectors import NodeStatsCollector, StreamStatsCollector

log = logging.getLogger(__name__)

_REPUBLISH_STEPS: Final = 100  # per resync period; each reads the whole store


class LeadershipTerm:
    """Watches Nodes, CSRs and ServiceCIDRs, publishes changes, keeps the stream complete and leads."""

    def __init__(
        self,
        dependencies: Dependencies,
        settings: WatcherSettings,
        *,
        elector: LeaderElector,
        lease_transitions: int,
        published: PublishedState,
        publisher: OrderedPublisher,
        sources: ObjectSources,
    ) -> None:
        """`published` must follow the stream and call `wake` when it changes."""
        self._dependencies = dependencies
        self._in_flight = settings.in_flight
        self._republish_seconds = settings.republish_seconds
        self._elector = elector
        self._published = published
        self._publisher = publisher
        self._leader_epoch = LeaderEpoch(
            published,
            identity=dependencies.identity,
            has_lease=settings.uses_lease,
            lease_transitions=lease_transitions,
        )
        self._nodes = self._build_controller(NODE, sources.nodes)
        self._requests = self._build_controller(CSR, sources.requests) if settings.watches_requests else None
        self._service_cidrs = ServiceCidrInformer(sources.service_cidrs, on_change=self.wake)
        self._resync = Resync(
            dependencies,
            elector=elector,
            leader_epoch=self._leader_epoch,
            published=published,
            nodes=self._nodes,
            requests=self._requests,
            service_cidrs=self._service_cidrs,
            publisher=publisher,
            heartbeat_ttl_seconds=settings.renew_deadline_seconds,
        )
        self._stream_stats = StreamStatsCollector(
            dependencies.bus,
            expected_durables=select_expected_durables(settings.controllers),
            clock=dependencies.monotonic,
            on_stats=self._resync.on_stats,
        )
        self._node_stats = NodeStatsCollector(lambda: self._nodes.objects, dependencies.now)

    def _build_controller(
        self, kind: Kind[ObjectT], source: ObjectSourceFactory[ObjectT]
    ) -> KindController[ObjectT]:
        return KindController(
            kind,
            source,
            self._dependencies,
            published=self._published,
            publisher=self._publisher,
            in_flight=self._in_flight,
            on_change=self.wake,
            on_rewound=self._on_rewound,
            on_no_stream=self._on_no_stream,
            on_full=self._on_full,
        )

    def problems(self) -> tuple[str, ...]:
        """Return why the stream may differ from Kubernetes, in words for /readyz."""
        return (
            *self._published.problems(),
            *self._resync.problems(),
            *(problem for controller in self._controllers() for problem in controller.problems()),
            *self._service_cidrs.problems(),
        )

    def _controllers(self) -> Iterable[KindController[Node] | KindController[SigningRequest]]:
        return (self._nodes,) if self._requests is None else (self._nodes, self._requests)

    async def run(self) -> None:
        """Lead until cancelled. Raises an exception group with LeadershipLost and any other errors."""
        async with asyncio.TaskGroup() as tasks:
            for kind in self._controllers():
                for running in kind.coroutines():
                    tasks.create_task(running)
            tasks.create_task(self._service_cidrs.run())
            tasks.create_task(self._resync.run())
            tasks.create_task(self._republish_periodically())
            tasks.create_task(self._publish_heartbeats())
            tasks.create_task(self._collect_stream_stats())
            tasks.create_task(self._node_stats.run())

    def wake(self) -> None:
        """Reevaluate after a change, or a loss, of the known state of the cluster or the stream."""
        self._resync.wake()
        self._node_stats.mark_changed()

    def republish_fenced(self, subject: str) -> None:
        """Publish an object or the snapshot again after a message on this subject that followers ignore.

        If this watcher is the former leader, the new leader publishes it, or this watcher's next round does.
        """
        if not self._leader_epoch.is_current:
            return
        if subject == SNAPSHOT:
            self._resync.request_verification()
        else:
            for kind in self._controllers():
                kind.republish_fenced(subject)

    def _on_no_stream(self) -> None:
        self._resync.restart()

    def _on_full(self) -> None:
        self._resync.request_growth()

    def _on_rewound(self) -> None:
        log.warning("resourceVersions went back (restored etcd?), starting a new epoch")
        self._leader_epoch.mark_rewound()
        self._resync.wake()

    async def _publish_heartbeats(self) -> NoReturn:
        """Publish a heartbeat at each renewal only: a missing heartbeat shows that the renewal failed."""
        while True:
            await self._elector.renewed.wait()
            self._elector.renewed.clear()
            try:
                await self._resync.publish_heartbeat()
            except NoStream:
                self._resync.restart()
            except (BusError, TemporaryError) as error:
                log.info("cannot publish Leading", extra={"error": str(error)})

    async def _collect_stream_stats(self) -> NoReturn:
        await self._resync.first_completed.wait()  # the stream may not exist earlier
        await self._stream_stats.run()

    async def _republish_periodically(self) -> NoReturn:
        await self._resync.first_completed.wait()
        while True:
            began, reached = self._dependencies.monotonic(), 0.0
            while reached < 1.0:
                await asyncio.sleep(self._republish_seconds / _REPUBLISH_STEPS)
                step = min(1.0, (self._dependencies.monotonic() - began) / self._republish_seconds)
                for kind in self._controllers():
                    kind.republish(since=reached, until=step)
                reached = step
            self._resync.request_verification()
