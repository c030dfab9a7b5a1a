"""The keys of the hand-over: the search may follow one of several states only if they are interchangeable."""

from collections.abc import Hashable

import pytest

from tests.model.handover import build_model
from tests.model.handover_key import build_key
from tests.model.handover_state import Rules, State
from tests.model.search import Model

VISITED = 5_000  # of about 144,000 states with one fault


def collect_states(model: Model[State], limit: int) -> list[State]:
    """Return the states nearest to the start, without keys."""
    found = {model.start: None}
    states = [model.start]
    for state in states:
        for step in model.list_steps(state):
            if step.after not in found and len(states) < limit:
                found[step.after] = None
                states.append(step.after)
    return states


def describe_future(model: Model[State], state: State) -> Hashable:
    steps = frozenset((step.is_progress, build_key(step.after)) for step in model.list_steps(state))
    return steps, model.find_violation(state), model.find_unfinished(state)


@pytest.mark.parametrize("is_follower_slow", [False, True])
def test_states_with_equal_keys_have_the_same_violations_and_steps(is_follower_slow: bool):
    model = build_model(
        Rules(),
        faults=0 if is_follower_slow else 1,
        renewals=int(is_follower_slow),
        is_follower_slow=is_follower_slow,
    )
    futures: dict[bytes, Hashable] = {}
    states = collect_states(model, VISITED)
    for state in states:
        future = describe_future(model, state)
        assert futures.setdefault(build_key(state), future) == future, state
    assert len(futures) < len(states) * 0.9, "the keys tell too many states apart"
