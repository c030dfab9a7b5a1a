"""The metrics in a query, and the selectors for cluster and job that each gets. Pure."""

from __future__ import annotations

import re
from typing import Final

_METRIC: Final = re.compile(r"\b(?P<name>(?:talosccm|node_ipam_controller|node_controller|process)_\w+|up)\b")
_STRING: Final = re.compile(r'"(?:\\.|[^"\\])*"')
SELECTION: Final = 'cluster=~"$cluster", job=~"$job"'


def add_selection(expr: str) -> str:
    """The query, with every metric restricted to the selected clusters and jobs; ALERTS has neither label."""
    out, at = "", 0
    for name in list_metrics(expr):
        end = expr.index(name, at) + len(name)
        out += expr[at:end]
        if expr[end : end + 1] == "{":
            out, at = f"{out}{{{SELECTION}, ", end + 1
        else:
            out, at = f"{out}{{{SELECTION}}}", end
    return out + expr[at:]


def list_metrics(expr: str) -> list[str]:
    """The names of the metrics in the query, in order; quoted strings are ignored."""
    bare = _STRING.sub(lambda found: " " * len(found[0]), expr)
    return [found["name"] for found in _METRIC.finditer(bare)]
