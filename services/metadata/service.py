"""Follows observed Nodes and CSRs, polls machines and publishes what they report."""

import asyncio
from functools import partial
from typing import Final

from libs.common.bus.flow import follow_flow
from libs.common.bus.ordered_publisher import OrderedPublisher
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.events import (
    EnrichedNode,
    EnrichedNodeGone,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
    ObservedNode,
    SnapshotComplete,
)
from libs.common.contract.services import METADATA
from libs.common.contract.subjects import (
    ENRICHED_NODE,
    NETWORKS,
    OBSERVED_NODE,
    is_csr_subject,
    is_node_subject,
    is_service_subject,
)
from libs.common.service.service import Dependencies, ServiceDefinition
from libs.common.settings.cloud_config_reloader import CloudConfigReloader
from services.metadata.clock import Clock
from services.metadata.cluster_networks_poller import ClusterNetworksPoller
from services.metadata.core.node_state import NodeState, create_state
from services.metadata.core.object_state import PollIntervals, make_observation
from services.metadata.enrichment_publisher import EnrichedMessages
from services.metadata.machines.dial_back import DialBackCache
from services.metadata.machines.machine_watcher import MachineWatcher
from services.metadata.machines.query_machine import QuerySlots
from services.metadata.machines.replacement_detector import ReplacementDetector
from services.metadata.machines.talos_client import TalosClient, open_talos
from services.metadata.node_registry import NodeRegistry
from services.metadata.on_node_observed import NodeReconciler
from services.metadata.outage_prober import OutageProber
from services.metadata.poll_requirements import PollRequirements
from services.metadata.reconciler_pool import ReconcilerPool, supervise
from services.metadata.request_controller import RequestController
from services.metadata.settings import MetadataSettings

_CONFIG_POLL_SPREAD_SECONDS: Final = 6.0  # spread: a changed rule may need a poll of every machine


class MetadataService:
    """One replica of metadata. A second replica does no harm, because publishing is ordered."""

    spec = METADATA

    def __init__(
        self, dependencies: Dependencies, settings: MetadataSettings, *, talos: TalosClient | None = None
    ) -> None:
        self._bus = dependencies.bus
        self._settings = settings
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
        self._clock = Clock(dependencies, intervals)
        deadline_seconds = settings.query_timeout_seconds
        self._slots = QuerySlots(settings.max_concurrent_queries)
        # Nodes.
        self._nodes = ReconcilerPool[ObservedNode, NodeReconciler](
            "node",
            OBSERVED_NODE,
            (NodeObserved, NodeGone),
            create=self._create_node,
            stream_cache=self._stream_cache,
            jitter=dependencies.random,
        )
        self._registry = NodeRegistry(self._nodes, self._stream_cache)
        self._node_messages = EnrichedMessages[EnrichedNode](
            ENRICHED_NODE,
            (NodeEnriched, NodeUnreachable, EnrichedNodeGone),
            self._stream_cache,
            self._publisher,
            dependencies.bus,
        )
        self._replayed_nodes: set[str] = set()  # whose last known message the running replay has delivered
        # Machines.
        self._requirements = PollRequirements(settings)
        self._outage = OutageProber(
            self._registry, self._talos, self._clock, probe_seconds=settings.probe_seconds
        )
        self._watcher = MachineWatcher(
            self._talos,
            self._registry,
            limit=settings.watched_machines,
            opened_after_seconds=settings.watches_opened_after_seconds,
            opened_per_second=settings.watches_opened_per_second,
            read_deadline_seconds=settings.talos_resync_seconds,
            slots=self._slots,
            random=dependencies.random,
        )
        self._replacements = ReplacementDetector(
            self._talos,
            get_reachable_nodes=self._registry.list_reachable,
            is_enabled=settings.serves_lifecycle,
            deadline_seconds=deadline_seconds,
            monotonic=dependencies.monotonic,
        )
        # The cluster's networks.
        self._networks_poller = ClusterNetworksPoller(
            self._stream_cache,
            self._publisher,
            self._clock,
            talos=self._talos,
            deadline_seconds=deadline_seconds,
        )
        # Certificate requests.
        self._dial_backs = DialBackCache(
            self._talos, self._slots, deadline_seconds=deadline_seconds, monotonic=dependencies.monotonic
        )
        self._request_controller = RequestController(
            self._stream_cache,
            self._publisher,
            dependencies,
            clock=self._clock,
            dial_backs=self._dial_backs,
            nodes=self._registry,
            without_talos=settings.without_talos,
        )
        self._registry.notify = self._request_controller.on_node_changed

    async def run(self) -> None:
        """Run until cancelled. NATS and Talos may be down at the start or later: metadata waits for both."""
        settings = self._settings
        try:
            async with asyncio.TaskGroup() as group:
                if not settings.without_talos:
                    group.create_task(self._watcher.open_queued())
                    group.create_task(self._outage.run())
                    run_checks = self._request_controller.run
                    group.create_task(supervise(run_checks, self._random, task="contested addresses"))
                    if (path := settings.cloud_config_file) is not None:
                        file = CloudConfigReloader(path, settings.cloud_config)
                        group.create_task(file.watch(self._on_config_change))
                if settings.publishes_networks:
                    group.create_task(supervise(self._networks_poller.run, self._random, task="networks"))
                group.create_task(
                    follow_flow(self._bus, METADATA.service, self._stream_cache, exclude=self._is_irrelevant)
                )
        finally:
            await self._request_controller.close()
            await self._dial_backs.close()
            await self._nodes.close()
            await self._replacements.close()
            await self._talos.close()

    def problems(self) -> tuple[str, ...]:
        """Return why this replica is not ready: the stream is not followed, or no machine can be queried."""
        talos = "" if self._settings.without_talos else self._talos.problem()
        return (*self._stream_cache.problems(), *([f"cannot query Talos: {talos}"] if talos else []))

    # ---- messages of the flow

    def _is_irrelevant(self, subject: str) -> bool:
        return is_service_subject(subject) or (self._settings.without_talos and is_node_subject(subject))

    def _on_message(self, message: Message) -> None:
        """Pass on a message, kept or not."""
        if is_csr_subject(message.subject):
            self._request_controller.on_message(message)
            return
        is_live = not self._stream_cache.is_replaying
        match message.event:
            case NodeObserved() | NodeGone() as event if is_live:
                self._nodes.observe(message, event)
            case NodeEnriched() | NodeUnreachable() | EnrichedNodeGone() as event:
                name = self._node_messages.name_of(message)
                if not is_live and message.sequence >= self._node_messages.get_last_sequence(name):
                    self._replayed_nodes.add(name)
                self._node_messages.record_sequence(message)
                node = self._nodes.get(name)
                if isinstance(event, NodeUnreachable) and is_live and node is not None:
                    node.apply(NodeState.contradicted)
            case SnapshotComplete() if is_live:
                self._nodes.forget_absent()
                self._request_controller.on_message(message)
        if message.subject == NETWORKS:
            self._publisher.record_sequence(message.subject, message.sequence)

    def _should_keep(self, message: Message) -> bool:
        """Return False for the echo of our own message about a Node, which would double its memory."""
        if is_csr_subject(message.subject):
            return self._request_controller.should_keep(message)
        event = self._node_messages.read(message)
        node = self._nodes.get(self._node_messages.name_of(message)) if event is not None else None
        return node is None or node.state.publication.event != event

    def _on_caught_up(self) -> None:
        self._nodes.on_caught_up()
        for name in self._nodes.keys() - self._replayed_nodes:
            self._nodes[name].on_message_lost()
        self._replayed_nodes.clear()
        self._request_controller.on_caught_up()
        self._networks_poller.on_caught_up()

    def _on_stream_replaced(self) -> None:
        self._publisher.forget_all()
        self._nodes.on_stream_replaced()
        self._request_controller.on_stream_replaced()

    # ---- Nodes

    def _create_node(self, name: str, message: Message, event: ObservedNode, is_live: bool) -> NodeReconciler:
        state = create_state(
            make_observation(message, event),
            self._node_messages.get_publication(name, self._clock),
            now=self._clock.monotonic(),
            prefer_ipv6=self._requirements.prefer_ipv6,
        )
        return NodeReconciler(
            name=name,
            state=state,
            clock=self._clock,
            messages=self._node_messages,
            nodes=self._registry,
            outage=self._outage,
            requirements=self._requirements,
            watcher=self._watcher,
            talos=self._talos,
            slots=self._slots,
            deadline_seconds=self._settings.query_timeout_seconds,
            replacements=self._replacements,
            is_live=is_live,
        )

    async def _on_config_change(self, config: CloudConfig | CloudConfigError) -> None:
        if not self._requirements.update(config):
            return
        for node in self._nodes.values():
            node.apply(
                partial(
                    NodeState.requirements_changed,
                    needed=self._requirements.needed_parts,
                    needs_system=self._requirements.needs_system,
                    prefer_ipv6=self._requirements.prefer_ipv6,
                    within=_CONFIG_POLL_SPREAD_SECONDS * self._clock.random(),
                )
            )


METADATA_DEFINITION = ServiceDefinition(spec=METADATA, settings=MetadataSettings, build=MetadataService)
