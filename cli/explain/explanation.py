"""What csr would decide by this evidence, check by check, and what of it is not known here. Pure."""

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from cli.explain.evidence import Evidence, claimants
from cli.explain.filed import Condition, Filed
from libs.common.cloud_config.model import Ownership
from libs.common.machine import MachineFault
from libs.common.ownership import why_not_owned
from services.csr.certificate_request import CertificateRequest, parse_request, quote_untrusted
from services.csr.decide import ApprovalPolicy, Approve, Check, Decision, Deny, Ignore, Wait, decide
from services.csr.endpoint_checks import asks_for_more_than_name
from services.csr.pending_requests import PendingRequests

Result = Literal["passed", "failed", "waits", "unknown"]
Verdict = Literal["approve", "deny", "wait", "unknown", "ignore", "foreign"]
State = Literal["pending", "superseded", "approved", "denied", "failed"]

APPROVED, NOT_APPROVED, UNTOLD = 0, 1, 2
_UNTOLD_WITHOUT_TALOS: Final = ("asking", "networks")  # checks that may pass in the running csr
_NETWORKS_UNKNOWN: Final = (
    "whether csr knows the Service networks is not known here: no control plane was asked, or none answered"
)
_FAULT_SHOWN: Final = 300  # characters
_ENDPOINT_UNKNOWN: Final = (
    "which names and addresses csr finds in the API server's certificate is not known here: your connection "
    "ends at a proxy, or no certificate could be read"
)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One check and what came of it."""

    name: str
    result: Result
    text: str
    nodes: tuple[str, ...] = ()  # whose change can make it right
    rivals: tuple[str, ...] = ()


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    filed: Filed
    asked: CertificateRequest | None  # None: it cannot be read
    state: State  # what Kubernetes holds
    condition: Condition | None = None  # the one that makes it so
    superseded_by: str = ""
    machines: tuple[str, ...] = ()  # Nodes whose machines were asked
    not_asked: int = 0  # how many others there are, which might have the same without their Nodes naming it
    checks: tuple[Told, ...] = ()
    verdict: Verdict  # of the checks, as of now
    check: str = ""  # the one that decided
    reason: str

    @property
    def exit_status(self) -> int:
        """0: approved, or would be; 1: not; 2: that cannot be told."""
        if self.state != "pending":
            return APPROVED if self.state == "approved" else NOT_APPROVED
        return {"approve": APPROVED, "unknown": UNTOLD}.get(self.verdict, NOT_APPROVED)


def explain(evidence: Evidence, policy: ApprovalPolicy) -> Explanation:
    """Judge it as csr would, with the services' own code."""
    request = evidence.filed.request
    asked = parse_request(request.spec.request)
    judgement = decide(evidence.enriched, evidence.claims, evidence.known_by(policy))
    decision = judgement.decision
    checks = tuple(map(_told, judgement.checks))
    lacks_networks = not evidence.without_talos and any(check.name == "networks" for check in checks)
    unknown = tuple(_unknown(evidence, decision, lacks_networks=lacks_networks))
    unknown += tuple(_unknown_endpoint(evidence, policy, decision))
    if unknown:
        # That nobody was asked is what stands there otherwise.
        checks = (*(check for check in checks if not _is_replaced(check, unknown)), *unknown)
    verdict, check, reason = _verdict(decision)
    if unknown:
        verdict, check = "unknown", unknown[0].name
        reason = "; ".join(one.text for one in unknown if one.name != "machine")
    if foreign := _why_foreign(evidence):
        verdict, check, reason = "foreign", "", foreign
    elif evidence.node is None and verdict == "deny" and evidence.ownership != Ownership():
        verdict, check = "wait", "node"  # whose the Node will be is not known
    superseded_by = _superseded_by(evidence)
    state, condition = _state(evidence.filed)
    return Explanation(
        filed=evidence.filed,
        asked=asked if isinstance(asked, CertificateRequest) else None,
        state="superseded" if superseded_by and state == "pending" else state,
        condition=condition,
        superseded_by=superseded_by,
        machines=tuple(sorted(evidence.looks)),
        not_asked=len(evidence.nodes) - len(evidence.looks) if evidence.looks else 0,
        checks=checks,
        verdict=verdict,
        check=check,
        reason=reason,
    )


def _told(check: Check) -> Told:
    result: Result = "waits" if check.passed is None else "passed" if check.passed else "failed"
    return Told(
        name=check.name,
        result=result,
        text=check.text,
        nodes=tuple(sorted(check.nodes)),
        rivals=check.rivals,
    )


def _verdict(decision: Decision) -> tuple[Verdict, str, str]:
    match decision:
        case Approve(message=message):
            return "approve", "", message
        case Deny(check=check, message=message):
            return "deny", check, message
        case Wait(reason=check, message=message):
            return "wait", check, message
        case Ignore(reason=reason):
            return "ignore", "", reason


def _unknown(evidence: Evidence, decision: Decision, *, lacks_networks: bool) -> Iterator[Told]:
    """What csr knows and we do not, where its decision may rest on it."""
    if isinstance(decision, Wait) and decision.reason == "asking" and evidence.no_talos:
        yield Told(name="machine", result="unknown", text=evidence.no_talos)
        for name, what in (("names", "DNS names"), ("addresses", "IP addresses")):
            yield Told(name=name, result="unknown", text=f"whether the machine has the {what} is not known")
    if isinstance(decision, Wait) and decision.reason in _UNTOLD_WITHOUT_TALOS and lacks_networks:
        yield Told(name="networks", result="unknown", text=_NETWORKS_UNKNOWN)
    if not isinstance(decision, Approve) or evidence.without_talos:
        return
    for name in sorted(claimants(evidence)):
        look = evidence.looks.get(name)
        if isinstance(look, MachineFault):
            text = f"Node {name} claims something of this, too, and does not answer now ({look.message}): "
            text += "where it answered before is known to the running csr only"
            yield Told(name="former", result="unknown", text=text, nodes=(name,))


def _unknown_endpoint(evidence: Evidence, policy: ApprovalPolicy, decision: Decision) -> Iterator[Told]:
    """A proxy that ends TLS shows the caller another certificate than the one that csr reads."""
    name = evidence.filed.request.node_name
    asked = parse_request(evidence.filed.request.spec.request)
    endpoint = evidence.known_by(policy).api_endpoint
    if endpoint.is_api_server or not isinstance(asked, CertificateRequest):
        return
    if _rests_on_endpoint(decision) and asks_for_more_than_name(asked, name):
        why = f" ({quote_untrusted(endpoint.fault, _FAULT_SHOWN)})" if endpoint.fault else ""
        yield Told(name="endpoint", result="unknown", text=_ENDPOINT_UNKNOWN + why)


def _rests_on_endpoint(decision: Decision) -> bool:
    match decision:
        case Approve() | Deny(check="endpoint") | Wait(reason="endpoint"):
            return True
        case _:
            return False


def _is_replaced(check: Told, unknown: tuple[Told, ...]) -> bool:
    """Whether a check that lacks knowledge is shown as unknown in its place."""
    names = {one.name for one in unknown}
    return check.name in names & {"endpoint"} or (
        check.name in _UNTOLD_WITHOUT_TALOS and names != {"endpoint"}
    )


def _why_foreign(evidence: Evidence) -> str:
    """Why csr leaves it alone though it is a kubelet's: its Node is another's."""
    return why_not_owned(evidence.ownership, evidence.node) if evidence.node is not None else ""


def _superseded_by(evidence: Evidence) -> str:
    """The newer request on account of which csr leaves this one alone, as csr finds it."""
    requesters = PendingRequests()
    for filed in evidence.requests:
        requesters.upsert(filed.request)
    return requesters.find_superseding(evidence.filed.name)


def _state(filed: Filed) -> tuple[State, Condition | None]:
    kinds: tuple[tuple[str, State], ...] = (
        ("Denied", "denied"), ("Failed", "failed"), ("Approved", "approved")
    )  # fmt: skip
    for kind, state in kinds:
        if condition := filed.condition(kind):
            return state, condition
    return "approved" if filed.issued else "pending", None
