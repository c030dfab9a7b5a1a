"""What Kubernetes refuses of the rules for one Node: that Node is written without it, and says so.

Whatever can be judged of a single value is judged before; this is for the rest: annotations that are too many
beside those of others, formats that the API server demands of some keys, admission policies.
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from services.labeler.notices import Notice
from services.labeler.rules.effects import RuleEffects
from services.labeler.rules.outcome import in_one_line

RefusedKind = Literal["annotation", "label", "taint"]

_ALL: Final[frozenset[RefusedKind]] = frozenset({"annotation", "label", "taint"})
_MOST_SAID: Final = 600


class Refused(msgspec.Struct, frozen=True):
    """Kinds of keys that rules do not set for now, and what Kubernetes said of them."""

    kinds: frozenset[RefusedKind] = frozenset()
    said: str = ""


NOTHING_REFUSED: Final = Refused()


def refused_with(before: Refused, fields: Iterable[str], said: str) -> Refused:
    """After another refusal, which names these fields of the Node; if it names nothing new, all goes."""
    named = frozenset(kind for field in fields if (kind := _kind(field)))
    return Refused(before.kinds | named if named - before.kinds else _ALL, said)


def without(effects: RuleEffects, refused: Refused) -> RuleEffects:
    """The rest of what rules want; what is refused stays on the Node as it is."""
    wanted: dict[RefusedKind, list[str]] = {
        "annotation": list(effects.annotations),
        "label": list(effects.labels),
        "taint": [taint.key for taint in effects.taints],
    }
    keys = {(kind, key) for kind in refused.kinds for key in wanted[kind]}
    return msgspec.structs.replace(
        effects,
        annotations={} if "annotation" in refused.kinds else effects.annotations,
        labels={} if "label" in refused.kinds else effects.labels,
        taints=() if "taint" in refused.kinds else effects.taints,
        retained=effects.retained.union(keys),
    )


def notices_of(refused: Refused) -> tuple[Notice, ...]:
    """What to tell of it on the Node."""
    if not refused.kinds:
        return ()
    kinds = ", ".join(f"{kind}s" for kind in sorted(refused.kinds))
    said = in_one_line(refused.said, _MOST_SAID)
    text = f"Kubernetes refuses {kinds} that rules set: {said}; the rest is written without them"
    return (Notice(reason="RulesRefused", message=text),)


def _kind(field: str) -> RefusedKind | None:
    if ".taints[" in field:
        return "taint"
    if field.startswith("metadata.annotations"):
        return "annotation"
    return "label" if field.startswith("metadata.labels") else None
