"""Recorded screens of each command, and what it prints while it waits."""

import os
import pty
import re
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import pytest
from click.testing import CliRunner

from cli.__main__ import main
from cli.progress import Progress
from tests.architecture.sources import ROOT
from tests.cli_snapshots import read_screens
from tests.unit.cli.explain.csr import test_explain
from tests.unit.cli.explain.node import test_node
from tests.unit.cli.status import test_flow
from tests.unit.cli.status.ipam import test_ipam


class Screen(Protocol):
    """Returns the output on a terminal of that width; 0 = in a pipe."""

    def __call__(self, width: int, /) -> str: ...


def screens() -> Iterator[tuple[tuple[str, str], Screen]]:
    """Yield the kind and the name of each recorded text, and the screen."""
    for name in test_explain.EVIDENCE:
        csr = test_explain.explained(name)
        yield ("explain-csr", name), lambda width, csr=csr: test_explain.shown(csr, width or None)
    for name in test_node.EVIDENCE:
        node = test_node.explained(name)
        yield ("explain-node", name), lambda width, node=node: test_node.shown(node, width or None)
    for name, evidence in test_flow.CASES.items():
        yield ("status", name), lambda width, evidence=evidence: test_flow.shown(evidence, width=width)
    for name, status in test_ipam.CASES.items():
        yield ("status-ipam", name), lambda width, status=status: test_ipam.shown(status, width=width)


SCREENS: Final = dict(screens())


@pytest.mark.parametrize("kind", dict.fromkeys(kind for kind, _ in SCREENS))
def test_in_a_pipe_the_output_is_the_recorded_text(kind: str):
    assert {name: screen(0) for (of, name), screen in SCREENS.items() if of == kind} == read_screens(kind)


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("case", SCREENS, ids=" ".join)
def test_on_a_terminal_no_line_is_too_wide_and_none_has_control_characters(case: tuple[str, str], width: int):
    text = SCREENS[case](width)
    assert max(map(len, text.splitlines())) <= width
    assert text.replace("\n", "").isprintable()


COMMANDS: Final = (
    "config check",
    "doctor",
    "explain csr",
    "explain node",
    "explain service",
    "render",
    "status",
    "status ipam",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns_and_has_exit_statuses_and_examples_in_lines_of_their_own(command: str):
    text = CliRunner().invoke(main, [*command.split(), "--help"], terminal_width=80).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^  Exit status:\n    0  .+\n(    +.+\n)*    2  .+\n", text, re.MULTILINE)
    assert re.search(r"^  Examples:\n    talos-ccm .+\n    talos-ccm .+\n", text, re.MULTILINE)


# ---- while it waits


SECONDS: Final = 60  # far more than any of it takes
WAITING_COMMANDS: Final = {
    "status": "Reading the cluster",
    "status ipam": "Reading the cluster",
    "doctor": "Checking the installation",
    "explain node web-1 --without-talos": "Querying the cluster and the machine",
    "explain csr web-1 --node": "Querying the cluster and the machine",
    "render - --all-nodes": "Reading the nodes",
    "config check -": "Checking",
}
KUBECONFIG = """\
clusters: [{{name: a, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: a, context: {{cluster: a}}}}]
current-context: a
"""


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@contextmanager
def start(
    command: str, server: socket.socket, tmp_path: Path, stderr: int
) -> "Iterator[subprocess.Popen[bytes]]":
    """Start the command, and kill it at the end."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG.format(port=server.getsockname()[1]))
    with subprocess.Popen(
        [sys.executable, "-m", "cli", *command.split()],
        cwd=ROOT,
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "TERM": "xterm", "NATS_URL": ""},
        stdin=subprocess.PIPE,  # open, so that `-` waits
        stdout=subprocess.DEVNULL,
        stderr=stderr,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(descriptor: int, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found:
        assert select.select([descriptor], [], [], SECONDS)[0], found
        read = os.read(descriptor, 4096)
        assert read, found
        found += read
    return found


@pytest.mark.parametrize("command", WAITING_COMMANDS)
def test_each_command_that_waits_tells_so_in_one_line(
    command: str, silent_server: socket.socket, tmp_path: Path
):
    with start(command, silent_server, tmp_path, subprocess.PIPE) as process:
        assert process.stderr is not None
        line = read_until(process.stderr.fileno(), b"\n")
    assert line.decode() == f"{WAITING_COMMANDS[command]} ...\n"


def test_on_a_terminal_a_spinner_turns_and_is_gone_before_the_error(tmp_path: Path):
    ours, theirs = pty.openpty()
    server = socket.create_server(("127.0.0.1", 0))
    with start("explain csr web-1", server, tmp_path, theirs):
        os.close(theirs)
        turned = read_until(ours, b"\r/ Querying the cluster and the machine")
        server.close()
        told = read_until(ours, b"Error: ")
    os.close(ours)
    assert turned.startswith(b"\r| Querying the cluster and the machine\r/ ")
    assert b"\r\x1b[KError: " in told


def test_a_command_that_is_quick_shows_no_progress(capsys: pytest.CaptureFixture[str]):
    progress = Progress()
    with progress.show("Checking"):
        progress.end()
    assert capsys.readouterr().err == ""
