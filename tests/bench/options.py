"""The scenarios, modes and numbers of a bench; the flags of its command, and what must be rejected."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, get_args

import click
import msgspec
from msgspec import Meta

from libs.testbed.machine_facts import MAX_NODES

# How our services run, or with which flags the other controller (--against) runs.
Mode = Literal["all-in-one-memory", "all-in-one-nats", "separate", "against-tuned", "against-default"]
Scenario = Literal[
    "burst",
    "single",
    "steady",
    "change",
    "rules",
    "certificates",
    "soak",
]
F = TypeVar("F", bound=Callable[..., Any])

AGAINST_MODES: Final[tuple[Mode, ...]] = ("against-tuned", "against-default")
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
DEFAULT_MODES: Final[tuple[Mode, ...]] = ("all-in-one-memory", "separate")


class ScenarioSpec(NamedTuple):
    """What the command and the tables know of a scenario."""

    title: str  # a format of the fields of BenchOptions, and of `pace`, `asking` and `pods`
    is_default: bool = False
    is_comparable: bool = False  # --against measures it, too


SCENARIOS: Final[Mapping[Scenario, ScenarioSpec]] = {
    "burst": ScenarioSpec("{nodes} nodes join, {pace}{asking}{pods}", is_default=True, is_comparable=True),
    "single": ScenarioSpec(
        "{singles} nodes join, one after the other{asking}", is_default=True, is_comparable=True
    ),
    "steady": ScenarioSpec("{steady_nodes} initialized nodes send heartbeats", is_default=True),
    "change": ScenarioSpec("the address of a machine changes {changes} times", is_default=True),
    "rules": ScenarioSpec(
        "a rule for most of {rule_nodes} nodes changes {rule_changes} times", is_default=True
    ),
    "certificates": ScenarioSpec("{certificate_nodes} ready nodes request their certificate at once"),
    "soak": ScenarioSpec("{soak_nodes} nodes, {soak_hours} simulated hours of {soak_hour_seconds:g} s"),
}


def _count(description: str, *, least: int = 1, most: int = MAX_NODES) -> Meta:
    return Meta(description=description, ge=least, le=most)


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line; the results contain them, so that a comparison shows differences.

    Each field with a description is a flag.
    """

    scenarios: tuple[Scenario, ...] = tuple(name for name, spec in SCENARIOS.items() if spec.is_default)
    modes: tuple[Mode, ...] = DEFAULT_MODES
    runs: Annotated[int, _count("Runs of each scenario; the tables show medians.", most=100)] = 3
    nodes: Annotated[int, _count("burst: nodes that join.")] = 1000
    concurrency: Annotated[int, _count("Joins or requests at once; 0 = all.", least=0)] = 64
    singles: Annotated[int, _count("single: nodes that join, one after the other.")] = 100
    steady_nodes: Annotated[int, _count("steady: nodes that send heartbeats.")] = 200
    steady_seconds: Annotated[float, Meta(description="steady: duration.", ge=1)] = 15
    heartbeat_seconds: Annotated[
        float, Meta(description="steady: interval between two heartbeats of a node.", ge=0.1)
    ] = 10
    changes: int = 50
    rule_nodes: int = 1000
    rule_changes: int = 3
    certificates: Annotated[
        bool,
        Meta(
            description="burst, single: each kubelet also requests a serving certificate, which our services "
            "approve."
        ),
    ] = False
    pod_cidrs: Annotated[
        bool,
        Meta(description="burst: each node also gets dual-stack pod CIDRs, from ipam."),
    ] = False
    certificate_nodes: Annotated[int, _count("certificates: nodes that request certificates.")] = 2000
    soak_nodes: Annotated[int, _count("soak: nodes.", least=10)] = 50
    soak_hours: Annotated[int, _count("soak: simulated hours.", most=10_000)] = 24
    soak_hour_seconds: Annotated[
        float, Meta(description="soak: seconds of a simulated hour; 3600 = no simulation.", ge=1)
    ] = 25
    against: Path | None = None
    patience: Annotated[
        float,
        Meta(
            description="Longest wait for nodes to lose their taint and for certificates to be issued, in "
            "seconds.",
            ge=1,
        ),
    ] = 300
    keep_logs: Path | None = None


def add_flags(command: F) -> F:
    """A flag of the command for each field of BenchOptions with a description."""
    for field in reversed(msgspec.structs.fields(BenchOptions)):
        kind, *notes = get_args(field.type) or (field.type,)
        meta = next((note for note in notes if isinstance(note, Meta)), None)
        if meta is None:
            continue
        ranges: dict[Any, Any] = {int: click.IntRange, float: click.FloatRange}
        parse = ranges[kind](meta.ge, meta.le) if kind in ranges else None
        command = click.option(
            f"--{field.name.replace('_', '-')}",
            is_flag=kind is bool,
            type=parse,
            default=field.default,
            show_default=kind is not bool,
            help=meta.description,
        )(command)
    return command


def make_options(options: dict[str, Any]) -> BenchOptions:
    """The options of a bench. Raises UsageError with the reason."""
    scenarios = tuple(dict.fromkeys(options["scenarios"])) or BenchOptions().scenarios
    modes = tuple(dict.fromkeys(options["modes"])) or DEFAULT_MODES
    if (program := options["against"]) is not None:
        if not os.access(program, os.X_OK):
            raise click.UsageError(f"--against {program}: not executable; run: chmod +x {program}")
        if not any(SCENARIOS[scenario].is_comparable for scenario in scenarios):
            comparable = [name for name, spec in SCENARIOS.items() if spec.is_comparable]
            raise click.UsageError(f"--against requires one of the scenarios {', '.join(comparable)}")
        if not options["modes"]:
            modes += AGAINST_MODES
    elif against := next((mode for mode in modes if mode in AGAINST_MODES), None):
        raise click.UsageError(f"--mode {against} requires --against PROGRAM")
    if (logs := options["keep_logs"]) and logs.is_dir() and any(logs.iterdir()):
        # etcd would continue with the Nodes of the run before
        raise click.UsageError(f"--keep-logs {logs}: contains files; name an empty or a new directory")
    return BenchOptions(**options | {"scenarios": scenarios, "modes": modes})


def check_writable(option: str, file: Path) -> None:
    """Make the folder of a file that will be written. Raises UsageError if that is impossible."""
    try:  # before the run: an error at the end would lose all results
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"{option} {file}: {error.strerror}") from None
