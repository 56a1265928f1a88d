"""Backfills: a range of records goes once more through today's configuration, into tables, and nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

import router.cli
from router import StartError
from router.config.models import Route
from router.delta.lake import Lake
from router.engine.batch import Batches
from router.engine.reprocess.backfill import NOTE, Backfill, BackfillDestination
from router.engine.reprocess.records import RecordRange
from router.engine.reprocess.stored_offsets import stored_records_of
from router_decoders import Json
from router_rules import Sql
from router_sinks import Delta, Tables, Upsert
from tests.engine.query import BEGIN, Query, records

if TYPE_CHECKING:
    from tests.engine.conftest import MakeQuery

WITH_PLACE = ("event.*", "topic", "partition", "offset")
ALL = RecordRange()


def route(name: str, table: str, *select: str, where: str = "true") -> Route:
    return Route(name=name, match=Sql(where=where), select=select or ("event.*",), sinks=(Delta(table=table),))


def written(make_query: MakeQuery, folder: Path, *routes: Route) -> Query:
    """Return a query that has taken two batches of four records, one of each damaged."""
    settings: dict[str, Any] = {"decode": Json(schema="game string, id long"), "bronze": {"table": "bronze.all"}}
    query = make_query(folder, routes=routes, **settings)
    for first in (0, 4):
        events: list[Any] = [{"game": "uno", "id": first + n} for n in range(3)]
        query.take(records([*events, b"{"], first=first))
    return query


def backfill(query: Query) -> Backfill:
    return Backfill(query.context(query.spark))


def run(query: Query, asked: RecordRange = ALL) -> dict[str, int]:
    made = backfill(query)
    return made.run(made.begin(asked)).rows


def test_a_route_that_is_new_gets_what_came_before(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it a new table begins with today, and a repeated backfill doubles it."""
    old = route("old", "silver.old", *WITH_PLACE)
    query = written(make_query, tmp_path, old)
    new = (route("new", "silver.new", *WITH_PLACE), route("bare", "silver.bare"))
    keyed = Route(name="keyed", match=Sql(where="true"), sinks=(Upsert(table="silver.latest", keys=("game",)),))
    query = query.restarted(routes=(old, *new, keyed))
    query.take(records([{"game": "uno", "id": 8}], first=8))
    letters = len(query.rows("ops.dead"))

    before = {"events": {0: 8}}
    assert run(query, RecordRange(ends=before)) == {"silver.new": 6, "silver.bare": 6, "keyed/upsert": 6}
    assert query.ids("silver.new") == query.ids("silver.bare") == [0, 1, 2, 4, 5, 6, 8]
    assert query.ids("silver.old") == [0, 1, 2, 4, 5, 6, 8]
    assert query.rows("silver.latest", "id") == [{"id": 8}], "a later row stays"
    assert len(query.rows("ops.dead")) == letters

    with pytest.raises(StartError, match=r"silver\.bare has rows of events/0, offsets 0 to 7 already"):
        run(query, RecordRange(ends=before))
    assert query.ids("silver.bare") == [0, 1, 2, 4, 5, 6, 8]
    query = query.restarted(routes=(old, new[0]))
    assert run(query) == {}
    assert query.ids("silver.new") == [0, 1, 2, 4, 5, 6, 8]
    notes = [one for one in query.open("silver.new").history() if "replay-" in str(one)]
    assert notes, "a commit says which backfill it is of"


def test_a_range_is_by_time_or_by_offset(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it all of bronze is read for an hour of it."""
    query = written(make_query, tmp_path, route("old", "silver.old", *WITH_PLACE))
    query = query.restarted(routes=(route("new", "silver.new", *WITH_PLACE),))
    assert run(query, RecordRange(begins={"events": {0: 1}}, ends={"events": {0: 5}})) == {"silver.new": 3}
    assert query.ids("silver.new") == [1, 2, 4]
    begin = BEGIN.timestamp()
    assert run(query, RecordRange(since=begin, until=begin + 1)) == {"silver.new": 1}  # the first of each batch
    assert query.ids("silver.new") == [0, 1, 2, 4]


def test_a_backfill_reads_only_files_that_may_hold_its_range(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it a backfill of an hour reads columns of the whole table into the driver, which ends for want of memory.

    Files outside of the range are taken away: whoever reads them fails.
    """
    query = written(make_query, tmp_path, route("old", "silver.old", *WITH_PLACE))
    query = query.restarted(routes=(route("old", "silver.old", *WITH_PLACE), route("new", "silver.new", *WITH_PLACE)))
    query.take(records([{"game": "uno", "id": 8}], first=8))
    for table, offset in (("silver.old", "offset"), ("bronze.all", "offset"), ("ops.dead", "offset")):
        for file in pa.table(query.open(table).get_add_actions(flatten=True)).to_pylist():
            if file[f"max.{offset}"] < 4:
                Path(query.lake.address(table), file["path"]).unlink()

    assert run(query, RecordRange(begins={"events": {0: 5}}, ends={"events": {0: 9}})) == {"silver.new": 2}
    later = BEGIN.timestamp() + 1
    assert run(query, RecordRange(begins={"events": {0: 4}}, ends={"events": {0: 8}}, until=later)) == {"silver.new": 1}


def test_the_records_that_a_table_has_are_found_in_parts(tmp_path: Path) -> None:
    """Without it a record is there twice after a backfill, or a record of another partition hides it."""
    lake = Lake.at(str(tmp_path))
    address = lake.address("silver.old")
    for topic, partition in (("events", 0), ("events", 1), ("others", 0)):
        offsets = np.arange(0, 300_000, 2 + partition)
        rows = pa.table({
            "topic": pa.array([topic] * len(offsets)),
            "partition": pa.array([partition] * len(offsets), pa.int32()),
            "offset": offsets,
        })  # fmt: skip
        write_deltalake(address, rows, mode="append")
    names = ("topic", "partition", "offset")
    spans = {("events", 0): (100_000, 250_000), ("events", 1): (10, 20), ("gone", 0): (0, 5)}
    stored = stored_records_of(DeltaTable(address), names, (), spans)

    assert {
        key: sum(int(np.unpackbits(page).sum()) for page in bits.pages.values()) for key, bits in stored.items()
    } == {
        ("events", 0): 75_001,
        ("events", 1): 3,
    }
    held = stored["events", 0]
    assert held.contains(np.array([99_998, 100_000, 100_001, 250_000, 250_002])).tolist() == [0, 1, 0, 1, 0]
    assert stored["events", 1].contains(np.array([9, 12, 15, 16, 18, 21])).tolist() == [0, 1, 1, 0, 1, 0]
    assert sum(len(page) for bits in stored.values() for page in bits.pages.values()) < 50_000, "a bit per record"


def test_a_file_without_the_rows_that_are_there_keeps_its_nans(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it the file has bounds that leave NaN out, and Spark skips it for rows above these.

    Spark sorts NaN above every number.
    """
    number = "CASE WHEN id % 2 = 0 THEN CAST('NaN' AS DOUBLE) ELSE CAST(id AS DOUBLE) END AS number"
    new = Route(
        name="new",
        match=Sql(where="true"),
        select=("event.id", number.replace("id", "event.id"), "topic", "partition", "offset"),
        sinks=(Delta(table="silver.new"),),
    )
    query = written(make_query, tmp_path, route("old", "silver.old", *WITH_PLACE)).restarted(routes=(new,))
    assert run(query, RecordRange(begins={"events": {0: 1}}, ends={"events": {0: 2}})) == {"silver.new": 1}
    assert run(query) == {"silver.new": 5}

    rows = query.spark.read.format("delta").load(query.lake.spark_address("silver.new"))
    assert sorted(row["id"] for row in rows.filter("number > 1000").collect()) == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("owner", "step"),
    [(BackfillDestination, "choose_commits"), (Batches, "_commit_tables"), (BackfillDestination, "ledger_rows")],
    ids=["before the manifest", "before the commits", "before the ledger"],
)
def test_a_backfill_that_was_killed_goes_on(
    make_query: MakeQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, step: str
) -> None:
    """Without it a kill leaves some tables with the range, and the next call refuses the others."""
    query = written(make_query, tmp_path, route("old", "silver.old"))
    sink = Tables(table="silver.{event.game}")
    query = query.restarted(routes=(Route(name="new", match=Sql(where="true"), sinks=(sink,)),))
    made = backfill(query)
    begun = made.begin(ALL)
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            made.run(begun)
    assert query.store.read(NOTE) is not None
    again = backfill(query)
    assert again.run(again.cut_off() or begun).rows == {"silver.uno": 6}  # type: ignore[arg-type]
    assert again.cut_off() is None
    assert query.ids("silver.uno") == [0, 1, 2, 4, 5, 6]


def test_what_is_no_range_is_said(tmp_path: Path) -> None:
    file = tmp_path / "games.yaml"
    file.write_text("name: games")
    for words, said in (
        (("--from", "yesterday", "--to", "2025-01-31T12:00:00Z"), "'yesterday' is neither a time with a zone"),
        (("--from", "2025-01-31T12:00:00Z", "--to", '{"a": {"0": 1}}'), "both times, or both offsets"),
    ):
        found = CliRunner().invoke(router.cli.commands, ["backfill", str(file), *words], prog_name="router")
        assert found.exit_code == 2
        assert said in " ".join(found.output.split()).replace("│ ", "")
