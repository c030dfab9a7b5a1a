"""The credential of an account: a new content is a new generation, and no text has it."""

from pathlib import Path

import pytest

from libs.clouds.credential_file import CredentialFile
from libs.clouds.instances import Unanswered
from tests.clocks import ManualClock

SECRET = "only-the-cloud-knows"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "token"


def test_only_another_content_is_another_generation(path: Path):
    clock = ManualClock()
    path.write_text(SECRET)
    file = CredentialFile(path, now=clock.now)
    first = file.credential
    assert first.generation == 1

    clock.advance(10)
    path.write_text(f"  {SECRET}\n")
    assert file.read() == SECRET
    assert file.credential == first

    path.write_text("another")
    assert file.read() == "another"
    assert (file.credential.generation, file.credential.loaded_at) == (2, clock.now())

    path.write_text(SECRET)  # back again: queries by the other one lie between
    assert file.read() == SECRET
    assert file.credential.generation == 3


def test_a_text_is_one_generation_for_ever():
    text = CredentialFile(f" {SECRET}\n", now=ManualClock().now)
    first = text.credential
    assert (first.generation, text.read(), text.credential) == (1, SECRET, first)
    for bad in (" ", f"{SECRET}\udce9"):
        answer = CredentialFile(bad, now=ManualClock().now).read()
        assert isinstance(answer, Unanswered)
        assert SECRET not in answer.reason


@pytest.mark.parametrize("content", [None, b"", b" \n", b"x" * 70_000, SECRET.encode() + b"\xff"])
def test_an_unusable_file_is_no_credential_and_keeps_the_generation(path: Path, content: bytes | None):
    path.write_text(SECRET)
    file = CredentialFile(path, now=ManualClock().now)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    problem = file.read()
    assert isinstance(problem, Unanswered)
    assert problem.outcome == "unauthorized"
    assert str(path) in problem.reason
    assert SECRET not in problem.reason
    assert file.credential.generation == 1

    path.write_text(SECRET)
    assert file.read() == SECRET
    assert file.credential.generation == 1


def test_only_a_random_content_has_a_fingerprint(path: Path):
    path.write_text(SECRET)
    assert CredentialFile(path, now=ManualClock().now).credential.fingerprint == ""
    file = CredentialFile(path, is_random=True, now=ManualClock().now)
    first = file.credential.fingerprint
    assert len(first) == 16
    path.write_text("another")
    file.read()
    assert file.credential.fingerprint not in ("", first)


def test_the_credential_is_in_no_representation(path: Path):
    path.write_text(SECRET)
    file = CredentialFile(path, now=ManualClock().now)
    assert SECRET not in f"{file!r} {file.credential!r}"
