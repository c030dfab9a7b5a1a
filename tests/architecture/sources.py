"""The project's Python files as syntax trees, for the tests of its boundaries."""

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Source(NamedTuple):
    """One module with its dotted name and its path."""

    module: str
    path: Path

    @property
    def tree(self) -> ast.Module:
        """The syntax tree, parsed once on first access."""
        return _tree(self.path)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the syntax tree in the order of `ast.walk`, which takes longer than to parse."""
        return _nodes(self.path)

    @property
    def imported_roots(self) -> frozenset[str]:
        """Top-level names of all imports in the module, lazy ones included."""
        return _imported_roots(self.path)


def sources(*packages: str) -> Iterator[Source]:
    """Every module below these folders, except generated code."""
    for package in packages:
        yield from _modules(package)


def list_tracked_files() -> list[str]:
    """The existing files that git tracks, by their path below ROOT."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


# Each test reads all modules, so they are read once.
@functools.cache
def _modules(package: str) -> tuple[Source, ...]:
    return tuple(
        Source(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path)
        for path in sorted((ROOT / package).rglob("*.py"))
        if "generated" not in path.parts
        for parts in (path.relative_to(ROOT).with_suffix("").parts,)
    )


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


@functools.cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_tree(path)))


@functools.cache
def _imported_roots(path: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return frozenset(names)
