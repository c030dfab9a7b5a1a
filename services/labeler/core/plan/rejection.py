"""Omits the keys of rules that Kubernetes rejects for one Node, and reports them.

Rules validate single values earlier. This module handles the other rejections: too many annotations together
with those of other writers, formats that the API server requires for some keys, and admission policies.
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from libs.common.cloud_config.findings import truncate_line
from libs.common.contract.node import Node, Taint
from services.labeler.core.blocker import Notice
from services.labeler.core.rules.effects import RuleEffects

RejectableKind = Literal["annotation", "label", "taint"]

# The kinds to omit in turn while rejections name no field, like those of webhooks. Taints come last, because
# they keep pods away.
_STEPS: Final[tuple[frozenset[RejectableKind], ...]] = (
    frozenset({"annotation"}),
    frozenset({"label"}),
    frozenset({"annotation", "label"}),
    frozenset({"annotation", "label", "taint"}),
)
_MAX_MESSAGE_LENGTH: Final = 600


class Rejection(msgspec.Struct, frozen=True):
    """The kinds of keys that rules do not set for now, and the API server's message."""

    kinds: frozenset[RejectableKind] = frozenset()
    message: str = ""
    named_kinds: frozenset[RejectableKind] = frozenset()  # the `kinds` whose fields a rejection has named
    tried: tuple[frozenset[RejectableKind], ...] = ()  # the `kinds` before


NO_REJECTION: Final = Rejection()


def extend_rejection(before: Rejection, fields: Iterable[str], message: str) -> Rejection | None:
    """Return what to omit after another rejection that names these `fields`; None if all was tried."""
    named = before.named_kinds.union(kind for field in fields if (kind := _kind_of_field(field)))
    tried = (*before.tried, before.kinds)
    candidates = (before.kinds | named, *(named | step for step in _STEPS))
    kinds = next((each for each in candidates if each not in tried), None)
    return None if kinds is None else Rejection(kinds, message, named, tried)


def drop_rejected(effects: RuleEffects, rejection: Rejection) -> RuleEffects:
    """Return the effects without the rejected kinds, whose keys stay unchanged on the Node."""
    keys_by_kind: dict[RejectableKind, list[str]] = {
        "annotation": list(effects.annotations),
        "label": list(effects.labels),
        "taint": [taint.key for taint in effects.taints],
    }
    keys = {(kind, key) for kind in rejection.kinds for key in keys_by_kind[kind]}
    return msgspec.structs.replace(
        effects,
        annotations={} if "annotation" in rejection.kinds else effects.annotations,
        labels={} if "label" in rejection.kinds else effects.labels,
        taints=() if "taint" in rejection.kinds else effects.taints,
        retained=effects.retained.union(keys),
    )


def keeps_uninitialized(node: Node, rejection: Rejection) -> bool:
    """Return whether the Node must stay uninitialized: a rejected taint would not keep pods away."""
    return "taint" in rejection.kinds and not node.is_initialized


def describe_rejected_taints(taints: Iterable[Taint]) -> str:
    """Return the message for a Node that waits because Kubernetes rejects these taints of rules."""
    keys = ", ".join(f"{taint.key}:{taint.effect}" for taint in taints)
    return f"Kubernetes rejects the patch with taints of rules ({keys}); the Node waits until it accepts them"


def build_rejection_notices(rejection: Rejection) -> tuple[Notice, ...]:
    """Build the notice about the rejected kinds of keys."""
    if not rejection.kinds:
        return ()
    kinds = ", ".join(f"{kind}s" for kind in sorted(rejection.kinds))
    message = truncate_line(rejection.message, _MAX_MESSAGE_LENGTH)
    text = f"Kubernetes rejects {kinds} of rules: {message}; the labeler writes the rest without them"
    return (Notice(reason="RulesRefused", message=text),)


def _kind_of_field(field: str) -> RejectableKind | None:
    if ".taints[" in field:
        return "taint"
    if field.startswith("metadata.annotations"):
        return "annotation"
    return "label" if field.startswith("metadata.labels") else None
