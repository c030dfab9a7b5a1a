"""The approval of a certificate request: every interleaving of the model, and mutants that it must find."""

import pytest
from msgspec.structs import replace

from tests.model.approval import Rules, build_model
from tests.model.search import search


def test_no_interleaving_leads_to_an_approval_beside_a_known_rival_that_was_not_later():
    result = search(build_model(Rules(), faults=2))
    assert result.counterexample is None, str(result)
    assert result.states > 1_000, "the model has lost steps"
    assert result.settling_steps <= 30, "the request is decided within 30 steps after the last fault"


@pytest.mark.parametrize(
    "rule",
    ["judges_again_in_write_slot", "waits_for_every_report", "waits_for_snapshot", "needs_known_order"],
)
def test_a_mutant_of_the_approval_is_found(rule: str):
    found = search(build_model(replace(Rules(), **{rule: False}), faults=2)).counterexample
    assert found is not None, "the search misses the mutant"
    assert "another machine has it" in found.violation
