"""The picture of the flow: its places, its edges and its verdict."""

from typing import Any

import pytest
from msgspec.structs import replace

from libs.common.contract import services as table
from services.console.core.flow_picture import Edge, judge, list_edges, list_places
from services.console.core.history import STEP_SECONDS, History
from services.console.core.overview import ServiceStatus

NOW = 1_000_000.0
SERVICES = tuple(
    ServiceStatus(service=spec.service, health="ok", text="nothing waits") for spec in table.SERVICES
)


def change(service: str, **fields: Any) -> tuple[ServiceStatus, ...]:
    """All services, of which one has these fields."""
    return tuple(replace(each, **fields) if each.service == service else each for each in SERVICES)


def account(name: str, **fields: Any) -> ServiceStatus:
    return ServiceStatus(
        service=f"cloud-{name}", **{"health": "ok", "text": "hcloud: no instances", **fields}
    )


def find_edge(services: tuple[ServiceStatus, ...], source: str, target: str) -> Edge:
    edges = list_edges(list_places(services, 3), {"enriched": 2.5}, NOW)
    return next(each for each in edges if (each.source, each.target) == (source, target))


def test_errors_of_queries_are_on_the_edge_of_the_query_and_the_others_on_that_of_the_messages():
    services = change("metadata", errors={"failed Talos calls": 6, "failed publishes": 1})
    assert find_edge(services, "machines", "metadata").errors == 6
    assert find_edge(services, "watcher", "metadata").errors == 1
    places = {each.service: each for each in list_places(services, 1)}
    assert places["machines"].details == "Errors in the last five minutes: failed Talos calls 6"
    assert places["metadata"].details == "Errors in the last five minutes: failed publishes 1"
    assert places["kubernetes"].text == "1 Node"


def test_an_edge_shows_what_waits_for_its_target_unless_it_is_just_on_its_way():
    late = find_edge(change("labeler", lag=2, lag_since=NOW - 20), "metadata", "labeler")
    assert (late.lag, late.lag_since, late.is_late, late.rate) == (2, NOW - 20, True, 2.5)
    soon = find_edge(change("labeler", lag=2, lag_since=NOW - 5), "metadata", "labeler")
    assert (soon.lag, soon.is_late) == (2, False)
    assert find_edge(change("labeler", lag=2, lag_since=NOW - 0.5), "metadata", "labeler").lag == 0
    assert find_edge(change("labeler", lag=2), "metadata", "labeler").lag == 2, "since when is unknown"
    assert find_edge(change("metadata", lag=2), "machines", "metadata").lag == 0, "a query is no message"
    off = find_edge(change("labeler", lag=2, health="off"), "metadata", "labeler")
    assert (off.lag, off.is_off) == (0, True)


def test_cloud_accounts_are_one_place_which_is_as_bad_as_one_of_them():
    assert find_edge(SERVICES, "clouds", "lifecycle").is_off
    bad = account("b", health="bad", text="401", errors={"failed calls": 2})
    services = (*SERVICES, account("a", errors={"failed calls": 1}), bad)
    place = next(each for each in list_places(services, 3) if each.service == "clouds")
    assert (place.health, place.text) == ("bad", "401")
    assert find_edge(services, "clouds", "lifecycle").errors == 3
    well = next(each for each in list_places((*SERVICES, account("a")), 3) if each.service == "clouds")
    assert (well.health, well.text) == ("ok", "1 account")


def test_a_silent_watcher_leaves_kubernetes_unknown():
    assert find_edge(change("watcher", health="bad"), "kubernetes", "watcher").is_off


def test_the_details_of_a_place_are_what_its_processes_report():
    services = change("labeler", details="2 processes", errors={"retries": 1_000})
    place = next(each for each in list_places(services, 3) if each.service == "labeler")
    assert place.details == "2 processes. Errors in the last five minutes: retries 1,000"


@pytest.mark.parametrize(
    ("services", "states", "problems", "health", "title"),
    [
        (change("csr", health="bad"), {"stuck": 1}, ("no NATS",), "bad", "The data may be outdated"),
        (change("csr", health="bad"), {"stuck": 1}, (), "bad", "csr is not well"),
        (change("csr", health="warning"), {"stuck": 1}, (), "bad", "1 Node is stuck"),
        (change("csr", health="warning"), {"stuck": 2000}, (), "bad", "2,000 Nodes are stuck"),
        (change("csr", health="warning"), {"joining": 1}, (), "warning", "csr: nothing waits"),
        (change("csr", errors={"retries": 1}), {"joining": 1}, (), "warning", "csr reports errors"),
        (SERVICES, {"joining": 1, "ready": 1}, (), "busy", "1 Node joins"),
        (SERVICES, {}, (), "off", "No Node yet"),
        (SERVICES, {"ready": 3}, (), "ok", "All is well"),
    ],
)
def test_the_verdict_is_the_worst_that_is_the_case(
    services: tuple[ServiceStatus, ...],
    states: dict[str, int],
    problems: tuple[str, ...],
    health: str,
    title: str,
):
    verdict = judge(services, states, 0, problems)
    assert (verdict.health, verdict.title) == (health, title)


@pytest.mark.parametrize(
    ("stuck", "blocked", "title"),
    [
        (0, 1, "1 load balancer is blocked"),
        (1, 2, "1 Node is stuck; 2 load balancers are blocked"),
        (2, 0, "2 Nodes are stuck"),
    ],
)
def test_the_headline_counts_stuck_nodes_and_blocked_balancers(stuck: int, blocked: int, title: str):
    verdict = judge(change("csr", health="warning"), {"stuck": stuck, "ready": 5}, blocked, ())
    assert (verdict.health, verdict.title) == ("bad", title)


def test_the_step_after_a_late_one_is_not_shorter():
    history = History(NOW)
    for now in (NOW + 3 * STEP_SECONDS, NOW + 3 * STEP_SECONDS + 1, NOW + 4 * STEP_SECONDS):
        history.advance(now, stuck=0, unreachable=0, dead=0)
    assert [each.at - NOW for each in history.list_after(0.0)] == [3 * STEP_SECONDS, 4 * STEP_SECONDS]


def test_rates_are_measured_over_the_last_seconds():
    history = History(NOW)
    assert history.measure_rates() == {}
    for _ in range(10):
        history.count("observed")
    history.advance(NOW + 2, stuck=0, unreachable=0, dead=0)
    assert history.measure_rates() == {"observed": 5.0}
    for second in range(3, 12):
        history.advance(NOW + second, stuck=0, unreachable=0, dead=0)
    assert history.measure_rates() == {}
