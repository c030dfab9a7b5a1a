"""Names of alerts, rules and runbooks, and the dashboards' links: pagers, silences and bookmarks use them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from tests.architecture.sources import ROOT
from tests.contract.interface_snapshot import assert_unchanged

FOLDER: Final = ROOT / "deploy" / "k8s" / "chart" / "files" / "observability"
RUNBOOKS: Final = ROOT / "docs" / "runbooks"
_PROSE: Final = ("summary", "description")
_QUERIES: Final = ("expr", "query", "definition")


def test_alerts_and_recording_rules_are_unchanged():
    groups = yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]
    found = {group["name"]: [without_prose(rule) for rule in group["rules"]] for group in groups}
    assert_unchanged("alerts", found)


def test_runbooks_and_their_anchors_are_unchanged():
    found = {path.name: anchors_of(path) for path in RUNBOOKS.glob("*.md")}
    assert_unchanged("runbooks", found)


def test_dashboards_their_uids_variables_and_panels_are_unchanged():
    found = {
        path.name: of_dashboard(json.loads(path.read_text()))
        for path in sorted((FOLDER / "dashboards").glob("*.json"))
    }
    assert_unchanged("dashboards", found)


def without_prose(rule: dict[str, Any]) -> dict[str, Any]:
    """A rule without the annotations that people read."""
    annotations = rule.get("annotations", {})
    kept = {key: text for key, text in annotations.items() if key not in _PROSE}
    return rule | {"annotations": kept | {key: "..." for key in _PROSE if key in annotations}}


def anchors_of(runbook: Path) -> list[str]:
    """The anchors that its headings have on GitHub."""
    lines = runbook.read_text().splitlines()
    headings = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
    return [re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in headings]


def of_dashboard(dashboard: dict[str, Any]) -> dict[str, Any]:
    """What links and saved copies refer to; titles and descriptions are prose."""
    variables = dashboard["templating"]["list"]
    return {
        "uid": dashboard["uid"],
        "tags": sorted(dashboard["tags"]),
        "variables": {each["name"]: [each["type"], each.get("definition", "")] for each in variables},
        "panels": sorted(panel["id"] for panel in dashboard["panels"]),
        "links": sorted(set(values_of(dashboard["panels"], ("url",)))),
        "queries": sorted(set(values_of(dashboard["panels"], _QUERIES))),
    }


def values_of(value: Any, keys: tuple[str, ...]) -> Iterator[str]:
    """The texts under these keys, however deep."""
    if isinstance(value, list):
        for each in value:
            yield from values_of(each, keys)
    if isinstance(value, dict):
        for key, each in value.items():
            if key in keys and isinstance(each, str):
                yield each
            yield from values_of(each, keys)
