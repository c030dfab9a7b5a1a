"""A directory for one run, which a later run removes if this one is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_FRESH_SECONDS: Final = 60.0  # an empty directory of this age may belong to a run that has just started
_KEYS: Final = ("*.key", "*.fresh", "*kubeconfig*", "*talosconfig*")


@contextlib.contextmanager
def open_run_directory(purpose: str, keep_at: Path | None) -> Iterator[Path]:
    """Yield a directory for one run: a temporary one, or `keep_at`, which is created and kept.

    First remove the temporary directories of killed runs with that purpose.
    """
    prefix = f"talos-ccm-{purpose}-"
    remove_abandoned(Path(tempfile.gettempdir()), prefix)
    if keep_at is not None:
        keep_at.mkdir(parents=True, exist_ok=True)
        yield keep_at.resolve()
        return
    path = Path(tempfile.mkdtemp(prefix=prefix))
    with _open_directory(path) as descriptor:
        # The kernel ends the lock with this process, however it dies. Children do not inherit it.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield path
        finally:
            _remove(path)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the directories of ended runs: those of this user that no running process has locked."""
    for path in parent.glob(f"{prefix}*"):
        try:
            with _open_directory(path) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_abandoned(descriptor):
                    _remove(path)
        except OSError:  # it runs, has just ended, or is no directory of this user
            continue


@contextlib.contextmanager
def _open_directory(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _is_abandoned(descriptor: int) -> bool:
    found = os.fstat(descriptor)
    is_fresh = not os.listdir(descriptor) and time.time() - found.st_mtime < _FRESH_SECONDS
    return found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode) and not is_fresh


def _remove(path: Path) -> None:
    """Remove private keys and credentials first, so that none stays if the rest cannot be removed."""
    for pattern in _KEYS:
        for file in path.rglob(pattern):
            if not file.is_dir() or file.is_symlink():
                file.unlink(missing_ok=True)
    shutil.rmtree(path)
