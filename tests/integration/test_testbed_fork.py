"""A forked program behaves as one that a new Python runs, and ends with the process that started it."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libs.testbed.child_process import ChildExited, ChildProcess
from libs.testbed.child_process import wait_until as wait_for_child
from libs.testbed.fork_server import ForkServer
from libs.testbed.service_start import ROOT
from tests.bus_actors import wait_until

REPORT = """
import json, os, sys
print(json.dumps({
    "name": __name__, "arguments": sys.argv[1:], "directory": os.getcwd(),
    "leads": os.getpgid(0) == os.getpid(),
    "variables": {name: os.environ.get(name) for name in ("OURS", "OF_THE_TEST", "OF_THE_SERVER")},
    "preloaded": "xml.dom.minidom" in sys.modules, "descriptors": os.listdir("/proc/self/fd"),
}), flush=True)
"""
WAIT = "import time\nprint('waiting', flush=True)\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OF_THE_SERVER", "only")
        opened = ForkServer.open(tmp_path_factory.mktemp("fork-server"), "xml.dom.minidom")
        running = opened.__enter__()
    yield running
    opened.__exit__(None, None, None)


def start(server: ForkServer, run_dir: Path, program: str, *arguments: str, **env: str) -> ChildProcess:
    (run_dir / "program.py").write_text(program)
    return server.start("forked", "program", arguments, run_dir, env=env)


async def reported(child: ChildProcess) -> dict[str, Any]:
    assert await child.wait() == 0, child.tail()
    return dict(json.loads(child.tail(1)))


async def test_a_program_is_run_as_python_would_run_it_anew(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OF_THE_TEST", "now")
    report = await reported(start(server, tmp_path, REPORT, "--flag=1", "word", OURS="here"))
    descriptors = report.pop("descriptors")
    assert report == {
        "name": "__main__",
        "arguments": ["--flag=1", "word"],
        "directory": str(tmp_path),
        "leads": True,
        "variables": {"OURS": "here", "OF_THE_TEST": "now", "OF_THE_SERVER": None},
        "preloaded": True,
    }
    assert set(descriptors) <= {"0", "1", "2", "3"}  # 3 lists the descriptors


@pytest.mark.parametrize(
    ("program", "status"),
    [("", 0), ("raise SystemExit(3)", 3), ("raise RuntimeError('no such flux')", 1)],
    ids=["returns", "exits", "fails"],
)
async def test_the_exit_status_is_that_of_the_program(
    server: ForkServer, tmp_path: Path, program: str, status: int
):
    child = start(server, tmp_path, program)
    assert await child.wait() == status
    assert not child.is_running
    assert ("RuntimeError: no such flux" in child.tail()) is (status == 1)


async def test_a_program_that_ends_early_is_reported_with_its_log(server: ForkServer, tmp_path: Path):
    async def never() -> bool:
        return False

    child = start(server, tmp_path, "raise SystemExit('no such disk')")
    with pytest.raises(ChildExited, match=r"status 1[\s\S]*no such disk"):
        await wait_for_child(never, child, what="ready", seconds=30)


async def test_a_program_is_paused_resumed_and_stopped(server: ForkServer, tmp_path: Path):
    child = start(server, tmp_path, WAIT)
    await wait_until(lambda: "waiting" in child.tail(), "started")
    child.pause()
    assert read_state(child.pid) == "T"
    child.resume()
    await wait_until(lambda: read_state(child.pid) != "T", "resumed")
    await child.stop()
    assert child.process.returncode == -signal.SIGTERM
    await child.kill()  # no effect


async def test_programs_of_one_server_end_in_any_order(server: ForkServer, tmp_path: Path):
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    one, other = (start(server, folder, WAIT) for folder in folders)
    await other.kill()
    assert one.is_running
    assert other.process.returncode == -signal.SIGKILL
    await one.kill()


async def test_a_program_runs_the_sitecustomize_of_its_pythonpath(server: ForkServer, tmp_path: Path):
    folder = tmp_path / "customizing"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nprint('customized', sys.orig_argv[1:])\n")
    child = start(server, tmp_path, "print('main')", "word", PYTHONPATH=f"{ROOT}:{folder}")
    assert await child.wait() == 0
    assert child.tail() == "customized ['-m', 'program', 'word']\nmain"


async def test_programs_end_with_their_server(tmp_path: Path):
    with ForkServer.open(tmp_path) as own:
        child = start(own, tmp_path, WAIT)
        await wait_until(lambda: "waiting" in child.tail(), "started")
    await wait_until(lambda: read_state(child.pid) in ("", "Z"), "dead with its server")


def read_state(pid: int) -> str:
    """The state of the process in /proc, "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""
