"""Validates keys, label values and taints as Kubernetes does (apimachinery's validation)."""

import re
from typing import Final

import msgspec

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_MOST_NAME: Final = 63
_MOST_PREFIX: Final = 253
_MOST_LABEL_VALUE: Final = 63
EFFECTS: Final[tuple[str, ...]] = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class TaintText(msgspec.Struct, frozen=True):
    """A parsed `value:Effect` or `Effect`."""

    value: str
    effect: str


def key_problem(key: str) -> str:
    """Return why the text is not a valid key of a label, annotation or taint; "" if it is."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > _MOST_PREFIX or not _SUBDOMAIN.fullmatch(prefix)):
        return (
            f"its part before the / must be a DNS name in lower case, such as example.com, of at most "
            f"{_MOST_PREFIX} characters"
        )
    if len(name) > _MOST_NAME:
        return f"its name is longer than {_MOST_NAME} characters"
    if not _NAME.fullmatch(name):
        return "its name must be of letters, digits, -, _ and ., and begin and end with a letter or digit"
    return ""


def label_value_problem(value: str) -> str:
    """Return why the text is not a valid label value; "" if it is, as the empty text is."""
    if len(value) > _MOST_LABEL_VALUE:
        return f"a label value has at most {_MOST_LABEL_VALUE} characters, this has {len(value)}"
    if value and not _NAME.fullmatch(value):
        allowed = "letters, digits, -, _ and ."
        return f"a label value consists of {allowed}, and begins and ends with a letter or digit"
    return ""


def parse_taint(text: str) -> TaintText:
    """Parse `value:Effect` or `Effect`. Raises ValueError with the expectation."""
    value, _, effect = text.rpartition(":")
    if effect not in EFFECTS:
        raise ValueError(f"value:Effect or Effect, with one of the effects {', '.join(EFFECTS)}")
    if problem := label_value_problem(value):
        raise ValueError(f"value:Effect with a value that Kubernetes takes: {problem}")
    return TaintText(value, effect)
