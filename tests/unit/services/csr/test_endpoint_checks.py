"""Addresses and names of Services and of the API server: which node may have which, and what is not known."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtensionOID
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.events import SERVICE_CIDRS_UNKNOWN, CsrEnriched, SnapshotComplete
from libs.common.contract.ip_addresses import parse_ip
from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.contract.node import CONTROL_PLANE_LABEL, NodeAddress
from libs.common.kube.server_identity import ServerIdentity, parse_server_identity
from libs.testbed.pki import CertificateAuthority
from services.csr.api_endpoint_watcher import add_handshake
from services.csr.core.claim_index import ClaimIndex
from services.csr.core.decide import decide
from services.csr.core.decision import ApiEndpoint, ApprovalPolicy, Approve, Decision, Deny, Wait
from services.csr.core.flow_state import FlowState, ServiceNetworks
from tests.builders import (
    NOW,
    STREAM_ID,
    make_cluster_networks,
    make_csr_enriched,
    make_csr_observed,
    make_facts,
    make_node,
    make_node_enriched,
    make_request,
)
from tests.csr_actors import make_serving_request

SERVICES = ("10.96.0.0/12",)
SHARED_NAMES = ("kubernetes", "kubernetes.default.svc", "localhost", "api.prod.example.com")
SHARED_ADDRESSES = ("10.96.0.1", "127.0.0.1")


def api_server(*own: str, shared: tuple[str, ...] = ("10.0.0.100",)) -> ServerIdentity:
    """The API server of a control plane with these names and addresses; 10.0.0.100 is a virtual IP."""
    is_address = {text: text[0].isdigit() or ":" in text for text in own}
    return ServerIdentity(
        names=frozenset((*SHARED_NAMES, *(text for text in own if not is_address[text]))),
        addresses=frozenset((*SHARED_ADDRESSES, *shared, *(text for text in own if is_address[text]))),
    )


CP_1 = api_server("cp-1", "cp-1.example.com", "10.0.0.1", "203.0.113.1", "2001:db8::1")
CP_2 = api_server("cp-2", "cp-2.example.com", "10.0.0.2")
HOSTED = ServerIdentity(
    names=frozenset({*SHARED_NAMES, "tenant.hosted.example"}), addresses=frozenset({"10.96.0.1", "192.0.2.7"})
)


def identity_of(hosts: list[str], *, host: str) -> ServerIdentity:
    """Read from a certificate for those hosts that was presented at that one."""
    pem = CertificateAuthority.make(common_name="x").issue_server(hosts).certificate
    return parse_server_identity(x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER), host=host)


def policy(*identities: ServerIdentity, **fields: Any) -> ApprovalPolicy:
    known = ApprovalPolicy(service_networks=SERVICES, api_endpoint=ApiEndpoint(identities=identities))
    return msgspec.structs.replace(known, **fields)


def machine(name: str, node_ip: str, *addresses: str, link: str = "eth0", **platform: Any) -> MachineFacts:
    """`addresses` with their prefix length, besides the node IP in its /24."""
    found = (f"{node_ip}/24", *addresses)
    statuses = tuple(AddressStatus(address=text, link=link, flags=128) for text in found)
    return make_facts(node_name=name, node_ip=node_ip, addresses=statuses, **platform)


def decided(
    facts: MachineFacts,
    known: ApprovalPolicy,
    *asked: str,
    also: tuple[MachineFacts, ...] = (),
    control_plane: bool = False,
    node_ips: str = "",
    answering_addresses: tuple[str, ...] = (),
) -> Decision:
    """Return the decision about a request of that machine's node, for these names and addresses.

    Without a name it is for its own.

    `node_ips` is the annotation of the Node, the node IP of `facts` by default; its machine answers there and
    at `answering_addresses`.
    """
    claims = ClaimIndex()
    for each in (facts, *also):
        is_own = each is facts
        node = make_node(
            each.node_name,
            uid=f"uid-{each.node_name}",
            ip=(node_ips if is_own else "") or each.node_ip,
            labels={CONTROL_PLANE_LABEL: ""} if is_own and control_plane else {},
        )
        claims.upsert_node(node)
        claims.upsert_report(make_node_enriched(node, each))
    name = facts.node_name
    ips = tuple(text for text in asked if parse_ip(text))
    dns = tuple(text for text in asked if text not in ips) or (name,)
    request = make_serving_request(node=name, dns=dns, ips=ips)
    answered = (facts.node_ip, *answering_addresses)
    event = make_csr_enriched(request, facts=facts, node_uid=f"uid-{name}", answering_addresses=answered)
    return decide(event, claims, known).decision


def told(decision: Decision) -> str:
    """The kind of the decision with what it waits for, or the check that denied."""
    match decision:
        case Wait():
            return f"wait for {decision.reason}"
        case Deny():
            return f"deny by {decision.check}"
    return type(decision).__name__.lower()


# ---- what must be known first


def test_a_name_or_address_waits_until_the_api_servers_certificate_was_read():
    facts = machine("web-1", "10.0.0.5", hostname="web-1.example.com")
    unknown = policy(api_endpoint=ApiEndpoint(fault="connection refused"))
    for asked in ("10.0.0.5", "web-1.example.com"):
        waits = decided(facts, unknown, "web-1", asked)
        assert isinstance(waits, Wait)
        assert (waits.reason, "connection refused" in waits.message) == ("endpoint", True)
    assert isinstance(decided(facts, unknown), Approve), "its node name belongs to no other Node"


# ---- addresses of the API server


@pytest.mark.parametrize("known", [policy(CP_1), policy(CP_2), policy(CP_1, CP_2)], ids=["1", "2", "both"])
def test_with_several_control_planes_each_kubelet_gets_what_its_machine_has(known: ApprovalPolicy):
    one = machine("cp-1", "10.0.0.1", "203.0.113.1/26", "2001:db8::1/64", hostname="cp-1.example.com")
    two = machine("cp-2", "10.0.0.2", hostname="cp-2.example.com")
    all_of_one = ("cp-1", "cp-1.example.com", "10.0.0.1", "203.0.113.1", "2001:db8::1")
    all_of_two = ("cp-2", "cp-2.example.com", "10.0.0.2")
    first = decided(one, known, *all_of_one, also=(two,), control_plane=True)
    second = decided(two, known, *all_of_two, also=(one,), control_plane=True)
    assert isinstance(first, Approve)
    assert isinstance(second, Approve)


ALL_PUBLIC = ("203.0.113.1", "203.0.113.2", "203.0.113.3")
ALL_NAMES = ("cp-1.example.com", "cp-2.example.com", "cp-3.example.com")
SHARING = tuple(
    api_server(f"cp-{n}", f"10.0.0.{n}", "fd00::1", "fd00::2", "fd00::3", *ALL_PUBLIC, *ALL_NAMES)
    for n in (1, 2, 3)
)  # cluster.apiServer.certSANs of Talos is common to all control planes


@pytest.mark.parametrize("seen", [SHARING[:1], SHARING[1:2], SHARING], ids=["own", "other", "all"])
def test_with_shared_certificate_names_each_control_plane_gets_its_own(seen: tuple[ServerIdentity, ...]):
    facts = machine("cp-1", "10.0.0.1", "203.0.113.1/24", "fd00::1/64", hostname="cp-1.example.com")
    asked = ("cp-1", "cp-1.example.com", "10.0.0.1", "203.0.113.1", "fd00::1")
    decision = decided(facts, policy(*seen), *asked, control_plane=True, node_ips="10.0.0.1,fd00::1")
    assert isinstance(decision, Approve), decision


def test_a_node_without_the_label_waits_and_the_message_names_the_label():
    facts = machine("cp-1", "10.0.0.1", "203.0.113.1/24", hostname="cp-1.example.com")
    for asked in (("10.0.0.1", "203.0.113.1"), ("cp-1", "cp-1.example.com")):
        waits = decided(facts, policy(CP_1), *asked)
        assert isinstance(waits, Wait)
        assert (waits.reason, CONTROL_PLANE_LABEL in waits.message) == ("endpoint", True)
        assert "cp-1" in waits.nodes, "judged again when the Node gets the label"
        assert isinstance(decided(facts, policy(CP_1), *asked, control_plane=True), Approve)


@pytest.mark.parametrize("ip", ["192.0.2.9", "10.0.0.100"], ids=["load-balancer", "virtual-ip"])
def test_a_worker_whose_node_ip_is_in_every_certificate_gets_no_other_endpoint_address(ip: str):
    shared = ("10.0.0.1", "10.0.0.5", "192.0.2.9", "10.0.0.100")
    stale = api_server("cp-1", "10.0.0.1", shared=shared)
    worker = machine("web-1", "10.0.0.5", "192.0.2.9/24", "10.0.0.100/24")
    waits = decided(worker, policy(stale), "10.0.0.5", ip)
    assert told(waits) == "wait for endpoint"
    assert isinstance(decided(worker, policy(stale), "10.0.0.5"), Approve)


@pytest.mark.parametrize("node_ips", ["10.0.0.5,2001:db8::7", "2001:db8::7,10.0.0.5"])
def test_a_second_node_ip_of_a_worker_counts_once_its_machine_has_answered_there(node_ips: str):
    balancer = ServerIdentity(names=HOSTED.names, addresses=frozenset({"2001:db8::7"}))
    worker, asked = machine("web-1", "10.0.0.5", "2001:db8::7/64"), ("10.0.0.5", "2001:db8::7")
    waits = decided(worker, policy(balancer), *asked, node_ips=node_ips)
    assert isinstance(waits, Wait), "only kubelet and machine claim it: no machine has answered there"
    answered = ("2001:db8::7",)
    passed = decided(worker, policy(balancer), *asked, node_ips=node_ips, answering_addresses=answered)
    assert isinstance(passed, Approve)


class Case(NamedTuple):
    facts: MachineFacts  # of the machine whose node asks
    known: ApprovalPolicy
    asked: tuple[str, ...]
    expected: str
    text: str = ""  # a part of the message
    more: Mapping[str, Any] = {}  # keywords of `decided`


WORKER, FIRST = machine("web-1", "10.0.0.5"), machine("cp-1", "10.0.0.1")
FULL_NAME = machine("web-1", "10.0.0.5", hostname="web-1.example.com")
HOME = ServerIdentity(names=frozenset({"home"}), addresses=frozenset({"10.0.0.1", "10.96.0.1"}))
PUBLIC = machine("cp-1", "203.0.113.2", "203.0.113.1/32")  # but for the cloud's word, like a virtual IP
PUBLISHED = (*PUBLIC.addresses, AddressStatus(address="203.0.113.1/32", link="external"))
UNKNOWN_NETWORKS = policy(CP_1, service_networks=None)
CASES = {
    # what must be known first
    "an IP address while the service networks are unknown": Case(
        machine("web-1", "10.96.0.1"),
        UNKNOWN_NETWORKS,
        ("10.96.0.1",),
        "wait for networks",
        "--service-cluster-ip-range",
    ),
    "the first Service address, which is reserved before the networks are known": Case(
        machine("web-1", "10.0.0.5", "10.96.0.1/32"),
        UNKNOWN_NETWORKS,
        ("10.96.0.1",),
        "wait for endpoint",
        "is in the certificate of an API server",
    ),
    "names alone need no service networks": Case(WORKER, UNKNOWN_NETWORKS, (), "approve"),
    "what is wrong for ever though the networks are unknown": Case(
        WORKER, policy(service_networks=None), ("127.0.0.1",), "deny by addresses"
    ),
    # addresses of the API server
    "where a worker answers, which is no node IP": Case(
        machine("web-1", "10.0.0.5", "192.0.2.7/24"),
        policy(HOSTED),
        ("192.0.2.7",),
        "wait for endpoint",
        more={"answering_addresses": ("192.0.2.7",)},
    ),
    "a node IP that has a rival": Case(
        machine("web-1", "10.0.0.1"), policy(CP_1), ("10.0.0.1",), "wait for rivals", more={"also": (FIRST,)}
    ),
    "a second address of a control plane that has a rival": Case(
        machine("cp-1", "10.0.0.1", "203.0.113.1/24"),
        policy(*SHARING),
        ("203.0.113.1",),
        "wait for rivals",
        more={"also": (machine("cp-2", "203.0.113.1"),), "control_plane": True},
    ),
    "both on a single node whose name and address are the endpoint": Case(
        machine("home", "10.0.0.1"), policy(HOME), ("10.0.0.1",), "approve"
    ),
    "a public address that the cloud names is the control plane's own": Case(
        msgspec.structs.replace(PUBLIC, addresses=PUBLISHED),
        policy(api_server("cp-1", "203.0.113.1", "203.0.113.2")),
        ("203.0.113.1", "203.0.113.2"),
        "approve",
        more={"control_plane": True},
    ),
    "a routed public address is no virtual IP": Case(
        machine("cp-1", "10.0.0.1", "198.51.100.9/32"),
        policy(api_server("cp-1", "10.0.0.1", "198.51.100.9")),
        ("10.0.0.1", "198.51.100.9"),
        "approve",
        more={"control_plane": True},
    ),
    "a virtual IP that is the node IP": Case(
        machine("cp-1", "10.0.0.100"), policy(CP_1), ("10.0.0.100",), "approve"
    ),
    **{
        f"a worker that attests {address} of an API server": Case(
            machine("web-1", "10.0.0.5", f"{address}/{128 if ':' in address else 32}", link="lo"),
            policy(CP_1, HOSTED),
            ("10.0.0.5", address),
            "wait for endpoint",
        )
        for address in ("10.0.0.1", "203.0.113.1", "192.0.2.7", "2001:db8::1")
    },
    "a node of a hosted control plane": Case(
        FULL_NAME, policy(HOSTED), ("web-1", "web-1.example.com", "10.0.0.5"), "approve"
    ),
    # host names of the API server
    **{
        f"{name} that a worker reports as its {field}": Case(
            machine("web-1", "10.0.0.5", **{field: name}), policy(CP_1), ("web-1", name), "deny by endpoint"
        )
        for name in ("api.prod.example.com", "API.Prod.Example.com", "cp-1.example.com")
        for field in ("hostname", "internal_dns", "external_dns")
    },
    "the endpoint's name as the full name of a node": Case(
        machine("api", "10.0.0.5", hostname="api.prod.example.com"),
        policy(CP_1),
        ("api", "api.prod.example.com"),
        "wait for endpoint",
    ),
    "the endpoint's host name, asked for by a control plane": Case(
        machine("cp-1", "10.0.0.1", hostname="api.prod.example.com"),
        policy(CP_1),
        ("api.prod.example.com",),
        "deny by endpoint",
        more={"control_plane": True},
    ),
    "its own node name though it is the endpoint's": Case(
        machine("api.prod.example.com", "10.0.0.1"), policy(CP_1), (), "approve"
    ),
    # docs/certificates.md tells operators to add such a name to certSANs
    "a name that only a wildcard covers": Case(
        FULL_NAME,
        policy(identity_of(["*.example.com"], host="10.0.0.1")),
        ("web-1", "web-1.example.com"),
        "approve",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_which_node_gets_what_an_api_server_has(case: Case):
    decision = decided(case.facts, case.known, *case.asked, **case.more)
    assert told(decision) == case.expected
    assert not isinstance(decision, Deny | Wait) or case.text in decision.message


@pytest.mark.parametrize("known", [policy(CP_1), policy(CP_1, CP_2)], ids=["one-seen", "both-seen"])
@pytest.mark.parametrize("asking", [("cp-1", "10.0.0.1"), ("web-1", "10.0.0.5")], ids=["leader", "worker"])
def test_a_virtual_ip_is_nobodys(asking: tuple[str, str], known: ApprovalPolicy):
    is_control_plane = asking[0] == "cp-1"
    holder = machine(*asking, "10.0.0.100/32")
    waits = decided(holder, known, asking[1], "10.0.0.100", control_plane=is_control_plane)
    assert isinstance(waits, Wait)
    assert waits.reason == "endpoint"
    assert "10.0.0.100 is in the certificate of an API server" in waits.message
    assert ("virtual IP" in waits.message) == is_control_plane


EVERY_ADDRESS = sorted(CP_1.addresses | CP_2.addresses | HOSTED.addresses | {"10.0.0.5"})
EVERY_NAME = sorted(CP_1.names | CP_2.names | HOSTED.names)


@given(
    name=st.sampled_from(("web-1", "api", "cp-1", "cp-1.example", "tenant")),
    node_ip=st.sampled_from(["10.0.0.5", "10.0.0.1", "10.0.0.100", "2001:db8::1"]),
    attested=st.lists(st.sampled_from(EVERY_ADDRESS), max_size=4),
    prefix=st.sampled_from((24, 32)),
    reported=st.sampled_from(EVERY_NAME),
    annotated=st.lists(st.sampled_from(EVERY_ADDRESS), max_size=1),
    answered=st.sets(st.sampled_from(EVERY_ADDRESS), max_size=2),
    dns=st.lists(st.sampled_from(EVERY_NAME), max_size=2),
    ips=st.lists(st.sampled_from(EVERY_ADDRESS), max_size=3),
    seen=st.sets(st.sampled_from((CP_1, CP_2, HOSTED)), min_size=1),
)
def test_a_worker_gets_nothing_in_any_certificate_but_its_node_name_and_node_ips(
    *,
    name: str,
    node_ip: str,
    attested: list[str],
    prefix: int,
    reported: str,
    annotated: list[str],
    answered: set[str],
    dns: list[str],
    ips: list[str],
    seen: set[ServerIdentity],
):
    said = tuple(f"{ip}/{64 if ':' in ip else prefix}" for ip in attested)
    decision = decided(
        machine(name, node_ip, *said, hostname=reported),
        policy(*seen),
        *(name, *dns, *ips),
        node_ips=",".join((node_ip, *annotated)),
        answering_addresses=tuple(answered),
    )
    if isinstance(decision, Approve):
        names = {each for identity in seen for each in identity.names}
        addresses = {each for identity in seen for each in identity.addresses}
        assert names & set(dns) <= {name}
        assert addresses & set(ips) <= {node_ip, *(answered & set(annotated))}


# ---- without Talos


def alone(known: ApprovalPolicy, *, dns: tuple[str, ...] = ("cp-1",), ips: tuple[str, ...] = ()) -> Decision:
    written = (*(("InternalIP", ip) for ip in ips), *(("InternalDNS", name) for name in dns))
    addresses = tuple(NodeAddress(type=kind, address=text) for kind, text in written)
    claims = ClaimIndex()
    claims.upsert_node(make_node("cp-1", uid="uid-1", addresses=addresses))
    event: CsrEnriched = make_csr_enriched(
        make_serving_request(node="cp-1", dns=dns, ips=ips), without_talos=True
    )
    return decide(event, claims, msgspec.structs.replace(known, allowed_networks=("10.0.0.0/8",))).decision


def test_without_talos_no_machine_attests_an_api_servers_address_so_it_waits():
    waits = alone(policy(CP_1), ips=("10.0.0.1",))
    assert isinstance(waits, Wait)
    assert (waits.reason, "by hand" in waits.message) == ("endpoint", True)
    assert isinstance(alone(policy(CP_2), ips=("10.0.0.1",)), Approve)


def test_without_talos_a_name_of_the_api_server_is_approved_to_nobody_but_the_node_of_that_name():
    assert isinstance(alone(policy(CP_1)), Approve)
    assert isinstance(alone(policy(CP_1), dns=("cp-1.example.com",)), Wait)
    assert isinstance(alone(policy(CP_1), dns=("api.prod.example.com",)), Deny)


def test_without_talos_unknown_networks_wait_and_name_the_flag():
    waits = alone(policy(CP_2, service_networks=None), ips=("10.0.0.1",))
    assert isinstance(waits, Wait)
    assert (waits.reason, "--without-talos" in waits.message) == ("networks", True)


# ---- where the knowledge comes from


def networks(
    configured: tuple[str, ...] = (), reported: tuple[str, ...] = (), added: tuple[str, ...] | None = ()
) -> ServiceNetworks:
    snapshot = SnapshotComplete(stream_id=STREAM_ID, epoch=1, nodes=0, service_cidrs=added)
    return ServiceNetworks(configured, reported, snapshot)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (networks(SERVICES), SERVICES),
        (networks((), ("fd00:96::/108",), ("10.200.0.0/16",)), ("fd00:96::/108", "10.200.0.0/16")),
        (
            networks(SERVICES, ("fd00:96::/108",), ("10.200.0.0/16",)),
            (*SERVICES, "fd00:96::/108", "10.200.0.0/16"),
        ),
        (networks((), ("010.96.0.0/012",)), ("010.96.0.0/012",)),  # as Kubernetes writes and reads it
        # a report of no network, or of an invalid one, is no knowledge
        (networks((), (), ("10.200.0.0/16",)), None),
        (networks((), ("odd",), ("10.200.0.0/16",)), None),
        (networks((), ("odd", "10.96.0.0/12"), ("10.200.0.0/16",)), None),
    ],
)
def test_service_networks_are_those_of_the_flag_the_report_and_service_cidrs(
    known: ServiceNetworks, expected: tuple[str, ...] | None
):
    assert known.cidrs == expected


def test_missing_networks_are_a_problem_where_only_an_operator_can_name_them():
    assert not networks().find_problems(without_talos=False)
    assert "--service-cluster-ip-range" in networks().find_problems(without_talos=True)[0]
    assert not networks(SERVICES).find_problems(without_talos=True)
    assert SERVICE_CIDRS_UNKNOWN in networks(SERVICES, added=None).find_problems(without_talos=False)[0]


def test_a_change_of_the_networks_evaluates_all_pending_requests():
    state, report = FlowState(), make_cluster_networks(service_cidrs=SERVICES)
    state.apply(make_csr_observed(make_request("csr-1")))
    assert [list(state.apply(report)), list(state.apply(report))] == [["csr-1"], []]
    assert (list(state.forget_networks()), state.networks.cidrs) == (["csr-1"], None)


DAY = 86_400.0


def test_an_identity_is_kept_for_a_day_without_a_handshake_and_the_last_one_for_ever():
    seen_at = add_handshake(add_handshake(add_handshake({}, CP_1, 0.0), CP_2, 10.0), CP_1, DAY)
    assert list(seen_at) == [CP_2, CP_1]
    seen_at = add_handshake(seen_at, CP_1, 10.0 + DAY)
    assert list(seen_at) == [CP_1]
    assert list(add_handshake(seen_at, CP_2, 9 * DAY)) == [CP_2], "the newest one counts at once"


def test_the_number_of_identities_is_bounded_and_the_newest_are_kept():
    seen_at: dict[ServerIdentity, float] = {}
    servers = [api_server(f"10.1.0.{number}") for number in range(100)]
    for server in servers:
        seen_at = add_handshake(seen_at, server, 2000.0)
    assert list(seen_at) == servers[-32:]


def test_an_identity_is_what_the_certificate_has_and_the_host_without_wildcards():
    hosts = ["API.Example.com", "*.example.com", "10.0.0.1", "fd00:0:0::1"]
    found = identity_of(hosts, host="lb.example.com")
    assert found.names == {"api.example.com", "lb.example.com"}
    assert found.addresses == {"10.0.0.1", "fd00::1"}


def certify(names: str) -> bytes:
    """A certificate whose alternative names are these bytes in hexadecimal."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    odd = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes.fromhex(names))
    builder = x509.CertificateBuilder(name, name, key.public_key(), 5, NOW, NOW + timedelta(days=1))
    return builder.add_extension(odd, critical=False).sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


@pytest.mark.parametrize(
    "der",
    [b"", b"junk", certify("3004a3023000"), certify("3007a505a1030c0178"), certify("ffff")],
    ids=["nothing", "junk", "x400Address", "ediPartyName", "junk as names"],
)
def test_what_is_no_certificate_or_has_odd_names_is_an_error_that_gives_the_parsers_reason(der: bytes):
    with pytest.raises(ValueError, match="cannot be read: "):
        parse_server_identity(der, host="x")
