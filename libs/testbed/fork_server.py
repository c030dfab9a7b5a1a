"""Python programs forked from a process that has imported their modules: each costs half a second less."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Final

from libs.testbed.child_process import ChildProcess, die_with

_LARGEST_MESSAGE: Final = 1 << 20  # bytes; arguments and environment of one program
_ROOT: Final = Path(__file__).parents[2]


class ForkedProcess:
    """A forked program, with the interface of `subprocess.Popen` that ChildProcess uses."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """Return the exit status, or None while the program runs."""
        self._server.receive_exits()
        return self.returncode

    def wait(self) -> int:
        """Wait for the end of the program and return its exit status."""
        while self.returncode is None:
            self._server.receive()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send the signal, unless the program has ended; after SIGSTOP, wait until it has stopped."""
        if self.poll() is None:
            self._server.request({"signal": number, "pid": self.pid})

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The client of one fork server, which ends with this process, and its programs with it."""

    def __init__(self, own: socket.socket) -> None:
        self._socket = own
        self._running: dict[int, ForkedProcess] = {}

    @classmethod
    @contextlib.contextmanager
    def open(cls, run_dir: Path, *preloaded: str) -> Iterator[ForkServer]:
        """Start a server that imports these modules. At the end it is killed, with the programs that run."""
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with own:
            with its:
                command = [sys.executable, "-m", __name__, str(its.fileno()), *preloaded]
                child = ChildProcess.start(
                    "fork-server", command, run_dir, env={"PYTHONPATH": str(_ROOT)}, inherited=[its.fileno()]
                )
            try:
                yield cls(own)
            finally:
                child.process.kill()
                child.process.wait()

    def start(
        self, name: str, module: str, arguments: Sequence[str], run_dir: Path, *, env: Mapping[str, str]
    ) -> ChildProcess:
        """Run `python -m module arguments` as `ChildProcess.start` does, with the same environment."""
        log = run_dir / f"{name}.log"
        log.touch()
        answer = self.request(
            {
                "module": module,
                "arguments": [*arguments],
                "directory": str(run_dir),
                "environment": {**os.environ, **env},
                "log": str(log),
            }
        )
        process = self._running[answer["pid"]] = ForkedProcess(self, answer["pid"])
        return ChildProcess(name, process, log)

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send one message and return its answer. Raises ConnectionError if the server has ended."""
        self._socket.send(json.dumps(message).encode())
        while True:
            answer = self.receive()
            if "status" not in answer:
                return answer

    def receive(self) -> dict[str, Any]:
        """Wait for one message and return it; the exit of a program is recorded on its process."""
        data = self._socket.recv(_LARGEST_MESSAGE)
        if not data:
            raise ConnectionError("the fork server has ended, see fork-server.log")
        message: dict[str, Any] = json.loads(data)
        if "status" in message:
            self._running.pop(message["pid"]).returncode = message["status"]
        return message

    def receive_exits(self) -> None:
        """Record the exits that have been received so far."""
        while _list_readable([self._socket.fileno()], milliseconds=0):
            self.receive()


def _list_readable(descriptors: Sequence[int], *, milliseconds: int | None = None) -> list[int]:
    """Wait until some of the descriptors are readable; return them. They may exceed the limit of select()."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [ready for ready, _ in poll.poll(milliseconds)]


class _Server:
    """The server's side: forks, and reports each exit."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._exits: dict[int, int] = {}  # descriptor of a running program -> its pid

    def serve(self) -> dict[str, Any]:
        """Serve until the client ends. Return only in a forked program: its request."""
        while True:
            for ready in _list_readable([self._client.fileno(), *self._exits]):
                if ready != self._client.fileno():
                    self._report_exit(ready)
                    continue
                request = json.loads(self._client.recv(_LARGEST_MESSAGE) or sys.exit())
                if "module" not in request:
                    self._send_signal(request["pid"], request["signal"])
                elif not self._fork():
                    return dict(request)

    def _fork(self) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._exits[os.pidfd_open(pid)] = pid
            self._answer({"pid": pid})
            return pid
        die_with(parent)()
        os.setpgid(0, 0)
        self._client.close()
        for descriptor in self._exits:
            os.close(descriptor)
        return 0

    def _send_signal(self, pid: int, number: int) -> None:
        if pid in self._exits.values():  # not reaped, so the pid is still that of the program
            os.kill(pid, number)
            if number == signal.SIGSTOP:
                os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._answer({"pid": pid})

    def _report_exit(self, descriptor: int) -> None:
        pid = self._exits.pop(descriptor)
        os.close(descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._answer({"pid": pid, "status": status})

    def _answer(self, message: dict[str, Any]) -> None:
        self._client.send(json.dumps(message).encode())


def _become(request: dict[str, Any]) -> None:
    """Turn this forked process into the program, as a new interpreter would start it."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.argv = [request["module"], *request["arguments"]]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [request["directory"], *(folder for folder in path if folder and folder not in sys.path)]


def main(descriptor: str, *preloaded: str) -> None:
    """Import the modules, then serve; in a forked program, run its module."""
    for name in preloaded:
        import_module(name)
    gc.collect()
    gc.freeze()  # otherwise each program collects these modules again as it ends: 0.2 s of CPU
    with socket.socket(fileno=int(descriptor)) as client:
        request = _Server(client).serve()
    _become(request)
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
