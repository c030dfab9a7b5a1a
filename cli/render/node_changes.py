"""The difference between two states of a Node, key by key. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, get_args

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
_READING_ORDER: Final[tuple[ChangeKind, ...]] = get_args(ChangeKind)


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
    old, new = _list_values(before), _list_values(after)
    changes = [change for kind in old for change in _diff_maps(kind, old[kind], new[kind])]
    changes += _diff_addresses(_format_addresses(before), _format_addresses(after))
    changes.sort(key=lambda change: _READING_ORDER.index(change.kind))
    return tuple([change for change in changes if change.kind != "record"] or changes)


def _list_values(node: Node) -> dict[ChangeKind, dict[str, str]]:
    """Return the values of a Node by kind and key, except addresses; "" is the key of a single value."""
    is_blocked = node.find_condition(BLOCKED_CONDITION) is not None
    single: dict[ChangeKind, str] = {
        "providerID": node.spec.provider_id,
        "condition": BLOCKED_CONDITION if is_blocked else "",
        "record": node.annotations.get(FIELD_OWNERSHIP_ANNOTATION, ""),
    }
    return {
        "label": {key: text for key, text in node.labels.items() if key != FIELD_OWNERSHIP_DIGEST_LABEL},
        "annotation": {
            key: text for key, text in node.annotations.items() if key != FIELD_OWNERSHIP_ANNOTATION
        },
        "taint": {f"{taint.key}:{taint.effect}": taint.value for taint in node.spec.taints},
        **{kind: {"": text} if text else {} for kind, text in single.items()},
    }


def _diff_maps(kind: ChangeKind, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[NodeChange]:
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            yield NodeChange(kind=kind, key=key, before=before.get(key), after=after.get(key))


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
