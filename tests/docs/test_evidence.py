"""Tables of the evidence are those of recorded results: nothing in them is typed by hand."""

from __future__ import annotations

from benchmarks.harness import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "limiters" / "results.md"
PAGE = ROOT / "docs" / "evidence" / "rate-limits.md"
VERDICT_ON_BAR, VERDICT_ON_LIMIT = 6, 11
"""Columns of the results with nothing but whether a line is as it should be: a sentence of the page says so of all."""


def table_lines(text: str) -> list[str]:
    """Return the lines of the tables of a page."""
    return [line for line in text.splitlines() if line.startswith("|")]


def test_the_page_on_rate_limits_has_the_recorded_figures() -> None:
    """Without it the page shows figures that were never measured, or no longer, or of a limiter that missed its bar."""
    recorded = table_lines(RESULTS.read_text())
    lines = []
    for line in recorded:
        cells = line.split("|")
        verdicts = [cells.pop(VERDICT_ON_LIMIT).strip(), cells.pop(VERDICT_ON_BAR).strip()]
        assert set(verdicts) <= {"reached", "", "---:", "---"}
        lines.append("|".join(cells))

    assert len(recorded) > 20
    shown = table_lines(PAGE.read_text())
    assert len(shown) > 15
    assert shown == [line for line in lines if line in shown]
