"""Installs Neutron and Octavia from PyPI into an environment of their own, once per user."""

from __future__ import annotations

import hashlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import Final

from libs.testbed.cache import get_or_make, run_command

REPOSITORY: Final = Path(__file__).parents[4]
_LOCK: Final = REPOSITORY / "requirements-openstack.lock"


def find_or_install() -> Path:
    """Return the Python of the environment. Raises CommandFailed."""
    identity = hashlib.sha256(_LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = get_or_make(f"openstack-{identity}", "installing Neutron and Octavia", _install)
    return folder / "bin" / "python"


def _install(folder: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    run = partial(run_command, env={**os.environ, "VIRTUAL_ENV": str(folder)})
    run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, folder])
    run([uv, "pip", "sync", "--quiet", "--require-hashes", "--compile-bytecode", _LOCK])


if __name__ == "__main__":
    print(find_or_install())
