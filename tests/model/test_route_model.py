"""No interleaving deletes a route that is needed or another's, or forgets one; each missing rule is found."""

import pytest

from tests.model.route_rules import RULES, SEARCHES
from tests.model.search import search


@pytest.mark.parametrize("name", SEARCHES)
def test_no_interleaving_deletes_or_forgets_a_route(name: str):
    with SEARCHES[name].open_model() as model:
        result = search(model)
    assert result.counterexample is None, str(result)
    assert result.states > 500, "the model has lost steps"
    print(f"{name}: {result}")  # noqa: T201 - shown by pytest -s


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_is_left_out_is_found(name: str):
    with RULES[name].left_out() as model:
        found = search(model).counterexample
    assert found is not None, "the search misses the rule"
    assert RULES[name].violation in found.violation, str(found)
    print(f"without the rule that {name}: {found}")  # noqa: T201
