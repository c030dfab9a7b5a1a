"""What the console keeps of one request for a serving certificate. Pure."""

from typing import Final

import msgspec

from libs.common.contract import events
from libs.common.contract.signing_request import SigningRequest, strip_prefix
from services.console.core.node_record import NodeRecord, RequestState, seconds_of

_FINAL_STATES: Final[dict[str, RequestState]] = {"Denied": "denied", "Failed": "failed"}


class RequestRecord(msgspec.Struct, kw_only=True):
    """One CertificateSigningRequest of a kubelet. Times are seconds since 1970; 0 = unknown."""

    name: str
    node: str = ""
    version: int = 0
    is_observed: bool = False
    created: float = 0.0
    state: RequestState = "pending"
    reason: str = ""  # of the condition in Kubernetes
    fault: str = ""  # why the machine attests nothing
    published: tuple[int, float] = (0, 0.0)  # sequence and time of metadata's last message
    decided: events.Decided | None = None
    issued_at: float = 0.0


class RequestRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of the certificates view."""

    name: str
    node: str
    created: float
    state: RequestState
    outcome: str = ""
    reason: str = ""
    decided_at: float = 0.0
    fault: str = ""


def apply_observed(
    record: RequestRecord, request: SigningRequest, published_at: float, *, live: bool
) -> None:
    """Apply the state of the request in Kubernetes."""
    record.node, record.is_observed = request.node_name, True
    record.created = seconds_of(request.metadata.creation_timestamp)
    record.state = _find_state(request)
    condition = request.find_condition("Denied") or request.find_condition("Failed")
    record.reason = (condition.message or condition.reason) if condition is not None else ""
    if record.state == "issued" and live and not record.issued_at:
        record.issued_at = published_at


def add_hops(record: RequestRecord, node: NodeRecord) -> None:
    """Add the hops of a request to those of its Node: of the first one approved since the registration."""
    hops, decided = node.hops, record.decided
    known = hops.get("requested", node.base.created)
    is_other = record.created < known or (record.created > known and "approved" in hops)
    if not node.is_observed or is_other:
        return
    hops["requested"] = record.created
    if decided is not None and decided.outcome == "approved":
        hops["approved"] = seconds_of(decided.decided_at)
    if record.issued_at:
        hops["issued"] = record.issued_at


def _find_state(request: SigningRequest) -> RequestState:
    for kind, state in _FINAL_STATES.items():
        if request.find_condition(kind) is not None:
            return state
    return "pending" if request.is_pending else "approved" if request.is_awaiting_certificate else "issued"


def build_row(record: RequestRecord) -> RequestRow:
    """Return the row of a request."""
    decided = record.decided
    return RequestRow(
        name=record.name,
        node=record.node,
        created=record.created,
        state=record.state,
        outcome=decided.outcome if decided is not None else "",
        reason=strip_prefix(decided.reason if decided is not None else record.reason),
        decided_at=seconds_of(decided.decided_at) if decided is not None else 0.0,
        fault=record.fault,
    )
