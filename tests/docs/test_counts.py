"""The counts and stages on the pages are those of `router.counts` and `router.stages`.

COUNTS=write writes their tables in docs/reference again.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from router.counts import COUNTS
from router.stages import MEANINGS, Stage

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
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


def table_of_stages() -> str:
    """Return the table of the stages of dead letters."""
    lines = ["| stage | because |\n|---|---|\n"]
    for stage in Stage:
        lines.append(f"| `{stage}` | {MEANINGS[stage]} |\n")
    return "".join(lines)


@pytest.mark.parametrize(
    ("page", "name", "table"),
    [("system-tables.md", "counts", table_of_counts()), ("delivery.md", "stages", table_of_stages())],
    ids=["counts", "stages"],
)
def test_a_page_has_the_table_of_now(page: str, name: str, table: str) -> None:
    """Without it somebody queries a ledger by a column that was renamed, or replays dead letters of no stage."""
    path = REFERENCE / page
    between = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end -->)", re.DOTALL)
    if os.environ.get("COUNTS") == "write":
        path.write_text(between.sub(lambda _: table, path.read_text()))
    assert between.findall(path.read_text()) == [table]


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
