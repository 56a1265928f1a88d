"""Views: equal to their query over their sources after whatever happened to these, with as few commits as it takes."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import router.cli
from router import ConfigError
from router.config.loader import load_config
from router.config.models import Route, Trigger, View
from router.engine.audit.expectation_counts import expectation_counts
from router.engine.checkpoint_store import lake_and_checkpoint
from router.engine.lookup import loading
from router.engine.status.board import StatusBoard
from router.engine.status.snapshot import ViewStatus
from router.engine.status.view_notes import views_of_lake
from router.engine.stream import RunOptions, run
from router.engine.views import relation
from router.engine.views.note import Note, note_failed_refresh, view_note_path
from router.engine.views.row_hash import row_hash
from router.engine.views.schedule import ViewSchedule, create_refresher, in_order
from router.errors import ViewError
from router.registry import load_registry
from router_decoders import Json
from router_rules import Sql
from router_sinks import Tables, Upsert
from tests.engine.query import Query, records

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router.engine.views.refresh import RefreshedView, Refresher
    from tests.engine.conftest import MakeQuery

SCHEMA = "game string, id long, gamer long, amount double"
SESSIONS = (
    "SELECT table, gamer, count(*) AS sessions, sum(amount) AS amount, min(id) AS first, max(id) AS last "
    "FROM source GROUP BY table, gamer"
)


MEANS = (
    "SELECT table, avg(amount) AS mean, count(amount) AS amounts, hll_sketch_agg(id) AS ids, bool_and(id > 3) AS late "
    "FROM source GROUP BY table"
)
MEDIANS = "SELECT table, gamer, percentile_approx(id, 0.5) AS median FROM source GROUP BY table, gamer"


def view(sql: str = SESSIONS, into: str = "gold.{table}_sessions", **more: Any) -> View:
    """Return a view of the silver tables."""
    return View.model_validate({"name": "sessions", "from": "silver.*", "sql": sql, "into": into, **more})


def event(game: str, number: int, gamer: int | None = 1, amount: float | None = 1.0) -> dict[str, Any]:
    return {"game": game, "id": number, "gamer": gamer, "amount": amount}


class Lake:
    """A query whose events go into silver, and what refreshes views of it."""

    def __init__(self, make_query: MakeQuery, folder: Path, *views: View, keyed: bool = False, **settings: Any) -> None:
        sink = Upsert(table="silver.{event.game}", keys=("id",)) if keyed else Tables(table="silver.{event.game}")
        route = Route(name="games", match=Sql(where="event.game IS NOT NULL"), sinks=(sink,))
        self.query = make_query(folder, decode=Json(schema=SCHEMA), routes=(route,), views=views, **settings)
        self.offset = 0

    def take(self, *events: dict[str, Any]) -> None:
        self.query.take(records(events, first=self.offset))
        self.offset += len(events)

    @property
    def refresher(self) -> Refresher:
        """Return one that remembers nothing, as a new process would."""
        query = self.query
        return create_refresher(query.config, query.spark, query.lake, query.store)

    def refresh(self, one: View, *, full: bool = False) -> RefreshedView:
        return self.refresher.refresh_view(one, full=full)

    def silver(self) -> list[dict[str, Any]]:
        names = [name for name in self.query.tables() if name.startswith("silver.")]
        empty = {"gamer": None, "amount": None}  # a column without a value is in no table
        return [{"table": name.partition(".")[2], **empty, **row} for name in names for row in self.query.rows(name)]

    def gold(self) -> list[dict[str, Any]]:
        names = [name for name in self.query.tables() if name.startswith("gold.")]
        return [row for name in names for row in self.query.rows(name)]

    def versions(self, layer: str = "gold.") -> dict[str, int]:
        return {name: version for name, version in self.query.versions().items() if name.startswith(layer)}


def sessions(rows: list[dict[str, Any]]) -> Counter[Any]:
    """Return what the view of sessions has of rows, computed by hand."""
    found: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["table"], row["gamer"]), []).append(row)
    made = Counter[Any]()
    for (table, gamer), group in found.items():
        amounts = [row["amount"] for row in group if row["amount"] is not None]
        total = round(sum(amounts), 6) if amounts else None
        ids = [row["id"] for row in group]
        made[table, gamer, len(group), total, min(ids), max(ids)] += 1
    return made


def told(rows: list[dict[str, Any]]) -> Counter[Any]:
    """Return the rows of the view in the same words."""
    return Counter(
        (
            r["table"],
            r["gamer"],
            r["sessions"],
            None if r["amount"] is None else round(r["amount"], 6),
            r["first"],
            r["last"],
        )
        for r in rows
    )


def means_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the view of means by table, computed by hand."""
    found = {}
    for table in {row["table"] for row in rows}:
        ids = {row["id"] for row in rows if row["table"] == table}
        amounts = [row["amount"] for row in rows if row["table"] == table and row["amount"] is not None]
        mean = pytest.approx(sum(amounts) / len(amounts), rel=1e-9) if amounts else None
        found[table] = (mean, len(amounts), len(ids), all(number > 3 for number in ids))
    return found


def means(lake: Lake) -> dict[str, Any]:
    """Return the view of means by table, its sketches as their estimates: exact for a few values."""
    spark, address = lake.query.spark, lake.query.lake.spark_address("gold.means")
    rows = spark.read.format("delta").load(address)
    chosen = rows.selectExpr("table", "mean", "amounts", "hll_sketch_estimate(ids)", "late").collect()
    return {table: (mean, amounts, ids, late) for table, mean, amounts, ids, late in chosen}


def test_many_tables_become_many_tables_and_follow_them(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it gold is a query for each game, written by hand."""
    lake, one = Lake(make_query, tmp_path, view()), view()
    lake.take(event("uno", 1), event("uno", 2, 2, None), event("chess", 3, None))

    first = lake.refresh(one)
    assert (first.way, first.commits) == ("full", ("gold.chess_sessions", "gold.uno_sessions"))
    assert told(lake.gold()) == sessions(lake.silver())

    assert lake.refresh(one).way == ""
    assert lake.versions() == {"gold.chess_sessions": 0, "gold.uno_sessions": 0}

    lake.take(event("uno", 4, 2, 2.5), event("go", 5))
    after = lake.refresh(one)
    assert (after.way, after.commits) == ("merge", ("gold.go_sessions", "gold.uno_sessions"))
    assert told(lake.gold()) == sessions(lake.silver())
    assert lake.versions() == {"gold.chess_sessions": 0, "gold.go_sessions": 0, "gold.uno_sessions": 1}


@pytest.mark.parametrize("seed", [pytest.param(0), *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 8))])
def test_an_incremental_view_is_the_full_one(
    make_query: MakeQuery, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it gold drifts from silver after updates, deletes, compactions and refreshes that were cut off."""
    dice = random.Random(seed)
    views = [
        view(),
        view(MEDIANS, "gold.medians", name="medians"),
        view("SELECT table, id, amount FROM source WHERE amount > 1", "platinum.{table}_rows", name="rows"),
        view("SELECT count(*) AS n, sum(id) AS ids FROM source", "gold.all", name="total"),
        view(MEANS, "gold.means", name="means"),
    ]  # fmt: skip
    lake = Lake(make_query, tmp_path, *views, keyed=bool(seed % 2))
    lake.take(event("uno", 100))  # the columns that the views ask for
    for step in range(6 if seed else 3):
        monkeypatch.setattr(relation, "FEW_FILES", 16 * (step % 2))  # every other time Arrow reads the files
        games = dice.sample(["uno", "chess", "go"], dice.randint(1, 3))
        ids = range(step * 5, step * 5 + 5) if not seed % 2 else [dice.randint(0, 9) for _ in range(4)]
        gamers, amounts = [1, 2, None], [0.5, 2.0, None]
        lake.take(*(event(dice.choice(games), n, dice.choice(gamers), dice.choice(amounts)) for n in ids))
        happens = dice.choice(["nothing", "delete", "compact", "note", "drop", "foreign"])
        target = dice.choice([name for name in lake.query.tables() if name.startswith("silver.")])
        if happens == "delete":
            lake.query.open(target).delete(f"id % 3 = {dice.randint(0, 2)}")
        elif happens == "compact":
            lake.query.open(target).optimize.compact()
        elif happens == "note" and (path := view_note_path("sessions")) and lake.query.store.read(path):
            lake.query.store.delete(path)
        elif happens == "drop" and lake.versions():
            lake.query.open(dice.choice([*lake.versions()])).delete("true")
        for one in views:
            lake.refresh(one)
        rows = lake.silver()
        gold = [row for name in lake.versions() if name.endswith("_sessions") for row in lake.query.rows(name)]
        assert told(gold) == sessions(rows), (step, happens)
        wanted = Counter((r["table"], r["id"], r["amount"]) for r in rows if (r["amount"] or 0) > 1)
        found = [row for name in lake.query.tables() if name.startswith("platinum.") for row in lake.query.rows(name)]
        assert Counter((r["table"], r["id"], r["amount"]) for r in found) == wanted, (step, happens)
        (total,) = lake.query.rows("gold.all")
        assert total == {"n": len(rows), "ids": sum(r["id"] for r in rows) if rows else None}, (step, happens)
        groups = {(r["table"], r["gamer"]) for r in rows}
        assert {(r["table"], r["gamer"]) for r in lake.query.rows("gold.medians")} == groups, (step, happens)
        assert means(lake) == means_of(rows), (step, happens)


def test_only_what_changed_is_read(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it a refresh costs as much as all that ever came: old files are away here, and nobody asks for them."""
    lake, one = Lake(make_query, tmp_path), view()
    lake.take(event("uno", 1), event("chess", 2))
    lake.refresh(one)
    for path in tmp_path.glob("**/silver/*/*.parquet"):
        path.rename(path.with_suffix(".away"))
    lake.take(event("uno", 3))
    assert lake.refresh(one).way == "merge"
    assert {(r["table"], r["sessions"]) for r in lake.gold()} == {("uno", 2), ("chess", 1)}


@pytest.mark.parametrize("few", [16, 0])
def test_columns_are_brought_together_or_named(
    make_query: MakeQuery, tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a view of unlike tables fails with a message of Spark's, or leaves a table out."""
    monkeypatch.setattr(relation, "FEW_FILES", few)  # of more files Arrow reads them
    lake = Lake(make_query, tmp_path)
    place = lake.query.lake.address
    write_deltalake(place("silver.a"), pa.table({"n": pa.array([1], pa.int32()), "x": ["text"]}))
    write_deltalake(place("silver.b"), pa.table({"n": pa.array([2**40]), "x": [1.5], "only": ["b"]}))
    write_deltalake(place("silver.c"), pa.table({"n": pa.array([3], pa.int16()), "part": ["p"]}), partition_by=["part"])
    lake.refresh(view("SELECT table, n, only FROM source", "gold.all"))
    assert {(r["table"], r["n"], r["only"]) for r in lake.gold()} == {
        ("a", 1, None),
        ("b", 2**40, "b"),
        ("c", 3, None),
    }
    write_deltalake(place("silver.a"), pa.table({"n": pa.array([4, None], pa.int32()), "x": ["t", "u"]}), mode="append")
    write_deltalake(place("silver.b"), pa.table({"n": [2**41], "x": [2.5], "only": ["new"]}), mode="append")
    assert lake.refresh(view("SELECT table, n, only FROM source", "gold.all")).way == "rows"
    wanted = {("c", 3, None), ("a", 1, None), ("a", 4, None), ("a", None, None), ("b", 2**40, "b"), ("b", 2**41, "new")}
    assert {(r["table"], r["n"], r["only"]) for r in lake.gold()} == wanted

    for sql in ("SELECT table, x FROM source", "SELECT * FROM source", "SELECT max(x) FROM source"):
        with pytest.raises(ViewError, match=r"x is string in silver.a, and double in silver.b"):
            lake.refresh(view(sql, "gold.other"))
    with pytest.raises(ViewError, match="nothing"):
        lake.refresh(view("SELECT nothing FROM source", "gold.other"))


@pytest.mark.parametrize("name", ["_metadata", "_METADATA"])
def test_a_column_may_have_the_name_of_one_of_spark(make_query: MakeQuery, tmp_path: Path, name: str) -> None:
    """Without it one field of that name, which any producer may send, ends all views of the tables that have it."""
    route = Route(name="games", match=Sql(where="true"), sinks=(Tables(table="silver.{event.game}"),))
    one = view("SELECT table, sum(_metadata) AS total FROM source GROUP BY table", "gold.totals")
    query = make_query(tmp_path, decode=Json(schema=f"game string, {name} int"), routes=(route,), views=(one,))
    for batch in range(2):
        query.take(records([{"game": "uno", name: 2}, {"game": "go", name: 3}], first=2 * batch))
        create_refresher(query.config, query.spark, query.lake, query.store).refresh_view(one)
    assert query.rows("gold.totals") == [{"table": "go", "total": 6}, {"table": "uno", "total": 4}]


def test_a_file_of_any_name_is_read(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it one table with a blank in a file's name, of a foreign writer, ends every refresh."""
    lake = Lake(make_query, tmp_path)
    address = lake.query.lake.address("silver.odd")
    write_deltalake(address, pa.table({"n": [1]}))
    handle = lake.query.open("silver.odd")
    (name,) = (one.rpartition("/")[2] for one in handle.file_uris())
    from pathlib import Path as Disk

    log = Disk(address, "_delta_log", f"{0:020}.json")
    Disk(address, name).rename(Disk(address, "a b%20{c}[1]*.parquet"))
    log.write_text(log.read_text().replace(name, "a%20b%2520%7Bc%7D%5B1%5D*.parquet"))
    lake.refresh(view("SELECT table, n FROM source", "gold.all"))
    assert lake.gold() == [{"table": "odd", "n": 1}]


def test_a_refresh_that_was_cut_off_counts_nothing_twice(
    make_query: MakeQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a kill between commits and note adds the same rows again."""
    lake, one = Lake(make_query, tmp_path), view()
    lake.take(event("uno", 1), event("chess", 2))
    lake.refresh(one)
    lake.take(event("uno", 3), event("chess", 4))
    with monkeypatch.context() as patch:
        patch.setattr(
            "router.engine.views.refresh.Refresher._write_note", lambda *_: (_ for _ in ()).throw(OSError("killed"))
        )
        with pytest.raises(ViewError, match="killed"):
            lake.refresh(one)
    assert lake.refresh(one).way == "full"
    assert told(lake.gold()) == sessions(lake.silver())


def test_tables_of_others_are_left_alone(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it a view overwrites a table that somebody else has made."""
    lake = Lake(make_query, tmp_path)
    lake.take(event("uno", 1))
    write_deltalake(lake.query.lake.address("gold.uno_sessions"), pa.table({"mine": [1]}))
    with pytest.raises(ViewError, match=r"gold.uno_sessions is there, and this view has not made it"):
        lake.refresh(view())
    assert lake.gold() == [{"mine": 1}]


def test_spark_commits_where_it_is_asked_to(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it `commit: spark` has no views."""
    lake, one = Lake(make_query, tmp_path, commit="spark"), view()
    lake.take(event("uno", 1), event("chess", 2))
    assert lake.refresh(one).way == "full"
    assert lake.refresh(one).way == ""
    lake.take(event("uno", 3))
    assert lake.refresh(one).way == "tables"
    assert told(lake.gold()) == sessions(lake.silver())


def test_joins_chains_and_rows_that_name_no_table(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it gold of gold is computed before gold, or billing data cannot be joined."""
    lake = Lake(make_query, tmp_path)
    lake.take(event("uno", 1, 7), event("uno", 2, 8), event("chess", 3, 7))
    write_deltalake(lake.query.lake.address("crm.players"), pa.table({"gamer": [7], "tier": ["../gold"]}))
    players = view(
        "SELECT s.table, s.gamer, p.tier FROM source s LEFT JOIN players p ON s.gamer = p.gamer",
        "gold.with_tier",
        name="tiers",
        tables={"players": "crm.players"},
    )
    top = View.model_validate(
        {"name": "top", "from": {"view": "tiers"}, "sql": "SELECT tier, count(*) AS n FROM source GROUP BY tier",
         "into": "top.{tier}"}
    )  # fmt: skip
    assert [one.name for one in in_order([top, players])] == ["tiers", "top"]
    query = lake.query
    lake.query = Query(query.config.model_copy(update={"views": (top, players)}), query.spark, taken=query.taken)
    assert lake.refresh(players).way == "full"
    assert {(r["table"], r["gamer"], r["tier"]) for r in lake.gold()} == {
        ("uno", 7, "../gold"), ("uno", 8, None), ("chess", 7, "../gold"),
    }  # fmt: skip
    lake.refresh(top)
    note = Note.from_json(lake.query.store.load(view_note_path("top")))
    assert (note.unnamed, [*note.targets]) == (2, [])


PAYING = {"name": "paying", "tables": {"who": "crm.players"}, "sql": "SELECT id, tier FROM who WHERE tier IS NOT NULL"}
LET = (PAYING, {"name": "tiers", "let": ["paying"], "sql": "SELECT tier, count(*) AS payers FROM paying GROUP BY tier"})


def test_views_and_lookups_share_a_query_with_a_name(
    make_query: MakeQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it what several views ask for stands in each of them, or in a table that nobody needs."""
    monkeypatch.setattr(
        loading, "_LOAD_WAIT_SECONDS", 120.0
    )  # a batch waits for the new rows, however slow the machine is
    one = {
        **{"name": "a", "from": "silver.*", "let": ["paying"], "into": "gold.{table}_paid"},
        "sql": "SELECT s.table, p.tier, count(*) AS n FROM source s JOIN paying p ON p.id = s.gamer GROUP BY ALL",
    }
    two = {"name": "b", "from": "silver.*", "let": ["tiers"], "into": "gold.tiers", "sql": "SELECT * FROM tiers"}
    route: dict[str, Any] = {"name": "r", "match": {"sql": "true"}, "sinks": [{"tables": "silver.{event.game}"}]}
    route |= {"lookup": [{"name": "payer", "let": "paying", "on": {"id": "event.gamer"}, "every": "1 ms"}]}
    file = tmp_path / "let.yaml"
    given = {"let": [*LET], "routes": [route], "views": [one, two], "name": "games", "lake": "./lake"}
    given |= {"source": {"files": {"path": "./in"}}, "decode": {"json": {"schema": SCHEMA}}, "dead_letters": "ops.dead"}
    file.write_text(yaml.safe_dump(given | {"routes": [{**route, "select": ["event.*", "payer.tier"]}]}))
    config = load_config(file, load_registry(())).config
    a, b = config.views
    write_deltalake(tmp_path / "lake/crm/players", pa.table({"id": [1, 2, 3], "tier": ["gold", None, "gold"]}))
    lake = Lake(make_query, tmp_path)
    lake.query = make_query(tmp_path, decode=Json(schema=SCHEMA), routes=config.routes, views=config.views)
    lake.take(event("uno", 1, 1), event("uno", 2, 2), event("go", 3, 9))
    assert [(row["id"], row.get("tier")) for row in lake.query.rows("silver.uno")] == [(1, "gold"), (2, None)]
    refresher = lake.refresher  # one that goes on, with its session
    assert [(refresher.refresh_view(each).way, each.joined_tables) for each in (a, b)] == [
        ("full", {"crm.players"})
    ] * 2
    assert lake.query.rows("gold.uno_paid") == [{"table": "uno", "tier": "gold", "n": 1}]
    assert lake.query.rows("gold.tiers") == [{"tier": "gold", "payers": 2}]
    assert refresher.plan_view(b).why == "it reads tiers in place of `source`"

    write_deltalake(tmp_path / "lake/crm/players", pa.table({"id": [2], "tier": ["free"]}), mode="append")
    lake.take(event("uno", 4, 2))
    assert {row["id"]: row["tier"] for row in lake.query.rows("silver.uno")}[4] == "free"
    assert [refresher.refresh_view(each).way for each in (a, b)] == ["full", "full"]
    assert {row["tier"]: row["payers"] for row in lake.query.rows("gold.tiers")} == {"gold": 2, "free": 1}

    for key, wrong, said in (
        ("views", [{**one, "let": ["payin"]}], "no query of `let` is called payin, or none before this one"),
        ("let", [LET[1], PAYING], "no query of `let` is called paying, or none before this one"),
        ("let", [PAYING, PAYING, LET[1]], "the query at line .* has the same name"),
    ):
        file.write_text(yaml.safe_dump({**given, key: wrong}))
        with pytest.raises(ConfigError, match=said):
            load_config(file, load_registry(()))
    bad = View.model_validate({**one, "let": [{**PAYING, "sql": "SELECT nothing FROM who"}]})
    with pytest.raises(ViewError, match="nothing"):
        lake.refresh(bad)


def test_the_plan_says_which_way_and_why(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it nobody knows why a refresh reads everything."""
    lake = Lake(make_query, tmp_path)
    lake.take(event("uno", 1))
    ways = {
        SESSIONS: ("merge", "can be merged"),
        "SELECT table, avg(amount) AS a FROM source GROUP BY table": ("keys", "if `count` of the same is a column"),
        "SELECT table, avg(amount) AS a, count(id) AS n FROM source GROUP BY table": ("keys", "a cannot be merged"),
        MEANS: ("merge", "can be merged"),
        "SELECT count(DISTINCT gamer) AS n, table FROM source GROUP BY table": ("keys", "n cannot be merged"),
        "SELECT count(*) AS n, gamer FROM source GROUP BY gamer, table": (
            "full",
            "an expression that is none of its columns",
        ),
        "SELECT table, count(*) AS n FROM source GROUP BY table HAVING count(*) > 1": ("tables", "filtered"),
        "SELECT table, id FROM source": ("rows", "table"),
        "SELECT id FROM source": ("full", "no column"),
        "SELECT table, id, now() AS at FROM source": ("full", "time"),
        "SELECT table, rand() AS r FROM source": ("full", "random"),
        "SELECT table, row_number() OVER (PARTITION BY table ORDER BY id) AS r FROM source": ("full", "Window"),
        "SELECT table, id FROM source WHERE id = (SELECT max(id) FROM source)": ("full", "subquery"),
        "SELECT DISTINCT table FROM source": ("full", "Distinct"),
    }
    found = {sql: lake.refresher.plan_view(view(sql, "gold.x")) for sql in ways}
    assert {sql: plan.way for sql, plan in found.items()} == {sql: way for sql, (way, _) in ways.items()}
    assert all(why in found[sql].why for sql, (_, why) in ways.items()), {p.why for p in found.values()}
    assert lake.refresher.plan_view(view(refresh="full")).way == "full"


WIDE = ", ".join(f"id + {number} AS c{number}" for number in range(30))
WIDE_GROUPS = ", ".join(f"max(id + {number}) AS c{number}" for number in range(30))
LATEST = {"name": "latest", "tables": {"who": "crm.players"}}
CHANGES_BY_ITSELF = {
    "a wide view": view(f"SELECT table, {WIDE}, current_timestamp() AS ts FROM source", "gold.x"),
    "wide groups": view(f"SELECT table, {WIDE_GROUPS}, now() AS ts FROM source GROUP BY table", "gold.x"),
    "a wide filter": view(f"SELECT table, {WIDE} FROM source WHERE id > unix_timestamp()", "gold.x"),
    "a subquery": view("SELECT table, id FROM source WHERE id < (SELECT unix_timestamp())", "gold.x"),
    "a common table expression": view(
        "WITH days AS (SELECT table, current_date() AS day FROM source) SELECT * FROM days", "gold.x"
    ),
    "a lambda": view("SELECT table, transform(array(id), x -> x + unix_timestamp()) AS ids FROM source", "gold.x"),
    "a query of let": view(
        "SELECT s.table, p.ts FROM source s JOIN latest p ON p.gamer = s.gamer",
        "gold.x",
        let=({**LATEST, "sql": "SELECT gamer, localtimestamp() AS ts FROM who"},),
    ),
    "a typed literal in a query of let": view(
        "SELECT s.table, p.day FROM source s JOIN latest p ON p.gamer = s.gamer",
        "gold.x",
        let=({**LATEST, "sql": "SELECT gamer, date 'today' AS day FROM who"},),
    ),
    "an expectation": view(expect=({"name": "new", "sql": "first > unix_timestamp() - 60", "otherwise": "drop"},)),
    "a cast": view("SELECT table, CAST('now' AS timestamp) AS ts FROM source", "gold.x"),
    "a function that is a cast": view("SELECT table, to_date(' Today') AS day FROM source", "gold.x"),
    "a typed literal": view("SELECT table, id FROM source WHERE TIMESTAMP 'now' > '2020-01-01'", "gold.x"),
    "the user": view("SELECT table, current_user() AS name FROM source", "gold.x"),
    "the zone of the session": view("SELECT table, current_timezone() AS zone FROM source", "gold.x"),
    "a random number": view("SELECT table, rand() AS r FROM source", "gold.x"),
    "random numbers of a range": view("SELECT table, uniform(1, 9) AS r FROM source", "gold.x"),
    "a random identity": view("SELECT table, uuid() AS id FROM source", "gold.x"),
    "random order": view("SELECT table, shuffle(array(id, gamer)) AS ids FROM source", "gold.x"),
    "a sample": view("SELECT table, id FROM source TABLESAMPLE (50 PERCENT)", "gold.x"),
    "a method of Java": view("SELECT table, reflect('java.lang.System', 'nanoTime') AS n FROM source", "gold.x"),
}


@pytest.fixture(scope="module")
def lake_of_players(make_query: MakeQuery, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return a lake with one game and the table crm.players."""
    lake = Lake(make_query, tmp_path_factory.mktemp("players"))
    lake.take(event("uno", 1))
    write_deltalake(lake.query.lake.address("crm.players"), pa.table({"gamer": [1]}))
    return lake


@pytest.mark.parametrize("name", CHANGES_BY_ITSELF)
def test_a_view_whose_values_change_by_themselves_is_computed_every_time(lake_of_players: Lake, name: str) -> None:
    """Without it gold shows the time, or the user, of the day on which a source changed last."""
    plan = lake_of_players.refresher.plan_view(CHANGES_BY_ITSELF[name])
    assert (plan.way, plan.shape.timed) == ("full", True), plan.why


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT table, 'now()' AS text, 'current_date()' AS other, CAST('2020-01-01' AS date) AS day FROM source",
        "SELECT table, id AS `current_user()`, 'uuid()' AS `rand()` FROM source",
        "SELECT table, CAST(table AS date) AS day, to_timestamp(table) AS ts FROM source",
    ],
)
def test_a_view_that_only_names_such_functions_is_not(lake_of_players: Lake, sql: str) -> None:
    """Without it a text in a query makes every refresh read everything."""
    plan = lake_of_players.refresher.plan_view(view(sql, "gold.x"))
    assert (plan.way, plan.shape.timed) == ("rows", False), plan.why


def test_a_wide_view_of_the_time_follows_the_time(lake_of_players: Lake) -> None:
    """Without it the 31st column keeps the time of the first refresh."""
    one = CHANGES_BY_ITSELF["a wide view"].model_copy(update={"into": "gold.wide"})
    assert lake_of_players.refresh(one).commits == ("gold.wide",)
    (before,) = lake_of_players.query.rows("gold.wide", "ts")
    assert lake_of_players.refresh(one).commits == ("gold.wide",)
    (after,) = lake_of_players.query.rows("gold.wide", "ts")
    assert after["ts"] > before["ts"]


def test_what_must_hold_of_rows_is_counted_dropped_or_stops_the_refresh(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it gold has rows that nobody trusts, and nobody knows how many."""
    lake = Lake(make_query, tmp_path)
    known = {"name": "known", "sql": "gamer IS NOT NULL", "otherwise": "drop"}
    many = {"name": "many", "sql": "sessions > 1"}
    one = view(expect=(known, many))
    lake.take(event("uno", 1), event("uno", 2), event("uno", 3, None), event("chess", 4, 2))
    lake.refresh(one)
    note = lake.refresher.read_note(one)
    assert {(r["table"], r["gamer"]) for r in lake.gold()} == {("uno", 1), ("chess", 2)}
    assert (note.violation_counts, note.checked_rows) == ({"known": 1, "many": 2}, 3)
    config = lake.query.config.model_copy(update={"views": (one,)})
    counted = [(c.of, c.expectation.name, c.events, c.violated, c.trend[-1]) for c in expectation_counts(config)]
    assert counted == [("view sessions", "known", 3, 1, (3, 1)), ("view sessions", "many", 3, 2, (3, 2))]
    lake.take(event("uno", 5, None))
    assert lake.refresh(one).way == "keys"
    assert {(r["table"], r["gamer"]) for r in lake.gold()} == {("uno", 1), ("chess", 2)}
    strict = view(expect=({**known, "otherwise": "fail"},))
    versions, files = lake.versions(), set(tmp_path.glob("**/gold/*/*.parquet"))
    with pytest.raises(ViewError, match="expectations do not hold: known on 1 rows; no table was changed"):
        lake.refresh(strict)
    assert (lake.versions(), set(tmp_path.glob("**/gold/*/*.parquet"))) == (versions, files)
    with pytest.raises(ViewError, match=r"its expectation typo: .*nothing"):
        lake.refresh(view(expect=({"name": "typo", "sql": "nothing > 1"},)))


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("CAST(unhex('FF') AS string)", "the text is not UTF-8"),
        ("date_add(DATE'9999-12-31', 1)", "the date is not within the years 1 to 9999"),
    ],
)
def test_a_view_with_a_value_that_readers_refuse_leaves_its_tables_as_they_were(
    make_query: MakeQuery, tmp_path: Path, value: str, fault: str
) -> None:
    """Without it one row of a source makes a table unreadable for delta-rs and pyarrow."""
    lake = Lake(make_query, tmp_path)
    lake.take(event("uno", 1))
    sql = "SELECT gamer, IF(gamer = 2, {}, NULL) AS value FROM source"
    one = view(sql=sql.format(value), into="gold.values")
    lake.refresh(one)
    lake.take(event("uno", 2, 2))
    files = set(tmp_path.glob("**/gold/*/*.parquet"))
    with pytest.raises(ViewError, match=rf"readers would refuse gold.values: value: {fault}; no table was changed"):
        lake.refresh(one)
    assert set(tmp_path.glob("**/gold/*/*.parquet")) == files
    assert [row["gamer"] for row in lake.query.rows("gold.values", "gamer")] == [1]


PAIR = pa.struct({"a": pa.int64(), "b": pa.int64()})
LISTS = pa.struct({"a": pa.list_(pa.int64()), "b": pa.list_(pa.int64())})
TEXTS = pa.struct({"a": pa.string(), "b": pa.string()})
SAME_BUT = {
    "a null elsewhere in a struct": (PAIR, {"a": None, "b": 5}, {"a": 5, "b": None}),
    "a struct of nulls": (PAIR, None, {"a": None, "b": None}),
    "a null elsewhere in an array": (pa.list_(pa.int64()), [None, 5], [5, None]),
    "an empty array": (pa.list_(pa.int64()), None, []),
    "arrays that run together": (LISTS, {"a": [1], "b": [2]}, {"a": [1, 2], "b": []}),
    "arrays of arrays": (pa.list_(pa.list_(pa.int64())), [[1], [2]], [[1, 2]]),
    "texts that run together": (TEXTS, {"a": "a", "b": "bc"}, {"a": "ab", "b": "c"}),
    "an empty text": (pa.string(), None, ""),
    "empty bytes": (pa.binary(), None, b""),
    "a negative zero": (pa.float64(), 0.0, -0.0),
}


@pytest.mark.parametrize("name", SAME_BUT)
def test_rows_that_changed_a_little_reach_a_view(lake_of_players: Lake, name: str) -> None:
    """Without it gold keeps the former rows for ever: their hashes are alike."""
    kind, before, after = SAME_BUT[name]
    source = "silver." + name.replace(" ", "_")
    one = View.model_validate({"name": "values", "from": source, "sql": "SELECT v FROM source", "into": "gold.values"})
    for value in (before, after):
        rows = pa.table({"v": pa.array([value], kind)})
        write_deltalake(lake_of_players.query.lake.address(source), rows, mode="overwrite")
        lake_of_players.refresh(one)
        assert repr(lake_of_players.query.rows("gold.values")) == repr([{"v": value}])
    lake_of_players.query.store.delete(view_note_path("values"))
    shutil.rmtree(lake_of_players.query.lake.address("gold.values"))


def test_rows_that_came_twice_are_other_rows(lake_of_players: Lake) -> None:
    """Without it two equal rows count as none, or as one."""
    one = View.model_validate(
        {"name": "twice", "from": "silver.twice", "sql": "SELECT v FROM source", "into": "gold.twice"}
    )
    for values in ([1, 1, 2], [2, 2, 1], [2], [2, 1, 1, 1, 1], [2, 1, 1]):
        rows = pa.table({"v": values})
        write_deltalake(lake_of_players.query.lake.address("silver.twice"), rows, mode="overwrite")
        lake_of_players.refresh(one)
        assert Counter(row["v"] for row in lake_of_players.query.rows("gold.twice")) == Counter(values)


NUMBER = st.none() | st.integers(0, 1)
TEXT = st.none() | st.sampled_from(["", "a", "ab", "b"])
FLOAT = st.none() | st.sampled_from([0.0, -0.0, 1.0, float("nan")])
BYTES = st.none() | st.sampled_from([b"", b"a", b"\x00", b"\x00\x00"])
NUMBERS = st.none() | st.lists(NUMBER, max_size=2)
NESTED = {
    "a": (pa.int64(), NUMBER),
    "b": (pa.int64(), NUMBER),
    "text": (pa.string(), TEXT),
    "bytes": (pa.binary(), BYTES),
    "lists": (pa.list_(pa.list_(pa.int64())), st.none() | st.lists(NUMBERS, max_size=2)),
    "more": (
        pa.list_(pa.struct({"x": pa.float64(), "y": pa.struct({"p": pa.string(), "q": pa.list_(pa.int64())})})),
        st.none()
        | st.lists(
            st.none()
            | st.fixed_dictionaries({"x": FLOAT, "y": st.none() | st.fixed_dictionaries({"p": TEXT, "q": NUMBERS})}),
            max_size=2,
        ),
    ),
    "map": (
        pa.map_(pa.string(), pa.list_(pa.int64())),
        st.none() | st.dictionaries(st.sampled_from(["", "a", "b"]), NUMBERS, max_size=2),
    ),
}
ROWS = st.lists(st.fixed_dictionaries({name: values for name, (_, values) in NESTED.items()}), min_size=1, max_size=60)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(rows=ROWS)
def test_rows_have_one_hash_if_they_are_the_same(spark: SparkSession, rows: list[dict[str, Any]]) -> None:
    """Without it a change somewhere inside a nested value is none."""
    columns = {}
    for name, (kind, _) in NESTED.items():
        values = [row[name] for row in rows]
        if name == "map":
            values = [None if value is None else [*value.items()] for value in values]
        columns[name] = pa.array(values, kind)
    frame = spark.createDataFrame(pa.table(columns))
    hashes = [row["hash"] for row in frame.select(row_hash(frame).alias("hash")).collect()]
    # Maps are the same in any order of their entries; everything else is written as it is, -0.0 and nan included.
    texts = [repr({**row, "map": row["map"] and sorted(row["map"].items())}) for row in rows]
    assert len(hashes) == len(rows)
    assert len({*zip(texts, hashes, strict=True)}) == len({*texts}) == len({*hashes})


def test_texts_that_a_collation_takes_for_equal_are_other_rows(spark: SparkSession) -> None:
    """Without it a name in other letters never reaches gold."""
    frame = spark.sql("SELECT name COLLATE UTF8_LCASE AS name FROM VALUES ('Uno'), ('UNO'), ('UNO') AS t(name)")
    assert frame.select(row_hash(frame)).distinct().count() == 2


def test_a_table_with_maps_gets_no_commit_for_the_same_rows(lake_of_players: Lake) -> None:
    """Without it readers of gold see a change at each refresh, where nothing has changed."""
    one = view("SELECT table, map('a', id, 'b', NULL) AS m FROM source", "gold.maps", name="maps")
    assert lake_of_players.refresh(one).commits == ("gold.maps",)
    assert lake_of_players.refresh(one, full=True).commits == ()


PLUGIN = '''
from pyspark.sql import functions as F
from router import ViewQuery, hookimpl


class Totals(ViewQuery):
    """Add up the amounts of each gamer."""

    least: int = 1

    def rows(self, source, tables):
        return source.filter(F.col("id") >= self.least).groupBy("table", "gamer").agg(F.sum("amount").alias("total"))


@hookimpl
def router_views():
    return {"totals": Totals}
'''


def test_a_view_in_python_follows_like_one_in_sql(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it what SQL cannot say well is a notebook again."""
    plugin, file = tmp_path / "totals.py", tmp_path / "views.yaml"
    plugin.write_text(PLUGIN)
    file.write_text(FILE + "  - {name: a, from: silver.*, query: {totals: {least: 2}}, into: 'top.{table}'}")
    (one,) = load_config(file, load_registry((plugin,))).config.views
    lake = Lake(make_query, tmp_path)
    lake.take(event("uno", 1), event("uno", 2), event("uno", 3))
    assert lake.refresh(one).way == "full"
    lake.take(event("uno", 4, 2, 0.5))
    assert lake.refresh(one).way == "merge"
    assert [(r["gamer"], r["total"]) for r in lake.query.rows("top.uno")] == [(1, 2.0), (2, 0.5)]
    plugin.write_text(PLUGIN.replace("least:", "other:"))
    with pytest.raises(ConfigError, match="least"):
        load_config(file, load_registry((plugin,)))


def test_a_schedule_refreshes_after_batches_and_goes_on_after_faults(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it one broken view keeps the others from their rows, or the stream from ending."""
    good = view(after="2 commits")
    bad = view("SELECT nothing FROM source", "gold.bad", name="bad")
    lake = Lake(make_query, tmp_path, good, bad)
    board = StatusBoard("games")
    board._views = {one.name: ViewStatus(one.name, one.into) for one in (good, bad)}
    schedule = ViewSchedule(lake.refresher, in_order([bad, good]), observer=board)
    lake.take(event("uno", 1))
    assert schedule.count_batch({"silver.uno"}) == set()
    assert not schedule._is_due(good)
    schedule.count_batch({"silver.other"})
    schedule.count_batch({"silver.uno"})
    assert schedule._is_due(good)
    schedule.end_thread(refresh=True)
    assert told(lake.gold()) == sessions(lake.silver())
    assert schedule.count_batch(set()) == {"gold.uno_sessions"}
    assert "nothing" in str(schedule.failed["bad"])
    seen = {one.view: one for one in board.snapshot().views}
    assert (seen["sessions"].targets, seen["sessions"].failed) == (("gold.uno_sessions",), "")
    assert "nothing" in seen["bad"].failed

    afterwards = {status.view: status for status in views_of_lake(lake.query.config)}
    assert (afterwards["sessions"].failed, afterwards["sessions"].failed_since) == ("", None)
    assert "nothing" in afterwards["bad"].failed, "whoever looks after the run sees it"
    assert time.time() - 600 < (afterwards["bad"].failed_since or 0) <= time.time()


def test_a_failure_of_a_view_ends_with_a_refresh_that_finds_nothing_new(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it a view that was mended looks broken until a row comes, which may be next week."""
    good = view()
    lake = Lake(make_query, tmp_path, good)
    lake.take(event("uno", 1))
    lake.refresh(good)
    made = lake.refresher.read_note(good)
    note_failed_refresh(lake.query.store, good.name, "no room")
    note_failed_refresh(lake.query.store, good.name, "no rights")
    noted = lake.refresher.read_note(good)
    assert (noted.failed, noted.targets) == ("no rights", made.targets)
    assert lake.refresh(good).way == ""
    assert lake.refresher.read_note(good) == made


def test_a_lake_that_cannot_be_listed_does_not_stop_a_batch(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it a fault of storage, at a moment when only a view looks, restarts the query."""
    one = view(after="1 commit")
    lake = Lake(make_query, tmp_path, one)
    lake.take(event("uno", 1))
    schedule = ViewSchedule(lake.refresher, [one])
    folder = tmp_path / "lake"
    folder.rename(tmp_path / "away")
    folder.symlink_to(folder)  # listing the lake raises OSError

    assert schedule.count_batch({"silver.uno"}) == set()
    assert schedule._is_due(one)
    schedule._try_refresh(one)
    assert "sessions" in schedule.failed

    folder.unlink()
    (tmp_path / "away").rename(folder)
    schedule.end_thread(refresh=True)
    assert told(lake.gold()) == sessions(lake.silver())
    assert schedule.failed == {}


FILE = """
name: games
lake: ./lake
source: {files: {path: ./in}}
decode: {json: {schema: "game string"}}
routes:
  - {name: games, match: {sql: "true"}, sinks: [{tables: "silver.{event.game}"}, {delta: gold.all}]}
dead_letters: ops.dead
views:
"""


GOLD = "  - {name: a, sql: x, into: 'gold.{table}_x', from: "


@pytest.mark.parametrize(
    ("views", "said"),
    [
        (GOLD + "{route: game}}", "views.0.from.route: there is no such route"),
        (GOLD + "{view: b}}", "views.0.from.view: there is no such view"),
        ("  - {name: a, from: silver.*, sql: x, into: gold.all}", "views.0.into: it could name a table of the route"),
        ("  - {name: a, from: silver.*, sql: x, into: ops.dead}", "views.0.into: it could name a table of `dead"),
        ("  - {name: a, from: gold.b, sql: x, into: gold.a}\n  - {name: b, from: {view: a}, sql: x, into: gold.b}",
         "in a circle: a -> b -> a"),
        ("  - {name: a, from: silver.*, sql: x, into: gold.x, every: 1 s, after: 1 commit}", "give one of every"),
        ("  - {name: a, from: {}, sql: x, into: gold.x}", "exactly one of route, view, tables"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_with_its_place(tmp_path: Path, views: str, said: str) -> None:
    """Without it a view that can never be refreshed is found out at night."""
    file = tmp_path / "views.yaml"
    file.write_text(FILE + views)
    with pytest.raises(ConfigError) as caught:
        load_config(file, load_registry(()))
    assert said in str(caught.value)


def test_a_run_that_ends_leaves_gold_behind(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a nightly job needs a second one for its views, and nobody sees what a table is made of."""
    file = tmp_path / "games.yaml"
    file.write_text(
        FILE.replace("game string", "game string, id long").replace(", {delta: gold.all}", "")
        + "  - {name: top, from: {view: counts}, sql: SELECT max(n) AS n FROM source, into: gold.top}\n"
        + "  - {name: counts, from: {route: games}, sql: 'SELECT table, count(*) AS n FROM source GROUP BY table', "
        + "into: gold.counts}\n"
        + "  - {name: asked, from: silver.uno, sql: SELECT id FROM source, into: gold.asked, on_demand: true}\n"
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(
        '{"game": "uno", "id": 1}\n{"game": "uno", "id": 2}\n{"game": "go", "id": 3}\n'
    )
    loaded = load_config(file, load_registry(())).with_fields(lake=str(tmp_path / "lake"))
    loaded = loaded.with_fields(source=loaded.config.source.model_copy(
        update={"files": loaded.config.source.files.model_copy(update={"path": str(tmp_path / "in")})}  # type: ignore[union-attr]
    ))  # fmt: skip
    run(loaded, load_registry(()), spark, RunOptions(trigger=Trigger(once=True)))
    lake = lake_and_checkpoint(loaded.config)[0]
    assert not lake.table_names("gold") or set(lake.table_names("gold")) == {"gold.counts", "gold.top"}
    assert lake.open("gold.top").to_pyarrow_table().to_pylist() == [{"n": 2}]  # type: ignore[union-attr]

    def said(*words: str) -> str:
        found = CliRunner().invoke(router.cli.commands, [words[0], str(file), *words[1:]], prog_name="router")
        assert found.exit_code == 0, found.output
        return found.stdout

    file.write_text(file.read_text().replace("./lake", str(tmp_path / "lake")))
    assert "counts" in said("views")
    tree = said("graph", "--lake")
    assert "view counts into gold.counts  2 rows in 1 tables" in tree
    lines = [line.lstrip("│ ├└─").partition("  ")[0] for line in said("graph", "--table", "silver.uno").splitlines()]
    chain = ["silver.uno", "view counts into gold.counts", "gold.counts", "view top into gold.top", "gold.top"]
    assert lines[-6:] == [*chain, "view asked into gold.asked"]


def lose(table: Path, loss: str) -> None:
    """Let a table's folder be gone, made again with one row, or unreadable; it is kept beside."""
    kept = table.with_name(f"_{table.name}")
    table.rename(kept)
    if loss == "made again":
        write_deltalake(str(table), pa.table({"game": ["uno"], "id": [9], "gamer": [1], "amount": [1.0]}))
    if loss == "unreadable":
        shutil.copytree(kept, table)
        for log in table.glob("_delta_log/*"):
            log.write_text("no log")


@pytest.mark.parametrize("loss", ["gone", "made again", "unreadable"])
def test_a_view_keeps_the_rows_of_a_lost_source_until_that_is_accepted(
    make_query: MakeQuery, tmp_path: Path, loss: str
) -> None:
    """Without it gold shrinks with silver, at night, and says so to nobody."""
    one = view()
    lake = Lake(make_query, tmp_path, one)
    lake.take(event("uno", 1), event("uno", 2), event("chess", 3))
    lake.refresh(one)
    before = told(lake.gold())
    lose(tmp_path / "lake/silver/uno", loss)
    for full in (False, True):
        with pytest.raises(ViewError, match=r"silver\.uno.*--accept lost-sources"):
            lake.refresh(one, full=full)
    assert told(lake.gold()) == before

    file = tmp_path / "games.yaml"
    definition = one.model_dump(mode="json", by_alias=True, include={"name", "source", "sql", "into"})
    file.write_text(FILE.replace("./lake", str(tmp_path / "lake")) + f"  - {json.dumps(definition)}")

    def accept(*views: str) -> int:
        return (
            CliRunner().invoke(router.cli.commands, ["views", str(file), *views, "--accept", "lost-sources"]).exit_code
        )

    assert accept("unknown") == 2
    with pytest.raises(ViewError):
        lake.refresh(one)
    assert accept(one.name) == 0
    assert lake.refresh(one).way != ""
    remaining = {("chess", 1), ("uno", 1)} if loss == "made again" else {("chess", 1)}
    assert {(row["table"], row["sessions"]) for row in lake.gold()} == remaining
    assert lake.refresh(one).way == ""

    assert accept() == 2, "no source is missing"
    # What was accepted once does not count for a later loss.
    lose(tmp_path / "lake/silver/chess", "gone")
    with pytest.raises(ViewError, match=r"silver\.chess"):
        lake.refresh(one)


def test_a_source_that_is_back_needs_no_acceptance(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it a folder that was away for an hour needs somebody, or is counted twice."""
    lake, one = Lake(make_query, tmp_path), view()
    lake.take(event("uno", 1), event("chess", 3))
    lake.refresh(one)
    folder = tmp_path / "lake/silver/uno"
    lose(folder, "gone")
    with pytest.raises(ViewError):
        lake.refresh(one)
    folder.with_name("_uno").rename(folder)
    lake.take(event("uno", 4))
    assert lake.refresh(one).way == "merge"
    assert told(lake.gold()) == sessions(lake.silver())


def test_a_table_that_leaves_a_view_by_its_configuration_is_not_lost(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it `except` needs an acceptance, too."""
    lake = Lake(make_query, tmp_path)
    lake.take(event("uno", 1), event("chess", 3))
    lake.refresh(view())
    lose(tmp_path / "lake/silver/uno", "gone")
    less = view(**{"from": {"tables": ["silver.*"], "except": ["silver.uno"]}})
    assert lake.refresh(less).way == "full"
    assert {row["table"] for row in lake.gold()} == {"chess"}


def test_a_joined_table_that_is_gone_is_named(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it a view stands still, and nothing says so."""
    lake = Lake(make_query, tmp_path)
    lake.take(event("uno", 1))
    address = lake.query.lake.address("crm.players")
    one = view(
        "SELECT s.table, p.gamer FROM source s JOIN players p ON p.gamer = s.gamer", tables={"players": "crm.players"}
    )
    assert lake.refresh(one).why == "crm.players is not there yet"
    write_deltalake(address, pa.table({"gamer": [1]}))
    assert lake.refresh(one).commits == ("gold.uno_sessions",)
    shutil.rmtree(address)
    with pytest.raises(ViewError, match=r"crm\.players"):
        lake.refresh(one)
    assert lake.gold() == [{"table": "uno", "gamer": 1}]
