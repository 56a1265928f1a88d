"""Lines over a logarithmic axis, as a PNG. Needs matplotlib (the extra `bench`)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

COLOURS = ("#0b6e99", "#d9730d", "#6c6a66", "#8a4fa8", "#2e7d32", "#b3261e")
INK = "#37352f"
QUIET = "#6c6a66"
FAINT = "#dedcd7"
ABOVE, BELOW = (0.0, 9.0), (0.0, -16.0)
"""Where the value of a point is written."""
NEAR = 1.6
"""How many times as high a point has to be, on a logarithmic axis, so that a value fits in between."""


@dataclass(frozen=True)
class Chart:
    """Lines over a logarithmic axis: per label the points (x, y).

    `across` and `up` are the names of the axes. With `log` the vertical axis is logarithmic as well. `below` is small
    text at the foot: the machine, the commit, the date.
    """

    title: str
    across: str
    lines: dict[str, list[tuple[int, float]]]
    up: str = "events per second"
    log: bool = False
    below: str = ""

    @property
    def points(self) -> list[tuple[int, float]]:
        """Return the points of all lines."""
        return list(chain.from_iterable(self.lines.values()))


def draw(chart: Chart, path: Path) -> None:
    """Write a chart as PNG."""
    figure = Figure(figsize=(8, 4.5), dpi=150)
    FigureCanvasAgg(figure)  # pyplot would look for a screen
    axes = figure.subplots()
    for (label, points), colour in zip(chart.lines.items(), COLOURS, strict=False):
        _line(axes, chart, label, points, colour)
    _axes(axes, chart)
    figure.text(0.01, 0.01, chart.below, fontsize=6.5, color=QUIET, wrap=True)
    foot = 0.05 if chart.below else 0
    figure.tight_layout(rect=(0, foot, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _line(axes: Axes, chart: Chart, label: str, points: list[tuple[int, float]], colour: str) -> None:
    if not points:
        return
    horizontal, vertical = zip(*points, strict=True)
    axes.plot(horizontal, vertical, color=colour, marker="o", markersize=6, linewidth=2.2, clip_on=False, zorder=3)
    for x, y in points:
        shift = _place_of_value(chart, x, y)
        if shift is not None:
            _text(axes, _thousands(y), (x, y), shift, ha="center", fontsize=9, color=colour)
    _text(axes, label, points[-1], (14, 0), va="center", fontsize=10.5, fontweight="bold", color=colour)


def _place_of_value(chart: Chart, x: int, y: float) -> tuple[float, float] | None:
    """Return where the value of a point is written, seen from it; None: nowhere, for other points are too near."""
    here = [height for place, height in chart.points if place == x]
    if chart.log:
        if not any(y < height < NEAR * y for height in here):
            return ABOVE
        # The value of the next point below stands in between as well.
        if not any(y / NEAR**2 < height < y for height in here):
            return BELOW
        return None
    # On the highest line, or if the axis is too near below.
    highest = max(height for _, height in chart.points)
    return ABOVE if y == max(here) or y < 0.1 * highest else BELOW


def _text(axes: Axes, text: str, point: tuple[float, float], shift: tuple[float, float], **look: Any) -> None:
    axes.annotate(text, point, xytext=shift, textcoords="offset points", annotation_clip=False, **look)


def _axes(axes: Axes, chart: Chart) -> None:
    ticks = sorted({x for x, _ in chart.points})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:,}".replace(",", " ") for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    heights = [y for _, y in chart.points]
    if chart.log:
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(min(heights) / 2, max(heights) * 2)
        axes.set_ylabel(f"{chart.up} (log scale)", color=INK)
    else:
        axes.set_ylim(0, max(heights) * 1.18)
        axes.set_ylabel(chart.up, color=INK)
    # After the scale, which sets a formatter of its own.
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _thousands(value)))
    # Room to the right of the last point for the names of the lines, which take the place of a legend.
    right = ticks[-1] * 2
    if len(ticks) > 1:
        right = ticks[-1] * (ticks[-1] / ticks[0]) ** 0.32
    axes.set_xlim(ticks[0] / 1.15, right)
    axes.set_xlabel(f"{chart.across} (log scale)", color=INK)
    axes.set_title(chart.title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=14)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.tick_params(colors=INK, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)


def _thousands(value: float) -> str:
    if value < 1000:
        return f"{value:.0f}"
    digits = 0 if value >= 10_000 else 1
    return f"{value / 1000:.{digits}f}k"
