"""Processes and directories of a run end with who started them, and no port is given twice."""

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libs.testbed.child_process import ChildProcess
from libs.testbed.fork_server import ForkServer
from libs.testbed.ports import allocate_port
from libs.testbed.run_directory import open_run_directory
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills the children of a killed parent")
async def test_children_die_with_a_parent_that_is_killed(tmp_path: Path):
    program = (
        "import pathlib, sys, time\n"
        "from libs.testbed.child_process import ChildProcess\n"
        f"child = ChildProcess.start('sleeper', ['sleep', '600'], pathlib.Path({str(tmp_path)!r}))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[4]
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert read_state(pid) not in ("", "Z")
    parent.kill()
    await parent.wait()

    await wait_until(lambda: read_state(pid) in ("", "Z"), "dead with its parent")


def test_no_port_is_handed_out_twice_even_before_its_server_listens_or_by_another_process():
    program = (
        "import random; from libs.testbed.ports import allocate_port; random.seed(5); print(allocate_port())"
    )
    state = random.getstate()
    try:
        random.seed(5)
        ours = allocate_port()
        random.seed(5)
        assert allocate_port() != ours
    finally:
        random.setstate(state)
    theirs = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(theirs.stdout) != ours


# ---- directories


LONG_AGO = 1_000_000_000


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def abandon(parent: Path, name: str) -> Path:
    """The directory of a run that was killed."""
    directory = parent / name
    (directory / "pki").mkdir(parents=True)
    for file in ("pki/ca.key", "admin.kubeconfig", "talosconfig", "a.log"):
        (directory / file).touch()
    return directory


def names(parent: Path) -> set[str]:
    return {each.name for each in parent.iterdir()}


def test_a_run_removes_its_directory_and_those_of_killed_runs_of_its_purpose(parent: Path):
    abandon(parent, "talos-ccm-demo-killed")
    abandon(parent, "talos-ccm-bench-killed")
    with open_run_directory("demo", None) as directory:
        assert names(parent) == {directory.name, "talos-ccm-bench-killed"}
        (directory / "ca.key").touch()
    assert names(parent) == {"talos-ccm-bench-killed"}


def test_what_is_not_abandoned_stays(parent: Path):
    """A run beside this one, one that has just created its directory, and links and files of such a name."""
    outside = abandon(parent, "somewhere-else")
    (parent / "talos-ccm-demo-link").symlink_to(outside)
    (parent / "talos-ccm-demo-file").touch()
    (parent / "talos-ccm-demo-fresh").mkdir()
    (parent / "talos-ccm-demo-old").mkdir()
    os.utime(parent / "talos-ccm-demo-old", (LONG_AGO, LONG_AGO))
    with open_run_directory("demo", None) as first:
        (first / "ca.key").touch()
        os.utime(first, (LONG_AGO, LONG_AGO))
        others = {"somewhere-else", *(f"talos-ccm-demo-{kind}" for kind in ("link", "file", "fresh"))}
        with open_run_directory("demo", None) as second:
            assert names(parent) == {first.name, second.name, *others}
        assert (first / "ca.key").exists()
    assert (outside / "pki" / "ca.key").exists()


def test_keys_go_first_and_go_even_if_the_rest_cannot(parent: Path, monkeypatch: pytest.MonkeyPatch):
    left = abandon(parent, "talos-ccm-demo-killed")

    def refuse(path: Path) -> None:
        raise OSError("the file system refuses")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(OSError, match="refuses"), open_run_directory("demo", None):
        found = {each.name for each in left.rglob("*")}
    assert found == {"pki", "a.log"}


def test_a_kept_directory_stays_and_is_no_temporary_one(parent: Path):
    with open_run_directory("demo", parent / "kept") as directory:
        (directory / "a.log").touch()
    assert names(parent) == {"kept"}


PROGRAM = """
import sys
import libs.testbed.patched_process, tests.bench.instrumentation
print(*(name for name in sys.modules if name.startswith(("libs.", "tests.", "services."))))
"""


def test_a_measured_process_imports_nothing_of_this_tree_but_its_patch():
    imported = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert sorted(imported.stdout.split()) == [
        "libs.testbed",
        "libs.testbed.patched_process",
        "tests.bench",
        "tests.bench.instrumentation",
    ]
