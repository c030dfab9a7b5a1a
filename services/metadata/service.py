"""Follows observed nodes, asks their machines, and says what the machines say."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from libs.common import metrics
from libs.common.bus import Message
from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.inventory import needed_resources
from libs.common.cloud_config.rule import CloudConfig
from libs.common.events import (
    EnrichedNode,
    EnrichedNodeGone,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
    SnapshotComplete,
)
from libs.common.flow_table import FlowTable
from libs.common.machine import MachineFault
from libs.common.node import Node
from libs.common.process.service import Parts, Run
from libs.common.publisher import OrderedPublisher
from libs.common.settings.cloud_config_file import CloudConfigFile
from libs.common.subjects import (
    ENRICHED_NODE,
    FLOW,
    OBSERVED_NODE,
    is_about_a_csr,
    is_about_a_node,
    name_in,
)
from libs.common.wiring import METADATA
from services.metadata.ask_machine import Slots, Talos, open_talos
from services.metadata.dial_back import DialBacks
from services.metadata.kept_running import kept_running
from services.metadata.known import Known, first_seen
from services.metadata.on_node_observed import NodeReconciler, Surroundings
from services.metadata.outage import Outage
from services.metadata.schedule import Pace
from services.metadata.settings import MetadataSettings
from services.metadata.signing_requests import SigningRequests
from services.metadata.talos_api.api import Contents
from services.metadata.watch_machines import MachineWatches, Told

log = logging.getLogger(__name__)

_ASKED_ANEW_WITHIN_SECONDS: Final = 6.0  # spread: a changed rule may concern every machine there is


class MetadataService:
    """One replica; a second one for a while does no harm, the order of messages sees to that."""

    wiring = METADATA

    def __init__(self, parts: Parts, settings: MetadataSettings, *, talos: Talos | None = None) -> None:
        self._parts = parts
        self._settings = settings
        self._prefer_ipv6 = settings.prefer_ipv6
        self._needed = needed_resources(settings.cloud_config.rules)
        self._talos = talos or open_talos(parts, settings)
        self._table = FlowTable(
            clock=parts.monotonic,
            keep=self._is_worth_keeping,
            on_message=self._hear,
            on_void=self._stream_is_another,
            on_caught_up=self._caught_up,
        )
        self._publisher = OrderedPublisher(parts.bus)
        self._outage = Outage()
        self._slots = Slots(settings.concurrent_looks)
        self._nodes: dict[str, NodeReconciler] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._pace = Pace(
            look=settings.node_status_update_frequency_seconds,
            watched_look=settings.watched_look_seconds,
            repeat=settings.repeat_seconds,
        )
        self._watches = MachineWatches(
            self._talos,
            Told(opened=self._watch_opened, changed=self._machine_changed, ended=self._watch_ended),
            limit=settings.watched_machines,
            opened_after_seconds=settings.watches_opened_after_seconds,
            opened_per_second=settings.watches_opened_per_second,
            read_deadline_seconds=settings.watched_look_seconds,
            slots=self._slots,
            random=parts.random,
        )
        self._surroundings = self._surround()
        self._requests = SigningRequests(
            self._table,
            self._publisher,
            parts,
            pace=self._pace,
            without_talos=settings.without_talos,
            node=self._known,
            hurry=self._hurry,
            dial_backs=DialBacks(
                self._talos,
                self._slots,
                deadline_seconds=settings.look_deadline_seconds,
                monotonic=parts.monotonic,
            ),
        )

    async def run(self) -> None:
        """Until cancelled. NATS or Talos may be down meanwhile, or at the start: both are waited for."""
        follow = self._parts.bus.follow
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    follow(METADATA.service, f"{FLOW}.>", self._table, but_not=self._is_nothing_to_us)
                )
                if not self._settings.without_talos:
                    self._ask_machines(group)
        finally:
            await self._requests.close()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await self._talos.close()

    def _ask_machines(self, group: asyncio.TaskGroup) -> None:
        group.create_task(self._watches.open_in_turn())
        group.create_task(self._probe())
        if (path := self._settings.cloud_config_file) is not None:
            file = CloudConfigFile(path, self._settings.cloud_config)
            group.create_task(file.watch(self._file_changed))

    def problems(self) -> tuple[str, ...]:
        """Why not ready: the flow is not followed, or no machine can be asked."""
        talos = "" if self._settings.without_talos else self._talos.problem()
        return (*self._table.problems(), *([f"Talos cannot be asked: {talos}"] if talos else []))

    def _surround(self) -> Surroundings:
        return Surroundings(
            talos=self._talos,
            publisher=self._publisher,
            slots=self._slots,
            pace=self._pace,
            prefer_ipv6=lambda: self._prefer_ipv6,
            needed=lambda: self._needed,
            look_deadline_seconds=self._settings.look_deadline_seconds,
            monotonic=self._parts.monotonic,
            now=self._parts.now,
            random=self._parts.random,
            others=self._all_nodes,
            heard=self._heard,
            looked=self._looked,
            said=self._said,
            changed=self._node_changed,
            watch=self._watches.want,
            finished=self._forget,
        )

    # ---- what the flow says

    def _is_nothing_to_us(self, subject: str) -> bool:
        return self._settings.without_talos and is_about_a_node(subject)

    def _hear(self, message: Message) -> None:
        if is_about_a_csr(message.subject):
            self._requests.hear(message)
            return
        match message.event:
            case NodeObserved() | NodeGone() if not self._table.replaying:
                self._observe(message)
            case NodeEnriched() | NodeUnreachable() | EnrichedNodeGone():
                self._publisher.learned(message.subject, message.sequence)
                if isinstance(message.event, NodeUnreachable) and not self._table.replaying:
                    self._told_unreachable(name_in(message.subject, ENRICHED_NODE))
            case SnapshotComplete() if not self._table.replaying:
                self._forget_unnamed()

    def _is_worth_keeping(self, message: Message) -> bool:
        """All but our own word when it comes back: a copy as large as all else that is known of the Node."""
        if is_about_a_csr(message.subject):
            return self._requests.is_worth_keeping(message)
        event = _enriched(message)
        node = self._nodes.get(name_in(message.subject, ENRICHED_NODE)) if event is not None else None
        return node is None or node.known.said != event

    def _said(self, name: str, event: EnrichedNode) -> None:
        """It may have come back before it was known to be ours."""
        subject = f"{ENRICHED_NODE}.{name}"
        if _enriched(self._table.last(subject)) == event:
            self._table.forget(subject)

    def _told_unreachable(self, name: str) -> None:
        if name in self._nodes:
            self._nodes[name].told_unreachable()

    def _caught_up(self) -> None:
        for message in self._table.under(OBSERVED_NODE):
            self._observe(message)
        self._requests.caught_up()
        self._forget_unnamed()
        for node in self._nodes.values():
            node.bus_is_back()

    def _stream_is_another(self) -> None:
        self._publisher.forget()
        self._requests.stream_is_another()
        for node in self._nodes.values():
            node.stream_is_another()

    def _observe(self, message: Message) -> None:
        event = message.event
        assert isinstance(event, NodeObserved | NodeGone)
        try:
            name = name_in(message.subject, OBSERVED_NODE)
            known = self._nodes.get(name)
            if known is not None:
                known.observe(message, event)
            else:
                self._begin(name, message, event)
        except Exception:
            # Nodes are written by others: one that breaks us must not keep us from all the rest.
            log.exception("an observation was not understood", extra={"subject": message.subject})

    def _begin(self, name: str, message: Message, event: NodeObserved | NodeGone) -> None:
        said = self._table.last(f"{ENRICHED_NODE}.{name}")
        age = (self._parts.now() - said.published_at).total_seconds() if said else 0.0
        known = first_seen(
            message,
            event,
            _enriched(said),
            heard_again_in=max(0.0, self._pace.repeat - max(0.0, age)),
            now=self._parts.monotonic(),
            prefer_ipv6=self._prefer_ipv6,
        )
        node = self._nodes[name] = NodeReconciler(name, known, self._surroundings)
        running = kept_running(node.run, self._parts.random, node=name)
        self._tasks[name] = asyncio.create_task(running, name=f"node {name}")
        self._requests.node_changed(name)

    def _forget_unnamed(self) -> None:
        """Once the present stream names every Node, what it does not name has gone unseen."""
        if not self._table.complete:
            return
        for name in [n for n in self._nodes if self._table.last(f"{OBSERVED_NODE}.{n}") is None]:
            self._tasks[name].cancel()
            self._forget(name)
        self._requests.forget_unnamed()

    def _forget(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._tasks.pop(name, None)
        self._outage.forget(name)
        self._watches.want(name, "")
        self._requests.node_changed(name)

    # ---- what the tasks of Nodes and requests ask and tell

    def _known(self, name: str) -> Known | None:
        return self._nodes[name].known if name in self._nodes else None

    def _node_changed(self, name: str) -> None:
        self._requests.node_changed(name)

    def _hurry(self, name: str) -> None:
        if name in self._nodes:
            self._nodes[name].hurry(0.0)

    def _all_nodes(self) -> Iterable[Node] | None:
        if not self._table.complete:
            return None
        return (node for one in self._nodes.values() if (node := one.known.node) is not None)

    def _heard(self, name: str) -> EnrichedNode | None:
        subject = f"{ENRICHED_NODE}.{name}"
        message = self._table.last(subject)
        if message is None or message.sequence < self._publisher.sequence_of(subject):
            return None  # the echo of what we said last is still on its way
        return _enriched(message)

    def _looked(self, name: str, fault: MachineFault | None, began: float) -> None:
        now = self._parts.monotonic()
        for other in self._outage.looked(name, fault, began=began, now=now):
            if other in self._nodes:
                self._nodes[other].hurry(self._parts.random.random())

    # ---- what the file of --cloud-config says

    def _file_changed(self, config: CloudConfig | CloudConfigError) -> None:
        """Of a bad file all mistakes are the labeler's to tell, which applies the rules."""
        if isinstance(config, CloudConfigError):
            fields = {"reason": "; ".join(config.mistakes[:1]), "mistakes": len(config.mistakes)}
            log.warning("the --cloud-config file is bad: what it said before stands", extra=fields)
            return
        needed, prefer_ipv6 = needed_resources(config.rules), bool(config.prefer_ipv6)
        if (needed, prefer_ipv6) == (self._needed, self._prefer_ipv6):
            return
        self._needed, self._prefer_ipv6 = needed, prefer_ipv6
        asked = {"inventory": sorted(needed), "prefer_ipv6": prefer_ipv6}
        log.info("the --cloud-config file needs machines to be asked for something else", extra=asked)
        for node in self._nodes.values():
            node.rules_changed(_ASKED_ANEW_WITHIN_SECONDS * self._parts.random.random())

    # ---- what watches and probes tell

    def _watch_opened(self, name: str, contents: Contents) -> None:
        if name in self._nodes:
            self._nodes[name].watch_opened(contents)

    def _machine_changed(self, name: str) -> None:
        if name in self._nodes:
            self._nodes[name].machine_changed()

    def _watch_ended(self, name: str, within_seconds: float) -> None:
        if name in self._nodes:
            self._nodes[name].watch_ended(within_seconds)

    async def _probe(self) -> None:
        """Notice the end of an outage within seconds, whatever the back-off of the Nodes."""
        while True:
            self._hurry(self._outage.probe())
            expires = self._talos.certificate_expires_at()
            metrics.TALOS_CERTIFICATE_EXPIRY.set(expires.timestamp() if expires else 0)
            await asyncio.sleep(self._settings.probe_seconds)


def _enriched(message: Message | None) -> EnrichedNode | None:
    event = message.event if message else None
    return event if isinstance(event, NodeEnriched | NodeUnreachable | EnrichedNodeGone) else None


METADATA_RUN = Run(wiring=METADATA, settings=MetadataSettings, build=MetadataService)
