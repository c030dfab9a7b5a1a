"""The demo's arithmetic: states, hops and percentiles."""

import io
import math
from datetime import timedelta

import pytest
from rich.console import Console

from cli.demo import view
from cli.demo.journeys import Journeys, hop_percentiles, percentile
from libs.common.events import NodeUnreachable
from libs.common.machine import MachineFault
from tests.builders import INCARNATION, NOW, a_message, a_node, enriched, observed, some_facts


def after(seconds: float):
    return NOW + timedelta(seconds=seconds)


def a_run() -> Journeys:
    journeys = Journeys()
    for name in ("one", "two", "three"):
        journeys.joined(name, "metal", NOW)
    return journeys


def heard(journeys: Journeys, event, seconds: float) -> None:
    message = a_message(event)
    journeys.heard(
        type(message)(subject=message.subject, event=event, sequence=1, published_at=after(seconds))
    )


def test_a_node_passes_its_hops_once_and_the_first_time_counts():
    journeys = a_run()
    node = a_node("one")
    heard(journeys, observed(node), 0.01)
    heard(journeys, enriched(node, some_facts()), 0.02)
    journeys.seen(a_node("one", taints=()), after(0.05))
    heard(journeys, observed(a_node("one", taints=())), 9.0)
    journeys.seen(a_node("one", taints=()), after(9.0))
    (one,) = [journey for journey in journeys if journey.name == "one"]
    assert [one.seconds(hop) for hop in ("observed", "enriched", "ready")] == [0.01, 0.02, 0.05]
    assert journeys.counts() == {"ready": 1, "joining": 2}
    assert not journeys.all_ready


def test_a_blocked_node_says_why_and_moves_on_when_facts_come():
    journeys = a_run()
    fault = MachineFault(kind="refused", step="connect", message="nobody listens")
    unreachable = NodeUnreachable(
        incarnation=INCARNATION, observed_sequence=1, node=a_node("one"), fault=fault,
        attempt=1, retry_at=NOW, observed_at=NOW, enriched_at=NOW,
    )  # fmt: skip
    heard(journeys, unreachable, 0.1)
    assert next(iter(journeys)).trouble == "connect: nobody listens"
    heard(journeys, enriched(a_node("one"), some_facts()), 0.2)
    assert next(iter(journeys)).state == "enriched"


def test_a_node_that_is_not_of_this_run_is_nobodys_journey():
    journeys = a_run()
    heard(journeys, observed(a_node("stranger")), 0.1)
    assert len(journeys) == 3


@pytest.mark.parametrize(("percent", "expected"), [(50, 2.0), (90, 4.0), (99, 4.0), (100, 4.0), (1, 1.0)])
def test_percentiles_are_values_that_were_measured(percent, expected):
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == expected


def test_percentiles_of_nothing_are_not_a_number():
    assert math.isnan(hop_percentiles([])["ready"]["p50"])


@pytest.mark.parametrize("width", [80, 200])
def test_the_picture_fits_its_terminal(width):
    journeys = a_run()
    heard(journeys, observed(a_node("one")), 0.01)
    console = Console(width=width, height=24, file=io.StringIO(), record=True)
    console.print(view.live(journeys, wanted=3, seconds=1.0, width=width, height=24))
    console.print(view.summary(journeys))
    console.print(view.before_and_after({"a": 1}, {"a": 1, "b": 2}, width))
    console.print(view.troubles(list(journeys)))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert "0/3 ready" in lines[0]


def test_in_a_pipe_one_line_says_it_all():
    assert view.line(a_run(), wanted=3, seconds=1.25) == "   1.2 s  0/3 ready  (3 joining)"
