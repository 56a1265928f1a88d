"""The tables of docs/evidence/storage-faults.md are those of this folder. STORAGE_FAULTS=write writes them anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.chaos.faults.table import DISKS, FAULTS, STEPS, Fault

PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "storage-faults.md"
END = "<!-- end -->"


def files() -> list[str]:
    """Return a line for all files of which the same comes after the same steps."""
    faults_by_file: dict[tuple[str, str, str], list[Fault]] = {}
    for fault in FAULTS:
        becomes = "mends it" if fault.outcome == "goes on" and fault.says else fault.outcome
        faults_by_file.setdefault((fault.what, becomes, fault.way), []).append(fault)
    files_by_result: dict[tuple[str, str, str], list[str]] = {}
    for (what, becomes, way), faults in faults_by_file.items():
        steps = "; ".join(dict.fromkeys(STEPS[fault.step] for fault in faults))
        files_by_result.setdefault((steps, becomes, way), []).append(what)
    lines = ["| damaged | ended after | the run | what a person does |", "|---|---|---|---|"]
    for (steps, becomes, way), names in files_by_result.items():
        lines.append(f"| {'; '.join(names)} | {steps} | {becomes} | {way} |")
    return lines


def disks() -> list[str]:
    """Return a line for each kind of file in which writing fails."""
    return ["| in | the run |", "|---|---|", *(f"| {disk.what} | {disk.outcome} |" for disk in DISKS)]


def with_tables(page: str) -> str:
    """Return the page with its tables as they are here."""
    for name, found in {"files": files(), "disks": disks()}.items():
        block = "\n".join((f"<!-- {name} -->", "", *found, "", END))
        page = re.sub(rf"<!-- {name} -->.*?{END}", lambda _, block=block: block, page, flags=re.DOTALL)
    return page


def test_the_page_says_what_the_tests_hold() -> None:
    """Without it the page promises what no run has shown."""
    page = PAGE.read_text()
    if os.environ.get("STORAGE_FAULTS") == "write":
        PAGE.write_text(with_tables(page))
        page = PAGE.read_text()
    assert page == with_tables(page)
