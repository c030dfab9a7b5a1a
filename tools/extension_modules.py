"""`python extension_modules.py`: imports every extension module of the environment that runs it.

The Dockerfile runs it after it has stripped the shared objects, so a module that does not load fails the
build. It uses only the standard library, because the image's environment has no module of this folder.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def list_extension_modules(folder: Path) -> Sequence[str]:
    """Return the full names of the extension modules under a folder of packages, sorted."""
    names = {
        ".".join([*path.parent.relative_to(folder).parts, path.name.partition(".")[0]])
        for path in folder.rglob("*")
        if path.name.endswith(tuple(EXTENSION_SUFFIXES))
    }
    return sorted(names)


def import_all(names: Sequence[str]) -> Sequence[str]:
    """Import the modules in this order; return a line for each that cannot be imported."""
    problems = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            problems.append(f"{name}: {error}")
    return problems


def main() -> None:
    """Exit with a message if a module cannot be imported, or if there is none."""
    folder = Path(sysconfig.get_path("platlib"))
    names = list_extension_modules(folder)
    if not names:
        sys.exit(f"no extension module under {folder}")
    if problems := import_all(names):
        sys.exit("\n".join(["extension modules that cannot be imported:", *problems]))
    print(f"imported {len(names)} extension modules")


if __name__ == "__main__":
    main()
