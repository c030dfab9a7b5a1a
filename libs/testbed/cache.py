"""Programs and files that are made once, into a cache of the user outside the checkout."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

_POLL_SECONDS: Final = 0.2
_LAST_LINES: Final = 30


class CommandFailed(RuntimeError):
    """A command failed; the message ends with the last lines of its output."""


def get_cache_dir() -> Path:
    """Return the folder of the cache; it can be deleted at any time."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "talos-ccm" / "testbed"


def get_or_make(
    name: str, title: str, make: Callable[[Path], None], *, cancelled: threading.Event | None = None
) -> Path:
    """Return a file or folder of the cache; if it is missing, `make` creates it at the given path.

    Concurrent callers wait for the first one. The title is printed, such as "building kube".
    """
    target = get_cache_dir() / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target, cancelled or threading.Event()):
        if not target.exists():  # another process may have been faster
            fresh = target.with_name(f"{name}.fresh")
            remove(fresh)
            began = time.monotonic()
            sys.stderr.write(f"{title} (once; it may take minutes)\n")
            make(fresh)
            sys.stderr.write(f"{title}: {time.monotonic() - began:.0f} s\n")
            fresh.replace(target)
    return target


def run_command(
    argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Run the command and return its stdout. Raises CommandFailed."""
    words = [str(word) for word in argv]
    done = subprocess.run(
        words, env=env, cwd=cwd, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        output = "\n".join((done.stdout + done.stderr).splitlines()[-_LAST_LINES:])
        raise CommandFailed(f"{shlex.join(words)[:300]}\nended with status {done.returncode}:\n{output}")
    return done.stdout


def remove(path: Path) -> None:
    """Remove a file or folder if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _lock(target: Path, cancelled: threading.Event) -> Iterator[None]:
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        if not _try_lock(lock):
            sys.stderr.write(f"another process makes {target.name}: waiting for it\n")
            while not _try_lock(lock):
                if cancelled.wait(_POLL_SECONDS):
                    raise CommandFailed(f"cancelled while waiting for {target.name}")
        yield


def _try_lock(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
