"""Requests for serving certificates; only the newest of each node counts. Pure."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Final, Literal

import msgspec

from cli.cluster.certificate_signing_request import CertificateSigningRequest, get_filing_order
from cli.inside.flow_snapshot import FlowSnapshot
from libs.common.contract.events import Decided

OpenRequestState = Literal["pending", "denied", "failed", "not-issued"]
_OWN: Final = ", Reason: "  # csr's own message names before it who denied the request
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
        issued=sum(one.is_issued for one in ours),
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
    decisions: tuple[tuple[str, OpenRequestState], ...] = (("Denied", "denied"), ("Failed", "failed"))
    for kind, state in decisions:
        if (condition := request.find_condition(kind)) is not None:
            return state, condition.message.partition(_OWN)[2] or condition.message or condition.reason
    if not request.is_pending:
        why = "the signer in kube-controller-manager has not issued it"
        return ("not-issued", why) if request.is_awaiting_certificate else None
    about = flow.find_object("csr", request.name) if flow else None
    for word in about.decided if about else ():
        if isinstance(word.event, Decided) and word.event.service == "csr":
            return "pending", f"csr, {word.event.outcome}: {word.event.reason}"
    return "pending", "" if flow is None else "csr has not decided yet"
