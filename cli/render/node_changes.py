"""The difference between two states of a Node, key by key. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from libs.common.contract.node import (
    BLOCKED_CONDITION,
    FIELD_OWNERSHIP_ANNOTATION,
    FIELD_OWNERSHIP_DIGEST_LABEL,
    Node,
)

ChangeKind = Literal[
    "label", "annotation", "taint", "providerID", "address", "order of addresses", "condition", "record"
]


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change; None means that the value is absent."""

    kind: ChangeKind
    key: str = ""  # for a taint key:Effect, because Kubernetes allows one per effect
    before: str | None
    after: str | None

    @property
    def diff_mark(self) -> str:
        """Return + for an added, - for a removed and ~ for a changed value."""
        if self.before is None:
            return "+"
        return "-" if self.after is None else "~"


def diff_nodes(before: Node, after: Node) -> tuple[NodeChange, ...]:
    """Return the changes in reading order.

    The ownership record appears only if nothing else changes.
    """
    found = [
        *_diff_maps(
            "label",
            _exclude_keys(FIELD_OWNERSHIP_DIGEST_LABEL, before.labels),
            _exclude_keys(FIELD_OWNERSHIP_DIGEST_LABEL, after.labels),
        ),
        *_diff_maps(
            "annotation",
            _exclude_keys(FIELD_OWNERSHIP_ANNOTATION, before.annotations),
            _exclude_keys(FIELD_OWNERSHIP_ANNOTATION, after.annotations),
        ),
        *_diff_maps("taint", _format_taints(before), _format_taints(after)),
        *_diff_texts("providerID", before.spec.provider_id, after.spec.provider_id),
        *_diff_addresses(_format_addresses(before), _format_addresses(after)),
        *_diff_texts("condition", _format_condition(before), _format_condition(after)),
    ]
    records = [node.annotations.get(FIELD_OWNERSHIP_ANNOTATION, "") for node in (before, after)]
    record = _diff_texts("record", *records)
    return tuple(found or record)


def _diff_maps(kind: ChangeKind, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[NodeChange]:
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            yield NodeChange(kind=kind, key=key, before=before.get(key), after=after.get(key))


def _diff_texts(kind: ChangeKind, before: str, after: str) -> Iterator[NodeChange]:
    if before != after:
        yield NodeChange(kind=kind, before=before or None, after=after or None)


def _exclude_keys(ours: str, keys: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in keys.items() if key != ours}


def _format_taints(node: Node) -> dict[str, str]:
    """Return the taints by key and effect, because Kubernetes allows a key once per effect."""
    return {f"{taint.key}:{taint.effect}": taint.value for taint in node.spec.taints}


def _diff_addresses(before: Sequence[str], after: Sequence[str]) -> Iterator[NodeChange]:
    for address in before:
        if address not in after:
            yield NodeChange(kind="address", before=address, after=None)
    for address in after:
        if address not in before:
            yield NodeChange(kind="address", before=None, after=address)
    if before != after and sorted(before) == sorted(after):
        yield NodeChange(kind="order of addresses", before=", ".join(before), after=", ".join(after))


def _format_addresses(node: Node) -> list[str]:
    return [f"{each.type} {each.address}" for each in node.status.addresses]


def _format_condition(node: Node) -> str:
    return BLOCKED_CONDITION if node.find_condition(BLOCKED_CONDITION) is not None else ""
