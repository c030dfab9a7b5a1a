"""The options of the demo, and whether they conflict. Pure."""

from pathlib import Path
from typing import Final, Literal

import msgspec

MAX_NODES: Final = 5000  # make_machines has addresses for more, but this computer is too slow
DEFAULT_RATE: Final = 8.0  # nodes per second: slow enough to watch
MAX_REAL_TALOS_NODES: Final = 50  # each has an apid of its own, with 25 MB of memory


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the demo."""

    nodes: int = 20
    real: bool = False
    real_talos: bool = False
    bus: Literal["nats", "memory"] = "nats"
    all_in_one: bool | None = None  # None = by the bus
    exit_when_ready: bool = False
    rate: float | None = None  # nodes per second; None = by exit_when_ready
    patience_seconds: float = 120
    keep_logs: Path | None = None
    cloud_config: Path | None = None

    @property
    def is_single_process(self) -> bool:
        """Whether all services share a process, which the memory bus requires."""
        return self.bus == "memory" if self.all_in_one is None else self.all_in_one

    @property
    def pause_seconds(self) -> float:
        """The time between two nodes that join; 0 = none."""
        if self.rate is None:
            return 0.0 if self.exit_when_ready else 1 / DEFAULT_RATE
        return 1 / self.rate

    @property
    def ready_timeout_seconds(self) -> float:
        """How long all nodes may take to become ready: the patience begins when the last one joins."""
        return self.patience_seconds + self.nodes * self.pause_seconds

    @property
    def option_conflict(self) -> str:
        """Return why the options conflict; "" if they do not."""
        if self.bus == "memory" and not self.is_single_process:
            return (
                "--bus memory conflicts with --separate: the memory bus exists within one process only; "
                "remove one of the two options"
            )
        if self.real_talos and self.nodes > MAX_REAL_TALOS_NODES:
            return (
                f"--real-talos conflicts with --nodes {self.nodes}: each node has an API server of its own; "
                f"use --nodes {MAX_REAL_TALOS_NODES} or less"
            )
        return ""


def suggest_next_runs(options: DemoOptions, *, all_ready: bool) -> list[tuple[str, str]]:
    """Return commands or options to try next, with their purpose; never those of this run."""
    if not all_ready:
        longer = f"--patience {2 * options.patience_seconds:g}"
        return [(longer, "wait longer"), ("--keep-logs DIRECTORY", "keep the logs of all parts")]
    runs = [
        (options.bus == "nats", 'make demo ARGS="--bus memory"', "all services in one process, no NATS"),
        (options.bus != "nats", "make demo", "one process per service, over NATS"),
        (not options.real, "make demo ARGS=--real", "the real control plane, built first"),
        (not options.real_talos, "make demo ARGS=--real-talos", "Talos's own API server, built first"),
        (not options.cloud_config, 'make demo ARGS="--cloud-config=FILE"', "see the results of your rules"),
        (options.nodes < 500 and not options.real_talos, 'make demo ARGS="--nodes 500"', "more nodes"),
    ]
    return [(command, purpose) for is_new, command, purpose in runs if is_new]
