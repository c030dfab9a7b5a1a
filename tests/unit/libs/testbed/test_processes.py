"""Processes of the testbed: forked or not they end with who started them, and no port is given twice."""

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libs.testbed.child_process import ChildProcess
from libs.testbed.fork_server import ForkServer
from libs.testbed.ports import allocate_port, release_ports
from libs.testbed.service_processes import ServiceProcesses, keep_running
from libs.testbed.talos_pki import TalosPki
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


async def test_the_error_of_a_restart_ends_the_block(tmp_path: Path):
    services = ServiceProcesses()
    ended = services.children["csr"] = ChildProcess.start("csr", ["true"], tmp_path)
    await ended.wait()
    with pytest.raises(KeyError, match="csr"):  # nothing tells how to start it
        async with keep_running(services) as restarted:
            await wait_until(lambda: restarted == ["csr"], "the restart is tried")


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

    await wait_until(lambda: read_state(pid) in ("", "Z"), "dead with its parent", 20)


def test_no_port_of_a_process_is_handed_out_by_another_one():
    program = (
        "import random; from libs.testbed.ports import allocate_port; random.seed(5); print(allocate_port())"
    )
    state = random.getstate()
    try:
        random.seed(5)
        ours = allocate_port()
    finally:
        random.setstate(state)
    theirs = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(theirs.stdout) != ours


def test_no_port_is_handed_out_twice_even_before_its_server_listens():
    state = random.getstate()
    try:
        random.seed(4)
        first = allocate_port()
        random.seed(4)
        assert allocate_port() != first
    finally:
        random.setstate(state)


def list_reservations() -> set[str]:
    """The reservations that the kernel knows, of all processes."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return {line.rpartition("-")[2] for line in lines if "@talos-ccm-port-" in line}


def test_the_ports_of_a_block_are_released_at_its_end_and_no_others():
    kept = allocate_port()
    with release_ports():
        ports = [allocate_port() for _ in range(3)]
        assert {str(port) for port in (kept, *ports)} <= list_reservations()
    left = list_reservations()
    assert str(kept) in left
    assert not left & {str(port) for port in ports}


def test_a_key_of_the_testbed_is_for_its_owner_alone(tmp_path: Path):
    pki = TalosPki(tmp_path, ["127.0.0.1"])
    pki.rotate()
    assert (tmp_path / "server.key").stat().st_mode & 0o077 == 0
