"""Upserts against MERGE of Delta on Spark: many small tables, one large one, a range of it; and their memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cells import Cell
from benchmarks.format import MISSING, count, figure, megabytes, met, times
from benchmarks.measurements import Measurement, Table
from benchmarks.measurements.memory import peak
from benchmarks.results import last_run, median, ratio

if TYPE_CHECKING:
    from benchmarks.cells import Sample, Scale
    from benchmarks.results import CellResult, Results

TABLES = 200
"""Tables that the router merges in one batch."""
LOOP = 20
"""Tables that the loop of MERGE is measured with, and extrapolated from."""
BARS = {"many": 40.0, "large": 3.0, "range": None}
WHERE = {"many": f"over {TABLES} tables", "large": "all over one table", "range": "within 2 % of one table's keys"}
MEMORY_MB = 512
COLUMNS = ("changes", "", "rows of a table", "router", "MERGE", "router is faster", "bar", "", "files rewritten")


def _changes(scale: Scale, into: str) -> int:
    if into == "many":
        return 100_000 if scale.full else 4_000
    return 50_000 if scale.full else 2_000


def _rows(scale: Scale, into: str) -> int:
    if into == "many":
        return 1_000
    return 5_000_000 if scale.full else 100_000


def cell(scale: Scale, into: str, by: str, sample: Sample = "", **more: int) -> Cell:
    """Return the cell of one way to merge."""
    rows = more.pop("rows", _rows(scale, into))
    options = [("into", into), ("by", by), ("rows", str(rows))]
    if into == "many" and by == "merge":
        options.append(("loop", str(LOOP)))
    options += [(name, str(value)) for name, value in more.items()]
    return Cell(
        subject="upserts",
        # Memory is sampled in the first merge of a process.
        mode="single" if sample else "warm",
        events=_changes(scale, into),
        games=TABLES if into == "many" else 1,
        partitions=1,
        repeat=1 if sample else scale.repeat,
        sample=sample,
        feed="",
        options=tuple(options),
    )


def _memory_cells(scale: Scale) -> dict[str, Cell]:
    larger = 20_000_000 if scale.full else 200_000
    return {
        "router": cell(scale, "large", "router", "workers"),
        f"router, `memory: {MEMORY_MB} MB`": cell(scale, "large", "router", "workers", memory=MEMORY_MB),
        "router with Delta on Spark": cell(scale, "large", "spark", "workers", rows=larger),
    }


def _upserts_cells(scale: Scale) -> list[Cell]:
    cells = []
    for into in BARS:
        cells += [cell(scale, into, "router"), cell(scale, into, "merge")]
    return cells


def _upserts_table(results: Results, scale: Scale) -> Table:
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for into, bar in BARS.items():
        router = results.of(cell(scale, into, "router"))
        merge_seconds = median(results.of(cell(scale, into, "merge")))
        # Over many tables MERGE was measured with LOOP of them only.
        if merge_seconds is not None and into == "many":
            merge_seconds = merge_seconds * TABLES / LOOP
        faster = ratio(merge_seconds, median(router))
        figures[f"merge_over_router_{into}"] = faster
        rows.append(
            (
                count(_changes(scale, into)),
                WHERE[into],
                count(_rows(scale, into)),
                figure(router),
                MISSING if merge_seconds is None else f"{merge_seconds:.1f} s",
                times(faster),
                f"{bar:g} x" if bar else "",
                met(faster, bar, at_least=True) if bar else "",
                _files(router),
            )
        )
    note = f"MERGE over {TABLES} tables is extrapolated from {LOOP}. Half of the keys are new, but for the range's."
    return Table(COLUMNS, tuple(rows), figures, (note,))


def _files(result: CellResult | None) -> str:
    run = last_run(result)
    if run is None or "files_before" not in run.counts:
        return ""
    return f"{run.counts['files_removed']:.0f} of {run.counts['files_before']:.0f}"


def _memory_table(results: Results, scale: Scale) -> Table:
    rows = []
    figures = {}
    for name, memory_cell in _memory_cells(scale).items():
        result = results.of(memory_cell)
        run = last_run(result)
        worker_mb = peak(result, "worker_mb")
        rows.append(
            (
                name,
                count(int(dict(memory_cell.options)["rows"])),
                megabytes(run.counts.get("table_mb") if run else None),
                figure(result),
                megabytes(worker_mb),
                megabytes(peak(result, "java_mb")),
            )
        )
        figures[f"worker_mb: {name}"] = worker_mb
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
