"""The handovers of CONTRIBUTING.md. Every file and name in it and in docs/contributing exists."""

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
ROWS = re.findall(r"^\| \d+ \| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
NAMED = [
    *((path, name) for path, names, _ in ROWS for name in re.findall(r"`([^`]+)`", names)),
    *(
        (path, name)
        for _, _, does in ROWS
        for name, path in re.findall(r"`([\w.]+)` in `([\w/]+\.py)`", does)
    ),
]


NAMED_IN_STEPS = sorted(
    {
        (path, name)
        for page in (ROOT / "docs" / "contributing").glob("*.md")
        for name, path in re.findall(r"`([\w.]+)` in `([\w/]+\.py)`", page.read_text())
    }
)


def defined_in(path: Path) -> set[str]:
    """Functions, classes, constants, and methods with the name of their class."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if hasattr(each, "name")}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_the_rows_are_numbered_from_watch_to_write():
    numbers = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert [int(number) for number in numbers] == [*range(1, len(ROWS) + 1)]
    main_path = [path for path, _, does in ROWS if not does.startswith("*aside*")]
    assert len(set(main_path)) <= 18
    assert len({path for path, _, _ in ROWS}) <= 25


def test_a_caller_has_an_earlier_row_of_its_own():
    earlier: set[str] = set()
    for _, functions, does in ROWS:
        assert set(re.findall(r"called by `([^`]+)`", does)) <= earlier
        earlier |= set(re.findall(r"`([^`]+)`", functions))


@pytest.mark.parametrize(("path", "name"), [*NAMED, *NAMED_IN_STEPS])
def test_a_handover_names_what_exists(path: str, name: str):
    assert name in defined_in(ROOT / path)
