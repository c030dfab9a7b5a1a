"""ipam: consumes enriched nodes, follows the flow, claims blocks in Kubernetes and writes them on Nodes."""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from libs.common import metrics
from libs.common.bus import Message
from libs.common.decisions import Decisions
from libs.common.delivery import TemporaryError
from libs.common.events import Leading, NodeObserved, SnapshotComplete
from libs.common.flow_table import FlowTable
from libs.common.handling import Handling
from libs.common.node import Node
from libs.common.process.service import Parts, Run
from libs.common.subjects import FLOW, is_about_a_csr
from libs.common.watch_flow import WatchFlow
from libs.common.wiring import IPAM
from services.ipam.allocator import Allocator
from services.ipam.claims_api import KubernetesClaims
from services.ipam.gathering import Answered, Gathering, Together
from services.ipam.measured import Measured
from services.ipam.node_events import ADDRESSES_IGNORED, NodeEvents
from services.ipam.on_node_enriched import OnNodeEnriched
from services.ipam.outcomes import NotOurs, Unserved, Wait
from services.ipam.picture import Picture
from services.ipam.plan import Assigned, Occupied, Want
from services.ipam.pools import Pool
from services.ipam.settings import IpamSettings
from services.ipam.waiting import WaitingNodes
from services.ipam.watch_claims import WatchClaims
from services.ipam.watch_config import WatchConfig
from services.ipam.watch_waiting import WatchWaiting

log = logging.getLogger(__name__)


class IpamService:
    """Any number of replicas share the work; each follows the flow for itself."""

    wiring = IPAM

    def __init__(self, parts: Parts, settings: IpamSettings) -> None:
        self._parts = parts
        self._settings = settings
        self._led = asyncio.Event()
        self._not_taken_in: set[str] = set()  # subjects of which we do not know what they say
        self._picture = Picture(settings, left=self._left, changed=self._more_is_known)
        self._waiting = WaitingNodes()
        self._unanswered: set[str] = set()  # blocks
        self._measured = Measured()
        self._table = FlowTable(
            clock=parts.monotonic,
            on_message=self._heard,
            on_dropped=self._dropped,
            on_void=self._all_is_void,
            on_caught_up=self._caught_up,
        )
        self._flow = WatchFlow(self._table)
        kube = parts.kubernetes()
        self._events = NodeEvents(
            kube,
            everybodys=self._picture.everybodys,
            is_foreign=lambda name: bool(self._watch_config.why_not_ours(self._picture.nodes.node(name))),
            now=parts.now,
            observe_only=settings.observe_only,
        )
        self._decisions = Decisions(parts.bus, service=IPAM.service, kind="node", now=parts.now, called={})
        self._allocator = Allocator(
            KubernetesClaims(kube),
            now=parts.now,
            quarantine=settings.quarantine,
            is_foreign=lambda node: bool(self._watch_config.why_not_ours(node)),
        )
        self._gathering = Gathering(
            self._claim, self._allocator.read_pages, clock=parts.monotonic, random=parts.random
        )
        self._watch_config = WatchConfig(
            settings,
            in_use=self._in_use,
            changed=self._more_is_known,
            kube=kube,
            now=parts.now,
            random=parts.random,
        )
        self._watch_claims = self._watch_claims_of(parts, settings)
        handling = Handling(
            IPAM.service, "node", system=parts.bus.system, clock=parts.monotonic, random=parts.random
        )
        self._on_node_enriched = self._on_node_enriched_of(parts, settings)
        self._handle = handling.around(self._on_node_enriched)
        self._watch_waiting = WatchWaiting(
            table=self._table,
            waiting=self._waiting,
            events=self._events,
            handle=self._handle,
            clock=parts.monotonic,
        )

    async def run(self) -> None:
        """Work until cancelled; what is in flight is finished."""
        metrics.LEADER_SILENCE.labels(IPAM.service).set_function(self._table.leader_silence_seconds)
        try:
            async with asyncio.TaskGroup() as tasks:
                following = self._parts.bus.follow(
                    IPAM.service, f"{FLOW}.>", self._table, but_not=is_about_a_csr
                )
                tasks.create_task(following)
                tasks.create_task(self._events.run())
                tasks.create_task(self._watch_config.run())
                tasks.create_task(self._serve())
        finally:
            await self._gathering.end()
            await self._events.last_words()

    def problems(self) -> tuple[str, ...]:
        """Why nothing, or not everything, is allocated now."""
        paused = self._paused()
        return (
            *self._flow.problems(),
            *((paused,) if paused else ()),
            *self._picture.problems(),
            *(f"{page.name} is unreadable: {page.reason}" for page in self._allocator.pages.unreadable),
            *self._watch_config.problems(),
        )

    async def _serve(self) -> None:
        await self._led.wait()  # before that every message would only be handed back
        [durable] = IPAM.durables
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_waiting.run())
            tasks.create_task(self._watch_claims.run())
            consuming = self._parts.bus.consume(durable, self._handle, in_flight=self._settings.in_flight)
            tasks.create_task(consuming)

    def _paused(self) -> str:
        """Why nothing may be written."""
        if self._not_taken_in:
            return f"defect: no sense could be made of {min(self._not_taken_in)}, so addresses may be missing"
        if self._settings.observe_only:
            return ""
        return self._table.why_not_led(silence_seconds=self._settings.leader_silence_seconds)

    # ---- what the parts need of one another

    def _on_node_enriched_of(self, parts: Parts, settings: IpamSettings) -> OnNodeEnriched:
        return OnNodeEnriched(
            table=self._table,
            flow=self._flow,
            known=self._picture.nodes,
            waiting=self._waiting,
            pools_of=self._pools_of,
            held_labels=self._watch_config.deciding_labels,
            gathering=self._gathering,
            allocator=self._allocator,
            decisions=self._decisions,
            events=self._events,
            paused=self._paused,
            served=self._room_in,
            foreign=self._watch_claims.soon,
            observe_only=settings.observe_only,
            clock=parts.monotonic,
        )

    def _watch_claims_of(self, parts: Parts, settings: IpamSettings) -> WatchClaims:
        return WatchClaims(
            self._allocator,
            self._events,
            quarantine=settings.quarantine,
            resync_seconds=settings.resync_seconds,
            why_not=self._why_not_look,
            room_made=self._room_made,
            measured=self._measured,
            clock=parts.monotonic,
            now=parts.now,
            random=parts.random,
        )

    def _why_not_look(self) -> str:
        if self._settings.observe_only:
            return "nothing is written"
        return "; ".join(self._flow.problems()) or self._paused()

    def _pools_of(self, node: Node) -> tuple[Pool, ...] | Wait | Unserved | NotOurs:
        """Where that Node's blocks come from."""
        if foreign := self._watch_config.why_not_ours(node):
            return NotOurs(foreign)
        pools = self._picture.pools_of(node, self._watch_config.pools)
        if isinstance(pools, tuple):
            self._measured.offered(pools)
        return pools

    async def _claim(self, wants: Sequence[Want], insist: bool) -> Together:
        claimed = await self._allocator.claim(wants, self._occupied, insist=insist)
        self._measured.claimed(claimed)
        for name, ignored in claimed.ignored.items():
            if (node := self._picture.nodes.node(name)) is not None:
                self._events.tell(name, node.uid, ADDRESSES_IGNORED, ignored)
        # Of what a claim left behind when it gave way nobody has heard: it is new to who is answered next.
        new = self._unanswered | {block for block, _ in claimed.new}
        self._unanswered = set() if claimed.answers else new
        answers = {
            uid: Answered(answer, not isinstance(answer, Assigned) or not new.isdisjoint(answer.pod_cidrs))
            for uid, answer in claimed.answers.items()
        }
        return Together(answers, claimed.contended)

    def _occupied(self) -> Occupied:
        """What no block may touch now. TemporaryError while nobody knows: that may come at any await."""
        if why := "; ".join(self._flow.problems()) or self._paused():
            raise TemporaryError("nothing can be claimed", why)
        return self._picture.occupied()

    def _room_in(self, pools: tuple[Pool, ...]) -> None:
        self._watch_waiting.room_in(pools)

    def _room_made(self) -> None:
        self._watch_waiting.want_all()

    def _in_use(self) -> Mapping[str, str] | None:
        """Blocks of our Nodes, with their names: what another's Node carries binds no pool of ours."""
        if self._flow.problems():
            return None
        pages = self._allocator.pages.by_range.values()
        claims = {
            claim.block: claim.node
            for page in pages
            for claim in page.claims.values()
            if claim.gone_since is None and not self._is_anothers(claim.node, claim.uid)
        }
        carried = self._picture.nodes.carried()
        ours = {block: node.name for block, node in carried if not self._is_anothers(node.name, node.uid)}
        return {**claims, **ours}

    def _is_anothers(self, name: str, uid: str) -> bool:
        """Whether the file has that very Node be another's; not if there is no such Node that we know of."""
        node = self._picture.nodes.node(name)
        return node is not None and node.uid == uid and bool(self._watch_config.why_not_ours(node))

    def _more_is_known(self) -> None:
        self._measured.other_pools()
        self._watch_waiting.want_all()

    # ---- what the flow says

    def _heard(self, message: Message) -> None:
        try:
            self._picture.take_in(message.event)
            self._not_taken_in.discard(message.subject)
        except Exception:
            # Whoever wrote it must neither end the process nor hide an address: until it is replaced or gone,
            # nothing is allocated.
            self._not_taken_in.add(message.subject)
            log.exception("a message could not be taken in", extra={"subject": message.subject})
        if self._settings.observe_only or (isinstance(message.event, Leading) and not self._table.replaying):
            self._led.set()
        if isinstance(message.event, SnapshotComplete) and not self._flow.problems():
            self._picture.told_to_be_complete()
        if isinstance(message.event, NodeObserved):
            self._on_node_enriched.heard_of(message.event.node)  # metadata says nothing of podCIDRs alone
        self._flow.moved()

    def _dropped(self, subject: str) -> None:
        """The stream holds it no more: that is how long it has been gone."""
        self._not_taken_in.discard(subject)
        self._picture.dropped(subject)

    def _caught_up(self) -> None:
        if self._flow.problems():
            self._picture.incomplete()
        else:
            self._picture.complete()
        self._flow.moved()
        self._watch_waiting.want_all()

    def _all_is_void(self) -> None:
        self._not_taken_in.clear()
        self._picture.void()
        self._waiting.clear()
        self._decisions.forget_all()
        self._on_node_enriched.forget_all()
        self._watch_waiting.forget_all()
        self._allocator.forget()
        self._watch_claims.again()

    def _left(self, name: str) -> None:
        self._waiting.left(name)
        self._decisions.forget(name)
        self._on_node_enriched.forget(name)
        self._watch_claims.soon()


IPAM_RUN = Run(wiring=IPAM, settings=IpamSettings, build=IpamService, wanted=lambda settings: settings.wanted)
