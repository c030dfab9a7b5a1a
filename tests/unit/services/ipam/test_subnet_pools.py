"""The reference's table of per-node IPv6 subnets: every length, with its edges."""

from ipaddress import IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ipam.cidr_set import CidrSet
from services.ipam.subnet_pools import derive_subnet_pool

ADDRESS = "2001:db8:1:1111:aaaa:bbbb:cccc:1d3"


@pytest.mark.parametrize(
    ("length", "pool", "mask", "nodes"),
    [
        (48, "2001:db8:1:1111::/64", 80, 65536),
        (56, "2001:db8:1:1111::/64", 80, 65536),
        (63, "2001:db8:1:1111::/64", 80, 65536),
        (64, "2001:db8:1:1111::/64", 80, 65536),
        (65, "2001:db8:1:1111:8000::/65", 81, 65536),
        (80, "2001:db8:1:1111:aaaa::/80", 96, 65536),
        (96, "2001:db8:1:1111:aaaa:bbbb::/96", 112, 65536),
        (99, "2001:db8:1:1111:aaaa:bbbb:c000:0/99", 115, 65536),
        (100, "2001:db8:1:1111:aaaa:bbbb:c000:0/100", 108, 256),
        (105, "2001:db8:1:1111:aaaa:bbbb:cc80:0/105", 113, 256),
        (106, "2001:db8:1:1111:aaaa:bbbb:ccc0:0/106", 110, 16),
        (111, "2001:db8:1:1111:aaaa:bbbb:cccc:0/111", 115, 16),
        (112, "2001:db8:1:1111:aaaa:bbbb:cccc:0/112", 114, 4),
        (118, "2001:db8:1:1111:aaaa:bbbb:cccc:0/118", 120, 4),
        (119, "2001:db8:1:1111:aaaa:bbbb:cccc:0/119", 120, 2),
        (120, "2001:db8:1:1111:aaaa:bbbb:cccc:100/120", 120, 1),
        (123, "2001:db8:1:1111:aaaa:bbbb:cccc:1c0/123", 123, 1),
    ],
)
def test_a_subnet_makes_the_pool_of_the_reference(length: int, pool: str, mask: int, nodes: int):
    assert derive_subnet_pool(f"{ADDRESS}/{length}") == (pool, mask)
    assert CidrSet(pool, mask).capacity == nodes


@pytest.mark.parametrize("length", [124, 125, 126, 127])
def test_a_subnet_of_less_than_32_addresses_is_told(length: int):
    with pytest.raises(ValueError, match="is too small: /123 is the smallest for pods"):
        derive_subnet_pool(f"{ADDRESS}/{length}")


@pytest.mark.parametrize("prefix", [f"{ADDRESS}/128", ADDRESS])
def test_a_single_address_is_no_subnet(prefix: str):
    assert derive_subnet_pool(prefix) is None


@pytest.mark.parametrize("prefix", ["10.0.0.5/24", "", "web-1/64", f"{ADDRESS}/129", f"{ADDRESS}/x"])
def test_what_is_no_ipv6_prefix_is_told(prefix: str):
    with pytest.raises(ValueError, match="is no IPv6 address with a prefix length"):
        derive_subnet_pool(prefix)


@given(st.integers(64, 123), st.integers(0, 2**128 - 1), st.integers(0, 2**128 - 1))
def test_all_nodes_of_a_subnet_share_its_pool(length: int, one: int, other: int):
    subnet = IPv6Network((one, length), strict=False)
    neighbour = subnet[other % subnet.num_addresses]
    assert derive_subnet_pool(f"{subnet[0]}/{length}") == derive_subnet_pool(f"{neighbour}/{length}")
    found = derive_subnet_pool(f"{neighbour}/{length}")
    assert found is not None
    assert neighbour in IPv6Network(found[0])
