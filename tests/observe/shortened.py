"""The shipped rules with a second for each minute, and no other change."""

import copy
import re
from typing import Any, Final

DURATION: Final = re.compile(r"\b(\d+)m\b")
_WINDOW: Final = re.compile(r"(?<=\[)\d+[ms](?=\])|(?<=offset )\d+[ms]\b")


def shortened(rules: dict[str, Any]) -> dict[str, Any]:
    """The rules with seconds instead of minutes in `for:`, windows and offsets; thresholds do not change."""
    made = copy.deepcopy(rules)
    for group in made["groups"]:
        for rule in group["rules"]:
            rule["expr"] = _WINDOW.sub(lambda found: found[0][:-1] + "s", rule["expr"])
            if "for" in rule:
                rule["for"] = DURATION.sub(r"\1s", rule["for"])
    return made


def without_durations(rules: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Every rule without its durations, which `shortened` must not change."""
    return [
        (group["name"], rule["alert"], _WINDOW.sub("", rule["expr"]), rule["labels"], rule["annotations"])
        for group in rules["groups"]
        for rule in group["rules"]
    ]
