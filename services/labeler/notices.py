"""What an operator should know of a Node and that stops nothing: each is one Event, said once."""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.node import OWNED_RECORD
from services.labeler.owned import Record
from services.labeler.rules.effects import Skipped
from services.labeler.whose_key import Theirs

_MOST_OF_A_KIND: Final = 6  # Events of one look at a Node: `told` remembers 32 for its lifetime
_MOST_TEXT: Final = 900  # characters; Kubernetes takes 1024
_MOST_VALUE: Final = 100
_HANDED_BACK: Final = "remove it from the Node and it is set again"


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One Event."""

    reason: str
    message: str
    warning: bool = True


def of_skipped(skipped: tuple[Skipped, ...]) -> tuple[Notice, ...]:
    """What rules could not do, in the words of rule, key and value."""
    told = (Notice(reason=_reason(each), message=_line(_skipped_in_words(each))) for each in skipped)
    return _bounded(told, "RuleSkipped", "more keys of rules are left out")


def of_theirs(kind: str, theirs: tuple[Theirs, ...]) -> tuple[Notice, ...]:
    """Keys that somebody else has decided upon; said by the plan that records it."""
    told = (Notice(reason="KeptForOthers", message=_line(_theirs_in_words(kind, each))) for each in theirs)
    return _bounded(told, "KeptForOthers", f"more {kind}s of others are left as they are")


def of_record(record: Record) -> tuple[Notice, ...]:
    """A record that is not to be trusted."""
    if not record.problem:
        return ()
    follows = {
        "absent": "it names nothing that was set here, and is replaced",
        "read": "it is put back, as what is on the Node says for certain what it was",
        "newer": "it stays, and nothing that it may name is changed or removed",
        "unreadable": "nothing is removed and a new record is begun; what was set before is nobody's, and "
        "stays when its rule goes",
    }[record.state]
    text = f"annotation {OWNED_RECORD} is not to be trusted ({record.problem}): {follows}"
    return (Notice(reason="OwnedRecordUnreadable", message=_line(text)),)


def _reason(skipped: Skipped) -> str:
    known = {
        "label": "LabelSkipped",
        "annotation": "AnnotationSkipped",
        "taint": "TaintSkipped",
        "platformMetadata": "PlatformMetadataSkipped",
    }
    return known.get(skipped.kind, "RuleSkipped")


def _skipped_in_words(skipped: Skipped) -> str:
    if not skipped.key:
        return f"rule {skipped.rule!r}: {skipped.reason}"
    value = f" with the value {skipped.value[:_MOST_VALUE]!r}" if skipped.value else ""
    return f"rule {skipped.rule!r}: {skipped.kind} {skipped.key!r}{value} is left out: {skipped.reason}"


def _theirs_in_words(kind: str, theirs: Theirs) -> str:
    did = "was changed by somebody else to" if theirs.was_ours else "was set by somebody else to"
    present, wanted = theirs.present[:_MOST_VALUE], theirs.wanted[:_MOST_VALUE]
    return (
        f"{kind} {theirs.key} {did} {present!r}, where it would be {wanted!r}: it is theirs from now on; "
        f"{_HANDED_BACK}"
    )


def _bounded(notices: Iterable[Notice], reason: str, rest: str) -> tuple[Notice, ...]:
    found = tuple(notices)
    if len(found) <= _MOST_OF_A_KIND:
        return found
    more = Notice(reason=reason, message=f"{len(found) - _MOST_OF_A_KIND} {rest}")
    return (*found[:_MOST_OF_A_KIND], more)


def _line(text: str) -> str:
    # Machines and other controllers have a say in it, and it is read in terminals.
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return plain if len(plain) <= _MOST_TEXT else plain[: _MOST_TEXT - 1] + "…"
