"""Follows observed nodes and requests, asks machines, and says what they say."""

import asyncio

from libs.common import metrics
from libs.common.bus import Message
from libs.common.events import SnapshotComplete
from libs.common.flow_table import FlowTable
from libs.common.process.service import Parts, Run
from libs.common.publisher import OrderedPublisher
from libs.common.subjects import FLOW, NETWORKS, is_about_a_csr, is_about_a_node
from libs.common.wiring import METADATA
from services.metadata.ask_machine import Slots, Talos, open_talos
from services.metadata.dial_back import DialBacks
from services.metadata.kept_running import kept_running
from services.metadata.observed_nodes import ObservedNodes
from services.metadata.schedule import Pace
from services.metadata.settings import MetadataSettings
from services.metadata.signing_requests import SigningRequests
from services.metadata.watch_networks import ClusterNetworksWatch


class MetadataService:
    """One replica; a second one for a while does no harm, the order of messages sees to that."""

    wiring = METADATA

    def __init__(self, parts: Parts, settings: MetadataSettings, *, talos: Talos | None = None) -> None:
        self._bus = parts.bus
        self._without_talos = settings.without_talos
        self._tells_networks = settings.tells_networks
        self._talos = talos or open_talos(parts, settings)
        self._random = parts.random
        self._table = FlowTable(
            clock=parts.monotonic,
            keep=self._is_worth_keeping,
            on_message=self._hear,
            on_void=self._stream_is_another,
            on_caught_up=self._caught_up,
        )
        self._publisher = OrderedPublisher(parts.bus)
        pace = Pace(
            look=settings.node_status_update_frequency_seconds,
            watched_look=settings.watched_look_seconds,
            repeat=settings.repeat_seconds,
        )
        slots = Slots(settings.concurrent_looks)
        self._nodes = ObservedNodes(
            self._table,
            self._publisher,
            parts,
            settings,
            talos=self._talos,
            slots=slots,
            pace=pace,
            changed=self._node_changed,
        )
        self._networks = ClusterNetworksWatch(
            self._table,
            self._publisher,
            parts,
            talos=self._talos,
            pace=pace,
            deadline_seconds=settings.look_deadline_seconds,
        )
        self._dial_backs = DialBacks(
            self._talos,
            slots,
            deadline_seconds=settings.look_deadline_seconds,
            monotonic=parts.monotonic,
        )
        self._requests = SigningRequests(
            self._table,
            self._publisher,
            parts,
            pace=pace,
            without_talos=settings.without_talos,
            node=self._nodes.known,
            hurry=self._nodes.hurry,
            dial_backs=self._dial_backs,
        )

    async def run(self) -> None:
        """Until cancelled. NATS or Talos may be down meanwhile, or at the start: both are waited for."""
        metrics.LEADER_SILENCE.labels(METADATA.service).set_function(self._table.leader_silence_seconds)
        follow = self._bus.follow
        try:
            async with asyncio.TaskGroup() as group:
                if not self._without_talos:
                    group.create_task(self._nodes.run())
                if self._tells_networks:
                    group.create_task(kept_running(self._networks.run, self._random, task="networks"))
                group.create_task(
                    follow(METADATA.service, f"{FLOW}.>", self._table, but_not=self._is_nothing_to_us)
                )
        finally:
            await self._requests.close()
            await self._dial_backs.close()
            await self._nodes.close()
            await self._talos.close()

    def problems(self) -> tuple[str, ...]:
        """Why not ready: the flow is not followed, or no machine can be asked."""
        talos = "" if self._without_talos else self._talos.problem()
        return (*self._table.problems(), *([f"Talos cannot be asked: {talos}"] if talos else []))

    def _is_nothing_to_us(self, subject: str) -> bool:
        return self._without_talos and is_about_a_node(subject)

    def _hear(self, message: Message) -> None:
        if is_about_a_csr(message.subject):
            self._requests.hear(message)
            return
        if message.subject == NETWORKS:
            self._publisher.learned(message.subject, message.sequence)
            return
        self._nodes.hear(message)
        if isinstance(message.event, SnapshotComplete) and not self._table.replaying:
            self._requests.forget_unnamed()

    def _is_worth_keeping(self, message: Message) -> bool:
        about = self._requests if is_about_a_csr(message.subject) else self._nodes
        return about.is_worth_keeping(message)

    def _caught_up(self) -> None:
        self._nodes.caught_up()
        self._requests.caught_up()
        self._networks.caught_up()

    def _stream_is_another(self) -> None:
        self._publisher.forget()
        self._nodes.stream_is_another()
        self._requests.stream_is_another()

    def _node_changed(self, name: str) -> None:
        self._requests.node_changed(name)


METADATA_RUN = Run(wiring=METADATA, settings=MetadataSettings, build=MetadataService)
