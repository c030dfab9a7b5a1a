"""What Kubernetes refuses of the rules for one Node: that Node is written without it, and says so.

Whatever can be judged of a single value is judged before; this is for the rest: annotations that are too many
beside those of others, formats that the API server demands of some keys, admission policies.
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from libs.common.contract.node import Node, Taint
from services.labeler.notices import Notice
from services.labeler.rules.effect_collector import truncate_line
from services.labeler.rules.effects import RuleEffects

RejectableKind = Literal["annotation", "label", "taint"]

# What is left out while refusals name no field, as those of webhooks. Taints come last: they keep pods away.
_STEPS: Final[tuple[frozenset[RejectableKind], ...]] = (
    frozenset(),
    frozenset({"annotation"}),
    frozenset({"label"}),
    frozenset({"annotation", "label"}),
    frozenset({"annotation", "label", "taint"}),
)
_MAX_MESSAGE_LENGTH: Final = 600


class Rejection(msgspec.Struct, frozen=True):
    """Kinds of keys that rules do not set for now, and what Kubernetes said of them."""

    kinds: frozenset[RejectableKind] = frozenset()
    message: str = ""
    named_kinds: frozenset[RejectableKind] = frozenset()  # those of `kinds` whose fields a refusal has named
    step: int = 0  # index of the last of the steps that was tried


NO_REJECTION: Final = Rejection()


def extend_rejection(before: Rejection, fields: Iterable[str], message: str) -> Rejection | None:
    """What to leave out after another refusal, which names these fields of the Node; None: all was tried."""
    named = before.named_kinds.union(kind for field in fields if (kind := _kind_of_field(field)))
    if named - before.kinds:
        return Rejection(before.kinds | named, message, named, before.step)
    for step in range(before.step + 1, len(_STEPS)):
        kinds = named | _STEPS[step]
        if kinds not in (before.kinds, named):
            return Rejection(kinds, message, named, step)
    return None


def drop_rejected(effects: RuleEffects, rejection: Rejection) -> RuleEffects:
    """The rest of what rules want; what is refused stays on the Node as it is."""
    wanted: dict[RejectableKind, list[str]] = {
        "annotation": list(effects.annotations),
        "label": list(effects.labels),
        "taint": [taint.key for taint in effects.taints],
    }
    keys = {(kind, key) for kind in rejection.kinds for key in wanted[kind]}
    return msgspec.structs.replace(
        effects,
        annotations={} if "annotation" in rejection.kinds else effects.annotations,
        labels={} if "label" in rejection.kinds else effects.labels,
        taints=() if "taint" in rejection.kinds else effects.taints,
        retained=effects.retained.union(keys),
    )


def keeps_uninitialized(node: Node, rejection: Rejection) -> bool:
    """Whether the Node has to wait: without its taint, pods would come that the taint is to keep away."""
    return "taint" in rejection.kinds and not node.is_initialized


def describe_rejected_taints(taints: Iterable[Taint]) -> str:
    """What an operator should know of a Node that waits for these taints of rules."""
    keys = ", ".join(f"{taint.key}:{taint.effect}" for taint in taints)
    return (
        f"Kubernetes refuses the patch with taints of rules ({keys}); until it accepts them, the Node waits"
    )


def build_rejection_notices(rejection: Rejection) -> tuple[Notice, ...]:
    """What to tell of it on the Node."""
    if not rejection.kinds:
        return ()
    kinds = ", ".join(f"{kind}s" for kind in sorted(rejection.kinds))
    said = truncate_line(rejection.message, _MAX_MESSAGE_LENGTH)
    text = f"Kubernetes refuses {kinds} that rules set: {said}; the rest is written without them"
    return (Notice(reason="RulesRefused", message=text),)


def _kind_of_field(field: str) -> RejectableKind | None:
    if ".taints[" in field:
        return "taint"
    if field.startswith("metadata.annotations"):
        return "annotation"
    return "label" if field.startswith("metadata.labels") else None
