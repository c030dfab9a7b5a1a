"""The wall clock of a process that runs under chaos jumps, and that of no other process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from libs.testbed.service_start import PROCESS_NAME, ROOT
from tests.chaos.clocks import CLOCK_MODULE, build_clock_environment, set_clock_offset

# Prints, for each line that it reads, how far its clocks are from that line's time.
PROGRAM = """
import sys, time
from tests.chaos.clocks import install
install()
from libs.common.clocks import utc_now
for line in sys.stdin:
    clocks = utc_now().timestamp(), time.time(), time.time_ns() / 1e9
    print(*(clock - float(line) for clock in clocks), flush=True)
"""
READS = re.compile(r"\bdatetime\.(?:now|utcnow|today)\(|\btime\.time(?:_ns)?\b")


def list_offsets(child: "subprocess.Popen[str]", now: float) -> list[int]:
    """How far all clocks of the program are from `now`, rounded to hours, in seconds."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{now}\n")
    child.stdin.flush()
    return [3600 * round(float(word) / 3600) for word in child.stdout.readline().split()]


def test_the_clock_of_one_process_jumps_both_ways_and_keeps_its_offset_over_a_restart(tmp_path: Path):
    environment = os.environ | dict(build_clock_environment(tmp_path))
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=environment | {PROCESS_NAME: name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("csr", "ipam")
    ]
    now = (tmp_path / "clocks").stat().st_mtime
    with started[0] as csr, started[1] as ipam:
        assert list_offsets(csr, now) == list_offsets(ipam, now) == [0, 0, 0]
        for seconds in (3600, -3600, 0, 3600):
            set_clock_offset(tmp_path, "csr", seconds)
            assert list_offsets(csr, now) == [seconds] * 3
            assert list_offsets(ipam, now) == [0, 0, 0]
    again = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment | {PROCESS_NAME: "csr"},
        input=f"{now}\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert [round(float(word) / 3600) for word in again.stdout.split()] == [1, 1, 1]


def test_a_process_without_such_a_clock_cannot_be_set(tmp_path: Path):
    build_clock_environment(tmp_path)
    with pytest.raises(FileNotFoundError):
        set_clock_offset(tmp_path, "csr", 3600)


def test_one_module_of_the_services_reads_the_wall_clock():
    files = [
        path
        for folder in ("libs/common", "libs/talos", "services")
        for path in (ROOT / folder).rglob("*.py")
        if READS.search(path.read_text())
    ]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files}
    # `tests/chaos/clocks.py` replaces these functions of `time` for every module.
    of_module_time = {"libs.common.bus.consumer_middleware", "libs.common.observability.tracing"}
    assert modules - of_module_time == {CLOCK_MODULE}
