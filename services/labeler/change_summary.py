"""Summarizes the changes of a plan, one line each, for operators and the log."""

from collections.abc import Iterable
from typing import Final

from libs.common.contract.node import (
    BLOCKED_CONDITION,
    FIELD_OWNERSHIP_ANNOTATION,
    FIELD_OWNERSHIP_DIGEST_LABEL,
    NodeAddress,
    Taint,
)
from libs.common.contract.node_patch import NodeChanges
from services.labeler.rules.effect_collector import truncate_line

_MAX_VALUE_LENGTH: Final = 200  # characters of an annotation


def summarize_status(
    addresses: tuple[NodeAddress, ...] | None, *, removes_condition: bool
) -> tuple[str, ...]:
    """Return one line for each change to the Node's status."""
    lines = []
    if addresses is not None:
        lines.append("addresses " + ", ".join(f"{each.type}={each.address}" for each in addresses))
    if removes_condition:
        lines.append(f"condition {BLOCKED_CONDITION} removed")
    return tuple(lines)


def summarize_changes(changes: NodeChanges) -> tuple[str, ...]:
    """Return one line for each change to the Node; the record gets one only if nothing else changes."""
    labels = {key: value for key, value in changes.labels.items() if key != FIELD_OWNERSHIP_DIGEST_LABEL}
    annotations = {
        key: value for key, value in changes.annotations.items() if key != FIELD_OWNERSHIP_ANNOTATION
    }
    lines = (
        *_summarize_keys("label", labels),
        *_summarize_keys("annotation", annotations),
        *(() if changes.provider_id is None else (f"providerID {changes.provider_id}",)),
        *(f"taint {_format_taint(taint)} set" for taint in changes.set_taints),
        *(f"taint {taint.key}:{taint.effect} removed" for taint in changes.remove_taints),
    )
    if lines or FIELD_OWNERSHIP_ANNOTATION not in changes.annotations:
        return lines
    return (f"annotation {FIELD_OWNERSHIP_ANNOTATION}: whose keys these are",)


def _summarize_keys(kind: str, changes: dict[str, str | None]) -> Iterable[str]:
    for key, value in changes.items():
        yield f"{kind} {key} removed" if value is None else f"{kind} {key}={_truncate_value(value)}"


def _format_taint(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _truncate_value(value: str) -> str:
    return truncate_line(value, _MAX_VALUE_LENGTH)  # machine input, read in terminals
