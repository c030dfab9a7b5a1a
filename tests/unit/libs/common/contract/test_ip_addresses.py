"""One canonical form of an address, whatever its source."""

import sys
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.ip_addresses import (
    InvalidNodeIP,
    canonical_ip,
    format_ip,
    parse_interface_ip,
    parse_ip,
    parse_node_ips,
)
from libs.common.contract.machine import AddressStatus, MachineFault
from services.labeler.core.plan import ClusterConfig, plan_node
from services.metadata.core.dial_targets import order_dial_targets
from tests.builders import make_facts, make_node


@pytest.mark.parametrize(
    ("text", "canonical"),
    {
        "10.0.0.5": "10.0.0.5",
        "10.0.0.5/24": "10.0.0.5",
        "2001:DB8:0::5/64": "2001:db8::5",
        "::ffff:10.0.0.5": "10.0.0.5",
        "::ffff:10.0.0.5/128": "10.0.0.5",
        "fe80::1%eth0": "fe80::1",
        "010.0.0.5": "",
        "web-1": "",
        "": "",
    }.items(),
)
def test_each_text_of_an_address_has_one_canonical_form(text: str, canonical: str):
    assert canonical_ip(text) == canonical


@given(st.ip_addresses().map(str) | st.text(max_size=80))
def test_the_canonical_form_is_its_own_canonical_form(text: str):
    canonical = canonical_ip(text)
    assert canonical_ip(canonical) == canonical
    assert canonical == str(parse_interface_ip(text) or "")


@pytest.mark.parametrize("text", ["10.0.0.5", "2001:db8::5", "::1", "::a00:5", "::ffff:a00:5", "::ffff:0:0"])
def test_the_text_of_an_address_is_the_same_on_every_version_of_python(text: str):
    assert format_ip(ip_address(text)) == text


def test_only_an_interface_address_may_have_a_prefix_length():
    assert parse_ip("10.0.0.5/24") is None
    assert str(parse_interface_ip("10.0.0.5/24")) == "10.0.0.5"


@pytest.mark.parametrize("parse", [parse_ip, parse_interface_ip, canonical_ip])
def test_a_text_that_is_too_long_for_an_address_is_not_cached(parse):
    long = "9" * 200_000
    before = sys.getrefcount(long)
    assert not parse(long)
    assert sys.getrefcount(long) == before


ADDRESSES = st.ip_addresses().map(str) | st.sampled_from(
    [
        "10.0.0.5",
        "10.0.0.6",
        "2001:db8::5",
        "::ffff:10.0.0.5",
        "127.0.0.1",
        "240.0.0.1",
        "fd00::1%eth0",
        "web-1",
    ]
)


@given(st.lists(ADDRESSES, min_size=1, max_size=3).map(",".join) | st.text(min_size=1, max_size=140))
def test_what_is_dialled_is_what_becomes_the_internal_ips(written: str):
    order = order_dial_targets(written, prefer_ipv6=False)
    on_links = () if isinstance(order, MachineFault) else order
    facts = make_facts(addresses=tuple(AddressStatus(address=each, link="eth0") for each in on_links))
    plan = plan_node(make_node(ip=written), facts, "nodename", ClusterConfig())
    if isinstance(order, MachineFault):
        assert plan.blocker is not None
        assert plan.blocker.reason == "ProvidedNodeIPInvalid"
        assert plan.blocker.message.isprintable()
    else:
        assert plan.addresses is not None
        assert {each.address for each in plan.addresses if each.type == "InternalIP"} == set(order)


def test_what_is_too_long_to_be_an_address_is_not_kept():
    long = "9" * 200_000
    before = sys.getrefcount(long)
    assert isinstance(parse_node_ips(long), InvalidNodeIP)
    assert sys.getrefcount(long) == before
