"""Builds the notices about a Node that need attention but block nothing; each becomes one Event."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from libs.common.cloud_config.findings import truncate_line
from libs.common.contract.node import FIELD_OWNERSHIP_ANNOTATION
from services.labeler.core.blocker import Notice, make_notice
from services.labeler.core.plan.field_ownership import OwnershipConflict
from services.labeler.core.plan.kept_keys import (
    KIND_NAMES,
    KeyKind,
    describe_hand_back,
    describe_taint_opt_in,
)
from services.labeler.core.plan.ownership_record import FieldKind, OwnershipRecord
from services.labeler.core.rules.effects import EntryResult, RuleEffects

FoundT = TypeVar("FoundT")
_MAX_NOTICES_PER_KIND: Final = 6  # per plan; the event recorder remembers more
_MAX_VALUE_LENGTH: Final = 100
_SKIPPED_REASONS: Final = {
    "label": "LabelSkipped",
    "annotation": "AnnotationSkipped",
    "taint": "TaintSkipped",
    "platformMetadata": "PlatformMetadataSkipped",
}


def build_skipped_notices(effects: RuleEffects) -> tuple[Notice, ...]:
    """Build notices for skipped entries of rules, with rule, key and value, and for unevaluated rules."""
    entries = _limit_notices(
        tuple(effects.list_skipped()), _build_skipped_notice, "RuleSkipped", "more keys of rules are skipped"
    )
    if (first := effects.exhausted_by) is None:
        return entries
    return (*entries, make_notice("RuleSkipped", f"rule {first.rule!r}: {first.reason}"))


def build_conflict_notices(
    node_name: str, kind: FieldKind, conflicts: tuple[OwnershipConflict, ...]
) -> tuple[Notice, ...]:
    """Build notices for keys that another writer owns; only the plan that records a conflict reports it."""
    return _limit_notices(
        conflicts,
        lambda each: make_notice(
            reason="KeptForOthers", text=_describe_conflict(node_name, KIND_NAMES[kind], each)
        ),
        "KeptForOthers",
        f"more {kind} of other writers stay unchanged",
    )


def build_invalid_label_notices(invalid: Mapping[str, str]) -> tuple[Notice, ...]:
    """Build the notice for built-in labels that Kubernetes would reject."""
    if not invalid:
        return ()
    rejected = ", ".join(f"{key}={value[:100]!r}" for key, value in invalid.items())
    text = f"labels skipped, because Kubernetes rejects their values: {rejected}"
    return (make_notice(reason="LabelSkipped", text=text),)


def build_withheld_notices(node_name: str, keys: Iterable[str]) -> tuple[Notice, ...]:
    """Build notices for withheld taints; only the plan that records them reports them."""
    command = describe_taint_opt_in(node_name)
    return _limit_notices(
        sorted(keys),
        lambda key: make_notice(
            reason="TaintWithheld",
            text=f"taint {key} of a rule is not set, because the Node was in use before; "
            f"to set it once: {command}",
        ),
        "TaintWithheld",
        "more taints of rules are withheld",
    )


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
    return (make_notice(reason="OwnedRecordUnreadable", text=text),)


def _build_skipped_notice(skipped: tuple[str, EntryResult]) -> Notice:
    rule, entry = skipped
    value = f" with the value {truncate_line(entry.rendered, _MAX_VALUE_LENGTH)!r}" if entry.rendered else ""
    text = f"rule {rule!r}: {entry.kind} {entry.key!r}{value} is left out: {entry.problem}"
    return make_notice(_SKIPPED_REASONS[entry.kind], text)


def _describe_conflict(node_name: str, kind: KeyKind, conflict: OwnershipConflict) -> str:
    did = "has changed" if conflict.was_ours else "has set"
    current, desired = conflict.current[:_MAX_VALUE_LENGTH], conflict.desired[:_MAX_VALUE_LENGTH]
    return (
        f"another writer {did} {kind} {conflict.key} to {current!r} instead of {desired!r} and owns it now; "
        f"to get it back: {describe_hand_back(node_name, kind, conflict.key)}"
    )


def _limit_notices(
    found: Sequence[FoundT], build: Callable[[FoundT], Notice], reason: str, rest: str
) -> tuple[Notice, ...]:
    notices, more = tuple(map(build, found[:_MAX_NOTICES_PER_KIND])), len(found) - _MAX_NOTICES_PER_KIND
    return (*notices, Notice(reason, f"{more} {rest}")) if more > 0 else notices
