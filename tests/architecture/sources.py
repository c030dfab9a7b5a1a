"""The project's Python files as syntax trees, for the tests of its boundaries."""

import ast
import functools
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


def sources(*packages: str) -> Iterator[Source]:
    """Every module below these folders, except generated code."""
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "generated" in path.parts:
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield Source(module, path)


@functools.cache  # each test reads all of them
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imported_roots(tree: ast.Module) -> set[str]:
    """Top-level names of all imports in a module, lazy ones included."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names
