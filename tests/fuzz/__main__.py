"""`make fuzz`: one coverage-guided search after the other, each in a process of its own."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.fuzz.table import SAMPLES, TARGETS, seeds_of

_SECONDS = 20
_UNIT_SECONDS = 10  # an input that takes longer is a finding
_MEMORY_MIB = 1024  # of the process
_PROGRESS_SECONDS = 5.0


def main(arguments: Sequence[str]) -> int:
    """Return 1 if an input broke a parser, 130 after Ctrl-C, else 0."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="default: all of them")
    parser.add_argument("--seconds", type=int, default=_SECONDS, help=f"per target (default: {_SECONDS})")
    given = parser.parse_args(arguments)
    found: list[Path] = []
    for name in given.target or TARGETS:
        print(f"{name}: {given.seconds} s", flush=True)
        try:
            found += search(name, given.seconds)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            return 130
    for path in found:
        print(f"found: {path}\n  fix the parser; tests/fuzz/test_targets.py replays the file", flush=True)
    return 1 if found else 0


def search(name: str, seconds: int) -> list[Path]:
    """Search in a child process; return the files of what it found. Ctrl-C ends the child, too."""
    samples = SAMPLES / name
    samples.mkdir(parents=True, exist_ok=True)
    before = set(samples.iterdir())
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{name}-") as folder:
        for number, seed in enumerate((*seeds_of(name), *(path.read_bytes() for path in before))):
            (Path(folder) / str(number)).write_bytes(seed)
        flags = (
            f"-max_total_time={seconds}",
            f"-max_len={min(TARGETS[name].max_bytes, 2**16)}",
            f"-timeout={_UNIT_SECONDS}",
            f"-rss_limit_mb={_MEMORY_MIB}",
            f"-artifact_prefix={samples}{os.sep}",
        )
        command = (sys.executable, "-m", "tests.fuzz.coverage_guided", name, *flags, folder)
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as child:
            try:
                assert child.stderr is not None
                print_progress(child.stderr)
                child.wait()
            except BaseException:
                child.send_signal(signal.SIGTERM)
                child.wait()
                raise
    found = sorted(set(samples.iterdir()) - before)
    if child.returncode and not found:
        raise SystemExit(f"{name}: the search ended with status {child.returncode} and without a finding")
    if not any(samples.iterdir()):
        samples.rmdir()
    return found


def print_progress(lines: Iterable[str]) -> None:
    """Print libFuzzer's output, a status line every few seconds, and not its dictionary."""
    printed_at, is_dictionary = float("-inf"), False
    for line in lines:
        if line.startswith("######"):
            is_dictionary = "End" not in line
        elif line.startswith("#") and "DONE" not in line:
            if time.monotonic() - printed_at > _PROGRESS_SECONDS:
                printed_at = time.monotonic()
                print(f"  {line}", end="", flush=True)
        elif not is_dictionary and not line.startswith(("INFO: ", "WARNING: ")):
            print(f"  {line}", end="", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background
    sys.exit(main(sys.argv[1:]))
