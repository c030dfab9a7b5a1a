"""All dashboards, and the files that `make dashboards` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from libs.testbed.helm.chart import CHART
from tools.dashboards.declaration import load_board
from tools.dashboards.grafana import render_board
from tools.dashboards.node_journey import NODE_JOURNEY, NODE_JOURNEY_JAEGER, OVERVIEW
from tools.dashboards.panels import Board

FOLDER: Final = CHART / "files" / "observability" / "dashboards"
BOARDS: Final[tuple[Board, ...]] = (
    OVERVIEW,
    NODE_JOURNEY,
    NODE_JOURNEY_JAEGER,
    *(load_board(name) for name in ("pipeline", "talos-api", "certificates", "ipam")),
)


def get_board_path(board: Board, folder: Path = FOLDER) -> Path:
    """The file of that dashboard."""
    return folder / f"{board.name}.json"


def write_boards(folder: Path = FOLDER) -> None:
    """Write every file, and remove the files of deleted dashboards."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in set(folder.glob("*.json")) - {get_board_path(board, folder) for board in BOARDS}:
        stale.unlink()
    for board in BOARDS:
        get_board_path(board, folder).write_text(render_board(board))
