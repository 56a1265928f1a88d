"""A configuration is drawn as a tree and as Mermaid, with a lake also what the ledger and the tables say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

import router.cli
from router.cli.graph import TABLES_SHOWN, GraphCounts, GraphNode, mermaid_lines
from tests.engine.written_lake import GAMES, WrittenLake

if TYPE_CHECKING:
    from pathlib import Path

CONFIGURATION = """\
name: games
lake: ./lake
source: {{kafka: {{servers: "127.0.0.1:9092", topics: [events]}}}}
decode: {{json: "game string, amount double"}}
bronze: bronze.events
routes:
  - name: all
    match: {{sql: {rule}}}
    expect: [{{name: paid, sql: "event.amount > 0", otherwise: warn}}]
    sinks: [{{tables: "silver.{{event.game}}"}}, {{delta: gold.wins}}]
  - name: wins
    match: {{all: [{{sql: "event.amount > 9"}}, {{field: {{column: event.game, equals: uno}}}}]}}
    sinks:
      - {{delta: gold.wins}}
      - rest: {{url: "https://user:secret@api.example/wins?token=secret", auth: {{bearer: secret}}, rows_per_call: 10}}
dead_letters: ops.dead
"""


def drawn(*arguments: str) -> str:
    found = CliRunner().invoke(router.cli.commands, ["graph", *arguments], prog_name="router")
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "games.yaml"
    file.write_text(CONFIGURATION.format(rule='"event.game IS NOT NULL"').replace("user:secret@", ""))
    return file


def test_the_tree_has_a_line_for_each_thing(file: Path) -> None:
    lines = [line.lstrip("│ ├└─") for line in drawn(str(file)).splitlines()]

    assert lines == [
        "kafka: events at 127.0.0.1:9092",
        "bronze.events",
        "decode json (ddl game string, amount double)",
        "all: event.game IS NOT NULL",
        "expect paid: event.amount > 0 (otherwise warn)",
        "tables silver.{event.game}",
        "delta gold.wins",
        "wins: all event.amount > 9, field (column event.game, equals uno)",
        "delta gold.wins",
        "rest https://api.example/wins (rows_per_call 10)",
        "ops.dead  what went nowhere else",
    ]


def test_secrets_are_in_no_picture(file: Path) -> None:
    assert "secret" in file.read_text()
    assert "secret" not in drawn(str(file)) + drawn(str(file), "--format", "mermaid")


def test_with_a_lake_the_counts_and_tables_stand_beside(tmp_path: Path) -> None:
    written = WrittenLake(tmp_path).take(3)

    text = drawn(str(written.file), "--lake")

    each = 1 + 2 + 3  # rows of its batches
    assert f"bronze.events  {each * len(GAMES)} read" in text
    assert all(f"silver.{game}  {each} rows" in text for game in GAMES)
    assert "delta gold.wins  6 landed" in text
    assert "gold.wins  6 rows" in text
    assert "what went nowhere else" in text


def test_the_lineage_of_a_table_is_the_ways_that_lead_to_it(tmp_path: Path) -> None:
    """Without it nobody knows whom a change of a rule concerns."""
    written = WrittenLake(tmp_path).take(1)

    def lines(table: str) -> list[str]:
        found = CliRunner().invoke(router.cli.commands, ["graph", str(written.file), "--table", table])
        assert found.exit_code == 0, found.output
        return [line.lstrip("│ ├└─").partition("  ")[0] for line in found.stdout.splitlines()]

    source, decoder = "kafka: events at 127.0.0.1:9092", "decode json (ddl game string, id int, amount double)"
    assert lines("gold.wins") == [source, decoder, "wins: event.amount > 9", "delta gold.wins", "gold.wins"]
    assert lines("silver.uno")[2:] == ["all: event.game IS NOT NULL", "tables silver.{event.game}", "silver.uno"]
    assert lines("bronze.events") == [source, "bronze.events"]
    assert lines("ops.dead")[2:] == ["ops.dead"]
    found = CliRunner().invoke(router.cli.commands, ["graph", str(written.file), "--table", "silver.nobody"])
    assert (found.exit_code, "no sink of games has written it, and no view" in found.output) == (2, True)


def test_grants_are_printed_for_the_tables_that_are_there(tmp_path: Path) -> None:
    """Without it every new game is a table that nobody may read."""
    written = WrittenLake(tmp_path).take(1)
    text = written.file.read_text()
    asked = "owner: 'data`team', tags: {pii: \"it's low\"}, grants: {analysts: [select, all privileges]}}"
    text = text.replace('{"table": "silver.{event.game}"}', '{table: "silver.{event.game}", ' + asked)
    text = text.replace("bronze: bronze.events", "bronze: {table: bronze.events, owner: ops}")
    written.file.write_text(text)

    found = CliRunner().invoke(router.cli.commands, ["tables", str(written.file), "--grants", "--catalog", "main"])

    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert lines[0] == "ALTER TABLE `main`.`bronze`.`events` SET OWNER TO `ops`;"
    assert [line for line in lines if "`uno`" in line] == [
        "ALTER TABLE `main`.`silver`.`uno` SET OWNER TO `data``team`;",
        r"ALTER TABLE `main`.`silver`.`uno` SET TAGS ('pii' = 'it\'s low');",
        "GRANT SELECT, ALL PRIVILEGES ON TABLE `main`.`silver`.`uno` TO `analysts`;",
    ]
    assert len(lines) == 1 + 3 * len(GAMES)


def test_a_lake_that_is_not_there_has_no_counts(file: Path) -> None:
    assert drawn(str(file), "--lake") == drawn(str(file))


def test_mermaid_draws_a_table_of_two_sinks_once_and_quotes_everything() -> None:
    table = GraphNode("table", "gold.wins")
    rule = 'a = "x" AND b < 3 # `no` \x1b[31m'
    root = GraphNode(
        "source",
        "kafka",
        below=(GraphNode("sink", rule, below=(table,)), GraphNode("sink", "b", {"landed": 1}, (table,))),
    )

    lines = [*mermaid_lines(root)]

    assert sum("gold.wins" in line for line in lines) == 1
    assert sum(line.endswith("--> n2") for line in lines) == 2
    assert any("a = #quot;x#quot; AND b #lt; 3 #35; #96;no#96;" in line for line in lines)
    assert "\x1b" not in "".join(lines)
    assert any('"b<br/>1 landed"' in line for line in lines)


def test_many_tables_of_a_sink_are_counted(tmp_path: Path) -> None:
    from router.cli.graph import graph_of
    from router.config.loader import load_config
    from router.registry import load_registry

    config = load_config(WrittenLake(tmp_path).file, load_registry(())).config
    names = tuple((f"silver.t{number:03d}", number) for number in range(TABLES_SHOWN + 188))
    counts = GraphCounts(
        {("all", "tables"): {"landed": 7, "matched": 9}, (None, None): {"read": 9}}, {"all/tables": names}
    )

    sink = graph_of(config, counts).below[1].below[0].below[0]

    assert sink.counts == {"landed": 7}
    assert [below.text for below in sink.below][-2:] == [f"silver.t{TABLES_SHOWN - 1:03d}", "and 188 more tables"]


def test_the_lineage_for_programs_has_counts_as_numbers(tmp_path: Path) -> None:
    """A script would have to take a sentence apart."""
    written = WrittenLake(tmp_path).take(3)

    found = CliRunner().invoke(router.cli.commands, ["graph", str(written.file), "--table", "silver.uno", "--json"])

    document = json.loads(found.stdout)
    assert (document["name"], document["table"]) == ("games", "silver.uno")
    node = document["graph"]
    kinds = [node["kind"]]
    while node["below"]:
        (node,) = node["below"]
        kinds.append(node["kind"])
    assert kinds == ["source", "decoder", "route", "sink", "table"]
    assert node == {"kind": "table", "text": "silver.uno", "counts": {"rows": 6}, "below": []}
