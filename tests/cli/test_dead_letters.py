"""`router dead-letters` says at night what was refused, by what and why, without Spark and in bounded memory."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import write_deltalake

from router.cli import commands
from router.delta.replace import PROPERTIES
from router.engine.audit import dead_letters
from router.engine.label.layout import DEAD_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    Run = Callable[..., Result]

TEXT = """\
name: games
lake: ./lake
source: {kafka: {servers: "127.0.0.1:9092", topics: [game-events]}}
decode: {json: "game string, amount double"}
routes:
  - {name: games_of_the_night, was: games, match: {sql: "event.game IS NOT NULL"}, sinks: [{delta: silver.games}]}
dead_letters: ops.dead_letters
"""
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
MISFIT = "amount: double, the table has string"


def letter(offset: int, stage: str = "schema", reason: str = MISFIT, **others: Any) -> dict[str, Any]:
    """Return a dead letter; one of `decode` and `match` has no route."""
    routed = stage not in ("decode", "match")
    return {
        "stage": stage,
        "reason": reason,
        "route": "games" if routed else None,
        "sink": "delta" if routed else None,
        "topic": "game-events",
        "partition": 3,
        "offset": offset,
        "timestamp": BEGIN + timedelta(minutes=offset),
        "value": b'{"game": "uno"}',
        **others,
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Iterable[dict[str, Any]]], None]:
    """Append dead letters to their table; a column that it lacks is added, as a replay does."""

    def write(letters: Iterable[dict[str, Any]]) -> None:
        rows = list(letters)
        schema = DEAD_SCHEMA.append(pa.field("replayed", pa.string())) if "replayed" in rows[0] else DEAD_SCHEMA
        table = pa.Table.from_pylist(rows, schema)
        path = tmp_path / "lake/ops/dead_letters"
        write_deltalake(path, table, mode="append", schema_mode="merge", configuration=PROPERTIES)

    return write


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "games.yaml").write_text(TEXT)

    def run(*arguments: str) -> Result:
        found = CliRunner().invoke(commands, ["dead-letters", "games.yaml", *arguments], prog_name="router")
        assert found.exit_code == 0, found.output
        return found

    return run


def groups(result: Result) -> list[dict[str, Any]]:
    document = json.loads(result.stdout)
    assert document["name"] == "games"
    found: list[dict[str, Any]] = document["dead_letters"]
    return found


def test_dead_letters_are_counted_by_stage_route_sink_and_reason(run: Run, write: Any) -> None:
    """Without it an operator knows that records die, and not of what."""
    write(letter(offset) for offset in range(3))
    write([letter(7, "decode", "not valid JSON"), letter(5), letter(9, "decode", "not valid JSON", value=None)])

    first, second = groups(run("--json"))

    assert first == {
        "number": 1,
        "stage": "schema",
        "route": "games_of_the_night",
        "sink": "delta",
        "reason": MISFIT,
        "count": 4,
        "first": "2026-01-01T00:00:00.000Z",
        "last": "2026-01-01T00:05:00.000Z",
        "samples": [],
    }
    assert (second["stage"], second["route"], second["sink"], second["count"]) == ("decode", None, None, 2)


def test_times_of_any_year_are_shown(run: Run, write: Any) -> None:
    """Without it one producer that sends microseconds as milliseconds leaves nobody a way to see what is refused."""
    times = {1: 1_700_000_000_000_000_000, 2: -(10**18), 3: 0}
    write(letter(offset, timestamp=time) for offset, time in times.items())

    (group,) = groups(run("--json", "--samples", "3"))

    assert (group["first"], group["last"]) == ("-29719-04-05T22:13:20.000000", "55840-11-08T22:13:20.000000")
    assert [sample["offset"] for sample in group["samples"]] == [1, 3, 2]
    assert "55840-11-08T22:13:20" in run("--samples", "3").output


def test_records_of_any_year_are_samples_of_an_expectation(run: Run, write: Any, tmp_path: Path) -> None:
    """Without it one producer's clock, or a source without times, leaves nobody a way to see what does not hold."""
    expecting = "expect: [{name: gamer, sql: event.amount > 0, otherwise: dead_letter}], sinks"
    (tmp_path / "games.yaml").write_text(TEXT.replace("sinks", expecting))
    times = {1: 1_700_000_000_000_000_000, 2: None, 3: 0}
    write(letter(offset, "expect", "expectation gamer does not hold", timestamp=time) for offset, time in times.items())

    arguments = ["expectations", "games.yaml", "--samples", "2", "--json"]
    found = CliRunner().invoke(commands, arguments, prog_name="router", catch_exceptions=False)

    (expectation,) = json.loads(found.stdout)["expectations"]
    newest, before = expectation["samples"]
    assert newest == {
        "topic": "game-events",
        "partition": 3,
        "offset": 1,
        "timestamp": "55840-11-08T22:13:20.000000",
    }, "the place of the record, and no content"
    assert before["timestamp"] == "1970-01-01T00:00:00.000Z"


def test_what_a_replay_took_is_not_counted_unless_asked_for(run: Run, write: Any) -> None:
    """An operator who has sent dead letters again would look for them a second time."""
    write([letter(1)])
    write([letter(2, replayed="replay-1"), letter(3, replayed=None)])

    assert [group["count"] for group in groups(run("--json"))] == [2]
    assert [group["count"] for group in groups(run("--json", "--all"))] == [3]


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        (["--stage", "decode"], {"not valid JSON": 2}),
        (["--stage", "decode", "--stage", "schema"], {"not valid JSON": 2, MISFIT: 3}),
        (["--route", "games_of_the_night"], {MISFIT: 3, "too small": 1}),
        (["--route", "another"], {}),
        (["--sink", "delta", "--stage", "expect"], {"too small": 1}),
        (["--reason", "valid"], {"not valid JSON": 2}),
        (["--since", "2026-01-01T00:02:00Z"], {MISFIT: 1, "not valid JSON": 2, "too small": 1}),
    ],
    ids=" ".join,
)
def test_options_choose_as_those_of_replay_do(run: Run, write: Any, options: Any, counts: Any) -> None:
    """What is shown must be what the same options of `router replay` send."""
    write(letter(offset) for offset in range(3))
    write(
        [letter(4, "decode", "not valid JSON"), letter(5, "decode", "not valid JSON"), letter(6, "expect", "too small")]
    )

    assert {group["reason"]: group["count"] for group in groups(run("--json", *options))} == counts


def test_reasons_made_of_data_are_counted_together(run: Run, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reason with a value in it is another one in every record: it must not fill screen and memory."""
    monkeypatch.setattr(dead_letters, "REASONS", 3)
    monkeypatch.setattr(dead_letters, "CANDIDATES", 20)
    monkeypatch.setattr(dead_letters, "_ROWS_AT_ONCE", 16)
    for start in (0, 100, 200):
        write(letter(start + number, reason=f"{number} of {start} is no number") for number in range(50))
        # More than one row in 20 candidates each: these two reasons are kept in whichever order files are read.
        write(letter(start + 60 + number) for number in range(6))
        write(letter(start + 70 + number, "decode", "not valid JSON") for number in range(4))

    found = groups(run("--json", "--samples", "1"))

    assert {group["reason"]: group["count"] for group in found[1:3]} == {MISFIT: 18, "not valid JSON": 12}
    assert (found[0]["stage"], found[0]["reason"]) == ("schema", None)
    assert sum(group["count"] for group in found) == 180
    assert len(found) <= 4
    assert [sample["offset"] for sample in found[0]["samples"]] == [249]
    assert "other reasons" in run().stdout


def test_samples_are_the_newest_records_escaped_and_cut(run: Run, write: Any) -> None:
    """The value of a record is somebody else's text: a terminal must not obey it."""
    write([letter(offset) for offset in range(20)])
    write([letter(30, value=b"\x1b[2J\xff" + b"x" * 5_000), letter(31, value=None)])

    (group,) = groups(run("--json", "--samples", "3"))
    shown = run("--samples", "3").stdout

    assert [sample["offset"] for sample in group["samples"]] == [31, 30, 19]
    assert group["samples"][0]["value"] is None
    assert group["samples"][1]["value"].startswith(r"\x1b[2J\xffxxx")
    assert len(group["samples"][1]["value"]) < 200
    assert group["samples"][2] == {
        "topic": "game-events",
        "partition": 3,
        "offset": 19,
        "timestamp": "2026-01-01T00:19:00.000Z",
        "value": '{"game": "uno"}',
    }
    assert r"\x1b[2J\xffxxx" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("options", [[], ["--stage", "match"]], ids=["no table", "none chosen"])
def test_no_dead_letters_are_one_line_or_an_empty_list(run: Run, write: Any, options: list[str]) -> None:
    if options:
        write([letter(1)])

    assert groups(run("--json", *options)) == []
    assert "ops.dead_letters" in run(*options).stdout
    assert len(run(*options).stdout.splitlines()) == 1


def test_a_table_that_cannot_be_read_is_named_without_a_traceback(run: Run, write: Any, tmp_path: Path) -> None:
    write([letter(1)])
    (file,) = (tmp_path / "lake/ops/dead_letters").glob("*.parquet")
    file.write_bytes(b"PAR1")

    result = CliRunner().invoke(commands, ["dead-letters", "games.yaml"], prog_name="router")

    assert result.exit_code == 2
    assert result.stderr.startswith("router: ")
    assert "ops.dead_letters" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_spark_is_not_started(run: Run, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At night an answer takes two seconds, or nobody asks."""
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_gateway", None)  # tests of other files may have one
    write([letter(1)])
    run()

    assert SparkContext._gateway is None
