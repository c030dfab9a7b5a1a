"""No file has another outcome than a config or its mistakes; `make cloud-config-fuzz` tries 10,000."""

import contextlib
import os

from hypothesis import given
from hypothesis import strategies as st

from libs.common.cloud_config.document import CloudConfigError, parse_cloud_config
from libs.common.cloud_config.fact_fields import (
    fact_values,
    list_queried_fields,
    required_resources,
    required_resources_of_pools,
)
from libs.common.cloud_config.model import CloudConfig
from libs.common.cloud_config.selectors import match_selector
from tests.builders import make_facts
from tests.cloud_config_mutations import SEEDS, generate_mutations

MUTATIONS = int(os.environ.get("MUTATIONS", "400"))
FIELDS = fact_values(make_facts(platform="metal", hostname="web-1", zone="7", tags={"Role": "db"}))


def use(config: CloudConfig) -> None:
    """What every reader of a config does with it."""
    required_resources(config.rules)
    required_resources_of_pools(config.pools)
    for pool in config.pools:
        assert match_selector(pool.selector, FIELDS.texts).reason
        assert pool.cidrs
    for rule in config.rules:
        assert match_selector(rule.selector, FIELDS.texts).reason
        list_queried_fields(rule)
        rule.entries()


def read_mistakes(text: str | bytes) -> list[str]:
    """The mistakes of a file, none if it is right; anything but that is raised."""
    try:
        config = parse_cloud_config(text, "f")
    except CloudConfigError as error:
        return error.mistakes or ["said nothing"]
    use(config)
    assert all(finding.format("f").isprintable() for finding in (*config.warnings, *config.differences)), text
    return []


def is_right(text: str | bytes) -> bool:
    """Whether the file is right; if not, each mistake is one line that names the file."""
    mistakes = read_mistakes(text)
    assert all(mistake.startswith("f") and mistake.isprintable() for mistake in mistakes), text
    return not mistakes


def test_the_seeds_are_right():
    assert all(is_right(seed) for seed in SEEDS)


def test_a_broken_file_is_a_config_or_its_mistakes_and_never_a_traceback():
    right = sum(is_right(text) for text in generate_mutations(MUTATIONS))
    assert MUTATIONS / 10 < right < MUTATIONS * 9 / 10  # mutations that always or never break prove little


def test_broken_bytes_are_too():
    for number, text in enumerate(generate_mutations(MUTATIONS // 4, seed=6)):
        broken = text.encode(errors="replace")
        at = number * 31 % (len(broken) + 1)
        is_right(broken[:at] + bytes([0x80 + number % 0x80]) + broken[at:])
        assert not is_right(text.encode("utf-16"))


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str):
    with contextlib.suppress(CloudConfigError):
        assert isinstance(parse_cloud_config(text, "f"), CloudConfig)
