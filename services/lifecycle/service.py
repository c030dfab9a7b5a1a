"""lifecycle: follows the flow, holds its own Lease, and deletes Nodes whose machines are proven gone."""

from datetime import timedelta

from libs.common.bus.cloud_follower import CloudFollower
from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.flow import Flow
from libs.common.contract import events
from libs.common.contract.controllers import NODE_LIFECYCLE
from libs.common.contract.events import InstanceReport
from libs.common.contract.node import Node
from libs.common.contract.services import LIFECYCLE
from libs.common.contract.subjects import INSTANCE_REPORTS, is_csr_or_service_subject
from libs.common.kube.api import KubeApi
from libs.common.kube.event_recorder import EventRecorder
from libs.common.observability import metrics
from libs.common.service.config_reload import OwnershipReloader
from libs.common.service.leader_elector import LeaderElector
from libs.common.service.pulse_publisher import LeadingService
from libs.common.service.service import Dependencies, ServiceDefinition, run_together
from services.lifecycle.core.decide import Delete, Keep, ReplicaStatus, decide, explain_exclusion
from services.lifecycle.core.node_index import DeletionCase, NodeIndex
from services.lifecycle.deletion_budget import DeletionBudget
from services.lifecycle.node_deleter import COMPONENT, NodeDeleter
from services.lifecycle.on_node_enriched import NodeReconciler
from services.lifecycle.settings import LifecycleSettings

_MAX_LEASE_CONNECTIONS = 2  # a deletion that hangs must not delay a renewal


class LifecycleService:
    """One of several replicas leads; all follow the flow, so that a standby has the state when it leads."""

    spec = LIFECYCLE

    def __init__(self, dependencies: Dependencies, settings: LifecycleSettings) -> None:
        self._dependencies = dependencies
        self._settings = settings
        self._started_at = dependencies.monotonic()
        self._node_index = NodeIndex()
        self._flow = Flow(
            parts=dependencies,
            service=LIFECYCLE.service,
            max_silence_seconds=settings.renew_deadline_seconds,
            observe_only=settings.observe_only,
            apply=self._apply_event,
            consequence="evidence may be missing",
            exclude=is_csr_or_service_subject,
            on_stream_replaced=self._on_stream_replaced,
            on_caught_up=self._restart_evidence,
            on_unreadable=self._node_index.forget_histories,  # it may contradict them
        )
        self._cloud_follower = CloudFollower(
            subjects=INSTANCE_REPORTS,
            kind=InstanceReport,
            on_event=self._apply_instance_report,
            on_stream_replaced=self._node_index.forget_instances,
            on_missed=self._node_index.forget_histories,
        )
        kube = dependencies.require_kube()
        self._lease_client = kube.with_own_connections(connections=_MAX_LEASE_CONNECTIONS)
        self._leader_elector = LeaderElector(
            self._lease_client if settings.uses_lease else None,
            settings,
            dependencies,
            set_gauge=metrics.LIFECYCLE_LEADER.set,
        )
        self._ownership_reloader = OwnershipReloader(
            settings,
            service=LIFECYCLE.service,
            controller=NODE_LIFECYCLE,
            on_change=self._enqueue_all,
            now=dependencies.now,
        )
        self._event_recorder = EventRecorder(
            kube,
            component=COMPONENT,
            is_foreign=self._is_foreign,
            now=dependencies.now,
            observe_only=settings.observe_only,
        )
        self._reconciler = self._build_reconciler(kube)

    async def run(self) -> None:
        """Run until cancelled. A deletion in flight may still happen, and it is counted."""
        try:
            await run_together(
                self._flow.run(),
                self._cloud_follower.run(self._dependencies.bus, LIFECYCLE.service),
                self._leader_elector.run(self._on_started_leading),
                self._ownership_reloader.run(),
                self._event_recorder.run(),
                self._reconciler.run(),
            )
        finally:
            await self._event_recorder.flush()
            await self._lease_client.close()

    @property
    def is_leading(self) -> bool:
        """Whether this replica has the Lease."""
        return self._leader_elector.leading_since() is not None

    def problems(self) -> tuple[str, ...]:
        """Return why lifecycle decides nothing now; a standby need not decide and is ready."""
        return (
            *self._list_pause_reasons(),
            *self._leader_elector.problems(),
            *self._ownership_reloader.problems(),
        )

    def replica_status(self) -> ReplicaStatus:
        """Return the current state of this replica."""
        at, since = self._dependencies.monotonic(), self._leader_elector.leading_since()
        return ReplicaStatus(
            uptime=timedelta(seconds=at - self._started_at),
            leading_for=None if since is None else timedelta(seconds=at - since),
            pause_reason="; ".join(self._list_pause_reasons()),
        )

    def _list_pause_reasons(self) -> tuple[str, ...]:
        return (*self._flow.list_pause_reasons(), *self._cloud_follower.problems())

    def _can_reconcile(self) -> bool:
        status = self.replica_status()
        return status.leading_for is not None and not status.pause_reason

    def _build_case(self, node: Node) -> DeletionCase:
        return self._node_index.build_case(node, self._dependencies.now(), self._dependencies.monotonic())

    def _decide(self, case: DeletionCase) -> Delete | Keep:
        return decide(case, self._settings.deletion_policy, self.replica_status())

    # ---- wiring of the parts

    def _is_foreign(self, name: str) -> bool:
        node = self._node_index.get_node(name)
        return node is not None and bool(explain_exclusion(self._ownership_reloader.ownership(), node))

    def _build_reconciler(self, kube: KubeApi) -> NodeReconciler:
        settings, parts, ownership = self._settings, self._dependencies, self._ownership_reloader.ownership
        return NodeReconciler(
            kube=kube,
            settings=settings,
            node_index=self._node_index,
            monotonic=parts.monotonic,
            build_case=self._build_case,
            decide=self._decide,
            ownership=ownership,
            can_reconcile=self._can_reconcile,
            node_deleter=NodeDeleter(
                kube,
                node_index=self._node_index,
                budget=DeletionBudget(
                    self._lease_client,
                    settings,
                    holder=parts.identity if settings.uses_lease else "",
                    now=parts.now,
                ),
                event_recorder=self._event_recorder,
                ownership=ownership,
                decide=lambda node: self._decide(self._build_case(node)),
                is_dry_run=settings.is_dry_run,
                deadline_seconds=settings.request_deadline_seconds,
                clock=parts.monotonic,
            ),
            event_recorder=self._event_recorder,
            decision_publisher=DecisionPublisher(
                parts.bus, service=LIFECYCLE.service, kind="node", now=parts.now
            ),
        )

    # ---- messages of the flow, and reports of clouds

    def _apply_instance_report(self, report: InstanceReport) -> None:
        if self._node_index.apply_instance_report(report, self._dependencies.monotonic()):
            self._reconciler.enqueue(report.name)

    def _enqueue_all(self) -> None:
        self._reconciler.enqueue_all()

    async def _on_started_leading(self, lease_transitions: int) -> None:
        self._restart_evidence()

    def _restart_evidence(self) -> None:
        """Drop the poll histories: contradicting messages may have been missed."""
        self._node_index.forget_histories()
        self._enqueue_all()

    def _apply_event(self, event: object) -> None:
        match event:
            case events.NodeObserved(node=node):
                self._on_node_observed(node)
            case events.NodeGone(name=name):
                self._node_index.remove_node(name)
                self._reconciler.forget(name)
            case events.NodeEnriched(node=node) | events.NodeUnreachable(node=node):
                self._node_index.upsert_report(event, self._dependencies.monotonic())
                self._reconciler.enqueue(node.name)
            case events.EnrichedNodeGone(name=name):
                self._node_index.remove_report(name)

    def _on_stream_replaced(self) -> None:
        self._node_index.clear()
        self._reconciler.forget_all()

    def _on_node_observed(self, node: Node) -> None:
        before = self._node_index.get_node(node.name)
        if before is not None and before.uid != node.uid:
            self._reconciler.forget(node.name)
        self._node_index.upsert_node(node)
        self._reconciler.enqueue(node.name)


def _build(dependencies: Dependencies, settings: LifecycleSettings) -> LeadingService:
    return LifecycleService(dependencies, settings)


LIFECYCLE_DEFINITION = ServiceDefinition(spec=LIFECYCLE, settings=LifecycleSettings, build=_build)
