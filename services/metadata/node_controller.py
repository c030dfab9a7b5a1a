"""Runs one reconciler per Node of the stream until the Node is gone."""

import asyncio
import logging
from functools import partial
from typing import Final

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
from libs.common.contract.subjects import ENRICHED_NODE, OBSERVED_NODE
from libs.common.service.service import Dependencies
from libs.common.settings.cloud_config_reloader import CloudConfigReloader
from services.metadata.clock import Clock
from services.metadata.core.node_state import NodeState, create_state
from services.metadata.core.object_state import make_observation
from services.metadata.enrichment_publisher import EnrichedMessages
from services.metadata.machines.machine_watcher import MachineWatcher
from services.metadata.machines.query_machine import QuerySlots
from services.metadata.machines.replacement_detector import ReplacementDetector
from services.metadata.machines.talos_client import TalosClient
from services.metadata.node_registry import NodeRegistry
from services.metadata.on_node_observed import NodeReconciler
from services.metadata.outage_prober import OutageProber
from services.metadata.poll_requirements import PollRequirements
from services.metadata.reconciler_pool import ReconcilerPool
from services.metadata.settings import MetadataSettings

log = logging.getLogger(__name__)

_CONFIG_POLL_SPREAD_SECONDS: Final = 6.0  # spread: a changed rule may need a poll of every machine


class NodeController:
    """Passes stream messages to the node reconcilers and has machines polled, watched and probed."""

    def __init__(
        self,
        stream_cache: StreamCache,
        publisher: OrderedPublisher,
        dependencies: Dependencies,
        settings: MetadataSettings,
        *,
        clock: Clock,
        slots: QuerySlots,
        talos: TalosClient,
    ) -> None:
        self._stream_cache = stream_cache
        self._settings = settings
        self._clock = clock
        self._talos = talos
        self._slots = slots
        self.reconcilers = ReconcilerPool[ObservedNode, NodeReconciler](
            "node",
            OBSERVED_NODE,
            (NodeObserved, NodeGone),
            create=self._create,
            stream_cache=stream_cache,
            jitter=dependencies.random,
        )
        self.nodes = NodeRegistry(self.reconcilers, stream_cache)
        types = (NodeEnriched, NodeUnreachable, EnrichedNodeGone)
        self._messages = EnrichedMessages[EnrichedNode](
            ENRICHED_NODE, types, stream_cache, publisher, dependencies.bus
        )
        self._requirements = PollRequirements(settings)
        self._outage = OutageProber(self.nodes, talos, clock, probe_seconds=settings.probe_seconds)
        self._watcher = MachineWatcher(
            talos,
            self.nodes,
            limit=settings.watched_machines,
            opened_after_seconds=settings.watches_opened_after_seconds,
            opened_per_second=settings.watches_opened_per_second,
            read_deadline_seconds=settings.talos_resync_seconds,
            slots=slots,
            random=dependencies.random,
        )
        self._replacements = ReplacementDetector(
            talos,
            get_reachable_nodes=self.nodes.list_reachable,
            is_enabled=settings.serves_lifecycle,
            deadline_seconds=settings.query_timeout_seconds,
            monotonic=dependencies.monotonic,
        )

    async def run(self) -> None:
        """Open watches, probe for recovery and follow the --cloud-config file until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watcher.open_queued())
            group.create_task(self._outage.run())
            if (path := self._settings.cloud_config_file) is not None:
                file = CloudConfigReloader(path, self._settings.cloud_config)
                group.create_task(file.watch(self._on_config_change))

    async def close(self) -> None:
        """Cancel all tasks."""
        await self.reconcilers.close()
        await self._replacements.close()

    def on_message(self, message: Message) -> None:
        """Handle a message about a Node, kept or not, or a SnapshotComplete."""
        is_live = not self._stream_cache.is_replaying
        match message.event:
            case NodeObserved() | NodeGone() as event if is_live:
                self.reconcilers.observe(message, event)
            case NodeEnriched() | NodeUnreachable() | EnrichedNodeGone() as event:
                self._messages.record_sequence(message)
                node = self.reconcilers.get(self._messages.name_of(message))
                if isinstance(event, NodeUnreachable) and is_live and node is not None:
                    node.apply(NodeState.contradicted)
            case SnapshotComplete() if is_live:
                self.reconcilers.forget_absent()

    def should_keep(self, message: Message) -> bool:
        """Return False for the echo of our own message: the copy would double the memory per Node."""
        event = self._messages.read(message)
        node = self.reconcilers.get(self._messages.name_of(message)) if event is not None else None
        return node is None or node.state.publication.event != event

    def _create(self, name: str, message: Message, event: ObservedNode, is_live: bool) -> NodeReconciler:
        state = create_state(
            make_observation(message, event),
            self._messages.get_publication(name, self._clock),
            now=self._clock.monotonic(),
            prefer_ipv6=self._requirements.prefer_ipv6,
        )
        return NodeReconciler(
            name=name,
            state=state,
            clock=self._clock,
            messages=self._messages,
            nodes=self.nodes,
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
        for node in self.reconcilers.values():
            node.apply(
                partial(
                    NodeState.requirements_changed,
                    needed=self._requirements.needed_parts,
                    needs_system=self._requirements.needs_system,
                    prefer_ipv6=self._requirements.prefer_ipv6,
                    within=_CONFIG_POLL_SPREAD_SECONDS * self._clock.random(),
                )
            )
