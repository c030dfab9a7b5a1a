"""Runs of numbers are a set of numbers that costs little."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.ipam.interval_set import IntervalSet

SPANS = st.tuples(st.integers(0, 20), st.integers(1, 8)).map(lambda span: (span[0], sum(span)))


@given(st.lists(st.tuples(st.booleans(), SPANS), max_size=12), SPANS)
def test_runs_are_the_set_of_what_was_taken_and_not_freed(steps, within):
    runs, numbers = IntervalSet(), set[int]()
    for is_taken, span in steps:
        if is_taken:
            runs.add(*span)
            numbers |= set(range(*span))
        else:
            runs.remove(*span)
            numbers -= set(range(*span))
        assert runs.size == len(numbers)
    for start in range(30):
        assert runs.find_first_free(start) == next(n for n in range(start, 40) if n not in numbers)
    gaps = list(runs.iter_gaps(*within))
    assert [n for gap in gaps for n in range(*gap)] == [n for n in range(*within) if n not in numbers]
    assert all(earlier[1] < later[0] for earlier, later in pairwise(gaps))
