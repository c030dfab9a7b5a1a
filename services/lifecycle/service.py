"""lifecycle: follows the flow, holds its own Lease, and looks at each Node that is not plainly well."""

import asyncio
import logging
from datetime import timedelta

from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.delivery import PermanentError, TemporaryError
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.controllers import NODE_LIFECYCLE
from libs.common.contract.events import (
    EnrichedNodeGone,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
)
from libs.common.contract.node import Node
from libs.common.contract.services import LIFECYCLE
from libs.common.contract.subjects import ENRICHED_NODE, FLOW, OBSERVED_NODE, is_csr_subject, object_name_in
from libs.common.kube.api import KubeApi
from libs.common.kube.lease_lock import LeaseLock
from libs.common.observability import metrics
from libs.common.service.ownership_reloader import OwnershipReloader
from libs.common.service.service import Dependencies, ServiceDefinition
from services.lifecycle.decide import Delete, DeletionCase, Keep, ReplicaStatus, decide, why_excluded
from services.lifecycle.deletion_budget import DeletionBudget, InMemoryDeletionBudget, LeaseDeletionBudget
from services.lifecycle.evidence import MachineIndex
from services.lifecycle.leader_elector import LeaderElector
from services.lifecycle.node_deleter import NodeDeleter
from services.lifecycle.node_event_recorder import NodeEventRecorder
from services.lifecycle.node_index import NodeIndex
from services.lifecycle.on_node_enriched import OnNodeEnriched
from services.lifecycle.settings import LifecycleSettings
from services.lifecycle.shutdown_taint_writer import ShutdownTaintWriter

log = logging.getLogger(__name__)

_MAX_LEASE_CONNECTIONS = 2  # a deletion that hangs must not delay a renewal


class LifecycleService:
    """One of several leads; all follow, so that a standby knows the cluster when it comes to lead."""

    spec = LIFECYCLE

    def __init__(self, dependencies: Dependencies, settings: LifecycleSettings) -> None:
        self._dependencies = dependencies
        self._settings = settings
        self._started_at = dependencies.monotonic()
        self._failed_subjects: set[str] = set()  # subjects of which we do not know what they say
        self._queue: dict[str, None] = {}
        self._retries: set[str] = set()
        self._wakeup = asyncio.Event()
        self._node_index = NodeIndex()
        self._stream_cache = StreamCache(
            clock=dependencies.monotonic,
            on_message=self._on_message,
            on_expired=self._on_expired,
            on_stream_replaced=self._on_stream_replaced,
            on_caught_up=self._restart_evidence,
        )
        kube = dependencies.require_kube()
        self._lease_client = kube.with_own_connections(connections=_MAX_LEASE_CONNECTIONS)
        self._leader_elector = LeaderElector(
            self._make_lock() if settings.uses_lease else None,
            on_started_leading=self._restart_evidence,
            retry_seconds=settings.retry_period_seconds,
            clock=dependencies.monotonic,
            jitter=dependencies.random.random,
        )
        self._ownership_reloader = OwnershipReloader(
            settings.cloud_config,
            settings.file,
            service=LIFECYCLE.service,
            controller=NODE_LIFECYCLE,
            poll_seconds=settings.cloud_config_poll_seconds,
            on_change=self._enqueue_all,
            now=dependencies.now,
        )
        self._event_recorder = NodeEventRecorder(
            kube, is_foreign=self._is_foreign, now=dependencies.now, observe_only=settings.observe_only
        )
        self._on_node_enriched = self._make_on_node_enriched(kube)

    async def run(self) -> None:
        """Work until cancelled. A deletion under way may happen all the same: it has been counted."""
        metrics.LEADER_SILENCE.labels(LIFECYCLE.service).set_function(
            self._stream_cache.leader_silence_seconds
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                following = self._dependencies.bus.follow(
                    LIFECYCLE.service, f"{FLOW}.>", self._stream_cache, exclude=is_csr_subject
                )
                tasks.create_task(following)
                tasks.create_task(self._leader_elector.run())
                tasks.create_task(self._ownership_reloader.run())
                tasks.create_task(self._event_recorder.run())
                tasks.create_task(self._run_worker())
                tasks.create_task(self._run_requeue())
        finally:
            await self._event_recorder.flush()
            await self._lease_client.close()

    def problems(self) -> tuple[str, ...]:
        """Why nothing is decided now; a standby has nothing to decide and is ready."""
        paused = self._why_paused()
        return (
            *((paused,) if paused else ()),
            *self._leader_elector.problems(),
            *self._ownership_reloader.problems(),
        )

    @property
    def machines(self) -> MachineIndex:
        """By what machines are told apart, as of now."""
        return self._node_index.machines

    def replica_status(self) -> ReplicaStatus:
        """What we ourselves are at this moment."""
        at, since = self._dependencies.monotonic(), self._leader_elector.leading_since()
        return ReplicaStatus(
            uptime=timedelta(seconds=at - self._started_at),
            leading_for=None if since is None else timedelta(seconds=at - since),
            pause_reason=self._why_paused(),
        )

    def _why_paused(self) -> str:
        """Why nothing may be decided."""
        if why := self._stream_cache.problems():
            return "; ".join(why)
        if self._failed_subjects:
            return (
                f"defect: no sense could be made of {min(self._failed_subjects)}, so something may be missing"
            )
        if self._settings.observe_only:
            return ""
        return self._stream_cache.why_no_leader(max_silence_seconds=self._settings.renew_deadline_seconds)

    def _can_reconcile(self) -> bool:
        standing = self.replica_status()
        return standing.leading_for is not None and not standing.pause_reason

    def _decide(self, case: DeletionCase) -> Delete | Keep:
        parts = self._dependencies
        return decide(
            case,
            self._settings.deletion_policy,
            self.replica_status(),
            now=parts.now(),
            monotonic_now=parts.monotonic(),
        )

    # ---- what the parts need of one another

    def _is_foreign(self, name: str) -> bool:
        node = self._node_index.get_node(name)
        return node is not None and bool(why_excluded(self._ownership_reloader.ownership(), node))

    def _make_lock(self) -> LeaseLock:
        settings = self._settings
        return LeaseLock(
            self._lease_client,
            namespace=settings.lease_namespace,
            name=settings.lease_name,
            identity=self._dependencies.identity,
            now=self._dependencies.now,
            clock=self._dependencies.monotonic,
            duration_seconds=int(settings.lease_duration_seconds),
            renew_deadline_seconds=settings.renew_deadline_seconds,
        )

    def _make_budget(self) -> DeletionBudget:
        settings, now = self._settings, self._dependencies.now
        if settings.is_dry_run:
            return InMemoryDeletionBudget(limit=settings.max_deletions_per_hour, now=now)
        return LeaseDeletionBudget(
            self._lease_client,
            namespace=settings.lease_namespace,
            name=settings.lease_name,
            holder=self._dependencies.identity if settings.uses_lease else "",
            write_lock=self._leader_elector.write_lock,
            limit=settings.max_deletions_per_hour,
            request_timeout_seconds=settings.renew_deadline_seconds / 4,  # as a renewal, which waits for it
            now=now,
        )

    def _make_on_node_enriched(self, kube: KubeApi) -> OnNodeEnriched:
        settings, parts, ownership = self._settings, self._dependencies, self._ownership_reloader.ownership
        deletions = NodeDeleter(
            kube,
            node_index=self._node_index,
            budget=self._make_budget(),
            event_recorder=self._event_recorder,
            ownership=ownership,
            decide=self._decide,
            is_dry_run=settings.is_dry_run,
            clock=parts.monotonic,
        )
        return OnNodeEnriched(
            node_index=self._node_index,
            taint_writer=ShutdownTaintWriter(kube, ownership=ownership, is_dry_run=settings.is_dry_run),
            node_deleter=deletions,
            decision_publisher=DecisionPublisher(
                parts.bus, service=LIFECYCLE.service, kind="node", now=parts.now, outcome_aliases={}
            ),
            ownership=ownership,
            decide=self._decide,
            deletes_gcp_spot=settings.deletion_policy.deletes_gcp_spot,
        )

    # ---- who is looked at

    async def _run_worker(self) -> None:
        # One at a time: there is no hurry, and whoever deletes must not race with himself.
        while True:
            await self._wakeup.wait()
            while self._queue:
                name = next(iter(self._queue))
                del self._queue[name]
                await self._reconcile(name)
            self._wakeup.clear()

    async def _reconcile(self, name: str) -> None:
        if not self._can_reconcile():
            self._retries.add(name)
            return
        try:
            await self._on_node_enriched(name)
        except (TemporaryError, PermanentError) as error:
            log.warning("the Node is looked at again soon", extra={"node": name, "error": str(error)})
            self._retries.add(name)
        except Exception:
            # Whatever people and machines write must not keep us from the other Nodes.
            log.exception("the Node could not be looked at", extra={"node": name})

    async def _run_requeue(self) -> None:
        while True:
            await asyncio.sleep(self._settings.requeue_interval_seconds)
            self.requeue()

    def requeue(self) -> None:
        """Look again at what failed, or came while nothing could be decided, and at what only time proves."""
        metrics.LIFECYCLE_PROVING.set(self._node_index.count_histories())
        again, self._retries = self._retries, set()
        for name in again:
            self._enqueue(name)
        if self._settings.deletion_policy.deletes_gcp_spot:
            self._enqueue_all()

    def _enqueue(self, name: str) -> None:
        if self._on_node_enriched.needs_reconcile(name):
            self._queue[name] = None
            self._wakeup.set()

    def _enqueue_all(self) -> None:
        for name in self._node_index.list_names():
            self._enqueue(name)

    # ---- what the flow says

    def _restart_evidence(self) -> None:
        """Something may have been missed: what was seen before proves nothing."""
        self._node_index.forget_histories()
        self._enqueue_all()

    def _on_message(self, message: Message) -> None:
        try:
            self._apply_event(message.event)
            self._failed_subjects.discard(message.subject)
        except Exception:
            # Whoever wrote it must neither end the process nor hide a machine: until it is replaced or gone,
            # nothing is deleted.
            self._failed_subjects.add(message.subject)
            log.exception("a message could not be taken in", extra={"subject": message.subject})

    def _apply_event(self, event: object) -> None:
        match event:
            case NodeObserved(node=node):
                self._on_node_observed(node)
            case NodeGone(name=name):
                self._on_node_gone(name)
            case NodeEnriched(node=node) | NodeUnreachable(node=node):
                self._node_index.upsert_report(event, self._dependencies.monotonic())
                self._enqueue(node.name)
            case EnrichedNodeGone(name=name):
                self._node_index.remove_report(name)

    def _on_expired(self, subject: str) -> None:
        """The stream holds it no more: that is how long it has been gone."""
        self._failed_subjects.discard(subject)
        if subject.startswith(f"{OBSERVED_NODE}."):
            self._on_node_gone(object_name_in(subject, OBSERVED_NODE))
        elif subject.startswith(f"{ENRICHED_NODE}."):
            self._node_index.remove_report(object_name_in(subject, ENRICHED_NODE))

    def _on_stream_replaced(self) -> None:
        self._failed_subjects.clear()
        self._node_index.clear()
        self._queue.clear()
        self._retries.clear()
        self._on_node_enriched.forget_all()

    def _on_node_observed(self, node: Node) -> None:
        before = self._node_index.get_node(node.name)
        if before is not None and before.uid != node.uid:
            self._on_node_enriched.forget(node.name)
        self._node_index.upsert_node(node)
        self._enqueue(node.name)

    def _on_node_gone(self, name: str) -> None:
        self._node_index.remove_node(name)
        self._on_node_enriched.forget(name)


LIFECYCLE_DEFINITION = ServiceDefinition(spec=LIFECYCLE, settings=LifecycleSettings, build=LifecycleService)
