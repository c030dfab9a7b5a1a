"""The results of a bench: options, environment and every run, as --json writes them."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

import msgspec

from tests.bench.bench_options import BenchOptions, Scenario
from tests.bench.figures import BenchRun, summarize_runs
from tests.bench.host import HostInfo

FORMAT: Final = 1


class BenchResults(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of a bench, with their options and environment."""

    format: int = FORMAT
    begun_at: datetime
    host: HostInfo
    wanted: BenchOptions
    runs: tuple[BenchRun, ...]
    complete: bool = True  # False: it was interrupted

    @property
    def problems(self) -> tuple[str, ...]:
        """The promises that did not hold, each with its run."""
        return tuple(
            f"{run.scenario}, {run.mode}, run {run.number}: {problem}"
            for run in self.runs
            for problem in run.problems
        )


class InvalidResults(ValueError):
    """The file is not a result of this bench."""


def encode_results(results: BenchResults) -> bytes:
    """The JSON of all runs, and of the medians for other programs. It contains no NaN."""
    medians: dict[str, Any] = {
        f"{scenario} {mode}": {name: summary.median for name, summary in figures.items()}
        for (scenario, mode), figures in summarize_runs(results.runs).items()
    }
    return msgspec.json.format(
        msgspec.json.encode({**msgspec.to_builtins(_remove_nan(results), enc_hook=str), "medians": medians}),
        indent=2,
    )


def decode_results(text: bytes) -> BenchResults:
    """Decode the JSON of `encode_results`. Raises InvalidResults with the reason."""
    try:
        results = msgspec.json.decode(text, type=BenchResults, dec_hook=_decode_path)
    except msgspec.DecodeError as error:
        raise InvalidResults(f"not a result of this bench: {error}") from error
    if results.format != FORMAT:
        raise InvalidResults(f"results of format {results.format}; this bench supports {FORMAT}")
    return results


def _decode_path(kind: type, value: Any) -> Any:
    return kind(value)  # a Path, which msgspec does not support


def select_scenarios(results: BenchResults, scenarios: Collection[Scenario]) -> BenchResults:
    """Only the runs of these scenarios; all runs if `scenarios` is empty."""
    runs = tuple(run for run in results.runs if not scenarios or run.scenario in scenarios)
    return msgspec.structs.replace(results, runs=runs)


def _remove_nan(results: BenchResults) -> BenchResults:
    """The results without figures that are NaN."""
    runs = tuple(
        msgspec.structs.replace(run, figures={n: v for n, v in run.figures.items() if v == v})  # noqa: PLR0124
        for run in results.runs
    )
    return msgspec.structs.replace(results, runs=runs)
