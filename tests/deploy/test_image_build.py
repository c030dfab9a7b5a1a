"""The Dockerfile fetches nothing by name alone: what is installed or builds our wheel stands in a lock."""

import re
import tomllib

import pytest

from tests.architecture.sources import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
LOCKS = ("requirements-image.lock", "requirements-build.lock")
STEPS = [step for line in DOCKERFILE.splitlines() if line.startswith("RUN ") for step in line.split("&&")]


def pinned(lock: str) -> dict[str, str]:
    """Version by name; each has a hash."""
    text = (ROOT / lock).read_text()
    found = re.findall(r"^([\w.-]+)==([^\s;]+)[^\n]*\\\n +--hash=sha256:", text, re.MULTILINE)
    assert len(found) == len(re.findall(r"^[\w.-]+==", text, re.MULTILINE)), "one has no hash"
    return dict(found)


def test_what_builds_our_wheel_is_locked_as_it_is_for_everybody():
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    built_with, everybody = pinned("requirements-build.lock"), pinned("requirements.lock")
    assert set(backend) <= built_with.keys()
    assert {name: everybody.get(name, version) for name, version in built_with.items()} == built_with


@pytest.mark.parametrize("step", [step for step in STEPS if " pip " in step])
def test_a_step_that_fetches_wants_hashes_and_one_that_builds_fetches_nothing(step: str):
    assert ("--require-hashes" in step) != ("--no-index" in step)
    if "--require-hashes" in step:
        assert any(f"-r {lock}" in step for lock in LOCKS)
    if " pip wheel " in step:
        assert "--no-build-isolation" in step


def test_the_engine_is_sent_every_file_that_is_copied():
    sent = (ROOT / ".dockerignore").read_text()
    for lock in LOCKS:
        assert f"!{lock}\n" in sent
        assert lock in DOCKERFILE
