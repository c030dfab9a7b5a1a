"""csr: consumes enriched requests, follows the flow, and writes approvals and denials."""

import msgspec

from libs.common.bus.cache_sync import CacheSync
from libs.common.bus.consumer_middleware import ConsumerMiddleware
from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.delivery import TemporaryError
from libs.common.bus.event_applier import EventApplier
from libs.common.bus.follow_flow import follow_flow
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.controllers import CSR_APPROVAL
from libs.common.contract.events import CsrGone, EnrichedCsrGone
from libs.common.contract.services import CSR
from libs.common.kube.event_recorder import EventRecorder
from libs.common.service.config_reload import OwnershipReloader
from libs.common.service.leader_gate import LeaderGate
from libs.common.service.run_together import run_together
from libs.common.service.service import Dependencies, ServiceDefinition
from libs.common.service.waiting_objects import WaitingObjects
from services.csr.api_endpoint_watcher import ApiEndpointWatcher
from services.csr.approval_writer import ApprovalWriter
from services.csr.claim_index import ClaimIndex
from services.csr.compact_message import compact_message
from services.csr.decide import ApprovalPolicy
from services.csr.flow_event_handler import FlowEventHandler
from services.csr.metadata_reports import MetadataReports
from services.csr.node_events import COMPONENT, NodeEvents
from services.csr.on_csr_enriched import OnCsrEnriched, WaitingRequest
from services.csr.pending_requests import PendingRequests
from services.csr.rate_limiter import NodeRateLimiter
from services.csr.request_evaluator import RequestEvaluator
from services.csr.request_readiness import find_readiness_problems
from services.csr.service_networks import ServiceNetworks
from services.csr.settings import CsrSettings
from services.csr.waiting_request_reconciler import WaitingRequestReconciler


class CsrService:
    """Any number of replicas share the work; each has its own stream cache."""

    spec = CSR

    def __init__(self, dependencies: Dependencies, settings: CsrSettings) -> None:
        self._dependencies = dependencies
        self._settings = settings
        self._was_paused = False  # a message was requeued because csr may not decide now
        self._reports = MetadataReports(
            repeat_seconds=settings.republish_interval_seconds, without_talos=settings.without_talos
        )
        self._pending_requests = PendingRequests()
        self._waiting_requests = WaitingObjects[WaitingRequest]()
        self._claim_index = claims = ClaimIndex()
        self._stream_cache = table = StreamCache(
            clock=dependencies.monotonic,
            should_keep=_is_cacheable,
            compact=compact_message,
            on_message=self._on_message,
            on_expired=self._on_expired,
            on_stream_replaced=self._on_stream_replaced,
            on_caught_up=self._on_caught_up,
        )
        self._leader_gate = LeaderGate(
            table, settings.leader_silence_seconds, observe_only=settings.observe_only
        )
        self._cache_sync = CacheSync(table, problems=find_readiness_problems)
        dry = settings.observe_only
        kube = dependencies.require_kube()
        self._decision_publisher = DecisionPublisher(
            dependencies.bus,
            service=CSR.service,
            kind="csr",
            now=dependencies.now,
            outcome_aliases={"approved": "would-approve", "denied": "would-deny"} if dry else {},
        )
        self._ownership_reloader = OwnershipReloader(
            settings,
            service=CSR.service,
            controller=CSR_APPROVAL,
            on_change=self._enqueue_all,
            now=dependencies.now,
        )
        self._service_networks = ServiceNetworks(
            settings.service_cluster_ip_range, on_change=self._enqueue_all
        )
        self._api_endpoint_watcher = ApiEndpointWatcher(
            kube, on_change=self._enqueue_all, clock=dependencies.monotonic, random=dependencies.random
        )
        self._event_recorder = EventRecorder(
            kube,
            component=COMPONENT,
            is_foreign=self._is_foreign,
            now=dependencies.now,
            observe_only=dry,
        )
        node_events = NodeEvents(self._event_recorder, claims.get_node)
        budget = NodeRateLimiter()
        evaluator = RequestEvaluator(
            stream_cache=table,
            pending_requests=self._pending_requests,
            claim_index=claims,
            reports=self._reports,
            rate_limiter=budget,
            policy=self._build_policy,
            ownership=self._ownership_reloader.ownership,
            list_pause_reasons=self._list_pause_reasons,
            clock=dependencies.monotonic,
        )
        self._on_csr_enriched = OnCsrEnriched(
            cache_sync=self._cache_sync,
            evaluator=evaluator,
            rate_limiter=budget,
            pending_requests=self._pending_requests,
            waiting_requests=self._waiting_requests,
            approval_writer=ApprovalWriter(kube, observe_only=dry),
            decision_publisher=self._decision_publisher,
            node_events=node_events,
            clock=dependencies.monotonic,
        )
        middleware = ConsumerMiddleware.for_service(CSR.service, "csr", dependencies)
        self._handle = middleware.wrap(self._handle_message)
        self._waiting_request_reconciler = WaitingRequestReconciler(
            stream_cache=table,
            cache_sync=self._cache_sync,
            pending_requests=self._pending_requests,
            waiting_requests=self._waiting_requests,
            node_events=node_events,
            handle=self._handle,
            clock=dependencies.monotonic,
            now=dependencies.now,
        )
        self._flow_event_handler = FlowEventHandler(
            claim_index=claims,
            pending_requests=self._pending_requests,
            waiting_requests=self._waiting_requests,
            service_networks=self._service_networks,
            on_csr_enriched=self._on_csr_enriched,
            decision_publisher=self._decision_publisher,
            node_events=node_events,
            reconciler=self._waiting_request_reconciler,
        )
        self._event_applier = EventApplier(
            self._flow_event_handler.apply, consequence="claims may be missing"
        )

    async def run(self) -> None:
        """Run until cancelled; finish messages in flight."""
        try:
            await run_together(
                follow_flow(self._dependencies.bus, CSR.service, self._stream_cache),
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
            *self._list_pause_reasons(),
            *self._reports.problems(),
            *self._service_networks.problems(without_talos=self._reports.without_talos),
            *self._api_endpoint_watcher.problems(),
            *self._ownership_reloader.problems(),
        )

    def _list_pause_reasons(self) -> tuple[str, ...]:
        paused = self._explain_pause()
        return (*self._cache_sync.problems(), *((paused,) if paused else ()))

    async def _run_consumers(self) -> None:
        await self._leader_gate.wait()
        [durable] = CSR.durables
        await run_together(
            self._waiting_request_reconciler.run(),
            self._dependencies.bus.consume(durable, self._handle, in_flight=self._settings.in_flight),
        )

    async def _handle_message(self, message: Message) -> None:
        try:
            await self._on_csr_enriched(message)
        except TemporaryError:
            self._was_paused |= bool(self._list_pause_reasons())
            raise

    def _explain_pause(self) -> str:
        """Return why csr may write nothing; "" if it may."""
        return self._event_applier.explain_failure() or self._leader_gate.why_paused()

    def _build_policy(self) -> ApprovalPolicy:
        """Build the policy from the operator's settings and the current data about the cluster."""
        return msgspec.structs.replace(
            self._settings.policy,
            service_networks=self._service_networks.cidrs,
            has_service_cidrs=self._service_networks.has_service_cidrs,
            api_endpoint=self._api_endpoint_watcher.endpoint,
        )

    def _is_foreign(self, name: str) -> bool:
        """Whether another controller manages the Node of that name."""
        node = self._claim_index.get_node(name)
        return node is not None and bool(why_not_owned(self._ownership_reloader.ownership(), node))

    # ---- messages of the flow

    def _on_message(self, message: Message) -> None:
        self._event_applier.apply(message)
        self._leader_gate.on_message(message)
        if self._reports.apply(
            message,
            now=self._dependencies.monotonic(),
            is_live=not self._stream_cache.is_replaying,
            is_complete=self._stream_cache.is_complete,
        ):
            self._enqueue_all()
        self._cache_sync.wake_waiters()
        if self._was_paused and not self._list_pause_reasons():
            self._enqueue_all()  # the bus may deliver requeued messages only after a minute

    def _on_expired(self, subject: str) -> None:
        """Handle a subject that the stream no longer contains."""
        self._event_applier.handle_expired(subject)
        self._flow_event_handler.handle_expired(subject)
        if self._reports.handle_expired(subject):
            self._enqueue_all()

    def _on_caught_up(self) -> None:
        """End the replay: evaluate all pending requests, since the old messages may not be redelivered."""
        self._reports.handle_caught_up(is_complete=self._stream_cache.is_complete)
        self._enqueue_all()
        self._cache_sync.wake_waiters()

    def _on_stream_replaced(self) -> None:
        self._event_applier.clear()
        self._reports.clear()
        self._flow_event_handler.clear()

    def _enqueue_all(self) -> None:
        """Enqueue each pending request that no newer one supersedes."""
        self._was_paused = False
        self._waiting_request_reconciler.enqueue(
            [pending.order.name for pending in self._pending_requests.iterate_newest()]
        )


def _is_cacheable(message: Message) -> bool:
    """Whether to cache a message; not a deletion, since one kubelet can cause any number of them."""
    return not isinstance(message.event, CsrGone | EnrichedCsrGone)


CSR_DEFINITION = ServiceDefinition(spec=CSR, settings=CsrSettings, build=CsrService)
