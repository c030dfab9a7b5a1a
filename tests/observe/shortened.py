"""The shipped rules with a second for each minute; nothing else of them is other than it is shipped."""

import copy
import re
from typing import Any, Final

DURATION: Final = re.compile(r"\b(\d+)m\b")
_WINDOW: Final = re.compile(r"(?<=\[)\d+[ms](?=\])|(?<=offset )\d+[ms]\b")


def shortened(rules: dict[str, Any]) -> dict[str, Any]:
    """`for:`, windows and offsets in seconds that were in minutes. Thresholds are what they are."""
    made = copy.deepcopy(rules)
    for group in made["groups"]:
        for rule in group["rules"]:
            rule["expr"] = _WINDOW.sub(lambda found: found[0][:-1] + "s", rule["expr"])
            if "for" in rule:
                rule["for"] = DURATION.sub(r"\1s", rule["for"])
    return made


def in_words(rules: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Every rule without its durations: what shortening must leave alone."""
    return [
        (group["name"], rule["alert"], _WINDOW.sub("", rule["expr"]), rule["labels"], rule["annotations"])
        for group in rules["groups"]
        for rule in group["rules"]
    ]
