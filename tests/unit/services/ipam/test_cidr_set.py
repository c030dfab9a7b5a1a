"""Blocks of a CIDR: against a naive model, in the reference's order, and at sizes that no list could hold."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.ipam.cidr_set import CidrSet
from services.ipam.networks import Network, parse_network


def given_out(blocks: CidrSet, most: int = 1 << 20) -> list[str]:
    """What it gives until it has none, or that many."""
    found: list[str] = []
    while len(found) < most and (block := blocks.next_free()) is not None:
        found.append(block)
    return found


class Naive:
    """Every block in a list, with the occupations that hold it."""

    def __init__(self, cidr: str, mask: int) -> None:
        whole = parse_network(cidr)
        step = 1 << whole.bits - mask
        self.blocks = [Network(whole.family, first, mask) for first in range(whole.first, whole.end, step)]
        self.occupations: list[Network] = []
        self.cursor = 0

    def is_taken(self, block: Network) -> bool:
        return any(
            each.family == block.family and each.first < block.end and block.first < each.end
            for each in self.occupations
        )

    def next_free(self) -> str | None:
        for block in (*self.blocks[self.cursor :], *self.blocks[: self.cursor]):
            if not self.is_taken(block):
                self.cursor = (self.blocks.index(block) + 1) % len(self.blocks)
                self.occupations.append(block)
                return str(block)
        return None


# One address more or less in size than the pool and its blocks, inside, beside and around it; both families.
POOLS = st.sampled_from(
    [("10.0.4.0/22", 26), ("10.0.4.0/22", 22), ("10.0.4.0/24", 29), ("2001:db8::/60", 64)]
)
IPV4 = st.builds(
    lambda host, prefix: parse_network(f"10.0.{host >> 8}.{host & 255}/{prefix}"),
    st.integers(0, 0xFFF),
    st.integers(18, 32),
)
IPV6 = st.builds(
    lambda group, prefix: parse_network(f"2001:db8:0:{group:x}::/{prefix}"),
    st.integers(0, 0x1F),
    st.integers(57, 70),
)


class AgainstTheNaive(RuleBasedStateMachine):
    """Any sequence of calls leaves the same blocks taken and gives the same next one."""

    @initialize(pool=POOLS)
    def begin(self, pool):
        self.blocks, self.naive = CidrSet(*pool), Naive(*pool)
        assert self.blocks.capacity == len(self.naive.blocks)

    @rule(network=st.one_of(IPV4, IPV6), times=st.integers(1, 2))
    def occupy(self, network, times):
        for _ in range(times):
            self.blocks.occupy(str(network))
            self.naive.occupations.append(network)

    @rule(times=st.integers(1, 5))
    def give(self, times):
        for _ in range(times):
            assert self.blocks.next_free() == self.naive.next_free()

    @precondition(lambda self: self.naive.occupations)
    @rule(data=st.data())
    def release(self, data):
        network = data.draw(st.sampled_from(self.naive.occupations))
        self.blocks.release(str(network))
        self.naive.occupations.remove(network)

    @rule(network=st.one_of(IPV4, IPV6))
    def release_what_may_never_have_been_occupied(self, network):
        self.blocks.release(str(network))
        if network in self.naive.occupations:
            self.naive.occupations.remove(network)

    @rule(data=st.data())
    def reset(self, data):
        block = data.draw(st.sampled_from(self.naive.blocks))
        self.blocks.reset_cursor(after=str(block))
        self.naive.cursor = (self.naive.blocks.index(block) + 1) % len(self.naive.blocks)

    @invariant()
    def as_many_are_taken(self):
        assert self.blocks.used_count == sum(map(self.naive.is_taken, self.naive.blocks))

    def teardown(self):
        """Nothing leaks: without occupations every block is given once, and no other."""
        for network in self.naive.occupations:
            self.blocks.release(str(network))
        assert self.blocks.used_count == 0
        assert sorted(given_out(self.blocks)) == sorted(map(str, self.naive.blocks))


TestAgainstTheNaive = AgainstTheNaive.TestCase
TestAgainstTheNaive.settings = settings(
    max_examples=60, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize(("cidr", "mask"), [("10.0.0.0/8", 24), ("2001:db8::/64", 80)])
def test_all_of_65536_blocks_are_given_once_in_order_and_freed(cidr: str, mask: int):
    blocks = CidrSet(cidr, mask)
    found = given_out(blocks)
    firsts = [parse_network(block).first for block in found]
    assert (len(found), blocks.used_count) == (65536, blocks.capacity)
    assert firsts == sorted(set(firsts))
    for block in found:
        blocks.release(block)
    assert blocks.used_count == 0
    assert blocks.next_free() == found[0]


def test_the_next_one_of_2_to_the_48_is_found_without_a_search():
    blocks = CidrSet("2001:db8::/64", 112)
    blocks.occupy("2001:db8::/65")
    assert blocks.used_count == blocks.capacity // 2 == 2**47
    assert blocks.next_free() == "2001:db8:0:0:8000::/112"
    blocks.reset_cursor(after="2001:db8:0:0:ffff:ffff:ffff:0/112")
    assert blocks.next_free() == "2001:db8::8000:0:1:0/112"


def test_ipv6_may_be_wider_than_the_16_bits_of_the_reference():
    blocks = CidrSet("2001:db8::/32", 64)
    assert blocks.capacity == 2**32
    assert given_out(blocks, 2) == ["2001:db8::/64", "2001:db8:0:1::/64"]


def test_a_block_is_free_again_only_when_every_occupation_of_it_is_released():
    blocks = CidrSet("10.0.0.0/24", 26)
    given = blocks.next_free()
    assert given == "10.0.0.0/26"
    for each in (given, "10.0.0.7/32", "10.0.0.0/25", "0.0.0.0/0"):
        blocks.occupy(each)
    for each in (given, "0.0.0.0/0", "10.0.0.7/32", "10.0.0.0/25"):
        blocks.release(each)
    assert blocks.used_count == 1
    blocks.release(given)
    assert blocks.used_count == 0


@pytest.mark.parametrize(
    "mistaken", ["10.0.0.0/24", "10.0.0.0/16", "10.0.0.9/32", "10.0.0.0/27", "0.0.0.0/0"]
)
def test_releasing_what_was_never_occupied_frees_nobodys_block(mistaken: str):
    blocks = CidrSet("10.0.0.0/24", 26)
    given = blocks.next_free()
    blocks.release(mistaken)
    assert (blocks.used_count, given) == (1, "10.0.0.0/26")


def test_the_last_block_is_given_and_the_search_begins_anew():
    blocks = CidrSet("10.0.0.0/24", 26)
    blocks.reset_cursor(after="10.0.0.128/26")
    assert given_out(blocks) == ["10.0.0.192/26", "10.0.0.0/26", "10.0.0.64/26", "10.0.0.128/26"]


def test_a_last_one_given_that_lies_elsewhere_leaves_the_search_at_the_first_block():
    blocks = CidrSet("10.0.0.0/24", 26)
    blocks.reset_cursor(after="10.0.0.0/26")
    blocks.reset_cursor(after="192.168.0.0/26")
    assert blocks.next_free() == "10.0.0.0/26"


@pytest.mark.parametrize("cidr", ["10.0.1.0/24", "9.255.255.0/24", "2001:db8::/64", "192.168.0.0/16"])
def test_a_network_elsewhere_takes_nothing(cidr: str):
    blocks = CidrSet("10.0.0.0/24", 26)
    blocks.occupy(cidr)
    assert blocks.used_count == 0
    blocks.release(cidr)
    assert len(given_out(blocks)) == 4


@pytest.mark.parametrize(
    ("cidr", "mask", "words"),
    [
        ("10.0.0.0/25", 24, "a block of /24 is larger than all of 10.0.0.0/25"),
        ("10.0.0.0/24", 64, "/64 is no mask of IPv4"),
        ("web-1", 24, "'web-1' is not a network"),
    ],
)
def test_a_set_without_any_block_is_refused_in_words(cidr: str, mask: int, words: str):
    with pytest.raises(ValueError, match=words):
        CidrSet(cidr, mask)


def test_what_is_no_network_is_neither_occupied_nor_released():
    blocks = CidrSet("10.0.0.0/24", 26)
    for call in (blocks.occupy, blocks.release):
        with pytest.raises(ValueError, match="is not a network"):
            call("10.0.0.0/24/24")
    assert blocks.used_count == 0
