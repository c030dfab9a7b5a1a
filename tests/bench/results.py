"""The results of a bench: options, environment and every run, as --json writes them."""

import os
import platform
import re
from collections.abc import Collection
from datetime import datetime
from pathlib import Path

import msgspec

from libs.testbed.control_plane.build import KUBE
from tests.bench.figures import BenchRun
from tests.bench.options import BenchOptions, Scenario


class HostInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the versions that the figures depend on."""

    processor: str
    cores: int
    memory_gb: float
    python: str
    kubernetes: str
    load_before: float  # load average of the minute before the bench; other load makes every figure worse


def read_host() -> HostInfo:
    """Read it (Linux)."""
    model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    version = re.search(r"gitVersion=(\S+)", KUBE.ldflags)
    return HostInfo(
        processor=model[1] if model else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(int(memory[1]) / 1e6, 1) if memory else 0.0,
        python=platform.python_version(),
        kubernetes=version[1] if version else "unknown",
        load_before=round(os.getloadavg()[0], 2),
    )


class BenchResults(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of a bench, with their options and environment."""

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


def encode_results(results: BenchResults) -> bytes:
    """The JSON of all runs."""
    return msgspec.json.format(msgspec.json.encode(results, enc_hook=str), indent=2)


def decode_results(text: bytes) -> BenchResults:
    """Decode the JSON of `encode_results`. Raises msgspec.DecodeError."""
    # The hook decodes a Path, which msgspec does not support.
    return msgspec.json.decode(text, type=BenchResults, dec_hook=lambda kind, value: kind(value))


def select_scenarios(results: BenchResults, scenarios: Collection[Scenario]) -> BenchResults:
    """Only the runs of these scenarios; all runs if `scenarios` is empty."""
    runs = tuple(run for run in results.runs if not scenarios or run.scenario in scenarios)
    return msgspec.structs.replace(results, runs=runs)
