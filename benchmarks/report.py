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
    from router_bench.machine import Label

NOISE_NOTE = (
    "A figure with a star is of a cell during which other processes took part of the machine: "
    "repeat it with --resume --redo noisy."
)


def report(results: Results, measurements: list[Measurement], console: Console, folder: Path) -> None:
    """Print and write everything that the measurements find in the results."""
    tables = {measurement: measurement.table(results, results.scale) for measurement in measurements}
    for measurement, table in tables.items():
        console.print(rich_table(measurement.title, table))
    for line in [*summary(result.label for result in results.cells.values()), *remarks(results)]:
        console.print(line, markup=False)
    results.save({measurement.name: asdict(table) for measurement, table in tables.items()})
    charts = _draw_charts(results, measurements, folder)
    (folder / "results.md").write_text(markdown(results, tables, charts))


def rich_table(title: str, table: Table) -> RichTable:
    """Return a table for the terminal."""
    terminal_table = RichTable(title=title, title_justify="left", title_style="bold", caption="\n".join(table.notes))
    terminal_table.caption_justify = "left"
    for index, column in enumerate(table.columns):
        terminal_table.add_column(column, justify="left" if index == 0 else "right")
    for row in table.rows:
        terminal_table.add_row(*row)
    return terminal_table


def markdown(results: Results, tables: dict[Measurement, Table], charts: dict[str, str]) -> str:
    """Return the whole report as Markdown; `charts`: name of a measurement -> its picture."""
    machines = summary(result.label for result in results.cells.values())
    parts = ["# Benchmark", f"`{results.command}`", "\n".join(f"- {line}" for line in machines) or "Nothing measured."]
    for measurement, table in tables.items():
        parts += [f"## {measurement.title}", markdown_table(table), *table.notes]
        if len(machines) > 1:
            parts.append(measured_on(results, measurement))
        if measurement.name in charts:
            parts.append(f"![{measurement.title}]({charts[measurement.name]})")
    parts += remarks(results)
    return "\n\n".join(parts) + "\n"


def remarks(results: Results) -> list[str]:
    """Return what a reader must know about cells without a figure and cells that were disturbed."""
    lines = [f"ERROR in {key}: {result.problem}" for key, result in results.cells.items() if result.problem]
    if any(result.noisy for result in results.cells.values()):
        lines.append(NOISE_NOTE)
    return lines


def markdown_table(table: Table) -> str:
    """Return one table as Markdown, the first column to the left, figures to the right."""
    alignment = ["---", *["---:"] * (len(table.columns) - 1)]
    lines = []
    for row in (table.columns, alignment, *table.rows):
        cells = [cell.replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def measured_on(results: Results, measurement: Measurement) -> str:
    """Return where the cells of a measurement were measured."""
    machines = sorted({label.machine_text() for label in _labels(results, measurement)})
    if not machines:
        return "Not measured."
    text = f"Measured on {'; '.join(machines)}."
    if len(machines) > 1:
        text += " Figures of several machines are not to be compared."
    return text


def _labels(results: Results, measurement: Measurement) -> list[Label]:
    """Return the labels of the cells of a measurement that were measured."""
    cell_results = [results.of(cell) for cell in measurement.cells(results.scale)]
    return [result.label for result in cell_results if result]


def _draw_charts(results: Results, measurements: list[Measurement], folder: Path) -> dict[str, str]:
    """Draw the charts that have points; return their files by measurement."""
    files = {}
    for measurement in measurements:
        if not measurement.chart:
            continue
        chart = measurement.chart(results, results.scale)
        if not any(chart.lines.values()):
            continue
        labels = dict.fromkeys(label.text() for label in _labels(results, measurement))
        files[measurement.name] = f"throughput_{measurement.name}.png"
        draw(replace(chart, below="   ".join(labels)), folder / files[measurement.name])
    return files
