"""`talos-ccm explain csr`: each check with its result, the decision, what is not known, and what to do."""

import json
from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest

from cli.cluster.kube_objects import (
    CertificateSigningRequest,
    CsrCondition,
    find_newest,
)
from cli.cluster.machine_events import make_enriched, make_unreachable
from cli.explain.csr.output import explanation_to_json, format_explanation, suggest_actions
from cli.explain.csr.request_evidence import RequestEvidence, find_claimants, list_contested_addresses
from cli.explain.csr.request_explanation import RequestExplanation, explain_request
from cli.lines import format_json
from libs.common.cloud_config.model import Ownership
from libs.common.contract.machine import AddressStatus, MachineFacts, MachineFault
from libs.common.contract.node import NodeAddress
from libs.common.kube.server_identity import ServerIdentity
from services.csr.core.decision import ApiEndpoint, ApprovalPolicy
from tests.architecture.sources import ROOT
from tests.builders import NOW, make_facts, make_node, make_request
from tests.cli_snapshots import hold_request, render_lines
from tests.csr_actors import make_serving_request
from tests.csr_cases import CASES, FACTS, NODES, POLICY, UNREACHABLE
from tests.service_flow import REFUSED
from tests.tables import naming

KNOWN = ApprovalPolicy(service_networks=POLICY.service_networks, api_endpoint=POLICY.api_endpoint)
NETWORKS = msgspec.structs.replace(KNOWN, allowed_networks=("10.0.0.0/8",))
NO_TALOS = "cannot access the Talos API: no talosconfig"


def addresses(*texts: str) -> tuple[AddressStatus, ...]:
    return tuple(AddressStatus(address=f"{text}/24", link="eth0", flags=128) for text in texts)


def web(number: int, *more: str, says: tuple[str, ...] = ()) -> tuple[Any, MachineFacts]:
    """Node web-<number> at 10.0.0.<number>, and its machine; `more` addresses that both have, or it alone."""
    name, ip = f"web-{number}", f"10.0.0.{number}"
    written = tuple(NodeAddress(type="InternalIP", address=text) for text in (ip, *more))
    facts = make_facts(node_name=name, node_ip=ip, addresses=addresses(ip, *more, *says))
    return make_node(name, uid=f"uid-{number}", ip=ip, addresses=written), facts


def evidence(
    request: CertificateSigningRequest,
    *machines: tuple[Any, MachineFacts | MachineFault | None],
    **fields: Any,
) -> RequestEvidence:
    nodes = tuple(node for node, _ in machines)
    reports = {
        node.name: make_enriched(node, look, NOW)
        if isinstance(look, MachineFacts)
        else make_unreachable(node, look, NOW)
        for node, look in machines
        if look is not None
    }
    requests = fields.pop("requests", (request,))
    return RequestEvidence(csr=request, requests=requests, nodes=nodes, reports=reports, at=NOW, **fields)


def condition(kind: str, message: str) -> CsrCondition:
    return CsrCondition(
        type=kind,
        reason=f"{kind} by TalosCloudControllerManager",
        message=f"This CSR was {kind.lower()} by Talos Cloud Controller Manager{message}",
        last_update_time=NOW - timedelta(minutes=3),
    )


def mine(*held: CsrCondition, certificate: str = "", **fields: Any) -> CertificateSigningRequest:
    """A request of web-5."""
    request = make_serving_request("csr-mine", node="web-5", age_seconds=200, **fields)
    return hold_request(request, *held, certificate=certificate)


OWN: Final = web(5)
NODE_WITHOUT_MACHINE: Final = (OWN[0], None)
HOSTILE = "\x1b[2J\u202egnp.exe"
EVIDENCE: Final[dict[str, tuple[RequestEvidence, ApprovalPolicy]]] = {
    "approved": (
        evidence(
            mine(
                condition("Approved", ": every name and address is attested by the machine through Talos"),
                certificate="pem",
            ),
            OWN,
        ),
        KNOWN,
    ),
    "not-signed": (evidence(mine(condition("Approved", "")), OWN), KNOWN),
    "denied-before": (evidence(mine(condition("Denied", ", Reason: it was so")), OWN), KNOWN),
    "pending": (evidence(mine(), OWN, web(6)), KNOWN),
    "stolen": (evidence(mine(ips=("10.0.0.5", "10.0.0.6")), OWN, web(6)), KNOWN),
    "rivals": (evidence(mine(ips=("10.0.0.5", "10.0.0.9")), web(5, "10.0.0.9"), web(6, "10.0.0.9")), KNOWN),
    "silent": (evidence(mine(), (OWN[0], REFUSED)), KNOWN),
    "superseded": (
        evidence(
            mine(),
            OWN,
            requests=(mine(), hold_request(make_serving_request("csr-newer", node="web-5", age_seconds=1))),
        ),
        KNOWN,
    ),
    "without-access": (evidence(mine(), NODE_WITHOUT_MACHINE, talos_problem=NO_TALOS), KNOWN),
    "without-talos": (evidence(mine(), NODE_WITHOUT_MACHINE, without_talos=True), NETWORKS),
    "no-node": (evidence(mine(), web(6)), KNOWN),
    "not-ours": (evidence(hold_request(make_request("csr-other", username=HOSTILE, node="x"))), KNOWN),
    "silent-rival": (
        evidence(mine(ips=("10.0.0.5",)), OWN, (make_node("web-6", uid="uid-6", ip="10.0.0.5"), REFUSED)),
        KNOWN,
    ),
    "foreign": (
        evidence(mine(), OWN, ownership=Ownership(provider_id_schemes=("hcloud",))),
        KNOWN,
    ),
    "hostile-name": (evidence(mine(dns=("web-5", HOSTILE.encode("punycode").decode())), OWN), KNOWN),
}


def explained(name: str) -> RequestExplanation:
    return explain_request(*EVIDENCE[name])


def shown(explanation: RequestExplanation, width: int | None = None) -> str:
    return render_lines(format_explanation(explanation), width)


PROXY: Final = ApiEndpoint(
    identities=(ServerIdentity(names=frozenset({"acme.omni.siderolabs.io", "web-5.example"})),)
)


UNREAD: Final = ApiEndpoint(fault="connection refused")


@pytest.mark.parametrize(
    ("asked", "endpoint", "verdict"),
    [
        (mine(), PROXY, "unknown"),
        (mine(), UNREAD, "unknown"),
        (mine(dns=("web-5", "acme.omni.siderolabs.io")), PROXY, "unknown"),
        (mine(dns=("web-5", "web-6")), PROXY, "deny"),  # for another reason
        (mine(ips=()), PROXY, "approve"),  # the node name alone
    ],
)
def test_behind_a_proxy_that_ends_tls_the_endpoint_is_unknown(
    asked: CertificateSigningRequest, endpoint: ApiEndpoint, verdict: str
):
    policy = msgspec.structs.replace(KNOWN, api_endpoint=ApiEndpoint())
    explanation = explain_request(evidence(asked, OWN, web(6), endpoint=endpoint), policy)
    unknown = [check.name for check in explanation.checks if check.result == "unknown"]
    assert explanation.verdict == verdict
    assert unknown == (["endpoint"] if verdict == "unknown" else [])
    assert ("talosctl kubeconfig" in " ".join(suggest_actions(explanation))) == (verdict == "unknown")


VERDICTS: Final = {
    ("approve", 0): ("approved", "not-signed", "pending", "without-talos"),
    ("approve", 1): ("superseded", "denied-before"),
    ("deny", 1): ("stolen", "hostile-name"),
    ("wait", 1): ("rivals", "silent", "no-node"),
    ("ignore", 1): ("not-ours",),
    ("foreign", 1): ("foreign",),
    ("unknown", 2): ("without-access", "silent-rival"),
}


@pytest.mark.parametrize(
    ("name", "expected"), [(name, expected) for expected, names in VERDICTS.items() for name in names]
)
def test_the_exit_status_says_whether_it_is_or_would_be_approved(name: str, expected: tuple[str, int]):
    explanation = explained(name)
    assert (explanation.verdict, explanation.exit_status) == expected


def test_of_each_hostile_and_odd_request_it_tells_what_csr_decides_and_why():
    machines = [(node, REFUSED if name in UNREACHABLE else FACTS.get(name)) for name, node in NODES.items()]
    for case in CASES:
        with naming(case.name):
            explanation = explain_request(evidence(hold_request(case.request()), *machines), POLICY)
            # What a silent machine said when it last answered is known to csr alone.
            is_known = explanation.verdict != "unknown"
            assert explanation.verdict == case.expected if is_known else case.expected == "wait"
            if explanation.verdict not in ("ignore", "approve"):
                assert any(check.result != "passed" for check in explanation.checks)
            assert list(suggest_actions(explanation))
            assert shown(explanation, 80).replace("\n", "").isprintable()
            told = json.loads(format_json(explanation_to_json(explanation)))
            assert told["decision"]["now"] == explanation.verdict
            assert [check["name"] for check in told["checks"]] == [each.name for each in explanation.checks]


def test_a_request_of_a_node_that_does_not_exist_is_not_denied_while_it_may_be_anothers():
    evil = mine(ips=("127.0.0.1",))
    assert explain_request(evidence(evil), KNOWN).verdict == "deny"
    judged = explain_request(evidence(evil, ownership=Ownership(provider_id_schemes=("hcloud",))), KNOWN)
    assert (judged.verdict, judged.check, judged.exit_status) == ("wait", "node", 1)


def test_who_claims_the_same_is_asked_too_and_only_contested_addresses_are_dialled():
    request = mine(ips=("10.0.0.5", "10.0.0.9"), dns=("web-5", "web-7"))
    asking = evidence(request, web(5, "10.0.0.9"), web(6, "10.0.0.9"), web(7), web(8))
    assert find_claimants(asking) == {"web-6", "web-7"}
    assert list_contested_addresses(asking) == ("10.0.0.9",)
    assert list_contested_addresses(evidence(request, web(5, "10.0.0.9"), web(8))) == ()


def test_where_its_own_machine_answers_at_a_contested_address_it_has_it():
    asking = evidence(mine(ips=("10.0.0.5", "10.0.0.9")), web(5, "10.0.0.9"), web(6, "10.0.0.9"))
    dialled = evidence(asking.csr, web(5, "10.0.0.9"), web(6, "10.0.0.9"), answered_at=("10.0.0.9",))
    assert explain_request(asking, KNOWN).check == "rivals"
    assert explain_request(dialled, KNOWN).verdict == "approve"


def test_a_machine_whose_node_names_no_such_address_counts_when_it_is_asked():
    request = mine(ips=("10.0.0.5", "10.0.0.9"))
    other = web(6, says=("10.0.0.9",))
    unasked = evidence(request, web(5, says=("10.0.0.9",)), (other[0], None))
    before = explain_request(unasked, KNOWN)
    assert (before.verdict, before.evidence.unqueried_machines) == ("approve", 1)
    asked = explain_request(evidence(request, web(5, says=("10.0.0.9",)), other), KNOWN)
    assert (asked.verdict, asked.evidence.unqueried_machines) == ("wait", 0)


def test_the_newest_request_of_a_node_is_the_last_filed_decided_or_not():
    older = hold_request(make_serving_request("csr-z", age_seconds=5), condition("Approved", ""))
    newer = hold_request(make_serving_request("csr-a"))
    assert find_newest([newer, older]) == newer
    assert find_newest([]) is None


def test_what_the_page_shows_is_what_it_says():
    page = (ROOT / "docs" / "certificates.md").read_text()
    example = page.partition("```text\n")[2].partition("```")[0].splitlines()
    machines = [
        (make_node(name, uid=name, ip=ip), make_facts(node_name=name, node_ip=ip, addresses=addresses(ip)))
        for name, ip in (("gcp-005", "10.64.0.6"), ("hcloud-003", "10.64.0.4"))
    ]
    others = [(make_node(f"web-{number}", uid=f"uid-{number}", ip=""), None) for number in range(6)]
    request = make_serving_request(
        "csr-b6bbd", node="gcp-005", ips=("10.64.0.6", "10.64.0.4"), age_seconds=25
    )
    told = shown(explain_request(evidence(hold_request(request), *machines, *others), KNOWN)).splitlines()
    assert set(example) - {"..."} <= set(told)
    places = [told.index(line) for line in example if line != "..."]
    assert places == sorted(places)
