"""What Kubernetes' own cidr_set does, case by case; and the two cases in which ours does otherwise."""

import pytest

from services.ipam.cidr_set import CidrSet


def given_out(blocks: CidrSet) -> list[str]:
    return [str(blocks.next_free()) for _ in range(blocks.capacity - blocks.used_count)]


@pytest.mark.parametrize("cidr", ["127.123.234.0/30", "beef:1234::/30"])
def test_a_single_block_is_given_once_and_again_after_its_release(cidr: str):
    blocks = CidrSet(cidr, 30)
    only = blocks.next_free()
    assert only is not None
    assert blocks.next_free() is None
    blocks.release(only)
    assert blocks.next_free() == only
    assert blocks.next_free() is None


@pytest.mark.parametrize(
    ("cidr", "mask", "number", "block"),
    [
        ("127.123.3.0/16", 24, 0, "127.123.0.0/24"),
        ("127.123.0.0/16", 24, 15, "127.123.15.0/24"),
        ("192.168.5.219/28", 32, 5, "192.168.5.213/32"),
        ("2001:0db8:1234:3::/48", 64, 0, "2001:db8:1234::/64"),
        ("2001:0db8:1234::/48", 64, 15, "2001:db8:1234:f::/64"),
        ("2001:0db8:85a3::8a2e:0370:7334/50", 63, 6425, "2001:db8:85a3:3232::/63"),
        ("2001:0db8::/32", 48, 15, "2001:db8:f::/48"),
        ("2001:0db8:85a3::8a2e:0370:7334/32", 48, 6425, "2001:db8:1919::/48"),
        ("2001:0db8:1234:ff00::/56", 72, 0, "2001:db8:1234:ff00::/72"),
        ("2001:0db8:1234:ff00::/56", 72, 15, "2001:db8:1234:ff00:f00::/72"),
        ("2001:0db8:1234:ff00::0370:7334/56", 72, 6425, "2001:db8:1234:ff19:1900::/72"),
        ("2001:0db8:1234:0:1234::/80", 96, 15, "2001:db8:1234:0:1234:f::/96"),
        ("2001:0db8:1234:ff00::0370:7334/80", 96, 6425, "2001:db8:1234:ff00:0:1919::/96"),
        ("127.0.0.0/8", 32, 1, "127.0.0.1/32"),
        ("2001:beef:1234:369b::/60", 64, 1, "2001:beef:1234:3691::/64"),
    ],
)
def test_the_block_of_that_number_is_the_one_given_then(cidr: str, mask: int, number: int, block: str):
    blocks = CidrSet(cidr, mask)
    for _ in range(number):
        blocks.next_free()
    assert blocks.next_free() == block


@pytest.mark.parametrize("cidr", ["127.123.234.0/16", "beef:1234::/16"])
def test_all_that_was_released_is_given_in_the_same_order_again(cidr: str):
    blocks = CidrSet(cidr, 24)
    first = given_out(blocks)
    assert (len(first), blocks.next_free()) == (256, None)
    for block in first:
        blocks.release(block)
    assert given_out(blocks) == first


@pytest.mark.parametrize("cidr", ["127.123.234.0/16", "beef:1234::/16"])
def test_what_was_occupied_meanwhile_is_passed_over(cidr: str):
    blocks = CidrSet(cidr, 24)
    first = given_out(blocks)
    for block in first:
        blocks.release(block)
    for block in [*first[128:], first[128]]:  # one of them twice
        blocks.occupy(block)
    assert given_out(blocks) == first[:128]
    assert blocks.next_free() is None


def test_a_released_block_waits_until_the_round_comes_to_it():
    blocks = CidrSet("10.0.0.0/24", 26)
    first = blocks.next_free()
    assert first == "10.0.0.0/26"
    blocks.release(first)
    assert [blocks.next_free() for _ in range(4)] == [
        "10.0.0.64/26", "10.0.0.128/26", "10.0.0.192/26", "10.0.0.0/26",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cidr", "mask", "network", "first", "last"),
    [
        ("127.0.0.0/8", 16, "127.0.0.0/8", 0, 255),
        ("2001:beef:1200::/40", 48, "2001:beef:1200::/40", 0, 255),
        ("127.0.0.0/8", 16, "127.0.0.0/2", 0, 255),
        ("2001:beef:1200::/40", 48, "2001:beef:1234::/34", 0, 255),
        ("127.0.0.0/8", 16, "127.0.0.0/16", 0, 0),
        ("2001:beef:1200::/40", 48, "2001:beef:1200::/48", 0, 0),
        ("127.0.0.0/7", 16, "127.0.0.0/15", 256, 257),
        ("2001:beef:7f00::/39", 48, "2001:beef:7f00::/47", 256, 257),
        ("127.0.0.0/7", 15, "127.0.0.0/15", 128, 128),
        ("2001:beef:7f00::/39", 47, "2001:beef:7f00::/47", 128, 128),
        ("127.0.0.0/7", 18, "127.0.0.0/15", 1024, 1031),
        ("2001:beef:7f00::/39", 50, "2001:beef:7f00::/47", 1024, 1031),
        ("127.0.0.0/8", 16, "127.255.255.255/32", 255, 255),  # an address of the last block
        ("2001:beef:1200::/40", 48, "2001:beef:12ff:ffff:ffff:ffff:ffff:ffff/128", 255, 255),
        ("192.168.0.0/16", 24, "192.168.151.128/25", 151, 151),
    ],
)
def test_a_network_takes_the_blocks_that_it_overlaps(
    cidr: str, mask: int, network: str, first: int, last: int
):
    every = given_out(CidrSet(cidr, mask))
    blocks = CidrSet(cidr, mask)
    blocks.occupy(network)
    assert blocks.used_count == last + 1 - first
    assert given_out(blocks) == [*every[:first], *every[last + 1 :]]


@pytest.mark.parametrize(
    ("cidr", "mask", "network"),
    [("192.168.0.0/16", 24, "127.168.224.0/24"), ("beef::/16", 24, "2001:db00::/24")],
)
def test_what_upstream_refuses_as_out_of_range_takes_nothing(cidr: str, mask: int, network: str):
    """One odd podCIDR there stopped the allocator for every node."""
    blocks = CidrSet(cidr, mask)
    blocks.occupy(network)
    assert blocks.used_count == 0


def test_a_block_counts_once_however_often_it_is_occupied():
    """Counted twice, a restart showed 150 % of a pool in use (kubernetes/kubernetes#96416)."""
    blocks = CidrSet("10.42.0.0/16", 24)
    counts = []
    for network in (
        "10.42.5.0/24",
        "10.42.9.0/24",
        "10.42.8.0/22",
        "10.42.9.0/24",
        "10.42.0.0/16",
        "10.42.0.0/16",
    ):
        blocks.occupy(network)
        counts.append(blocks.used_count)
    assert counts == [1, 2, 5, 5, 256, 256]
    assert blocks.used_count / blocks.capacity == 1


def test_unlike_upstream_a_release_takes_back_one_occupation_and_only_by_the_same_network():
    """There the release of a /22 that was never occupied freed the /24 of a node in it."""
    blocks = CidrSet("10.42.0.0/16", 24)
    counts = []
    for network in ("10.42.5.0/24", "10.42.9.0/24", "10.42.8.0/22", "10.42.9.0/24"):
        blocks.occupy(network)
    for network in ("10.42.9.0/24", "10.42.9.0/24", "10.42.9.0/24", "10.42.4.0/22", "10.42.8.0/22"):
        blocks.release(network)
        counts.append(blocks.used_count)
    assert counts == [5, 5, 5, 5, 1]


def test_taken_blocks_that_were_passed_over_are_counted():
    blocks = CidrSet("10.0.0.0/16", 24)
    blocks.next_free()
    assert blocks.skipped_count == 0
    blocks.reset_cursor(after="10.0.255.0/24")
    blocks.occupy("10.0.0.0/17")
    assert blocks.next_free() == "10.0.128.0/24"
    assert blocks.skipped_count == 128
    blocks.reset_cursor(after="10.0.254.0/24")
    blocks.occupy("10.0.255.0/24")
    assert blocks.next_free() == "10.0.129.0/24"
    assert blocks.skipped_count == 130  # over the end, too


def test_unlike_upstream_ipv6_pools_wider_than_16_bits_are_taken():
    assert CidrSet("beef:1234::/32", 49).capacity == 2**17
