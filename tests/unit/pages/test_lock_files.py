"""The demo and `make fuzz` install from lock files of their own, which agree with the whole one."""

import re
import tomllib
from pathlib import Path

_ROOT = Path(__file__).parents[3]


def pinned(name: str) -> dict[str, list[str]]:
    """Package, version and marker -> hashes."""
    text = (_ROOT / name).read_text()
    blocks = re.split(r"\n(?=\w)", re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE))
    lines = [[line.strip(" \\") for line in block.strip().splitlines()] for block in blocks]
    return {package: hashes for package, *hashes in lines}


def test_what_the_demo_installs_is_what_the_tests_run_with():
    demo, everything = pinned("requirements-demo.lock"), pinned("requirements.lock")
    assert demo.keys() < everything.keys()
    assert demo == {package: everything[package] for package in demo}
    assert all(hashes and hashes[0].startswith("--hash=sha256:") for hashes in demo.values())


def test_the_demo_installs_all_that_the_project_needs_to_run():
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    wanted = project["project"]["dependencies"] + project["dependency-groups"]["demo"]
    locked = {package.partition("==")[0] for package in pinned("requirements-demo.lock")}
    assert {re.split(r"[^\w-]", requirement)[0] for requirement in wanted} <= locked


def test_the_parsers_are_fuzzed_with_the_libraries_that_the_tests_run_with():
    fuzz, everything = pinned("requirements-fuzz.lock"), pinned("requirements.lock")
    added = {package.partition("==")[0] for package in fuzz.keys() - everything.keys()}
    assert added == {"atheris"}
    assert all(hashes == everything[package] for package, hashes in fuzz.items() if package in everything)


def test_the_uv_that_installs_is_the_one_that_is_locked():
    [locked] = [package for package in pinned("requirements.lock") if package.startswith("uv==")]
    assert f"UV_VERSION := {locked.partition('==')[2]}\n" in (_ROOT / "Makefile").read_text()
