"""Runs one reconciler per Node of the stream, each as a task of its own until the Node is gone."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from libs.common.bus.ordered_publisher import OrderedPublisher
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.model import CloudConfig
from libs.common.cloud_config.required_resources import required_resources, required_resources_of_pools
from libs.common.contract.events import (
    EnrichedNode,
    EnrichedNodeGone,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
    SnapshotComplete,
)
from libs.common.contract.machine import MachineFault
from libs.common.contract.node import Node
from libs.common.contract.subjects import ENRICHED_NODE, OBSERVED_NODE, object_name_in
from libs.common.observability import metrics
from libs.common.service.service import Dependencies
from libs.common.settings.cloud_config_reloader import CloudConfigReloader
from libs.talos.api import Part, WatchSnapshot
from services.metadata.machine_watcher import MachineWatcher, WatchCallbacks
from services.metadata.node_state import NodeState, create_state
from services.metadata.on_node_observed import NodeCollaborators, NodeReconciler
from services.metadata.outage_detector import OutageDetector
from services.metadata.poll_schedule import PollIntervals
from services.metadata.query_machine import QuerySlots, TalosClient
from services.metadata.replacement_detector import ReplacementDetector
from services.metadata.settings import MetadataSettings
from services.metadata.supervise import supervise

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
        talos: TalosClient,
        slots: QuerySlots,
        intervals: PollIntervals,
        on_state_change: Callable[[str], None],
    ) -> None:
        """`on_state_change` gets the name of each Node whose state changed or was removed."""
        self.reconcilers: dict[str, NodeReconciler] = {}
        self._stream_cache = stream_cache
        self._publisher = publisher
        self._dependencies = dependencies
        self._settings = settings
        self._talos = talos
        self._slots = slots
        self._intervals = intervals
        self._on_state_change = on_state_change
        self._prefer_ipv6 = settings.prefer_ipv6
        self._needed_parts = self._select_needed_parts(settings.cloud_config)
        self._outage = OutageDetector()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._machine_watcher = MachineWatcher(
            talos,
            WatchCallbacks(
                on_opened=self._on_watch_opened,
                on_changed=self._on_machine_changed,
                on_ended=self._on_watch_ended,
            ),
            limit=settings.watched_machines,
            opened_after_seconds=settings.watches_opened_after_seconds,
            opened_per_second=settings.watches_opened_per_second,
            read_deadline_seconds=settings.talos_resync_seconds,
            slots=slots,
            random=dependencies.random,
        )
        self._replacements = ReplacementDetector(
            talos,
            get_reachable_nodes=self._list_reachable,
            is_enabled=settings.serves_lifecycle,
            deadline_seconds=settings.query_timeout_seconds,
            monotonic=dependencies.monotonic,
        )
        self._collaborators = self._build_collaborators()

    async def run(self) -> None:
        """Open watches, probe for recovery and follow the --cloud-config file until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._machine_watcher.open_queued())
            group.create_task(self._probe())
            if (path := self._settings.cloud_config_file) is not None:
                file = CloudConfigReloader(path, self._settings.cloud_config)
                group.create_task(file.watch(self._on_config_change))

    async def close(self) -> None:
        """Cancel all tasks. The next start repeats the polls and publishes that this interrupts."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._replacements.close()

    def get_state(self, name: str) -> NodeState | None:
        """Return the state of that Node, None if there is none."""
        return self.reconcilers[name].state if name in self.reconcilers else None

    def expedite_poll(self, name: str) -> None:
        """Poll the machine of that Node now."""
        if name in self.reconcilers:
            self.reconcilers[name].expedite_poll(0.0)

    # ---- stream messages

    def on_message(self, message: Message) -> None:
        """Handle a message about a Node, kept or not, or a SnapshotComplete."""
        match message.event:
            case NodeObserved() | NodeGone() if not self._stream_cache.is_replaying:
                self._observe(message, live=True)
            case NodeEnriched() | NodeUnreachable() | EnrichedNodeGone():
                self._publisher.record_sequence(message.subject, message.sequence)
                if isinstance(message.event, NodeUnreachable) and not self._stream_cache.is_replaying:
                    self._on_unreachable(object_name_in(message.subject, ENRICHED_NODE))
            case SnapshotComplete() if not self._stream_cache.is_replaying:
                self.forget_absent()

    def should_keep(self, message: Message) -> bool:
        """Return False for the echo of our own message: the copy would double the memory per Node."""
        event = _read_enriched(message)
        node = (
            self.reconcilers.get(object_name_in(message.subject, ENRICHED_NODE))
            if event is not None
            else None
        )
        return node is None or node.state.published != event

    def on_caught_up(self) -> None:
        """Compare all Nodes with the stream cache, which now has all messages of the stream."""
        for message in self._stream_cache.list_under(OBSERVED_NODE):
            self._observe(message)
        self.forget_absent()
        for node in self.reconcilers.values():
            node.on_bus_reconnect()

    def on_stream_replaced(self) -> None:
        """Mark all Nodes stale: their published messages are lost with the old stream."""
        for node in self.reconcilers.values():
            node.on_stream_replaced()

    def forget_absent(self) -> None:
        """Forget each Node that the complete stream does not have: its deletion was not observed."""
        if not self._stream_cache.is_complete:
            return
        for name in [n for n in self.reconcilers if self._stream_cache.get(f"{OBSERVED_NODE}.{n}") is None]:
            self._tasks[name].cancel()
            self._forget(name)

    def _observe(self, message: Message, *, live: bool = False) -> None:
        event = message.event
        assert isinstance(event, NodeObserved | NodeGone)
        try:
            name = object_name_in(message.subject, OBSERVED_NODE)
            reconciler = self.reconcilers.get(name)
            if reconciler is not None:
                reconciler.on_observed(message, event)
            else:
                self._start(name, message, event)
            if live:
                self.reconcilers[name].latency.record_received(message)
        except Exception:
            # Other clients write Nodes: a Node that raises here must not block the others.
            log.exception("an observation was not understood", extra={"subject": message.subject})

    def _start(self, name: str, message: Message, event: NodeObserved | NodeGone) -> None:
        stored = self._stream_cache.get(f"{ENRICHED_NODE}.{name}")
        age = (self._dependencies.now() - stored.published_at).total_seconds() if stored else 0.0
        state = create_state(
            message,
            event,
            _read_enriched(stored),
            republish_in=max(0.0, self._intervals.republish - max(0.0, age)),
            now=self._dependencies.monotonic(),
            prefer_ipv6=self._prefer_ipv6,
        )
        node = self.reconcilers[name] = NodeReconciler(name, state, self._collaborators)
        running = supervise(node.run, self._dependencies.random, node=name)
        self._tasks[name] = asyncio.create_task(running, name=f"node {name}")
        self._on_state_change(name)

    # ---- callbacks of the reconcilers

    def _build_collaborators(self) -> NodeCollaborators:
        return NodeCollaborators(
            talos=self._talos,
            publisher=self._publisher,
            slots=self._slots,
            intervals=self._intervals,
            get_prefer_ipv6=lambda: self._prefer_ipv6,
            get_needed_parts=lambda: self._needed_parts,
            query_timeout_seconds=self._settings.query_timeout_seconds,
            monotonic=self._dependencies.monotonic,
            now=self._dependencies.now,
            random=self._dependencies.random,
            list_all_nodes=self._list_all_nodes,
            get_stored=self._get_stored,
            detect_replacements=self._replacements.detect,
            record_sighting=self._replacements.record_sighting,
            on_polled=self._on_polled,
            on_published=self._on_published,
            on_state_change=self._on_state_change,
            watch_machine=self._machine_watcher.set_target,
            on_finished=self._forget,
        )

    def _forget(self, name: str) -> None:
        self.reconcilers.pop(name, None)
        self._tasks.pop(name, None)
        self._outage.forget(name)
        self._machine_watcher.set_target(name, "")
        self._on_state_change(name)

    def _on_published(self, name: str, event: EnrichedNode) -> None:
        """Drop the echo of our message if it arrived before the publish returned."""
        subject = f"{ENRICHED_NODE}.{name}"
        if _read_enriched(self._stream_cache.get(subject)) == event:
            self._stream_cache.forget(subject)

    def _on_unreachable(self, name: str) -> None:
        if name in self.reconcilers:
            self.reconcilers[name].on_unreachable()

    def _list_all_nodes(self) -> Iterable[Node] | None:
        if not self._stream_cache.is_complete:
            return None
        return (node for one in self.reconcilers.values() if (node := one.state.node) is not None)

    def _get_stored(self, name: str) -> EnrichedNode | None:
        subject = f"{ENRICHED_NODE}.{name}"
        message = self._stream_cache.get(subject)
        if message is None or message.sequence < self._publisher.last_sequence_of(subject):
            return None  # the echo of our last message has not arrived yet
        return _read_enriched(message)

    def _list_reachable(self) -> frozenset[str]:
        found = ((name, each.state.identity) for name, each in self.reconcilers.items())
        return frozenset(name for name, by in found if by is not None and by.method == "nodename")

    def _on_polled(self, name: str, fault: MachineFault | None, began: float) -> None:
        now = self._dependencies.monotonic()
        for other in self._outage.record_poll(name, fault, began=began, now=now):
            if other in self.reconcilers:
                self.reconcilers[other].expedite_poll(self._dependencies.random.random())

    # ---- the --cloud-config file

    def _on_config_change(self, config: CloudConfig | CloudConfigError) -> None:
        """Poll for what the changed file needs. Log one mistake of a bad file: the labeler logs them all."""
        if isinstance(config, CloudConfigError):
            fields = {"reason": "; ".join(config.mistakes[:1]), "mistakes": len(config.mistakes)}
            log.warning("the --cloud-config file is bad: what it said before stands", extra=fields)
            return
        needed, prefer_ipv6 = self._select_needed_parts(config), bool(config.prefer_ipv6)
        if (needed, prefer_ipv6) == (self._needed_parts, self._prefer_ipv6):
            return
        self._needed_parts, self._prefer_ipv6 = needed, prefer_ipv6
        fields = {"inventory": sorted(needed), "prefer_ipv6": prefer_ipv6}
        log.info("the --cloud-config file needs machines to be asked for something else", extra=fields)
        for node in self.reconcilers.values():
            node.on_rules_changed(_CONFIG_POLL_SPREAD_SECONDS * self._dependencies.random.random())

    def _select_needed_parts(self, config: CloudConfig) -> frozenset[Part]:
        needed: frozenset[Part] = required_resources(config.rules)
        return (
            needed | required_resources_of_pools(config.pools) | {"RouteStatus"}
            if self._settings.serves_ipam
            else needed
        )

    # ---- watches and probes

    def _on_watch_opened(self, name: str, snapshot: WatchSnapshot) -> None:
        if name in self.reconcilers:
            self.reconcilers[name].on_watch_opened(snapshot)

    def _on_machine_changed(self, name: str) -> None:
        if name in self.reconcilers:
            self.reconcilers[name].on_machine_changed()

    def _on_watch_ended(self, name: str, within_seconds: float) -> None:
        if name in self.reconcilers:
            self.reconcilers[name].on_watch_ended(within_seconds)

    async def _probe(self) -> None:
        """Probe one machine at a time, to detect the end of an outage within seconds despite the back-off."""
        while True:
            self.expedite_poll(self._outage.select_probe())
            expires = self._talos.certificate_expires_at()
            metrics.TALOS_CERTIFICATE_EXPIRY.set(expires.timestamp() if expires else 0)
            await asyncio.sleep(self._settings.probe_seconds)


def _read_enriched(message: Message | None) -> EnrichedNode | None:
    event = message.event if message else None
    return event if isinstance(event, NodeEnriched | NodeUnreachable | EnrichedNodeGone) else None
