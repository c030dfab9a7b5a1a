"""Every input ends in a value or in an error that the parser documents; `make fuzz` searches longer."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
