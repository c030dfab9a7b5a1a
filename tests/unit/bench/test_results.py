"""Results of the bench: encoding, tables, comparison; invalid arguments of its command."""

import math
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console, RenderableType

from libs.testbed.command_channel import CommandRejected
from tests.bench.__main__ import main
from tests.bench.figures import BenchRun
from tests.bench.measurement import Measurement
from tests.bench.options import BenchOptions
from tests.bench.results import (
    BenchResults,
    HostInfo,
    InvalidResults,
    decode_results,
    encode_results,
)
from tests.bench.run_bench import measure_run, plan_runs

HOST = HostInfo(processor="P", cores=2, memory_gb=8, python="3.11", kubernetes="v1", load_before=0.1)
WANTED = BenchOptions()


def results(*runs: BenchRun, host: HostInfo = HOST, wanted: BenchOptions = WANTED) -> BenchResults:
    return BenchResults(begun_at=datetime(2026, 1, 2, tzinfo=UTC), host=host, wanted=wanted, runs=runs)


def a_burst(number: int = 1, *, problems: tuple[str, ...] = (), **figures: float) -> BenchRun:
    return BenchRun(scenario="burst", mode="separate", number=number, figures=figures, problems=problems)


def text_of(shown: RenderableType, width: int = 200) -> str:
    console = Console(width=width, record=True, file=None, quiet=False, color_system=None)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


def row(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if name in line)
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_encoded_results_can_be_decoded_and_contain_the_medians():
    written = results(a_burst(1, seconds=1.0, nothing=math.nan), a_burst(2, seconds=3.0))
    text = encode_results(written)
    assert decode_results(text).runs[0].figures == {"seconds": 1.0}
    assert msgspec.json.decode(text)["medians"] == {"burst separate": {"seconds": 2.0}}


def test_a_file_of_another_kind_is_rejected_with_the_reason():
    with pytest.raises(InvalidResults, match="not a result of this bench"):
        decode_results(b'{"a": 1}')


def test_modes_alternate_within_a_scenario_and_every_second_round_is_reversed():
    wanted = BenchOptions(scenarios=("burst",), modes=("separate", "all-in-one-memory"), runs=2)
    assert [(mode, number) for _, mode, number in plan_runs(wanted)] == [
        ("separate", 1),
        ("all-in-one-memory", 1),
        ("all-in-one-memory", 2),
        ("separate", 2),
    ]


@pytest.mark.parametrize("groups", [0, 1, 2], ids=["alone", "beside our services", "in a group of groups"])
async def test_a_run_in_which_kube_apiserver_keeps_rejecting_requests_has_that_problem(groups: int):
    rejected = CommandRejected("kubelets rejected beat: 429: too many requests")
    raised: Exception = rejected
    for _ in range(groups):
        raised = ExceptionGroup("tasks", [raised])
    stage: Any = None

    async def reject(_: Measurement) -> BenchRun:
        raise raised

    measuring = Measurement(stage=stage, options=WANTED, mode="all-in-one-memory", number=1, name="n")
    run = await measure_run(measuring, "steady", reject)
    assert (run.figures, run.problems) == ({}, (str(rejected),))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bursts"], "'bursts' is not one of"),
        (["--mode", "alone"], "'alone' is not one of"),
        (["--runs", "0"], "0 is not in the range"),
        (["--compare", "nowhere.json"], "does not exist"),
        (["--json", "/proc/nowhere/results.json"], "--json /proc/nowhere/results.json: No such file"),
        (["--fast"], "No such option"),
        (["--against", "nowhere"], "'nowhere' does not exist"),
        (["--against", __file__], f"{__file__}: not executable; run: chmod +x {__file__}"),
        (["steady", "--against", sys.executable], "requires one of the scenarios burst, single"),
        (["--mode", "against-tuned"], "--mode against-tuned requires --against PROGRAM"),
        (["--keep-logs", str(Path(__file__).parent)], "name an empty or a new directory"),
    ],
)
def test_a_wrong_argument_is_named(arguments: list[str], words: str):
    answer = CliRunner().invoke(main, arguments)
    assert answer.exit_code == 2
    assert words in answer.output
