"""No interleaving loses, doubles or forgets an object, or touches another's; each missing rule is found."""

import pytest

from tests.model.clouds.cloud_models import RULES, SEARCHES
from tests.model.search import search


@pytest.mark.parametrize("name", SEARCHES)
def test_no_interleaving_violates_a_rule(name: str):
    open_model, min_states = SEARCHES[name]
    with open_model() as model:
        result = search(model)
    assert result.counterexample is None, str(result)
    assert result.states > min_states, "the model has lost steps"
    print(f"{name}: {result}")  # noqa: T201 - shown by pytest -s


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_is_left_out_is_found(name: str):
    left_out, violation = RULES[name]
    with left_out() as model:
        found = search(model).counterexample
    assert found is not None, "the search misses the rule"
    assert violation in found.violation, str(found)
    print(f"{name}: {found}")  # noqa: T201
