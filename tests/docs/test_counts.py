"""The counts on the pages are those of `router.counts`. COUNTS=write writes docs/reference/system-tables.md again."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from router.counts import COUNTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "system-tables.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BETWEEN = re.compile(r"(?<=<!-- counts -->\n).*?(?=<!-- end -->)", re.DOTALL)
EQUATION = re.compile(r"\b\w+ = \w+(?: \+ \w+)+")
EQUATIONS = {count.equation for count in COUNTS if count.parts}


def table_of_counts() -> str:
    """Return the table of all counts, those of the source first."""
    lines = ["| count | of a | is | sum |\n|---|---|---|---|\n"]
    for scope in ("source", "route", "sink", "batch"):
        for count in COUNTS:
            if count.scope == scope:
                equation = count.equation if count.parts else ""
                lines.append(f"| `{count.name}` | {scope} | {count.unit} that {count.meaning} | {equation} |\n")
    return "".join(lines)


def test_the_page_has_the_counts_of_now() -> None:
    """Without it somebody queries a ledger by a column that was renamed, or adds up the wrong ones."""
    now = BETWEEN.sub(lambda _: table_of_counts(), PAGE.read_text())
    if os.environ.get("COUNTS") == "write":
        PAGE.write_text(now)
    assert table_of_counts() in PAGE.read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_an_equation_on_a_page_is_one_of_the_counts(page: Path) -> None:
    """Without it two pages promise two sums for one count."""
    names = {count.name for count in COUNTS}
    found = {match for match in EQUATION.findall(page.read_text()) if match.split(" ", 1)[0] in names}
    assert found <= EQUATIONS


def test_the_readme_has_an_equation() -> None:
    """Without it the test above passes because equations are written in another way."""
    assert EQUATION.search((ROOT / "README.md").read_text())


def test_equations_are_about_counts() -> None:
    names = {count.name for count in COUNTS}
    assert {part for count in COUNTS for part in count.parts} <= names
