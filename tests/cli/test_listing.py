"""What commands print is whole in a terminal of 80 columns, one line a row in a pipe, and JSON if asked for."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import write_deltalake

import router.cli.replay
from router.cli import commands
from router.cli.listing import Listing, ListingField, number_fields, show_listing, show_sentences
from router.config.loader import load_config
from router.delta.replace import PROPERTIES
from router.engine.label.layout import DEAD_SCHEMA
from router.engine.ledger import SCHEMA
from router.engine.reprocess.replay import DeadLetterOutcome, Scope
from router.registry import load_registry
from tests.cli.terminal import run_in_terminal
from tests.engine import written_lake
from tests.engine.written_lake import WrittenLake

TERMINAL = {"COLUMNS": "80", "FORCE_COLOR": "1", "TERM": "dumb"}
ROUTE = "games_of_the_evening"
TABLES = tuple(f"a_tournament_of_the_longest_evenings_{number}" for number in range(10, 13))
NIGHT = datetime(2026, 1, 31, 23, 59, 58, tzinfo=timezone.utc)
NUMBER = 1_234_567_890


def ledger_row(**values: Any) -> dict[str, Any]:
    return {"query": "games", "run": "run-1", "batch_id": 123_456, "finished": NIGHT, **values}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> WrittenLake:
    """A lake with long names, large numbers in its ledger, quarantined rows and dead letters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(written_lake, "GAMES", TABLES)
        found = WrittenLake(tmp_path_factory.mktemp("night")).take(3, blocked=(f"silver.{TABLES[1]}",))
    text = found.file.read_text().replace("name: all\n", f"name: {ROUTE}\n    was: all\n")
    text = text.replace("    match:", "    expect: [{name: amount_of_the_bet, sql: 'event.amount > 0'}]\n    match:", 1)
    found.file.write_text(text)

    source = dict.fromkeys(("read", "decoded", "failed", "unmatched"), NUMBER)
    place = {"topic": "game-events-of-europe", "partition": 11, "from_offset": NUMBER, "to_offset": 2 * NUMBER}
    counts = dict.fromkeys(("matched", "landed", "refused", "quarantined", "applied", "backlog"), NUMBER)
    rows = [
        ledger_row(**place, **source),
        ledger_row(route="all", sink="tables", violated=[("amount_of_the_bet", NUMBER)], **counts),
    ]
    write_deltalake(found.path("ops.ledger"), pa.Table.from_pylist(rows, SCHEMA), mode="append")

    letters = [
        {"stage": "schema", "reason": "amount: double, the table has string", "route": "all", "sink": "tables"},
        {"stage": "decode", "reason": "not valid JSON: " + "a word " * 30, "value": b'{"game": "uno"} ' * 9},
    ]
    places = [{"topic": "game-events-of-europe", "partition": 11, "offset": NUMBER + n} for n in range(2)]
    dead = [{**letter, **place, "timestamp": NIGHT} for letter, place in zip(letters, places, strict=True)]
    write_deltalake(found.path("ops.dead"), pa.Table.from_pylist(dead, DEAD_SCHEMA), configuration=PROPERTIES)
    return found


def call(lake: WrittenLake, command: str, *options: str, **environ: str) -> Result:
    arguments = [*command.split(), str(lake.file), *options]
    found = CliRunner(env=environ).invoke(commands, arguments, prog_name="router")
    assert not found.exception or isinstance(found.exception, SystemExit), found.output
    return found


WHOLE = {
    "ledger": [ROUTE, "game-events-of-europe/11", f"{NUMBER}-{2 * NUMBER}", f"{NUMBER:,}", "123456"],
    "tables": [f"silver.{TABLES[0]}", f"silver.{TABLES[2]}", "quarantine.games__all__tables", "delta-rs"],
    "quarantine list": [f"silver.{TABLES[1]}", ROUTE, "rows 6"],
    "dead-letters": [ROUTE, "2026-01-31 23:59:58Z", "amount: double, the table has string"],
    "dead-letters --samples": ["game-events-of-europe", str(NUMBER + 1)],
    "expectations": [ROUTE, "amount_of_the_bet", f"{NUMBER:,}"],
    "verify": [f"silver.{TABLES[0]}", f"silver.{TABLES[2]}", "version 0: WRITE by delta-rs"],
}
"""What must stand whole on one line, by command."""


@pytest.mark.parametrize("command", WHOLE)
def test_no_name_and_no_number_is_split_at_80_columns(lake: WrittenLake, command: str) -> None:
    """An operator copies a name, or reads a number, and half of it stands on the next line."""
    name, _, option = command.partition(" --")
    shown = call(lake, name, *([f"--{option}=2"] if option else []), **TERMINAL).output

    lines = shown.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    for text in WHOLE[command]:
        assert any(text in line for line in lines), f"{text!r} is not whole in\n{shown}"


@pytest.mark.parametrize("command", ["ledger", "tables", "quarantine list", "dead-letters", "expectations", "verify"])
def test_in_a_pipe_a_row_is_one_line(lake: WrittenLake, command: str) -> None:
    """`router tables FILE | grep silver.uno` must give all of the row."""
    shown = call(lake, command, COLUMNS="80").output

    longest = max(shown.splitlines(), key=len)
    assert len(longest) > 80
    if command == "tables":
        (line,) = [line for line in shown.splitlines() if f"silver.{TABLES[0]} " in line]
        assert line.split()[1:] == ["ok", "6", "delta-rs"], "why is not said where nearly every table has the same"


DOCUMENTS = {
    "ledger": ("sources", {"batch", "run", "topic", "from_offset", "read", "violated", "finished"}),
    "tables": ("tables", {"table", "state", "rows", "lag", "committer", "why", "quarantined"}),
    "quarantine list": ("quarantined", {"table", "route", "sink", "rows", "oldest", "reason", "approved"}),
    "dead-letters": ("dead_letters", {"stage", "route", "sink", "reason", "count", "first", "last", "samples"}),
    "expectations": ("expectations", {"of", "expectation", "events", "violated", "share", "trend", "last"}),
    "verify": ("tables", {"table", "ok", "problems", "rows", "files", "version"}),
    "views": ("views", set()),
}


@pytest.mark.parametrize("command", DOCUMENTS)
def test_json_is_one_document_with_names_that_stay(lake: WrittenLake, command: str) -> None:
    """A script that reads it breaks if a field gets another name."""
    document = json.loads(call(lake, command, "--json").stdout)

    key, fields = DOCUMENTS[command]
    assert document["name"] == "games"
    rows = document[key]
    assert bool(rows) == bool(fields)
    assert all(fields <= row.keys() for row in rows)
    times = re.findall(r'"(?:finished|first|last|oldest)": "(.*?)"', json.dumps(document))
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time) for time in times)


def test_plugins_are_listed_as_json() -> None:
    document = json.loads(CliRunner().invoke(commands, ["plugins", "--json"]).stdout)

    (part,) = [part for part in document["parts"] if (part["kind"], part["name"]) == ("decoder", "json")]
    assert part.keys() == {"kind", "name", "summary", "provider"}


def test_the_dry_replay_is_whole_at_80_columns(lake: WrittenLake, monkeypatch: Any, capsys: Any) -> None:
    """It needs Spark, and is what an operator looks at before rows are sent again."""
    for name, value in TERMINAL.items():
        monkeypatch.setenv(name, value)
    config = load_config(lake.file, load_registry(())).config
    places = {f"silver.{table}": NUMBER for table in TABLES}
    found = [DeadLetterOutcome(Scope("schema", "all", "tables"), NUMBER * 3, "no " * 90, places, still=NUMBER)]

    output = router.cli.replay._Output(as_json=False)
    router.cli.replay._show_letters(output, config, found, "what would become of dead letters today")

    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for text in (*places, f"{NUMBER:,}", f"{NUMBER * 3:,}", ROUTE):
        assert any(text in line for line in shown.splitlines()), shown


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_a_real_terminal_has_no_line_that_is_wider(lake: WrittenLake, columns: str) -> None:
    """What a test runner takes for a terminal may be none: here one is open."""
    output, _ = run_in_terminal([sys.executable, "-m", "router", "ledger", str(lake.file)], columns, "stdout")

    lines = re.sub(r"\x1b\[[0-9;]*m", "", output).splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert any(f"{NUMBER:,}" in line for line in lines)


FIELDS = (ListingField("table"), *number_fields("rows", "lag"), ListingField("why", "sentence"))


def shown_at(columns: int, monkeypatch: Any, capsys: Any, *rows: dict[str, Any]) -> list[str]:
    for name, value in {**TERMINAL, "COLUMNS": str(columns)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    show_listing(Listing("tables", "tables", FIELDS, rows))
    text: str = capsys.readouterr().out
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in text.splitlines()]


ROW = {"table": "silver.uno", "rows": 1_234_567, "lag": 0, "why": "it has no feature that delta-rs lacks"}


def test_a_narrow_terminal_loses_columns_without_content_first(monkeypatch: Any, capsys: Any) -> None:
    lines = shown_at(47, monkeypatch, capsys, {**ROW, "table": "0"})

    assert lines[1].split() == ["table", "rows", "why"]
    assert lines[-1] == "0 or empty: lag"  # the table with the name 0 is none of them
    assert max(map(len, lines)) <= 47


def test_a_terminal_that_is_too_narrow_for_columns_has_a_block_for_each_row(monkeypatch: Any, capsys: Any) -> None:
    assert shown_at(30, monkeypatch, capsys, ROW, {**ROW, "rows": None, "lag": 7}) == [
        "tables",
        "table silver.uno",
        "  rows 1,234,567  lag 0",
        "  why: it has no feature",
        "    that delta-rs lacks",
        "table silver.uno  lag 7",
        "  why: it has no feature",
        "    that delta-rs lacks",
    ]


def test_several_items_of_a_cell_are_lines_in_a_terminal_and_one_line_in_a_pipe(monkeypatch: Any, capsys: Any) -> None:
    row = {**ROW, "why": ["bonus double", "level int"]}

    show_listing(Listing("tables", "", FIELDS, [row]))
    piped = capsys.readouterr().out.splitlines()

    assert piped[-1].rstrip().endswith("bonus double; level int")
    assert [line.split()[-2:] for line in shown_at(80, monkeypatch, capsys, row)[-2:]] == [
        ["bonus", "double"],
        ["level", "int"],
    ]


def test_a_terminal_obeys_nothing_that_data_says(monkeypatch: Any, capsys: Any) -> None:
    lines = shown_at(80, monkeypatch, capsys, {**ROW, "table": "[bold]\x1b[2J\nuno"})

    assert r"[bold]\x1b[2J\nuno" in lines[3]


def test_a_line_for_each_table_continues_below_if_it_is_too_long(monkeypatch: Any, capsys: Any) -> None:
    sentences = [("silver.uno", "ok, 7 rows"), ("silver.a_long_name", "batch 2 is missing: it was put back")]

    show_sentences(sentences)
    piped = capsys.readouterr().out.splitlines()
    for name, value in {**TERMINAL, "COLUMNS": "40", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    show_sentences(sentences)

    assert piped[1] == "silver.a_long_name  batch 2 is missing: it was put back"
    assert capsys.readouterr().out.splitlines() == [
        "silver.uno  ok, 7 rows",
        "silver.a_long_name",
        "  batch 2 is missing: it was put back",
    ]
