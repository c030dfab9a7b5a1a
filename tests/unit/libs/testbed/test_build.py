"""The testbed's programs are built once, by one builder, and a failure tells what the compiler said."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from libs.testbed.cache import get_cache_dir
from libs.testbed.control_plane.build import (
    MACHINES,
    BuildError,
    GoProgram,
    build_program,
    find_go_toolchain,
)

GOOD = 'package main\n\nfunc main() { println("built") }\n'
_PRINTS_WORD = "func main() { println(words.Word) }\n"


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Our programs are in no cache yet; Go keeps its own, else it would compile its runtime for each test."""
    of_go = subprocess.run(
        [find_go_toolchain(MACHINES).path, "env", "GOCACHE"], check=True, capture_output=True
    )
    monkeypatch.setenv("GOCACHE", of_go.stdout.decode().strip())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return get_cache_dir()


def a_program(folder: Path, source: str = GOOD) -> GoProgram:
    folder.mkdir(exist_ok=True)
    (folder / "go.mod").write_text("module example\n\ngo 1.26.0\n")
    (folder / "main.go").write_text(source)
    return GoProgram("example", folder)


def kept(cache: Path) -> set[Path]:
    return {path for path in cache.iterdir() if path.suffix != ".lock"}


def times_open(path: Path) -> int:
    """How often this process has a file open (Linux)."""
    return sum(os.path.realpath(descriptor) == str(path) for descriptor in Path("/proc/self/fd").iterdir())


async def test_a_program_is_built_once_even_by_two_builders_at_once(
    cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = a_program(tmp_path / "module")
    first, second = await asyncio.gather(build_program(program), build_program(program))
    again = await build_program(program)
    assert first == second == again
    assert os.access(first, os.X_OK)
    assert capfd.readouterr().err.count("building the testbed's example (once") == 1
    assert kept(cache) == {first}


async def test_a_changed_module_that_a_program_imports_makes_it_another_program(
    cache: Path, tmp_path: Path
) -> None:
    library = tmp_path / "library" / "words"
    library.mkdir(parents=True)
    (library.parent / "go.mod").write_text("module library\n\ngo 1.26.0\n")
    program = a_program(tmp_path / "module", 'package main\n\nimport "library/words"\n\n' + _PRINTS_WORD)
    with (program.module / "go.mod").open("a") as requirements:
        requirements.write("\nrequire library v0.0.0\n\nreplace library => ../library\n")
    program = msgspec.structs.replace(program, imports=(library.parent,))
    built = set()
    for word in ("one", "two"):
        (library / "words.go").write_text(f'package words\n\nconst Word = "{word}"\n')
        built.add(await build_program(program))
    assert kept(cache) == built
    assert len(built) == 2


async def test_a_failed_build_leaves_the_words_of_the_compiler_and_no_program(
    cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = a_program(tmp_path / "module", "package main\n\nfunc main() { undefinedWord() }\n")
    with pytest.raises(BuildError, match="ended with status 1"):
        await build_program(program)
    assert "undefined: undefinedWord" in capfd.readouterr().err
    assert kept(cache) == set()


def test_without_go_the_error_names_both_ways_to_get_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(BuildError, match=r"none found.*on PATH.*make testbed"):
        find_go_toolchain(MACHINES)


def test_a_go_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go version go1.21.3 linux/amd64\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path / "no-wheel"))
    with pytest.raises(BuildError, match=r"go is 1\.21\.3"):
        find_go_toolchain(MACHINES)
