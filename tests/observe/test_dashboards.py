"""Each query of each board, as Grafana sends it, is answered with data by a Prometheus that scrapes us."""

import json
import math
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from libs.testbed.dashboards.boards import FOLDER
from tests.bus_actors import eventually
from tests.observe.running_fleet import Fleet, a_fleet

# What Grafana puts in for variables and for the width of the screen.
CHOSEN: Final = {"$cluster": ".*", "$job": "talos-ccm", "$__rate_interval": "10m", "$__range": "10m"}
# No fault of the test makes these, and no data is what they show while all is well.
NEVER_HERE: Final = {
    ("pipeline", "What goes wrong", "C"): "nothing fails to be published while NATS is there and has room",
}


def queries() -> dict[tuple[str, str, str], str]:
    """Board, panel and letter of each query in PromQL."""
    found: dict[tuple[str, str, str], str] = {}
    for path in sorted(FOLDER.glob("*.json")):
        panel: dict[str, Any]
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                if "expr" in target:
                    found[path.stem, panel["title"], target["refId"]] = target["expr"]
    return found


QUERIES: Final = queries()


def as_sent(query: str) -> str:
    """With what is chosen in the place of the variables."""
    for variable, value in CHOSEN.items():
        query = query.replace(variable, value)
    assert "$" not in query
    return query


@pytest.fixture(scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with a_fleet(tmp_path_factory.mktemp("fleet")) as running:
        await running.live()
        await running.break_much()
        yield running


@pytest.mark.parametrize("where", QUERIES, ids=lambda where: "-".join(where).replace(" ", "_"))
async def test_a_panel_has_data(fleet: Fleet, where: tuple[str, str, str]):
    query = as_sent(QUERIES[where])

    async def has_data() -> bool:
        return any(math.isfinite(sample.value) for sample in await fleet.prometheus.query(query))

    if where in NEVER_HERE:
        assert not await has_data(), "it can be had: away from the list with it"
        return
    await eventually(has_data, query, 120)


async def test_the_cluster_and_the_job_are_found_by_the_variables(fleet: Fleet):
    found = await fleet.prometheus.query("count by (job) (talosccm_leader)")
    assert [sample.labels for sample in found] == [{"job": CHOSEN["$job"]}]


async def test_with_honor_labels_a_service_is_our_word_for_it(fleet: Fleet):
    found = await fleet.prometheus.query("count by (service) (talosccm_nats_connected)")
    assert {sample.labels["service"] for sample in found} == {
        "watcher", "metadata", "labeler", "csr", "ipam", "lifecycle"
    }  # fmt: skip
