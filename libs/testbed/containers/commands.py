"""Commands, and files that are created once and cached."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from libs.testbed.control_plane.build import get_cache_dir

CACHE_FOLDER: Final = get_cache_dir().parent / "containers"  # can be deleted at any time


class CommandFailed(RuntimeError):
    """A command failed; the message ends with the last lines of its output."""


def run_command(
    argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Run the command and return its stdout. Raises CommandFailed."""
    words = [str(word) for word in argv]
    done = subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        output = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise CommandFailed(f"{shlex.join(words)[:300]}\nended with status {done.returncode}:\n{output}")
    return done.stdout


def get_or_make(
    name: str, description: str, make: Callable[[Path], None], *, folder: Path = CACHE_FOLDER
) -> Path:
    """Return a file or folder of the cache; if it is missing, `make` creates it at the given path."""
    target = folder / name
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f"{name}.fresh")
        remove(fresh)
        with ProgressMessage(f"{description} (once)"):
            make(fresh)
        fresh.replace(target)
    return target


def remove(path: Path) -> None:
    """Remove a file or folder if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class ProgressMessage:
    """Prints at the end of the block what was done and how long it took."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._begun = 0.0

    def __enter__(self) -> None:
        self._begun = time.monotonic()

    def __exit__(self, *error: object) -> None:
        took = time.monotonic() - self._begun
        failed = "" if error[0] is None else "  failed"
        print(f"{took:7.1f} s  {self._what}{failed}", file=sys.stderr, flush=True)
