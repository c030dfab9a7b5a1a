"""The search, and the model of the approval: each rule that is left out is found."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tests.model.approval import Rules, build_model
from tests.model.search import Model, Step, search


def count_to(limit: int, *, forbidden: int = -1, first_back: int = 0) -> Model[int]:
    """Numbers that grow by one or two up to a limit, and from there return to `first_back`, if any."""

    def list_steps(number: int) -> Iterator[Step[int]]:
        for step in (1, 2):
            if number + step <= limit:
                yield Step(f"add {step}", number + step, True)
        if number == limit and first_back:
            yield Step("go back", first_back, True)

    return Model(
        start=0,
        list_steps=list_steps,
        build_key=lambda number: number,
        find_violation=lambda number: "forbidden" if number == forbidden else "",
        find_unfinished=lambda number: "" if number == limit else "stuck",
    )


def test_every_state_is_visited_and_the_longest_way_to_the_end_is_counted():
    result = search(count_to(9))
    assert (result.states, result.depth, result.settling_steps) == (10, 5, 9)
    assert str(result) == "10 states, depth 5, settled within 9 steps after the last fault; no violation"


def test_a_violation_is_described_by_the_shortest_list_of_steps():
    counterexample = search(count_to(9, forbidden=5)).counterexample
    assert counterexample is not None
    assert str(counterexample) == "forbidden, after 3 steps:\n  1. add 1\n  2. add 2\n  3. add 2"


def test_an_end_that_is_not_wanted_is_a_violation():
    model = count_to(3)
    stuck = Model(
        start=0,
        list_steps=model.list_steps,
        build_key=model.build_key,
        find_violation=model.find_violation,
        find_unfinished=lambda number: "stuck",
    )
    counterexample = search(stuck).counterexample
    assert counterexample is not None
    assert counterexample.violation == "stuck"
    assert len(counterexample.steps) == 2


def test_progress_without_an_end_is_a_violation():
    counterexample = search(count_to(4, first_back=2)).counterexample
    assert counterexample is not None
    assert counterexample.violation == "the steps of progress never end"


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
