"""Selectors of labels, as the API reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_NAME: Final = r"[a-z0-9A-Z](?:[a-z0-9A-Z._-]{0,61}[a-z0-9A-Z])?"
_KEY: Final = rf"(?:[a-z0-9.-]{{1,253}}/)?{_NAME}"
_VALUE: Final = rf"(?:{_NAME})?"
_TERM: Final = re.compile(
    rf"\s*(?:(?P<absent>!)?\s*(?P<present>{_KEY})"
    rf"|(?P<key>{_KEY})\s*(?P<operator>==|=|!=)\s*(?P<value>{_VALUE})"
    rf"|(?P<list_key>{_KEY})\s+(?P<list>in|notin)\s*\((?P<values>[^()]*)\))\s*"
)
_BETWEEN_TERMS: Final = re.compile(r",(?![^(]*\))")


def are_labels(labels: Mapping[str, str]) -> bool:
    """Whether the API accepts the labels."""
    return all(
        re.fullmatch(_KEY, key) and not key.startswith("hetzner.cloud/") and re.fullmatch(_VALUE, value)
        for key, value in labels.items()
    )


def match_labels(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether the labels match all terms. Raises ValueError if the selector is none."""
    terms = [_TERM.fullmatch(term) for term in _BETWEEN_TERMS.split(selector)]
    if None in terms:
        raise ValueError(f"not a selector: {selector!r}")
    return all(_match_term(term, labels) for term in terms if term)


def _match_term(term: re.Match[str], labels: Mapping[str, str]) -> bool:
    if term["present"]:
        return (term["present"] in labels) != bool(term["absent"])
    if term["key"]:
        return (labels.get(term["key"]) == term["value"]) != (term["operator"] == "!=")
    values = {value.strip() for value in term["values"].split(",")}
    return (labels.get(term["list_key"]) in values) != (term["list"] == "notin")
