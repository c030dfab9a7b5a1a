"""Server processes that live in a run directory and never outlive the process that started them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import ssl
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import IO, Final, NoReturn, Protocol

import aiohttp

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_TAIL_LINES = 15
HANG_SECONDS: Final = 180.0  # only what hangs takes that long, however busy the machine is


class ChildExited(RuntimeError):
    """A server ended unexpectedly; the message ends with the last lines of its log."""


class OsProcess(Protocol):
    """The part of `subprocess.Popen` that is used here; a forked process has it as well."""

    pid: int
    returncode: int | None
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def send_signal(self, number: int, /) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class ChildProcess:
    """One running process. On Linux the kernel kills it when the thread that started it ends."""

    def __init__(self, name: str, process: OsProcess, log: Path) -> None:
        self.name = name
        self.log = log
        self.process = process

    @classmethod
    def start(
        cls,
        name: str,
        argv: Sequence[str | Path],
        run_dir: Path,
        *,
        env: Mapping[str, str] | None = None,
        pipes: bool = False,
        inherited: Sequence[int] = (),
    ) -> ChildProcess:
        """Start `argv` with its output in `run_dir/<name>.log`.

        With `pipes`, stdin and stdout are the caller's. `inherited` are file descriptors for the child.

        It has its own process group. So Ctrl-C reaches only the parent, which ends its children in order.
        """
        log = run_dir / f"{name}.log"
        with log.open("ab") as output, _ignore_fork_warning():
            process = subprocess.Popen(
                [str(part) for part in argv],
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output,
                stderr=output,
                cwd=run_dir,
                env={**os.environ, **(env or {})},
                process_group=0,
                pass_fds=inherited,
                preexec_fn=die_with(os.getpid()) if _LIBC else None,  # noqa: PLW1509 - one system call, no lock
            )
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        """Return the process ID; it stays known after the end."""
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended; a paused process is running."""
        return self.process.poll() is None

    def tail(self, lines: int = _TAIL_LINES) -> str:
        """Return the last lines of the process's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    async def wait(self) -> int:
        """Wait for the end of the process and return its exit status."""
        if self.is_running and sys.platform == "linux":
            loop = asyncio.get_running_loop()
            ended = asyncio.Event()
            try:
                descriptor = os.pidfd_open(self.pid)
            except ProcessLookupError:  # it has just ended, and a fork server has reaped it
                return self.process.wait()
            loop.add_reader(descriptor, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
        elif self.is_running:
            return await asyncio.to_thread(self.process.wait)
        return self.process.wait()

    def pause(self) -> None:
        """Pause the process (SIGSTOP) and wait for that: connections stay open, without answers."""
        self.process.send_signal(signal.SIGSTOP)
        # The kernel delivers the signal later; wait for that without reaping. A fork server waits itself.
        if isinstance(self.process, subprocess.Popen) and self.is_running:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Resume a paused process."""
        self.process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """Kill the process (SIGKILL), as in a crash, and wait for its end."""
        self.process.kill()
        await self.wait()

    async def stop(self, grace_seconds: float = HANG_SECONDS) -> None:
        """Terminate the process; kill it if it has not ended within the grace period."""
        self.process.terminate()
        try:
            async with asyncio.timeout(grace_seconds):
                await self.wait()
        except TimeoutError:
            await self.kill()


@contextlib.asynccontextmanager
async def watch_exit(child: ChildProcess) -> AsyncIterator[None]:
    """During the block, an exit of the process cancels it: it ends with an exception group of ChildExited."""
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(_raise_exited(child))
        yield
        watching.cancel()


async def _raise_exited(child: ChildProcess) -> NoReturn:
    status = await child.wait()
    raise ChildExited(f"{child.name} ended with status {status}:\n{child.tail()}")


async def wait_until(
    ready: Callable[[], Awaitable[bool]],
    child: ChildProcess,
    *,
    what: str,
    seconds: float = HANG_SECONDS,
    every_seconds: float = 0.02,
) -> None:
    """Poll `ready` until it returns True.

    Raises ChildExited if the process ends first, TimeoutError after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not await ready():
        if not child.is_running:
            status = child.process.returncode
            raise ChildExited(
                f"{child.name} ended with status {status} before it was {what}:\n{child.tail()}"
            )
        if time.monotonic() > deadline:
            raise TimeoutError(f"{child.name}: not {what} after {seconds:g} s:\n{child.tail()}")
        await asyncio.sleep(every_seconds)


async def is_serving(url: str, *, tls: ssl.SSLContext | bool = True, seconds: float = 1.0) -> bool:
    """Whether a server answers with 200 in that time; `tls` as aiohttp's `ssl`."""
    limit, connector = aiohttp.ClientTimeout(total=seconds), aiohttp.TCPConnector(ssl=tls)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=limit) as session,
            session.get(url) as answer,
        ):
            return answer.status == HTTPStatus.OK
    except (aiohttp.ClientError, TimeoutError):
        return False


def make_directory(path: Path) -> Path:
    """Create the directory if it is missing, and return it."""
    path.mkdir(parents=True, exist_ok=True)
    return path


def die_with(parent: int) -> Callable[[], None]:
    """Return what a child of `parent` calls so that the kernel kills it when `parent` ends (Linux)."""

    def in_the_child() -> None:
        assert _LIBC is not None
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended between the fork and this line
            os._exit(1)

    return in_the_child


@contextlib.contextmanager
def _ignore_fork_warning() -> Iterator[None]:
    """Suppress the warning of Python 3.12 about a fork with threads.

    The child only makes two system calls and then execs.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*multi-threaded.*")
        yield
