"""The labeler service: consumes enriched Nodes, follows the flow and writes to Nodes."""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec

from libs.common.bus.cloud_follower import CloudFollower
from libs.common.bus.consumer_middleware import ConsumerMiddleware
from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.flow import Flow
from libs.common.bus.protocol import Bus, Message
from libs.common.contract.events import (
    Decided,
    Event,
    InstanceMetadata,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
)
from libs.common.contract.instance_metadata import parse_metadata_accounts
from libs.common.contract.node import share_equal_parts
from libs.common.contract.services import LABELER
from libs.common.contract.subjects import (
    ENRICHED_NODE,
    INSTANCE_METADATA,
    OBSERVED_NODE,
    is_csr_or_service_subject,
)
from libs.common.service.service import Dependencies, ServiceDefinition, run_together
from services.labeler.config_reloader import ConfigReloader
from services.labeler.config_rollout import ConfigRollout
from services.labeler.core.instance_metadata import InstanceMetadataIndex
from services.labeler.core.own_writes import OwnWrites
from services.labeler.core.plan.node_ownership import is_excluded
from services.labeler.core.plan.plan import IN_SYNC_REASON, WRITTEN_OUTCOMES
from services.labeler.core.provider_id_index import ProviderIDIndex
from services.labeler.core.uninitialized_nodes import UninitializedNodes
from services.labeler.node_writer import NodeWriter
from services.labeler.on_node_enriched import OnNodeEnriched
from services.labeler.settings import LabelerSettings
from services.labeler.uninitialized_node_monitor import UninitializedNodeMonitor

log = logging.getLogger(__name__)

_OBSERVE_ONLY_OUTCOMES: Final = {"initialized": "would-initialize", "updated": "would-update"}


class LabelerService:
    """Runs one replica. Replicas share one durable consumer; each follows the whole flow."""

    spec = LABELER

    def __init__(self, dependencies: Dependencies, settings: LabelerSettings) -> None:
        self._dependencies = dependencies
        self._settings = settings
        self._uninitialized_nodes = UninitializedNodes()
        self._has_accounts = bool(settings.metadata_accounts)
        observe_only = settings.observe_only
        self._flow = Flow(
            parts=dependencies,
            service=LABELER.service,
            max_silence_seconds=settings.leader_silence_seconds,
            observe_only=observe_only,
            exclude=is_csr_or_service_subject,
            compact=lambda message: compact_message(message, self._stream_cache.get_event),
            on_message=self._on_message,
            on_stream_replaced=self._on_stream_replaced,
        )
        self._stream_cache = self._flow.cache
        self._epoch = 0  # the cache's greatest one whose begin was handled
        self._own_writes = OwnWrites(dependencies.monotonic)
        nodes = NodeWriter(
            dependencies.require_kube(),
            self._own_writes,
            now=dependencies.now,
            observe_only=observe_only,
            is_excluded=self._is_excluded,
        )
        self._events = nodes.events
        self._decisions = make_decision_publisher(
            dependencies.bus, now=dependencies.now, observe_only=observe_only
        )
        self._config_reloader = ConfigReloader(
            settings,
            on_change=self._on_config_changed,
            kube=dependencies.require_kube(),
            now=dependencies.now,
        )
        self._instance_metadata = InstanceMetadataIndex(
            {
                account: each.provider
                for account, each in parse_metadata_accounts(settings.metadata_accounts).items()
            }
        )
        self._provider_ids = ProviderIDIndex(
            self._stream_cache,
            self._config_reloader.current,
            dependencies.monotonic,
            self._instance_metadata,
        )
        self._cloud = CloudFollower(
            subjects=INSTANCE_METADATA,
            kind=InstanceMetadata,
            on_event=self._instance_metadata.apply_metadata,
            on_stream_replaced=self._instance_metadata.clear_metadata,
        )
        self._on_node_enriched = OnNodeEnriched(
            bus=dependencies.bus,
            flow=self._flow,
            own_writes=self._own_writes,
            node_writer=nodes,
            decision_publisher=self._decisions,
            uninitialized_nodes=self._uninitialized_nodes,
            config=self._config_reloader.current,
            provider_ids=self._provider_ids,
            instance_metadata=self._instance_metadata,
            clock=dependencies.monotonic,
        )
        self._uninitialized_node_monitor = UninitializedNodeMonitor(
            stream_cache=self._stream_cache,
            own_writes=self._own_writes,
            uninitialized_nodes=self._uninitialized_nodes,
            node_writer=nodes,
            decision_publisher=self._decisions,
            instance_metadata=self._instance_metadata,
            config=self._config_reloader.current,
            why_paused=self._flow.why_paused,
            provider_ids=self._provider_ids,
            clock=dependencies.monotonic,
            random=dependencies.random,
        )
        self._middleware = ConsumerMiddleware(LABELER.service, "node", dependencies)
        self._rollout = ConfigRollout(
            flow=self._flow,
            middleware=self._middleware,
            handler=self._on_node_enriched,
            in_flight=settings.in_flight,
            spread_seconds=settings.rollout_spread_seconds,
            clock=dependencies.monotonic,
            random=dependencies.random,
        )

    async def run(self) -> None:
        """Run until cancelled, then write the queued Events."""
        # The file may have changed while no replica ran, and acknowledged messages are not redelivered.
        self._rollout.request("the labeler has started")
        try:
            await run_together(
                self._flow.run(),
                self._uninitialized_node_monitor.run(),
                self._config_reloader.run(),
                self._rollout.run(),
                self._events.run(),
                self._consume(),
                *((self._cloud.run(self._dependencies.bus, LABELER.service),) if self._has_accounts else ()),
            )
        finally:
            await self._events.flush()

    def problems(self) -> tuple[str, ...]:
        """Return the reasons why this replica writes nothing, or not everything."""
        return (
            *self._flow.list_pause_reasons(),
            *self._uninitialized_node_monitor.problems(),
            *self._config_reloader.problems(),
            *(self._cloud.problems() if self._has_accounts else ()),
        )

    async def _consume(self) -> None:
        await self._flow.wait_for_leader()
        [durable] = LABELER.durables
        handle = self._middleware.wrap(self._on_node_enriched.reconcile)
        await self._dependencies.bus.consume(durable, handle, in_flight=self._settings.in_flight)

    def _on_message(self, message: Message) -> None:
        # It falls where the end of the stream was lost: the next leader may begin a lower epoch.
        if self._stream_cache.greatest_epoch != self._epoch:
            self._epoch = self._stream_cache.greatest_epoch
            if self._epoch and (names := self._on_node_enriched.forget_writes()):
                self._rollout.request("the watcher has begun a new epoch", names)
        self._uninitialized_nodes.apply(message.event, self._dependencies.monotonic())
        self._provider_ids.apply(message.event)
        self._instance_metadata.apply(message.event)
        if isinstance(message.event, NodeGone):
            self._events.forget(message.event.uid)
            self._decisions.forget(message.event.name)
            self._on_node_enriched.forget(message.event.name)

    def _on_stream_replaced(self) -> None:
        self._epoch = 0
        self._uninitialized_nodes.clear()
        self._provider_ids.clear()
        self._instance_metadata.clear()
        self._own_writes.forget_all()  # the sequences of their plans start again
        self._decisions.forget_all()

    def _on_config_changed(self) -> None:
        self._events.on_rules_changed()
        self._on_node_enriched.replica_conflicts.on_rules_changed()
        self._rollout.request("the --cloud-config file has changed")

    def _is_excluded(self, name: str) -> bool:
        """Return whether --cloud-config now excludes the Node of that name."""
        config = self._config_reloader.current()
        if not config.ownership.is_restricted:
            return False
        observed = self._stream_cache.get_event(f"{OBSERVED_NODE}.{name}")
        if not isinstance(observed, NodeObserved):
            return False
        enriched = self._instance_metadata.complete(self._stream_cache.get_event(f"{ENRICHED_NODE}.{name}"))
        try:
            return is_excluded(self._own_writes.latest(observed.node), enriched, config)
        except Exception:
            # Operators write the rules that this evaluates: a Node whose evaluation fails is not written.
            log.exception("ownership evaluation failed", extra={"node": name})
            return True


def compact_message(message: Message, get_event: Callable[[str], Event | None]) -> Message:
    """Return the message with the equal parts of the Node in the stored message of the other kind.

    So each Node is stored once, although both its observation and metadata's report contain it. `get_event`
    returns the stored event of a subject.
    """
    event = message.event
    match event:
        case NodeObserved(node=node):
            other = get_event(f"{ENRICHED_NODE}.{node.name}")
        case NodeEnriched(node=node) | NodeUnreachable(node=node):
            other = get_event(f"{OBSERVED_NODE}.{node.name}")
        case _:
            return message
    if not isinstance(other, NodeObserved | NodeEnriched | NodeUnreachable) or other.node is event.node:
        return message
    shared = share_equal_parts(event.node, other.node)
    return msgspec.structs.replace(message, event=msgspec.structs.replace(event, node=shared))


def make_decision_publisher(
    bus: Bus, *, now: Callable[[], datetime], observe_only: bool
) -> DecisionPublisher:
    """Return the publisher of decisions about Nodes, which operators read."""
    return DecisionPublisher(
        bus,
        service=LABELER.service,
        kind="node",
        now=now,
        outcome_aliases=_OBSERVE_ONLY_OUTCOMES if observe_only else {},
        is_own_write=_reports_own_write,
    )


def _reports_own_write(last: Decided, decided: Decided) -> bool:
    is_in_sync = decided.reason.startswith(IN_SYNC_REASON) and decided.rules == last.rules
    return last.outcome in WRITTEN_OUTCOMES and is_in_sync


LABELER_DEFINITION = ServiceDefinition(spec=LABELER, settings=LabelerSettings, build=LabelerService)
