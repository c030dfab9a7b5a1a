"""The way of one Node in CONTRIBUTING.md. Every file and name in it exists."""

import ast
import re
from pathlib import Path

import msgspec
import pytest

from tests.architecture.sources import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()


class Row(msgspec.Struct, frozen=True):
    """A file of the way: its place, its functions, and what they do."""

    place: str  # a number, or between which numbers the file stands
    path: str
    functions: tuple[str, ...]
    does: str


def read_rows(text: str) -> list[Row]:
    """Return the rows that name a file in their second column."""
    found = re.findall(r"^\| ([\w ]+) \| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    return [
        Row(place, path, tuple(re.findall(r"`([^`]+)`", names)), does) for place, path, names, does in found
    ]


WAY = PAGE.partition("## From watch to write: one Node")[2].partition("\n## ")[0]
MAIN, BETWEEN = (read_rows(part) for part in WAY.split("The files between them hand over"))
NAMED = [(row.path, name) for row in (*MAIN, *BETWEEN) for name in row.functions]


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


def test_a_reader_opens_fifteen_files_and_each_once():
    assert [row.place for row in MAIN] == [str(number) for number in range(1, 16)]
    paths = [row.path for row in (*MAIN, *BETWEEN)]
    assert len(paths) == len(set(paths))


def test_the_files_between_stand_in_the_order_of_the_way():
    places = [[int(number) for number in re.findall(r"\d+", row.place)] for row in BETWEEN]
    assert all(place[-1] - place[0] <= 1 for place in places)
    assert places == sorted(places)
    assert {place[-1] for place in places} <= {*range(1, 16)}


@pytest.mark.parametrize("row", [*MAIN, *BETWEEN], ids=lambda row: row.path)
def test_a_row_mentions_only_functions_that_have_a_row(row: Row):
    mentioned = re.findall(r"`(\w+\.\w+)`", row.does)
    assert set(mentioned) <= {name for _, name in NAMED}


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_page_names_what_exists(path: str, name: str):
    assert name in defined_in(ROOT / path)
