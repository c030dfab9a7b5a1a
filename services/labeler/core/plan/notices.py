"""Builds the notices about a Node that need attention but block nothing; each becomes one Event."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from libs.common.cloud_config.findings import truncate_line
from libs.common.contract.node import FIELD_OWNERSHIP_ANNOTATION
from services.labeler.core.blocker import Notice, make_notice
from services.labeler.core.plan.kept_keys import KeptKey, describe_hand_back, describe_taint_opt_in
from services.labeler.core.plan.ownership_record import OwnershipRecord
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


def build_kept_notices(node_name: str, kept: Sequence[KeptKey]) -> tuple[Notice, ...]:
    """Build notices for keys of other writers and withheld taints; only the plan that records them does."""
    return (
        *_limit_notices(
            [each for each in kept if each.current is not None],
            lambda each: make_notice(reason="KeptForOthers", text=_describe_conflict(node_name, each)),
            "KeptForOthers",
            "more keys of other writers stay unchanged",
        ),
        *_limit_notices(
            [each for each in kept if each.current is None],
            lambda each: make_notice(reason="TaintWithheld", text=_describe_withheld(node_name, each)),
            "TaintWithheld",
            "more taints of rules are withheld",
        ),
    )


def build_invalid_label_notices(invalid: Mapping[str, str]) -> tuple[Notice, ...]:
    """Build the notice for built-in labels that Kubernetes would reject."""
    if not invalid:
        return ()
    rejected = ", ".join(f"{key}={value[:100]!r}" for key, value in invalid.items())
    text = f"labels skipped, because Kubernetes rejects their values: {rejected}"
    return (make_notice(reason="LabelSkipped", text=text),)


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


def _describe_conflict(node_name: str, kept: KeptKey) -> str:
    current = (kept.current or "")[:_MAX_VALUE_LENGTH]
    desired = "another value" if kept.desired.startswith("sha256:") else repr(kept.desired)
    return (
        f"another writer has set {kept.kind} {kept.key} to {current!r} instead of {desired} and owns it now; "
        f"to get it back: {describe_hand_back(node_name, kept.kind, kept.key)}"
    )


def _describe_withheld(node_name: str, kept: KeptKey) -> str:
    return (
        f"taint {kept.key} of a rule is not set, because the Node was in use before; "
        f"to set it once: {describe_taint_opt_in(node_name)}"
    )


def _limit_notices(
    found: Sequence[FoundT], build: Callable[[FoundT], Notice], reason: str, rest: str
) -> tuple[Notice, ...]:
    notices, more = tuple(map(build, found[:_MAX_NOTICES_PER_KIND])), len(found) - _MAX_NOTICES_PER_KIND
    return (*notices, Notice(reason, f"{more} {rest}")) if more > 0 else notices
