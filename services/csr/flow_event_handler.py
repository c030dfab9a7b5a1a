"""Applies the events of the flow to the indexes of csr, and enqueues the requests that a change concerns."""

from dataclasses import dataclass

from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.contract import events
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.subjects import ENRICHED_NODE, NETWORKS, OBSERVED_CSR, OBSERVED_NODE, object_name_in
from libs.common.service.waiting_objects import WaitingObjects
from services.csr.claim_index import ClaimIndex
from services.csr.node_events import NodeEvents
from services.csr.on_csr_enriched import OnCsrEnriched, WaitingRequest
from services.csr.pending_requests import PendingRequests
from services.csr.service_networks import ServiceNetworks
from services.csr.waiting_request_reconciler import WaitingRequestReconciler


@dataclass(eq=False, kw_only=True)
class FlowEventHandler:
    """Keeps the claims, the pending and the waiting requests up to date."""

    claim_index: ClaimIndex
    pending_requests: PendingRequests
    waiting_requests: WaitingObjects[WaitingRequest]
    service_networks: ServiceNetworks
    on_csr_enriched: OnCsrEnriched
    decision_publisher: DecisionPublisher
    node_events: NodeEvents
    reconciler: WaitingRequestReconciler

    def apply(self, event: object) -> None:
        """Apply one event; ignore kinds that do not concern csr."""
        self.service_networks.apply(event)
        match event:
            case events.NodeObserved(node=node):
                self.claim_index.upsert_node(node)
                self._on_node_changed(node.name)
            case events.NodeGone(name=name):
                self._on_node_gone(name)
            case events.NodeEnriched(node=node) | events.NodeUnreachable(node=node):
                self.claim_index.upsert_report(event)
                self._on_node_changed(node.name)
            case events.EnrichedNodeGone(name=name):
                self.claim_index.remove_report(name)
                self._on_node_changed(name)
            case events.CsrObserved(request=request):
                self._on_request_observed(request)
            case events.CsrGone(name=name):
                self._on_request_gone(name)

    def handle_expired(self, subject: str) -> None:
        """Handle a subject that the stream no longer contains: its object is long gone."""
        if subject == NETWORKS:
            self.service_networks.forget_report()
        for prefix, gone in (
            (OBSERVED_NODE, self._on_node_gone),
            (ENRICHED_NODE, self.claim_index.remove_report),
            (OBSERVED_CSR, self._on_request_gone),
        ):
            if subject.startswith(f"{prefix}."):
                gone(object_name_in(subject, prefix))

    def clear(self) -> None:
        """Drop everything, after the stream was replaced."""
        self.claim_index.clear()
        self.pending_requests.clear()
        self.waiting_requests.clear()
        self.on_csr_enriched.forget_all()
        self.decision_publisher.forget_all()
        self.reconciler.forget_all()
        self.service_networks.forget_all()

    def _on_node_changed(self, node: str) -> None:
        self.reconciler.enqueue(self.waiting_requests.find_by_cause(node))
        if self.on_csr_enriched.take_skipped(node) and (newest := self.pending_requests.find_newest(node)):
            self.reconciler.enqueue([newest])

    def _on_node_gone(self, name: str) -> None:
        self.claim_index.remove_node(name)
        self.waiting_requests.end_wait_of(name)
        self._on_node_changed(name)

    def _on_request_observed(self, request: SigningRequest) -> None:
        was_pending = request.name in self.pending_requests.by_name
        superseded = self.pending_requests.upsert(request)
        if not request.is_pending:
            self._forget_request(request.name)
            if was_pending and not self.pending_requests.find_newest(request.node_name):
                self._on_requester_answered(request)
        self.reconciler.enqueue([superseded] if superseded else ())

    def _on_requester_answered(self, request: SigningRequest) -> None:
        """End the requester's wait after any decision, by csr or a person; a later wait starts from zero."""
        self.waiting_requests.finish(request.name, request.node_name)
        if request.find_condition("Approved"):
            self.node_events.forget_reasons(request)

    def _on_request_gone(self, name: str) -> None:
        next_request = self.pending_requests.remove(name)
        self._forget_request(name)
        self.decision_publisher.forget(name)
        self.reconciler.enqueue([next_request] if next_request else ())

    def _forget_request(self, name: str) -> None:
        self.waiting_requests.remove(name)
        self.on_csr_enriched.forget(name)
        self.reconciler.forget(name)
