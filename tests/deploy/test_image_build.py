"""The Dockerfile installs locked packages by hash, strips their shared objects and imports them."""

import re
import tomllib

import pytest

from tests.architecture.sources import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
LOCKS = ("requirements-image.lock", "requirements-build.lock")
STEPS = [step for line in DOCKERFILE.splitlines() if line.startswith("RUN ") for step in line.split("&&")]


def pinned(lock: str) -> dict[str, str]:
    """The versions by name; each entry must have a hash."""
    text = (ROOT / lock).read_text()
    found = re.findall(r"^([\w.-]+)==([^\s;]+)[^\n]*\\\n +--hash=sha256:", text, re.MULTILINE)
    assert len(found) == len(re.findall(r"^[\w.-]+==", text, re.MULTILINE)), "an entry without a hash"
    return dict(found)


def test_build_requirements_are_locked_at_the_versions_of_the_main_lock():
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    built_with, main = pinned("requirements-build.lock"), pinned("requirements.lock")
    assert set(backend) <= built_with.keys()
    assert {name: main.get(name, version) for name, version in built_with.items()} == built_with


@pytest.mark.parametrize("step", [step for step in STEPS if " pip " in step])
def test_steps_that_download_require_hashes_and_steps_that_build_do_not_download(step: str):
    assert ("--require-hashes" in step) != ("--no-index" in step)
    if "--require-hashes" in step:
        assert any(f"-r {lock}" in step for lock in LOCKS)
    if " pip wheel " in step:
        assert "--no-build-isolation" in step


def test_each_image_gets_shared_objects_that_were_stripped_and_then_imported():
    (stage,) = [text for text in DOCKERFILE.split("\nFROM ") if "-exec strip " in text]
    assert stage.splitlines()[0].endswith(" AS dependencies")
    (line,) = [line for line in stage.splitlines() if line.startswith("RUN find ")]
    strip, check = re.split(r" +&& ", line)
    assert strip.startswith("RUN find /app -name '*.so*' -type f -exec strip ")
    assert check == "/app/bin/python extension_modules.py"
    for later in ("installed", "installed-testbed"):
        (start,) = re.findall(rf"^FROM (.+) AS {later}$", DOCKERFILE, re.MULTILINE)
        assert start in {"dependencies", "installed"}


def test_dockerignore_includes_every_copied_file():
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        source
        for line in DOCKERFILE.splitlines()
        if line.startswith("COPY ") and "--from=" not in line
        for source in line.split()[1:-1]
    ]
    assert set(LOCKS) < set(copied)
    for source in copied:
        assert (ROOT / source).exists()
        assert any(source == path or source.startswith(f"{path}/") for path in sent), source
