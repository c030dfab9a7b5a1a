"""Follows observed Nodes and CSRs, polls machines and publishes what they report."""

import asyncio

from libs.common.bus.flow import follow_flow
from libs.common.bus.ordered_publisher import OrderedPublisher
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import SnapshotComplete
from libs.common.contract.services import METADATA
from libs.common.contract.subjects import NETWORKS, is_csr_subject, is_node_subject, is_service_subject
from libs.common.service.service import Dependencies, ServiceDefinition
from services.metadata.clock import Clock
from services.metadata.cluster_networks_poller import ClusterNetworksPoller
from services.metadata.core.object_state import PollIntervals
from services.metadata.machines.dial_back import DialBackCache
from services.metadata.machines.query_machine import QuerySlots
from services.metadata.machines.talos_client import TalosClient, open_talos
from services.metadata.node_controller import NodeController
from services.metadata.reconciler_pool import supervise
from services.metadata.request_controller import RequestController
from services.metadata.settings import MetadataSettings


class MetadataService:
    """One replica of metadata. A second replica does no harm, because publishing is ordered."""

    spec = METADATA

    def __init__(
        self, dependencies: Dependencies, settings: MetadataSettings, *, talos: TalosClient | None = None
    ) -> None:
        self._bus = dependencies.bus
        self._without_talos = settings.without_talos
        self._publishes_networks = settings.publishes_networks
        self._talos = talos or open_talos(dependencies, settings)
        self._random = dependencies.random
        self._stream_cache = StreamCache(
            clock=dependencies.monotonic,
            should_keep=self._should_keep,
            on_message=self._on_message,
            on_stream_replaced=self._on_stream_replaced,
            on_caught_up=self._on_caught_up,
        )
        self._publisher = OrderedPublisher(dependencies.bus)
        intervals = PollIntervals(
            poll=settings.node_status_update_frequency_seconds,
            watched_poll=settings.talos_resync_seconds,
            republish=settings.republish_interval_seconds,
        )
        clock, deadline_seconds = Clock(dependencies, intervals), settings.query_timeout_seconds
        slots = QuerySlots(settings.max_concurrent_queries)
        self._node_controller = NodeController(
            self._stream_cache,
            self._publisher,
            dependencies,
            settings,
            clock=clock,
            slots=slots,
            talos=self._talos,
        )
        self._networks_poller = ClusterNetworksPoller(
            self._stream_cache,
            self._publisher,
            clock,
            talos=self._talos,
            deadline_seconds=deadline_seconds,
        )
        self._dial_backs = DialBackCache(
            self._talos, slots, deadline_seconds=deadline_seconds, monotonic=dependencies.monotonic
        )
        self._request_controller = RequestController(
            self._stream_cache,
            self._publisher,
            dependencies,
            clock=clock,
            dial_backs=self._dial_backs,
            nodes=self._node_controller.nodes,
            without_talos=settings.without_talos,
        )
        self._node_controller.nodes.set_listener(self._request_controller.on_node_changed)

    async def run(self) -> None:
        """Run until cancelled. NATS and Talos may be down at the start or later: metadata waits for both."""
        try:
            async with asyncio.TaskGroup() as group:
                if not self._without_talos:
                    group.create_task(self._node_controller.run())
                    run_checks = self._request_controller.run
                    group.create_task(supervise(run_checks, self._random, task="contested addresses"))
                if self._publishes_networks:
                    group.create_task(supervise(self._networks_poller.run, self._random, task="networks"))
                group.create_task(
                    follow_flow(self._bus, METADATA.service, self._stream_cache, exclude=self._is_irrelevant)
                )
        finally:
            await self._request_controller.close()
            await self._dial_backs.close()
            await self._node_controller.close()
            await self._talos.close()

    def problems(self) -> tuple[str, ...]:
        """Return why this replica is not ready: the stream is not followed, or no machine can be queried."""
        talos = "" if self._without_talos else self._talos.problem()
        return (*self._stream_cache.problems(), *([f"cannot query Talos: {talos}"] if talos else []))

    def _is_irrelevant(self, subject: str) -> bool:
        return is_service_subject(subject) or (self._without_talos and is_node_subject(subject))

    def _on_message(self, message: Message) -> None:
        if is_csr_subject(message.subject):
            self._request_controller.on_message(message)
            return
        if message.subject == NETWORKS:
            self._publisher.record_sequence(message.subject, message.sequence)
            return
        self._node_controller.on_message(message)
        if isinstance(message.event, SnapshotComplete):
            self._request_controller.on_message(message)

    def _should_keep(self, message: Message) -> bool:
        controller = self._request_controller if is_csr_subject(message.subject) else self._node_controller
        return controller.should_keep(message)

    def _on_caught_up(self) -> None:
        self._node_controller.reconcilers.on_caught_up()
        self._request_controller.on_caught_up()
        self._networks_poller.on_caught_up()

    def _on_stream_replaced(self) -> None:
        self._publisher.forget_all()
        self._node_controller.reconcilers.on_stream_replaced()
        self._request_controller.on_stream_replaced()


METADATA_DEFINITION = ServiceDefinition(spec=METADATA, settings=MetadataSettings, build=MetadataService)
