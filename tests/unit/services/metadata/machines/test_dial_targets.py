"""The addresses that metadata dials: provided-node-ip is untrusted input."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.machine import MachineFault
from services.metadata.core.dial_targets import order_dial_targets


@pytest.mark.parametrize(
    ("written", "order"),
    [
        ("", ()),
        ("10.0.0.5", ("10.0.0.5",)),
        ("fd00::5", ("fd00::5",)),
        ("10.0.0.5,fd00::5", ("10.0.0.5", "fd00::5")),
        ("fd00::5,10.0.0.5", ("10.0.0.5", "fd00::5")),
        (" fd00::5 , 10.0.0.5 ", ("10.0.0.5", "fd00::5")),
        ("::ffff:10.0.0.5", ("10.0.0.5",)),
        ("FD00:0:0::5", ("fd00::5",)),
        ("100.64.0.1", ("100.64.0.1",)),
        ("203.0.113.7,2001:db8::7", ("203.0.113.7", "2001:db8::7")),
    ],
)
def test_one_address_per_family_is_dialled_ipv4_first(written, order):
    assert order_dial_targets(written, prefer_ipv6=False) == order
    assert order_dial_targets(written, prefer_ipv6=True) == tuple(sorted(order, key=lambda ip: ":" not in ip))


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("metadata.google.internal", "is not an IP address"),
        ("localhost", "is not an IP address"),
        ("10.0.0.5:50000", "is not an IP address"),
        ("[fd00::5]", "is not an IP address"),
        ("10.0.0.5/24", "is not an IP address"),
        ("010.0.0.5", "is not an IP address"),
        ("10.0.0", "is not an IP address"),
        ("0x0a000005", "is not an IP address"),
        ("167772165", "is not an IP address"),
        ("１０.0.0.5", "is not an IP address"),
        ("10.0.0.5,", "is not an IP address"),
        (" ", "is not an IP address"),
        ("10.0.0.5\r\nnode: 10.0.0.6", "is not an IP address"),
        ("127.0.0.1", "loopback"),
        ("127.255.0.9", "loopback"),
        ("::1", "loopback"),
        ("169.254.169.254", "link-local"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "zone"),
        ("fd00::1%eth0", "zone"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("0.0.0.0", "unspecified"),
        ("::", "unspecified"),
        ("0.0.0.7", "0.0.0.0/8"),
        ("255.255.255.255", "reserved"),
        ("240.0.0.1", "reserved"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::127.0.0.1", "reserved"),
        ("64:ff9b::7f00:1", "reserved"),
        ("10.0.0.5,127.0.0.1", "loopback"),
        (",".join(["10.0.0.5"] * 9), "neither one address nor one of each family"),
        ("10.0.0.5,10.0.0.6", "neither one address nor one of each family"),
        ("fd00::5,fd00::6", "neither one address nor one of each family"),
        ("10.0.0.5,fd00::5,10.0.0.6", "neither one address nor one of each family"),
        ("1" * 129, "longer than 128 characters"),
    ],
)
def test_an_invalid_address_is_rejected_with_a_reason(written, why):
    fault = order_dial_targets(written, prefer_ipv6=False)
    assert isinstance(fault, MachineFault)
    assert fault.kind == "bad_node_ip"
    assert why in fault.message
    assert "provided-node-ip" in fault.message
    assert len(fault.message) < 400
    assert fault.message.isprintable()


@given(st.text(max_size=300) | st.lists(st.ip_addresses().map(str), max_size=10).map(",".join), st.booleans())
def test_only_plain_unicast_addresses_are_dialled(written, prefer_ipv6):
    order = order_dial_targets(written, prefer_ipv6=prefer_ipv6)
    if isinstance(order, MachineFault):
        return
    for text in order:
        address = ipaddress.ip_address(text)
        assert str(address) == text
        properties = ("is_loopback", "is_link_local", "is_multicast", "is_unspecified", "is_reserved")
        assert not any(getattr(address, name) for name in properties)
    assert len({":" in text for text in order}) == len(order) <= 2
