"""Variables at the top of a dashboard: data source, cluster, job and runbooks. Pure."""

from __future__ import annotations

from typing import Any, Final

from tools.dashboards.panels import METRICS, Variable

RUNBOOKS: Final = "runbooks"
_ALL: Final = {"text": ["All"], "value": ["$__all"]}


def build_common_variables() -> list[dict[str, Any]]:
    """The variables of every dashboard: Prometheus, cluster, job, address of the runbooks."""
    return [
        build_source(METRICS, "Metrics", "prometheus"),
        # A Prometheus of one cluster has no such label: the variable then offers only "All".
        _build_label("cluster", "Cluster", all_value=".*"),
        _build_label("job", "Scrape job", all_value=None),
        build_text(RUNBOOKS, "Runbooks at", "docs/runbooks"),
    ]


def build_source(name: str, label: str, plugin: str) -> dict[str, Any]:
    """A variable that selects one data source of that type."""
    return _build_selection(name, label, query=plugin, refresh=1, type="datasource")


def _build_selection(name: str, label: str, **own: Any) -> dict[str, Any]:
    """A variable with a list of values, from its own fields and the common ones, in Grafana's order."""
    common = {
        "current": {},
        "hide": 0,
        "includeAll": False,
        "label": label,
        "multi": False,
        "name": name,
        "options": [],
        "refresh": 2,
        "regex": "",
    }
    return dict(sorted((common | own).items()))


def build_text(name: str, label: str, default: str) -> dict[str, Any]:
    """A text box."""
    chosen = {"text": default, "value": default}
    return {
        "current": chosen,
        "hide": 0,
        "label": label,
        "name": name,
        "options": [chosen | {"selected": True}],
        "query": default,
        "type": "textbox",
    }


def make_source_variable(name: str, label: str, plugin: str) -> Variable:
    """A data source variable of one board."""
    return Variable(build_source(name, label, plugin))


def make_text_variable(name: str, label: str, default: str = "") -> Variable:
    """A text box of one board."""
    return Variable(build_text(name, label, default))


def make_tempo_variable(name: str, label: str, attribute: str, tempo: str) -> Variable:
    """A variable with the values of that attribute in Tempo; custom values are allowed."""
    query = {"label": attribute, "refId": "TempoDatasourceVariableQueryEditor-VariableQuery", "type": 1}
    source = {"type": "tempo", "uid": f"${{{tempo}}}"}
    own = {"datasource": source, "query": query, "sort": 1, "type": "query"}
    return Variable(_build_selection(name, label, allowCustomValue=True, **own))


def _build_label(name: str, label: str, *, all_value: str | None) -> dict[str, Any]:
    query = f"label_values(talosccm_leader, {name})"
    return _build_selection(
        name,
        label,
        allValue=all_value,
        current=_ALL,
        datasource={"type": "prometheus", "uid": f"${{{METRICS}}}"},
        definition=query,
        includeAll=True,
        multi=True,
        query={"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        sort=1,
        type="query",
    )
