"""Damaged tables are made whole again from bronze, and hold every row once, also beside a stream."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from router.config.models import Route
from router.engine.audit.table_states import table_states
from router.engine.quarantine.table import list_quarantined, try_now
from router.engine.reprocess.rebuild import Rebuild
from router.engine.reprocess.repair_content import ContentReplacement, SparkOverwrite
from router.engine.start import run_lock
from router.engine.start.run_lock import hold_run_lock
from router.errors import RunningError, StartError, TableError
from router.spark_internals import jvm
from router_decoders import Json
from router_decoders.record_keys import RecordKeys
from router_rules import Sql
from router_sinks import Delta, Tables, Upsert
from tests.engine import scenarios
from tests.engine.conftest import COMMITS
from tests.engine.profiles import event as profile
from tests.engine.profiles import raw
from tests.engine.query import Query, multiset, records
from tests.engine.reprocess.repairs import (
    GAMES,
    audit_problems,
    game_records,
    query_of_games,
    repair_table,
    table_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.engine.conftest import MakeQuery


def expected(batches: int) -> list[int]:
    return [number * 10 + n for number in range(batches) for n in range(3)]


def logs(query: Query, table: str) -> list[Path]:
    return sorted((table_folder(query, table) / "_delta_log").glob("*.json"))


def lose_a_file(query: Query) -> None:
    sorted(table_folder(query, "silver.uno").glob("*.parquet"))[1].unlink()


def cut_the_log(query: Query) -> None:
    newest = logs(query, "silver.go")[-1]
    newest.write_bytes(newest.read_bytes()[:200])


def drop(query: Query) -> None:
    shutil.rmtree(table_folder(query, "silver.rummy"))


def put_an_older_copy_back(query: Query) -> None:
    for log in logs(query, "silver.poker")[-2:]:
        log.unlink()


def delete_rows(query: Query) -> None:
    DeltaTable(table_folder(query, "silver.euchre")).delete("id < 2")


@pytest.fixture(scope="module")
def whole(make_query: MakeQuery, tmp_path_factory: pytest.TempPathFactory) -> Query:
    """Return a query of three batches whose tables nobody harms."""
    return query_of_games(make_query, tmp_path_factory.mktemp("whole"))


@pytest.fixture
def query(whole: Query, make_query: MakeQuery, tmp_path: Path) -> Query:
    """Return the query on a copy of its lake."""
    folder = tmp_path / "copy"
    shutil.copytree(whole.folder, folder)
    copied = query_of_games(make_query, folder, batches=0)
    copied.taken.update(whole.taken)
    return copied


def test_every_harmed_table_is_named_and_made_whole(query: Query, whole: Query, spark: SparkSession) -> None:
    """Without it somebody writes a notebook at night, and doubles or loses rows."""
    for harm in (lose_a_file, cut_the_log, drop, put_an_older_copy_back, delete_rows):
        harm(query)
    sorted(table_folder(query, "silver.ids").glob("*.parquet"))[0].unlink()
    assert set(audit_problems(query)) == {"silver.ids", *(f"silver.{game}" for game in GAMES)}

    with pytest.raises(TableError, match="DELETE by delta-rs"):
        repair_table(query, spark, "silver.euchre")
    done = {game: repair_table(query, spark, f"silver.{game}", accept=game == "euchre") for game in GAMES}

    assert repair_table(query, spark, "silver.ids").rows == len(whole.rows("silver.ids"))

    assert audit_problems(query) == {}
    assert {game: (one.rows, one.later) for game, one in done.items()} == dict.fromkeys(GAMES, (9, 0))
    for table in whole.tables():
        assert multiset(query, table) == multiset(whole, table), table
    assert [game for game, one in done.items() if one.moved] == ["go"]
    assert (Path(done["go"].moved or "") / "_delta_log").is_dir()
    assert query.tables() == whole.tables()
    names = {query.open(f"silver.{game}").metadata().name for game in GAMES}
    assert names == {f"router:silver.{game}" for game in GAMES}, "one that is made anew is the router's own, too"

    query.take(game_records(3))
    assert {table: len(query.rows(f"silver.{table}")) for table in GAMES} == dict.fromkeys(GAMES, 12)
    assert audit_problems(query) == {}


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Do something between the landing of a repair and its commit."""

    def meanwhile(work: Callable[[], object]) -> None:
        stage = Rebuild.stage

        def landed(*arguments: Any) -> Any:
            found = stage(*arguments)
            work()
            return found

        monkeypatch.setattr(Rebuild, "stage", landed)

    return meanwhile


def test_batches_that_come_meanwhile_are_there_once(
    query: Query, spark: SparkSession, meanwhile: Callable[..., None]
) -> None:
    """A repair takes minutes, and the stream does not wait for it."""
    lose_a_file(query)
    put_an_older_copy_back(query)
    meanwhile(lambda: query.take(game_records(len(query.taken))))
    done = [repair_table(query, spark, "silver.uno"), repair_table(query, spark, "silver.poker")]

    assert [(one.rows, one.later) for one in done] == [(9, 3), (12, 3)]
    for game in ("uno", "poker", "go"):
        assert sorted(row["id"] for row in query.rows(f"silver.{game}")) == [
            n * 10 + i for n in range(5) for i in range(3)
        ]
    assert audit_problems(query) == {}


@pytest.mark.slow
def test_a_commit_of_the_stream_in_the_last_moment_is_kept(
    query: Query, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is replaced as it was a moment ago: what came since must stay, and the one behind must not jump it."""
    lose_a_file(query)
    put_an_older_copy_back(query)
    drop(query)
    for name in ("_replace", "_create"):
        commit, done = getattr(ContentReplacement, name), list[str]()

        def late(self: ContentReplacement, *arguments: Any, commit: Any = commit, done: list[str] = done) -> Any:
            if self.table not in done:
                done.append(self.table)
                query.take(game_records(len(query.taken)))
            return commit(self, *arguments)

        monkeypatch.setattr(ContentReplacement, name, late)
    for game in ("uno", "poker", "rummy"):
        repair_table(query, spark, f"silver.{game}")

    for game in GAMES:
        assert query.ids(f"silver.{game}") == expected(len(query.taken))
    assert audit_problems(query) == {}


def test_what_cannot_be_repaired_is_refused(query: Query, spark: SparkSession) -> None:
    """Without it a repair makes of too little, or of too much, what looks like a whole table."""
    refused: dict[str, tuple[type[Exception], str]] = {
        "bronze.events": (StartError, "the router's own"),
        "ops.ledger": (StartError, "the router's own"),
    }
    for table, (error, what) in refused.items():
        with pytest.raises(error, match=what):
            repair_table(query, spark, table)
    write_deltalake(
        table_folder(query, "silver.go"),
        pa.table({"id": pa.array([77], pa.int32())}),
        mode="append",
        schema_mode="merge",
    )
    with pytest.raises(TableError, match="added 1 rows"):
        repair_table(query, spark, "silver.go")
    DeltaTable(table_folder(query, "bronze.events")).delete("batch_id = 0")
    with pytest.raises(StartError, match="does not reach back to the first batch"):
        repair_table(query, spark, "silver.uno")
    query = query.restarted(bronze=None)
    with pytest.raises(StartError, match="has no bronze"):
        repair_table(query, spark, "silver.uno")


def scenes() -> list[Any]:
    """Return the scenarios that keep their configuration: a repair goes by the one of today."""
    kept = [scenario for scenario in scenarios.ALL if scenario is not scenarios.evolution]
    return [pytest.param(one, commit, id=f"{one.__name__}-{commit}") for one in kept for commit in COMMITS]


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "commit"), scenes())
def test_a_repair_writes_what_the_batches_wrote(
    make_query: MakeQuery, spark: SparkSession, tmp_path: Path, scenario: scenarios.Scenario, commit: str
) -> None:
    """Without it a repair is a second way from bytes to a table, with an opinion of its own."""

    def with_bronze(folder: Path, **settings: Any) -> Query:
        return make_query(folder, **{"bronze": "bronze.all", **settings})

    query = scenario(with_bronze, tmp_path, commit)
    query.write_run_id()
    own = {query.config.dead_letters, query.config.ledger, "bronze.all"}
    tables = [table for table in query.tables() if table not in own and not table.startswith("outbox.")]
    before = {table: multiset(query, table) for table in (*tables, query.config.dead_letters, "ops.ledger")}
    for table in tables:
        repair_table(query, spark, table)

    assert {table: multiset(query, table) for table in before} == before
    assert audit_problems(query) == {}


@pytest.mark.slow
@pytest.mark.parametrize("commit", COMMITS)
def test_a_wider_type_that_a_repair_brings_rewrites_the_table(
    query: Query, spark: SparkSession, meanwhile: Callable[..., None], commit: str
) -> None:
    """With type widening neither delta-rs nor polars would read the table any more, though nobody asked for it."""
    lose_a_file(query)
    wide = query.restarted(decode=Json(schema="game string, id bigint, bonus double"), commit=commit)
    if commit == "auto":
        meanwhile(lambda: query.take(game_records(3)))
    assert repair_table(wide, spark, "silver.uno").rows == 9

    assert wide.open("silver.uno").protocol().reader_features is None
    assert wide.content("silver.uno").schema.field("id").type == pa.int64()
    assert wide.ids("silver.uno") == expected(len(wide.taken))
    assert audit_problems(wide) == {}


MERGED = {
    "latest": {"keys": ["event.gamer"], "tombstones": True},
    "newest": {"keys": ["event.gamer"], "newest_by": "event.at"},
    "flagged": {"keys": ["event.gamer"], "tombstones": True, "soft_delete": "gone"},
    "history": {"keys": ["event.gamer"], "tombstones": True, "history": "scd2"},
}


def merged(make_query: MakeQuery, folder: Path, commit: str) -> Query:
    """Merge three batches with tombstones, late records and wider tables in every way to merge."""
    fields = "game string, gamer string, level int, at bigint, more string"
    decode = RecordKeys(value=Json(schema=fields), key=Json(schema="game string, gamer string"))
    routes = tuple(
        Route(
            name=name,
            match=Sql(where="event.game IS NOT NULL"),
            sinks=(Upsert(table=f"{name}.{{event.game}}", **options),),
        )
        for name, options in MERGED.items()
    )
    query = make_query(folder, commit=commit, decode=decode, bronze="bronze.all", routes=routes)
    query.write_run_id()
    for number in range(3):
        take_merged(query, number)
    return query


def take_merged(query: Query, number: int) -> None:
    values = [profile("uno", gamer, number, at=10 - number if gamer == "a" else number) for gamer in "abc"]
    more: list[Any] = [{"dead": {"game": "uno", "gamer": "abc"[number % 3]}}, profile("go", f"g{number}", 1)]
    more += [profile("uno", "d", 10 * number, at=number, **({"more": "text"} if number else {})), b"garbage"]
    query.take(raw(*values, *more, profile("uno", "d", 10 * number + 1, at=number), first=number * 100))


@pytest.mark.slow
@pytest.mark.timeout(1200)  # by Spark each of some sixty merges takes seconds
@pytest.mark.parametrize("commit", COMMITS)
def test_tables_with_one_row_per_key_are_merged_anew(
    make_query: MakeQuery, spark: SparkSession, tmp_path: Path, commit: str, meanwhile: Callable[..., None]
) -> None:
    """Without it a table of profiles that lost a file can only be put back from a copy that nobody has."""
    whole, query = (merged(make_query, tmp_path / name, commit) for name in ("whole", "harmed"))
    tables = [f"{name}.uno" for name in MERGED]
    shutil.rmtree(table_folder(query, "latest.uno"))
    jvm(spark).org.apache.spark.sql.delta.DeltaLog.clearCache()  # `router rebuild` has a JVM of its own
    newest = logs(query, "history.uno")[-1]
    newest.write_bytes(newest.read_bytes()[:50])
    if commit == "spark":  # it makes no table beside remembered deletions
        with pytest.raises(TableError, match=r"move .*_deletions away"):
            repair_table(query, spark, "history.uno")
        shutil.rmtree(table_folder(query, "history.uno"))
    for table in ("newest.uno", "flagged.uno"):
        sorted(table_folder(query, table).glob("*.parquet"))[0].unlink()
    come = [3]

    def take() -> None:
        if come:
            take_merged(query, come.pop())

    meanwhile(take)
    for table in tables:
        repair_table(query, spark, table)
    take_merged(whole, 3)
    for each in (whole, query):
        take_merged(each, 4)

    for table in tables:
        assert multiset(query, table) == multiset(whole, table), table
    assert audit_problems(query) == {}


@pytest.mark.slow
def test_two_sinks_of_one_table_are_repaired_beside_the_stream(
    make_query: MakeQuery, spark: SparkSession, tmp_path: Path, meanwhile: Callable[..., None]
) -> None:
    """Each of them has a transaction id of its own, and a batch that comes meanwhile has rows of both."""

    def with_bronze(folder: Path, **settings: Any) -> Query:
        return make_query(folder, **{"bronze": "bronze.all", **settings})

    whole, query = (scenarios.shared(with_bronze, tmp_path / name, "auto") for name in ("whole", "harmed"))
    query.write_run_id()
    more = [{"id": 301, "kind": "number", "n": 1}, {"id": 302, "kind": "text", "n": 2}, {"id": 303, "kind": "both"}]
    whole.take(records(more, first=300))
    sorted(table_folder(query, "silver.shared").glob("*.parquet"))[0].unlink()
    meanwhile(lambda: query.take(records(more, first=300)))
    done = repair_table(query, spark, "silver.shared")

    assert done.later > 0
    assert multiset(query, "silver.shared") == multiset(whole, "silver.shared")
    assert audit_problems(query) == {}


@pytest.mark.slow
def test_quarantined_rows_are_in_a_table_once(make_query: MakeQuery, spark: SparkSession, tmp_path: Path) -> None:
    """Bronze has the records of rows that wait, too: they must not come with it and with their release."""
    sinks = (Tables(table="silver.{event.game}", evolution="quarantine"),)
    routes = (Route(name="all", match=Sql(where="true"), sinks=sinks),)
    query = make_query(tmp_path, decode=Json(schema="game string, id int"), bronze="bronze.events", routes=routes)
    query.write_run_id()
    query.take(records([{"game": "uno", "id": 1}]))
    query = query.restarted(decode=Json(schema="game string, id int, bonus double"))
    query.take(records([{"game": "uno", "id": 2}, {"game": "uno", "id": 3, "bonus": 0.5}], first=100))
    with pytest.raises(TableError, match="1 rows wait for it in the quarantine, and need columns that it lacks"):
        repair_table(query, spark, "silver.uno")
    shutil.rmtree(table_folder(query, "silver.uno"))
    repair_table(query, spark, "silver.uno")

    assert query.ids("silver.uno") == [1, 2, 3]
    assert list_quarantined(query.config, query.lake) == []
    query.take(records([{"game": "uno", "id": 4, "bonus": 1.5}], first=200))
    assert query.ids("silver.uno") == [1, 2, 3, 4]
    assert audit_problems(query) == {}


def test_rows_that_wait_for_an_older_copy_are_in_the_repaired_table_once(
    make_query: MakeQuery, spark: SparkSession, tmp_path: Path
) -> None:
    """Without it a repair asks for a release, the release for a start, and the start for a repair."""
    sinks = (Tables(table="silver.{event.game}"),)
    routes = (Route(name="all", match=Sql(where="true"), sinks=sinks),)
    query = make_query(tmp_path, decode=Json(schema="game string, id int"), bronze="bronze.events", routes=routes)
    query.write_run_id()
    query.take(records([{"game": "uno", "id": 1}]))
    copy = tmp_path / "copy"
    shutil.copytree(table_folder(query, "silver.uno"), copy)
    query.take(records([{"game": "uno", "id": 2}], first=100))
    shutil.rmtree(table_folder(query, "silver.uno"))
    shutil.copytree(copy, table_folder(query, "silver.uno"))
    query.take(records([{"game": "uno", "id": 3}], first=200))
    assert [rows.kind for rows in list_quarantined(query.config, query.lake)] == ["unblock"]

    repair_table(query, spark, "silver.uno")

    assert query.ids("silver.uno") == [1, 2, 3]
    assert list_quarantined(query.config, query.lake) == []
    query.take(records([{"game": "uno", "id": 4}], first=300))
    assert query.ids("silver.uno") == [1, 2, 3, 4]
    assert audit_problems(query) == {}


@pytest.mark.slow
def test_a_table_for_spark_is_not_replaced_beside_the_stream(query: Query, spark: SparkSession) -> None:
    """Delta on Spark would take what the stream commits meanwhile for old."""
    DeltaTable(table_folder(query, "silver.uno")).alter.add_constraint({"small": "id < 1000"})
    with hold_run_lock(query.store.checkpoint, "games"), pytest.raises(TableError, match="end the stream"):
        repair_table(query, spark, "silver.uno")
    assert query.ids("silver.uno") == expected(3)
    repair_table(query, spark, "silver.uno")

    assert query.ids("silver.uno") == expected(3)
    assert audit_problems(query) == {}


@pytest.mark.slow
@pytest.mark.parametrize("table", ["silver.uno", "silver.ids"])
def test_a_stream_that_starts_while_spark_replaces_a_table_is_refused(
    query: Query, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """Without it what the stream commits between the question whether it runs and the overwrite is lost."""
    query = query.restarted(commit="spark")
    refused: list[str] = []
    overwrite = SparkOverwrite.run

    def overwrite_while_a_stream_starts(this: SparkOverwrite, *arguments: Any, **named: Any) -> None:
        with pytest.raises(RunningError) as error, hold_run_lock(query.store.checkpoint, "games"):
            pass
        refused.append(str(error.value))
        overwrite(this, *arguments, **named)

    monkeypatch.setattr(run_lock, "PATIENCE", 0.0)
    monkeypatch.setattr(SparkOverwrite, "run", overwrite_while_a_stream_starts)
    rows = multiset(query, table)
    repair_table(query, spark, table)

    assert len(refused) == 1
    assert f"the repair of {table} by Delta on Spark is at work" in refused[0]
    assert multiset(query, table) == rows
    with hold_run_lock(query.store.checkpoint, "games"):
        pass


def test_a_damaged_table_is_repaired_while_its_rows_go_to_the_quarantine(
    query: Query, spark: SparkSession, meanwhile: Callable[..., None]
) -> None:
    """The stream keeps the rows of a table that it cannot read: what bronze gives must not be released again."""
    cut_the_log(query)
    query.take(game_records(3))
    meanwhile(lambda: query.take(game_records(4)))
    assert {one.table: one.state for one in table_states(query.config)}["silver.go"] == "unreadable"
    done = repair_table(query, spark, "silver.go")
    assert (done.rows, query.ids("silver.go")) == (12, expected(4))
    for found in list_quarantined(query.config, query.lake):
        try_now(query.store, found.place)
    query.take(game_records(5))
    query.take(game_records(6))

    for game in GAMES:
        assert query.ids(f"silver.{game}") == expected(7)
    assert list_quarantined(query.config, query.lake) == []
    assert audit_problems(query) == {}


@pytest.mark.slow
def test_a_divided_table_is_made_whole_of_the_bronze_of_several_topics(
    make_query: MakeQuery, spark: SparkSession, tmp_path: Path
) -> None:
    """Without it the records of all topics but one are missing, or the columns that divide a table are empty."""
    sinks = (Delta(table="gold.all", partition_by=("game",), comment="all of it"),)
    routes = (Route(name="all", match=Sql(where="true"), sinks=sinks),)
    settings = {"bronze": "bronze.{topic}", "decode": Json(schema="game string, id int"), "routes": routes}
    query = make_query(tmp_path, **settings)
    query.write_run_id()
    for number, topics in enumerate((["a-b", "c"], ["c", "d.e"])):
        rows = records([{"game": "uno", "id": number}, {"game": "go", "id": number}], first=number * 100)
        query.take(rows.set_column(rows.schema.get_field_index("topic"), "topic", pa.array(topics)))
    content = multiset(query, "gold.all")
    assert audit_problems(query) == {}

    for damage in (
        lambda: shutil.rmtree(table_folder(query, "gold.all")),
        lambda: next(table_folder(query, "gold.all").glob("*.parquet")).unlink(),
    ):
        damage()
        query.contents.clear()
        assert audit_problems(query).keys() >= {"gold.all"}
        repair_table(query, spark, "gold.all")
        query.contents.clear()
        assert multiset(query, "gold.all") == content
        assert audit_problems(query) == {}
        assert query.open("gold.all").metadata().partition_columns == ["game"]
        assert query.open("gold.all").metadata().description == "all of it"
