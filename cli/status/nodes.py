"""Nodes and their requests for certificates: counts, and why some are not as they should be. Pure."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Final, Literal

import msgspec

from cli.cluster.kube_objects import CertificateSigningRequest, get_filing_order
from cli.inside.flow_snapshot import FlowSnapshot, ObjectMessages
from libs.common.bus.stream_limits import MAX_MESSAGE_AGE_TEXT
from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.events import (
    DeadLetter,
    Decided,
    InstanceReport,
    NodeEnriched,
    NodeObserved,
    NodeUnreachable,
)
from libs.common.contract.instances import read_instance_record
from libs.common.contract.machine_loss import find_machine_loss, select_own_reports
from libs.common.contract.node import BLOCKED_CONDITION, PROVIDED_NODE_IP_ANNOTATION, Node
from libs.common.contract.signing_request import strip_prefix
from services.lifecycle.core.evidence import is_not_ready, is_ready

_ALL_NODES: Final = Ownership()
_LOSSES: Final = {"gone": "server gone", "off": "server off", "silent": "machine does not answer"}
JOINING_SECONDS: Final = 60.0  # a Node may take this long to join before it counts as stuck


class UnusableNode(msgspec.Struct, frozen=True, kw_only=True):
    """A Node with the uninitialized taint, and the reason."""

    name: str
    seconds: float | None  # since registration
    is_blocked: bool = msgspec.field(name="blocked")  # initialization was tried and failed
    why: str

    @property
    def is_joining(self) -> bool:
        """Whether the Node may still become usable in the usual time."""
        return not self.is_blocked and self.seconds is not None and self.seconds < JOINING_SECONDS


class LostNode(msgspec.Struct, frozen=True, kw_only=True):
    """An initialized Node that is not Ready, and what its cloud or metadata reports of its machine."""

    name: str
    why: str


class NodesStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The counts of all Nodes, and the Nodes that are not usable."""

    count: int
    usable: int
    excluded: int  # usable Nodes that the section `ownership` of --cloud-config excludes
    not_ready: int  # usable Nodes whose kubelet reports not ready, or reports nothing
    lost: tuple[LostNode, ...] = ()  # by name
    uninitialized: tuple[UnusableNode, ...]  # oldest first

    @property
    def stuck(self) -> tuple[UnusableNode, ...]:
        """Return the uninitialized Nodes that are not merely joining."""
        return tuple(node for node in self.uninitialized if not node.is_joining)


def summarize_nodes(
    nodes: Iterable[Node], flow: FlowSnapshot | None, at: datetime, ownership: Ownership = _ALL_NODES
) -> NodesStatus:
    """Return the status of all Nodes. `flow` may contain the last messages about those that are not well.

    `ownership` is that of the labeler.
    """
    everything = tuple(nodes)
    usable = [node for node in everything if node.is_initialized]
    own = [node for node in usable if is_not_ready(node) and not why_not_owned(ownership, node)]
    reasons = {node.name: _explain_loss(node, flow) for node in own}
    stuck = [_make_unusable_node(node, flow, at) for node in everything if not node.is_initialized]
    return NodesStatus(
        count=len(everything),
        usable=len(usable),
        excluded=sum(bool(why_not_owned(ownership, node)) for node in usable),
        not_ready=sum(not is_ready(node) for node in usable),
        lost=tuple(LostNode(name=name, why=why) for name, why in sorted(reasons.items()) if why),
        uninitialized=tuple(sorted(stuck, key=lambda one: (-(one.seconds or 0.0), one.name))),
    )


def _explain_loss(node: Node, flow: FlowSnapshot | None) -> str:
    """Return "server gone", "server off" or "machine does not answer"; "" if no message shows one."""
    messages = flow.find_object("node", node.name) if flow else None
    if messages is None:
        return ""
    reports = select_own_reports(messages.list_events(InstanceReport), node.uid, node.spec.provider_id)
    answering = any(each.node.uid == node.uid for each in messages.list_events(NodeEnriched))
    is_silent = any(each.node.uid == node.uid for each in messages.list_events(NodeUnreachable))
    answers = answering or (False if is_silent else None)
    loss = find_machine_loss(reports, read_instance_record(node), answers=answers)
    return _LOSSES[loss.kind] if loss is not None else ""


def _make_unusable_node(node: Node, flow: FlowSnapshot | None, at: datetime) -> UnusableNode:
    created = node.metadata.creation_timestamp
    seconds = (at - created).total_seconds() if created else None
    messages = flow.find_object("node", node.name) if flow else None
    blocked = node.find_condition(BLOCKED_CONDITION)
    is_blocked = blocked is not None and blocked.status == "True"
    if blocked is not None and is_blocked:
        why = f"{blocked.reason}: {blocked.message}" if blocked.message else blocked.reason
    else:
        why = _find_missing_step(node, messages, flow, seconds)
    return UnusableNode(name=node.name, seconds=seconds, is_blocked=is_blocked, why=why)


def _find_missing_step(
    node: Node, messages: ObjectMessages | None, flow: FlowSnapshot | None, seconds: float | None
) -> str:
    """Return the first step of the Node's initialization that is missing."""
    if not node.provided_node_ip:
        return (
            f"its kubelet has not set the annotation {PROVIDED_NODE_IP_ANNOTATION}, so its machine is "
            "not queried"
        )
    if messages is None and seconds is not None and seconds < JOINING_SECONDS:
        return "it has just joined"
    if flow is None or messages is None:
        return "no condition gives the reason: run talos-ccm explain node"
    if messages.list_events(DeadLetter):
        return "a message about it was rejected: see the dead letters"
    unreachable = messages.list_events(NodeUnreachable)
    if not unreachable and not messages.list_events(NodeEnriched):
        missing = (
            "metadata has not queried its machine"
            if messages.list_events(NodeObserved)
            else "the watcher has not published it"
        )
        return f"{missing}, according to the messages of {MAX_MESSAGE_AGE_TEXT}"
    if unreachable:
        return f"its machine does not answer: {unreachable[0].fault.message}"
    for decided in messages.list_events(Decided):
        if decided.service == "labeler":
            return f"labeler, {decided.outcome}: {decided.reason}"
    return "its machine answered, and the labeler has not decided yet"


OpenRequestState = Literal["pending", "denied", "failed", "not-issued"]
SOON_SECONDS: Final = 60.0  # csr answers a request within this time


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The newest request of a node that has no certificate yet."""

    name: str
    node: str
    state: OpenRequestState
    seconds: float | None  # since creation
    # waiting does not help, and the node still needs the certificate
    is_wrong: bool = msgspec.field(name="wrong")
    why: str


class RequestsStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Kubelet serving requests: counts of all, and in `open` the newest of each node."""

    count: int
    pending: int
    superseded: int  # pending requests whose node has created a newer one
    denied: int
    not_issued: int = msgspec.field(name="approvedNotIssued")  # approved, but not yet signed
    issued: int
    open: tuple[OpenRequest, ...]  # oldest first


def summarize_requests(
    requests: Iterable[CertificateSigningRequest],
    flow: FlowSnapshot | None,
    at: datetime,
    nodes: AbstractSet[str],
) -> RequestsStatus:
    """Return the status of all requests for serving certificates.

    `flow` may contain csr's decisions about pending requests. `nodes` are the names of existing Nodes.
    """
    ours = [request for request in requests if request.is_kubelet_serving]
    newest = {one.node_name: one for one in sorted(ours, key=get_filing_order)}
    latest = {one.name for one in newest.values()}
    found = [
        _make_open_request(one, *state, at, is_node_gone=one.node_name not in nodes)
        for one in newest.values()
        if (state := _explain_state(one, flow)) is not None
    ]
    pending = [one for one in ours if one.is_pending]
    return RequestsStatus(
        count=len(ours),
        pending=len(pending),
        superseded=sum(one.name not in latest for one in pending),
        denied=sum(one.find_condition("Denied") is not None for one in ours),
        not_issued=sum(one.is_awaiting_certificate for one in ours),
        issued=sum(one.status.is_issued for one in ours),
        open=tuple(sorted(found, key=lambda one: (-(one.seconds or 0.0), one.name))),
    )


def _make_open_request(
    request: CertificateSigningRequest, state: OpenRequestState, why: str, at: datetime, *, is_node_gone: bool
) -> OpenRequest:
    created = request.metadata.creation_timestamp
    seconds = (at - created).total_seconds() if created else None
    is_late = state in ("denied", "failed") or seconds is None or seconds >= SOON_SECONDS
    return OpenRequest(
        name=request.name,
        node=request.node_name,
        state=state,
        seconds=seconds,
        # A decision about a Node that no longer exists is over.
        is_wrong=is_late and not (is_node_gone and state != "pending"),
        why=why,
    )


def _explain_state(
    request: CertificateSigningRequest, flow: FlowSnapshot | None
) -> tuple[OpenRequestState, str] | None:
    """Return the state of a request and its reason; None if the certificate is issued."""
    phase, condition = request.phase
    if phase in ("denied", "failed") and condition is not None:
        return phase, strip_prefix(condition.message) or condition.reason
    if phase != "pending":
        why = "the signer in kube-controller-manager has not issued it"
        return ("not-issued", why) if request.is_awaiting_certificate else None
    about = flow.find_object("csr", request.name) if flow else None
    for decided in about.list_events(Decided) if about else ():
        if decided.service == "csr":
            return "pending", f"csr, {decided.outcome}: {decided.reason}"
    return "pending", "" if flow is None else "csr has not decided yet"
