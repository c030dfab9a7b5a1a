"""How much of each pool is taken, by the pages alone; and a pool in use does not shrink under its Nodes."""

from libs.common.cloud_config.model import Pool as PoolSpec
from services.ipam.core.pages import Claim, Page
from services.ipam.core.pool_usage import PoolUsage, find_refused_shrinks, measure_usage
from services.ipam.core.pools import Pool
from tests.builders import NOW


def a_page(page_range: str, *blocks: str, gone: str = "") -> Page:
    claims = {
        block: Claim(block=block, uid=f"uid of {block}", node="n", gone_since=NOW if block == gone else None)
        for block in blocks
    }
    return Page(range=page_range, claims=claims)


WEB, REST, SIX = (
    Pool("web", 4, "10.244.0.0/22", 24),
    Pool("rest", 4, "10.245.0.0/16", 24),
    Pool("web", 6, "fd00::/64", 80),
)


def test_each_block_counts_in_its_pool_and_once_whatever_its_size():
    pages = [
        a_page("10.240.0.0/12", "10.244.1.0/24", "10.244.2.0/26", "10.244.2.64/26", "10.245.0.0/17"),
        a_page("fd00::/48", "fd00::/80", "fd00:0:0:1::/80", gone="fd00::/80"),
    ]
    found = measure_usage([WEB, REST, SIX], pages)
    assert found.pools == {
        "10.244.0.0/22": PoolUsage(2, 4),
        "10.245.0.0/16": PoolUsage(128, 256),
        "fd00::/64": PoolUsage(1, 65536),
    }
    assert found.quarantined == 1


def test_a_claim_that_is_wider_than_pools_counts_in_all_that_it_touches():
    found = measure_usage([WEB, REST], [a_page("10.240.0.0/12", "10.244.0.0/15")])
    assert found.pools == {"10.244.0.0/22": PoolUsage(4, 4), "10.245.0.0/16": PoolUsage(256, 256)}


def test_without_pools_what_rests_is_counted_all_the_same():
    assert (
        measure_usage([], [a_page("10.240.0.0/12", "10.244.0.0/24", gone="10.244.0.0/24")]).quarantined == 1
    )


# ---- blocks in use that a new configuration removes


def a_pool(name: str, *cidrs: str) -> PoolSpec:
    return PoolSpec(name=name, index=0, cidrs=cidrs)


OLD = (a_pool("gpu", "10.1.0.0/16", "fd01::/56"), a_pool("rest", "10.9.0.0/16"))
IN_USE = {"10.1.0.0/24": "gpu-1", "10.1.200.0/24": "gpu-2", "fd01::/80": "gpu-1", "10.9.0.0/24": "web-1"}


def test_a_pool_that_loses_blocks_in_use_is_refused_with_the_nodes_named():
    new = (a_pool("gpu", "10.1.0.0/17", "fd01::/56"), OLD[1])
    assert find_refused_shrinks(OLD, new, IN_USE) == (
        "pool gpu would lose 1 block that a node has: gpu-2 (10.1.200.0/24)",
    )


def test_a_pool_that_disappears_is_refused_while_nodes_have_blocks_of_it():
    blocks = "gpu-1 (10.1.0.0/24), gpu-1 (fd01::/80), gpu-2 (10.1.200.0/24)"
    problem = f"pool gpu would lose 3 blocks that nodes have: {blocks}"
    assert find_refused_shrinks(OLD, OLD[1:], IN_USE) == (problem,)
    assert len(find_refused_shrinks(OLD, (), IN_USE)) == 2


def test_what_nobody_uses_may_go_and_what_is_used_may_move():
    new = (a_pool("all", "10.1.0.0/24", "10.1.200.0/24", "fd01::/64", "10.9.0.0/16"),)
    assert find_refused_shrinks(OLD, new, IN_USE) == ()
    assert find_refused_shrinks(OLD, (), {}) == ()
    assert find_refused_shrinks((), OLD, IN_USE) == ()


def test_a_block_that_only_partly_stays_is_lost():
    assert find_refused_shrinks(OLD, (a_pool("gpu", "10.1.0.0/25"),), {"10.1.0.0/24": "gpu-1"})


def test_blocks_from_elsewhere_and_odd_ones_refuse_nothing():
    assert (
        find_refused_shrinks(OLD, (), {"10.244.0.0/24": "web-1", "rubbish": "web-2", "0.0.0.0/0": "web-3"})
        == ()
    )


def test_of_many_nodes_ten_are_named():
    many = {f"10.1.{n}.0/24": f"gpu-{n:03}" for n in range(200)}
    (sentence,) = find_refused_shrinks(OLD, OLD[1:], many)
    assert sentence.startswith(
        "pool gpu would lose 200 blocks that nodes have: gpu-000 (10.1.0.0/24), gpu-001 "
    )
    assert sentence.endswith("gpu-009 (10.1.9.0/24) and 190 more")
