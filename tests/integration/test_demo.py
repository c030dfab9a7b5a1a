"""`talos-ccm demo` as its user runs it: what it says, its exit status, and that nothing stays behind."""

import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from cli.doctor.command import CHECK_NAMES
from libs.common.contract.services import CONSOLE_PORT
from libs.testbed.child_process import HANG_SECONDS

_ROOT = Path(__file__).parents[2]
_STAYS = "The cluster runs until Ctrl-C"


# A shell starts its background jobs with SIGINT ignored, and what they start inherits that: a user's terminal
# does not, so neither does this demo.
_ON_A_TERMINAL = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Demo:
    """A demo that runs, whose temporary files are all below a directory of its own."""

    def __init__(self, process: subprocess.Popen[str], said: Path, files: Path) -> None:
        self.process = process
        self.files = files
        self._said = said

    def said(self) -> str:
        return self._said.read_text()

    def says(self, words: str) -> None:
        deadline = time.monotonic() + HANG_SECONDS
        while words not in self.said():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def ends(self, status: int) -> str:
        """Wait for its end, see that nothing stays behind, return what it said."""
        assert self.process.wait(HANG_SECONDS) == status, self.said()
        assert "Traceback" not in self.said()
        assert list(self.files.iterdir()) == []
        assert self.processes() == {}
        return self.said()

    def processes(self) -> dict[str, int]:
        """Command line and process id of all that work below its directory (Linux)."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and str(self.files) in str((entry / "cwd").readlink()):
                    found[(entry / "cmdline").read_text().replace("\0", " ")] = int(entry.name)
            except OSError:  # it ended meanwhile, or is not ours
                continue
        return found


@contextmanager
def a_demo(directory: Path, *flags: str, python: Path = Path(sys.executable)) -> Iterator[Demo]:
    files = directory / "tmp"
    files.mkdir()
    path = os.pathsep.join([str(_ROOT), sysconfig.get_path("purelib")])
    with (directory / "said").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _ON_A_TERMINAL, python, "-m", "cli", "demo", *flags],
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=_ROOT,
            env={**os.environ, "TMPDIR": str(files), "PYTHONPATH": path},
        )
        try:
            yield Demo(process, directory / "said", files)
        finally:
            process.kill()
            process.wait()


def tells_all(said: str, nodes: int) -> None:
    assert f"{nodes}/{nodes} ready\n" in said
    for hop in ("observed  by the watcher", "answered  by its machine", "ready     taint removed"):
        assert re.search(rf"{hop}( +[\d,]+ ms){{4}}", said), f"{hop} has no times: {said}"
    assert re.search(rf"{nodes} of {nodes} certificates issued \(p50 [\d,]+ ms, max [\d,]+ ms\)\n", said)
    assert "+ providerID aws:///" in said
    assert "- taint node.cloudprovider.kubernetes.io/uninitialized" in said
    assert "\x1b" not in said
    assert max(map(len, said.splitlines())) <= 80


def test_on_a_real_control_plane_all_nodes_become_ready_and_nothing_stays_behind(tmp_path: Path):
    with a_demo(tmp_path, "--nodes=9", "--exit-when-ready", "--real", "--all-in-one") as demo:
        said = demo.ends(0)

    tells_all(said, 9)
    assert "Try next" in said


def suggested(said: str) -> dict[str, str]:
    """The suggested commands by their label; rows without a label continue the one before."""
    found, label = {}, ""
    for row in re.finditer(r"^  (\S*) +(.+)$", said.partition(_STAYS)[2], re.MULTILINE):
        label = row[1] or f"{label} 2"
        found[label] = row[2]
    return found


def run(demo: Demo, command: str) -> subprocess.CompletedProcess[str]:
    """Run a suggested command as printed, in a shell that has only sourced the environment file."""
    first = suggested(demo.said())["first"]
    return subprocess.run(
        ["sh", "-c", f"{first} && {command}"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(demo.files.parent), "COLUMNS": "100"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


@contextmanager
def port_in_use(port: int) -> Iterator[None]:
    with ExitStack() as stack:
        with suppress(OSError):  # another program has it
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        yield


def read_settings_warnings(demo: Demo) -> list[str]:
    logs = demo.files.glob("*/services/*.log")
    lines = [line for log in logs for line in log.read_text().splitlines()]
    return [line for line in lines if '"settings warning"' in line]


def explains_itself(demo: Demo, command: str) -> str:
    """Run the command; return what it said without a 404 and without an unknown part."""
    ran = run(demo, command)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not re.search(r"\b404\b", ran.stdout), ran.stdout  # random names may contain the digits
    for word in (" ? ", "?  ", "networks unknown"):
        assert word not in ran.stdout, ran.stdout
    return ran.stdout


def test_each_suggested_command_runs_as_printed_and_nothing_is_unknown(tmp_path: Path):
    with port_in_use(CONSOLE_PORT), a_demo(tmp_path, "--nodes=9") as demo:
        demo.says(_STAYS)
        demo.says("/metrics")
        assert f"Port {CONSOLE_PORT} is in use" in demo.said()
        warnings = read_settings_warnings(demo)
        assert len(warnings) == 3, "the demo shortens three times of lifecycle"
        assert all("weaker evidence suffices" in each for each in warnings), warnings
        tells_all(demo.said().partition(_STAYS)[0], 9)
        commands = suggested(demo.said())
        assert max(map(len, demo.said().replace(str(demo.files), "/tmp").splitlines())) <= 100
        assert commands["first"].endswith("/env")
        assert "no problems\n" in explains_itself(demo, commands["status"].replace(" --watch", ""))
        assert f"{len(CHECK_NAMES)} ok, 0 wrong, 0 unknown" in explains_itself(demo, commands["doctor"])
        assert " is healthy: initialized and ready\n" in explains_itself(demo, commands["why"])
        assert "Taints        none" in run(demo, commands["why"]).stdout
        explained = explains_itself(demo, commands["why 2"])
        assert "certificate issued\n" in explained
        assert "unknown" not in explained
        assert "default/shop is healthy\n" in explains_itself(demo, commands["balancer"])
        assert "+ label example.com/zone = us-east-1a" in explains_itself(demo, commands["render"])
        if nodes := commands.get("nodes"):  # kubectl is installed
            listed = run(demo, nodes).stdout
            assert listed.count(" control-plane ") == 1
            assert "us-east-1a" in listed
            assert max(map(len, listed.splitlines())) <= 100
        assert "/services/" in commands["logs"]
        if metrics := commands.get("labeler"):  # curl is installed
            with urllib.request.urlopen(metrics.removeprefix("curl ")) as page:
                assert b"talosccm_" in page.read()
        demo.process.send_signal(signal.SIGINT)
        assert "all files deleted" in demo.ends(0)  # Ctrl-C is how it is meant to end


def test_what_rules_gave_is_told_and_an_edit_of_the_file_reaches_the_nodes(tmp_path: Path):
    file = tmp_path / "rules.yaml"
    selector = "[{matchExpressions: [{key: platform, operator: In, values: [metal]}]}]"
    rule = f"nodeSelector: {selector}, taints: {{example.com/metal: 'a{{{{ .Region }}}}:NoSchedule'}}"
    text = f"transformations: [{{labels: {{example.com/team: red}}}}, {{{rule}}}]\n"
    file.write_text(text)
    with a_demo(tmp_path, "--nodes=9", "--bus=memory", f"--cloud-config={file}") as demo:
        demo.says("/metrics")
        gave = demo.said().partition("Results of the rules\n")[2].partition("\n\n")[0]
        assert gave.splitlines() == [
            "      9 nodes  label example.com/team=red",
            "      1 node   taint example.com/metal=a:NoSchedule",
        ]
        commands = suggested(demo.said())
        assert "example.com/team" in run(demo, commands["render"]).stdout
        file.write_text(text.replace("labels: {", "lables: {"))
        assert f"rules       edit {file}: all nodes follow within 15 s" in demo.said()
        demo.says("--cloud-config rejected, the previous one stays in use: ")
        assert 'has no key "lables"' in " ".join(demo.said().split())
        told = _until_told(demo, commands["status"].replace(" --watch", ""), 'has no key "lables"')
        assert "  configuration: " in told
        diagnosis = run(demo, commands["doctor"]).stdout
        assert "last log line: " in diagnosis
        assert 'has no key "lables"' in diagnosis
        file.write_text(text.replace("red", "blue"))
        demo.says("--cloud-config applied: 2 rules")
        demo.process.send_signal(signal.SIGINT)
        demo.ends(0)


def _until_told(demo: Demo, command: str, words: str) -> str:
    deadline = time.monotonic() + HANG_SECONDS
    while words not in (said := run(demo, command).stdout):
        assert time.monotonic() < deadline, said
    return said


@pytest.mark.parametrize(
    ("number", "when", "flags"),
    [
        (signal.SIGINT, "Starting a cluster", ("--bus=memory",)),
        (signal.SIGTERM, "Talos API", ()),
        (signal.SIGHUP, "50 nodes join", ("--nodes=50", "--bus=memory")),
    ],
    ids=["while-starting", "while-the-services-start", "while-nodes-join"],
)
def test_a_signal_ends_it_in_order_whenever_it_comes(
    tmp_path: Path, number: signal.Signals, when: str, flags: tuple[str, ...]
):
    with a_demo(tmp_path, *flags) as demo:
        demo.says(when)
        demo.process.send_signal(number)
        assert "all files deleted" in demo.ends(128 + number)


def test_a_service_that_dies_ends_the_demo_and_its_last_words_are_told(tmp_path: Path):
    with a_demo(tmp_path, "--nodes=1", "--bus=memory") as demo:
        demo.says(_STAYS)
        (pid,) = [pid for command, pid in demo.processes().items() if " -m services " in command]
        os.kill(pid, signal.SIGKILL)
        said = demo.ends(1)

    assert "Error: all-in-one ended with status -9" in said
    assert "handled" in said


def test_without_the_nats_server_of_the_lock_file_it_says_so_and_what_goes_without(tmp_path: Path):
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    with a_demo(tmp_path, python=bare / "bin" / "python") as demo:
        said = demo.ends(1)

    assert "nats-server is missing" in said
    assert "--bus memory" in said
