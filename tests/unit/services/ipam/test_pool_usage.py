"""How much of each pool is taken: counted as CidrSet counts, from the pages alone."""

from services.ipam.pages import Claim, Page
from services.ipam.pool_selection import Pool
from services.ipam.pool_usage import PoolUsage, measure_usage
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
