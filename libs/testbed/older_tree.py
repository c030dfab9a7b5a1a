"""Processes that run from an older source tree, so that old and new versions run side by side."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from libs.common.settings.renamed_flags import list_spellings

TREE: Final = "MIXED_OLD_TREE"  # the directory of the older tree
PROCESSES: Final = "MIXED_OLD_PROCESSES"  # names of processes, such as "csr,ipam,ipam-2"
_FLAG: Final = re.compile(r"^  (--[a-z][a-z0-9-]*)", re.MULTILINE)


class OlderTree(msgspec.Struct, frozen=True):
    """An older source tree, and the names of the processes that run from it."""

    root: Path
    processes: frozenset[str]

    def build_argv(self, argv: Sequence[str]) -> list[str]:
        """The command with the flags that the older version knows; a renamed flag gets its old name.

        The command is `python -m <module> <flags>`, each flag with its value after "=".
        """
        python, dash_m, module, *arguments = argv
        known = _read_flags(python, module, self.root)
        kept = [word for each in arguments for word in _find_known_spelling(each, known)]
        return [python, dash_m, module, *kept]


def find_older_tree(process: str, environment: Mapping[str, str] = os.environ) -> OlderTree | None:
    """The older tree that this process runs from; None for the present tree."""
    names = frozenset(environment.get(PROCESSES, "").split(",")) - {""}
    return OlderTree(Path(environment[TREE]), names) if process in names else None


def run_from_older_tree(process: str, tree: Path) -> None:
    """Let the next start of this process run from the older tree; there is one such tree at a time."""
    names = set(filter(None, os.environ.get(PROCESSES, "").split(",")))
    os.environ |= {TREE: str(tree), PROCESSES: ",".join(sorted({*names, process}))}


def run_from_present_tree(process: str) -> None:
    """Let the next start of this process run from the present tree."""
    names = set(os.environ.get(PROCESSES, "").split(",")) - {process, ""}
    os.environ[PROCESSES] = ",".join(sorted(names))


@contextlib.contextmanager
def restore_versions() -> Iterator[None]:
    """After the block, processes start from the trees from which they started before it."""
    before = {name: os.environ.get(name) for name in (TREE, PROCESSES)}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def find_commit(repository: Path, revision: str) -> str | None:
    """Return the full hash of a revision; None if there is no such commit."""
    argv = ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"]
    done = subprocess.run(argv, cwd=repository, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def extract_commit(repository: Path, commit: str, folder: Path) -> None:
    """Write the files of that commit into the folder. Raises CalledProcessError without such a commit."""
    archive = subprocess.run(["git", "archive", commit], cwd=repository, capture_output=True, check=True)
    folder.mkdir(exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)


def parse_flags(text: str) -> frozenset[str]:
    """The flags that the output of --help lists, such as "--nats-url"."""
    return frozenset(_FLAG.findall(text))


def _find_known_spelling(argument: str, known: frozenset[str]) -> list[str]:
    """The argument with a name that is known; nothing for a flag without such a name."""
    if not argument.startswith("--"):
        return [argument]
    name, equals, value = argument.partition("=")
    spellings = [f"--{spelling}" for spelling in list_spellings(name.removeprefix("--"))]
    return [f"{spelling}{equals}{value}" for spelling in spellings if spelling in known][:1]


@cache
def _read_flags(python: str, module: str, root: Path) -> frozenset[str]:
    """Return the flags of that module. Raises CalledProcessError if the older tree does not have it."""
    done = subprocess.run(
        [python, "-m", module, "--help"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return parse_flags(done.stdout)
