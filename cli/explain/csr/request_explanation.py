"""The decision that csr would make from the evidence, check by check, and its unknown parts. Pure."""

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from cli.cluster.certificate_signing_request import CertificateSigningRequest, CsrCondition
from cli.explain.csr.request_evidence import RequestEvidence, find_claimants
from cli.explain.layout import CheckOutcome, CheckResult
from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.machine import MachineFault
from services.csr.core.certificate_request import CertificateRequest, parse_request, quote_untrusted
from services.csr.core.decide import ApprovalPolicy, Approve, Check, Decision, Deny, Ignore, Wait, decide
from services.csr.core.endpoint_checks import depends_on_endpoint
from services.csr.core.pending_requests import PendingRequests

RequestVerdict = Literal["approve", "deny", "wait", "unknown", "ignore", "foreign"]
RequestPhase = Literal["pending", "superseded", "approved", "denied", "failed"]

EXIT_APPROVED, EXIT_NOT_APPROVED, EXIT_UNKNOWN = 0, 1, 2
_UNTOLD_WITHOUT_TALOS: Final = ("asking", "networks")  # checks that may pass in the running csr
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

    csr: CertificateSigningRequest
    certificate_request: CertificateRequest | None  # None: unparseable
    state: RequestPhase  # in Kubernetes
    condition: CsrCondition | None = None  # the condition of that state
    superseded_by: str = ""
    machines: tuple[str, ...] = ()  # Nodes whose machines were queried
    # Other machines that could have the same names or addresses without a claim of their Nodes.
    unqueried_machines: int = 0
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
    request = evidence.csr.signing_request
    asked = parse_request(request.spec.request)
    judgement = decide(evidence.enriched, evidence.claims, evidence.complete_policy(policy))
    decision = judgement.decision
    checks = tuple(map(_make_check_result, judgement.checks))
    lacks_networks = not evidence.without_talos and any(check.name == "networks" for check in checks)
    unknown = tuple(_list_unknown_checks(evidence, decision, lacks_networks=lacks_networks))
    unknown += tuple(_check_unknown_endpoint(evidence, policy, decision))
    if unknown:
        # The unknown results replace the checks that would report that nothing was queried.
        checks = (*(check for check in checks if not _is_replaced(check, unknown)), *unknown)
    verdict, check, reason = _decide_verdict(decision)
    if unknown:
        verdict, check = "unknown", unknown[0].name
        reason = "; ".join(one.text for one in unknown if one.name != "machine")
    if foreign := _why_foreign(evidence):
        verdict, check, reason = "foreign", "", foreign
    elif evidence.node is None and verdict == "deny" and evidence.ownership != Ownership():
        verdict, check = "wait", "node"  # its future ownership is unknown
    superseded_by = _find_superseding_request(evidence)
    state, condition = _read_state(evidence.csr)
    return RequestExplanation(
        csr=evidence.csr,
        certificate_request=asked if isinstance(asked, CertificateRequest) else None,
        state="superseded" if superseded_by and state == "pending" else state,
        condition=condition,
        superseded_by=superseded_by,
        machines=tuple(sorted(evidence.machine_results)),
        unqueried_machines=len(evidence.nodes) - len(evidence.machine_results)
        if evidence.machine_results
        else 0,
        checks=checks,
        verdict=verdict,
        check=check,
        reason=reason,
    )


def _make_check_result(check: Check) -> CheckResult:
    result: CheckOutcome = "waits" if check.passed is None else "passed" if check.passed else "failed"
    return CheckResult(check.name, result, check.text, tuple(sorted(check.nodes)), check.rivals)


def _decide_verdict(decision: Decision) -> tuple[RequestVerdict, str, str]:
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
    evidence: RequestEvidence, decision: Decision, *, lacks_networks: bool
) -> Iterator[CheckResult]:
    """Yield checks that depend on facts that csr has and this command lacks."""
    if isinstance(decision, Wait) and decision.reason == "asking" and evidence.talos_problem:
        yield CheckResult("machine", "unknown", evidence.talos_problem)
        for name, what in (("names", "DNS names"), ("addresses", "IP addresses")):
            yield CheckResult(name, "unknown", f"unknown whether the machine has the {what}")
    if isinstance(decision, Wait) and decision.reason in _UNTOLD_WITHOUT_TALOS and lacks_networks:
        yield CheckResult("networks", "unknown", _NETWORKS_UNKNOWN)
    if not isinstance(decision, Approve) or evidence.without_talos:
        return
    for name in sorted(find_claimants(evidence)):
        look = evidence.machine_results.get(name)
        if isinstance(look, MachineFault):
            text = f"Node {name} also claims one of these and does not answer now ({look.message}): "
            text += "only the running csr knows its earlier addresses"
            yield CheckResult("former", "unknown", text, (name,))


def _check_unknown_endpoint(
    evidence: RequestEvidence, policy: ApprovalPolicy, decision: Decision
) -> Iterator[CheckResult]:
    """Yield an unknown result if the caller may see another certificate than csr.

    A proxy that ends TLS shows its own certificate.
    """
    name = evidence.csr.signing_request.node_name
    asked = parse_request(evidence.csr.signing_request.spec.request)
    endpoint = evidence.complete_policy(policy).api_endpoint
    if endpoint.is_api_server or not isinstance(asked, CertificateRequest):
        return
    if _rests_on_endpoint(decision) and depends_on_endpoint(asked, name):
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
    names = {one.name for one in unknown}
    return check.name in names & {"endpoint"} or (
        check.name in _UNTOLD_WITHOUT_TALOS and names != {"endpoint"}
    )


def _why_foreign(evidence: RequestEvidence) -> str:
    """Return why csr ignores the request of a foreign Node; "" if the Node is ours or missing."""
    return why_not_owned(evidence.ownership, evidence.node) if evidence.node is not None else ""


def _find_superseding_request(evidence: RequestEvidence) -> str:
    """Return the newer request that makes csr ignore this one, by csr's own order."""
    requesters = PendingRequests()
    for filed in evidence.requests:
        requesters.upsert(filed.signing_request)
    return requesters.find_superseding(evidence.csr.name)


def _read_state(filed: CertificateSigningRequest) -> tuple[RequestPhase, CsrCondition | None]:
    kinds: tuple[tuple[str, RequestPhase], ...] = (
        ("Denied", "denied"), ("Failed", "failed"), ("Approved", "approved")
    )  # fmt: skip
    for kind, state in kinds:
        if condition := filed.find_condition(kind):
            return state, condition
    return "approved" if filed.is_issued else "pending", None
