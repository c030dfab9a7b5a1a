"""The decision that csr would make from the evidence, check by check, and its unknown parts. Pure."""

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from cli.cluster.kube_objects import CsrCondition, RequestPhase
from cli.explain.csr.request_evidence import RequestEvidence, find_claimants
from cli.explain.layout import CheckOutcome, CheckResult
from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.events import NodeUnreachable
from services.csr.core.certificate_request import quote_untrusted
from services.csr.core.decide import decide
from services.csr.core.decision import (
    ApprovalPolicy,
    Approve,
    Check,
    Decision,
    Deny,
    Evaluation,
    Ignore,
    Wait,
)
from services.csr.core.endpoint_checks import depends_on_endpoint
from services.csr.core.pending_requests import PendingRequests

RequestVerdict = Literal["approve", "deny", "wait", "unknown", "ignore", "foreign"]
RequestState = Literal[RequestPhase, "superseded"]

EXIT_APPROVED, EXIT_NOT_APPROVED, EXIT_UNKNOWN = 0, 1, 2
_UNKNOWN_WITHOUT_TALOS: Final = ("asking", "networks")  # checks that may pass in the running csr
_NETWORKS_UNKNOWN: Final = (
    "unknown whether csr knows the Service networks: no control plane was queried, or none answered"
)
_FAULT_SHOWN: Final = 300  # characters
_ENDPOINT_UNKNOWN: Final = (
    "unknown which names and addresses csr finds in the API server's certificate: your "
    "connection ends at a proxy, or the certificate is unreadable"
)


class RequestExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The decision that csr would make now, check by check."""

    evidence: RequestEvidence
    state: RequestState  # in Kubernetes
    condition: CsrCondition | None = None  # the condition of that state
    superseded_by: str = ""
    checks: tuple[CheckResult, ...] = ()
    verdict: RequestVerdict  # by the checks, now
    check: str = ""  # the deciding check
    reason: str

    @property
    def exit_status(self) -> int:
        """Return 0 if it is or would be approved, 1 if not, 2 if the decision is unknown."""
        if self.state != "pending":
            return EXIT_APPROVED if self.state == "approved" else EXIT_NOT_APPROVED
        return {"approve": EXIT_APPROVED, "unknown": EXIT_UNKNOWN}.get(self.verdict, EXIT_NOT_APPROVED)


def explain_request(evidence: RequestEvidence, policy: ApprovalPolicy) -> RequestExplanation:
    """Explain the request with the code of csr."""
    policy = evidence.complete_policy(policy)
    evaluation = decide(evidence.enriched, evidence.claims, policy)
    checks = tuple(map(_make_check_result, evaluation.checks))
    unknown = tuple(_list_unknown_checks(evidence, evaluation, policy))
    verdict, check, reason = _read_decision(evaluation.decision)
    if unknown:
        # The unknown results replace the checks that would report that nothing was queried.
        checks = (*(each for each in checks if not _is_replaced(each, unknown)), *unknown)
        verdict, check = "unknown", unknown[0].name
        reason = "; ".join(each.text for each in unknown if each.name != "machine")
    node, ownership = evidence.node, evidence.ownership
    if node is not None and (foreign := why_not_owned(ownership, node)):
        verdict, check, reason = "foreign", "", foreign
    elif node is None and verdict == "deny" and ownership != Ownership():
        verdict, check = "wait", "node"  # its future ownership is unknown
    superseded_by = _find_superseding_request(evidence)
    state, condition = evidence.csr.phase
    return RequestExplanation(
        evidence=evidence,
        state="superseded" if superseded_by and state == "pending" else state,
        condition=condition,
        superseded_by=superseded_by,
        checks=checks,
        verdict=verdict,
        check=check,
        reason=reason,
    )


def _make_check_result(check: Check) -> CheckResult:
    result: CheckOutcome = "waits" if check.passed is None else "passed" if check.passed else "failed"
    return CheckResult(check.name, result, check.text, tuple(sorted(check.nodes)), check.rivals)


def _read_decision(decision: Decision) -> tuple[RequestVerdict, str, str]:
    """Return verdict, deciding check and reason."""
    match decision:
        case Approve(message=message):
            return "approve", "", message
        case Deny(check=check, message=message):
            return "deny", check, message
        case Wait(reason=check, message=message):
            return "wait", check, message
        case Ignore(reason=reason):
            return "ignore", "", reason


def _list_unknown_checks(
    evidence: RequestEvidence, evaluation: Evaluation, policy: ApprovalPolicy
) -> Iterator[CheckResult]:
    """Yield checks that depend on facts that csr has and this command lacks."""
    decision = evaluation.decision
    waits_for = decision.reason if isinstance(decision, Wait) else ""
    if waits_for == "asking" and evidence.talos_problem:
        yield CheckResult("machine", "unknown", evidence.talos_problem)
        for name, what in (("names", "DNS names"), ("addresses", "IP addresses")):
            yield CheckResult(name, "unknown", f"unknown whether the machine has the {what}")
    lacks_networks = not evidence.without_talos and any(each.name == "networks" for each in evaluation.checks)
    if waits_for in _UNKNOWN_WITHOUT_TALOS and lacks_networks:
        yield CheckResult("networks", "unknown", _NETWORKS_UNKNOWN)
    if isinstance(decision, Approve) and not evidence.without_talos:
        for name in sorted(find_claimants(evidence)):
            report = evidence.reports.get(name)
            if isinstance(report, NodeUnreachable):
                why = report.fault.message
                text = f"Node {name} also claims one of these and does not answer now ({why}): "
                text += "only the running csr knows its earlier addresses"
                yield CheckResult("former", "unknown", text, (name,))
    # A proxy that ends TLS shows its own certificate, so csr may see another one than the caller.
    asked, endpoint = evidence.certificate_request, policy.api_endpoint
    if asked is None or endpoint.is_api_server or not _rests_on_endpoint(decision):
        return
    if depends_on_endpoint(asked, evidence.csr.node_name):
        why = f" ({quote_untrusted(endpoint.fault, _FAULT_SHOWN)})" if endpoint.fault else ""
        yield CheckResult("endpoint", "unknown", _ENDPOINT_UNKNOWN + why)


def _rests_on_endpoint(decision: Decision) -> bool:
    match decision:
        case Approve() | Deny(check="endpoint") | Wait(reason="endpoint"):
            return True
        case _:
            return False


def _is_replaced(check: CheckResult, unknown: tuple[CheckResult, ...]) -> bool:
    """Whether an unknown result replaces this check."""
    names = {each.name for each in unknown}
    if check.name == "endpoint":
        return "endpoint" in names
    return check.name in _UNKNOWN_WITHOUT_TALOS and names != {"endpoint"}


def _find_superseding_request(evidence: RequestEvidence) -> str:
    """Return the newer request that makes csr ignore this one, by csr's own order."""
    requesters = PendingRequests()
    for filed in evidence.requests:
        requesters.upsert(filed.signing_request)
    return requesters.find_superseding(evidence.csr.name) or ""
