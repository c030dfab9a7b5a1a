"""The project's own Python files as parsed trees, for the tests that hold its walls."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Source(NamedTuple):
    """One module: its dotted name and its path."""

    module: str
    path: Path

    @property
    def tree(self) -> ast.Module:
        """Its syntax tree, parsed once, and not before a test reads it."""
        return _tree(self.path)


def sources(*packages: str) -> Iterator[Source]:
    """Every module below these folders, generated code left out."""
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "generated" in path.parts:
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield Source(module, path)


@functools.cache  # each library, and each wall, goes through all of them
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imported_roots(tree: ast.Module) -> set[str]:
    """Top-level names of everything imported anywhere in a module, lazily or not."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names
