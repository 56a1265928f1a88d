"""Tables of the evidence are those of recorded results: nothing in them is typed by hand."""

from __future__ import annotations

from benchmarks.harness import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "limiters" / "results.md"
PAGE = ROOT / "docs" / "evidence" / "rate-limits.md"


def table_lines(text: str) -> list[str]:
    """Return the lines of the tables of a page."""
    return [line for line in text.splitlines() if line.startswith("|")]


def test_the_page_on_rate_limits_has_the_recorded_figures() -> None:
    """Without it the page shows figures that were never measured, or no longer."""
    recorded = table_lines(RESULTS.read_text())

    assert len(recorded) > 20
    assert table_lines(PAGE.read_text()) == recorded
