"""metadata, which dials provided-node-ip, and the labeler, which writes it, read it in the same way."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.ip_addresses import InvalidNodeIP, parse_node_ips
from libs.common.contract.machine import AddressStatus, MachineFault
from services.labeler.core.plan import ClusterConfig, plan_node
from services.metadata.machines.dial_targets import order_dial_targets
from tests.builders import make_facts, make_node

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
