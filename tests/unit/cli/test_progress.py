"""What a command shows while the cluster does not answer."""

import os
import pty
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from cli.progress import Progress
from tests.architecture.sources import ROOT

SECONDS: Final = 60  # far more than any of it takes
COMMANDS: Final = {
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


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_that_waits_tells_so_in_one_line(
    command: str, silent_server: socket.socket, tmp_path: Path
):
    with start(command, silent_server, tmp_path, subprocess.PIPE) as process:
        assert process.stderr is not None
        line = read_until(process.stderr.fileno(), b"\n")
    assert line.decode() == f"{COMMANDS[command]} ...\n"


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
