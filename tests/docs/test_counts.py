"""The counts, stages, states, metrics and kinds of values on the pages are those of their tables in the code.

COUNTS=write writes their tables in docs/reference again.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pytest

from router.counts import COUNTS
from router.engine.status.metrics import METRICS
from router.stages import MEANINGS, Stage
from router.states import (
    EVENTS,
    FINDINGS,
    STREAM_STATES,
    TABLE_STATES,
    VERDICTS,
    Event,
    FindingKind,
    StreamState,
    TableState,
    Verdict,
    ViewWay,
)
from router_schemas.avro.kinds import AvroKind
from router_schemas.protobuf.kinds import SPECIAL_KINDS, WRAPPERS, Kind
from router_schemas.protobuf.model import spark_struct

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EQUATION = re.compile(r"\b\w+ = \w+(?: \+ \w+)+")
EQUATIONS = {count.equation for count in COUNTS if count.parts}


def table_of_counts() -> str:
    """Return the table of all counts, those of the source first."""
    lines = ["| count | of a | is |\n|---|---|---|\n"]
    for scope in ("source", "route", "sink", "batch"):
        for count in COUNTS:
            if count.scope == scope:
                equation = f" ({count.equation})" if count.parts else ""
                lines.append(f"| `{count.name}` | {scope} | {count.unit} that {count.meaning}{equation} |\n")
    return "".join(lines)


def table_of_stages() -> str:
    """Return the table of the stages of dead letters."""
    lines = ["| stage | because |\n|---|---|\n"]
    for stage in Stage:
        lines.append(f"| `{stage}` | {MEANINGS[stage]} |\n")
    return "".join(lines)


def table_of_states(heads: str, rows: dict[str, tuple[str, ...]]) -> str:
    """Return the table of the states of something."""
    lines = [f"| {heads} |\n|{'---|' * len(heads.split(' | '))}\n"]
    lines += [f"| `{name}` | {' | '.join(facts)} |\n".replace("|  |", "| |") for name, facts in rows.items()]
    return "".join(lines)


def table_of_metrics() -> str:
    """Return the table of all metrics."""
    lines = ["| metric | kind | labels | is |\n|---|---|---|---|\n"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        description = metric.description
        if metric.values:
            description = f"{description} `{metric.labels[-1]}`: {metric.values}"
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {description} |\n")
    return "".join(lines)


def words(types: tuple[type[DataType], ...]) -> list[str]:
    """Return the names of types of columns, without digits and fields."""
    return [re.split(r"[(<]", kind().simpleString())[0] for kind in types]


def encoded(columns: tuple[type[DataType], ...], declares: tuple[type[DataType], ...]) -> str:
    """Return the types of columns that are written as a kind, in bold those for which a new schema has it."""
    declared = words(declares)
    assert set(declared) <= set(words(columns))
    return ", ".join(f"**{name}**" if name in declared else name for name in words(columns))


def table_of_kinds(format_name: str, rows: list[tuple[str, ...]]) -> str:
    """Return the table of the kinds of a format; kinds that differ in their names only are one row."""
    lines = [f"| {format_name} | column | encoded | notes |\n|---|---|---|---|\n"]
    names: dict[tuple[str, ...], list[str]] = {}
    for name, *facts in rows:
        names.setdefault(tuple(facts), []).append(name)
    lines += [f"| {' | '.join([', '.join(of_row), *facts])} |\n" for facts, of_row in names.items()]
    return "".join(lines)


def table_of_avro() -> str:
    """Return the table of the kinds of Avro values."""
    rows = []
    for kind in AvroKind:
        described = kind.value
        (column,) = words((type(described.column),))
        rows.append((str(kind), column, encoded(described.columns, described.declares), described.note))
    return table_of_kinds("Avro", rows)


def table_of_protobuf() -> str:
    """Return the table of the kinds of Protobuf values."""
    rows = []
    for kind in Kind:
        described = kind.value
        (column,) = spark_struct(pa.struct([("column", described.arrow)]))
        shown = column.dataType.simpleString().replace(":", " ")
        messages = [name for name, special in SPECIAL_KINDS.items() if special is kind and name not in WRAPPERS]
        for name in messages or [described.title or str(kind)]:
            facts = (shown, encoded(described.columns, described.declares), described.note)
            rows.append((name.rpartition(".")[2], *facts))
    return table_of_kinds("Protobuf", rows)


@pytest.mark.parametrize(
    ("page", "name", "table"),
    [
        ("reference/system-tables.md", "counts", table_of_counts()),
        ("reference/delivery.md", "stages", table_of_stages()),
        ("reference/formats.md", "avro kinds", table_of_avro()),
        ("reference/formats.md", "protobuf kinds", table_of_protobuf()),
        ("reference/metrics.md", "metrics", table_of_metrics()),
        (
            "reference/status-server.md",
            "states",
            table_of_states("state | the stream", {state: (meaning,) for state, meaning in STREAM_STATES.items()}),
        ),
        (
            "reference/status-server.md",
            "verdicts",
            table_of_states("verdict | is given if", {verdict: (meaning,) for verdict, meaning in VERDICTS.items()}),
        ),
        (
            "reference/status-server.md",
            "findings",
            table_of_states(
                "kind | severity | what is wrong",
                {kind: (f"`{facts.severity}`", facts.meaning) for kind, facts in FINDINGS.items()},
            ),
        ),
        (
            "how-to/repair-tables.md",
            "states",
            table_of_states(
                "state | the table | do",
                {state: (condition.meaning, condition.todo) for state, condition in TABLE_STATES.items()},
            ),
        ),
        (
            "how-to/monitor.md",
            "events",
            table_of_states("event | is sent when", {event: (meaning,) for event, meaning in EVENTS.items()}),
        ),
    ],
    ids=lambda value: value if len(value) < 40 else "",
)
def test_a_page_has_the_table_of_now(page: str, name: str, table: str) -> None:
    """Without it somebody queries a ledger by a column that was renamed, or encodes a column as it is not read."""
    path = DOCS / page
    between = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end -->)", re.DOTALL)
    if os.environ.get("COUNTS") == "write":
        path.write_text(between.sub(lambda _: table, path.read_text()))
    assert between.findall(path.read_text()) == [table]


@pytest.mark.parametrize(
    ("names", "described"),
    [
        (StreamState, STREAM_STATES),
        (TableState, TABLE_STATES),
        (Verdict, VERDICTS),
        (FindingKind, FINDINGS),
        (Event, EVENTS),
    ],
    ids=["streams", "tables", "verdicts", "findings", "events"],
)
def test_each_state_is_described(names: Any, described: dict[str, object]) -> None:
    """Without it a metric lacks the series of a state, and a page its row."""
    assert get_args(names) == tuple(described)


def test_the_page_on_views_has_each_way() -> None:
    """Without it somebody reads a way in `router views`, and finds nothing about it."""
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "how-to/views.md").read_text().partition("| way |")[2], re.MULTILINE)
    assert tuple(rows[: len(get_args(ViewWay))]) == get_args(ViewWay)


def test_the_page_of_a_stream_has_words_for_each_verdict() -> None:
    """Without it the page of a stream says `undefined`."""
    script = (ROOT / "router/engine/status/assets/page.js").read_text()
    for name, states in (("VERDICTS", set(VERDICTS)), ("STATES", {"starting", "ended"} & set(STREAM_STATES))):
        (entries,) = re.findall(rf"const {name} = \{{(.*)\}};", script)
        assert set(re.findall(r"(\w+): ", entries)) == states


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
