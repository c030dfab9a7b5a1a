"""A bench's results as one value: what was wanted, on what, and every run. Its JSON is what --json writes."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, Final

import msgspec

from bench.figures import Run, summaries
from bench.host import Host
from bench.wanted import Scenario, Wanted

FORMAT: Final = 1


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was measured."""

    format: int = FORMAT
    begun_at: datetime
    host: Host
    wanted: Wanted
    runs: tuple[Run, ...]
    complete: bool = True  # False: it was told to end before all was measured

    @property
    def problems(self) -> tuple[str, ...]:
        """Promises that did not hold, each with the run in which it did not."""
        return tuple(
            f"{run.scenario}, {run.mode}, run {run.number}: {problem}"
            for run in self.runs
            for problem in run.problems
        )


class Unreadable(ValueError):
    """A file is no result of this bench."""


def encode(results: Results) -> bytes:
    """The runs, and for a reader without this program the medians too. No figure is NaN."""
    medians: dict[str, Any] = {
        f"{scenario} {mode}": {name: summary.median for name, summary in figures.items()}
        for (scenario, mode), figures in summaries(results.runs).items()
    }
    return msgspec.json.format(
        msgspec.json.encode({**msgspec.to_builtins(_plain(results), enc_hook=str), "medians": medians}),
        indent=2,
    )


def decode(text: bytes) -> Results:
    """Read what `encode` wrote. Raises Unreadable, saying why."""
    try:
        results = msgspec.json.decode(text, type=Results, dec_hook=_path)
    except msgspec.DecodeError as error:
        raise Unreadable(f"no results of this bench: {error}") from error
    if results.format != FORMAT:
        raise Unreadable(f"results of format {results.format}; this bench reads {FORMAT}")
    return results


def _path(kind: type, value: Any) -> Any:
    return kind(value)  # a Path, of which msgspec knows nothing


def of_scenarios(results: Results, scenarios: Collection[Scenario]) -> Results:
    """Only the runs of these scenarios; all of them if none is named."""
    runs = tuple(run for run in results.runs if not scenarios or run.scenario in scenarios)
    return msgspec.structs.replace(results, runs=runs)


def _plain(results: Results) -> Results:
    """Without the figures that say nothing (NaN)."""
    runs = tuple(
        msgspec.structs.replace(run, figures={n: v for n, v in run.figures.items() if v == v})  # noqa: PLR0124
        for run in results.runs
    )
    return msgspec.structs.replace(results, runs=runs)
