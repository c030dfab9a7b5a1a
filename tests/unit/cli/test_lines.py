"""The output of a command never contains control characters, whatever its source."""

import msgspec
import pytest
from rich.text import Text

from cli.layout import format_table
from cli.lines import Line
from cli.status.cluster_status import build_status
from cli.status.text import format_status
from tests.cli_screen import render_lines
from tests.unit.cli.status.test_flow import FLOW, WELL, a_queue

HOSTILE = "\x1b[2J\x9b31m\u202egnp\rall is well"


@pytest.mark.parametrize("width", [None, 40])
@pytest.mark.parametrize(
    "lines",
    [
        [Line(0, Text(HOSTILE))],
        [Line(0, Text("said"), Text(HOSTILE))],
        [Line(0, Text(HOSTILE), is_unbroken=True)],
        list(
            format_table(
                ("NAME", "SAID", "WHY"),
                [[HOSTILE, HOSTILE, HOSTILE]],
            )
        ),
    ],
    ids=["text", "label", "command", "table"],
)
def test_nothing_in_a_line_steers_a_terminal(lines: list[Line], width: int | None):
    text = render_lines(lines, width)
    assert "all is well" in " ".join(text.split())
    assert all(each.isprintable() for each in text.replace("\n", ""))


def test_what_the_watchers_pod_says_of_queues_steers_none_either():
    """It comes by way of a kubelet."""
    flow = msgspec.structs.replace(FLOW, queues=(a_queue(f"labeler-nodes{HOSTILE}", HOSTILE),))
    text = render_lines(format_status(build_status(msgspec.structs.replace(WELL, flow=flow)), width=0))
    assert "labeler-nodes" in text
    assert all(each.isprintable() for each in text.replace("\n", ""))
