"""State of csr from the flow: claims, requests, waits and Service networks."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from libs.common.bus.protocol import Message
from libs.common.contract import events
from libs.common.contract.events import SERVICE_CIDRS_UNKNOWN
from libs.common.contract.machine import MachineFacts, PlatformMetadata
from libs.common.contract.networks import parse_foreign_network
from libs.common.contract.node import (
    PROVIDED_NODE_IP_ANNOTATION,
    Node,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
)
from libs.common.contract.signing_request import SigningRequest
from libs.common.service.waiting_objects import WaitingObject, WaitingObjects
from services.csr.core.claim_index import ClaimIndex
from services.csr.core.pending_requests import NodeRateLimiter, PendingRequests

_UNKNOWN_WITHOUT_TALOS: Final = (
    "metadata runs --without-talos, so no control plane reports the Service networks: set "
    "--service-cluster-ip-range; requests for IP addresses wait until then"
)


class WaitingRequest(WaitingObject, frozen=True, kw_only=True):
    """A request that csr could not decide yet; its `reason` is the name of a check."""

    requester: str  # the node that filed the request
    message: str
    nodes: frozenset[str]  # a change of any of them may end the wait
    rivals: tuple[str, ...] = ()  # nodes with an equally strong claim

    @property
    def node(self) -> str:
        """The requester: its wait continues with its next request."""
        return self.requester

    @property
    def causes(self) -> frozenset[str]:
        """The nodes that can end the wait."""
        return self.nodes

    @property
    def episode(self) -> str:
        """The name of the check."""
        return self.reason


class ServiceNetworks(msgspec.Struct):
    """The cluster's Service networks, as far as known: no node address may be in one."""

    configured: Sequence[str] = ()  # --service-cluster-ip-range
    reported: Sequence[str] = ()  # by metadata, from a control plane
    snapshot: events.SnapshotComplete | None = None

    @property
    def has_service_cidrs(self) -> bool:
        """Whether the ranges of ServiceCIDR objects are known."""
        return self.snapshot is not None and self.snapshot.service_cidrs is not None

    @property
    def cidrs(self) -> tuple[str, ...] | None:
        """All networks; None while at most ServiceCIDRs are known.

        A report with no network or an invalid one does not count, unless the operator names the networks.
        """
        added = (self.snapshot.service_cidrs if self.snapshot is not None else None) or ()
        is_valid = bool(self.reported) and all(map(parse_foreign_network, self.reported))
        return (*self.configured, *self.reported, *added) if self.configured or is_valid else None

    def find_problems(self, *, without_talos: bool) -> tuple[str, ...]:
        """Return why requests wait until an operator acts.

        The watcher may lack the right to list ServiceCIDRs. Without Talos, metadata reports no networks.
        """
        if self.snapshot is not None and not self.has_service_cidrs:
            return (f"{SERVICE_CIDRS_UNKNOWN}; requests for IP addresses wait until then",)
        return (_UNKNOWN_WITHOUT_TALOS,) if without_talos and self.cidrs is None else ()


class FlowState:
    """The last known Nodes and requests. Each change returns the names of the requests to evaluate again."""

    def __init__(self, service_cluster_ip_range: Sequence[str] = ()) -> None:
        self.networks = ServiceNetworks(configured=service_cluster_ip_range)
        self.rate_limiter = NodeRateLimiter()
        self.claims = ClaimIndex()
        self.requests = PendingRequests()
        self.waiting = WaitingObjects[WaitingRequest]()
        self.not_ours: set[str] = set()  # nodes with a request that csr skipped as not its own

    def apply(self, event: object) -> Sequence[str]:
        """Apply one event; ignore kinds that do not concern csr."""
        match event:
            case events.ClusterNetworksObserved(service_cidrs=reported):
                return self._set_networks(reported, self.networks.snapshot)
            case events.SnapshotComplete():
                return self._set_networks(self.networks.reported, event)
            case events.NodeObserved(node=node):
                self.claims.upsert_node(node)
                return self._on_node_changed(node.name)
            case events.NodeGone(name=name):
                self.claims.remove_node(name)
                self.waiting.end_wait_of(name)
                return self._on_node_changed(name)
            case events.NodeEnriched(node=node) | events.NodeUnreachable(node=node):
                self.claims.upsert_report(event)
                return self._on_node_changed(node.name)
            case events.EnrichedNodeGone(name=name):
                self.claims.remove_report(name)
                return self._on_node_changed(name)
            case events.CsrObserved(request=request):
                return self._on_request_observed(request)
            case events.CsrGone(name=name):
                self.waiting.remove(name)
                return _list_name(self.requests.remove(name))
        return ()

    def forget_networks(self) -> Sequence[str]:
        """Forget the reported networks: the stream no longer contains them."""
        return self._set_networks((), self.networks.snapshot)

    def list_newest(self) -> Sequence[str]:
        """Return the names of all pending requests that no newer one supersedes."""
        return [pending.order.name for pending in self.requests.list_newest()]

    def clear(self) -> None:
        """Drop everything, after the stream was replaced."""
        for known in (self.claims, self.requests, self.waiting, self.not_ours):
            known.clear()
        self.networks = ServiceNetworks(configured=self.networks.configured)

    def _set_networks(
        self, reported: Sequence[str], snapshot: events.SnapshotComplete | None
    ) -> Sequence[str]:
        before = self.networks
        self.networks = after = ServiceNetworks(before.configured, reported, snapshot)
        is_same = (before.cidrs, before.has_service_cidrs) == (after.cidrs, after.has_service_cidrs)
        return () if is_same else self.list_newest()

    def _on_node_changed(self, node: str) -> Sequence[str]:
        names = self.waiting.find_by_cause(node)
        if node in self.not_ours:  # another label or providerID may make it ours
            self.not_ours.discard(node)
            names.extend(_list_name(self.requests.find_newest(node)))
        return names

    def _on_request_observed(self, request: SigningRequest) -> Sequence[str]:
        was_pending = request.name in self.requests.by_name
        superseded = self.requests.upsert(request)
        if not request.is_pending:
            self.waiting.remove(request.name)
            if was_pending and not self.requests.find_newest(request.node_name):
                # After any decision, by csr or a person, a later wait of the requester starts from zero.
                self.waiting.end_wait_of(request.node_name)
        return _list_name(superseded)


def _list_name(name: str | None) -> Sequence[str]:
    return () if name is None else (name,)


def compact_message(message: Message) -> Message:
    """Return the message with all that csr reads from its stream cache and its indexes.

    csr reads Nodes from observations only, and nothing that a decided request asks for. Its indexes know no
    sequences, so the history of addresses contains that of the message.
    """
    event = message.event
    match event:
        case events.NodeObserved(node=node):
            reduced: events.Event = replace(event, node=_reduce_node(node))
        case events.NodeEnriched() | events.NodeUnreachable():
            reduced = _reduce_report(event, message.sequence)
        case events.CsrObserved(request=request) if not request.is_pending:
            reduced = replace(event, request=replace(request, spec=replace(request.spec, request=b"")))
        case _:
            return message
    return replace(message, event=reduced)


def _reduce_node(node: Node) -> Node:
    """Return the Node with what claims, checks, the startup gate and the ownership depend on."""
    ips = node.provided_node_ip
    return Node(
        metadata=ObjectMeta(
            name=node.name,
            uid=node.uid,
            labels=node.labels,
            annotations={PROVIDED_NODE_IP_ANNOTATION: ips} if ips else {},
        ),
        spec=NodeSpec(provider_id=node.spec.provider_id, pod_cidrs=node.spec.pod_cidrs),
        status=NodeStatus(addresses=node.status.addresses),
    )


def _reduce_report(
    report: events.NodeEnriched | events.NodeUnreachable, sequence: int
) -> events.NodeEnriched | events.NodeUnreachable:
    identity = Node(metadata=ObjectMeta(name=report.node.name, uid=report.node.uid))
    history = report.address_history.resolve(sequence)
    if isinstance(report, events.NodeEnriched):
        return replace(report, node=identity, address_history=history, facts=_reduce_facts(report.facts))
    last_known = _reduce_facts(report.last_known) if report.last_known is not None else None
    return replace(report, node=identity, address_history=history, last_known=last_known)


def _reduce_facts(facts: MachineFacts) -> MachineFacts:
    """Return the facts with the addresses and names of the machine."""
    platform = facts.platform
    return MachineFacts(
        platform=PlatformMetadata(
            hostname=platform.hostname, internal_dns=platform.internal_dns, external_dns=platform.external_dns
        ),
        addresses=facts.addresses,
        node_name=facts.node_name,
        queried_at=facts.queried_at,
        node_ip=facts.node_ip,
        answering_addresses=facts.answering_addresses,
    )
