"""Every object has its turn once per round, evenly spread."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.watcher.republish_schedule import compute_republish_offset, select_due

uids = st.lists(st.uuids().map(str), max_size=50, unique=True)


@given(uids, st.lists(st.floats(0, 1), max_size=30))
def test_each_uid_has_exactly_one_turn_however_the_round_is_cut(names, cuts):
    steps = [0.0, *sorted(cuts), 1.0]
    turns = [uid for since, until in pairwise(steps) for uid in select_due(names, since=since, until=until)]
    assert sorted(turns) == sorted(names)


@given(st.text())
def test_every_uid_has_a_place_within_the_round(uid):
    assert 0.0 <= compute_republish_offset(uid) < 1.0


def test_a_thousand_nodes_are_spread_so_that_no_second_of_five_minutes_has_a_crowd():
    names = [f"6f1c0a5e-3b1d-4f0a-9c55-{n:012x}" for n in range(1000)]
    crowds = [len(select_due(names, since=s / 300, until=(s + 1) / 300)) for s in range(300)]
    assert sum(crowds) == 1000
    assert max(crowds) <= 15  # 3.3 on average
