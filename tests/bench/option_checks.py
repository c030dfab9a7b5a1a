"""The options of the command line: defaults that depend on one another, and what must be rejected."""

import os
from pathlib import Path
from typing import Any

import click

from libs.testbed.mixed_fleet import MAX_NODES
from tests.bench.bench_options import (
    AGAINST_MODES,
    COMPARABLE,
    DEFAULT_MODES,
    DEFAULT_SCENARIOS,
    MODES_OF,
    NATS_MODES,
    BenchOptions,
    Scenario,
)


def make_options(options: dict[str, Any]) -> BenchOptions:
    """The options of a bench. Raises UsageError with the reason."""
    scenarios = tuple(dict.fromkeys(options["scenarios"])) or DEFAULT_SCENARIOS
    modes = tuple(dict.fromkeys(options["modes"])) or DEFAULT_MODES
    for scenario, possible in MODES_OF.items():
        if scenario in scenarios and not {*possible} & {*modes}:
            raise click.UsageError(f"{scenario} requires --mode {' or '.join(possible)}")
    if options["soak_faults"] is not None and not {*modes} <= {*NATS_MODES}:
        raise click.UsageError(f"--soak-faults requires --mode {' or '.join(NATS_MODES)}")
    if options["against"] is not None:
        _check_against(options["against"], scenarios)
        if not options["modes"]:
            modes += AGAINST_MODES
    elif against := next((mode for mode in modes if mode in AGAINST_MODES), None):
        raise click.UsageError(f"--mode {against} requires --against PROGRAM")
    if options["keep_logs"] is not None:
        _check_empty("--keep-logs", options["keep_logs"])
    return BenchOptions(**options | {"scenarios": scenarios, "modes": modes})


def _check_against(program: Path, scenarios: tuple[Scenario, ...]) -> None:
    if not os.access(program, os.X_OK):
        raise click.UsageError(f"--against {program}: not executable; run: chmod +x {program}")
    if not {*scenarios} & {*COMPARABLE}:
        raise click.UsageError(f"--against requires one of the scenarios {', '.join(COMPARABLE)}")


def _check_empty(option: str, directory: Path) -> None:
    # etcd would continue with the Nodes of the run before
    if directory.is_dir() and any(directory.iterdir()):
        raise click.UsageError(f"{option} {directory}: contains files; name an empty or a new directory")


def check_writable(option: str, file: Path) -> None:
    """Make the folder of a file that will be written. Raises UsageError if that is impossible."""
    try:  # before the run: an error at the end would lose all results
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"{option} {file}: {error.strerror}") from None


def parse_sizes(text: str) -> tuple[int, ...]:
    """The sizes of --sizes in ascending order. Raises BadParameter."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or not all(1 <= size <= MAX_NODES for size in sizes):
        raise click.BadParameter(f"{text!r} is not a list such as 100,300,1000 (1 to {MAX_NODES} nodes)")
    return tuple(sorted({*sizes}))
