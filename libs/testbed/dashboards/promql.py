"""The metrics in a query, and the selectors for cluster and job that each gets. Pure."""

from __future__ import annotations

import re
from typing import Final

_METRIC: Final = re.compile(r"\b(?P<name>(?:talosccm|node_ipam_controller|node_controller|process)_\w+|up)\b")
_STRING: Final = re.compile(r'"(?:\\.|[^"\\])*"')
CHOSEN: Final = 'cluster=~"$cluster", job=~"$job"'


def scoped(expr: str) -> str:
    """The query, with every metric restricted to the selected clusters and jobs; ALERTS has neither label."""
    out, at = "", 0
    for name in metrics_in(expr):
        end = expr.index(name, at) + len(name)
        out += expr[at:end]
        if expr[end : end + 1] == "{":
            out, at = f"{out}{{{CHOSEN}, ", end + 1
        else:
            out, at = f"{out}{{{CHOSEN}}}", end
    return out + expr[at:]


def metrics_in(expr: str) -> list[str]:
    """The names of the metrics in the query, in order; quoted strings are ignored."""
    bare = _STRING.sub(lambda found: " " * len(found[0]), expr)
    return [found["name"] for found in _METRIC.finditer(bare)]
