"""Decides whether a kubelet gets the requested certificate: permanent faults first, then attestation."""

from typing import Final

from libs.common.contract.events import CsrEnriched
from libs.common.contract.signing_request import (
    APPROVED_MESSAGE,
    APPROVED_REASON,
    DENIED_MESSAGE,
    SigningRequest,
)
from services.csr.core.attestation import check_against_machine
from services.csr.core.certificate_request import MalformedRequest, parse_request
from services.csr.core.claim_index import ClaimIndex
from services.csr.core.decision import ApprovalPolicy, Approve, Check, Decision, Deny, Evaluation, Wait
from services.csr.core.endpoint_checks import check_cluster_knowledge
from services.csr.core.node_object_checks import check_against_node_object
from services.csr.core.request_checks import check_request, find_ignore

_DENIED_REASON: Final = "Denied by TalosCloudControllerManager"  # the text of the reference controller
_BY_MACHINE: Final = "every name and address is attested by the machine through Talos"
_BY_NODE_OBJECT: Final = "attested by the Node object only"
_MAX_MESSAGE_LENGTH: Final = 1000  # characters of a condition's message


def decide(enriched: CsrEnriched, claim_index: ClaimIndex, policy: ApprovalPolicy) -> Evaluation:
    """Return the decision about a pending request, with every check. No input raises."""
    if ignore := find_ignore(enriched.request):
        return Evaluation(decision=ignore)
    checks = _run_checks(enriched, claim_index, policy)
    return Evaluation(decision=_make_decision(checks, enriched), checks=checks)


def _run_checks(enriched: CsrEnriched, claims: ClaimIndex, policy: ApprovalPolicy) -> tuple[Check, ...]:
    request = enriched.request
    requester = Check(name="requester", passed=True, text=f"{request.spec.username} asks for itself")
    asked = parse_request(request.spec.request)
    if isinstance(asked, MalformedRequest):
        return requester, Check(name="request", passed=False, text=asked.reason)
    permanent = (requester, *check_request(request, asked, policy))
    if any(check.passed is False for check in permanent):
        return permanent
    name, without_talos = request.node_name, enriched.without_talos
    unknown = check_cluster_knowledge(asked, name, policy, without_talos=without_talos)
    if without_talos:
        return *permanent, *check_against_node_object(name, asked, claims, policy), *unknown
    return *permanent, *check_against_machine(enriched, asked, claims, policy.api_endpoint), *unknown


def _make_decision(checks: tuple[Check, ...], enriched: CsrEnriched) -> Decision:
    failed = next((check for check in checks if check.passed is False), None)
    if failed is not None:
        return Deny(
            reason=_DENIED_REASON, message=_truncate(f"{DENIED_MESSAGE}: {failed.text}"), check=failed.name
        )
    open_ones = tuple(check for check in checks if check.passed is None)
    if open_ones:
        return _make_wait(open_ones, enriched.request)
    how = _BY_NODE_OBJECT if enriched.without_talos else _BY_MACHINE
    return Approve(
        reason=APPROVED_REASON,
        message=f"{APPROVED_MESSAGE}: {how}",
        is_by_node_object_only=enriched.without_talos,
    )


def _make_wait(undecided: tuple[Check, ...], request: SigningRequest) -> Wait:
    nodes = frozenset({request.node_name}.union(*(check.nodes for check in undecided)))
    rivals = frozenset[str]().union(*(check.rivals for check in undecided))
    message = _truncate("; ".join(check.text for check in undecided))
    return Wait(reason=undecided[0].name, message=message, nodes=nodes, rivals=tuple(sorted(rivals)))


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE_LENGTH else text[: _MAX_MESSAGE_LENGTH - 3] + "..."
