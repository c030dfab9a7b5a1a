"""Networks are read and written as `ipaddress` does it, and as Kubernetes writes them."""

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from libs.common.contract import networks
from libs.common.contract.networks import (
    Network,
    NetworkSet,
    explain_no_blocks,
    find_free_block,
    overlaps,
    parse_foreign_network,
    parse_network,
)

# Addresses with runs of zeros, which decide how an IPv6 address is written.
GROUPS = st.lists(st.sampled_from([0, 0, 0, 1, 0xA, 0xFFFF, 0x20]), min_size=8, max_size=8)
IPV6 = GROUPS.map(lambda groups: IPv6Address(int("".join(f"{group:04x}" for group in groups), 16)))
IPV4 = st.integers(0, 2**32 - 1).map(IPv4Address)
NETWORKS = st.one_of(
    st.tuples(IPV4, st.integers(0, 32)), st.tuples(IPV6, st.integers(0, 128))
).map(lambda pair: f"{pair[0]}/{pair[1]}")  # fmt: skip


def is_mapped(text: str) -> bool:
    network = ip_network(text, strict=False)
    return network.version == 6 and network.prefixlen >= 96 and network[0].ipv4_mapped is not None


@given(NETWORKS)
@example("0:0:1::/48")
@example("::/0")
@example("1:0:0:2::/64")
def test_a_network_is_what_ipaddress_says(text: str):
    if is_mapped(text):
        return
    judge = ip_network(text, strict=False)
    read = parse_network(text)
    assert (read.family, read.first, read.prefix) == (judge.version, int(judge[0]), judge.prefixlen)
    assert read.end == int(judge[-1]) + 1
    assert str(read) == str(judge)
    assert parse_network(str(read)) == read


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("10.0.1.77/24", "10.0.1.0/24"),  # host bits
        ("10.0.1.77", "10.0.1.77/32"),
        ("2001:db8::5", "2001:db8::5/128"),
        ("2001:DB8::/32", "2001:db8::/32"),
        ("2001:db8:0:0:0:0:0:0/32", "2001:db8::/32"),
        ("::ffff:10.0.1.0/120", "10.0.1.0/24"),
        ("::ffff:a00:100/120", "10.0.1.0/24"),
    ],
)
def test_what_anybody_wrote_is_the_network_that_it_means(text: str, same_as: str):
    assert str(parse_network(text)) == same_as


@pytest.mark.parametrize(
    "text",
    ["", "/", "web-1", "10.0.0.0/33", "10.0.0.256/24", "010.0.0.0/8", "10.0.0/8", "10.0.0.0/-1",
     "2001:db8::/129", "2001:db8::1::/64", "1:2:3:4:5:6:7:8::/64", "g::/64", "10.0.0.0/2 4",
     "x" * 5000, "１0.0.0.0/8", "10.0.1.0/255.255.255.0", "fe80::1%eth0/64"],
)  # fmt: skip
def test_what_is_no_network_is_refused_in_short_words(text: str):
    with pytest.raises(ValueError, match="is not a network") as refused:
        parse_network(text)
    assert len(str(refused.value)) < 120


# Asked of kube-apiserver 1.36, in `spec.podCIDRs` of a Node: as versions before it and with
# --feature-gates=StrictIPCIDRValidation=false it takes all of these, by default only what is canonical but
# for capital letters. Found cases stay here.
@pytest.mark.parametrize(
    ("text", "same_as"),
    {
        "010.185.1.0/24": "10.185.1.0/24",  # ten, not eight
        "10.185.001.000/024": "10.185.1.0/24",
        "0000000010.185.1.0/24": "10.185.1.0/24",
        "10.185.1.5/24": "10.185.1.0/24",
        "FD00:10:185::/64": "fd00:10:185::/64",
        "fd00:00010:185:0:0:0:0:0/64": "fd00:10:185::/64",
        "fd00:10:185::1:2/064": "fd00:10:185::/64",
        "::ffff:10.185.1.0/120": "10.185.1.0/24",
        "::ffff:010.185.001.0/120": "10.185.1.0/24",
        "fd00:10:185::010.0.0.1/64": "fd00:10:185::/64",
        "000.0.0.0/00": "0.0.0.0/0",
    }.items(),
)
def test_what_kubernetes_takes_as_a_pod_cidr_is_the_network_that_it_is_there(text: str, same_as: str):
    assert str(parse_foreign_network(text)) == same_as


def test_a_pod_cidr_that_is_as_long_as_an_object_may_be_is_read_and_not_kept():
    before = networks._parse_cached_like_kubernetes.cache_info().currsize
    assert str(parse_foreign_network(f"{'0' * 1_000_000}10.185.1.0/24")) == "10.185.1.0/24"
    assert networks._parse_cached_like_kubernetes.cache_info().currsize == before


# The same API server takes none of these, and we cannot read them: no Node carries them.
@pytest.mark.parametrize(
    "text",
    ["nonsense", "10.185.1.0/33", "10.185.1/24", " 10.185.1.0/24", "0x0a.185.1.0/24",
     "10.185.1.0/24,10.1.0.0/24", "", "0", "0/0", "00000/24", "10.0.0.0/", "0256.0.0.0/8",
     "fd00:010000::/64"],
)  # fmt: skip
def test_what_is_no_pod_cidr_to_kubernetes_is_no_network(text: str):
    assert parse_foreign_network(text) is None


@given(NETWORKS, st.integers(0, 5))
def test_zeros_before_a_number_change_nothing(text: str, zeros: int):
    address, _, length = text.partition("/")
    written = re.sub(r"(?<![0-9a-f])(?=[0-9a-f])", "0" * zeros, address)
    assert parse_foreign_network(f"{written}/{'0' * zeros}{length}") == parse_network(text)


@pytest.mark.parametrize(
    ("cidr", "mask", "words"),
    [
        ("10.0.0.0/24", 24, ""),
        ("10.0.0.0/24", 32, ""),
        ("10.0.0.0/25", 24, "a block of /24 is larger than all of 10.0.0.0/25"),
        ("10.0.0.0/24", 33, "/33 is no mask of IPv4, which has 32 bits"),
        ("2001:db8::/64", 129, "/129 is no mask of IPv6, which has 128 bits"),
    ],
)
def test_a_mask_that_yields_no_block_is_reported(cidr: str, mask: int, words: str):
    assert explain_no_blocks(parse_network(cidr), mask) == words


# ---- the next free block


def find_next(cidr: str, mask: int, taken: Iterable[str] = (), after: str = "") -> tuple[str, int] | None:
    found = find_free_block(
        parse_network(cidr),
        mask,
        after=parse_network(after) if after else None,
        find_taken=NetworkSet(taken).find_overlap,
    )
    return (str(found[0]), found[1]) if found else None


# One address more or less in size than the pool and its blocks, inside, beside and around it; both families.
SPACES = st.sampled_from(
    [("10.0.4.0/22", 26), ("10.0.4.0/22", 22), ("10.0.4.0/24", 29), ("2001:db8::/60", 64)]
)
TAKEN = st.one_of(
    st.builds(
        lambda host, prefix: f"10.0.{host >> 8}.{host & 255}/{prefix}",
        st.integers(0, 0xFFF),
        st.integers(18, 32),
    ),
    st.builds(
        lambda group, prefix: f"2001:db8:0:{group:x}::/{prefix}", st.integers(0, 0x1F), st.integers(57, 70)
    ),
)


@given(SPACES, st.lists(TAKEN, max_size=12), st.none() | st.integers(0, 63))
def test_the_next_free_block_is_the_first_one_after_the_last_that_nothing_overlaps(space, taken, last):
    cidr, mask = space
    pool = parse_network(cidr)
    step = 1 << pool.bits - mask
    blocks = [Network(pool.family, first, mask) for first in range(pool.first, pool.end, step)]
    begin = 0 if last is None else last % len(blocks) + 1
    others = [parse_network(text) for text in taken]
    free = [
        (str(block), tried)
        for tried, block in enumerate((*blocks[begin:], *blocks[:begin]), start=1)
        if not any(overlaps(block, other) for other in others)
    ]
    after = "" if last is None else str(blocks[last % len(blocks)])
    assert find_next(cidr, mask, taken, after) == (free[0] if free else None)


def test_the_next_one_of_2_to_the_48_is_found_without_a_search():
    half = 2**47
    assert find_next("2001:db8::/64", 112, ["2001:db8::/65"]) == ("2001:db8:0:0:8000::/112", half + 1)
    last = "2001:db8:0:0:ffff:ffff:ffff:0/112"
    assert find_next("2001:db8::/64", 112, ["2001:db8::/65"], last) == ("2001:db8:0:0:8000::/112", half + 1)
