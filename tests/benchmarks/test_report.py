"""The report says what was found, also when something is missing, wrong or disturbed."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from benchmarks.__main__ import main
from benchmarks.cells import FULL, SHORT, Cell
from benchmarks.discovery import measurements
from benchmarks.format import seconds
from benchmarks.measurements import Table
from benchmarks.measurements.formats import cell
from benchmarks.measurements.memory import growth
from benchmarks.report import markdown_table, report
from router_bench.chart import Chart, draw
from router_bench.machine import Label
from tests.benchmarks.conftest import LABEL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.cells import Scale
    from benchmarks.results import CellResult, Results

PNG = b"\x89PNG\r\n\x1a\n"


def written(results: Results) -> tuple[str, str]:
    """Return the Markdown and the terminal's text of everything in the results."""
    console = Console(file=io.StringIO(), width=200)
    report(results, list(measurements().values()), console, results.path.parent)
    assert isinstance(console.file, io.StringIO)
    return (results.path.parent / "results.md").read_text(), console.file.getvalue()


def row_of(markdown: str, title: str, first: str) -> list[str]:
    section = markdown.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    line = next(line for line in section.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("scale", [SHORT, FULL], ids=["short", "full"])
def test_a_report_of_nothing_is_a_report(results: Results, scale: Scale) -> None:
    results.scale = scale
    markdown, terminal = written(results)

    assert all(item.title in markdown and item.title in terminal for item in measurements().values())


def test_a_ratio_is_shown_beside_its_bar(results: Results, measured: Callable[..., CellResult]) -> None:
    measured(SHORT.warm("router", 7), 9.0, 2.0)
    measured(SHORT.warm("loop", 7), 9.0, 5.0)
    measured(SHORT.warm("router", 50), 9.0, 2.0)
    measured(SHORT.warm("loop", 50), 9.0, 5.0)
    markdown, _ = written(results)

    assert row_of(markdown, "Warm: into bronze + N tables", "7")[1:6] == [
        "2.0 s",
        "5.0 s",
        "2.50 x",
        "1.6 x",
        "reached",
    ]
    assert row_of(markdown, "Warm: into bronze + N tables", "50")[3:6] == ["2.50 x", "4 x", "MISSED"]
    assert json.loads(results.path.read_text())["findings"]["warm"]["figures"]["loop_over_router_7"] == 2.5


def test_a_cold_ratio_is_of_whole_processes(results: Results, measured: Callable[..., CellResult]) -> None:
    measured(SHORT.cold("router", 7), 9.0, process_seconds=10.0)
    measured(SHORT.cold("queries", 7), 36.0, process_seconds=40.0)
    markdown, _ = written(results)

    assert row_of(markdown, "Cold: a fresh process", "7")[-3:] == ["4.00 x", "2.5 x", "reached"]


def test_formats_are_held_against_their_bars(results: Results, measured: Callable[..., CellResult]) -> None:
    measured(cell(SHORT, "json"), 9.0, 4.0)
    measured(cell(SHORT, "protobuf"), 9.0, 3.0)
    measured(cell(SHORT, "protobuf_10"), 9.0, 3.6)
    markdown, _ = written(results)

    assert row_of(markdown, "Formats: bronze + 7 tables", "Protobuf, 1 version")[3:] == [
        "JSON",
        "0.75 x",
        "at most 1 x",
        "reached",
    ]
    assert row_of(markdown, "Formats: bronze + 7 tables", "Protobuf, 10 versions")[4:] == [
        "1.20 x",
        "at most 1.15 x",
        "MISSED",
    ]


def test_the_slowest_batch_with_a_new_version_counts(results: Results, measured: Callable[..., CellResult]) -> None:
    times = {"after_registration": 0.5, "after_last_record": 0.4, "plain_batch": 0.3, "batch": 0.4}
    samples = [{**times, "delay": delay} for delay in (0.1, 0.1, 1.5)]
    measured(Cell("evolution", "single", 5000, 1, feed=""), 1.0, samples=samples)
    markdown, _ = written(results)

    title = "A new schema version in a running stream"
    assert row_of(markdown, title, "median")[-2:] == ["0.10 s", ""]
    assert row_of(markdown, title, "slowest")[-2:] == ["1.5 s", "MISSED"]


def test_a_wrong_result_is_an_error_and_no_figure(results: Results, measured: Callable[..., CellResult]) -> None:
    measured(SHORT.warm("router", 7), 9.0, 2.0, problem="wrong result: bronze: 1 rows, 2 expected")
    measured(SHORT.warm("loop", 7), 9.0, 5.0)
    markdown, terminal = written(results)

    assert row_of(markdown, "Warm: into bronze + N tables", "7")[1:4] == ["ERROR", "5.0 s", "-"]
    assert "ERROR in warm/router/json/300000ev/7t/4p: wrong result: bronze: 1 rows, 2 expected" in markdown
    assert "bronze: 1 rows" in terminal


def test_a_disturbed_cell_is_marked(results: Results, measured: Callable[..., CellResult]) -> None:
    measured(SHORT.warm("router", 7), 9.0, 2.0, foreign_cores=0.8)
    markdown, terminal = written(results)

    assert row_of(markdown, "Warm: into bronze + N tables", "7")[1] == "2.0 s*"
    assert "--redo noisy" in markdown
    assert "--redo noisy" in terminal


def test_a_report_names_the_machines_of_its_figures(results: Results, measured: Callable[..., CellResult]) -> None:
    other = Label({**LABEL.machine, "processor": "Omega 1"}, "b" * 40, True, "2026-11-30")
    measured(SHORT.warm("router", 1), 9.0, 2.0)
    measured(SHORT.warm("router", 200), 9.0, 3.0, label=other)
    measured(SHORT.warm("loop", 7), 9.0, 3.0, label=Label())
    markdown, terminal = written(results)

    assert "- Zeta 9, 2 cores, 24 GB, Linux 6: 1 cell; commit aaaaaaaaaa; 2026-11-21" in markdown
    assert "- Omega 1, 2 cores, 24 GB, Linux 6: 1 cell; commit bbbbbbbbbb with changes; 2026-11-30" in markdown
    assert "- unknown machine: 1 cell; unknown commit; unknown date" in markdown
    assert "Figures of several machines are not to be compared." in markdown
    assert "Omega 1" in terminal


def test_a_commit_is_counted_per_table_and_batch(results: Results, measured: Callable[..., CellResult]) -> None:
    measured(SHORT.warm("router", 200), 9.0, 2.9, steps={"commit": 1.0, "land": 1.5}, tables=200, batches=1)
    markdown, _ = written(results)

    assert row_of(markdown, "Commits", "200")[1] == "5.0 ms"
    assert row_of(markdown, "Where the time goes", "- land")[-1] == "1.5 s"
    assert row_of(markdown, "Where the time goes", "- around the batches")[-1] == "0.40 s"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.0, "0 ms"),
        (0.0018, "1.8 ms"),
        (0.056, "56 ms"),
        (0.5, "0.50 s"),
        (9.96, "10.0 s"),
        (251.4, "251 s"),
    ],
)
def test_seconds_have_the_digits_that_mean_something(value: float | None, shown: str) -> None:
    assert seconds(value) == shown


def test_memory_says_how_it_grows(results: Results, measured: Callable[..., CellResult]) -> None:
    for events, size in ((100_000, 200.0), (300_000, 210.0)):
        measured(Cell("router", "single", events, 7, sample="workers"), 2.0, peaks={"worker_mb": size, "workers": 2.0})
    markdown, _ = written(results)

    assert row_of(markdown, "Memory of the Python workers", "300 000")[1] == "210 MB"
    assert "3 times the rows take 1.05 times the memory" in markdown


def test_growth_of_the_driver_ignores_its_start() -> None:
    samples = [{"batches": float(n), "heap_mb": 500.0 if n < 200 else 100.0 + n / 100} for n in range(50, 2001, 50)]

    assert growth(samples, "heap_mb") == pytest.approx(10.0)
    assert growth(samples[:4], "heap_mb") is None


def test_throughput_is_drawn_from_valid_figures(results: Results, measured: Callable[..., CellResult]) -> None:
    for games, ours, theirs in ((1, 3.0, 4.0), (7, 3.0, 6.0), (50, 4.0, 20.0)):
        measured(SHORT.warm("router", games), 9.0, ours)
        measured(SHORT.warm("loop", games), 9.0, theirs)
    markdown, _ = written(results)

    assert row_of(markdown, "Throughput against tables", "50")[1:] == ["75 000", "15 000", "5.00 x"]
    assert (results.path.parent / "throughput_tables.png").read_bytes().startswith(PNG)
    assert "](throughput_tables.png)" in markdown


def test_render_makes_the_same_report_again(
    results: Results, measured: Callable[..., CellResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for games in (1, 7):
        measured(SHORT.warm("router", games), 9.0, 3.0)
    first, _ = written(results)
    out = tmp_path / "again"
    out.mkdir()
    names = ",".join(measurements())

    assert main(["--render", str(results.path), "--out", str(out), "--only", names]) == 0
    assert (out / "results.md").read_text() == first
    assert (out / "throughput_tables.png").exists()
    assert "Throughput against tables" in capsys.readouterr().out


def test_a_chart_with_one_point_is_drawn(tmp_path: Path) -> None:
    draw(Chart("title", "tables", {"router": [(7, 1000.0)], "loop": []}), tmp_path / "one.png")

    assert (tmp_path / "one.png").read_bytes().startswith(PNG)


def test_markdown_keeps_bars_inside_cells() -> None:
    table = markdown_table(Table(("what", "value"), (("a|b", "1 s"),)))

    assert table.splitlines() == ["| what | value |", "| --- | ---: |", "| a\\|b | 1 s |"]
    assert not re.search(r"[^\\]\|b", table)
