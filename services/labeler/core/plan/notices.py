"""Builds the notices about a Node that need attention but block nothing; each becomes one Event."""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.contract.node import FIELD_OWNERSHIP_ANNOTATION
from services.labeler.core.plan.field_ownership import OwnershipConflict
from services.labeler.core.plan.kept_keys import KeyKind, describe_hand_back, describe_taint_opt_in
from services.labeler.core.plan.ownership_record import OwnershipRecord
from services.labeler.core.rules.effects import SkippedEntry

_MAX_NOTICES_PER_KIND: Final = 6  # per plan; the event recorder remembers more
_MAX_MESSAGE_LENGTH: Final = 900  # characters; Kubernetes accepts 1024
_MAX_VALUE_LENGTH: Final = 100


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """The reason and message of one Event."""

    reason: str
    message: str
    is_warning: bool = True


def build_skipped_notices(skipped: tuple[SkippedEntry, ...]) -> tuple[Notice, ...]:
    """Build notices for skipped entries of rules; each names rule, key and value."""
    notices = (
        Notice(reason=_skipped_reason(each), message=_sanitize_line(_describe_skipped(each)))
        for each in skipped
    )
    return _limit_notices(notices, "RuleSkipped", "more keys of rules are skipped")


def build_conflict_notices(
    node_name: str, kind: KeyKind, conflicts: tuple[OwnershipConflict, ...]
) -> tuple[Notice, ...]:
    """Build notices for keys that another writer owns; only the plan that records a conflict reports it."""
    notices = (
        Notice(reason="KeptForOthers", message=_sanitize_line(_describe_conflict(node_name, kind, each)))
        for each in conflicts
    )
    return _limit_notices(notices, "KeptForOthers", f"more {kind}s of other writers stay unchanged")


def build_withheld_notices(node_name: str, keys: Iterable[str]) -> tuple[Notice, ...]:
    """Build notices for withheld taints; only the plan that records them reports them."""
    notices = (
        Notice(
            reason="TaintWithheld",
            message=_sanitize_line(
                f"taint {key} of a rule is not set, because the Node was in use before; "
                f"to set it once: {describe_taint_opt_in(node_name)}"
            ),
        )
        for key in sorted(keys)
    )
    return _limit_notices(notices, "TaintWithheld", "more taints of rules are withheld")


def build_record_notices(record: OwnershipRecord) -> tuple[Notice, ...]:
    """Build the notice for an ownership record that cannot be trusted."""
    if not record.problem:
        return ()
    consequence = {
        "absent": "it lists no key that the labeler set, and is replaced",
        "read": "it is restored, because the keys on the Node match its digest",
        "newer": "it stays, and no key that it may list is changed or removed",
        "unreadable": "no key is removed, and a new record starts; the keys that were set before have no "
        "owner now, and stay when their rule is removed",
    }[record.state]
    text = f"annotation {FIELD_OWNERSHIP_ANNOTATION} cannot be trusted ({record.problem}): {consequence}"
    return (Notice(reason="OwnedRecordUnreadable", message=_sanitize_line(text)),)


def _skipped_reason(skipped: SkippedEntry) -> str:
    reasons = {
        "label": "LabelSkipped",
        "annotation": "AnnotationSkipped",
        "taint": "TaintSkipped",
        "platformMetadata": "PlatformMetadataSkipped",
    }
    return reasons.get(skipped.kind, "RuleSkipped")


def _describe_skipped(skipped: SkippedEntry) -> str:
    if not skipped.key:
        return f"rule {skipped.rule!r}: {skipped.reason}"
    value = f" with the value {skipped.value[:_MAX_VALUE_LENGTH]!r}" if skipped.value else ""
    return f"rule {skipped.rule!r}: {skipped.kind} {skipped.key!r}{value} is left out: {skipped.reason}"


def _describe_conflict(node_name: str, kind: KeyKind, conflict: OwnershipConflict) -> str:
    did = "has changed" if conflict.was_ours else "has set"
    current, desired = conflict.current[:_MAX_VALUE_LENGTH], conflict.desired[:_MAX_VALUE_LENGTH]
    return (
        f"another writer {did} {kind} {conflict.key} to {current!r} instead of {desired!r} and owns it now; "
        f"to get it back: {describe_hand_back(node_name, kind, conflict.key)}"
    )


def _limit_notices(notices: Iterable[Notice], reason: str, rest: str) -> tuple[Notice, ...]:
    found = tuple(notices)
    if len(found) <= _MAX_NOTICES_PER_KIND:
        return found
    more = Notice(reason=reason, message=f"{len(found) - _MAX_NOTICES_PER_KIND} {rest}")
    return (*found[:_MAX_NOTICES_PER_KIND], more)


def _sanitize_line(text: str) -> str:
    # The text contains input of machines and other controllers, and is read in terminals.
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return plain if len(plain) <= _MAX_MESSAGE_LENGTH else plain[: _MAX_MESSAGE_LENGTH - 1] + "…"
