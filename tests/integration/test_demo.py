"""`talos-ccm demo` as its user runs it: what it says, its exit status, and that nothing stays behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SECONDS = 90
_READY = "The cluster stays up"


# A shell starts its background jobs with SIGINT ignored, and what they start inherits that: a user's terminal
# does not, so neither does this demo.
_ON_A_TERMINAL = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def _demo(*flags: str) -> list[str]:
    return [sys.executable, "-c", _ON_A_TERMINAL, sys.executable, "-m", "cli", "demo", *flags]


@contextmanager
def _running(directory: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A demo whose temporary files are all below `directory`, and what it prints."""
    said = directory / "said"
    (directory / "tmp").mkdir()
    with said.open("w") as output:
        process = subprocess.Popen(
            _demo(*flags),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "TMPDIR": str(directory / "tmp")},
        )
        try:
            yield process, said
        finally:
            process.kill()
            process.wait()


def _until_said(words: str, said: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _SECONDS
    while words not in said.read_text():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.05)


def _processes_below(directory: Path) -> list[str]:
    """Command lines of the processes that work in a directory (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(directory) in str((entry / "cwd").readlink()):
                found.append((entry / "cmdline").read_text())
        except OSError:  # it ended meanwhile, or is not ours
            continue
    return found


@pytest.mark.parametrize("parts", [(), ("--real",)], ids=["simulated", "real"])
@pytest.mark.parametrize("how", ["--separate", "--all-in-one"])
def test_all_nodes_become_ready_and_nothing_stays_behind(
    tmp_path: Path, how: str, parts: tuple[str, ...]
) -> None:
    with _running(tmp_path, "--nodes=9", "--exit-when-ready", how, *parts) as (process, said):
        assert process.wait(_SECONDS) == 0, said.read_text()

    assert "9/9 ready" in said.read_text()
    assert "providerID: aws:///" in said.read_text()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert _processes_below(tmp_path / "tmp") == []


@pytest.mark.parametrize("when", ["nats-server", _READY])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_process_and_no_file(tmp_path: Path, number: signal.Signals, when: str) -> None:
    with _running(tmp_path, "--nodes=2") as (process, said):
        _until_said(when, said, process)
        process.send_signal(number)
        assert process.wait(_SECONDS) == 128 + number, said.read_text()

    assert "Traceback" not in said.read_text()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert _processes_below(tmp_path / "tmp") == []


def test_nodes_that_are_not_ready_in_time_are_named_and_make_the_status_1(tmp_path: Path) -> None:
    with _running(tmp_path, "--nodes=1000", "--patience=1", "--exit-when-ready") as (process, said):
        assert process.wait(_SECONDS) == 1, said.read_text()

    assert "NOT READY" in said.read_text()
    assert "patience was over" in said.read_text()
    assert "more" in said.read_text()  # only the first of them are listed


def test_a_directory_that_holds_an_earlier_run_is_refused(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "kubernetes").mkdir()

    with _running(tmp_path, "--nodes=1", "--exit-when-ready", f"--keep-logs={kept}") as (process, said):
        assert process.wait(_SECONDS) == 2

    assert f"--keep-logs {kept}: not empty" in said.read_text()
