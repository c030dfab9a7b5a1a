"""Forms of IP addresses, Nodes by pod CIDR, and the table of platforms."""

import re
import sys
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.render.facts_file import load_samples
from libs.common.contract.ip_addresses import (
    canonical_ip,
    format_ip,
    list_node_ips,
    parse_interface_ip,
    parse_ip,
)
from libs.common.contract.machine import AddressStatus, MachineFault
from libs.common.contract.platforms import (
    CONFIGURED_PROVIDER_ID,
    OUR_SCHEME,
    PLATFORMS,
    PLATFORMS_WITH_PROVIDER_ID,
    PLATFORMS_WITHOUT_PROVIDER_ID,
    parse_scheme,
)
from libs.common.contract.pod_cidrs import PodCidrIndex
from libs.testbed.machine_facts import make_machine
from services.labeler.core.plan.node_ownership import FOREIGN_SCHEMES
from services.labeler.core.plan.plan import ClusterConfig
from services.labeler.core.plan.plan_node import plan_node
from services.metadata.core.dial_targets import order_dial_targets
from tests.builders import make_facts, make_node
from tools.platform_samples import PAGE, SAMPLES, render_platforms_page, render_samples


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


@pytest.mark.parametrize("parse", [parse_ip, parse_interface_ip, canonical_ip, list_node_ips])
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


# ---- pod CIDRs


CIDRS = (
    "10.244.0.0/24",
    "10.244.1.0/24",
    "10.244.0.0/16",
    "fd00::/64",
    "fd00::/72",
    "0.0.0.0/0",
    "odd",
    "1" * 70,
)
# The same networks with leading zeros, which Kubernetes accepts: decimal, and any number of them.
ZEROS = {"010.244.001.000/024": "10.244.1.0/24", "10.244.0.0/" + "0" * 99 + "16": "10.244.0.0/16"}
NODE_ADDRESSES = ("10.244.0.7", "10.244.1.7", "10.9.9.9", "fd00::1", "fd00:0:0:1::1", "odd")
changes = st.lists(
    st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from((*CIDRS, *ZEROS)), max_size=2).map(tuple))
)


@given(changes, st.sampled_from(NODE_ADDRESSES), st.sampled_from("abc"))
def test_a_lookup_finds_another_node_whose_pod_cidr_contains_the_address(done, address, name):
    index, expected = PodCidrIndex(), dict[str, tuple[str, ...]]()
    for node, cidrs in done:
        assert index.update(node, cidrs) == (expected.get(node, ()) != cidrs)
        expected[node] = cidrs
    found = {
        node
        for node, cidrs in expected.items()
        for cidr in cidrs
        if node != name
        and "/" in cidr
        and address != "odd"
        and ip_address(address) in ip_network(ZEROS.get(cidr, cidr))
    }
    assert index.find_others(address, name) == sorted(found)
    for node in expected:
        index.update(node, ())
    assert index == PodCidrIndex(), "nothing of a removed Node remains"


# ---- platforms


def pattern_of(form: str) -> str:
    """A form of the table as a pattern: each {name} is a value of the machine."""
    return re.sub(r"\\\{[\w\\-]+\\\}", "[^{}]+", re.escape(form))


def test_the_samples_have_every_platform_of_the_table():
    assert set(load_samples()) == set(PLATFORMS)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_samples_and_machines_report_a_provider_id_of_the_table_s_form(platform: str):
    form = PLATFORMS[platform].provider_id
    machine = make_machine(platform=platform).platform
    assert machine is not None
    for reported in (load_samples()[platform].facts.platform.provider_id, machine.provider_id):
        if form == CONFIGURED_PROVIDER_ID:
            assert "://" in reported
        else:
            assert re.fullmatch(pattern_of(form), reported), reported
            assert parse_scheme(reported or f"{OUR_SCHEME}://") == PLATFORMS[platform].scheme


def test_no_platform_is_both_native_and_without_a_provider_id():
    assert not PLATFORMS_WITH_PROVIDER_ID & PLATFORMS_WITHOUT_PROVIDER_ID
    assert set(PLATFORMS) - PLATFORMS_WITH_PROVIDER_ID - PLATFORMS_WITHOUT_PROVIDER_ID == {"nocloud"}


@pytest.mark.parametrize("platform", sorted(PLATFORMS_WITH_PROVIDER_ID))
def test_a_scheme_of_a_platform_belongs_to_its_own_controller_on_machines_of_others(platform: str):
    scheme = PLATFORMS[platform].scheme
    assert not scheme or scheme in FOREIGN_SCHEMES


def test_the_samples_and_the_page_follow_the_table():
    advice = "run `make render-samples`, look at the difference, and commit it"
    assert SAMPLES.read_text() == render_samples(), advice
    assert PAGE.read_text() == render_platforms_page(PAGE.read_text()), advice
