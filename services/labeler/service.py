"""The labeler: consumes enriched nodes, follows the flow, and writes what Nodes should say."""

import asyncio
import logging

from libs.common import metrics
from libs.common.bus import Message
from libs.common.events import Leading, NodeGone, NodeObserved
from libs.common.flow_table import FlowTable
from libs.common.handling import Handling
from libs.common.node import Node
from libs.common.process.service import Parts, Run
from libs.common.settings.reference_flags import CLOUD_NODE
from libs.common.subjects import ENRICHED_NODE, FLOW, OBSERVED_NODE, is_about_a_csr
from libs.common.wiring import LABELER
from services.labeler.already_said import AlreadySaid
from services.labeler.answers import Answers
from services.labeler.decisions import Decisions
from services.labeler.node_api import NodeApi
from services.labeler.on_node_enriched import OnNodeEnriched
from services.labeler.replay import Replay
from services.labeler.settings import LabelerSettings
from services.labeler.waiting import WaitingNodes, is_left_alone
from services.labeler.watch_config import WatchConfig
from services.labeler.watch_waiting import WatchWaiting

log = logging.getLogger(__name__)


class LabelerService:
    """Any number of replicas share the work; each follows the flow for itself."""

    wiring = LABELER

    def __init__(self, parts: Parts, settings: LabelerSettings) -> None:
        self._parts = parts
        self._settings = settings
        self._led = asyncio.Event()
        self._waiting = WaitingNodes()
        self._table = FlowTable(clock=parts.monotonic, on_message=self._heard, on_void=self._all_is_void)
        self._told = told = AlreadySaid()
        self._answers = Answers(parts.monotonic)
        dry = settings.observe_only
        nodes = NodeApi(
            parts.kubernetes(),
            told,
            self._answers,
            now=parts.now,
            observe_only=dry,
            is_foreign=self._is_foreign,
        )
        self._events = nodes.events
        decisions = Decisions(parts.bus, told, now=parts.now, observe_only=dry)
        self._watch_config = WatchConfig(
            settings,
            changed=self._config_changed,
            kube=parts.kubernetes(),
            now=parts.now,
            random=parts.random,
        )
        self._on_node_enriched = OnNodeEnriched(
            bus=parts.bus,
            table=self._table,
            nodes=nodes,
            decisions=decisions,
            waiting=self._waiting,
            config=self._watch_config.config,
            paused=self._paused,
            clock=parts.monotonic,
        )
        self._watch_waiting = WatchWaiting(
            table=self._table,
            waiting=self._waiting,
            nodes=nodes,
            decisions=decisions,
            config=self._watch_config.config,
            paused=self._paused,
            clock=parts.monotonic,
            random=parts.random,
        )
        self._handling = Handling(
            LABELER.service, "node", system=parts.bus.system, clock=parts.monotonic, random=parts.random
        )
        self._replay = self._replay_of(parts, settings)

    async def run(self) -> None:
        """Work until cancelled; what is in flight is finished."""
        metrics.LEADER_SILENCE.labels(LABELER.service).set_function(self._table.leader_silence_seconds)
        # The file may have changed while nobody looked, and what was acknowledged does not come again.
        self._replay.want("the labeler has started")
        try:
            async with asyncio.TaskGroup() as tasks:
                following = self._parts.bus.follow(
                    LABELER.service, f"{FLOW}.>", self._table, but_not=is_about_a_csr
                )
                tasks.create_task(following)
                tasks.create_task(self._watch_waiting.run())
                tasks.create_task(self._watch_config.run())
                tasks.create_task(self._replay.run())
                tasks.create_task(self._events.run())
                tasks.create_task(self._consume())
        finally:
            await self._events.last_words()

    def problems(self) -> tuple[str, ...]:
        """Why nothing, or not everything, is written now."""
        paused = self._paused()
        return (
            *self._table.problems(),
            *((paused,) if paused else ()),
            *self._watch_waiting.problems(),
            *self._watch_config.problems(),
        )

    def _replay_of(self, parts: Parts, settings: LabelerSettings) -> Replay:
        return Replay(
            table=self._table,
            handling=self._handling,
            handler=self._on_node_enriched,
            put_aside=parts.bus.publish,
            paused=self._paused,
            in_flight=settings.in_flight,
            spread_seconds=settings.replay_spread_seconds,
            clock=parts.monotonic,
            now=parts.now,
            random=parts.random,
        )

    async def _consume(self) -> None:
        await self._led.wait()  # before that every message would only be handed back
        [durable] = LABELER.durables
        handle = self._handling.around(self._on_node_enriched)
        await self._parts.bus.consume(durable, handle, in_flight=self._settings.in_flight)

    def _heard(self, message: Message) -> None:
        self._waiting.heard(message.event, self._parts.monotonic())
        self._answers.heard(message.event)
        if isinstance(message.event, NodeGone):
            self._told.forget(message.event.name)
            self._on_node_enriched.forget(message.event.name)
        if self._settings.observe_only or (isinstance(message.event, Leading) and not self._table.replaying):
            self._led.set()

    def _all_is_void(self) -> None:
        self._waiting.clear()
        self._on_node_enriched.forget_all()

    def _config_changed(self) -> None:
        self._told.rules_changed()
        self._on_node_enriched.rules_changed()
        self._replay.want("the --cloud-config file has changed")

    def _is_foreign(self, node: Node) -> bool:
        """Whether the file has it be another's by now; `node` may be an older view of it."""
        config = self._watch_config.config()
        if not config.ownership.is_said:
            return False
        seen = self._table.last(f"{OBSERVED_NODE}.{node.name}")
        enriched = self._table.last(f"{ENRICHED_NODE}.{node.name}")
        if seen is not None and isinstance(seen.event, NodeObserved) and seen.event.node.uid == node.uid:
            node = seen.event.node
        try:
            said = enriched.event if enriched is not None else None
            return is_left_alone(self._answers.newest(node), said, config)
        except Exception:
            # People write the rules that this asks: where they cannot be judged, the Node is nobody's.
            log.exception("whose a Node is could not be judged", extra={"node": node.name})
            return True

    def _paused(self) -> str:
        """Why nothing may be written."""
        if self._settings.observe_only:
            return ""
        return self._table.why_not_led(silence_seconds=self._settings.leader_silence_seconds)


LABELER_RUN = Run(wiring=LABELER, settings=LabelerSettings, build=LabelerService, controller=CLOUD_NODE)
