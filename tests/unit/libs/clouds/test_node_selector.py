"""A label selector in one text selects what Kubernetes selects by it."""

import pytest

from libs.clouds.node_selector import parse_node_selector
from libs.common.cloud_config.selectors import match_selector

LABELS = {"env": "prod", "tier": "web", "example.com/rank": "7", "empty": ""}


@pytest.mark.parametrize(
    ("text", "is_match"),
    [
        ("", True),
        ("  ", True),
        ("env", True),
        ("gpu", False),
        ("!gpu", True),
        ("! env", False),
        ("env=prod", True),
        ("env==prod", True),
        (" env = prod , tier = web ", True),
        ("env=prod,tier=db", False),
        ("env!=prod", False),
        ("gpu!=a100", True),
        ("empty=", True),
        ("env in (dev, prod)", True),
        ("env notin (dev,prod)", False),
        ("gpu notin (a100)", True),
        ("example.com/rank>6", True),
        ("example.com/rank < 7", False),
        ("env in (dev,prod),!gpu,tier", True),
    ],
)
def test_a_selector_matches_as_in_kubernetes(text: str, is_match: bool):
    selector = parse_node_selector(text)
    assert match_selector(selector, LABELS, not_in_matches_absent=True).is_match == is_match


@pytest.mark.parametrize(
    "text",
    [
        ",",
        "env,",
        "env=prod,,tier=web",
        "env=prod tier=web",
        "env=a b",
        "env in prod",
        "env in (prod",
        "envin(prod)",
        "env in (a b)",
        "rank>many",
        "Example.com/rank",
        "example.com/",
        "-env",
        f"{'a' * 64}",
        f"env={'a' * 64}",
        "env in (" + "a" * 64 + ")",
    ],
)
def test_an_unreadable_selector_selects_nothing(text: str):
    with pytest.raises(ValueError, match="a label selector"):
        parse_node_selector(text)


def test_a_selector_that_takes_minutes_for_all_nodes_is_rejected():
    assert parse_node_selector(",".join(["!gpu"] * 200))
    with pytest.raises(ValueError, match="at most 1024 characters"):
        parse_node_selector(",".join(["!gpu"] * 300))
