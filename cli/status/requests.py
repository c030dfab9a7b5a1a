"""Requests for serving certificates; only the newest of each node counts. Pure."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Final, Literal

import msgspec

from cli.inside.flow_snapshot import FlowSnapshot
from libs.common.contract.events import Decided
from libs.common.contract.signing_request import SigningRequest

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
    denied: int
    not_issued: int = msgspec.field(name="approvedNotIssued")  # approved, but not yet signed
    issued: int
    superseded: int  # pending requests whose node has created a newer one
    open: tuple[OpenRequest, ...]  # oldest first


def summarize_requests(
    requests: Iterable[SigningRequest],
    flow: FlowSnapshot | None,
    at: datetime,
    nodes: AbstractSet[str] | None = None,
) -> RequestsStatus:
    """Return the status of all requests for serving certificates.

    `flow` may contain csr's decisions about pending requests. `nodes` are the names of existing Nodes.
    """
    ours = [request for request in requests if request.is_kubelet_serving]
    newest = {one.node_name: one for one in sorted(ours, key=_get_filing_order)}
    latest = {one.name for one in newest.values()}
    found = [_make_open_request(one, flow, at, nodes) for one in newest.values()]
    pending = [one for one in ours if one.is_pending]
    return RequestsStatus(
        count=len(ours),
        pending=len(pending),
        denied=sum(one.find_condition("Denied") is not None for one in ours),
        not_issued=sum(one.is_awaiting_certificate for one in ours),
        issued=sum(one.status.issued for one in ours),
        superseded=sum(one.name not in latest for one in pending),
        open=tuple(sorted((one for one in found if one), key=lambda one: (-(one.seconds or 0.0), one.name))),
    )


def _get_filing_order(request: SigningRequest) -> tuple[float, int, str]:
    at = request.metadata.creation_timestamp
    return (at.timestamp() if at else 0.0, request.resource_version_number, request.name)


def _make_open_request(
    request: SigningRequest, flow: FlowSnapshot | None, at: datetime, nodes: AbstractSet[str] | None
) -> OpenRequest | None:
    created = request.metadata.creation_timestamp
    state = _read_state(request)
    if state is None:
        return None
    seconds = (at - created).total_seconds() if created else None
    # A decision about a Node that no longer exists is over.
    is_outdated = state != "pending" and nodes is not None and request.node_name not in nodes
    is_late = state in ("denied", "failed") or seconds is None or seconds >= SOON_SECONDS
    return OpenRequest(
        name=request.name,
        node=request.node_name,
        state=state,
        seconds=seconds,
        is_wrong=is_late and not is_outdated,
        why=_explain_state(request, state, flow),
    )


def _read_state(request: SigningRequest) -> OpenRequestState | None:
    if request.find_condition("Denied") is not None:
        return "denied"
    if request.find_condition("Failed") is not None:
        return "failed"
    if request.is_pending:
        return "pending"
    return "not-issued" if request.is_awaiting_certificate else None


def _explain_state(request: SigningRequest, state: OpenRequestState, flow: FlowSnapshot | None) -> str:
    if state in ("denied", "failed"):
        said = request.find_condition("Denied" if state == "denied" else "Failed")
        assert said is not None
        return said.message.partition(_OWN)[2] or said.message or said.reason
    if state == "not-issued":
        return "the signer in kube-controller-manager has not issued it"
    about = flow.find_object("csr", request.name) if flow else None
    for word in about.decided if about else ():
        if isinstance(word.event, Decided) and word.event.service == "csr":
            return f"csr, {word.event.outcome}: {word.event.reason}"
    return "" if flow is None else "csr has not decided yet"
