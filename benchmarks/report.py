"""Show results: tables on the terminal, one Markdown file, one PNG per chart, and the findings in the JSON."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from rich.table import Table as RichTable

from router_bench.chart import draw
from router_bench.machine import summary

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from benchmarks.measurements import Measurement, Table
    from benchmarks.results import Results


NOISE_NOTE = (
    "A figure with a star is of a cell during which other processes took part of the machine: "
    "repeat it with --resume --redo noisy."
)


def report(results: Results, asked: list[Measurement], console: Console, folder: Path) -> None:
    """Print and write everything that the measurements find in the results."""
    tables = {item: item.table(results, results.scale) for item in asked}
    for item, table in tables.items():
        console.print(rich_table(item.title, table))
    for line in summary(result.label for result in results.cells.values()):
        console.print(line, markup=False)
    for remark in remarks(results):
        console.print(remark, markup=False)
    results.save({item.name: asdict(table) for item, table in tables.items()})
    charts = _draw(results, asked, folder)
    (folder / "results.md").write_text(markdown(results, tables, charts))


def rich_table(title: str, table: Table) -> RichTable:
    """Return a table for the terminal."""
    shown = RichTable(title=title, title_justify="left", title_style="bold", caption="\n".join(table.notes))
    shown.caption_justify = "left"
    for index, column in enumerate(table.columns):
        shown.add_column(column, justify="left" if index == 0 else "right")
    for row in table.rows:
        shown.add_row(*row)
    return shown


def markdown(results: Results, tables: dict[Measurement, Table], charts: dict[str, str]) -> str:
    """Return the whole report as Markdown; `charts` holds the picture of a measurement by its name."""
    machines = summary(result.label for result in results.cells.values())
    parts = ["# Benchmark", f"`{results.command}`", "\n".join(f"- {line}" for line in machines) or "Nothing measured."]
    for item, table in tables.items():
        parts += [f"## {item.title}", markdown_table(table), *table.notes]
        parts += [measured_on(results, item)] if len(machines) > 1 else []
        parts += [f"![{item.title}]({charts[item.name]})"] if item.name in charts else []
    parts += remarks(results)
    return "\n\n".join(parts) + "\n"


def remarks(results: Results) -> list[str]:
    """Return what a reader must know about cells without a figure and cells that were disturbed."""
    wrong = [f"ERROR in {key}: {result.problem}" for key, result in results.cells.items() if result.problem]
    return wrong + ([NOISE_NOTE] if any(result.noisy for result in results.cells.values()) else [])


def markdown_table(table: Table) -> str:
    """Return one table as Markdown, the first column to the left, figures to the right."""
    lines = [table.columns, ("---", *["---:"] * (len(table.columns) - 1)), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def measured_on(results: Results, item: Measurement) -> str:
    """Return where the cells of a measurement were measured."""
    labels = [found.label for cell in item.cells(results.scale) if (found := results.of(cell))]
    machines = sorted({label.machine_text() for label in labels})
    mixed = " Figures of several machines are not to be compared." if len(machines) > 1 else ""
    return f"Measured on {'; '.join(machines)}.{mixed}" if machines else "Not measured."


def _draw(results: Results, asked: list[Measurement], folder: Path) -> dict[str, str]:
    files = {}
    for item in asked:
        chart = item.chart(results, results.scale) if item.chart else None
        if chart and any(chart.lines.values()):
            files[item.name] = f"throughput_{item.name}.png"
            labels = [found.label for cell in item.cells(results.scale) if (found := results.of(cell))]
            below = "   ".join(dict.fromkeys(label.text() for label in labels))
            draw(replace(chart, below=below), folder / files[item.name])
    return files
