"""status.addresses: each case of the reference's description, and hostile annotations of kubelets."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.ip_addresses import (
    InvalidNodeIP,
    is_global_unicast,
    is_private,
    parse_node_ips,
)
from libs.common.contract.machine import AddressStatus
from libs.common.contract.public_addresses import lacks_node_ips
from services.labeler.core.plan.addresses import list_addresses
from tests.address_cases import CASES, AddressCase, make_external_address, on_link
from tests.builders import make_facts


def addresses_of(case: AddressCase) -> list[str]:
    ips = parse_node_ips(case.provided)
    assert not isinstance(ips, InvalidNodeIP), ips
    found = list_addresses("web-1", ips, case.facts(), prefer_ipv6=case.prefer_ipv6)
    return [f"{each.type}={each.address}" for each in found]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_addresses_are_those_of_the_reference(case: AddressCase):
    assert addresses_of(case) == list(case.expected)


# On its links a public, a private and a Tailscale address; its cloud names another public and a shared one.
ON_LINKS = (
    *on_link("eth1", "203.0.113.7", "2001:db8:1::7", "192.168.7.7"),
    *on_link("tailscale0", "100.64.0.7"),
)
BY_CLOUD = (make_external_address("100.64.0.9"), make_external_address("198.51.100.7"))


@pytest.mark.parametrize(
    ("settings", "on_metal", "on_hcloud"),
    [
        ("{}", ["203.0.113.7", "2001:db8:1::7"], ["198.51.100.7", "2001:db8:1::7"]),
        ("{discovery: true}", ["203.0.113.7", "2001:db8:1::7"], ["198.51.100.7", "2001:db8:1::7"]),
        ("{discovery: false}", ["198.51.100.7"], ["198.51.100.7"]),
        ("{discovery: false, includeCIDRs: [100.64.0.0/10]}", ["100.64.0.9"], ["100.64.0.9"]),
        ('{excludeCIDRs: ["::/0"]}', ["203.0.113.7"], ["198.51.100.7"]),
        ("{excludeCIDRs: [0.0.0.0/0]}", ["2001:db8:1::7"], ["2001:db8:1::7"]),
        (
            "{excludeCIDRs: [198.51.100.0/24]}",
            ["203.0.113.7", "2001:db8:1::7"],
            ["203.0.113.7", "2001:db8:1::7"],
        ),
        ("{includeCIDRs: [100.64.0.0/29]}", ["100.64.0.7", "2001:db8:1::7"], ["100.64.0.7", "2001:db8:1::7"]),
        (
            "{includeCIDRs: [192.168.0.0/16]}",
            ["192.168.7.7", "2001:db8:1::7"],
            ["192.168.7.7", "2001:db8:1::7"],
        ),
        ("{includeCIDRs: [0.0.0.0/0]}", ["203.0.113.7", "2001:db8:1::7"], ["198.51.100.7", "2001:db8:1::7"]),
        (
            '{includeCIDRs: [203.0.113.0/24, "2001:db8:2::/48"], excludeCIDRs: [203.0.113.7/32]}',
            [],
            [],
        ),
    ],
)
def test_the_file_selects_external_addresses_on_every_platform(
    settings: str, on_metal: list[str], on_hcloud: list[str]
):
    config = parse_cloud_config(f"global: {{externalIPs: {settings}}}", "ccm-config.yaml")
    ips = parse_node_ips("10.0.0.5")
    assert not isinstance(ips, InvalidNodeIP)
    for platform, expected in (("metal", on_metal), ("hcloud", on_hcloud)):
        found = list_addresses(
            "web-1",
            ips,
            make_facts(platform=platform, addresses=(*ON_LINKS, *BY_CLOUD)),
            prefer_ipv6=False,
            discovers_public_ips=True,
            external_ips=config.external_ips,
        )
        assert [each.address for each in found if each.type == "ExternalIP"] == expected


@pytest.mark.parametrize(
    ("node_name", "hostname", "internal_dns"),
    [
        ("web-1.example.com", "", ["web-1.example.com"]),  # the platform has told no name: the Node's own
        ("web-1.example.com", "web-1", []),
        ("web-1.example.com", "ip-10-0-0-5.ec2.internal", ["ip-10-0-0-5.ec2.internal"]),
        ("web-1", "", []),
        ("web-1", ".web.example.com", []),
        ("web-1", "my host.example\n", []),
        ("srv1", "srv1.lan", ["srv1.lan"]),
        # csr denies these, or holds the request
        ("web-1", "kubernetes.lab.example.com", []),
        ("web-1", "web-1.rack.42", []),
        ("web-1.rack.42", "", ["web-1.rack.42"]),
        ("10.0.0.5", "", []),
        ("web-1", "web-1.example.com.", []),
        ("web-1", f"{'a' * 64}.example.com", []),
        ("web-1", "web-1.localhost", []),
        ("web-1", "metrics-server.kube-system", []),
        ("web-1", "metrics-server.kube-system.svc.corp.internal", []),
    ],
)
def test_the_internal_dns_is_the_platforms_name_or_else_the_nodes(
    node_name: str, hostname: str, internal_dns: list[str]
):
    ips = parse_node_ips("10.0.0.5")
    assert not isinstance(ips, InvalidNodeIP)
    found = list_addresses(node_name, ips, make_facts(hostname=hostname), prefer_ipv6=False)
    assert [each.address for each in found if each.type == "InternalDNS"] == internal_dns


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not an IP address"),
        ("web-1.example.com", "not an IP address"),
        ("10.0.0.5/24", "not an IP address"),
        ("010.0.0.5", "not an IP address"),
        ("10.0.0.5,", "not an IP address"),
        ("10.0.0.5 10.0.0.6", "not an IP address"),
        ("2001:db8::5%eth0", "not an IP address"),
        ("fe80::1%eth0", "not an IP address"),
        ("127.0.0.1", "not a unicast address"),
        ("10.0.0.5,::1", "not a unicast address"),
        ("0.0.0.0", "not a unicast address"),
        ("::", "not a unicast address"),
        ("169.254.1.1", "not a unicast address"),
        ("fe80::1", "not a unicast address"),
        ("224.0.0.1", "not a unicast address"),
        ("ff02::1", "not a unicast address"),
        ("255.255.255.255", "not a unicast address"),
        ("::ffff:127.0.0.1", "not a unicast address"),
        ("240.0.0.1", "not a unicast address"),
        ("0.0.0.7", "not a unicast address"),
        ("64:ff9b::7f00:1", "not a unicast address"),
        ("10.0.0.5,10.0.0.6", "neither one address nor one of each family"),
        ("2001:db8::1,2001:db8::2", "neither one address nor one of each family"),
        ("10.0.0.5,2001:db8::5,10.0.0.6", "neither one address nor one of each family"),
        ("10.0.0.5,::ffff:10.0.0.6", "neither one address nor one of each family"),
        ("1" * 129, "longer than"),
    ],
)
def test_an_annotation_that_no_honest_kubelet_writes_is_refused_with_the_reason(text: str, why: str):
    refused = parse_node_ips(text)
    assert isinstance(refused, InvalidNodeIP)
    assert why in refused.reason


@pytest.mark.parametrize(
    ("text", "ips"),
    [
        ("10.0.0.5", ["10.0.0.5"]),
        (" 10.0.0.5 , 2001:DB8::5 ", ["10.0.0.5", "2001:db8::5"]),
        ("2001:db8:0:0:0:0:0:5,10.0.0.5", ["2001:db8::5", "10.0.0.5"]),
        ("::ffff:10.0.0.5", ["10.0.0.5"]),
        ("100.64.0.5", ["100.64.0.5"]),
    ],
)
def test_node_ips_keep_the_order_of_the_annotation_and_have_one_spelling(text: str, ips: list[str]):
    found = parse_node_ips(text)
    assert not isinstance(found, InvalidNodeIP)
    assert list(map(str, found)) == ips


@given(st.text(max_size=60) | st.lists(st.ip_addresses().map(str), max_size=4).map(",".join))
def test_no_annotation_breaks_the_reading(text: str):
    found = parse_node_ips(text)
    assert isinstance(found, InvalidNodeIP) or all(map(is_global_unicast, found))


# What Go's netip says of them (IsGlobalUnicast, IsPrivate); Python's own properties differ for many.
GO = [
    ("10.1.2.3", True, True),
    ("172.16.0.1", True, True),
    ("172.32.0.1", True, False),
    ("192.168.255.1", True, True),
    ("100.64.0.1", True, False),
    ("192.0.2.1", True, False),
    ("198.18.0.1", True, False),
    ("203.0.113.7", True, False),
    ("240.0.0.1", True, False),
    ("0.0.0.1", True, False),
    ("255.255.255.255", False, False),
    ("0.0.0.0", False, False),
    ("127.8.8.8", False, False),
    ("169.254.116.108", False, False),
    ("239.1.1.1", False, False),
    ("2001:db8::1", True, False),
    ("fd00::1", True, True),
    ("fc00::1", True, True),
    ("fec0::1", True, False),
    ("::", False, False),
    ("::1", False, False),
    ("fe80::1", False, False),
    ("febf::1", False, False),
    ("ff05::1", False, False),
    ("64:ff9b::a00:1", True, False),
]


@pytest.mark.parametrize(("text", "global_unicast", "private"), GO)
def test_kinds_of_addresses_are_those_of_go(text: str, global_unicast: bool, private: bool):
    ip = ip_address(text)
    assert (is_global_unicast(ip), is_private(ip)) == (global_unicast, private)


@pytest.mark.parametrize(
    ("addresses", "missing"),
    [
        ((), True),
        ((AddressStatus(address="127.0.0.1/8", link="lo"),), True),
        ((AddressStatus(address="10.0.0.5/24", link="eth0"),), True),
        ((AddressStatus(address="2001:db8::5/64", link="eth0"),), True),
        (
            (
                AddressStatus(address="10.0.0.5/24", link="eth0"),
                AddressStatus(address="2001:db8::5/64", link="e"),
            ),
            False,
        ),
        (
            (
                AddressStatus(address="10.0.0.5/32", link="external"),
                AddressStatus(address="2001:db8::5/128", link="external"),
            ),
            True,
        ),
    ],
)
def test_a_list_without_the_kubelets_own_addresses_is_a_partial_one(
    addresses: tuple[AddressStatus, ...], missing: bool
):
    ips = parse_node_ips("10.0.0.5,2001:db8::5")
    assert not isinstance(ips, InvalidNodeIP)
    assert lacks_node_ips(ips, make_facts(addresses=addresses)) is missing
