"""How one state of a Node differs from another, key by key. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from libs.common.node import BLOCKED_CONDITION, FIELD_OWNERSHIP_ANNOTATION, FIELD_OWNERSHIP_DIGEST_LABEL, Node

ChangeKind = Literal[
    "label", "annotation", "taint", "providerID", "address", "order of addresses", "condition", "record"
]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that changes; None is not there."""

    kind: ChangeKind
    key: str = ""  # of a taint with its effect, as Kubernetes has one for each: key:Effect
    before: str | None
    after: str | None

    @property
    def mark(self) -> str:
        """As in a diff: + and - for what comes and goes, ~ for another value."""
        if self.before is None:
            return "+"
        return "-" if self.after is None else "~"


def changes(before: Node, after: Node) -> tuple[Change, ...]:
    """In the order in which people look for them; our own record only where nothing else changes."""
    found = [
        *_of_maps(
            "label",
            _but(FIELD_OWNERSHIP_DIGEST_LABEL, before.labels),
            _but(FIELD_OWNERSHIP_DIGEST_LABEL, after.labels),
        ),
        *_of_maps(
            "annotation",
            _but(FIELD_OWNERSHIP_ANNOTATION, before.annotations),
            _but(FIELD_OWNERSHIP_ANNOTATION, after.annotations),
        ),
        *_of_maps("taint", _taints(before), _taints(after)),
        *_of_texts("providerID", before.spec.provider_id, after.spec.provider_id),
        *_of_addresses(_addresses(before), _addresses(after)),
        *_of_texts("condition", _condition(before), _condition(after)),
    ]
    records = [node.annotations.get(FIELD_OWNERSHIP_ANNOTATION, "") for node in (before, after)]
    record = _of_texts("record", *records)
    return tuple(found or record)


def _of_maps(kind: ChangeKind, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            yield Change(kind=kind, key=key, before=before.get(key), after=after.get(key))


def _of_texts(kind: ChangeKind, before: str, after: str) -> Iterator[Change]:
    if before != after:
        yield Change(kind=kind, before=before or None, after=after or None)


def _but(ours: str, keys: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in keys.items() if key != ours}


def _taints(node: Node) -> dict[str, str]:
    """Kubernetes allows a key once for each effect."""
    return {f"{taint.key}:{taint.effect}": taint.value for taint in node.spec.taints}


def _of_addresses(before: Sequence[str], after: Sequence[str]) -> Iterator[Change]:
    for address in before:
        if address not in after:
            yield Change(kind="address", before=address, after=None)
    for address in after:
        if address not in before:
            yield Change(kind="address", before=None, after=address)
    if before != after and sorted(before) == sorted(after):
        yield Change(kind="order of addresses", before=", ".join(before), after=", ".join(after))


def _addresses(node: Node) -> list[str]:
    return [f"{each.type} {each.address}" for each in node.status.addresses]


def _condition(node: Node) -> str:
    return BLOCKED_CONDITION if node.find_condition(BLOCKED_CONDITION) is not None else ""
