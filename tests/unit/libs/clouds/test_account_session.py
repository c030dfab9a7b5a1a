"""A listing is complete, of one credential, and ends; else it is no answer."""

from collections.abc import Sequence
from types import SimpleNamespace

import msgspec
import pytest

from libs.clouds.account_session import AccountOptions, AccountSession
from libs.clouds.instances import Unanswered


class Page(msgspec.Struct, frozen=True):
    items: Sequence[SimpleNamespace]
    has_next: bool = True


@pytest.mark.parametrize(
    ("count", "distinct", "problem"),
    [
        (200, 200, ""),
        (201, 201, "/servers: more than 200 pages"),
        (2, 1, "/servers: an object is listed twice"),
    ],
)
async def test_pages_that_repeat_an_object_or_never_end_are_no_list(count: int, distinct: int, problem: str):
    session = AccountSession(AccountOptions(credential="a secret", user_agent="test"))

    async def read_next(before: list[Page]) -> Page:
        number = len(before)
        return Page([SimpleNamespace(id=number % distinct)], has_next=number + 1 < count)

    found = await session.read_pages("/servers", read_next, lambda pages: "")
    if problem:
        assert found == Unanswered("malformed", problem)
    else:
        assert isinstance(found, list)
        assert len(found) == count


def test_the_credential_is_in_no_text_of_the_options():
    assert "a secret" not in repr(AccountOptions(credential="a secret", user_agent="test"))
