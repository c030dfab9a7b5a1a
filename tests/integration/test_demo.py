"""`talos-ccm demo` as its user runs it: what it says, its exit status, and that nothing stays behind."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.__main__ import main

_SECONDS = 90
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
        deadline = time.monotonic() + _SECONDS
        while words not in self.said():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def ends(self, status: int) -> str:
        """Wait for its end, see that nothing stays behind, return what it said."""
        assert self.process.wait(_SECONDS) == status, self.said()
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
    assert "- taint      node.cloudprovider.kubernetes.io/uninitialized:NoSchedule" in said
    assert "\x1b" not in said
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize("how", [(), ("--real", "--all-in-one")], ids=["default", "real-all-in-one"])
def test_over_nats_all_nodes_become_ready_and_nothing_stays_behind(tmp_path: Path, how: tuple[str, ...]):
    with a_demo(tmp_path, "--nodes=9", "--exit-when-ready", *how) as demo:
        said = demo.ends(0)

    tells_all(said, 9)
    assert "Try next" in said


def test_on_the_memory_bus_there_is_no_nats_and_what_it_says_to_look_at_exists(tmp_path: Path):
    with a_demo(tmp_path, "--nodes=9", "--bus=memory") as demo:
        demo.says(_STAYS)
        demo.says("/metrics")
        tells_all(demo.said().partition(_STAYS)[0], 9)
        assert not [command for command in demo.processes() if "nats" in command]
        (kubeconfig,) = re.findall(r"kubectl --kubeconfig=(\S+) get nodes", demo.said())
        assert "certificate-authority" in Path(kubeconfig).read_text()
        (explain,) = re.findall(r"talos-ccm (explain csr .+)", demo.said())
        explained = CliRunner().invoke(main, explain.split())
        assert explained.exit_code == 0, explained.output
        assert "certificate issued\n" in explained.output
        (explain,) = re.findall(r"talos-ccm (explain node .+)", demo.said())
        explained = CliRunner().invoke(main, explain.split())
        assert explained.exit_code == 0, explained.output
        assert " is healthy: initialized and ready\n" in explained.output
        (logs,) = re.findall(r"tail -f (\S+)/\*", demo.said())
        assert [log.name for log in Path(logs).glob("*.log")] == ["all-in-one.log"]
        (metrics,) = re.findall(r"all-in-one +curl (\S+)", demo.said())
        with urllib.request.urlopen(metrics) as page:
            assert b"talosccm_" in page.read()
        demo.process.send_signal(signal.SIGINT)
        assert "all files deleted" in demo.ends(0)  # Ctrl-C is how it is meant to end
        assert "nats" not in demo.said().partition(_STAYS)[2]


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
        (metrics,) = re.findall(r"all-in-one +curl (\S+)", demo.said())
        file.write_text(text.replace("labels: {", "lables: {"))
        assert f"rules       edit {file}: all nodes follow within 15 s" in demo.said()
        deadline = time.monotonic() + _SECONDS
        readyz = metrics.replace("/metrics", "/readyz?verbose")
        while 'has no key "lables"' not in _page(readyz):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        demo.process.send_signal(signal.SIGINT)
        demo.ends(0)


def _page(url: str) -> str:
    try:
        with urllib.request.urlopen(url) as page:
            return bytes(page.read()).decode()
    except urllib.error.HTTPError as error:  # not ready is status 500, with the reasons
        return bytes(error.read()).decode()


@pytest.mark.parametrize(
    ("number", "when", "flags"),
    [
        (signal.SIGINT, "Starting a cluster", ("--bus=memory",)),
        (signal.SIGTERM, "Talos API", ()),
        (signal.SIGHUP, "200 nodes join", ("--nodes=200", "--bus=memory")),
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


def test_patience_bounds_the_joins_and_nodes_that_are_not_ready_are_named(tmp_path: Path):
    with a_demo(tmp_path, "--nodes=200", "--patience=0.1", "--exit-when-ready", "--bus=memory") as demo:
        said = demo.ends(1)

    assert float(re.findall(r"([\d.]+) s +\d+/200 ready", said)[-1]) < 2
    assert "NOT READY" in said
    assert "timeout before it joined" in said
    assert "more" in said  # only the first of them are listed


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


def _an_earlier_run(directory: Path) -> str:
    (directory / "kubernetes").mkdir()
    return f"--keep-logs={directory}"


def _mistaken_rules(directory: Path) -> str:
    (directory / "rules.yaml").write_text("transformation: []\n")
    return f"--cloud-config={directory / 'rules.yaml'}"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (lambda _: ["--nodes=0"], "0 is not in the range 1<=x<=5000"),
        (lambda _: ["--nodes=abc"], "'abc' is not a valid integer"),
        (lambda _: ["--nodes=100000"], "100000 is not in the range"),
        (lambda _: ["--patience=0"], "0.0 is not in the range"),
        (lambda _: ["--bus=kafka"], "'kafka' is not one of 'nats', 'memory'"),
        (lambda _: ["--bus=memory", "--separate"], "--bus memory conflicts with --separate"),
        (lambda _: ["--real-talos", "--nodes=51"], "--real-talos conflicts with --nodes 51"),
        (lambda directory: [_an_earlier_run(directory)], "not empty; use a new directory"),
        (lambda directory: [_mistaken_rules(directory)], 'line 1: the file has no key "transformation"'),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_what_cannot_be_had_is_refused_in_words(
    tmp_path: Path, flags: Callable[[Path], list[str]], words: str
):
    refused = CliRunner().invoke(main, ["demo", *flags(tmp_path)])
    assert refused.exit_code == 2
    assert words in " ".join(refused.output.split())


def test_help_names_every_option_within_80_columns():
    shown = CliRunner().invoke(main, ["demo", "--help"], terminal_width=80).output
    assert max(map(len, shown.splitlines())) <= 80
    switches = ("--all-in-one / --separate", "--real", "--real-talos")
    for option in ("--nodes", "--bus [nats|memory]", *switches, "--patience"):
        assert f"  {option} " in shown
