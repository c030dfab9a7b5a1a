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
    CsrGone,
    CsrObserved,
    EnrichedCsr,
    EnrichedNode,
    ObservedCsr,
    ObservedNode,
)
from libs.common.contract.services import METADATA
from libs.common.contract.subjects import NETWORKS, is_node_subject, is_service_subject
from libs.common.observability import metrics
from libs.common.service.service import Dependencies, ServiceDefinition, run_every
from libs.common.settings.cloud_config_reloader import CloudConfigReloader
from services.metadata.clock import Clock
from services.metadata.cluster_networks_poller import ClusterNetworksPoller
from services.metadata.core import node_state, request_state
from services.metadata.core.node_state import NodeState
from services.metadata.core.object_state import Observation, PollIntervals, Publication
from services.metadata.core.outage_detector import OutageDetector
from services.metadata.enrichment_publisher import CSRS, NODES, EnrichmentPublisher
from services.metadata.machines.dial_back import DialBackCache
from services.metadata.machines.machine_watcher import MachineWatcher
from services.metadata.machines.query_machine import QuerySlots
from services.metadata.machines.replacement_detector import ReplacementDetector
from services.metadata.machines.talos_client import TalosClient, open_talos
from services.metadata.node_registry import NodeRegistry
from services.metadata.on_csr_observed import RequestIndex, RequestReconciler
from services.metadata.on_node_observed import NodeReconciler
from services.metadata.poll_requirements import PollRequirements
from services.metadata.reconciler_pool import ReconcilerPool, supervise
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
        self._clock = Clock(dependencies.monotonic, dependencies.now, dependencies.random.random, intervals)
        deadline_seconds = settings.query_timeout_seconds
        self._slots = QuerySlots(settings.max_concurrent_queries)
        # Nodes and certificate requests.
        self._nodes = ReconcilerPool[ObservedNode, EnrichedNode, NodeReconciler](
            NODES,
            self._create_node,
            stream_cache=self._stream_cache,
            publisher=self._publisher,
            clock=self._clock,
            dependencies=dependencies,
        )
        self._registry = NodeRegistry(self._nodes, self._stream_cache)
        self._requests = ReconcilerPool[ObservedCsr, EnrichedCsr, RequestReconciler](
            CSRS,
            self._create_request,
            stream_cache=self._stream_cache,
            publisher=self._publisher,
            clock=self._clock,
            dependencies=dependencies,
        )
        self._request_index = RequestIndex(self._registry)
        self._registry.notify = self._request_index.on_node_changed
        # Machines.
        self._requirements = PollRequirements(settings)
        self._outage = OutageDetector()
        self._watcher = MachineWatcher(
            self._talos,
            self._registry,
            limit=settings.watched_machines,
            quiet_period_seconds=settings.watches_opened_after_seconds,
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
        self._dial_backs = DialBackCache(
            self._talos, self._slots, deadline_seconds=deadline_seconds, monotonic=dependencies.monotonic
        )
        # The cluster's networks.
        self._networks_poller = ClusterNetworksPoller(
            self._stream_cache,
            self._publisher,
            self._clock,
            talos=self._talos,
            deadline_seconds=deadline_seconds,
        )

    async def run(self) -> None:
        """Run until cancelled. NATS and Talos may be down at the start or later: metadata waits for both."""
        settings = self._settings
        try:
            async with asyncio.TaskGroup() as group:
                if not settings.without_talos:
                    group.create_task(run_every(settings.probe_seconds, self._probe_machine))
                    run_checks = self._request_index.run
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
            await self._requests.close()
            await self._dial_backs.close()
            await self._nodes.close()
            await self._watcher.close()
            await self._replacements.close()
            await self._talos.close()

    def problems(self) -> tuple[str, ...]:
        """Return why this replica is not ready: the stream is not followed, or no machine can be queried."""
        talos = "" if self._settings.without_talos else self._talos.problem()
        return (*self._stream_cache.problems(), *([f"cannot query Talos: {talos}"] if talos else []))

    # ---- messages of the flow

    def _is_irrelevant(self, subject: str) -> bool:
        return is_service_subject(subject) or (self._settings.without_talos and is_node_subject(subject))

    def _should_keep(self, message: Message) -> bool:
        """Return False for messages that are in the states of the reconcilers, or that none of them needs."""
        match message.event:
            case CsrObserved(request=request):
                return request_state.needs_attestation(request)
            case event if isinstance(event, NODES.enriched_types + CSRS.enriched_types):
                return self._stream_cache.is_replaying
        return True

    def _on_message(self, message: Message) -> None:
        """Pass on a message, kept or not."""
        self._nodes.on_message(message)
        self._requests.on_message(message)
        if message.subject == NETWORKS:
            self._publisher.record_sequence(message.subject, message.sequence)

    def _on_caught_up(self) -> None:
        self._nodes.on_caught_up()
        self._requests.on_caught_up()
        self._networks_poller.on_caught_up()

    def _on_stream_replaced(self) -> None:
        self._publisher.forget_all()
        self._nodes.on_stream_replaced()
        self._requests.on_stream_replaced()

    # ---- Nodes and requests

    def _create_node(
        self,
        name: str,
        observation: Observation[ObservedNode],
        stored: Publication[EnrichedNode],
        publisher: EnrichmentPublisher[EnrichedNode],
    ) -> NodeReconciler:
        now, prefer_ipv6 = self._clock.monotonic(), self._requirements.prefer_ipv6
        return NodeReconciler(
            name=name,
            state=node_state.create_state(observation, stored, now=now, prefer_ipv6=prefer_ipv6),
            clock=self._clock,
            publisher=publisher,
            nodes=self._registry,
            outage=self._outage,
            requirements=self._requirements,
            watcher=self._watcher,
            talos=self._talos,
            slots=self._slots,
            deadline_seconds=self._settings.query_timeout_seconds,
            replacements=self._replacements,
        )

    def _create_request(
        self,
        name: str,
        observation: Observation[ObservedCsr],
        stored: Publication[EnrichedCsr],
        publisher: EnrichmentPublisher[EnrichedCsr],
    ) -> RequestReconciler | None:
        event = observation.event
        if isinstance(event, CsrObserved) and not request_state.needs_attestation(event.request):
            return None
        if isinstance(event, CsrGone) and not publisher.last_sequence:
            return None  # no message about it was published
        return RequestReconciler(
            name=name,
            state=request_state.create_state(observation, stored, now=self._clock.monotonic()),
            clock=self._clock,
            dial_backs=self._dial_backs,
            publisher=publisher,
            nodes=self._registry,
            requests=self._request_index,
            without_talos=self._settings.without_talos,
        )

    def _probe_machine(self) -> None:
        """Poll one machine during an outage: the back-off of each Node would hide the end for a minute."""
        self._registry.expedite_poll(self._outage.select_probe())
        expires = self._talos.certificate_expires_at()
        metrics.TALOS_CERTIFICATE_EXPIRY.set(expires.timestamp() if expires else 0)

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
