"""The tables at the end of a sitting. Pure."""

from collections.abc import Sequence
from statistics import median

from rich.table import Table

from tests.chaos.faults import FAULTS
from tests.chaos.results import Record, RunRecord, list_recoveries, list_violations


def render_recoveries(runs: Sequence[RunRecord]) -> Table:
    """The recovery times by fault, with their bound."""
    table = Table(
        "fault", "runs", "median s", "max s", "bound s", title="seconds from the last heal to the end state"
    )
    recoveries = list_recoveries(list(runs))
    for fault in FAULTS:
        times = recoveries.get(fault.name, [])
        within = [seconds for seconds in times if seconds is not None]
        if times:
            most = "never" if len(within) < len(times) else f"{max(within):.1f}"
            middle = f"{median(within):.1f}" if within else "never"
            table.add_row(fault.name, str(len(times)), middle, most, f"{fault.bound_seconds:g}")
    return table


def render_violations(records: Sequence[Record]) -> str:
    """One line per violation."""
    lines = list(list_violations(list(records)))
    return "\n".join((*lines, f"{len(lines)} violations in {len(records)} runs"))
