"""A plot of `scale` as SVG: CPU per node and peak memory over the number of nodes, a line per mode. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from tests.bench.figures import FigureSummary, summarize_runs
from tests.bench.joins import SCALE_CPU, SCALE_MEMORY, name_figure
from tests.bench.options import Mode
from tests.bench.results import BenchResults

# Distinguishable without colour vision (Okabe and Ito).
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000")
_PANEL_WIDTH: Final = 420
_HEIGHT: Final = 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 40, 60
_TICKS: Final = 5


class _Line(NamedTuple):
    mode: Mode
    values: Mapping[int, float]  # by number of nodes


class _Panel(NamedTuple):
    """One plot; its x axis is logarithmic."""

    left: float
    title: str
    sizes: Sequence[int]
    top: float  # the value at the top of the y axis, which starts at 0

    def x(self, nodes: float) -> float:
        first, last = math.log(self.sizes[0]), math.log(self.sizes[-1])
        share = (math.log(nodes) - first) / (last - first) if last > first else 0.5
        return self.left + _LEFT + share * (_PANEL_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self.top * (_HEIGHT - _TOP - _BOTTOM)


def draw_scale(results: BenchResults) -> str:
    """The SVG; "" if the results have no figures of `scale`."""
    found = {
        mode: figures for (name, mode), figures in summarize_runs(results.runs).items() if name == "scale"
    }
    if not found:
        return ""
    sizes = sorted(results.wanted.sizes)
    panels = [
        _draw_panel(number * _PANEL_WIDTH, title, sizes, _select_lines(found, sizes, what))
        for number, (title, what) in enumerate(
            (("CPU per node, ms", SCALE_CPU), ("peak memory, MB", SCALE_MEMORY))
        )
    ]
    size = f'width="{2 * _PANEL_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {2 * _PANEL_WIDTH} {_HEIGHT}"'
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        *(element for panel in panels for element in panel),
        *_draw_legend(found),
        "</svg>",
    ]
    return "\n".join(body) + "\n"


def _select_lines(
    found: Mapping[Mode, Mapping[str, FigureSummary]], sizes: Iterable[int], what: str
) -> list[_Line]:
    names = {nodes: name_figure(nodes, what) for nodes in sizes}
    return [
        _Line(mode, {nodes: figures[name].median for nodes, name in names.items() if name in figures})
        for mode, figures in found.items()
    ]


def round_up(value: float) -> float:
    """The next 1, 1.5, 2, 3, 4, 5, 6 or 8 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    steps = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)
    return next(step * power for step in steps if step * power >= value * (1 - 1e-9))


def _draw_panel(left: float, title: str, sizes: Sequence[int], lines: Sequence[_Line]) -> list[str]:
    top = round_up(max((value for line in lines for value in line.values.values()), default=1.0))
    panel = _Panel(left, title, sizes, top)
    end = left + _PANEL_WIDTH - _RIGHT
    elements = [_text(left + _LEFT, _TOP - 16, title, weight="bold")]
    for tick in range(_TICKS + 1):
        value = top * tick / _TICKS
        y = panel.y(value)
        elements.append(f'<path d="M{left + _LEFT:.1f} {y:.1f}H{end:.1f}" stroke="#ddd"/>')
        elements.append(_text(left + _LEFT - 6, y + 4, f"{value:.4g}", anchor="end"))
    below = _HEIGHT - _BOTTOM + 16
    elements += [_text(panel.x(nodes), below, str(nodes), anchor="middle") for nodes in sizes]
    middle = (left + _LEFT + end) / 2
    elements.append(_text(middle, below + 16, "nodes that join at once", anchor="middle"))
    for line, colour in zip(lines, _COLOURS, strict=False):
        points = [(panel.x(nodes), panel.y(value)) for nodes, value in line.values.items()]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        elements.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        elements += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return elements


def _draw_legend(modes: Iterable[Mode]) -> list[str]:
    elements = []
    for number, (mode, colour) in enumerate(zip(modes, _COLOURS, strict=False)):
        x, y = _LEFT + number * 160, _HEIGHT - 8
        elements.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        elements.append(_text(x + 15, y, mode))
    return elements


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {place}>{escape(text)}</text>"
