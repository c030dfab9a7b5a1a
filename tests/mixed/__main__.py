"""`python -m tests.mixed REVISION`: integration scenarios with old and new processes mixed."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from libs.testbed.older_tree import PROCESSES, TREE, extract_commit, find_commit
from tests.mixed.versions import VersionSet, version_sets

ROOT: Final = Path(__file__).parents[2]


def main(arguments: Sequence[str]) -> int:
    """Run the sets that the arguments name; 0 when all of them pass."""
    parser = argparse.ArgumentParser(prog="make test-mixed", description=__doc__)
    parser.add_argument("old", metavar="OLD", nargs="?", default="", help="git revision of the old processes")
    parser.add_argument("--sets", default="", help="names of sets, comma-separated; default: all of them")
    given = parser.parse_args(arguments)
    chosen = [each for each in version_sets() if not given.sets or each.name in given.sets.split(",")]
    unknown = set(filter(None, given.sets.split(","))) - {each.name for each in chosen}
    if unknown:
        known = ", ".join(each.name for each in version_sets())
        parser.error(f"unknown sets: {', '.join(sorted(unknown))}; there are: {known}")
    if not given.old:
        parser.error("OLD is missing: make test-mixed OLD=<git revision>")
    commit = find_commit(ROOT, given.old)
    if commit is None:
        parser.error(f"OLD={given.old} is no commit of this repository")
    signal.signal(signal.SIGTERM, _interrupt)
    with tempfile.TemporaryDirectory(prefix="talos-ccm-mixed-") as folder:
        extract_commit(ROOT, commit, Path(folder))
        return run_all(chosen, Path(folder))


def run_all(sets: Sequence[VersionSet], old_tree: Path) -> int:
    """Run one set after the other, and report each; 1 when one fails."""
    results = []
    for each in sets:
        began = time.monotonic()
        print(f"==== {each.name}: old are {', '.join(each.old)}", flush=True)  # noqa: T201 - the command's output
        status = _run(each, old_tree)
        results.append((each.name, status, time.monotonic() - began))
    for name, status, seconds in results:
        print(f"{name:16} {'passed' if status == 0 else 'FAILED'} {seconds:6.0f} s")  # noqa: T201
    return int(any(status for _, status, _ in results))


def _run(versions: VersionSet, old_tree: Path) -> int:
    environment = {**os.environ, TREE: str(old_tree), PROCESSES: ",".join(versions.old)}
    argv = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *versions.scenarios]
    return subprocess.run(argv, cwd=ROOT, env=environment, check=False).returncode


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
