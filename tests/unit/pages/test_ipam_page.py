"""docs/ipam.md says what is true: its example is a good file, its tables are complete."""

import re

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.file_keys import MASK_SIZES, POOL
from libs.common.cloud_config.read_pools import MAX_POOLS
from libs.common.contract.subjects import NETWORKS
from libs.common.observability import metrics
from libs.common.service.waiting_objects import LONG_WAIT_SECONDS
from libs.common.settings.flags import POD_CIDRS, SERVICE_NETWORKS
from libs.common.settings.read_settings import list_options
from services.ipam.node_events import CONFLICT, NOT_AVAILABLE, OTHER_ALLOCATOR
from services.ipam.settings import IpamSettings
from services.ipam.waiting_node_reconciler import CHECK_INTERVAL_SECONDS, POOL_RETRY_SECONDS
from tests.architecture.sources import ROOT

PAGE = (ROOT / "docs" / "ipam.md").read_text()


def section(heading: str) -> str:
    return PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def rows_of(heading: str) -> list[str]:
    return re.findall(r"^\| (`.*?) \|", section(heading), re.MULTILINE)


def test_the_example_is_a_good_file_in_which_every_pool_is_used():
    (example,) = re.findall(r"```yaml\n(.*?)```", section("Pools"), re.DOTALL)
    config = parse_cloud_config(example, "f")
    assert [pool.name for pool in config.pools] == ["metal", "rest"]
    assert config.warnings == ()


def test_the_table_names_every_key_of_a_pool():
    rows = rows_of("Pools")
    assert re.findall(r"`(\w+)`", " ".join(rows)) == [key.name for key in POOL]


def test_bounds_and_names_are_those_of_the_code():
    for least, most in MASK_SIZES.values():
        assert f"{least} to {most}" in PAGE
    assert f"more than {MAX_POOLS} pools" in PAGE
    assert NETWORKS in PAGE


def test_the_first_table_names_every_flag_of_ipam_alone():
    first = PAGE.partition("\n## ")[0]
    named = re.findall(r"^\| `--([a-z0-9-]+)`", first, re.MULTILINE)
    named += ["node-cidr-mask-size-ipv6"]  # beside its sister
    groups = (POD_CIDRS, SERVICE_NETWORKS)
    own = {option.flag.name for option in list_options(IpamSettings) if option.flag.group in groups}
    assert set(named) == own - {"ipam-in-flight"}


def test_every_metric_and_event_is_named():
    missing = [
        name
        for name in (family.name for family in metrics.REGISTRY.collect())
        if name.startswith(("talosccm_ipam_", "node_ipam_controller_")) and name not in PAGE
    ]
    # A part of the name stands for the second of two that share a row.
    assert missing in ([], ["node_ipam_controller_cidrset_cidrs_releases"])
    for event in (NOT_AVAILABLE, OTHER_ALLOCATOR, CONFLICT, "PoolsRejected"):
        assert f"`{event}`" in PAGE


def test_times_are_those_of_the_code():
    assert f"after {LONG_WAIT_SECONDS:.0f} s if something is not known yet" in PAGE.replace("\n", " ")
    assert f"{IpamSettings().quarantine_seconds / 60:.0f} min" in PAGE
    assert POOL_RETRY_SECONDS + CHECK_INTERVAL_SECONDS < 5.0
