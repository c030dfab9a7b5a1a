"""Which Node's pods may have an address."""

from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.pod_cidrs import PodCidrIndex

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
ADDRESSES = ("10.244.0.7", "10.244.1.7", "10.9.9.9", "fd00::1", "fd00:0:0:1::1", "odd")
changes = st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from(CIDRS), max_size=2).map(tuple)))


@given(changes, st.sampled_from(ADDRESSES), st.sampled_from("abc"))
def test_a_lookup_finds_another_node_whose_pod_cidr_contains_the_address(done, address, name):
    index, expected = PodCidrIndex(), dict[str, tuple[str, ...]]()
    for node, cidrs in done:
        assert index.update(node, cidrs) == (expected.get(node, ()) != cidrs)
        expected[node] = cidrs
    found = {
        node
        for node, cidrs in expected.items()
        for cidr in cidrs
        if node != name and "/" in cidr and address != "odd" and ip_address(address) in ip_network(cidr)
    }
    assert index.find_others(address, name) == sorted(found)
    for node in expected:
        index.update(node, ())
    assert index == PodCidrIndex(), "nothing of a removed Node remains"
