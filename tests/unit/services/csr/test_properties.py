"""What no cluster, however hostile, makes of a decision: over random Nodes, machines and requests."""

import functools
import itertools
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.events import CsrEnriched, NodeEnriched, NodeUnreachable
from libs.common.contract.ip_addresses import InvalidNodeIP, parse_ip, parse_node_ips
from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.contract.node import Node
from libs.common.kube.server_identity import ServerIdentity
from services.csr.core.claim_index import ClaimIndex
from services.csr.core.decide import decide
from services.csr.core.decision import ApiEndpoint, Approve, Deny, Wait
from services.labeler.core.plan.addresses import list_addresses, verify_provided_node_ips
from tests.builders import make_csr_enriched, make_facts, make_node, make_node_enriched, make_request
from tests.csr_cases import POLICY
from tests.csr_der import CN, ORGANIZATION, RequestFields, encode_dns_name, encode_ip, encode_pem
from tests.unit.services.csr.test_claim_index import claims_of, facts_of, unreachable, writes

# What is true: each machine has these addresses, answers at the first, and has this full name.
ADDRESSES = {
    "a": ("10.0.0.1", "fd00::1"),
    "b": ("10.0.0.2", "10.0.1.2", "fd00::2"),
    "c": ("10.0.0.3",),
}
FULL_NAMES = {name: f"{name}.example" for name in ADDRESSES}
EVERY_IP = (*(address for ips in ADDRESSES.values() for address in ips), "10.0.0.99")
EVERY_NAME = (*ADDRESSES, *FULL_NAMES.values(), "vault.example", "B", "A.Example")
Word = NodeEnriched | NodeUnreachable | None


@functools.cache
def pem_for(name: str, names: tuple[str, ...], ips: tuple[str, ...]) -> bytes:
    subject = (((ORGANIZATION, "system:nodes"),), ((CN, f"system:node:{name}"),))
    return encode_pem(
        RequestFields(subject=subject, sans=(*map(encode_dns_name, names), *map(encode_ip, ips))).sign()
    )


def asks(name: str, names: tuple[str, ...], ips: tuple[str, ...], **fields: Any) -> CsrEnriched:
    return make_csr_enriched(
        make_request(node=name, pem=pem_for(name, names, ips)), node_uid="uid-1", **fields
    )


def honest_facts(name: str) -> MachineFacts:
    addresses = ADDRESSES[name]
    return facts_of(name, *addresses, node_ip=addresses[0], hostname=FULL_NAMES[name])


def honest_node(name: str) -> Node:
    return writes(name, *ADDRESSES[name], FULL_NAMES[name], ip=ADDRESSES[name][0])


@st.composite
def honest(draw: st.DrawFn, name: str) -> tuple[Node, Word]:
    """A Node that says what is true; its machine answers, is silent, or was never asked."""
    node, facts = honest_node(name), honest_facts(name)
    words: tuple[Word, ...] = (
        make_node_enriched(node, facts),
        unreachable(node, facts),
        unreachable(node),
        None,
    )
    return node, draw(st.sampled_from(words))


@st.composite
def lies(draw: st.DrawFn, name: str) -> MachineFacts:
    """Any facts, but the machine answers only at its own address."""
    return facts_of(
        name,
        *draw(st.lists(st.sampled_from(EVERY_IP))),
        node_ip=draw(st.sampled_from(ADDRESSES[name])),
        hostname=draw(st.sampled_from(("", *EVERY_NAME))),
        internal_dns=draw(st.sampled_from(("", *EVERY_NAME))),
        external_dns=draw(st.sampled_from(("", *EVERY_NAME))),
    )


@st.composite
def hostile(draw: st.DrawFn, name: str) -> tuple[Node, Word]:
    """A Node whose kubelet writes anything, and whose machine says anything, or nothing."""
    node = writes(
        name,
        *draw(st.lists(st.sampled_from((*EVERY_IP, *EVERY_NAME)))),
        ip=draw(st.sampled_from(("", *EVERY_IP))),
    )
    said = draw(st.none() | lies(name))
    if said is None:
        return node, draw(st.sampled_from((None, unreachable(node))))
    words: tuple[Word, ...] = (make_node_enriched(node, said), unreachable(node, said))
    return node, draw(st.sampled_from(words))


def claims_from(*told: tuple[Node, Word]) -> ClaimIndex:
    return claims_of(*(one for pair in told for one in pair if one is not None))


Told = tuple[Node, Word]
Sans = tuple[tuple[str, ...], tuple[str, ...]]  # names and addresses
some_sans: st.SearchStrategy[Sans] = st.tuples(
    st.lists(st.sampled_from(EVERY_NAME), max_size=2).map(tuple),
    st.lists(st.sampled_from(EVERY_IP), max_size=2).map(tuple),
)
# Mostly its own addresses: requests for those of other Nodes are hardly ever approved.
likely_sans: st.SearchStrategy[Sans] = st.tuples(
    st.lists(st.sampled_from(("a", "A.Example", "vault.example")), max_size=2).map(tuple),
    st.lists(st.sampled_from((*ADDRESSES["a"], "10.0.0.99")), max_size=2).map(tuple),
)
cluster = st.tuples(hostile("a"), honest("b"), honest("c"))
worse_cluster = st.tuples(hostile("a"), hostile("b"), honest("c"))


@given(cluster, lies("a"), some_sans, st.data())
def test_what_is_anothers_is_never_approved(
    told: tuple[Told, ...], said: MachineFacts, sans: Sans, data: st.DataObject
):
    (names, ips), theirs = sans, (FULL_NAMES["b"], FULL_NAMES["c"], "b", "c")
    stolen = data.draw(st.sampled_from((*ADDRESSES["b"], *ADDRESSES["c"], *theirs)))
    if parse_ip(stolen) is None:
        names = (*names, stolen)
        platform = msgspec.structs.replace(said.platform, hostname=stolen)
        said = msgspec.structs.replace(said, platform=platform)
    else:
        ips = (*ips, stolen)
        attested = (*said.addresses, *facts_of("a", stolen).addresses)
        said = msgspec.structs.replace(said, addresses=attested)
    answered = tuple(data.draw(st.sets(st.sampled_from(ADDRESSES["a"]))))
    event = asks("a", names, ips, facts=said, answering_addresses=answered)
    assert not isinstance(decide(event, claims_from(*told), POLICY).decision, Approve)


@given(hostile("a"), hostile("c"))
def test_what_is_its_own_and_where_it_answers_is_never_withheld(a: Told, c: Told):
    node, facts = honest_node("b"), honest_facts("b")
    names, ips = ("b", FULL_NAMES["b"]), ADDRESSES["b"]
    event = asks("b", names, ips, facts=facts, answering_addresses=ips)
    judgement = decide(event, claims_from(a, c, (node, make_node_enriched(node, facts))), POLICY)
    assert isinstance(judgement.decision, Approve), judgement


@given(worse_cluster, lies("a"), likely_sans | some_sans)
def test_an_approval_means_that_the_machine_attests_every_name_and_address(
    told: tuple[Told, ...], said: MachineFacts, sans: Sans
):
    names, ips = sans
    event = asks("a", names, ips, facts=said)
    if not isinstance(decide(event, claims_from(*told), POLICY).decision, Approve):
        return
    assert names or ips
    platform = said.platform
    attested = {"a", platform.hostname, platform.internal_dns, platform.external_dns}
    assert {name.lower() for name in names} <= {name.lower() for name in attested}
    assert set(ips) <= {said.node_ip, *(status.address for status in said.addresses)}


@given(worse_cluster, likely_sans | some_sans)
def test_without_talos_nothing_that_another_writes_is_approved(told: tuple[Told, ...], sans: Sans):
    names, ips = sans
    claims = claims_of(*(node for node, _ in told))
    policy = msgspec.structs.replace(POLICY, allowed_networks=("10.0.0.0/8", "::/0"))
    if not isinstance(decide(asks("a", names, ips, without_talos=True), claims, policy).decision, Approve):
        return
    written = {address.address for node, _ in told[1:] for address in node.status.addresses}
    assert not written & set(ips)
    assert all(name.lower() == "a" or name.lower().startswith("a.") for name in names)


@given(worse_cluster, lies("a"), some_sans)
def test_a_wait_names_the_node_that_asks_and_every_rival(
    told: tuple[Told, ...], said: MachineFacts, sans: Sans
):
    decision = decide(asks("a", *sans, facts=said), claims_from(*told), POLICY).decision
    if isinstance(decision, Wait):
        assert {"a", *decision.rivals} <= decision.nodes <= {"a", "b", "c"}
        assert "a" not in decision.rivals
        assert decision.message


@given(worse_cluster, lies("a"), some_sans)
def test_nodes_that_claim_nothing_of_it_change_nothing(
    told: tuple[Told, ...], said: MachineFacts, sans: Sans
):
    event, unrelated = asks("a", *sans, facts=said), make_node("unrelated", ip="192.0.2.1")
    more = (unrelated, make_node_enriched(unrelated, facts_of("unrelated", "192.0.2.1/24")))
    assert decide(event, claims_from(*told), POLICY) == decide(event, claims_from(*told, more), POLICY)


@given(worse_cluster, lies("a"), some_sans)
def test_a_node_that_a_wait_does_not_name_can_go_and_it_still_waits(
    told: tuple[Told, ...], said: MachineFacts, sans: Sans
):
    event = asks("a", *sans, facts=said)
    decision = decide(event, claims_from(*told), POLICY).decision
    if isinstance(decision, Wait):
        named = [pair for pair in told if pair[0].name in decision.nodes]
        assert decide(event, claims_from(*named), POLICY).decision == decision


LABELS = (
    *(
        "web-1",
        "svc",
        "pod",
        "kubernetes",
        "kube-system",
        "corp",
        "internal",
        "cluster",
        "local",
        "localhost",
    ),
    *("example", "com", "_x", "x_", "42", "0x1f", "a" * 63, "a" * 64, "-a", "", "*", "é", "a b"),
)
host_names = st.lists(st.sampled_from(LABELS), max_size=6).map(".".join) | st.text(max_size=10)
NODE_NAMES = (
    "web-1",
    "web-1.example.com",
    "web-1.rack.42",
    "10.0.0.1",
    "svc",
    "kubernetes",
    "a.b.svc.example.com",
)
# Outside of the Service networks, with which node networks must not overlap.
MACHINE_IPS = (
    *("10.0.0.1", "10.0.0.2", "100.64.0.1", "203.0.113.1", "240.0.0.1", "0.0.0.1", "255.255.255.255"),
    *("127.0.0.1", "169.254.1.1", "224.0.0.1", "fd00::1", "2001:db8::1", "fe80::1", "::1", "::", "ff02::1"),
    *("::ffff:10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::a00:1", "fec0::1"),
)
ANNOTATIONS = [
    text
    for text in (*MACHINE_IPS, *map(",".join, itertools.permutations(MACHINE_IPS, 2)))
    if not isinstance(parse_node_ips(text), InvalidNodeIP)
]
LINKS = ("eth0", "external", "lo", "dummy0", "kube-ipvs0", "kubespan")
machine_addresses = st.lists(
    st.builds(
        AddressStatus, address=st.sampled_from(MACHINE_IPS), link=st.sampled_from(LINKS), flags=st.just(128)
    )
)


@st.composite
def joining_machines(draw: st.DrawFn) -> tuple[Node, MachineFacts]:
    """A Node, and the facts of its machine, which answers at the first of the announced addresses."""
    provided = draw(st.sampled_from(ANNOTATIONS))
    name, node_ips = draw(st.sampled_from(NODE_NAMES)), provided.split(",")
    facts = make_facts(
        platform=draw(st.sampled_from(("metal", "aws", "nocloud", "openstack"))),
        node_name=name,
        node_ip=node_ips[0],
        hostname=draw(st.just("") | st.just(f"{name}.lan") | host_names),
        addresses=tuple(draw(machine_addresses)),
    )
    answered = tuple(draw(st.sets(st.sampled_from(node_ips))))
    return make_node(name, ip=provided), msgspec.structs.replace(facts, answering_addresses=answered)


@given(
    joining_machines(), st.booleans(), st.booleans(), st.sampled_from(("corp.internal", "example.com", "com"))
)
def test_nothing_that_the_labeler_adds_to_a_node_is_denied(
    machine: tuple[Node, MachineFacts], prefer_ipv6: bool, discover: bool, domain: str
):
    node, facts = machine
    node_ips = verify_provided_node_ips(node, facts).usable
    added = list_addresses(node.name, node_ips, facts, prefer_ipv6=prefer_ipv6, discovers_public_ips=discover)
    names = tuple(each.address for each in added if each.type == "InternalDNS")
    ips = tuple(each.address for each in added if each.type.endswith("IP"))
    # Another Node claims all of it, and its machine answers elsewhere. The certificate has the domain, but no
    # host name of the machine: those of the API server are denied, and the labeler does not know them.
    other = writes("other", *names, *ips, ip="10.0.0.9")
    claims = facts_of("other", *ips, node_ip="10.0.0.9", hostname=names[0] if names else "")
    bare = [make_node(name, ip="") for name in names if name != node.name]
    cluster = claims_of(
        node, make_node_enriched(node, facts), other, make_node_enriched(other, claims), *bare
    )
    identity = ServerIdentity(names=frozenset({f"kubernetes.default.svc.{domain}"}))
    policy = msgspec.structs.replace(POLICY, api_endpoint=ApiEndpoint(identities=(identity,)))
    event = asks(node.name, names, ips, facts=facts)
    decision = decide(event, cluster, policy).decision
    assert not isinstance(decision, Deny) or not (names or ips), decision
