"""Dashboards, panels and queries, independent of Grafana's JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

Kind = Literal["stat", "timeseries", "bargauge", "table", "traces"]
Thresholds = tuple[
    tuple[float, str], ...
]  # each colour applies from its value upwards; green applies below the first

GREEN: Final = "green"
ORANGE: Final = "orange"
RED: Final = "red"
BLUE: Final = "blue"
NEUTRAL: Final[Thresholds] = ((float("-inf"), BLUE),)  # no value is good or bad
ANY_IS_BAD: Final[Thresholds] = ((1, RED),)
ANY_IS_A_WARNING: Final[Thresholds] = ((1, ORANGE),)

METRICS: Final = "datasource"  # the variable with the Prometheus data source


class Query(msgspec.Struct, frozen=True):
    """One PromQL query, without the selectors for cluster and job, which `promql.add_selection` adds."""

    expr: str
    legend: str = ""
    exemplars: bool = False  # dots that link to traces


class ValueMapping(msgspec.Struct, frozen=True):
    """The text and colour for one value."""

    words: str
    colour: str


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One panel. `silent_because` is the harmless reason for a panel without data."""

    kind: Kind
    title: str
    good: str
    bad: str
    queries: tuple[Query, ...] = ()
    unit: str = "short"
    steps: Thresholds = ()
    alerts: tuple[str, ...] = ()
    meanings: Mapping[float, ValueMapping] = {}
    decimals: int | None = None
    highest: float | None = None
    stacked: bool = False
    silent_because: str = ""
    width: int = 12
    height: int = 8
    source: str = METRICS
    source_type: str = "prometheus"
    targets: tuple[Mapping[str, Any], ...] = ()  # queries of data sources other than Prometheus
    links: Mapping[str, tuple[str, str]] = {}  # column (a regular expression): title and URL
    hidden_columns: tuple[str, ...] = ()


class Variable(msgspec.Struct, frozen=True):
    """One more variable of a dashboard, as Grafana's JSON."""

    model: Mapping[str, Any]


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """A dashboard, with its panels in order of importance."""

    name: str  # name of its file; its uid is `talosccm-` plus this name
    title: str
    question: str
    panels: tuple[Panel, ...]
    variables: tuple[Variable, ...] = ()


def make_stat(title: str, expr: str, *, good: str, bad: str, **more: Any) -> Panel:
    """A panel with the current value, coloured by its thresholds."""
    size = {"width": 4, "height": 4}
    return Panel(kind="stat", title=title, queries=(Query(expr),), good=good, bad=bad, **(size | more))


def make_total(title: str, counter: str, *, good: str, bad: str, **more: Any) -> Panel:
    """A panel with the increase of a counter in the selected time range."""
    return make_stat(
        title, f"sum(increase({counter}[$__range]))", good=good, bad=bad, **({"decimals": 0} | more)
    )


def make_time_series(title: str, *queries: Query, good: str, bad: str, **more: Any) -> Panel:
    """A panel with curves over time."""
    return Panel(kind="timeseries", title=title, queries=queries, good=good, bad=bad, **more)


def in_seconds(orange: float, red: float) -> dict[str, Any]:
    """The fields of a panel in seconds with these two thresholds."""
    return {"unit": "s", "steps": ((orange, ORANGE), (red, RED))}


def build_quantile(
    share: float, histogram: str, legend: str, by: str = "", only: str = "", *, exemplars: bool = True
) -> Query:
    """Query a quantile of a histogram by labels, with no data for an interval without observations."""
    labels = ", ".join(filter(None, ("le", by)))
    buckets = f"{histogram}_bucket{{{only}}}" if only else f"{histogram}_bucket"
    expr = f"histogram_quantile({share}, sum by ({labels}) (rate({buckets}[$__rate_interval]))) >= 0"
    return Query(expr, legend, exemplars)


def build_increase(counter: str, legend: str, by: str, only: str = "") -> Query:
    """Query the increase of a counter within a point, by labels.

    A series with labels starts with its first event, which `increase` does not count: so a new series counts
    as an increase from 0.
    """
    counter = f"{counter}{{{only}}}" if only else counter
    born = f"{counter} unless {counter} offset $__rate_interval"
    return Query(f"sum by ({by}) (({born}) or increase({counter}[$__rate_interval]))", legend)


def build_rate(counter: str, legend: str, by: str) -> Query:
    """Query the rate of a counter, by labels."""
    return Query(f"sum by ({by}) (rate({counter}[$__rate_interval]))", legend)
