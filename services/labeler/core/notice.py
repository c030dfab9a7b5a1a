"""A reason with its message: why a Node cannot be initialized yet, or what needs attention on it."""

from typing import Final

import msgspec

_MAX_MESSAGE_LENGTH: Final = 1024  # characters; Kubernetes accepts no longer Event


class Notice(msgspec.Struct, frozen=True):
    """The reason and message of one Event or, for a blocker, of the blocking condition too."""

    reason: str  # CamelCase
    message: str
    is_warning: bool = True


def make_notice(reason: str, text: str) -> Notice:
    """Return a warning with this text in one bounded line.

    The text contains input of machines and other controllers, and is read in terminals.
    """
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    is_short = len(plain) <= _MAX_MESSAGE_LENGTH
    return Notice(reason, plain if is_short else plain[: _MAX_MESSAGE_LENGTH - 1] + "…")
