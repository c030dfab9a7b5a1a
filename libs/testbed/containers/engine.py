"""A dockerd with all its files in one folder, and its commands."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from libs.testbed.cache import CommandFailed, run_command
from libs.testbed.containers.packages import build_environment

_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1
# No change to the host's firewall and routes: containers reach each other, and nothing outside.
_NO_HOST_NETWORK_FLAGS: Final = ("--iptables=false", "--ip-forward=false", "--bridge=none")


class ContainerEngine:
    """A running dockerd."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.address = f"unix://{folder}/docker.sock"
        self.env = {
            **env,
            "DOCKER_HOST": self.address,
            "DOCKER_CONFIG": str(folder / "config"),
            "DOCKER_BUILDKIT": "1",
        }

    def run_docker(self, *words: str | Path) -> str:
        """Run a docker command and return its stdout. Raises CommandFailed."""
        return run_command(["docker", *words], env=self.env)


@contextlib.contextmanager
def start_engine(packages: Path, compose: Path, folder: Path) -> Iterator[ContainerEngine]:
    """Start dockerd in `folder` with the compose plugin; at the end it stops and removes its mounts."""
    plugins = folder / "config" / "cli-plugins"
    plugins.mkdir(parents=True)
    (plugins / "docker-compose").symlink_to(compose)
    engine = ContainerEngine(folder, build_environment(packages))
    log = folder / "dockerd.log"
    with log.open("wb") as output:
        # Its own session: Ctrl-C reaches only this process, which stops the containers first.
        process = subprocess.Popen(
            _build_command(folder, engine.address),
            env=engine.env,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        _wait_until_ready(folder / "docker.sock", process, log)
        yield engine
    finally:
        _stop(process, folder)


def _build_command(folder: Path, address: str) -> Sequence[str]:
    places = (f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/dockerd.pid")
    return ("dockerd", *places, f"--host={address}", *_NO_HOST_NETWORK_FLAGS)


def _wait_until_ready(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not _is_ready(path):
        if process.poll() is not None or time.monotonic() > deadline:
            last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise CommandFailed(f"dockerd does not answer; its last log lines:\n{last}")
        time.sleep(_POLL_SECONDS)


def _is_ready(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(path))
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            return answer.status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False


def _stop(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for line in Path("/proc/self/mounts").read_text().splitlines()[::-1]:
        if (mounted := line.split()[1]).startswith(f"{folder}/"):
            run_command(["umount", mounted])
