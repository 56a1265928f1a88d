"""A configuration is drawn as a tree and as Mermaid, with a lake also what the ledger and the tables say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

import router.cli
from router.cli.graph import TABLES_SHOWN, GraphCounts, GraphNode, mermaid
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


def test_a_lake_that_is_not_there_has_no_counts(file: Path) -> None:
    assert drawn(str(file), "--lake") == drawn(str(file))


def test_mermaid_draws_a_table_of_two_sinks_once_and_quotes_everything() -> None:
    table = GraphNode("table", "gold.wins")
    rule = 'a = "x" AND b < 3 # `no` \x1b[31m'
    root = GraphNode(
        "source", "kafka", below=(GraphNode("sink", rule, below=(table,)), GraphNode("sink", "b", "1 landed", (table,)))
    )

    lines = [*mermaid(root)]

    assert sum("gold.wins" in line for line in lines) == 1
    assert sum(line.endswith("--> n2") for line in lines) == 2
    assert any("a = #quot;x#quot; AND b #lt; 3 #35; #96;no#96;" in line for line in lines)
    assert "\x1b" not in "".join(lines)
    assert any('"b<br/>1 landed"' in line for line in lines)


def test_many_tables_of_a_sink_are_counted(tmp_path: Path) -> None:
    from router.cli.graph import drawn as nodes
    from router.config.loader import load
    from router.registry import load_registry

    config = load(WrittenLake(tmp_path).file, load_registry(())).config
    names = tuple((f"silver.t{number:03d}", number) for number in range(TABLES_SHOWN + 188))
    counts = GraphCounts(
        {("all", "tables"): {"landed": 7, "matched": 9}, (None, None): {"read": 9}}, {"all/tables": names}
    )

    sink = nodes(config, counts).below[1].below[0].below[0]

    assert sink.counts == "7 landed"
    assert [below.text for below in sink.below][-2:] == [f"silver.t{TABLES_SHOWN - 1:03d}", "and 188 more tables"]
