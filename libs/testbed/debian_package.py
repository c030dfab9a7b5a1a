"""Programs from one Debian package: downloaded and verified by apt, unpacked into the cache.

Nothing is installed, so root is not needed; nor are package lists, which a bare Debian image lacks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from libs.testbed.control_plane.build import get_cache_dir

_TOOLS: Final = ("apt-get", "dpkg-deb")
_TIMEOUT_SECONDS: Final = 600
_MAX_ERROR_LINES: Final = 10


class PackageUnavailable(RuntimeError):
    """The package is not available here; the message says why."""


def unpack_package(package: str, *, path: str | None = None) -> Path:
    """Return the folder with the package's files, downloaded once per user; concurrent callers wait.

    `path` is the search path for apt-get and dpkg-deb; None = PATH. Raises PackageUnavailable.
    """
    lacks = [tool for tool in _TOOLS if shutil.which(tool, path=path) is None]
    if lacks:
        raise PackageUnavailable(f"this machine is not like Debian: it lacks {' and '.join(lacks)}")
    target = get_cache_dir() / f"{package}-{_identify_system()}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():  # another process may have been faster
            sys.stderr.write(f"fetching Debian's package {package} (once)\n")
            with _replace_folder(target) as fresh:
                _fetch(package, fresh)
                (fresh / "files").replace(target)
    return target


def _fetch(package: str, folder: Path) -> None:
    download = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package]
    own = [f"Dir::State::Lists={folder}/lists", f"Dir::Cache={folder}/cache"]
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    options = [word for option in own for word in ("-o", option)]
    try:
        _run(download, folder)
    except PackageUnavailable:  # package lists are missing or outdated, and only root may change them
        _run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", *options, "update"], folder)
        _run([*download, *options], folder)
    (deb,) = folder.glob(f"{package}_*.deb")
    _run(["dpkg-deb", "-x", str(deb), "files"], folder)


def _run(argv: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise PackageUnavailable(f"`{' '.join(argv)}` took more than {_TIMEOUT_SECONDS} s") from error
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-_MAX_ERROR_LINES:])
        raise PackageUnavailable(f"`{' '.join(argv)}` ended with status {done.returncode}:\n{said}")


@contextlib.contextmanager
def _replace_folder(target: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}.fresh-") as path:
        yield Path(path)


def _identify_system() -> str:
    """Return an ID of the system: in a shared cache, programs of one may not run on another."""
    release = Path("/etc/os-release")
    told = release.read_bytes() if release.exists() else b""
    return hashlib.sha256(told + platform.machine().encode()).hexdigest()[:16]
