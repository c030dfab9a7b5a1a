"""Dashboards as declared in `declarations`: one file for each, with its panels in order of importance."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType, field

from tools.dashboards import panels
from tools.dashboards.panels import Board, Panel, Query, Thresholds, ValueMapping

FOLDER: Final = Path(__file__).parent / "declarations"
_STEPS: Final[dict[str, Thresholds]] = {
    "any is bad": panels.ANY_IS_BAD,
    "any is a warning": panels.ANY_IS_A_WARNING,
    "neutral": panels.NEUTRAL,
}
_PASSED: Final = (  # fields that mean the same in a declaration and in a Panel
    *("unit", "alerts", "meanings", "decimals", "highest", "stacked", "silent_because"),
    *("width", "height", "links", "hidden_columns"),
)


class QueryDeclaration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One curve: the rate or increase of a counter, the quantile of a histogram, or any other `expr`."""

    expr: str = ""
    rate: str = ""
    increase: str = ""
    quantile: float = 0
    histogram: str = ""
    by: str = ""
    only: str = ""
    legend: str = ""
    exemplars: bool = True


class PanelDeclaration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One panel: the title stands under the name of its kind. `panels.Panel` describes the fields."""

    stat: str = ""  # the current value of `query`
    total: str = ""  # the increase of `counter` in the selected time range
    time_series: str = field(name="time series", default="")
    bargauge: str = ""
    table: str = ""
    query: str = ""
    counter: str = ""
    queries: tuple[QueryDeclaration, ...] = ()
    good: str
    bad: str
    seconds: tuple[int, int] | None = None  # the unit is a second: orange and red from these values
    steps: Literal["any is bad", "any is a warning", "neutral"] | tuple[tuple[int | float, str], ...] = ()
    unit: str | UnsetType = UNSET
    alerts: tuple[str, ...] | UnsetType = UNSET
    meanings: dict[int, ValueMapping] | UnsetType = UNSET
    decimals: int | UnsetType = UNSET
    highest: int | UnsetType = UNSET
    stacked: bool | UnsetType = UNSET
    silent_because: str | UnsetType = UNSET
    width: int | UnsetType = UNSET
    height: int | UnsetType = UNSET
    links: dict[str, tuple[str, str]] | UnsetType = UNSET
    hidden_columns: tuple[str, ...] | UnsetType = UNSET


class BoardDeclaration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One dashboard."""

    title: str
    question: str
    panels: tuple[PanelDeclaration, ...]


def load_board(name: str, folder: Path = FOLDER) -> Board:
    """Read the dashboard of that name. Raises msgspec.ValidationError for a wrong declaration."""
    board = msgspec.yaml.decode((folder / f"{name}.yaml").read_bytes(), type=BoardDeclaration)
    return Board(
        name=name,
        title=board.title,
        question=board.question,
        panels=tuple(_build_panel(panel) for panel in board.panels),
    )


def _build_panel(panel: PanelDeclaration) -> Panel:
    more: dict[str, Any] = {name: getattr(panel, name) for name in _PASSED}
    more = {name: value for name, value in more.items() if value is not UNSET}
    more |= {"good": panel.good, "bad": panel.bad}
    if panel.seconds:
        more |= panels.in_seconds(*panel.seconds)
    if panel.steps:
        more["steps"] = _STEPS[panel.steps] if isinstance(panel.steps, str) else panel.steps
    if panel.stat:
        return panels.make_stat(panel.stat, panel.query, **more)
    if panel.total:
        return panels.make_total(panel.total, panel.counter, **more)
    queries = tuple(_build_query(query) for query in panel.queries)
    if panel.time_series:
        return panels.make_time_series(panel.time_series, *queries, **more)
    kind: Literal["bargauge", "table"] = "bargauge" if panel.bargauge else "table"
    return Panel(kind=kind, title=panel.bargauge or panel.table, queries=queries, **more)


def _build_query(query: QueryDeclaration) -> Query:
    if query.rate:
        return panels.build_rate(query.rate, query.legend, query.by)
    if query.increase:
        return panels.build_increase(query.increase, query.legend, query.by, query.only)
    if query.histogram:
        return panels.build_quantile(
            query.quantile, query.histogram, query.legend, query.by, query.only, exemplars=query.exemplars
        )
    return Query(query.expr, query.legend)
