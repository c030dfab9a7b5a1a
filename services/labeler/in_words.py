"""A plan in words: one line for each change, for people and for the log."""

from collections.abc import Iterable
from typing import Final

from libs.common.node import CONDITION_BLOCKED, OWNED_RECORD, RECORD_DIGEST, NodeAddress, Taint
from libs.common.patch import NodeChanges
from services.labeler.rules.outcome import in_one_line

_MOST_VALUE: Final = 200  # characters of an annotation


def status_in_words(addresses: tuple[NodeAddress, ...] | None, *, unblock: bool) -> tuple[str, ...]:
    """What is written into the Node's status."""
    lines = []
    if addresses is not None:
        lines.append("addresses " + ", ".join(f"{each.type}={each.address}" for each in addresses))
    if unblock:
        lines.append(f"condition {CONDITION_BLOCKED} removed")
    return tuple(lines)


def changes_in_words(changes: NodeChanges) -> tuple[str, ...]:
    """What is written into the Node; the record is named only where it is all that is written."""
    labels = {key: value for key, value in changes.labels.items() if key != RECORD_DIGEST}
    annotations = {key: value for key, value in changes.annotations.items() if key != OWNED_RECORD}
    lines = (
        *_keys("label", labels),
        *_keys("annotation", annotations),
        *(() if changes.provider_id is None else (f"providerID {changes.provider_id}",)),
        *(f"taint {_told(taint)} set" for taint in changes.set_taints),
        *(f"taint {taint.key}:{taint.effect} removed" for taint in changes.remove_taints),
    )
    if lines or OWNED_RECORD not in changes.annotations:
        return lines
    return (f"annotation {OWNED_RECORD}: whose keys these are",)


def _keys(kind: str, wanted: dict[str, str | None]) -> Iterable[str]:
    for key, value in wanted.items():
        yield f"{kind} {key} removed" if value is None else f"{kind} {key}={_shortened(value)}"


def _told(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _shortened(value: str) -> str:
    return in_one_line(value, _MOST_VALUE)  # a machine has a say in it, and it is read in terminals
