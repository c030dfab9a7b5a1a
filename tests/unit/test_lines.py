"""What a command prints steers no terminal, whoever wrote it."""

import msgspec
import pytest
from rich.text import Text

from cli.lines import Line
from cli.status.flow_standing import flow_standing
from cli.status.flow_text import of_flow
from cli.table import table
from tests.cli_screen import printed
from tests.unit.test_status_flow import FLOW, WELL, a_queue

HOSTILE = "\x1b[2J\x9b31m\u202egnp\rall is well"


@pytest.mark.parametrize("width", [None, 40])
@pytest.mark.parametrize(
    "lines",
    [
        [Line(0, Text(HOSTILE))],
        [Line(0, Text("said"), Text(HOSTILE))],
        [Line(0, Text(HOSTILE), whole=True)],
        list(table(("NAME", "SAID", "WHY"), [[Text(HOSTILE), Text(HOSTILE), Text(HOSTILE)]], flows=True)),
    ],
    ids=["text", "label", "command", "table"],
)
def test_nothing_in_a_line_steers_a_terminal(lines: list[Line], width: int | None):
    text = printed(lines, width)
    assert "all is well" in " ".join(text.split())
    assert all(each.isprintable() for each in text.replace("\n", ""))


def test_what_the_watchers_pod_says_of_queues_steers_none_either():
    """It comes by way of a kubelet."""
    flow = msgspec.structs.replace(FLOW, queues=(a_queue(f"labeler-nodes{HOSTILE}", HOSTILE),))
    text = printed(of_flow(flow_standing(msgspec.structs.replace(WELL, flow=flow)), width=0))
    assert "labeler-nodes" in text
    assert all(each.isprintable() for each in text.replace("\n", ""))
