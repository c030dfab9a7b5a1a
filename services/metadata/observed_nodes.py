"""All Nodes that the flow tells of; each has a task of its own until it is gone."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from libs.common import metrics
from libs.common.bus import Message
from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.inventory import needed_by_pools, needed_resources
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
from libs.common.process.service import Parts
from libs.common.publisher import OrderedPublisher
from libs.common.settings.cloud_config_file import CloudConfigFile
from libs.common.subjects import ENRICHED_NODE, OBSERVED_NODE, name_in
from services.metadata.ask_machine import Slots, Talos
from services.metadata.ask_others import Others
from services.metadata.kept_running import kept_running
from services.metadata.known import Known, first_seen
from services.metadata.on_node_observed import NodeReconciler, Surroundings
from services.metadata.outage import Outage
from services.metadata.schedule import Pace
from services.metadata.settings import MetadataSettings
from services.metadata.talos_api.api import Contents, Part
from services.metadata.watch_machines import MachineWatches, Told

log = logging.getLogger(__name__)

_ASKED_ANEW_WITHIN_SECONDS: Final = 6.0  # spread: a changed rule may concern every machine there is


class ObservedNodes:
    """Hears of Nodes, has their machines looked at and watched, and tells whoever asks what is known."""

    def __init__(
        self,
        table: FlowTable,
        publisher: OrderedPublisher,
        parts: Parts,
        settings: MetadataSettings,
        *,
        talos: Talos,
        slots: Slots,
        pace: Pace,
        changed: Callable[[str], None],
    ) -> None:
        """`changed` hears of which Node something else is known, or nothing any more."""
        self.reconcilers: dict[str, NodeReconciler] = {}
        self._table = table
        self._publisher = publisher
        self._parts = parts
        self._settings = settings
        self._talos = talos
        self._slots = slots
        self._pace = pace
        self._changed = changed
        self._prefer_ipv6 = settings.prefer_ipv6
        self._needed = self._needed_by(settings.cloud_config)
        self._outage = Outage()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watches = MachineWatches(
            talos,
            Told(opened=self._watch_opened, changed=self._machine_changed, ended=self._watch_ended),
            limit=settings.watched_machines,
            opened_after_seconds=settings.watches_opened_after_seconds,
            opened_per_second=settings.watches_opened_per_second,
            read_deadline_seconds=settings.watched_look_seconds,
            slots=slots,
            random=parts.random,
        )
        self._others = Others(
            talos,
            reached=self._reached,
            wanted=settings.for_lifecycle,
            deadline_seconds=settings.look_deadline_seconds,
            monotonic=parts.monotonic,
        )
        self._surroundings = self._surround()

    async def run(self) -> None:
        """Watch, probe, and follow the file of rules, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watches.open_in_turn())
            group.create_task(self._probe())
            if (path := self._settings.cloud_config_file) is not None:
                file = CloudConfigFile(path, self._settings.cloud_config)
                group.create_task(file.watch(self._file_changed))

    async def close(self) -> None:
        """Stop; what is under way is done again at the next start."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._others.close()

    def known(self, name: str) -> Known | None:
        """All that is known of that Node."""
        return self.reconcilers[name].known if name in self.reconcilers else None

    def hurry(self, name: str) -> None:
        """Have its machine looked at now."""
        if name in self.reconcilers:
            self.reconcilers[name].hurry(0.0)

    # ---- what the flow says

    def hear(self, message: Message) -> None:
        """A message about a Node, kept or not, or that all has been told."""
        match message.event:
            case NodeObserved() | NodeGone() if not self._table.replaying:
                self._observe(message, live=True)
            case NodeEnriched() | NodeUnreachable() | EnrichedNodeGone():
                self._publisher.learned(message.subject, message.sequence)
                if isinstance(message.event, NodeUnreachable) and not self._table.replaying:
                    self._told_unreachable(name_in(message.subject, ENRICHED_NODE))
            case SnapshotComplete() if not self._table.replaying:
                self.forget_unnamed()

    def is_worth_keeping(self, message: Message) -> bool:
        """All but our own word when it comes back: a copy as large as all else that is known of the Node."""
        event = _enriched(message)
        node = self.reconcilers.get(name_in(message.subject, ENRICHED_NODE)) if event is not None else None
        return node is None or node.known.said != event

    def caught_up(self) -> None:
        """The table holds what the stream does."""
        for message in self._table.under(OBSERVED_NODE):
            self._observe(message)
        self.forget_unnamed()
        for node in self.reconcilers.values():
            node.bus_is_back()

    def stream_is_another(self) -> None:
        """Nothing that was said is left."""
        for node in self.reconcilers.values():
            node.stream_is_another()

    def forget_unnamed(self) -> None:
        """Once the present stream names every Node, what it does not name has gone unseen."""
        if not self._table.complete:
            return
        for name in [n for n in self.reconcilers if self._table.last(f"{OBSERVED_NODE}.{n}") is None]:
            self._tasks[name].cancel()
            self._forget(name)

    def _observe(self, message: Message, *, live: bool = False) -> None:
        event = message.event
        assert isinstance(event, NodeObserved | NodeGone)
        try:
            name = name_in(message.subject, OBSERVED_NODE)
            known = self.reconcilers.get(name)
            if known is not None:
                known.observe(message, event)
            else:
                self._begin(name, message, event)
            if live:
                self.reconcilers[name].hop.heard(message)
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
        node = self.reconcilers[name] = NodeReconciler(name, known, self._surroundings)
        running = kept_running(node.run, self._parts.random, node=name)
        self._tasks[name] = asyncio.create_task(running, name=f"node {name}")
        self._changed(name)

    # ---- what a Node's task asks and tells

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
            others_answer=self._others.answer,
            met=self._others.met,
            looked=self._looked,
            said=self._said,
            changed=self._changed,
            watch=self._watches.want,
            finished=self._forget,
        )

    def _forget(self, name: str) -> None:
        self.reconcilers.pop(name, None)
        self._tasks.pop(name, None)
        self._outage.forget(name)
        self._watches.want(name, "")
        self._changed(name)

    def _said(self, name: str, event: EnrichedNode) -> None:
        """It may have come back before it was known to be ours."""
        subject = f"{ENRICHED_NODE}.{name}"
        if _enriched(self._table.last(subject)) == event:
            self._table.forget(subject)

    def _told_unreachable(self, name: str) -> None:
        if name in self.reconcilers:
            self.reconcilers[name].told_unreachable()

    def _all_nodes(self) -> Iterable[Node] | None:
        if not self._table.complete:
            return None
        return (node for one in self.reconcilers.values() if (node := one.known.node) is not None)

    def _heard(self, name: str) -> EnrichedNode | None:
        subject = f"{ENRICHED_NODE}.{name}"
        message = self._table.last(subject)
        if message is None or message.sequence < self._publisher.sequence_of(subject):
            return None  # the echo of what we said last is still on its way
        return _enriched(message)

    def _reached(self) -> frozenset[str]:
        known = ((name, one.known.recognized) for name, one in self.reconcilers.items())
        return frozenset(name for name, by in known if by is not None and by.by == "nodename")

    def _looked(self, name: str, fault: MachineFault | None, began: float) -> None:
        now = self._parts.monotonic()
        for other in self._outage.looked(name, fault, began=began, now=now):
            if other in self.reconcilers:
                self.reconcilers[other].hurry(self._parts.random.random())

    # ---- what the file of --cloud-config says

    def _file_changed(self, config: CloudConfig | CloudConfigError) -> None:
        """Of a bad file all mistakes are the labeler's to tell, which applies the rules."""
        if isinstance(config, CloudConfigError):
            fields = {"reason": "; ".join(config.mistakes[:1]), "mistakes": len(config.mistakes)}
            log.warning("the --cloud-config file is bad: what it said before stands", extra=fields)
            return
        needed, prefer_ipv6 = self._needed_by(config), bool(config.prefer_ipv6)
        if (needed, prefer_ipv6) == (self._needed, self._prefer_ipv6):
            return
        self._needed, self._prefer_ipv6 = needed, prefer_ipv6
        asked = {"inventory": sorted(needed), "prefer_ipv6": prefer_ipv6}
        log.info("the --cloud-config file needs machines to be asked for something else", extra=asked)
        for node in self.reconcilers.values():
            node.rules_changed(_ASKED_ANEW_WITHIN_SECONDS * self._parts.random.random())

    def _needed_by(self, config: CloudConfig) -> frozenset[Part]:
        needed: frozenset[Part] = needed_resources(config.rules)
        return needed | needed_by_pools(config.pools) | {"RouteStatus"} if self._settings.for_ipam else needed

    # ---- what watches and probes tell

    def _watch_opened(self, name: str, contents: Contents) -> None:
        if name in self.reconcilers:
            self.reconcilers[name].watch_opened(contents)

    def _machine_changed(self, name: str) -> None:
        if name in self.reconcilers:
            self.reconcilers[name].machine_changed()

    def _watch_ended(self, name: str, within_seconds: float) -> None:
        if name in self.reconcilers:
            self.reconcilers[name].watch_ended(within_seconds)

    async def _probe(self) -> None:
        """Notice the end of an outage within seconds, whatever the back-off of the Nodes."""
        while True:
            self.hurry(self._outage.probe())
            expires = self._talos.certificate_expires_at()
            metrics.TALOS_CERTIFICATE_EXPIRY.set(expires.timestamp() if expires else 0)
            await asyncio.sleep(self._settings.probe_seconds)


def _enriched(message: Message | None) -> EnrichedNode | None:
    event = message.event if message else None
    return event if isinstance(event, NodeEnriched | NodeUnreachable | EnrichedNodeGone) else None
