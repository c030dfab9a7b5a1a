"""Positions of panels on Grafana's grid of 24 columns, in rows. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tools.dashboards.panels import Panel

COLUMNS: Final = 24


def place_panels(panels: Sequence[Panel]) -> Iterator[tuple[Panel, dict[str, int]]]:
    """Each panel with its gridPos. A panel that does not fit starts a row below the highest panel."""
    x = y = row = 0
    for panel in panels:
        if x + panel.width > COLUMNS:
            x, y, row = 0, y + row, 0
        yield panel, {"h": panel.height, "w": panel.width, "x": x, "y": y}
        x += panel.width
        row = max(row, panel.height)
