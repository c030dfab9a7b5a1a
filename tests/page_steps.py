"""The steps of a page in docs/contributing, read from the page, and applied to a copy of the tree."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

import msgspec

from libs.testbed.fork_server import ForkServer
from tests.architecture.sources import ROOT

PAGES: Final = ROOT / "docs" / "contributing"
_LEAD: Final = re.compile(
    r"(?:Create `(?P<new>[^`]+)`"
    r"|In `(?P<path>[^`]+)`, (?P<place>before|after|instead of|at the end of) `(?P<anchor>.+)`"
    r"|Run):"
)
_CLOSING: Final = {")", "}", "]"}


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A block of a page: a file or some lines of one, or a command."""

    place: str  # "new", "before", "after", "instead of", "at the end of" or "run"
    path: str = ""
    anchor: str = ""  # a part of one line of the file
    text: str  # the block; one command

    @property
    def title(self) -> str:
        """Its name as the id of a test."""
        where = (self.place, self.anchor, self.path)
        return self.text if self.place == "run" else " ".join(filter(None, where))

    def apply(self, root: Path) -> None:
        """Change or create the file. Raises LookupError for an anchor that is not in exactly one line."""
        path = root / self.path
        if self.place == "new":
            path.parent.mkdir(exist_ok=True)
            path.write_text(self.text)
            return
        lines = path.read_text().splitlines(keepends=True)
        before, after = self._find_place(lines)
        path.write_text("".join((*lines[:before], self.text, *lines[after:])))

    def _find_place(self, lines: Sequence[str]) -> tuple[int, int]:
        """Return how many lines stay before the text, and the index of the first line that stays after it."""
        at_end = self.place == "at the end of"
        found = [
            number
            for number, line in enumerate(lines)
            if (line.startswith(self.anchor) if at_end else self.anchor in line)
        ]
        if len(found) != 1:
            raise LookupError(f"{len(found)} lines of {self.path} have {self.anchor!r}")
        (first,) = found
        if at_end:
            first += next(count for count, line in enumerate(lines[first:]) if line.rstrip() in _CLOSING)
        before = first + (self.place == "after")
        return before, first + (self.place in {"after", "instead of"})


def read_steps(page: str, section: str = "") -> tuple[Step, ...]:
    """Return the steps of a page, or of a section that begins with a heading of the second level."""
    text = (PAGES / page).read_text()
    if section:
        text = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return tuple(_parse_steps(text))


def _parse_steps(text: str) -> Iterator[Step]:
    pattern = r"^((?:Create|In|Run)\b[^\n]*:)\n\n```\w+\n(.*?)^```$"
    for lead, block in re.findall(pattern, text, re.MULTILINE | re.DOTALL):
        match = _LEAD.fullmatch(lead)
        assert match is not None, lead
        if match["new"]:
            yield Step(place="new", path=match["new"], text=block)
        elif match["path"]:
            yield Step(place=match["place"], path=match["path"], anchor=match["anchor"], text=block)
        else:
            yield from (Step(place="run", text=command) for command in block.splitlines())


class TreeCopy:
    """A copy of the files that git tracks, with the means to restore it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self._contents: dict[str, bytes] = {}
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in names.split("\0"):
            if name and (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
                _copy_bytecode(ROOT / name, self.root / name)
                self._contents[name] = (self.root / name).read_bytes()
        self._stamps = _stamp_files(self.root)

    def restore(self) -> None:
        """Undo all changes."""
        for name in self.list_changes():
            path = self.root / name
            if name in self._contents:
                path.write_bytes(self._contents[name])
                changed = self._stamps[name][1]
                os.utime(path, ns=(changed, changed))  # bytecode is valid for a source of the same age
            else:
                path.unlink()

    def list_changes(self) -> list[str]:
        """Return the files that differ from the originals, are new, or are gone."""
        names = {name for name, _ in self._stamps.items() ^ _stamp_files(self.root).items()}
        return sorted(name for name in names if not self._is_original(name))

    def _is_original(self, name: str) -> bool:
        path = self.root / name
        return name in self._contents and path.exists() and path.read_bytes() == self._contents[name]

    def apply(self, steps: Iterable[Step]) -> None:
        """Apply the steps that are no commands to the original tree. Raises LookupError."""
        self.restore()
        for step in steps:
            if step.place != "run":
                step.apply(self.root)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the copy."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root)},
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def run_forked(self, server: ForkServer, module: str, *arguments: str) -> tuple[int, str]:
        """Run a module in the copy, by a server that runs there; return exit status and output."""
        child = server.start("forked", module, arguments, self.root, env={"PYTHONPATH": str(self.root)})
        status = child.process.wait()
        output = child.log.read_text()
        child.log.unlink()
        return status, output


def _copy_bytecode(source: Path, copy: Path) -> None:
    """Copy what Python has compiled of the source; it is valid for a copy of the same age."""
    if source.suffix == ".py" and (compiled := Path(cache_from_source(str(source)))).exists():
        target = Path(cache_from_source(str(copy)))
        target.parent.mkdir(exist_ok=True)
        shutil.copy2(compiled, target)


def _stamp_files(root: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of each file."""
    stamps, start = {}, len(str(root)) + 1
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in {"__pycache__", ".ruff_cache", ".pytest_cache"}]
        for name in files:
            path = f"{folder}/{name}"
            status = os.stat(path)  # noqa: PTH116 - thousands of files; a Path for each costs more than the rest
            stamps[path[start:]] = status.st_size, status.st_mtime_ns
    return stamps
