"""Lookups: events get columns of a table's row by key, as the table is, or was before it went away."""

from __future__ import annotations

import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from router import StartError
from router.config.loader import load_config
from router.config.models import Lookup, Route
from router.delta.lake import Lake
from router.engine.lookup.join import KeyIndex, choose_rows
from router.engine.preflight.check import check_plan
from router.engine.preflight.route_tests import load_tests, run_tests
from router.engine.stream import run
from router.errors import ConfigError
from router.registry import load_registry
from tests.engine.parts import Events, Fixed, Where
from tests.engine.query import Query, records

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.engine.conftest import MakeQuery

PLAYERS: list[dict[str, Any] | bytes | None] = [
    {"game": "uno", "gamer": "ann", "n": 1},
    {"game": "uno", "gamer": "bob", "n": 2},
    {"game": "uno"},
]
BILLING = "gamer string, plan string, limit bigint"


def billing(folder: Path, *rows: tuple[str | None, str, int]) -> None:
    names = pa.schema([("gamer", pa.string()), ("plan", pa.string()), ("limit", pa.int64())])
    table = pa.Table.from_pylist([dict(zip(names.names, row, strict=True)) for row in rows], names)
    write_deltalake(str(folder / "lake/silver/billing"), table, mode="overwrite")


def route(name: str = "r", sql: str = "true", table: str = "silver.played", **more: Any) -> Route:
    more = {"select": ("event.*", "billing.plan"), **more}
    return Route(name=name, match=Where(sql=sql), sinks=(Fixed(name=table),), **more)


def looked_up(**more: Any) -> Lookup:
    return Lookup(**{"name": "billing", "table": "silver.billing", "on": {"gamer": "event.gamer"}, **more})


def query(make_query: MakeQuery, folder: Path, *routes: Route, **settings: Any) -> Query:
    return make_query(folder, decode=Events(ddl="game string, gamer string, n int"), routes=routes, **settings)


def plans(made: Query, table: str = "silver.played") -> list[tuple[str | None, str | None]]:
    return [(row["gamer"], row["plan"]) for row in made.rows(table, "gamer", "plan")]


@pytest.mark.parametrize("commit", ["auto", pytest.param("spark", marks=pytest.mark.slow)])
def test_events_get_the_columns_of_their_row(make_query: MakeQuery, tmp_path: Path, commit: str) -> None:
    billing(tmp_path, ("ann", "gold", 5), ("eve", "free", 1), (None, "none", 0))
    by_arrow = route(lookup=(looked_up(),))
    by_spark = route("s", "hash(billing.plan) = hash('gold')", "silver.gold", lookup=(looked_up(),))
    made = query(make_query, tmp_path, by_arrow, by_spark, commit=commit)
    made.take(records(PLAYERS))
    assert plans(made) == [("ann", "gold"), ("bob", None), (None, None)]
    assert plans(made, "silver.gold") == [("ann", "gold")]


def test_a_row_can_match_and_name_a_table_and_be_expected(make_query: MakeQuery, tmp_path: Path) -> None:
    rows = ({"gamer": "ann", "plan": "gold"}, {"gamer": "bob", "plan": "free"})
    lookup = looked_up(table=None, rows=rows)
    expect = ({"name": "known", "sql": "billing IS NOT NULL"},)
    gold = route("g", "billing.plan = 'gold'", "silver.gold", lookup=(lookup,), select=("event.gamer", "billing.*"))
    known = route("k", lookup=(lookup,), expect=expect)
    made = query(make_query, tmp_path, gold, known)
    made.take(records(PLAYERS))
    assert plans(made, "silver.gold") == [("ann", "gold")]
    assert plans(made) == [("ann", "gold"), ("bob", "free")]
    assert made.letters("stage", "route") == {("expect", "k"): 1}


def test_a_table_is_loaded_again_and_the_version_told(make_query: MakeQuery, tmp_path: Path) -> None:
    billing(tmp_path, ("ann", "gold", 5))
    made = query(make_query, tmp_path, route(lookup=(looked_up(every="1 ms"),)))
    made.take(records(PLAYERS[:1]))
    billing(tmp_path, ("ann", "free", 5))
    for batch in range(1, 60):  # a load that takes long is for a later batch
        made.take(records(PLAYERS[:1], first=batch))
        if ("ann", "free") in plans(made):
            break
    assert plans(made)[-1] == ("ann", "gold")
    first, last = made.store.read_manifest(0), made.store.read_manifest(batch)
    assert first
    assert last
    assert first.lookups["billing"].endswith("@0")
    assert last.lookups["billing"].endswith("@1")
    assert "router.lookups" in made.open("silver.played").history(1)[0]


def test_a_table_that_is_away_leaves_the_rows_of_before(
    make_query: MakeQuery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "billing.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE billing (gamer TEXT, plan TEXT)")
        database.execute("INSERT INTO billing VALUES ('ann', 'gold')")
    database.close()
    found = {"url": f"sqlite:///{file}", "query": "SELECT gamer, plan FROM billing"}
    lookup = looked_up(table=None, database=found, every="1 ms")
    made = query(make_query, tmp_path, route(lookup=(lookup,)))
    made.take(records(PLAYERS[:1]))
    with sqlite3.connect(file) as database:
        database.execute("ALTER TABLE billing RENAME TO elsewhere")
    database.close()
    end = time.monotonic() + 60
    while "batches continue" not in caplog.text and time.monotonic() < end:
        made.take(records(PLAYERS[:1], first=len(made.taken)))
    made.take(records(PLAYERS[:1], first=len(made.taken)))
    assert {plan for _, plan in plans(made)} == {"gold"}
    assert caplog.text.count("batches continue") == 1
    with sqlite3.connect(file) as database:
        database.execute("ALTER TABLE elsewhere RENAME TO billing")
        database.execute("UPDATE billing SET plan = 'free'")
    database.close()
    while ("ann", "free") not in plans(made) and time.monotonic() < end:
        made.take(records(PLAYERS[:1], first=len(made.taken)))
    assert ("ann", "free") in plans(made)


def test_a_database_that_is_away_at_the_start_is_waited_for(make_query: MakeQuery, tmp_path: Path) -> None:
    found = {"url": f"sqlite:///{tmp_path}/not/there.db", "query": "SELECT 1 AS gamer"}
    made = query(make_query, tmp_path, route(lookup=(looked_up(table=None, database=found),)))
    with pytest.raises(OSError, match="cannot be reached"):
        made.take(records(PLAYERS))


def test_a_stream_waits_for_the_table_and_goes_on(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it a database that is restarted together with the router ends the run."""
    file = tmp_path / "later/billing.db"
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text('{"gamer": "ann", "n": 1}\n')
    text = CONFIG.format(lake=tmp_path / "lake", table="silver.billing", on="event.gamer", columns="plan")
    text = text.replace(f"{tmp_path}/lake/in", f"{tmp_path}/in") + "trigger: {once: true}\n"
    database = f"database: {{url: 'sqlite:///{file}', query: 'SELECT gamer, plan FROM billing'}}"
    loaded = load_config(tmp_path / "games.yaml", load_registry(), text=text.replace("table: silver.billing", database))

    def appear() -> None:
        while "cannot be reached" not in caplog.text:
            time.sleep(0.05)
        (tmp_path / "new").mkdir()
        made = sqlite3.connect(tmp_path / "new/billing.db")
        made.execute("CREATE TABLE billing AS SELECT 'ann' AS gamer, 'gold' AS plan")
        made.commit()
        made.close()
        (tmp_path / "new").rename(file.parent)

    thread = threading.Thread(target=appear)
    thread.start()
    (report,) = run(loaded, load_registry(), spark)
    thread.join()
    handle = Lake.at(str(tmp_path / "lake")).open("silver.played")
    assert report.read == 1
    assert handle is not None
    assert handle.to_pyarrow_table().to_pylist() == [{"gamer": "ann", "n": 1, "plan": "gold"}]


def test_several_rows_of_a_key_are_refused_unless_one_is_newest(make_query: MakeQuery, tmp_path: Path) -> None:
    billing(tmp_path, ("ann", "gold", 1), ("ann", "free", 2))
    with pytest.raises(StartError, match="newest_by"):
        query(make_query, tmp_path, route(lookup=(looked_up(),))).take(records(PLAYERS))
    made = query(make_query, tmp_path, route(lookup=(looked_up(newest_by="limit", columns=("plan",)),)))
    made.take(records(PLAYERS[:1]))
    assert plans(made) == [("ann", "free")]


def test_more_rows_than_may_be_are_refused(make_query: MakeQuery, tmp_path: Path) -> None:
    billing(tmp_path, ("ann", "gold", 1), ("bob", "free", 2))
    with pytest.raises(StartError, match="at_most"):
        query(make_query, tmp_path, route(lookup=(looked_up(at_most=1),))).take(records(PLAYERS))


CONFIG = """\
name: games
lake: {lake}
source: {{files: {{path: {lake}/in}}}}
decode: {{json: {{schema: "gamer string, n int"}}}}
dead_letters: ops.dead
routes:
  - name: r
    match: {{sql: "true"}}
    lookup:
      - name: billing
        table: {table}
        on: {{gamer: {on}}}
        columns: [{columns}]
    select: ["event.*", "billing.plan"]
    sinks: [{{delta: silver.played}}]
"""


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"table": "silver.nothing"}, (11, "lookup.0.table")),
        ({"on": "event.nobody"}, (12, "lookup.0.on.gamer")),
        ({"on": "event.n"}, (12, "lookup.0.on.gamer")),
        ({"on": "reverse(event.gamer || uuid())"}, (12, "lookup.0.on.gamer")),
        ({"columns": "plam"}, (13, "lookup.0.columns")),
        ({}, None),
    ],
    ids=["no table", "no field", "another type", "not in tasks", "no column", "good"],
)
def test_check_says_where_a_lookup_is_wrong(
    spark: SparkSession, tmp_path: Path, change: dict[str, str], place: tuple[int, str] | None
) -> None:
    billing(tmp_path, ("ann", "gold", 1))
    (tmp_path / "lake/in").mkdir()
    file = tmp_path / "games.yaml"
    given = {"lake": str(tmp_path / "lake"), "table": "silver.billing", "on": "event.gamer", "columns": "plan"}
    file.write_text(CONFIG.format(**{**given, **change}))
    registry = load_registry()
    if place is None:
        check_plan(load_config(file, registry), registry, spark)
        return
    with pytest.raises(ConfigError) as error:
        check_plan(load_config(file, registry), registry, spark)
    (problem,) = error.value.problems
    assert (problem.line, problem.path.removeprefix("routes.0.")) == place


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("        table: silver.billing\n", "", 10),
        ("silver.billing", "billing", 10),
        ("name: billing", "name: event", 10),
        ("columns: [plan]", "columns: [gamer]", 10),
        ("on: {gamer: event.gamer}", "on: {}", 12),
    ],
    ids=["no table", "no layer", "name of a column", "key twice", "no key"],
)
def test_a_lookup_that_cannot_be_is_reported_with_its_place(tmp_path: Path, old: str, new: str, line: int) -> None:
    text = CONFIG.format(lake=tmp_path, table="silver.billing", on="event.gamer", columns="plan")
    assert old in text
    with pytest.raises(ConfigError) as error:
        load_config(tmp_path / "games.yaml", load_registry(), text=text.replace(old, new))
    assert line in {problem.line for problem in error.value.problems}


def test_routes_share_a_lookup_or_name_their_own(tmp_path: Path) -> None:
    text = CONFIG.format(lake=tmp_path, table="silver.billing", on="event.gamer", columns="plan")
    more = text[text.index("  - name: r\n") :].replace("name: r\n", "name: s\n")
    load_config(tmp_path / "games.yaml", load_registry(), text=text + more)
    with pytest.raises(ConfigError) as error:
        load_config(tmp_path / "games.yaml", load_registry(), text=text + more.replace("event.gamer", "event.n"))
    assert [problem.path for problem in error.value.problems] == ["routes.1.lookup.0.name"]


def test_route_tests_give_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "games.yaml"
    file.write_text(CONFIG.format(lake=tmp_path, table="silver.billing", on="event.gamer", columns="plan"))
    cases = tmp_path / "games.test.yaml"
    cases.write_text(
        "lookups: {billing: [{gamer: ann, plan: gold}]}\n"
        "tests:\n"
        "  - name: plan\n"
        "    records: [{event: {gamer: ann, n: 1}}, {event: {gamer: bob, n: 2}}]\n"
        "    expect: {tables: {silver.played: [{gamer: ann, plan: gold}, {gamer: bob, plan: null}]}}\n"
    )
    (result,) = run_tests(load_config(file, load_registry()), load_tests(cases), spark)
    assert result.faults == ()


def test_keys_of_several_columns_and_types_are_found() -> None:
    moments = pa.array([1, 2, None, 2], pa.timestamp("us", "UTC"))
    rows = [pa.array(["a", "a", "b", "ä"]), moments, pa.array([True, False, True, True])]
    index = KeyIndex(rows)
    asked = [column.take(pa.array([3, 0, 2, 1])) for column in rows]
    assert index.find_rows(asked).to_pylist() == [3, 0, None, 1]
    assert index.find_rows([pa.array(["b"]), moments[:1], pa.array([True])]).to_pylist() == [None]
    assert KeyIndex([pa.array([], pa.int64())]).find_rows([pa.array([1, None], pa.int32())]).to_pylist() == [None, None]


def test_nan_is_the_newest_as_in_spark() -> None:
    """Without it a lookup takes another row than the same query in Spark."""
    at = pa.chunked_array([[1.0, float("nan")], [float("inf"), None]])
    table = pa.table({"k": ["a"] * 4, "v": [1, 2, 3, 4], "at": at})
    assert choose_rows(table, ["k"], "at")[0].select(["k", "v"]).to_pylist() == [{"k": "a", "v": 2}]
    assert choose_rows(table.slice(2), ["k"], "at")[0].column("v").to_pylist() == [3]


def test_of_several_rows_the_newest_is_chosen() -> None:
    table = pa.table({"k": ["a", "a", None, "b"], "at": [1, 3, 9, None]})
    assert choose_rows(table, ["k"], None)[1] == {"k": "a"}
    assert sorted(choose_rows(table, ["k"], "at")[0].to_pylist(), key=repr) == [
        {"k": "a", "at": 3},
        {"k": "b", "at": None},
    ]
