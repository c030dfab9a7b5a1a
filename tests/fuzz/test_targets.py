"""Every input ends in a value or in an error that the parser documents; `make fuzz` searches longer."""

import tracemalloc
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common.contract import events
from libs.common.kube.watch_events import Changed, decode_watch_event
from tests.builders import make_node_observed
from tests.fuzz.huge_inputs import make_huge_inputs
from tests.fuzz.kube_targets import REQUEST, RESOURCES
from tests.fuzz.mutations import mutate
from tests.fuzz.table import SAMPLES, TARGETS, seeds_of

REGRESSIONS = sorted(path for path in SAMPLES.glob("*/*") if path.is_file())


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_cost_little(name: str):
    for seed in seeds_of(name):
        TARGETS[name].fuzz_counted(seed)


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_an_input_that_once_failed_is_handled(path: Path):
    TARGETS[path.parent.name].fuzz_counted(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_a_changed_seed_is_a_value_or_a_declared_error(name: str):
    target, seeds = TARGETS[name], seeds_of(name)
    profile = settings.default
    assert profile is not None

    @given(chance=st.randoms(use_true_random=False), data=st.binary(max_size=200))
    @settings(max_examples=min(target.examples, profile.max_examples))
    def fuzz(chance: Random, data: bytes) -> None:
        changed = mutate(chance.choice(seeds), chance.choice((*seeds, data)), chance, target.max_bytes)
        target.fuzz_counted(changed)
        target.fuzz_counted(data)

    fuzz()


def test_each_folder_of_samples_belongs_to_a_target():
    assert {path.parent.name for path in REGRESSIONS} <= set(TARGETS)


_MEMORY_AT_LEAST = 8 * 2**20  # bytes at the peak, with the modules that an input imports
_MEMORY_PER_BYTE = 60


@pytest.mark.parametrize("name", TARGETS)
def test_a_huge_input_costs_a_bounded_number_of_calls(name: str):
    target = TARGETS[name]
    for data in (*make_huge_inputs()["any"].values(), *make_huge_inputs()[target.format].values()):
        target.fuzz_counted(data[: target.max_bytes])


@pytest.mark.parametrize("name", TARGETS)
def test_a_huge_input_costs_a_bounded_amount_of_memory(name: str):
    target = TARGETS[name]
    tracemalloc.start()
    try:
        for kind, data in make_huge_inputs()[target.format].items():
            cut = data[: target.max_bytes]
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            target.fuzz(cut)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < _MEMORY_AT_LEAST + _MEMORY_PER_BYTE * len(cut), kind
    finally:
        tracemalloc.stop()


def test_an_annotation_of_a_megabyte_is_not_published():
    event = decode_watch_event(
        make_huge_inputs()["json"]["annotation"], RESOURCES[0], REQUEST, lambda _: None
    )
    assert isinstance(event, Changed)
    assert len(events.encode(make_node_observed(event.item))) < 1024


@pytest.mark.parametrize("kind", ["annotations", "addresses"])
def test_a_node_with_ten_thousand_entries_is_too_large_for_a_message(kind: str):
    event = decode_watch_event(make_huge_inputs()["json"][kind], RESOURCES[0], REQUEST, lambda _: None)
    assert isinstance(event, Changed)
    with pytest.raises(events.EventError, match="the limit is"):
        events.encode(make_node_observed(event.item))
