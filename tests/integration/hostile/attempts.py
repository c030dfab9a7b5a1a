"""One attempt of an attacker and what comes of it, as a row of a table."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import msgspec

WorldT = TypeVar("WorldT")


class Attempt(msgspec.Struct, Generic[WorldT], frozen=True):
    """A row of docs/threat-model.md; `carry_out` raises AssertionError on any other outcome."""

    name: str  # what the attacker tries
    outcome: str  # what happens instead, in one sentence
    carry_out: Callable[[WorldT], Awaitable[None]]
