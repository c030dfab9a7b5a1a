"""A bench's results as one value: what was wanted, on what, and every run. Its JSON is what --json writes."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

import msgspec

from bench.bench_options import BenchOptions, Scenario
from bench.figures import BenchRun, summarize_runs
from bench.host import HostInfo

FORMAT: Final = 1


class BenchResults(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was measured."""

    format: int = FORMAT
    begun_at: datetime
    host: HostInfo
    wanted: BenchOptions
    runs: tuple[BenchRun, ...]
    complete: bool = True  # False: it was told to end before all was measured

    @property
    def problems(self) -> tuple[str, ...]:
        """Promises that did not hold, each with the run in which it did not."""
        return tuple(
            f"{run.scenario}, {run.mode}, run {run.number}: {problem}"
            for run in self.runs
            for problem in run.problems
        )


class InvalidResults(ValueError):
    """A file is no result of this bench."""


def encode_results(results: BenchResults) -> bytes:
    """The runs, and for a reader without this program the medians too. No figure is NaN."""
    medians: dict[str, Any] = {
        f"{scenario} {mode}": {name: summary.median for name, summary in figures.items()}
        for (scenario, mode), figures in summarize_runs(results.runs).items()
    }
    return msgspec.json.format(
        msgspec.json.encode({**msgspec.to_builtins(_remove_nan(results), enc_hook=str), "medians": medians}),
        indent=2,
    )


def decode_results(text: bytes) -> BenchResults:
    """Read what `encode` wrote. Raises Unreadable, saying why."""
    try:
        results = msgspec.json.decode(text, type=BenchResults, dec_hook=_decode_path)
    except msgspec.DecodeError as error:
        raise InvalidResults(f"no results of this bench: {error}") from error
    if results.format != FORMAT:
        raise InvalidResults(f"results of format {results.format}; this bench reads {FORMAT}")
    return results


def _decode_path(kind: type, value: Any) -> Any:
    return kind(value)  # a Path, of which msgspec knows nothing


def select_scenarios(results: BenchResults, scenarios: Collection[Scenario]) -> BenchResults:
    """Only the runs of these scenarios; all of them if none is named."""
    runs = tuple(run for run in results.runs if not scenarios or run.scenario in scenarios)
    return msgspec.structs.replace(results, runs=runs)


def _remove_nan(results: BenchResults) -> BenchResults:
    """Without the figures that say nothing (NaN)."""
    runs = tuple(
        msgspec.structs.replace(run, figures={n: v for n, v in run.figures.items() if v == v})  # noqa: PLR0124
        for run in results.runs
    )
    return msgspec.structs.replace(results, runs=runs)
