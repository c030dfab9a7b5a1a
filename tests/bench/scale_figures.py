"""Figures of bursts of growing size: the cost per node should not grow. Pure."""

from collections.abc import Iterable
from typing import Final

from tests.bench.figures import Figures, compute_ratio

# A figure of a burst -> its name here.
_KEPT: Final = {
    "controller: CPU per node ms": "CPU per node ms",
    "controller: peak RSS MB": "peak RSS MB",
    "Kubernetes: all per node": "API requests per node",
    "per node: messages published": "messages published per node",
    "all untainted s": "all untainted s",
    "all issued s": "all issued s",
}
CPU: Final = _KEPT["controller: CPU per node ms"]
MEMORY: Final = _KEPT["controller: peak RSS MB"]
GROWTH: Final = "scale: CPU per node, most / least"


def name_figure(nodes: int, what: str) -> str:
    """The name of a figure of the burst of that size."""
    return f"scale: {nodes} nodes: {what}"


def select_scale_figures(found: Figures, nodes: int) -> Figures:
    """The figures of one burst that are compared over the sizes."""
    return {name_figure(nodes, what): found[name] for name, what in _KEPT.items() if name in found}


def compute_growth(figures: Figures, sizes: Iterable[int]) -> Figures:
    """How much the CPU per node differs between the sizes; 1 is flat."""
    costs = [figures[name_figure(nodes, CPU)] for nodes in sizes]
    return {GROWTH: compute_ratio(max(costs), min(costs))}
