"""Selectors: the reference's edges one by one, and all of them against a plain model."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.cloud_config.model import NodeSelectorRequirement, NodeSelectorTerm, Operator
from libs.common.cloud_config.selectors import match_selector, parse_go_integer

FIELDS = {"platform": "metal", "zone": "7", "spot": "false"}


Written = tuple[str, Operator, tuple[str, ...]]


def a_term(*requirements: Written) -> NodeSelectorTerm:
    return NodeSelectorTerm(
        requirements=tuple(
            NodeSelectorRequirement(key=key, operator=operator, values=values)
            for key, operator, values in requirements
        )
    )


@pytest.mark.parametrize(
    ("key", "operator", "values", "matched", "why"),
    [
        ("platform", "In", ("aws", "metal"), True, 'platform is "metal"'),
        ("platform", "In", ("Metal",), False, 'platform is "metal", not "Metal"'),
        ("zone", "In", ("8", "9"), False, 'zone is "7", not one of "8", "9"'),
        ("platform", "NotIn", ("aws",), True, 'platform is "metal", not "aws"'),
        ("platform", "NotIn", ("metal",), False, 'platform is "metal", which NotIn excludes'),
        ("region", "In", ("a",), False, "the machine has no region, so In is not met"),
        ("region", "NotIn", ("a",), False, "the machine has no region, so NotIn is not met"),
        ("platform", "Exists", (), True, 'platform is "metal"'),
        ("region", "Exists", (), False, "the machine has no region"),
        ("platform", "DoesNotExist", (), False, 'platform is "metal"'),
        ("region", "DoesNotExist", (), True, "the machine has no region"),
        ("zone", "Gt", ("6",), True, "zone is 7, greater than 6"),
        ("zone", "Gt", ("7",), False, "zone is 7, not greater than 7"),
        ("zone", "Lt", ("+8",), True, "zone is 7, less than 8"),
        ("zone", "Lt", ("-8",), False, "zone is 7, not less than -8"),
        ("platform", "Gt", ("1",), False, 'platform is "metal", which is not an integer'),
        ("region", "Lt", ("1",), False, "the machine has no region, so Lt is not met"),
        ("platform", "Regexp", ("et",), True, 'platform is "metal", which matches et'),
        ("platform", "Regexp", ("^et",), False, 'platform is "metal", which does not match ^et'),
        ("region", "Regexp", (".*",), False, "the machine has no region, so Regexp is not met"),
        ("spot", "In", ("false",), True, 'spot is "false"'),
    ],
)
def test_each_operator_says_whether_and_why(
    key: str, operator: Operator, values: tuple[str, ...], matched: bool, why: str
):
    found = match_selector([a_term((key, operator, values))], FIELDS)
    assert (found.is_match, found.reason) == (matched, why)


def test_no_selector_matches_every_machine_and_an_empty_term_none():
    assert match_selector((), FIELDS).is_match
    assert not match_selector([NodeSelectorTerm()], FIELDS).is_match
    assert match_selector([NodeSelectorTerm(), a_term(("platform", "Exists", ()))], FIELDS).is_match


def test_terms_are_alternatives_and_requirements_go_together():
    metal: Written = ("platform", "In", ("metal",))
    seven: Written = ("zone", "In", ("7",))
    aws: Written = ("platform", "In", ("aws",))
    assert match_selector([a_term(metal, seven)], FIELDS).reason == 'platform is "metal" and zone is "7"'
    assert not match_selector([a_term(metal, aws)], FIELDS).is_match
    assert match_selector([a_term(aws), a_term(seven)], FIELDS).is_match
    assert match_selector([a_term(aws), NodeSelectorTerm()], FIELDS).reason == (
        'nodeSelector[0]: platform is "metal", not "aws"; '
        "nodeSelector[1]: empty matchExpressions match nothing"
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("-0", 0),
        ("+12", 12),
        ("007", 7),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("-9223372036854775808", -(2**63)),
        ("1_000", None),
        (" 1", None),
        ("1\n", None),
        ("0x1", None),
        ("1.0", None),
        ("٣", None),
        ("", None),
        ("9" * 5000, None),
    ],
)
def test_integers_are_go_s(text: str, number: int | None):
    assert parse_go_integer(text) == number


def test_a_pattern_that_would_backtrack_for_ever_does_not():
    found = match_selector([a_term(("platform", "Regexp", ("^(a+)+$",)))], {"platform": "a" * 5000 + "!"})
    assert not found.is_match
    assert len(found.reason) < 300


# ---- against a model that knows nothing of reasons

texts = st.sampled_from(["", "a", "b", "1", "2", "-3", "ab"])
values_of: dict[Operator, st.SearchStrategy[tuple[str, ...]]] = {
    "In": st.lists(texts, min_size=1, max_size=3).map(tuple),
    "NotIn": st.lists(texts, min_size=1, max_size=3).map(tuple),
    "Exists": st.just(()),
    "DoesNotExist": st.just(()),
    "Gt": st.integers(-3, 3).map(lambda number: (str(number),)),
    "Lt": st.integers(-3, 3).map(lambda number: (str(number),)),
    "Regexp": st.sampled_from([("^a",), ("b$",), (".",), ("",)]),
}
requirements = st.sampled_from(list(values_of)).flatmap(
    lambda operator: st.builds(
        NodeSelectorRequirement,
        key=st.sampled_from(["k", "l", "m"]),
        operator=st.just(operator),
        values=values_of[operator],
    )
)
selectors = st.lists(
    st.lists(requirements, max_size=3).map(lambda them: NodeSelectorTerm(requirements=tuple(them))),
    max_size=3,
)


def model(requirement: NodeSelectorRequirement, fields: dict[str, str]) -> bool:
    if requirement.operator == "DoesNotExist":
        return requirement.key not in fields
    if requirement.key not in fields:
        return False
    text, values = fields[requirement.key], requirement.values
    is_number = re.fullmatch("-?[0-9]+", text) is not None
    return {
        "In": lambda: text in values,
        "NotIn": lambda: text not in values,
        "Exists": lambda: True,
        "Gt": lambda: is_number and int(text) > int(values[0]),
        "Lt": lambda: is_number and int(text) < int(values[0]),
        "Regexp": lambda: re.search(values[0], text) is not None,
    }[requirement.operator]()


@given(selectors, st.dictionaries(st.sampled_from(["k", "l", "m"]), texts))
def test_any_selector_matches_as_the_plain_model_says(
    selector: list[NodeSelectorTerm], fields: dict[str, str]
):
    wanted = not selector or any(
        term.requirements and all(model(each, fields) for each in term.requirements) for term in selector
    )
    found = match_selector(selector, fields)
    assert found.is_match == wanted
    assert found.reason
