"""lifecycle: follows the flow, holds its own Lease, and looks at each Node that is not plainly well."""

import asyncio
import logging
from datetime import timedelta

from libs.common import metrics
from libs.common.bus import Message
from libs.common.controllers import NODE_LIFECYCLE
from libs.common.decisions import Decisions
from libs.common.delivery import PermanentError, TemporaryError
from libs.common.events import EnrichedNodeGone, NodeEnriched, NodeGone, NodeObserved, NodeUnreachable
from libs.common.flow_table import FlowTable
from libs.common.kube_api.api import KubeApi
from libs.common.kube_api.lock import LeaseLock
from libs.common.node import Node
from libs.common.process.service import Parts, Run
from libs.common.subjects import ENRICHED_NODE, FLOW, OBSERVED_NODE, is_about_a_csr, name_in
from libs.common.watch_ownership import WatchOwnership
from libs.common.wiring import LIFECYCLE
from services.lifecycle.decide import Case, Delete, Keep, Standing, decide, not_ours
from services.lifecycle.deletions_api import Deletions
from services.lifecycle.evidence import Known
from services.lifecycle.known_nodes import KnownNodes
from services.lifecycle.node_events import NodeEvents
from services.lifecycle.on_node_enriched import OnNodeEnriched
from services.lifecycle.record_api import LeaseRecord, OwnRecord, Record
from services.lifecycle.settings import LifecycleSettings
from services.lifecycle.taints_api import ShutdownTaints
from services.lifecycle.watch_lease import WatchLease

log = logging.getLogger(__name__)

_LEASE_CONNECTIONS = 2  # a deletion that hangs must not delay a renewal


class LifecycleService:
    """One of several leads; all follow, so that a standby knows the cluster when it comes to lead."""

    wiring = LIFECYCLE

    def __init__(self, parts: Parts, settings: LifecycleSettings) -> None:
        self._parts = parts
        self._settings = settings
        self._started = parts.monotonic()
        self._not_taken_in: set[str] = set()  # subjects of which we do not know what they say
        self._wanted: dict[str, None] = {}
        self._again: set[str] = set()
        self._news = asyncio.Event()
        self._known = KnownNodes()
        self._table = FlowTable(
            clock=parts.monotonic,
            on_message=self._heard,
            on_dropped=self._dropped,
            on_void=self._all_is_void,
            on_caught_up=self._begin_anew,
        )
        kube = parts.kubernetes()
        self._apart = kube.apart(connections=_LEASE_CONNECTIONS)
        self._lease = WatchLease(
            self._lock() if settings.takes_lease else None,
            gained=self._begin_anew,
            retry_seconds=settings.retry_period_seconds,
            clock=parts.monotonic,
            jitter=parts.random.random,
        )
        self._ownership = WatchOwnership(
            settings.cloud_config,
            settings.file,
            service=LIFECYCLE.service,
            controller=NODE_LIFECYCLE,
            look_seconds=settings.file_look_seconds,
            changed=self._want_all,
            now=parts.now,
        )
        self._events = NodeEvents(
            kube, is_foreign=self._is_foreign, now=parts.now, observe_only=settings.observe_only
        )
        self._on_node_enriched = self._on_node_enriched_of(kube)

    async def run(self) -> None:
        """Work until cancelled. A deletion under way may happen all the same: it has been counted."""
        metrics.LEADER_SILENCE.labels(LIFECYCLE.service).set_function(self._table.leader_silence_seconds)
        try:
            async with asyncio.TaskGroup() as tasks:
                following = self._parts.bus.follow(
                    LIFECYCLE.service, f"{FLOW}.>", self._table, but_not=is_about_a_csr
                )
                tasks.create_task(following)
                tasks.create_task(self._lease.run())
                tasks.create_task(self._ownership.run())
                tasks.create_task(self._events.run())
                tasks.create_task(self._look_for_ever())
                tasks.create_task(self._look_around_for_ever())
        finally:
            await self._events.last_words()
            await self._apart.close()

    def problems(self) -> tuple[str, ...]:
        """Why nothing is decided now; a standby has nothing to decide and is ready."""
        paused = self._paused()
        return (*((paused,) if paused else ()), *self._lease.problems(), *self._ownership.problems())

    @property
    def known(self) -> Known:
        """By what machines are told apart, as of now."""
        return self._known.known

    def standing(self) -> Standing:
        """What we ourselves are at this moment."""
        at, since = self._parts.monotonic(), self._lease.leading_since()
        return Standing(
            running=timedelta(seconds=at - self._started),
            leading=None if since is None else timedelta(seconds=at - since),
            paused=self._paused(),
        )

    def _paused(self) -> str:
        """Why nothing may be decided."""
        if why := self._table.problems():
            return "; ".join(why)
        if self._not_taken_in:
            return f"defect: no sense could be made of {min(self._not_taken_in)}, so something may be missing"
        if self._settings.observe_only:
            return ""
        return self._table.why_not_led(silence_seconds=self._settings.renew_deadline_seconds)

    def _able(self) -> bool:
        standing = self.standing()
        return standing.leading is not None and not standing.paused

    def _judge(self, case: Case) -> Delete | Keep:
        parts = self._parts
        return decide(case, self._settings.terms, self.standing(), now=parts.now(), at=parts.monotonic())

    # ---- what the parts need of one another

    def _is_foreign(self, name: str) -> bool:
        node = self._known.node(name)
        return node is not None and bool(not_ours(self._ownership.ownership(), node))

    def _lock(self) -> LeaseLock:
        settings = self._settings
        return LeaseLock(
            self._apart,
            namespace=settings.lease_namespace,
            name=settings.lease_name,
            identity=self._parts.identity,
            now=self._parts.now,
            clock=self._parts.monotonic,
            duration_seconds=int(settings.lease_duration_seconds),
            renew_deadline_seconds=settings.renew_deadline_seconds,
        )

    def _record(self) -> Record:
        settings, now = self._settings, self._parts.now
        if settings.dry:
            return OwnRecord(most=settings.most_per_hour, now=now)
        return LeaseRecord(
            self._apart,
            namespace=settings.lease_namespace,
            name=settings.lease_name,
            holder=self._parts.identity if settings.takes_lease else "",
            writing=self._lease.writing,
            most=settings.most_per_hour,
            call_seconds=settings.renew_deadline_seconds / 4,  # as a renewal, which waits for it
            now=now,
        )

    def _on_node_enriched_of(self, kube: KubeApi) -> OnNodeEnriched:
        settings, parts, ownership = self._settings, self._parts, self._ownership.ownership
        deletions = Deletions(
            kube,
            known=self._known,
            record=self._record(),
            events=self._events,
            ownership=ownership,
            judge=self._judge,
            dry=settings.dry,
            clock=parts.monotonic,
        )
        return OnNodeEnriched(
            known=self._known,
            taints=ShutdownTaints(kube, ownership=ownership, dry=settings.dry),
            deletions=deletions,
            decisions=Decisions(parts.bus, service=LIFECYCLE.service, kind="node", now=parts.now, called={}),
            ownership=ownership,
            judge=self._judge,
            gcp_spot=settings.terms.gcp_spot,
        )

    # ---- who is looked at

    async def _look_for_ever(self) -> None:
        # One at a time: there is no hurry, and whoever deletes must not race with himself.
        while True:
            await self._news.wait()
            while self._wanted:
                name = next(iter(self._wanted))
                del self._wanted[name]
                await self._look(name)
            self._news.clear()

    async def _look(self, name: str) -> None:
        if not self._able():
            self._again.add(name)
            return
        try:
            await self._on_node_enriched(name)
        except (TemporaryError, PermanentError) as error:
            log.warning("the Node is looked at again soon", extra={"node": name, "error": str(error)})
            self._again.add(name)
        except Exception:
            # Whatever people and machines write must not keep us from the other Nodes.
            log.exception("the Node could not be looked at", extra={"node": name})

    async def _look_around_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.look_around_seconds)
            self.look_around()

    def look_around(self) -> None:
        """Look again at what failed, or came while nothing could be decided, and at what only time proves."""
        metrics.LIFECYCLE_PROVING.set(self._known.proving())
        again, self._again = self._again, set()
        for name in again:
            self._want(name)
        if self._settings.terms.gcp_spot:
            self._want_all()

    def _want(self, name: str) -> None:
        if self._on_node_enriched.wants(name):
            self._wanted[name] = None
            self._news.set()

    def _want_all(self) -> None:
        for name in self._known.names():
            self._want(name)

    # ---- what the flow says

    def _begin_anew(self) -> None:
        """Something may have been missed: what was seen before proves nothing."""
        self._known.forget_histories()
        self._want_all()

    def _heard(self, message: Message) -> None:
        try:
            self._take_in(message.event)
            self._not_taken_in.discard(message.subject)
        except Exception:
            # Whoever wrote it must neither end the process nor hide a machine: until it is replaced or gone,
            # nothing is deleted.
            self._not_taken_in.add(message.subject)
            log.exception("a message could not be taken in", extra={"subject": message.subject})

    def _take_in(self, event: object) -> None:
        match event:
            case NodeObserved(node=node):
                self._observed(node)
            case NodeGone(name=name):
                self._gone(name)
            case NodeEnriched(node=node) | NodeUnreachable(node=node):
                self._known.said(event, self._parts.monotonic())
                self._want(node.name)
            case EnrichedNodeGone(name=name):
                self._known.enriched_gone(name)

    def _dropped(self, subject: str) -> None:
        """The stream holds it no more: that is how long it has been gone."""
        self._not_taken_in.discard(subject)
        if subject.startswith(f"{OBSERVED_NODE}."):
            self._gone(name_in(subject, OBSERVED_NODE))
        elif subject.startswith(f"{ENRICHED_NODE}."):
            self._known.enriched_gone(name_in(subject, ENRICHED_NODE))

    def _all_is_void(self) -> None:
        self._not_taken_in.clear()
        self._known.clear()
        self._wanted.clear()
        self._again.clear()
        self._on_node_enriched.forget_all()

    def _observed(self, node: Node) -> None:
        before = self._known.node(node.name)
        if before is not None and before.uid != node.uid:
            self._on_node_enriched.forget(node.name)
        self._known.observed(node)
        self._want(node.name)

    def _gone(self, name: str) -> None:
        self._known.gone(name)
        self._on_node_enriched.forget(name)


LIFECYCLE_RUN = Run(
    wiring=LIFECYCLE, settings=LifecycleSettings, build=LifecycleService, controller=NODE_LIFECYCLE
)
