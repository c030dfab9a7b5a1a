"""Reads a label selector of Kubernetes from one text, as apimachinery parses it."""

import re
from typing import Final

from libs.common.cloud_config.model import NodeSelectorRequirement, NodeSelectorTerm, Operator

_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY: Final = rf"(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME}"
_REQUIREMENT: Final = re.compile(
    rf"""\s*(?:
        !\s*(?P<absent>{_KEY})
        | (?P<key>{_KEY})\s*(?:
            (?P<equals>==?|!=)\s*(?P<value>{_NAME}|)
            | (?<=\s)(?P<set>in|notin)\s*\((?P<values>[^()]*)\)
            | (?P<compares>[<>])\s*(?P<number>-?[0-9]{{1,18}})
            |
        )
    )\s*(?:(?P<comma>,)|$)""",
    re.VERBOSE,
)
_MAX_LENGTH: Final = 1024  # characters: each requirement is compared with each Node, and all else waits
_OPERATORS: Final[dict[str, Operator]] = {
    "=": "In",
    "==": "In",
    "in": "In",
    "!=": "NotIn",
    "notin": "NotIn",
    ">": "Gt",
    "<": "Lt",
}


def parse_node_selector(text: str) -> tuple[NodeSelectorTerm, ...]:
    """Return the selector for `match_selector`; () for an empty text, which selects all Nodes.

    Raises ValueError with the expected form.
    """
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"a label selector of at most {_MAX_LENGTH} characters")
    requirements, position, expects_more = [], 0, bool(text.strip())
    while expects_more:
        match = _REQUIREMENT.match(text, position)
        if match is None:
            raise ValueError("a label selector such as env=prod,tier in (web,api),!gpu")
        requirements.append(_build_requirement(match))
        position, expects_more = match.end(), match["comma"] is not None
    return (NodeSelectorTerm(requirements=tuple(requirements)),) if requirements else ()


def _build_requirement(match: re.Match[str]) -> NodeSelectorRequirement:
    if match["absent"] is not None:
        return NodeSelectorRequirement(key=match["absent"], operator="DoesNotExist")
    sign = match["equals"] or match["set"] or match["compares"]
    if sign is None:
        return NodeSelectorRequirement(key=match["key"], operator="Exists")
    texts = match["values"].split(",") if match["set"] else [match["value"] or match["number"] or ""]
    values = tuple(each.strip() for each in texts)
    if not all(re.fullmatch(rf"{_NAME}|-?[0-9]+|", each) for each in values):
        raise ValueError("a label selector with valid values of labels")
    return NodeSelectorRequirement(key=match["key"], operator=_OPERATORS[sign], values=values)
