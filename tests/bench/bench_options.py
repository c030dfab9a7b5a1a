"""The scenarios, modes and numbers of a bench."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

# How our services run, or with which flags the other controller (--against) runs.
Mode = Literal["all-in-one-memory", "all-in-one-nats", "separate", "against-tuned", "against-default"]
Scenario = Literal[
    "burst",
    "single",
    "steady",
    "change",
    "rules",
    "certificates",
    "early",
    "pod-cidrs-killed",
    "leader-killed",
    "scale",
    "soak",
]

AGAINST_MODES: Final[tuple[Mode, ...]] = ("against-tuned", "against-default")
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
DEFAULT_MODES: Final[tuple[Mode, ...]] = ("all-in-one-memory", "separate")
SCENARIOS: Final[tuple[Scenario, ...]] = get_args(Scenario)
NATS_MODES: Final[tuple[Mode, ...]] = ("separate", "all-in-one-nats")
# Scenarios that kill one of several processes: the others run in every mode.
MODES_OF: Final[Mapping[Scenario, tuple[Mode, ...]]] = {
    "pod-cidrs-killed": ("separate",),
    "leader-killed": NATS_MODES,
}
COMPARABLE: Final[tuple[Scenario, ...]] = (
    "burst",
    "single",
    "scale",
)  # scenarios that --against measures, too
DEFAULT_SCENARIOS: Final[tuple[Scenario, ...]] = ("burst", "single", "steady", "change", "rules")


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line; the results contain them, so that a comparison shows differences."""

    scenarios: tuple[Scenario, ...] = DEFAULT_SCENARIOS
    modes: tuple[Mode, ...] = DEFAULT_MODES
    runs: int = 3
    nodes: int = 1000
    concurrency: int = 64
    per_second: float = 0
    singles: int = 100
    steady_nodes: int = 200
    steady_seconds: float = 15
    heartbeat_seconds: float = 10
    changes: int = 50
    rule_nodes: int = 1000
    rule_changes: int = 3
    certificates: bool = False  # burst, single: each kubelet also requests its certificate
    certificate_nodes: int = 2000
    sizes: tuple[int, ...] = (100, 300, 1000, 3000, 5000)
    soak_nodes: int = 50
    soak_hours: int = 24
    soak_hour_seconds: float = 25
    soak_faults: int | None = None  # the seed of random faults; None: four in turn
    lease_seconds: int = 15  # leader-killed: the default of the watcher
    pod_cidrs: bool = False  # burst: nodes also get pod CIDRs, compared with the burst without
    against: Path | None = None
    patience_seconds: float = 300
    profile: Path | None = None
    keep_logs: Path | None = None
