"""`make cost-tables`: writes the cost against the reference into README.md and docs/performance.md.

The figures come from the last table of `make bench` with `--against`, as docs/performance.md describes.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from tools.generated_part import replace_part
from tools.registered_metrics import ROOT

README: Final = ROOT / "README.md"
PERFORMANCE: Final = ROOT / "docs" / "performance.md"
COMMAND: Final = "make cost-tables"


class Ratio(NamedTuple):
    """Ours divided by the reference's: the median, and the range or the two values behind it."""

    median: str
    detail: str = ""

    def render(self) -> str:
        """Return both, as in a cell of a table."""
        return f"{self.median} ({self.detail})" if self.detail else self.median


class CostRow(NamedTuple):
    """One figure of both setups. `summary` is its title in README.md, "" for none there."""

    title: str
    one_process: Ratio
    separate: Ratio
    summary: str = ""


CPU: Final = CostRow(
    "CPU of the controller, with its NATS server",
    Ratio("1.75", "1.67 to 1.94"),
    Ratio("2.73", "2.69 to 3.28"),
    summary="CPU of the controller",
)
MEMORY: Final = CostRow(
    "peak memory, with the NATS server",
    Ratio("1.15", "121 / 105 MB"),
    Ratio("3.65", "385 / 105 MB"),
    summary="peak memory of the controller, and of the reference",
)
ROWS: Final = (
    CostRow(
        "all untainted",
        Ratio("0.85", "0.84 to 1.00"),
        Ratio("0.86", "0.75 to 0.98"),
        summary="time until all nodes are initialized",
    ),
    CostRow("each node untainted, p50 / p99", Ratio("0.68 / 0.72"), Ratio("0.33 / 0.46")),
    CostRow(
        "all certificates issued",
        Ratio("0.70", "0.63 to 0.81"),
        Ratio("0.84", "0.69 to 0.98"),
        summary="time until all certificates are issued",
    ),
    CPU,
    CostRow(
        "CPU of everything, control plane included",
        Ratio("0.83", "0.79 to 0.98"),
        Ratio("0.87", "0.82 to 1.09"),
        summary="CPU of controller and control plane together",
    ),
    CostRow("... of it kube-apiserver", Ratio("0.70", "0.68 to 0.85"), Ratio("0.65", "0.61 to 0.81")),
    CostRow("API requests per node", Ratio("0.38", "3.75 / 9.95"), Ratio("0.38"), summary="API requests"),
    MEMORY,
    CostRow("one at a time: untainted, p50", Ratio("0.97", "0.85 to 1.04"), Ratio("1.06", "1.00 to 1.06")),
    CostRow("one at a time: untainted, p99", Ratio("0.47", "0.44 to 0.61"), Ratio("0.44", "0.37 to 0.94")),
)


def render_readme(text: str) -> str:
    """Return README.md with the sentence on its first screen and the table of medians."""
    text = replace_part(text, "sentence of cost", "".join(_list_sentence()), command=COMMAND)
    return replace_part(text, "table of cost", "".join(_list_medians()), command=COMMAND)


def render_performance(text: str) -> str:
    """Return docs/performance.md with the table of medians and ranges."""
    return replace_part(text, "table of cost", "".join(_list_ratios()), command=COMMAND)


def _list_sentence() -> Iterator[str]:
    yield "\n**What it costs.** By default, the controller runs as separate processes. They use "
    yield f"{CPU.separate.median} times the CPU and\n{MEMORY.separate.median} times the memory "
    yield f"of the reference controller. One process uses {CPU.one_process.median} times the CPU "
    yield f"and {MEMORY.one_process.median} times the\nmemory. In both setups, 1000 joining nodes "
    yield "are initialized sooner: see [cost](#cost).\n\n"


def _list_medians() -> Iterator[str]:
    yield "\n| ratio to the reference controller | one process | separate processes and NATS |\n"
    yield "|---|---|---|\n"
    for row in ROWS:
        if row.summary:
            ratios = (row.one_process, row.separate)
            cells = (each.render() if row is MEMORY else each.median for each in ratios)  # MB help to plan
            yield f"| {row.summary} | {' | '.join(cells)} |\n"
    yield "\n"


def _list_ratios() -> Iterator[str]:
    yield "\n| 1000 nodes join at once, each with its certificate; ours / tuned reference "
    yield "| all-in-one, memory | separate, NATS |\n|---|---|---|\n"
    for row in ROWS:
        yield f"| {row.title} | {row.one_process.render()} | {row.separate.render()} |\n"
    yield "\n"


if __name__ == "__main__":
    README.write_text(render_readme(README.read_text()))
    PERFORMANCE.write_text(render_performance(PERFORMANCE.read_text()))
