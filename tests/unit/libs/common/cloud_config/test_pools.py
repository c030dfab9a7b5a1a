"""`ipam.pools` of a config file: what they say, and every mistake in them with file, line and path."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.fact_fields import required_resources
from libs.common.cloud_config.model import Pool
from libs.common.cloud_config.read_sections import MAX_POOLS
from libs.common.cloud_config.selectors import match_selector
from tests.unit.libs.common.cloud_config.test_mistakes import mistakes

POOLS = """ipam:
  pools:
    - name: metal
      cidrs: [10.8.0.0/24, "fd00:8::/56", 10.20.0.0/17]
      nodeSelector:
        - matchExpressions: [{key: Platform, operator: In, values: [metal]}]
      maskSizeIPv4: 24
      maskSizeIPv6: 72
    - name: rest
      cidrs:
        - 10.9.0.0/16
"""


def pools(text: str) -> tuple[Pool, ...]:
    return parse_cloud_config(text, "f").pools


def pool_mistakes(*written: str) -> list[str]:
    """Of pools in one line; without the place that all of them have."""
    message = mistakes(f"ipam: {{pools: [{', '.join('{' + pool + '}' for pool in written)}]}}")
    return [each.removeprefix("f, line 1: ipam.") for each in message]


def warnings(*written: str) -> list[str]:
    text = f"ipam: {{pools: [{', '.join('{' + pool + '}' for pool in written)}]}}"
    return [f"{found.path} {found.problem}" for found in parse_cloud_config(text, "f").warnings]


def test_pools_say_networks_in_order_machines_and_sizes():
    metal, rest = pools(POOLS)
    assert (metal.name, metal.index, metal.line) == ("metal", 0, 3)
    assert metal.cidrs == ("10.8.0.0/24", "fd00:8::/56", "10.20.0.0/17")  # a block as large as its network
    assert (metal.mask_size_ipv4, metal.mask_size_ipv6) == (24, 72)
    assert match_selector(metal.selector, {"platform": "metal"}).is_match
    assert not match_selector(metal.selector, {"platform": "aws"}).is_match
    assert rest == Pool(name="rest", index=1, line=9, cidrs=("10.9.0.0/16",))


def test_a_machine_is_asked_for_what_the_selector_of_a_pool_names_and_rules_do_not_ask_for_it():
    text = (
        "ipam: {pools: [{name: a, cidrs: [10.0.0.0/8], nodeSelector: [{matchExpressions:"
        " [{key: cpuCores, operator: Gt, values: ['8']}, {key: zone, operator: Exists}]}]}]}"
    )
    config = parse_cloud_config(text, "f")
    assert required_resources((), config.pools) == {"Processor"}
    assert required_resources(config.rules) == frozenset()


def test_every_mistake_comes_at_once_with_its_line_and_path():
    text = (
        "ipam:\n"
        "  pool: []\n"
        "  pools:\n"
        "    - name: Web_1\n"
        "      cidrs:\n"
        "        - ~\n"
        "        - 10.8.0.0\n"
        "        - 10.8.0.5/16\n"
        "      maskSizeIPv4: many\n"
        "    - name: web\n"
        "      cidrs: [10.9.0.0/16]\n"
        "    - cidrs: []\n"
        "    - name: web\n"
        "      cidrs: [10.10.0.0/16]\n"
        "      masksizeipv4: 12\n"
    )
    assert mistakes(text) == [
        'f, line 2: ipam has no key "pool", only pools; did you mean pools?',
        (
            'f, line 4: ipam.pools[0].name is "Web_1", and a pool\'s name must be of small letters, digits '
            "and -, at most 63, with a letter or digit at both ends"
        ),
        ('f, line 7: ipam.pools[0].cidrs[1] is "10.8.0.0", which has no prefix length, as in 10.8.0.0/16'),
        (
            'f, line 8: ipam.pools[0].cidrs[2] is "10.8.0.5/16", an address within 10.8.0.0/16: write the '
            "network itself"
        ),
        'f, line 9: ipam.pools[0].maskSizeIPv4 is "many", not a number between 12 and 32',
        "f, line 12: ipam.pools[2].cidrs must have at least one network",
        "f, line 12: ipam.pools[2] lacks name, which it must have",
        "f, line 13: ipam.pools[3].name is web, the name of an earlier pool",
        (
            "f, line 15: ipam.pools[3].maskSizeIPv4 is 12: a block would be larger than 10.10.0.0/16 "
            "at ipam.pools[3].cidrs[0]"
        ),
    ]


@pytest.mark.parametrize(
    ("cidr", "why"),
    [
        ("10.8.0.0/33", "not a network such as 10.8.0.0/16 or fd00:8::/56"),
        ("10.8/16", "not a network such as"),
        ("''", "not a network such as"),
        ("here", "not a network such as"),
        ("fd00::%eth0/64", "not a network such as"),
        ("10.8.0.0/255.255.0.0", "which has no prefix length"),
        ("'fd00::'", "which has no prefix length"),
        ("fd00::1/64", "an address within fd00::/64"),
        ("'::ffff:10.8.0.0/112'", "an IPv4-mapped IPv6 network: write it as IPv4"),
        ("127.0.0.0/16", "which overlaps 127.0.0.0/8, which pods cannot use"),
        ("0.0.0.0/0", "which overlaps 0.0.0.0/8"),
        ("169.254.8.0/24", "which overlaps 169.254.0.0/16"),
        ("'ff00::/16'", "which overlaps ff00::/8"),
        ("'::/0'", "which overlaps ::/127"),
    ],
)
def test_what_is_no_network_for_pods_is_a_mistake(cidr: str, why: str):
    (message,) = pool_mistakes(f"name: a, cidrs: [{cidr}]")
    assert message.startswith("pools[0].cidrs[0] is ")
    assert why in message


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ("cidrs: [10.8.0.0/16], maskSizeIPv6: 80", "IPv6 is set, but the pool has no IPv6 network"),
        ("cidrs: ['fd00::/56'], maskSizeIPv4: 24", "IPv4 is set, but the pool has no IPv4 network"),
        ("cidrs: [10.8.0.0/16], maskSizeIPv4: 33", 'IPv4 is "33", not a number between 12 and 32'),
        ("cidrs: [10.0.0.0/8], maskSizeIPv4: 11", 'IPv4 is "11", not a number between 12 and 32'),
        ("cidrs: ['fd00::/40'], maskSizeIPv6: 47", 'IPv6 is "47", not a number between 48 and 128'),
        ("cidrs: [10.8.0.0/16], maskSizeIPv4: -24", 'IPv4 is "-24", not a number between 12 and 32'),
        ("cidrs: [10.8.0.0/16], maskSizeIPv4: [24]", "IPv4 is a list, not a text"),
    ],
)
def test_a_mask_that_does_not_fit_is_a_mistake(pool: str, message: str):
    assert pool_mistakes(f"name: a, {pool}") == [f"pools[0].maskSize{message}"]


def test_overlapping_networks_are_mistakes_at_the_later_place_whichever_is_the_larger():
    assert pool_mistakes("name: a, cidrs: [10.8.3.0/24, fd00::/56]", "name: b, cidrs: [10.8.0.0/16]") == [
        "pools[1].cidrs[0] is 10.8.0.0/16, which overlaps 10.8.3.0/24 at ipam.pools[0].cidrs[0]"
    ]
    assert pool_mistakes("name: a, cidrs: [10.8.0.0/16, 10.8.3.0/24]") == [
        "pools[0].cidrs[1] is 10.8.3.0/24, which overlaps 10.8.0.0/16 at ipam.pools[0].cidrs[0]"
    ]
    assert pool_mistakes("name: a, cidrs: [fd00::/56]", "name: b, cidrs: ['fd00:0::/56']") == [
        "pools[1].cidrs[0] is fd00::/56, which overlaps fd00::/56 at ipam.pools[0].cidrs[0]"
    ]


def test_a_network_that_ends_before_another_within_the_same_one_hides_no_overlap():
    message = pool_mistakes("name: a, cidrs: [10.0.0.0/8, 10.1.0.0/16, 10.200.0.0/16]")
    assert [each.partition(" ")[0] for each in message] == ["pools[0].cidrs[1]", "pools[0].cidrs[2]"]


NETWORKS = st.builds(
    lambda address, length: ipaddress.ip_network((0x0A000000 | address, length), strict=False),
    st.integers(0, 0xFFFF).map(lambda number: number << 8),
    st.integers(9, 24),
)


@given(st.lists(NETWORKS, min_size=1, max_size=6))
def test_a_file_is_right_just_where_no_two_networks_overlap(networks: list[ipaddress.IPv4Network]):
    overlap = any(one.overlaps(other) for n, one in enumerate(networks) for other in networks[n + 1 :])
    text = f"ipam: {{pools: [{{name: a, cidrs: [{', '.join(map(str, networks))}]}}]}}"
    if overlap:
        assert all("which overlaps" in message for message in mistakes(text))
    else:
        assert pools(text)[0].cidrs == tuple(map(str, networks))


def test_a_pool_that_no_machine_ever_reaches_is_warned_about():
    everyone, another = "name: a, cidrs: [10.8.0.0/16]", "name: b, cidrs: [10.9.0.0/16]"
    assert warnings(everyone, another) == [
        "ipam.pools[1] is never used: every machine uses ipam.pools[0] before it"
    ]
    of_both = "name: b, cidrs: [10.9.0.0/16, fd00::/56]"
    assert warnings(everyone, of_both) == []
    some = (
        "name: a, cidrs: [10.8.0.0/16], nodeSelector: [{matchExpressions: [{key: zone, operator: Exists}]}]"
    )
    assert warnings(some, another) == []


def test_too_many_pools_are_one_mistake():
    many = [f"name: p{n}, cidrs: [10.{n >> 8}.{n & 255}.0/24]" for n in range(MAX_POOLS + 1)]
    assert pool_mistakes(*many) == [f"pools are {MAX_POOLS + 1}, more than the {MAX_POOLS} allowed"]
    assert (
        len(pools("ipam: {pools: [" + ", ".join("{" + each + "}" for each in many[:-1]) + "]}")) == MAX_POOLS
    )
