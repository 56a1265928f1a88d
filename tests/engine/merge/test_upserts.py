"""Upserts through whole batches, on both engines: rows, tombstones, dead letters, replays, tables that fail."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from router import SinkError, StartError, TableError
from router.config.models import Route
from router.delta.maintenance import MaintenanceOptions, maintain_table
from router.engine.audit.verify import verify_tables
from router.engine.checkpoint_store import CheckpointStore
from router.engine.commit.committers import Committers
from router.engine.merge import delta_rs
from router_decoders import Json
from router_decoders.record_keys import RecordKeys
from router_sinks import Delta, Upsert
from tests.engine.conftest import COMMITS, EITHER
from tests.engine.parts import Where
from tests.engine.profiles import event, raw, route
from tests.engine.query import RAW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.query import Query

MakeQuery = "Callable[..., Query]"
DDL = "game string, gamer string, level int, at bigint, gone boolean"
DECODE = RecordKeys(value=Json(schema=DDL), key=Json(schema="game string, gamer string"))
LATEST = Upsert(table="silver.{event.game}", keys=["event.gamer"], tombstones=True)


def latest(make_query: Any, folder: Path, commit: str) -> Query:
    """Play two batches of profiles: tombstones, late records, rows without their key."""
    query = make_query(folder, commit=commit, decode=DECODE, bronze="bronze.all", routes=route(LATEST))
    query.take(
        raw(
            event("uno", "a", 1), event("uno", "b", 1), event("poker", "a", 7), event("uno", "a", 2), b"garbage",
            event("uno", None, 3), {"dead": {"game": "uno", "gamer": "b"}}, {"dead": {"gamer": "nobody"}},
        )
    )  # fmt: skip
    query.take(
        raw(
            event("uno", "c", 1), {"dead": {"game": "poker", "gamer": "a"}}, event("uno", "a", 3),
            event("../../x", "a", 1), event("hearts", "z", 0), first=8,
        )
    )  # fmt: skip
    return query


@pytest.fixture(scope="module", params=EITHER)
def played_latest(request: pytest.FixtureRequest, played: Any) -> Query:
    return played(latest, request.param)


def test_every_table_has_the_latest_of_each_key(played_latest: Query) -> None:
    """Without it a profile is not the last that its gamer had, or outlives its tombstone."""
    query = played_latest

    assert query.rows("silver.uno", "gamer", "level", "_offset") == [
        {"gamer": "a", "level": 3, "_offset": 10},
        {"gamer": "c", "level": 1, "_offset": 8},
    ]
    assert query.rows("silver.poker", "gamer") == []
    assert query.rows("silver.hearts", "gamer", "level") == [{"gamer": "z", "level": 0}]


def test_what_cannot_be_merged_is_a_dead_letter(played_latest: Query) -> None:
    """Without it rows without their key vanish, or stop the stream."""
    found = played_latest.letters("stage", "reason", "offset")

    assert {(stage, offset): why for stage, why, offset in found}.keys() == {
        ("decode", 4),
        ("apply", 5),
        ("decode", 7),
        ("name", 11),
    }
    (letter,) = [row for row in played_latest.rows("ops.dead") if row["stage"] == "apply"]
    assert (letter["reason"], letter["route"], letter["sink"]) == ("key gamer is null", "profiles", "upsert")
    assert json.loads(letter["value"]) == {"game": "uno", "level": 3}


def test_every_record_is_counted(played_latest: Query) -> None:
    """Without it nobody can prove that no row is lost between the outbox and the tables."""
    booked = [row for row in played_latest.rows("ops.ledger") if row["applied"] is not None]

    assert sorted((row["batch_id"], row["applied"], row["dead"]) for row in booked) == [(0, 5, 1), (1, 4, 0)]
    assert played_latest.content("outbox.games__profiles__upsert").num_rows == 10


@pytest.mark.slow
def test_both_engines_make_the_same_tables(played: Any) -> None:
    """Without it a table changes when it is handed to the other engine."""
    one, other = (played(latest, commit) for commit in COMMITS)
    tables = [table for table in one.tables() if table.startswith("silver.")]

    assert [table for table in other.tables() if table.startswith("silver.")] == tables
    for table in tables:
        names = sorted(one.content(table).column_names)
        assert sorted(other.content(table).column_names) == names
        assert other.rows(table, *names) == one.rows(table, *names)


EVERY_TYPE = (
    "game string, gamer string, level int, small smallint, price decimal(10,2), ratio float, day date, at timestamp, "
    "local timestamp_ntz, tags array<string>, more struct<a: int, b: array<struct<c: double>>>, props map<string, int>"
)


def typed(gamer: str, level: int, **more: Any) -> dict[str, Any]:
    """Return an event with a value of every type."""
    own = {"game": "uno", "gamer": gamer, "level": level, "small": level, "price": 1.25, "ratio": 0.5}
    own |= {"day": "2026-01-02", "at": "2026-01-02T03:04:05.678Z", "local": "2026-01-02T03:04:05", "tags": ["x", None]}
    return {**own, "more": {"a": level, "b": [{"c": 0.1}]}, "props": {"p": level}, **more}


def test_few_rows_are_merged_without_a_job_as_a_job_merges_them(
    make_query: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a table is another one after a small batch than after a large one."""
    found = {}
    for at_most in (delta_rs.SMALL_ROWS, -1):
        monkeypatch.setattr(delta_rs, "SMALL_ROWS", at_most)
        keyed = RecordKeys(value=Json(schema=EVERY_TYPE), key=Json(schema="game string, gamer string"))
        query = make_query(tmp_path / str(at_most), decode=keyed, routes=route(LATEST))
        query.take(raw(typed("a", 1), typed("b", 1), typed("a", 2, tags=[]), {**typed("c", 1), "game": "poker"}))
        gone = {"dead": {"game": "uno", "gamer": "b"}}
        query.take(raw(typed("a", 3, more=None), gone, typed("d", 1), event("uno", None, 9), first=4))
        tables = ("silver.uno", "silver.poker", "ops.dead")
        found[at_most] = {table: (query.content(table).schema, query.rows(table)) for table in tables}
        assert [row["gamer"] for row in query.rows("silver.uno", "gamer")] == ["a", "d"]

    here, by_a_job = found.values()
    assert here == by_a_job


@pytest.mark.parametrize("commit", EITHER)
def test_a_batch_again_changes_nothing(
    make_query: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str
) -> None:
    """Without it a crash after the merge doubles dead letters, or undoes what came since."""
    with monkeypatch.context() as patched:  # as if the process had died before it noted that the sink had finished
        patched.setattr(CheckpointStore, "mark_applied", lambda *_: None)
        patched.setattr(Committers, "delete_applied_files", lambda *_: None)  # staged files are deleted after that only
        query = latest(make_query, tmp_path, commit)
    before = query.versions()
    assert not query.store.read_applied(0)

    again = query.restarted()
    for batch in (0, 1):
        again.again(batch)

    assert again.versions() == before
    assert all(again.store.read_applied(batch) for batch in (0, 1))


@pytest.mark.parametrize("commit", EITHER)
def test_a_late_record_never_wins(make_query: Any, tmp_path: Path, commit: str) -> None:
    """Without it what was held up for a batch undoes a newer state, or a deletion."""
    sink = Upsert(table="silver.p", keys=["event.gamer"], newest_by=["event.at"], delete_when="event.gone")
    query = make_query(tmp_path, commit=commit, decode=Json(schema=DDL), routes=route(sink))
    query.take(raw(event("uno", "a", 1, at=5), event("uno", "b", 1, at=5), event("uno", "c", 1)))
    query.take(raw(event("uno", "b", 2, at=7, gone=True), event("uno", "c", 2), first=3))
    query.take(raw(event("uno", "a", 9, at=4), event("uno", "b", 9, at=6), event("uno", "d", 9, at=0), first=5))

    assert query.rows("silver.p", "gamer", "level", "_newest_1") == [
        {"gamer": "a", "level": 1, "_newest_1": 5},
        {"gamer": "c", "level": 2, "_newest_1": None},
        {"gamer": "d", "level": 9, "_newest_1": 0},
    ]


@pytest.mark.parametrize("commit", EITHER)
def test_a_history_and_a_flag(make_query: Any, tmp_path: Path, commit: str) -> None:
    """Without it the options that keep what was are silently the same as those that do not."""
    keys = ["event.gamer"]
    sinks = (
        Upsert(table="silver.history", keys=keys, newest_by="event.at", delete_when="event.gone", history="scd2"),
        Upsert(table="silver.flagged", keys=keys, newest_by="event.at", delete_when="event.gone", soft_delete="left"),
        Upsert(table="silver.some", keys=keys, columns=["event.level"]),
        Upsert(table="silver.firsts", keys=keys, when_matched="ignore"),
    )
    query = make_query(tmp_path, commit=commit, decode=Json(schema=DDL), routes=route(*sinks))
    query.take(raw(event("uno", "a", 1, at=1), event("uno", "b", 1, at=1)))
    query.take(raw(event("poker", "a", 2, at=2), event("uno", "b", None, at=2, gone=True), first=2))

    assert query.rows("silver.history", "gamer", "level", "is_current") == [
        {"gamer": "a", "level": 1, "is_current": False},
        {"gamer": "a", "level": 2, "is_current": True},
        {"gamer": "b", "level": 1, "is_current": False},
    ]
    assert query.rows("silver.flagged", "gamer", "level", "left") == [
        {"gamer": "a", "level": 2, "left": False},
        {"gamer": "b", "level": 1, "left": True},
    ]
    assert query.rows("silver.some", "gamer", "game", "level")[0] == {"gamer": "a", "game": "uno", "level": 2}
    assert query.rows("silver.firsts", "gamer", "game", "level")[0] == {"gamer": "a", "game": "uno", "level": 1}


WRONG = {
    "silver.hearts": "was dropped",
    "silver.rummy": "no column gamer",
    "silver.gin": "permi",
    "silver.poker": "holds files",
    "silver.last": "holds files",
}
"""What is the matter with tables, in the words of the log."""


@pytest.mark.parametrize("commit", EITHER)
def test_rows_wait_for_tables_that_cannot_be_written(
    make_query: Any, tmp_path: Path, commit: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it one table that somebody broke stops hundreds of others, nobody knows which it is, or rows are lost."""
    routes = route(LATEST, Upsert(table="silver.last", keys=["event.gamer"], tombstones=True))
    query = make_query(tmp_path, commit=commit, decode=DECODE, routes=routes)
    places = {table: Path(query.lake.address(table)) for table in WRONG}
    for table in ("silver.poker", "silver.last"):
        places[table].mkdir(parents=True)
        Path(places[table], "notes.csv").write_text("mine")
    games = ("uno", "hearts", "rummy", "gin", "poker")
    query.take(raw(*[event(game, "a", 1) for game in games], event("uno", None, 1)))
    places["silver.hearts"].rename(tmp_path / "dropped")
    good = query.open("silver.rummy").version()
    lost = query.content("silver.rummy").rename_columns([*("player" if n == "gamer" else n for n in _names(query))])
    write_deltalake(places["silver.rummy"], lost, mode="overwrite", schema_mode="overwrite")
    with forbidden(places["silver.gin"]):
        query = query.restarted()
        caplog.clear()
        query.take(raw(*[event(game, "b", 2) for game in games], first=6))
    told = [line for line in caplog.messages if "wait for" in line]
    versions = query.versions()
    query.restarted().again(1)  # as if the process had died before Spark noted the offsets
    again = query.versions()

    (tmp_path / "dropped").rename(places["silver.hearts"])
    query.open("silver.rummy").restore(good)
    for table in ("silver.poker", "silver.last"):
        Path(places[table], "notes.csv").unlink()
    query.take(raw(event("uno", "c", 3), first=11))

    assert {table: [why in line.lower() for line in told if f"{table}:" in line] for table, why in WRONG.items()} == {
        table: [True] for table in WRONG
    }
    assert again == {**versions, "silver.gin": again["silver.gin"]}  # what was mended meanwhile is written
    assert query.rows("silver.uno", "gamer") == [{"gamer": "a"}, {"gamer": "b"}, {"gamer": "c"}]
    for game in games[1:]:
        assert query.rows(f"silver.{game}", "gamer", "level") == [
            {"gamer": "a", "level": 1},
            {"gamer": "b", "level": 2},
        ]
    assert query.rows("silver.last", "gamer", "level") == [{"gamer": g, "level": n} for n, g in enumerate("abc", 1)]
    assert query.letters("sink", stage="apply") == {"upsert": 1, "upsert_2": 1}
    booked = [row for row in query.rows("ops.ledger") if row["applied"] is not None]
    waits = {sink: [row["backlog"] for row in booked if row["sink"] == sink] for sink in ("upsert", "upsert_2")}
    assert {sink: sum(each) for sink, each in waits.items()} == {"upsert": 0, "upsert_2": 0}


def _names(query: Query) -> list[str]:
    return query.content("silver.rummy").column_names


@contextmanager
def forbidden(folder: Path) -> Iterator[None]:
    """Take away the right to write below a folder, from root, too."""
    if os.geteuid():
        change = {True: ["chmod", "-R", "a-w"], False: ["chmod", "-R", "u+w"]}
    else:
        change = {True: ["chattr", "-R", "+i"], False: ["chattr", "-R", "-i"]}
    if shutil.which(change[True][0]) is None:
        pytest.skip("root can write everywhere here")
    subprocess.run([*change[True], folder], check=True)
    try:
        yield
    finally:
        subprocess.run([*change[False], folder], check=True)


@pytest.mark.parametrize("commit", EITHER)
def test_a_table_whose_first_rows_are_all_refused_was_not_dropped(make_query: Any, tmp_path: Path, commit: str) -> None:
    """Without it all rows of a game wait for ever whose first record has no key: its table counts as merged into."""
    sink = Upsert(table="silver.p", keys=["event.gamer"])
    query = make_query(tmp_path, commit=commit, routes=route(sink), decode=Json(schema=DDL))
    query.take(raw(event("uno", None, 1)))
    assert not [problem for audit in verify_tables(query.config) for problem in audit.problems]

    query.take(raw(event("uno", "a", 2), first=1))

    assert query.rows("silver.p", "gamer", "level") == [{"gamer": "a", "level": 2}]


def test_a_dropped_table_is_made_anew_where_that_is_wanted(make_query: Any, tmp_path: Path) -> None:
    """Without it the only way back is somebody's copy."""
    sink = Upsert(table="silver.p", keys=["event.gamer"], dropped="remake")
    query = make_query(tmp_path, decode=Json(schema=DDL), routes=route(sink))
    query.take(raw(event("uno", "a", 1)))
    shutil.rmtree(query.lake.address("silver.p"))
    query.restarted().take(raw(event("uno", "b", 1), first=1))

    assert query.rows("silver.p", "gamer") == [{"gamer": "b"}]


@pytest.mark.parametrize("commit", EITHER)
def test_files_beyond_the_keys_of_a_batch_are_not_read(make_query: Any, tmp_path: Path, commit: str) -> None:
    """Without it a change of one gamer reads, or writes anew, all gamers."""
    sink = Upsert(table="silver.p", keys=["event.gamer"])
    query = make_query(tmp_path, commit=commit, decode=Json(schema=DDL), routes=route(sink))
    query.take(raw(*[event("uno", f"player-{n:02}", n) for n in range(20)]))
    query.take(raw(*[event("uno", f"player-{n:02}", n) for n in range(60, 80)], first=20))
    folder = Path(query.lake.address("silver.p"))
    before = set(query.open("silver.p").file_uris())
    (beyond,) = [path for path in before if "player-60" in str(pq.read_table(path)["gamer"][0])]
    content = Path(beyond).read_bytes()
    Path(beyond).write_bytes(b"not to be read".ljust(len(content)))
    query.take(raw(event("uno", "player-03", 100), event("uno", "player-11", 100), first=40))
    Path(beyond).write_bytes(content)
    after = set(query.open("silver.p").file_uris())

    assert before & after == {beyond}
    metrics = query.open("silver.p").history(1)[0]["operationMetrics"]
    removed = metrics.get("num_target_files_removed", metrics.get("numTargetFilesRemoved"))
    assert (int(removed), len(list(folder.glob("*.parquet")))) == (1, len(before | after))
    assert len(query.rows("silver.p")) == 40


def test_a_query_for_large_numbers_finds_nan(make_query: Any, tmp_path: Path, spark: Any) -> None:
    """Without it Spark passes over files with NaN, which it sorts above every number."""
    price = "IF(event.level % 2 = 0, double('NaN'), double(event.level)) AS price"
    select = (
        "event.gamer",
        "event.level",
        price,
        "named_struct('deep', " + price.removesuffix(" AS price") + ") AS more",
    )
    sinks = (Upsert(table="silver.p", keys=["gamer"], newest_by=["event.level"]), Delta(table="silver.all"))
    routes = (Route(name="profiles", match=Where(sql="event.game IS NOT NULL"), select=select, sinks=sinks),)
    query = make_query(tmp_path, decode=Json(schema=DDL), routes=routes)
    query.take(raw(event("uno", "a", 1), event("uno", "b", 2), event("uno", "c", 3)))
    query.take(raw(event("uno", "a", 4), event("uno", "d", 5), first=3))  # rewritten by delta-rs
    for joined in (False, True):
        if joined:
            assert maintain_table(query.lake, "silver.all", MaintenanceOptions()).files > 1
        for table in ("silver.p", "silver.all"):
            rows = spark.read.format("delta").load(query.lake.address(table))
            for column in ("price", "more.deep"):
                found = rows.filter(f"{column} > 1000").select("gamer", "level").collect()
                assert sorted(map(tuple, found)) == [("a", 4), ("b", 2)], (table, column, joined)


@pytest.mark.parametrize("commit", EITHER)
def test_a_type_becomes_wider_and_a_column_new(make_query: Any, tmp_path: Path, commit: str) -> None:
    """Without it the next version of the events stops the stream, or loses values."""
    query = make_query(tmp_path, commit=commit, decode=Json(schema="game string, gamer string, n int"), routes=route(
        Upsert(table="silver.p", keys=["event.gamer"])))  # fmt: skip
    query.take(raw({"game": "uno", "gamer": "a", "n": 1}, {"game": "uno", "gamer": "b", "n": 2}))
    query = query.restarted(decode=Json(schema="game string, gamer string, n bigint, bonus double"))
    query.take(raw({"game": "uno", "gamer": "a", "n": 2**40}, {"game": "uno", "gamer": "c", "bonus": 1.5}, first=2))
    query.take(raw({"game": "uno", "gamer": "b", "n": 3}, first=4))

    assert query.rows("silver.p", "gamer", "n", "bonus") == [
        {"gamer": "a", "n": 2**40, "bonus": None},
        {"gamer": "b", "n": 3, "bonus": None},
        {"gamer": "c", "n": None, "bonus": 1.5},
    ]


TOLD = {
    "auto": [
        "delta-rs merges tables of up to 4 GiB that it may write, Delta on Spark the others",
        "Delta on Spark merges silver.p: it has checkConstraints",
    ],
    "spark": ["Delta on Spark merges all tables: the engine is given"],
}


@pytest.mark.parametrize("commit", EITHER)
def test_a_check_of_the_table_is_kept(
    make_query: Any, tmp_path: Path, commit: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it a row that the table forbids stops the batch, or is written; or a log is full of who writes what."""
    caplog.set_level(logging.INFO, "router")
    query = make_query(tmp_path, commit=commit, decode=Json(schema=DDL), routes=route(
        Upsert(table="silver.p", keys=["event.gamer"], delete_when="event.gone")))  # fmt: skip
    query.take(raw(event("uno", "a", 1)))
    query.spark.sql(f"ALTER TABLE delta.`{query.lake.address('silver.p')}` ADD CONSTRAINT low CHECK (level < 100)")
    query.take(raw(event("uno", "a", 100), event("uno", "b", 99), event("uno", "c", None, gone=True), first=1))
    query.take(raw(event("uno", "b", 98), first=4))

    assert query.rows("silver.p", "gamer", "level") == [{"gamer": "a", "level": 1}, {"gamer": "b", "level": 98}]
    ((reason, offset),) = query.letters("reason", "offset", stage="apply")
    assert (offset, "low" in reason) == (1, True)
    assert [line.split(": ", 1)[1] for line in caplog.messages if " merges " in line] == TOLD[commit]


@pytest.mark.parametrize("commit", EITHER)
def test_a_table_that_must_not_change_stops_the_stream(make_query: Any, tmp_path: Path, commit: str) -> None:
    """Without it `evolution: fail` waits for ever for something that nobody will mend."""
    sink = Upsert(table="silver.p", keys=["event.gamer"], evolution="fail")
    query = make_query(tmp_path, commit=commit, decode=Json(schema="game string, gamer string"), routes=route(sink))
    query.take(raw({"game": "uno", "gamer": "a"}))
    query = query.restarted(decode=Json(schema=DDL))

    with pytest.raises(SinkError) as caught:
        query.take(raw(event("uno", "a", 5), first=1))

    assert (caught.value.sink, "level" in caught.value.what) == ("upsert", True)


@pytest.mark.parametrize("commit", EITHER)
def test_a_sink_has_as_many_tables_as_it_may_have(make_query: Any, tmp_path: Path, commit: str) -> None:
    """Without it names from data fill the lake with tables."""
    sink = Upsert(table="silver.{event.game}", keys=["event.gamer"], at_most=2)
    query = make_query(tmp_path, commit=commit, decode=Json(schema=DDL), routes=route(sink))
    query.take(raw(event("a", "x", 1), event("b", "x", 1)))
    query.take(raw(event("c", "x", 1), event("b", "x", 2), event("d", "y", 1), first=2))
    query.restarted().take(raw(event("e", "x", 1), event("a", "x", 2), first=5))

    assert [table for table in query.tables() if table.startswith("silver.")] == ["silver.a", "silver.b"]
    assert sorted(query.letters("offset", stage="name")) == [2, 4, 5]
    assert [query.rows(table, "level") for table in ("silver.a", "silver.b")] == [[{"level": 2}], [{"level": 2}]]


def test_tables_have_names_in_the_catalog(make_query: Any, tmp_path: Path) -> None:
    """Without it analysts need the path of every table."""
    routes = (*route(Upsert(table="catalogued.{event.game}", keys=["event.gamer"])),)
    query = make_query(tmp_path, decode=Json(schema=DDL), register=True, bronze="catalogued.all", routes=routes)
    query.take(raw(event("uno", "a", 1), event("uno", "a", 2)))
    session = query.spark.newSession()

    try:
        assert session.sql("SELECT level FROM catalogued.uno").collect() == [(2,)]
        assert session.table("catalogued.all").count() == 2
        assert not session.catalog.databaseExists("outbox")
    finally:
        session.sql("DROP SCHEMA catalogued CASCADE")


def test_a_name_that_the_catalog_has_is_not_taken(make_query: Any, tmp_path: Path) -> None:
    """Without it a table is written, and whoever reads it by name reads another one."""
    query = make_query(
        tmp_path, decode=Json(schema=DDL), register=True, routes=route(Upsert(table="taken.p", keys=["event.gamer"]))
    )
    query.spark.sql("CREATE SCHEMA taken")
    query.spark.sql(f"CREATE TABLE taken.p (a int) USING delta LOCATION '{tmp_path}/elsewhere'")

    try:
        with pytest.raises(TableError, match="elsewhere"):
            query.take(raw(event("uno", "a", 1)))
    finally:
        query.spark.sql("DROP SCHEMA taken CASCADE")


def test_the_text_of_a_key_can_be_the_key(make_query: Any, tmp_path: Path) -> None:
    """Without it plain keys, the usual ones, cannot delete."""
    sink = Upsert(table="silver.p", keys=["event.gamer"], tombstones=True)
    query = make_query(tmp_path, decode=Json(schema=DDL), routes=route(sink, sql="event.gamer IS NOT NULL"))
    rows = raw(event("uno", "a", 1), event("uno", "b", 1), {"dead": {"gamer": "a"}}).to_pylist()
    rows[2]["key"] = b"a"
    query.take(pa.Table.from_pylist(rows, RAW))

    assert query.rows("silver.p", "gamer") == [{"gamer": "b"}]


def test_a_tombstone_is_for_its_routes_only(make_query: Any, tmp_path: Path) -> None:
    """Without it a tombstone becomes an empty event in tables that know nothing of it."""
    routes = (
        *route(LATEST),
        Route(name="all", match=Where(sql="true"), sinks=(Delta(table="silver.all"),)),
    )
    query = make_query(tmp_path, decode=DECODE, routes=routes)
    report = query.take(raw(event("uno", "a", 1), {"dead": {"game": "uno", "gamer": "a"}}))

    assert query.rows("silver.uno", "gamer") == []
    assert query.rows("silver.all", "gamer") == [{"gamer": "a"}]
    assert (report.failed, report.decoded, report.dead_letters) == (0, 2, 0)


SINK = {"table": "silver.p", "keys": ["event.gamer"]}


@pytest.mark.parametrize(
    ("sinks", "decode", "word"),
    [
        ((Upsert(**{**SINK, "keys": ["event.nobody"]}),), Json(schema=DDL), "nobody"),
        ((Upsert(**SINK, columns=["event.nothing"]),), Json(schema=DDL), "nothing"),
        ((Upsert(**SINK, soft_delete="gone"),), Json(schema=DDL), "gone"),
        ((Upsert(**SINK),), Json(schema="game string, gamer double"), "cannot be a key"),
        ((Upsert(**SINK, newest_by="event.tags"),), Json(schema="gamer string, game string, tags array<int>"), "order"),
        ((Upsert(**SINK, tombstones=True), Delta(table="silver.d")), Json(schema=DDL), "tombstone"),
        ((Upsert(**{**SINK, "keys": ["event.game", "event.gamer"]}, tombstones=True),), Json(schema=DDL), "decode"),
    ],
    ids=[
        "no such key",
        "no such column",
        "a column twice",
        "a fraction",
        "no order",
        "mixed sinks",
        "keys not decoded",
    ],
)
def test_what_cannot_work_does_not_start(
    make_query: Any, tmp_path: Path, sinks: tuple[Any, ...], decode: Any, word: str
) -> None:
    """Without it a wrong option is found at night, by a batch that cannot be merged."""
    query = make_query(tmp_path, decode=decode, routes=route(*sinks))

    with pytest.raises(StartError, match=word):
        query.take(raw(event("uno", "a", 1)))


SELECT = ("event.gamer AS who", "event.level * 2 AS rank", "event.at AS timestamp", "event.level")
BY_SPARK = (*SELECT, "hash(event.game) AS hashed")


@pytest.mark.parametrize("select", [SELECT, BY_SPARK], ids=["in tasks", "by Spark"])
@pytest.mark.parametrize(
    ("keys", "newest_by"),
    [
        (["who"], "rank"),
        (["event.gamer"], "event.at"),
        (["gamer"], ["rank + 0", "event.at"]),
        # All records have one time: that of the route comes first.
        (["event.who"], "timestamp"),
    ],
)
def test_keys_and_order_take_columns_of_the_route_and_fields_of_the_event(
    make_query: Any, tmp_path: Path, select: tuple[str, ...], keys: list[str], newest_by: Any
) -> None:
    """Without it a run dies after minutes of a name that `check` has called good."""
    sink = Upsert(table="silver.p", keys=keys, newest_by=newest_by, delete_when="rank > 100 OR event.gone")
    routes = (Route(name="profiles", match=Where(sql="true"), select=select, sinks=(sink,)),)
    query = make_query(tmp_path, decode=Json(schema=DDL), routes=routes)
    report = query.take(
        raw(
            event("uno", "a", 5, at=50), event("uno", "a", 3, at=30), event("uno", "b", 1, at=1),
            event("uno", "b", 51, at=9), event("uno", "c", 1, at=1), event("uno", "c", 2, at=2, gone=True),
        )
    )  # fmt: skip

    assert query.rows("silver.p", "who", "rank", "timestamp") == [{"who": "a", "rank": 10, "timestamp": 50}]
    assert report.dead_letters == 0


def test_a_field_of_every_event_orders_rows_without_its_prefix(make_query: Any, tmp_path: Path) -> None:
    """Without it `newest_by` wants `event.` for what `keys` calls by its name."""
    sink = Upsert(**SINK, newest_by="at", delete_when="gone")
    query = make_query(tmp_path, decode=Json(schema=DDL), routes=route(sink))
    query.take(raw(event("uno", "a", 5, at=50), event("uno", "a", 3, at=30), event("uno", "b", 1, at=1, gone=True)))

    assert query.rows("silver.p", "gamer", "level") == [{"gamer": "a", "level": 5}]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"newest_by": "att"}, "`newest_by`: .*`att`.*of the route: who, rank, .*of the event: event.game, event.ga"),
        ({"delete_when": "gonne"}, "`delete_when`: .*`gonne`.*of the route: who"),
        ({"newest_by": "hash(rank)"}, "`newest_by`.*`select` makes, and needs the function hash"),
        ({"keys": ["event.at", "event.gone"]}, "`keys` names gone, .*who, rank, timestamp, level"),
    ],
    ids=["newest_by", "delete_when", "only Spark", "keys"],
)
def test_a_name_that_is_neither_is_refused_with_those_there_are(
    make_query: Any, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    """Without it the message has neither the option nor what could stand there."""
    sink = Upsert(**{"table": "silver.p", "keys": ["who"], **options})
    routes = (Route(name="profiles", match=Where(sql="true"), select=SELECT, sinks=(sink,)),)
    query = make_query(tmp_path, decode=Json(schema=DDL), routes=routes)

    with pytest.raises(StartError, match=words):
        query.take(raw(event("uno", "a", 1)))


@pytest.mark.parametrize("commit", EITHER)
@pytest.mark.parametrize("table", ["silver.p", "silver.{event.game}"])
def test_columns_may_have_any_name(make_query: Any, tmp_path: Path, commit: str, table: str) -> None:
    """Without it a dot in the name of a field ends the run: PySpark reads it as a path, and finds no such column."""
    sink = Upsert(table=table, keys=["a.b"], history="scd2")
    schema = "game string, `a.b` string, `..` int, `c``d` int"
    query = make_query(tmp_path, commit=commit, decode=Json(schema=schema), routes=route(sink))
    for number in range(2):
        query.take(raw({"game": "p", "a.b": "x", "..": number, "c`d": 1}, first=number))
        query = query.restarted()

    rows = query.rows("silver.p", "a.b", "..", "c`d", "is_current")
    assert sorted(tuple(row.values()) for row in rows) == [("x", 0, 1, False), ("x", 1, 1, True)]
