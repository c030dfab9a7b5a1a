"""docs/ipam.md says what is true: its example is a good file, its table of keys is complete."""

import re

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.pool_reading import MOST_POOLS
from libs.common.cloud_config.shape import MASK_SIZES, POOL
from libs.common.subjects import NETWORKS
from tests.architecture.sources import ROOT

PAGE = (ROOT / "docs" / "ipam.md").read_text()


def test_the_example_is_a_good_file_in_which_every_pool_is_used():
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = parse_cloud_config(example, "f")
    assert [pool.name for pool in config.pools] == ["metal", "rest"]
    assert config.warnings == ()


def test_the_table_names_every_key_of_a_pool():
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(rows)) == [key.name for key in POOL]


def test_bounds_and_names_are_those_of_the_code():
    for least, most in MASK_SIZES.values():
        assert f"{least} to {most}" in PAGE
    assert f"more than {MOST_POOLS} pools" in PAGE
    assert NETWORKS in PAGE
