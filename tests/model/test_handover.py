"""The hand-over between two watchers: every interleaving of the model, and mutants that it must find."""

from collections.abc import Hashable

import pytest
from msgspec.structs import replace

from tests.model.handover import build_model
from tests.model.handover_key import build_key
from tests.model.handover_state import Rules, State
from tests.model.search import Model, search


def test_after_one_fault_at_any_moment_the_follower_ends_with_the_state_of_kubernetes():
    result = search(build_model(Rules(), faults=1))
    assert result.counterexample is None, str(result)
    assert result.states > 40_000, "the model has lost steps"
    assert result.settling_steps <= 30, "everything is published within 30 steps after the last fault"


def test_a_slow_follower_ends_with_the_state_of_kubernetes():
    result = search(build_model(Rules(), faults=0, renewals=1, is_follower_slow=True))
    assert result.counterexample is None, str(result)
    assert result.states > 8_000, "the model has lost steps"


def test_a_slow_follower_that_takes_a_snapshot_at_once_is_found():
    rules = Rules(snapshot_waits_until_nothing_is_pending=False)
    found = search(build_model(rules, faults=0, renewals=1, is_follower_slow=True)).counterexample
    assert found is not None, "the search misses the mutant"
    assert "lacks n-1" in found.violation, str(found)


# The rules that each mutant leaves out, and the words of the violation that must be found.
MUTANTS = {
    "a late message of a former leader counts, and no resync removes it": (
        {"followers_ignore_former_leaders", "leader_corrects_former_leaders"},
        "shows n-2, deleted before",
    ),
    "followers do not compare epochs": ({"followers_ignore_former_leaders"}, "shows n-2, deleted before"),
    "a fenced deletion is not published again": (
        {"leader_corrects_former_leaders"},
        "shows n-2, deleted before",
    ),
    "a leader that alone is cut off from NATS keeps its Lease": (
        {"cut_off_leader_steps_down"},
        "the follower has no snapshot",
    ),
    "the stream takes any message, and no leader corrects it": (
        {"publishes_with_expected_sequence", "leader_corrects_other_streams"},
        "another state of n-1",
    ),
    "the snapshot does not wait for the Nodes": ({"snapshot_waits_for_all"}, "older than in the list"),
    "the next leader has the epoch of the former one": (
        {"new_leader_has_new_epoch"},
        "shows n-2, deleted before",
    ),
    "messages for a former stream count": ({"other_stream_voids_messages"}, "shows n-2, deleted before"),
    "a message for a former stream is not corrected": (
        {"leader_corrects_other_streams"},
        "another state of n-1",
    ),
    "the round is put together before its Leading": (
        {"round_follows_own_leading"},
        "shows n-2, deleted before",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_of_the_hand_over_is_found(mutant: str):
    missing, violation = MUTANTS[mutant]
    rules = replace(Rules(), **dict.fromkeys(missing, False))
    found = search(build_model(rules, faults=1)).counterexample
    assert found is not None, "the search misses the mutant"
    assert violation in found.violation, str(found)


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
