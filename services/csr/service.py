"""csr: consumes enriched requests, follows the flow, and writes approvals and denials."""

from collections.abc import Iterable
from typing import Final

from libs.common.bus.consumer_middleware import ConsumerMiddleware
from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.flow import Flow
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.controllers import CSR_APPROVAL
from libs.common.contract.events import CsrGone, CsrObserved, EnrichedCsrGone, SnapshotComplete
from libs.common.contract.services import CSR
from libs.common.contract.subjects import NETWORKS, SNAPSHOT, is_service_subject
from libs.common.kube.event_recorder import EventRecorder
from libs.common.service.config_reload import OwnershipReloader
from libs.common.service.service import Dependencies, ServiceDefinition, run_together
from libs.common.service.startup_gate import StartupGate
from services.csr.api_endpoint_watcher import ApiEndpointWatcher
from services.csr.approval_writer import ApprovalWriter
from services.csr.core.evaluation import RequestEvaluator
from services.csr.core.flow_state import FlowState, compact_message
from services.csr.core.metadata_reports import MetadataReports
from services.csr.node_events import COMPONENT, NodeEvents
from services.csr.on_csr_enriched import OnCsrEnriched
from services.csr.settings import CsrSettings
from services.csr.waiting_request_reconciler import WaitingRequestReconciler

_REQUESTS_NOT_WATCHED: Final = (
    "the watcher does not watch certificate requests: its --controllers omits node-csr-approval, or it lacks "
    "the RBAC rule to list and watch certificatesigningrequests"
)
_OBSERVE_ONLY_OUTCOMES: Final = {"approved": "would-approve", "denied": "would-deny"}


class CsrService:
    """Any number of replicas share the work; each has its own stream cache."""

    spec = CSR

    def __init__(self, dependencies: Dependencies, settings: CsrSettings) -> None:
        kube, now, clock = dependencies.require_kube(), dependencies.now, dependencies.monotonic
        dry = settings.observe_only
        self._bus, self._settings, self._clock = dependencies.bus, settings, clock
        # State from the flow.
        self._state = FlowState(settings.service_cluster_ip_range)
        gate = StartupGate()
        self._reports = MetadataReports(
            gate, republish_seconds=settings.republish_interval_seconds, without_talos=settings.without_talos
        )
        self._flow = Flow(
            parts=dependencies,
            service=CSR.service,
            max_silence_seconds=settings.leader_silence_seconds,
            observe_only=dry,
            apply=self._apply_event,
            consequence="claims may be missing",
            find_problems=_find_cache_problems,
            gate=gate,
            on_gate_open=self._enqueue_all,
            exclude=is_service_subject,
            should_keep=_is_cacheable,
            compact=compact_message,
            on_message=self._on_message,
            on_expired=self._on_expired,
            on_stream_replaced=self._on_stream_replaced,
            # old messages may not be redelivered
            on_caught_up=self._enqueue_all,
        )
        # Configuration, and the identity of the API server.
        self._ownership_reloader = OwnershipReloader(
            settings, service=CSR.service, controller=CSR_APPROVAL, on_change=self._enqueue_all, now=now
        )
        self._api_endpoint_watcher = ApiEndpointWatcher(
            kube, on_change=self._enqueue_all, clock=clock, random=dependencies.random
        )
        # Writes and publications.
        self._event_recorder = EventRecorder(
            kube, component=COMPONENT, is_foreign=self._is_foreign, now=now, observe_only=dry
        )
        self._node_events = NodeEvents(self._event_recorder, self._state.claims.get_node)
        self._decision_publisher = DecisionPublisher(
            dependencies.bus,
            service=CSR.service,
            kind="csr",
            now=now,
            outcome_aliases=_OBSERVE_ONLY_OUTCOMES if dry else {},
        )
        # Decisions.
        evaluator = RequestEvaluator(
            state=self._state,
            stream_cache=self._flow.cache,
            reports=self._reports,
            policy=settings.policy,
            api_endpoint=lambda: self._api_endpoint_watcher.endpoint,
            ownership=self._ownership_reloader.ownership,
            list_pause_reasons=self._flow.list_pause_reasons,
            clock=clock,
        )
        on_csr_enriched = OnCsrEnriched(
            flow=self._flow,
            evaluator=evaluator,
            state=self._state,
            approval_writer=ApprovalWriter(kube, observe_only=dry),
            decision_publisher=self._decision_publisher,
            node_events=self._node_events,
            clock=clock,
        )
        middleware = ConsumerMiddleware(CSR.service, "csr", dependencies)
        self._handle = middleware.wrap(on_csr_enriched)
        self._waiting_request_reconciler = WaitingRequestReconciler(
            flow=self._flow,
            state=self._state,
            node_events=self._node_events,
            handle=self._handle,
            clock=clock,
            now=now,
        )

    async def run(self) -> None:
        """Run until cancelled; finish messages in flight."""
        try:
            await run_together(
                self._flow.run(),
                self._event_recorder.run(),
                self._ownership_reloader.run(),
                self._api_endpoint_watcher.run(),
                self._run_consumers(),
            )
        finally:
            await self._event_recorder.flush()

    def problems(self) -> tuple[str, ...]:
        """Return why csr decides nothing now, or does not apply the newest configuration file."""
        return (
            *self._flow.list_pause_reasons(),
            *self._reports.problems(),
            *self._state.networks.find_problems(without_talos=self._reports.without_talos),
            *self._api_endpoint_watcher.problems(),
            *self._ownership_reloader.problems(),
        )

    async def _run_consumers(self) -> None:
        await self._flow.wait_for_leader()
        [durable] = CSR.durables
        await run_together(
            self._waiting_request_reconciler.run(),
            self._bus.consume(durable, self._handle, in_flight=self._settings.in_flight),
        )

    def _is_foreign(self, name: str) -> bool:
        """Whether another controller manages the Node of that name."""
        node = self._state.claims.get_node(name)
        return node is not None and bool(why_not_owned(self._ownership_reloader.ownership(), node))

    # ---- messages of the flow

    def _on_message(self, message: Message) -> None:
        self._reports.apply(message, now=self._clock(), is_live=not self._flow.cache.is_replaying)

    def _apply_event(self, event: object) -> None:
        requests = self._state.requests.by_name
        was_pending = isinstance(event, CsrObserved) and event.request.name in requests
        self._enqueue(self._state.apply(event))
        match event:
            case CsrObserved(request=request) if was_pending and request.find_condition("Approved"):
                self._node_events.forget_reasons(request.node_name)
            case CsrGone(name=name):
                self._decision_publisher.forget(name)

    def _on_expired(self, message: Message) -> None:
        self._reports.forget(message.subject)
        if message.subject == NETWORKS:
            self._enqueue(self._state.forget_networks())

    def _on_stream_replaced(self) -> None:
        self._reports.clear()
        self._state.clear()
        self._decision_publisher.forget_all()

    def _enqueue(self, names: Iterable[str]) -> None:
        self._waiting_request_reconciler.enqueue(names)

    def _enqueue_all(self) -> None:
        """Enqueue each pending request that no newer one supersedes."""
        self._state.not_ours.clear()  # the ownership may have changed
        self._enqueue(self._state.list_newest())


def _is_cacheable(message: Message) -> bool:
    """Whether to cache a message; not a deletion, since one kubelet can cause any number of them."""
    return not isinstance(message.event, CsrGone | EnrichedCsrGone)


def _find_cache_problems(cache: StreamCache) -> tuple[str, ...]:
    """Return why csr can decide no request: the cache is incomplete, or requests are not watched."""
    snapshot = cache.get_event(SNAPSHOT)
    is_watched = isinstance(snapshot, SnapshotComplete) and snapshot.requests is not None
    return cache.problems() or (() if is_watched else (_REQUESTS_NOT_WATCHED,))


CSR_DEFINITION = ServiceDefinition(spec=CSR, settings=CsrSettings, build=CsrService)
