"""The scenarios, modes and numbers of a bench."""

from pathlib import Path
from typing import Final, Literal

import msgspec

Mode = Literal["all-in-one-memory", "all-in-one-nats", "separate"]
Scenario = Literal[
    "burst", "single", "steady", "change", "rules", "certificates", "early", "pod-cidrs-killed"
]

MODES: Final[tuple[Mode, ...]] = ("all-in-one-memory", "all-in-one-nats", "separate")
DEFAULT_MODES: Final[tuple[Mode, ...]] = ("all-in-one-memory", "separate")
SCENARIOS: Final[tuple[Scenario, ...]] = (
    "burst",
    "single",
    "steady",
    "change",
    "rules",
    "certificates",
    "early",
    "pod-cidrs-killed",
)
SEPARATE: Final[tuple[Scenario, ...]] = (
    "pod-cidrs-killed",
)  # only in that mode: the bench kills one of several processes
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
    pod_cidrs: bool = False  # burst: nodes also get pod CIDRs, compared with the burst without
    patience_seconds: float = 300
    profile: Path | None = None
    keep_logs: Path | None = None
