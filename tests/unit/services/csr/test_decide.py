"""Which certificates a kubelet gets: a reason for every row, and what no input causes."""

from typing import Any, NamedTuple

import msgspec
import pytest

from libs.common.contract.events import CsrEnriched
from libs.common.contract.ip_addresses import parse_ip
from libs.common.contract.machine import AddressStatus, MachineFacts, MachineFault
from libs.common.contract.node import Node
from libs.common.kube.server_identity import ServerIdentity
from services.csr.core.claim_index import ClaimIndex
from services.csr.core.decide import decide
from services.csr.core.decision import (
    ApiEndpoint,
    ApprovalPolicy,
    Approve,
    Decision,
    Deny,
    Ignore,
    Wait,
)
from tests.builders import make_csr_enriched, make_node, make_node_enriched, make_request
from tests.csr_cases import CASES, FACTS, NODES, POLICY, WHO, CsrCase, make_metadata_events
from tests.csr_der import CN, ORGANIZATION, RequestFields, encode_dns_name, encode_ip, encode_pem
from tests.tables import naming
from tests.unit.services.csr.test_claim_index import claims_of, facts_of, unreachable, writes

THE_CLUSTER = claims_of(*NODES.values(), *make_metadata_events())


def asks(name: str, *names_and_ips: str, **fields: Any) -> CsrEnriched:
    """A request of that node, with an honest subject; other keywords are fields of CsrEnriched."""
    sans = tuple(encode_ip(text) if parse_ip(text) else encode_dns_name(text) for text in names_and_ips)
    subject = (((ORGANIZATION, "system:nodes"),), ((CN, f"system:node:{name}"),))
    request = make_request(node=name, pem=encode_pem(RequestFields(subject=subject, sans=sans).sign()))
    return make_csr_enriched(request, **({"node_uid": "uid-1"} | fields))


def decided(event: CsrEnriched, claims: ClaimIndex, policy: ApprovalPolicy = POLICY) -> Decision:
    return decide(event, claims, policy).decision


def told(decision: Decision) -> str:
    return decision.reason if isinstance(decision, Ignore) else decision.message


def judged(case: CsrCase, facts: MachineFacts | None = FACTS[WHO]) -> Decision:
    event = make_csr_enriched(
        case.request(), facts=facts, node_uid=NODES[WHO].uid, answering_addresses=("10.0.0.5",)
    )
    return decided(event, THE_CLUSTER)


def test_what_becomes_of_each_case():
    for case in CASES:
        with naming(case.name):
            decision = judged(case)
            assert type(decision).__name__.lower() == case.expected, decision
            assert case.reason in told(decision)
            assert len(told(decision)) <= 1100
            assert told(decision).isprintable()


def test_what_is_wrong_in_itself_is_denied_whatever_is_known():
    for case in (case for case in CASES if case.expected == "deny"):
        with naming(case.name):
            decision = judged(case, facts=None)
            assert isinstance(decision, Deny | Wait)
            if isinstance(judged(case, facts=FACTS["db-2"]), Deny):
                assert isinstance(decision, Deny)


def test_an_approval_says_what_the_reference_says():
    decision = decided(asks("a", "a", facts=facts_of("a")), claims_of(make_node("a")))
    assert decision == Approve(
        reason="Approved by TalosCloudControllerManager",
        message="This CSR was approved by Talos Cloud Controller Manager: "
        "every name and address is attested by the machine through Talos",
    )


def test_a_denial_says_what_the_reference_says_and_names_what_was_asked_for():
    decision = decided(asks("a", "vault.example", facts=facts_of("a")), claims_of(make_node("a")))
    assert decision == Deny(
        reason="Denied by TalosCloudControllerManager",
        message="This CSR was denied by Talos Cloud Controller Manager, Reason: "
        "DNS name 'vault.example' is not attested by the machine of a",
        check="names",
    )


A, B = make_node("a", ip="10.0.0.1"), make_node("b", ip="10.0.0.2")
OF_A = facts_of("a", "10.0.0.1/24", "10.0.0.9/24", node_ip="10.0.0.1")
OF_B = facts_of("b", "10.0.0.2/24", "10.0.0.9/24", node_ip="10.0.0.2")
FAULT = MachineFault(kind="timeout", step="PlatformMetadata", message="no answer in 5 s")


class ExpectedWait(NamedTuple):
    reason: str
    text: str  # a part of the message
    nodes: frozenset[str] = frozenset("a")
    rivals: tuple[str, ...] = ()


OF_A_ALONE: dict[str, tuple[CsrEnriched, ExpectedWait]] = {  # there is no other Node
    "nothing known": (asks("a", "a"), ExpectedWait("asking", "has not been queried yet")),
    "a fault": (asks("a", "a", fault=FAULT), ExpectedWait("unreachable", "no answer in 5 s")),
    "an earlier Node": (asks("a", "a", facts=OF_A, node_uid="x"), ExpectedWait("asking", "earlier Node a")),
    "another machine, by its UUID": (
        asks("a", "a", facts=OF_B),
        ExpectedWait("machine", "is node 'b', not a"),
    ),
    "an address that is not there yet": (
        asks("a", "10.0.0.8", facts=OF_A),
        ExpectedWait("addresses", "10.0.0.8 is not on the machine of a (yet)"),
    ),
    "a name while the cloud has not answered": (
        asks("a", "x.example", facts=facts_of("a", platform="aws")),
        ExpectedWait("names", "Talos has no providerID from platform aws yet"),
    ),
}
WAITS: tuple[tuple[str, ClaimIndex, CsrEnriched, ExpectedWait], ...] = (
    *((name, claims_of(A), event, expected) for name, (event, expected) in OF_A_ALONE.items()),
    ("no Node", claims_of(), asks("a", "a", node_uid=""), ExpectedWait("node", "there is no Node a yet")),
    (
        "an address that both attest",
        claims_of(A, B, make_node_enriched(B, OF_B)),
        asks("a", "10.0.0.9", facts=OF_A),
        ExpectedWait("rivals", "IP address 10.0.0.9 is claimed by Node b, too", frozenset("ab"), ("b",)),
    ),
    (
        "where both answer",
        claims_of(A, B, make_node_enriched(B, facts_of("b", "10.0.0.1/24", node_ip="10.0.0.1"))),
        asks("a", "10.0.0.1", facts=OF_A),
        ExpectedWait("rivals", "which answers there", frozenset("ab"), ("b",)),
    ),
    (
        "where another answers, and it does not",
        claims_of(A, B, make_node_enriched(B, facts_of("b", "10.0.0.9/24", node_ip="10.0.0.9"))),
        asks("a", "10.0.0.9", facts=OF_A),
        ExpectedWait("rivals", "which answers there", frozenset("ab")),
    ),
    (
        "where it answers, and another did that is silent",
        claims_of(A, B, unreachable(B, facts_of("b", "10.0.0.1/24", node_ip="10.0.0.1"))),
        asks("a", "10.0.0.1", facts=OF_A),
        ExpectedWait("former", "was Node b's, which does not answer any more", frozenset("ab")),
    ),
    (
        "an address that a silent machine attested",
        claims_of(A, B, unreachable(B, OF_B)),
        asks("a", "10.0.0.9", facts=OF_A),
        ExpectedWait("rivals", "Node b, too", frozenset("ab"), ("b",)),
    ),
    (
        "an address that a Node writes whose machine was never asked",
        claims_of(A, writes("b", "10.0.0.9")),
        asks("a", "10.0.0.9", facts=OF_A),
        ExpectedWait("rivals", "never been asked", frozenset("ab"), ("b",)),
    ),
    (
        "a name that both attest",
        claims_of(A, B, make_node_enriched(B, facts_of("b", hostname="x.example"))),
        asks("a", "x.example", facts=facts_of("a", hostname="x.example")),
        ExpectedWait("rivals", "DNS name 'x.example' is claimed by Node b, too", frozenset("ab"), ("b",)),
    ),
    (
        "its full name that is the name of a Node without a machine",
        claims_of(A, make_node("a.example", ip="")),
        asks("a", "a.example", facts=facts_of("a", hostname="a.example")),
        ExpectedWait(
            "rivals", "Node a.example, too, which has it as its node name", frozenset({"a", "a.example"})
        ),
    ),
    (
        "the name of a Node whose machine does not answer",
        claims_of(A, B, unreachable(B, OF_B)),
        asks("a", "b", facts=OF_A),
        ExpectedWait("rivals", "which has it as its node name", frozenset("ab")),
    ),
    (
        "the name of a Node whose machine is identified by its UUID alone",
        claims_of(A, B, make_node_enriched(B, facts_of("c", node_ip="10.0.0.2"))),
        asks("a", "b", facts=OF_A),
        ExpectedWait("rivals", "which has it as its node name", frozenset("ab")),
    ),
    (
        "the name under which another machine answers, attested",
        claims_of(A, B, make_node_enriched(B, OF_B)),
        asks("a", "b", facts=facts_of("a", hostname="b")),
        ExpectedWait("rivals", "which has it as its node name and answers under it", frozenset("ab")),
    ),
    (
        "a name that begins with another's",
        claims_of(A, B),
        asks("a", "b.example", facts=facts_of("a", hostname="b.example")),
        ExpectedWait("rivals", "which has the name that it begins with", frozenset("ab")),
    ),
    (
        "several things",
        claims_of(A, B, make_node_enriched(B, OF_B)),
        asks("a", "10.0.0.8", "10.0.0.9", facts=OF_A),
        ExpectedWait("addresses", "10.0.0.9 is claimed by Node b, too", frozenset("ab"), ("b",)),
    ),
)


@pytest.mark.parametrize("row", WAITS, ids=lambda row: row[0])
def test_a_wait_says_what_for_and_on_whom(row: Any):
    _, claims, event, expected = row
    decision = decided(event, claims)
    assert isinstance(decision, Wait)
    assert decision.reason == expected.reason
    assert (decision.nodes, decision.rivals) == (expected.nodes, expected.rivals)
    assert expected.text in decision.message


GRANTED: tuple[tuple[str, ClaimIndex, CsrEnriched], ...] = (
    (
        "where it answers, though a silent machine attested it",
        claims_of(A, B, unreachable(B, facts_of("b", "10.0.0.1/24", node_ip="10.0.0.2"))),
        asks("a", "10.0.0.1", facts=OF_A),
    ),
    (
        "where it answers, though another attests it",
        claims_of(A, B, make_node_enriched(B, facts_of("b", "10.0.0.1/24", node_ip="10.0.0.2"))),
        asks("a", "10.0.0.1", facts=OF_A),
    ),
    (
        "where it was dialled and answered, though another attests it",
        claims_of(A, B, make_node_enriched(B, OF_B)),
        asks("a", "10.0.0.9", facts=OF_A, answering_addresses=("10.0.0.1", "10.0.0.9")),
    ),
    (
        "where it answers, though a Node writes it whose machine was never asked",
        claims_of(A, writes("b", "10.0.0.1")),
        asks("a", "10.0.0.1", facts=OF_A),
    ),
    (
        "what another only writes",
        claims_of(
            A, (b := writes("b", "10.0.0.9")), make_node_enriched(b, facts_of("b", node_ip="10.0.0.2"))
        ),
        asks("a", "10.0.0.9", facts=OF_A),
    ),
    (
        "its own name, though another attests it",
        claims_of(A, B, make_node_enriched(B, facts_of("b", hostname="a"))),
        asks("a", "a", facts=OF_A),
    ),
    (
        "its full name, though another attests it",
        claims_of(A, B, make_node_enriched(B, facts_of("b", hostname="a.example"))),
        asks("a", "a.example", facts=facts_of("a", hostname="a.example")),
    ),
    (
        "a node name that is an address, by address",
        claims_of(make_node("10.0.0.5", ip="10.0.0.5")),
        asks("10.0.0.5", "10.0.0.5", facts=facts_of("10.0.0.5", "10.0.0.5/24", node_ip="10.0.0.5")),
    ),
    (
        "what was another's Node that is gone",
        claims_of(A, make_node_enriched(B, facts_of("b", "10.0.0.1/24", node_ip="10.0.0.1"))),
        asks("a", "10.0.0.1", facts=OF_A),
    ),
)


@pytest.mark.parametrize("row", GRANTED, ids=lambda row: row[0])
def test_a_node_gets_what_it_is(row: Any):
    _, claims, event = row
    assert isinstance(decided(event, claims), Approve)


# Each machine attests the name. The domain of the cluster is corp.internal.
NAMES: dict[tuple[str, str], str] = {  # node and requested name
    ("web-1", "metrics-server.kube-system.svc.corp.internal"): "deny",
    ("web-1", "a.b.metrics-server.kube-system.svc.corp.internal"): "deny",
    ("web-1", "metrics-server.kube-system.svc.cluster.local"): "deny",
    ("web-1", "metrics-server.kube-system.svc"): "deny",
    ("web-1", "metrics-server.svc.svc"): "deny",
    ("web-1", "10-244-1-7.default.pod.corp.internal"): "deny",
    ("web-1", "10-244-1-7.default.pod.cluster.local"): "deny",
    ("web-1", "10-244-1-7.default.pod"): "deny",
    ("web-1.rack2.svc.corp.internal", "web-1.rack2.svc.corp.internal"): "deny",
    ("web-1", "metrics-server.kube-system"): "wait",
    ("web-1", "metrics-server"): "wait",
    ("web-1", "web.svc"): "wait",
    ("web-1", "web-1.svc"): "approve",
    ("web-1", "web-1.rack2.svc.example.com"): "approve",
    ("web-1", "web-1.rack2.pod.example.com"): "approve",
    ("web-1", "ip-10-0-0-5.ec2.internal"): "approve",
    ("srv1", "srv1.lan"): "approve",
    ("srv1", "SRV1.lan"): "approve",
    ("web-1.example.com", "web-1"): "approve",
    ("web-1.example.com", "web-1.lan"): "approve",
    ("metrics-server", "metrics-server"): "approve",
    ("svc", "svc"): "approve",
    ("svc", "svc.corp.internal"): "approve",
    ("svc", "svc.lan"): "approve",
    ("pod", "pod.rack.corp.internal"): "approve",
    ("web-1", "web-1.pod.corp.internal"): "approve",
}


@pytest.mark.parametrize(("node", "dns"), NAMES)
def test_no_machine_gets_the_name_of_a_service_or_a_pod_and_hosts_get_theirs(node: str, dns: str):
    decision = decided(asks(node, dns, facts=facts_of(node, hostname=dns)), claims_of(make_node(node)))
    assert type(decision).__name__.lower() == NAMES[node, dns], decision


@pytest.mark.parametrize("names", [(), ("lb.example.com",)], ids=["unread", "proxy"])
def test_a_name_that_may_be_a_services_waits_while_the_domain_of_the_cluster_is_unknown(
    names: tuple[str, ...],
):
    identities = (ServerIdentity(names=frozenset(names)),) if names else ()
    policy = msgspec.structs.replace(POLICY, api_endpoint=ApiEndpoint(identities=identities))
    for node in ("metrics-server.kube-system.svc.corp.internal", "web-1.rack2.svc.example.com"):
        event = asks(node, node, facts=facts_of(node))
        decision = decided(event, claims_of(make_node(node)), policy)
        assert isinstance(decision, Wait)
        assert decision.reason == "endpoint"


NETWORKS = msgspec.structs.replace(POLICY, allowed_networks=("10.0.0.0/16", "fd00:7::/32"))
ALONE: tuple[tuple[str, Node, tuple[str, ...], str, str], ...] = (
    ("what it writes", writes("a", "10.0.0.1"), ("a", "10.0.0.1"), "approve", "Node object only"),
    ("its provided IP", make_node("a", ip="10.0.0.1"), ("10.0.0.1",), "approve", "Node object only"),
    ("outside", writes("a", "192.0.2.1"), ("192.0.2.1",), "deny", "192.0.2.1 is not within"),
    ("outside, by IPv6", writes("a", "fd01::1"), ("fd01::1",), "deny", "is not within"),
    ("not written yet", writes("a"), ("10.0.0.1",), "wait", "not in the status of Node a (yet)"),
    ("written by another", writes("a", "10.0.0.2"), ("10.0.0.2",), "wait", "in the status of Node b, too"),
    ("the name of another", writes("a", "b"), ("b",), "deny", "Node b's own name"),
    ("the name of another below its own", writes("a", "a.b"), ("a.b",), "wait", "Node a.b's own name"),
    ("any other name", writes("a", "vault.example"), ("vault.example",), "deny", "neither a nor below it"),
    ("its full name", writes("a", "a.example"), ("a.example",), "approve", "Node object only"),
    ("its full name, not written yet", writes("a"), ("a.example",), "wait", "not in the status"),
    (
        "a Service below its own name",
        writes("a", "a.kube-system.svc.corp.internal"),
        ("a.kube-system.svc.corp.internal",),
        "deny",
        "is a Service's",
    ),
    (
        "a host below its own name",
        writes("a", "a.rack2.svc.example.com"),
        ("a.rack2.svc.example.com",),
        "approve",
        "Node object only",
    ),
    ("loopback", writes("a", "127.0.0.1"), ("127.0.0.1",), "deny", "not a unicast address"),
)


@pytest.mark.parametrize("row", ALONE, ids=lambda row: row[0])
def test_without_talos_a_node_is_what_it_alone_writes_within_bounds(row: Any):
    _, node, sans, expected, text = row
    claims = claims_of(node, writes("b", "10.0.0.2", ip="10.0.0.2"), writes("a.b"))
    decision = decided(asks("a", *sans, without_talos=True, node_uid=""), claims, NETWORKS)
    assert type(decision).__name__.lower() == expected
    assert text in told(decision)
    if isinstance(decision, Approve):
        assert decision.is_by_node_object_only


def test_without_talos_and_without_networks_nothing_is_approved():
    decision = decided(asks("a", "a", without_talos=True), claims_of(A), ApprovalPolicy())
    assert isinstance(decision, Wait)
    assert (decision.reason, "--csr-allowed-networks" in decision.message) == ("no-talos", True)


def test_networks_count_for_nothing_where_machines_are_asked():
    policy = ApprovalPolicy(allowed_networks=("0.0.0.0/0",))
    claims = claims_of(writes("a", "10.0.0.1"))
    for event in (asks("a", "a", "10.0.0.1", facts=facts_of("a")), asks("a", "a")):
        assert isinstance(decided(event, claims, policy), Wait)


def test_every_check_is_told_with_its_result():
    claims = claims_of(A, B, make_node_enriched(B, OF_B))
    judgement = decide(asks("a", "a", "10.0.0.1", "10.0.0.9", facts=OF_A), claims, POLICY)
    assert [(check.name, check.passed) for check in judgement.checks] == [
        *((name, True) for name in ("requester", "request", "key", "signature", "subject", "usages")),
        *((name, True) for name in ("kinds", "any", "names", "addresses", "expiration")),
        ("machine", True),
        ("names", True),
        ("addresses", True),
        ("rivals", None),
    ]
    assert all(check.text for check in judgement.checks)


def test_a_denial_names_the_first_fault_and_tells_the_others():
    judgement = decide(asks("a", "*", "127.0.0.1"), claims_of(A), POLICY)
    assert isinstance(judgement.decision, Deny)
    assert judgement.decision.check == "names"
    assert judgement.checks[-1].name == "expiration"  # and nothing of its machine is looked at
    assert [check.name for check in judgement.checks if check.passed is False] == ["names", "addresses"]


def test_names_that_a_machine_attests_are_no_reason_for_names_that_nobody_may_have():
    lies = facts_of("a", hostname="kubernetes.default", platform="metal", external_dns="*.example")
    lies_more = MachineFacts(
        platform=lies.platform, node_name="a", queried_at=lies.queried_at, node_ip="10.0.0.1"
    )
    for name in ("kubernetes.default", "*.example"):
        assert isinstance(decided(asks("a", name, facts=lies_more), claims_of(A)), Deny)


def test_what_machines_and_faults_say_is_told_bounded_and_printable():
    odd = "\x1b[31m\n" + "x" * 5000
    fault = MachineFault(kind="invalid", step="Nodename", message=odd)
    for event in (
        asks("a", "a", fault=fault),
        asks("a", "x.example", facts=facts_of("a", platform=odd)),
        asks("a", "a", facts=facts_of(odd)),
        asks("a", "a", facts=facts_of("b", node_ip=odd)),
    ):
        decision = decided(event, claims_of(A))
        assert isinstance(decision, Wait)
        assert decision.message.isprintable()
        assert len(decision.message) < 600


def test_where_more_claim_it_than_words_have_room_the_message_is_cut():
    others = [writes(f"b{number}", "10.0.0.9") for number in range(500)]
    decision = decided(asks("a", "10.0.0.9", facts=OF_A), claims_of(A, *others))
    assert isinstance(decision, Wait)
    assert len(decision.nodes) == 501
    assert len(decision.message) < 1100


def test_no_machine_has_an_address_of_the_service_network_whatever_it_says_of_itself():
    # the API server is at the first one, and the cluster's CA, which all pods trust, signs for kubelets, too
    facts = facts_of("a", "10.96.0.1/32", "fd00:96::1/128", "10.0.0.1/24", node_ip="10.0.0.1")
    policy = msgspec.structs.replace(POLICY, service_networks=("010.096.0.0/12", "fd00:96::/108"))
    for address in ("10.96.0.1", "fd00:96::1"):
        decision = decide(asks("a", address, facts=facts), claims_of(A), policy).decision
        assert isinstance(decision, Deny)
        assert f"{address} is a Service's" in decision.message
    own = decide(asks("a", "10.0.0.1", facts=facts), claims_of(A), policy).decision
    assert isinstance(own, Approve)


@pytest.mark.parametrize("name", ["\u212anown.example", "a\u017f.example", "\u0130.example"])
def test_a_letter_that_only_pretends_to_be_one_of_ours_makes_no_host_name(name: str):
    # "K" in lower case is the k of an attested name, and a pattern that ignores case takes both
    facts = facts_of("a", hostname=name.lower(), internal_dns="as.example")
    decision = decided(asks("a", name, facts=facts), claims_of(A))
    assert isinstance(decision, Deny)
    assert "no host name" in decision.message or "cannot be read" in decision.message


@pytest.mark.parametrize(
    "link", ["lo", "dummy7", "kube-ipvs0", "nodelocaldns", "kubespan", "siderolink", "cilium_host"]
)
def test_an_address_on_a_virtual_link_counts_only_where_the_machine_answered(link: str):
    status = AddressStatus(address="203.0.113.9/32", link=link)
    facts = msgspec.structs.replace(OF_A, addresses=(*OF_A.addresses, status))
    event = asks("a", "203.0.113.9", facts=facts)
    decision = decided(event, claims_of(A, make_node_enriched(A, facts)))
    assert isinstance(decision, Wait)
    assert "which accepts any address" in decision.message
    answered = msgspec.structs.replace(event, answering_addresses=("10.0.0.1", "203.0.113.9"))
    assert isinstance(decided(answered, claims_of(A, make_node_enriched(A, facts))), Approve)
