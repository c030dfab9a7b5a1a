"""Whether a kubelet gets the certificate that it asks for: permanent faults first, then what it is."""

from typing import Final

from libs.common.events import CsrEnriched
from libs.common.signing_request import SigningRequest
from services.csr.attestation import checks_of_machine
from services.csr.checks import checks_of_request, why_not_ours
from services.csr.claims import Claims
from services.csr.judgement import Approve, Check, Decision, Deny, Ignore, Judgement, Policy, Wait
from services.csr.node_object import checks_of_node_object
from services.csr.request import Unreadable, read_request
from services.csr.reserved import checks_of_knowledge

__all__ = ["Approve", "Check", "Decision", "Deny", "Ignore", "Judgement", "Policy", "Wait", "decide"]

# The reference's own words: dashboards and people look for them.
_APPROVED: Final = "Approved by TalosCloudControllerManager"
_DENIED: Final = "Denied by TalosCloudControllerManager"
_APPROVED_MESSAGE: Final = "This CSR was approved by Talos Cloud Controller Manager"
_DENIED_MESSAGE: Final = "This CSR was denied by Talos Cloud Controller Manager, Reason: "
_BY_MACHINE: Final = "every name and address is attested by the machine through Talos"
_BY_NODE_OBJECT: Final = "attested by the Node object only"
_TEXT_LIMIT: Final = 1000  # characters of a message


def decide(enriched: CsrEnriched, claims: Claims, policy: Policy) -> Judgement:
    """What becomes of a pending request, and every check that was made. No input raises."""
    not_ours = why_not_ours(enriched.request)
    if not_ours:
        return Judgement(decision=Ignore(reason=not_ours))
    checks = _checks(enriched, claims, policy)
    return Judgement(decision=_decision(checks, enriched), checks=checks)


def _checks(enriched: CsrEnriched, claims: Claims, policy: Policy) -> tuple[Check, ...]:
    request = enriched.request
    requester = Check(name="requester", passed=True, text=f"{request.spec.username} asks for itself")
    asked = read_request(request.spec.request)
    if isinstance(asked, Unreadable):
        return requester, Check(name="request", passed=False, text=asked.reason)
    permanent = (requester, *checks_of_request(request, asked, policy))
    if any(check.passed is False for check in permanent):
        return permanent
    name, without_talos = request.node_name, enriched.without_talos
    unknown = checks_of_knowledge(asked, name, policy, without_talos=without_talos)
    if without_talos:
        return *permanent, *checks_of_node_object(name, asked, claims, policy), *unknown
    return *permanent, *checks_of_machine(enriched, asked, claims, policy.endpoint), *unknown


def _decision(checks: tuple[Check, ...], enriched: CsrEnriched) -> Decision:
    failed = next((check for check in checks if check.passed is False), None)
    if failed is not None:
        return Deny(reason=_DENIED, message=_bounded(_DENIED_MESSAGE + failed.text), check=failed.name)
    open_ones = tuple(check for check in checks if check.passed is None)
    if open_ones:
        return _wait(open_ones, enriched.request)
    how = _BY_NODE_OBJECT if enriched.without_talos else _BY_MACHINE
    return Approve(
        reason=_APPROVED,
        message=f"{_APPROVED_MESSAGE}: {how}",
        by_node_object_only=enriched.without_talos,
    )


def _wait(open_ones: tuple[Check, ...], request: SigningRequest) -> Wait:
    nodes = frozenset({request.node_name}.union(*(check.nodes for check in open_ones)))
    rivals = frozenset[str]().union(*(check.rivals for check in open_ones))
    message = _bounded("; ".join(check.text for check in open_ones))
    return Wait(reason=open_ones[0].name, message=message, nodes=nodes, rivals=tuple(sorted(rivals)))


def _bounded(text: str) -> str:
    return text if len(text) <= _TEXT_LIMIT else text[: _TEXT_LIMIT - 3] + "..."
