"""Each query of each board, as Grafana sends it, is answered with data by a Prometheus that scrapes us."""

import json
import math
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from libs.common.contract.services import SERVICES
from tests.bus_actors import wait_until
from tests.observe.running_fleet import Fleet, a_fleet
from tools.dashboards.boards import FOLDER

# What Grafana puts in for variables and for the width of the screen.
CHOSEN: Final = {"$cluster": ".*", "$job": "talos-ccm", "$__rate_interval": "10m", "$__range": "10m"}
# No fault of the test makes these, and no data is what they show while all is well.
NEVER_HERE: Final = {
    (
        "pipeline",
        "Retries, redeliveries and failed publishes",
        "C",
    ): "nothing fails to be published while NATS is there and has room",
}


def targets() -> dict[tuple[str, str, str], dict[str, Any]]:
    """Each query in PromQL, by board, panel and letter."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for path in sorted(FOLDER.glob("*.json")):
        panel: dict[str, Any]
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                if "expr" in target:
                    found[path.stem, panel["title"], target["refId"]] = target
    return found


TARGETS: Final = targets()
WITH_DOTS: Final = sorted({target["expr"] for target in TARGETS.values() if target["exemplar"]})


def steps() -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """The thresholds of each panel that is one number, by where its query is."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for path in sorted(FOLDER.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            if panel["type"] == "stat":
                defaults = panel["fieldConfig"]["defaults"]
                found[path.stem, panel["title"], "A"] = defaults["thresholds"]["steps"]
    return found


STEPS: Final = steps()


def colour(value: float, thresholds: list[dict[str, Any]]) -> str:
    """What Grafana paints it."""
    passed = [step["color"] for step in thresholds if step["value"] is None or step["value"] <= value]
    return str(passed[-1])


def as_sent(query: str) -> str:
    """With what is chosen in the place of the variables."""
    for variable, value in CHOSEN.items():
        query = query.replace(variable, value)
    assert "$" not in query
    return query


async def painted(fleet: Fleet) -> dict[tuple[str, str, str], str]:
    """The colour of each panel that is one number, as of now; "" without data."""
    now: dict[tuple[str, str, str], str] = {}
    for where, thresholds in STEPS.items():
        found = await fleet.prometheus.query(as_sent(TARGETS[where]["expr"]))
        now[where] = colour(found[0].value, thresholds) if found else ""
    return now


@pytest.fixture(scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """All was well, and everything was green; then much was broken."""
    async with a_fleet(tmp_path_factory.mktemp("fleet")) as running:
        await running.live()

        async def all_is_well() -> bool:
            return {*(await painted(running)).values()} <= {"green", "blue"}

        try:
            await wait_until(all_is_well, "every number is green or blue", 120)
        except AssertionError as error:
            raise AssertionError(f"{error}: {await painted(running)}") from error
        await running.break_much()
        yield running


@pytest.mark.parametrize("where", TARGETS, ids=lambda where: "-".join(where).replace(" ", "_"))
async def test_a_panel_has_data(fleet: Fleet, where: tuple[str, str, str]):
    query = as_sent(TARGETS[where]["expr"])

    async def has_data() -> bool:
        return any(math.isfinite(sample.value) for sample in await fleet.prometheus.query(query))

    if where in NEVER_HERE:
        assert not await has_data(), "it can be had: away from the list with it"
        return
    await wait_until(has_data, query, 240)


async def test_numbers_that_were_green_while_all_was_well_are_not_when_much_is_broken(fleet: Fleet):
    wanted = {
        "Firing alerts",
        "Blocked nodes",
        "Failed calls",
        "Dead letters",
        "Denied",
        "Nodes not usable yet",
        "Waiting requests",
    }
    bad: set[str] = set()

    async def told() -> bool:
        bad.update(title for (_, title, _), now in (await painted(fleet)).items() if now in ("orange", "red"))
        return wanted <= bad

    await wait_until(told, "what is broken is told", 240)


@pytest.mark.parametrize("query", WITH_DOTS)
async def test_the_dots_of_a_panel_lead_to_traces_that_were_exported(fleet: Fleet, query: str):
    now = time.time()
    asked = {"query": as_sent(query), "start": f"{now - 3600}", "end": f"{now + 3600}"}

    async def one_leads_there() -> bool:
        found = await fleet.prometheus._request("/api/v1/query_exemplars", asked)
        dots = {each["labels"]["trace_id"] for series in found for each in series["exemplars"]}
        return bool(dots & {span.trace_id.hex() for span in fleet.collector.all})

    await wait_until(one_leads_there, query, 240)


async def test_what_the_node_journey_searches_traces_for_is_on_the_span_that_begins_them(fleet: Fleet):
    def begun() -> set[str]:
        return {
            pair.value.string_value
            for span in fleet.collector.all
            if span.name == "watch event" and not span.parent_span_id
            for pair in span.attributes
            if pair.key == "k8s.node.name"
        }

    await wait_until(lambda: "seen-11" in begun(), "the journey of seen-11", 60)
    assert fleet.collector.services["watch event"] == "watcher", "Jaeger is asked for traces with it"


async def test_the_cluster_and_the_job_are_found_by_the_variables(fleet: Fleet):
    found = await fleet.prometheus.query("count by (job) (talosccm_leader)")
    assert [sample.labels for sample in found] == [{"job": CHOSEN["$job"]}]


async def test_with_honor_labels_a_service_is_our_word_for_it(fleet: Fleet):
    found = await fleet.prometheus.query("count by (service) (talosccm_nats_connected)")
    assert {sample.labels["service"] for sample in found} == {spec.service for spec in SERVICES}
