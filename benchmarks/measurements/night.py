"""What does it cost to be seen: `ui`, metrics that are scraped, three open pages?"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, met
from benchmarks.measurements import Measurement, Table
from benchmarks.results import last_run

if TYPE_CHECKING:
    from benchmarks.cells import Scale
    from benchmarks.results import Results

PAGES = 3
SCRAPE_SECONDS = 5
BARS = {"cpu": 1.02, "wall": 1.05}
NAMES = {"cpu": "CPU seconds", "wall": "wall seconds"}


def _cells(scale: Scale) -> list[Cell]:
    pairs = "20" if scale.full else "3"
    options = (("pairs", pairs), ("pages", str(PAGES)), ("scrape", str(SCRAPE_SECONDS)))
    cells = []
    for games in (7, 200):
        cell = Cell("watched", "single", scale.events, games, rows_per_batch=scale.events // 10, options=options)
        cells.append(cell)
    return cells


def _table(results: Results, scale: Scale) -> Table:
    rows = []
    figures: dict[str, float | None] = {}
    for cell in _cells(scale):
        run = last_run(results.of(cell))
        samples = run.samples if run else []
        for measure, bar in BARS.items():
            ratios = _ratios(samples, measure)
            median = statistics.median(ratios) if ratios else None
            figures[f"{cell.games}: {measure}"] = median
            spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}" if ratios else MISSING
            plain = [sample[f"plain: {measure}"] for sample in samples]
            rows.append(
                (
                    str(cell.games),
                    NAMES[measure],
                    f"{statistics.median(plain):.2f}" if plain else MISSING,
                    f"{median:.3f}" if median else MISSING,
                    spread,
                    met(median, bar, at_least=False),
                )
            )
    notes = (
        f"A stream of ten batches, drained with `ui` and by turns without, in one session: /metrics is read every "
        f"{SCRAPE_SECONDS} s and {PAGES} pages are open. The ratio is with `ui` to without, as the geometric "
        "mean of two successive pairs, in which the other comes first. CPU is that of the driver, its JVM and its "
        "Python workers.",
    )
    return Table(
        ("tables", "measured", "without", "ratio, median", "smallest to largest", "bar"), tuple(rows), figures, notes
    )


def _ratios(samples: list[dict[str, float]], measure: str) -> list[float]:
    """Return what both orders of a pair say together, in rising order: the run that comes second is often quicker."""
    ratios = [sample[f"watched: {measure}"] / sample[f"plain: {measure}"] for sample in samples]
    return sorted(math.sqrt(first * second) for first, second in zip(ratios[::2], ratios[1::2], strict=False))


NIGHT = Measurement("night", "What being seen costs", 71, _cells, _table, short=False)
