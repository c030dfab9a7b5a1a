"""What clients share: another credential is another generation, no text has it, and a list is complete."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from libs.clouds.account_session import AccountOptions, AccountSession
from libs.clouds.instances import Unanswered
from libs.common.clocks import utc_now
from tests.clocks import ManualClock

SECRET = "only-the-cloud-knows"


def open_session(
    credential: Path | str, *, is_random: bool = False, now: Callable[[], datetime] = utc_now
) -> AccountSession:
    options = AccountOptions(credential=credential, user_agent="test", now=now)
    return AccountSession(options, is_random=is_random)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "token"


def test_only_another_content_is_another_generation(path: Path):
    clock = ManualClock()
    path.write_text(SECRET)
    session = open_session(path, now=clock.now)
    first = session.credential
    assert first.generation == 1

    clock.advance(10)
    path.write_text(f"  {SECRET}\n")
    assert session.read_credential() == SECRET
    assert session.credential == first

    path.write_text("another")
    assert session.read_credential() == "another"
    assert (session.credential.generation, session.credential.loaded_at) == (2, clock.now())

    path.write_text(SECRET)  # back again: queries by the other one lie between
    assert session.read_credential() == SECRET
    assert session.credential.generation == 3


def test_a_text_is_one_generation_for_ever():
    session = open_session(f" {SECRET}\n")
    first = session.credential
    assert (first.generation, session.read_credential(), session.credential) == (1, SECRET, first)
    for bad in (" ", f"{SECRET}\udce9"):
        answer = open_session(bad).read_credential()
        assert isinstance(answer, Unanswered)
        assert SECRET not in answer.reason


@pytest.mark.parametrize("content", [None, b"", b" \n", b"x" * 70_000, SECRET.encode() + b"\xff"])
def test_an_unusable_file_is_no_credential_and_keeps_the_generation(path: Path, content: bytes | None):
    path.write_text(SECRET)
    session = open_session(path)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    problem = session.read_credential()
    assert isinstance(problem, Unanswered)
    assert problem.outcome == "unauthorized"
    assert str(path) in problem.reason
    assert SECRET not in problem.reason
    assert session.credential.generation == 1

    path.write_text(SECRET)
    assert session.read_credential() == SECRET
    assert session.credential.generation == 1


def test_only_a_random_content_has_a_fingerprint(path: Path):
    path.write_text(SECRET)
    assert open_session(path).credential.fingerprint == ""
    session = open_session(path, is_random=True)
    first = session.credential.fingerprint
    assert len(first) == 16
    path.write_text("another")
    session.read_credential()
    assert session.credential.fingerprint not in ("", first)


def test_the_credential_is_in_no_representation(path: Path):
    path.write_text(SECRET)
    for session in (open_session(path), open_session(SECRET)):
        assert SECRET not in f"{session!r} {session.credential!r} {session.options!r}"


class Page(msgspec.Struct, frozen=True):
    items: Sequence[SimpleNamespace]
    has_next: bool = True


async def test_an_empty_page_before_others_is_no_list():
    session = open_session(SECRET)

    async def read_next(before: list[Page]) -> Page:
        return Page([], has_next=not before)

    found = await session.read_pages("/servers", read_next)
    assert found == Unanswered("malformed", "/servers: a page is empty, and not the last one")


@pytest.mark.parametrize(
    ("count", "distinct", "problem"),
    [
        (200, 200, ""),
        (201, 201, "/servers: more than 200 pages"),
        (2, 1, "/servers: an object is listed twice"),
    ],
)
async def test_pages_that_repeat_an_object_or_never_end_are_no_list(count: int, distinct: int, problem: str):
    session = open_session(SECRET)

    async def read_next(before: list[Page]) -> Page:
        number = len(before)
        return Page([SimpleNamespace(id=number % distinct)], has_next=number + 1 < count)

    found = await session.read_pages("/servers", read_next)
    if problem:
        assert found == Unanswered("malformed", problem)
    else:
        assert isinstance(found, list)
        assert len(found) == count
