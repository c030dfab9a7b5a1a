"""Bursts of growing size: figures, growth, the plot as SVG, and the options of the command."""

from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

from click.testing import CliRunner

from tests.bench.__main__ import main
from tests.bench.figures import BenchRun, Figures
from tests.bench.joins import GROWTH, compute_growth, select_scale_figures
from tests.bench.options import BenchOptions, Mode
from tests.bench.results import BenchResults, HostInfo, encode_results
from tests.bench.scale_plot import draw_scale

SVG = "{http://www.w3.org/2000/svg}"
SIZES = (100, 1000)


def figures_of(cpu: float, memory: float, nodes: int) -> Figures:
    found = {"controller: CPU per node ms": cpu, "controller: peak RSS MB": memory, "all joined s": 9.0}
    return select_scale_figures(found, nodes)


def results(*costs: tuple[Mode, float, float]) -> BenchResults:
    """Runs of `scale` of these modes, with CPU per node at 100 and at 1000 nodes."""
    runs = tuple(
        BenchRun(
            scenario="scale",
            mode=mode,
            number=1,
            figures=figures_of(small, 80.0, 100) | figures_of(large, 160.0, 1000),
        )
        for mode, small, large in costs
    )
    host = HostInfo(processor="P", cores=2, memory_gb=8, python="3.11", kubernetes="v1", load_before=0.1)
    wanted = BenchOptions(scenarios=("scale",), sizes=SIZES)
    return BenchResults(begun_at=datetime(2026, 1, 2, tzinfo=UTC), host=host, wanted=wanted, runs=runs)


def test_only_the_compared_figures_are_kept_and_the_growth_is_most_by_least():
    figures = figures_of(4.0, 80.0, 100) | figures_of(6.0, 160.0, 1000)
    assert figures["scale: 100 nodes: CPU per node ms"] == 4.0
    assert figures["scale: 1000 nodes: peak RSS MB"] == 160.0
    assert not any("joined" in name for name in figures)
    assert compute_growth(figures, SIZES) == {GROWTH: 1.5}


def test_a_higher_value_is_further_up_and_more_nodes_are_further_right():
    root = ET.fromstring(draw_scale(results(("separate", 5.0, 10.0))))
    first, *_ = root.findall(f"{SVG}polyline")
    (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in first.attrib["points"].split())
    assert x2 > x1
    assert y2 < y1
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    circles = root.findall(f"{SVG}circle")
    assert all(0 < float(c.attrib["cx"]) < width and 0 < float(c.attrib["cy"]) < height for c in circles)


def test_a_result_file_is_plotted_without_measuring(tmp_path: Path):
    file, plot = tmp_path / "scale.json", tmp_path / "new" / "scale.svg"
    file.write_bytes(encode_results(results(("separate", 5.0, 8.0))))
    answer = CliRunner().invoke(main, ["--show", str(file), "--plot", str(plot)])
    assert answer.exit_code == 0
    assert plot.read_text() == draw_scale(results(("separate", 5.0, 8.0)))


def test_logs_are_not_kept_among_those_of_another_run(tmp_path: Path):
    (tmp_path / "etcd").mkdir()
    answer = CliRunner().invoke(main, ["burst", "--keep-logs", str(tmp_path)])
    assert answer.exit_code == 2
    assert "name an empty or a new directory" in answer.output
