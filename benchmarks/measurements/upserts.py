"""Upserts against MERGE of Delta on Spark: many small tables, one large one, a range of it; and their memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, count, figure, megabytes, met, times
from benchmarks.measurements import Measurement, Table
from benchmarks.measurements.memory import peak
from benchmarks.results import median, ratio

if TYPE_CHECKING:
    from benchmarks.cells import Sample, Scale
    from benchmarks.results import CellResult, Results

TABLES, LOOP = 200, 20
"""Tables that the router merges in one batch; tables that the loop of MERGE is measured with, and extrapolated from."""
BARS = {"many": 40.0, "large": 3.0, "range": None}
WHERE = {"many": f"over {TABLES} tables", "large": "all over one table", "range": "within 2 % of one table's keys"}
MEMORY_MB = 512
COLUMNS = ("changes", "", "rows of a table", "router", "MERGE", "router is faster", "bar", "", "files rewritten")


def _changes(scale: Scale, into: str) -> int:
    return (100_000 if scale.full else 4_000) if into == "many" else (50_000 if scale.full else 2_000)


def _rows(scale: Scale, into: str) -> int:
    return 1_000 if into == "many" else 5_000_000 if scale.full else 100_000


def cell(scale: Scale, into: str, by: str, sample: Sample = "", **more: int) -> Cell:
    """Return the cell of one way to merge."""
    size = more.pop("rows", _rows(scale, into))
    options = [("into", into), ("by", by), ("rows", str(size))]
    options += [("loop", str(LOOP))] if into == "many" and by == "merge" else []
    options += [(name, str(value)) for name, value in more.items()]
    games = TABLES if into == "many" else 1
    chosen = tuple(options)
    mode = "warm" if not sample else "single"
    repeat = scale.repeat if mode == "warm" else 1
    return Cell("upserts", mode, _changes(scale, into), games, 1, repeat, sample=sample, feed="", options=chosen)


def _memory_cells(scale: Scale) -> dict[str, Cell]:
    larger = 20_000_000 if scale.full else 200_000
    return {
        "router": cell(scale, "large", "router", "workers"),
        f"router, `memory: {MEMORY_MB} MB`": cell(scale, "large", "router", "workers", memory=MEMORY_MB),
        "router with Delta on Spark": cell(scale, "large", "spark", "workers", rows=larger),
    }


def _upserts_cells(scale: Scale) -> list[Cell]:
    return [cell(scale, into, by) for into in BARS for by in ("router", "merge")]


def _upserts_table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for into, bar in BARS.items():
        ours, theirs = (results.of(cell(scale, into, by)) for by in ("router", "merge"))
        whole = _whole(into, median(theirs))
        faster = ratio(whole, median(ours))
        figures[f"merge_over_router_{into}"] = faster
        beside = (f"{bar:g} x", met(faster, bar, at_least=True)) if bar else ("", "")
        merged = MISSING if whole is None else f"{whole:.1f} s"
        sizes = (count(_changes(scale, into)), WHERE[into], count(_rows(scale, into)))
        rows.append((*sizes, figure(ours), merged, times(faster), *beside, _files(ours)))
    note = f"MERGE over {TABLES} tables is extrapolated from {LOOP}. Half of the keys are new, but for the range's."
    return Table(COLUMNS, tuple(rows), figures, (note,))


def _whole(into: str, seconds: float | None) -> float | None:
    return seconds * TABLES / LOOP if seconds is not None and into == "many" else seconds


def _files(result: CellResult | None) -> str:
    counts = result.counted[-1].counts if result and not result.problem else {}
    return f"{counts['files_removed']:.0f} of {counts['files_before']:.0f}" if "files_before" in counts else ""


def _memory_table(results: Results, scale: Scale) -> Table:
    rows, figures = [], {}
    for name, one in _memory_cells(scale).items():
        found = results.of(one)
        size = found.counted[-1].counts.get("table_mb") if found and not found.problem else None
        sizes = (count(int(dict(one.options)["rows"])), megabytes(size), figure(found))
        rows.append((name, *sizes, megabytes(peak(found, "worker_mb")), megabytes(peak(found, "java_mb"))))
        figures[f"worker_mb: {name}"] = peak(found, "worker_mb")
    columns = ("merged by", "rows of the table", "its size", "seconds", "largest worker", "JVM")
    return Table(columns, tuple(rows), figures, ("The first merge of a process, all over one table's files.",))


UPSERTS = Measurement("upserts", "Upserts", 113, _upserts_cells, _upserts_table, short=False)
UPSERT_MEMORY = Measurement(
    "upsert_memory",
    "Memory of upserts",
    114,
    lambda scale: list(_memory_cells(scale).values()),
    _memory_table,
    short=False,
)
