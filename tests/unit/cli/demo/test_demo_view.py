"""How the demo looks: within its terminal, without jumping, and in an image without the testbed."""

import io
import subprocess
import sys
from datetime import timedelta

import pytest
from rich.console import Console, RenderableType

from cli.demo import view
from cli.demo.demo_options import MAX_NODES, DemoOptions, suggest_next_runs
from cli.demo.node_progress import DemoProgress
from cli.render.preview import diff_nodes
from libs.common.contract.node import Taint
from tests.builders import NOW, make_node


def a_run(count: int, *, ready: int = 0) -> DemoProgress:
    journeys = DemoProgress()
    for number in range(count):
        journeys.add_node(f"openstack-{number:04}", "openstack", NOW)
    for number in range(ready):
        journeys.apply_node(make_node(f"openstack-{number:04}", taints=()), NOW + timedelta(seconds=number))
    return journeys


def lines_of(picture: RenderableType, width: int) -> list[str]:
    console = Console(width=width, height=24, file=io.StringIO(), record=True, soft_wrap=True)
    console.print(picture)
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("count", [1, 3, MAX_NODES])
def test_every_picture_fits_its_terminal(width: int, count: int):
    journeys = a_run(count, ready=1)
    picture = lines_of(view.render_progress(journeys, seconds=119.9, width=width, height=24), width)
    stuck = view.render_problems(journeys)
    next_runs = [
        view.render_commands(
            "Try next", suggest_next_runs(DemoOptions(bus=bus, nodes=count, real=real), all_ready=all_ready)
        )
        for bus in ("nats", "memory")
        for real in (True, False)
        for all_ready in (True, False)
    ]
    others = [
        line for part in (view.render_summary(journeys), *stuck, *next_runs) for line in lines_of(part, width)
    ]
    assert max(map(len, picture + others)) <= width
    assert len(picture) < 24
    assert f"1/{count} ready" in picture[0]


def test_nothing_in_the_picture_moves_sideways_while_nodes_move_on():
    def columns(ready: int) -> list[int]:
        lines = lines_of(view.render_progress(a_run(200, ready=ready), seconds=1.0, width=80, height=24), 80)
        return [lines[1].index("ready"), lines[1].index("blocked"), lines[2].index("STATE"), len(lines[2])]

    assert columns(0) == columns(1) == columns(120)


def test_who_arrived_last_stands_first_among_those_who_arrived():
    lines = lines_of(view.render_progress(a_run(30, ready=29), seconds=1.0, width=80, height=12), 80)
    assert [line.split()[0] for line in lines[3:6]] == ["openstack-0029", "openstack-0028", "openstack-0027"]
    assert lines[-1] == "... and 23 more"


def test_in_a_pipe_one_line_says_it_all():
    assert view.format_progress(a_run(3), seconds=1.25) == "   1.2 s  0/3 ready  (3 joining)"


def test_only_the_first_of_many_stuck_nodes_are_named():
    [problems] = view.render_problems(a_run(25))
    lines = lines_of(problems, 80)
    assert lines[-1] == "... and 5 more"


def test_what_to_try_next_is_never_what_has_just_run():
    def suggest(options: DemoOptions, *, all_ready: bool = True) -> list[str]:
        return [command for command, _ in suggest_next_runs(options, all_ready=all_ready)]

    on_memory = 'make demo ARGS="--bus memory"'
    assert on_memory in suggest(DemoOptions())
    assert on_memory not in suggest(DemoOptions(bus="memory"))
    assert "make demo ARGS=--real" not in suggest(DemoOptions(real=True))
    impatient = DemoOptions(patience_seconds=30)
    assert suggest(impatient, all_ready=False) == ["--patience 60", "--keep-logs DIRECTORY"]


def test_the_changes_of_a_node_are_those_of_a_cloud_controller_manager():
    not_ready = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")
    before = make_node(labels={"kept": "1"}, conditions=())
    after = make_node(labels={"kept": "1", "zone": "a"}, provider_id="metal://1", taints=(not_ready,))
    assert lines_of(view.render_node_changes("web-1", diff_nodes(before, after)), 80) == [
        "Node web-1 since its kubelet registered it",
        "+ label zone = a",
        "- taint node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule",
        "+ providerID metal://1",
    ]


WITHOUT_TESTBED = """
import sys
sys.modules["libs.testbed"] = None
from cli.__main__ import main
main(["demo"])
"""


def test_in_an_image_which_holds_no_testbed_the_demo_says_so():
    told = subprocess.run(
        [sys.executable, "-c", WITHOUT_TESTBED], capture_output=True, text=True, check=False
    )
    assert told.returncode == 1
    assert "in a checkout, run make demo" in told.stderr
    assert "Traceback" not in told.stderr
