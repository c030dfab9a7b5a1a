"""A pool that is in use does not shrink under its nodes."""

from libs.common.cloud_config.model import Pool as PoolSpec
from services.ipam.pool_shrink import find_refused_shrinks


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
    told = f"pool gpu would lose 3 blocks that nodes have: {blocks}"
    assert find_refused_shrinks(OLD, OLD[1:], IN_USE) == (told,)
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
