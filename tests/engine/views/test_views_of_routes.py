"""A view of a route has the tables that the route's sinks write, whatever other tables are called alike."""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import CommitProperties, Transaction, write_deltalake

import router.cli
from router.config.loader import load_config
from router.config.models import Route, View
from router.engine.audit.table_states import table_states
from router.engine.audit.verify import verify_tables
from router.engine.spark import session
from router.engine.views.note import Note, view_note_path
from router.engine.views.recompute import find_differences
from router.engine.views.schedule import create_refresher
from router.errors import ViewError
from router.registry import load_registry
from router_decoders import Json
from router_rules import Sql
from router_sinks import Delta, Tables
from tests.engine.query import Query, records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.engine.views.refresh import RefreshedView
    from tests.engine.conftest import MakeQuery

SCHEMA = "game string, id long, gamer long"
COUNTS = View.model_validate(
    {
        "name": "counts",
        "from": {"route": "games"},
        "sql": "SELECT table, count(*) AS n FROM source GROUP BY table",
        "into": "gold.counts",
    }
)


def route(name: str, where: str, template: str = "silver.{event.game}") -> Route:
    """Return a route with one sink."""
    sink = Tables(table=template) if "{" in template else Delta(table=template)
    return Route(name=name, match=Sql(where=where), sinks=(sink,))


def refresh(query: Query, view: View = COUNTS) -> RefreshedView:
    """Refresh a view as a new process would."""
    return create_refresher(query.config, query.spark, query.lake, query.store).refresh_view(view)


def counts(query: Query) -> dict[str, int]:
    """Return the rows of each table, as the view has counted them."""
    return {row["table"]: row["n"] for row in query.rows("gold.counts")}


@pytest.fixture
def two_routes(make_query: MakeQuery, tmp_path: Path) -> Query:
    """Return a query of two routes whose tables are named alike, with a table of each."""
    routes = (route("games", "event.gamer = 1"), route("others", "event.gamer = 2"))
    query = make_query(tmp_path, decode=Json(schema=SCHEMA), routes=routes, views=(COUNTS,))
    query.take(records([{"game": "uno", "id": 1, "gamer": 1}, {"game": "chess", "id": 2, "gamer": 2}]))
    return query


def test_tables_of_another_route_are_not_counted(two_routes: Query) -> None:
    """Without it gold counts rows that its route never had."""
    continuing = create_refresher(two_routes.config, two_routes.spark, two_routes.lake, two_routes.store)
    continuing.refresh_view(COUNTS)
    assert counts(two_routes) == {"uno": 1}

    # The route writes into the table of the other one: now it has it, in the process that has seen it before, too.
    two_routes.take(records([{"game": "chess", "id": 3, "gamer": 1}], first=2))
    continuing.refresh_view(COUNTS)
    assert counts(two_routes) == {"uno": 1, "chess": 2}


def test_a_copy_of_a_table_is_not_counted(two_routes: Query) -> None:
    """Without it a copy that somebody makes in the lake doubles gold."""
    folder = two_routes.folder / "lake/silver"
    shutil.copytree(folder / "uno", folder / "uno_before")
    refresh(two_routes)
    assert counts(two_routes) == {"uno": 1}


def test_a_table_whose_commits_were_deleted_is_counted(two_routes: Query) -> None:
    """Without it a table leaves gold an hour after its last row: maintenance cleans its log."""
    write_deltalake(
        two_routes.lake.address("silver.uno"), pa.table({"game": ["uno"], "id": [9], "gamer": [1]}), mode="append"
    )
    for table in ("silver.uno", "silver.chess"):
        handle = two_routes.open(table)
        handle.create_checkpoint()
        for version in range(handle.version()):
            (two_routes.folder / "lake" / table.replace(".", "/") / f"_delta_log/{version:020}.json").unlink()
    refresh(two_routes)
    assert counts(two_routes) == {"uno": 2}


REPAIRED_BY_SPARK = "games:run-1/repair"
IDS: dict[str, tuple[str, bool]] = {
    "stream": ("games:run-1/games/tables/{table}", True),
    "replay": ("games:replay-7/games/tables/{table}", True),
    "release": ("games:run-1/release/games/tables/{table}", True),
    "unblock": ("games:run-1/unblock/games/tables/{table}", True),
    "held": ("games:replay-7/held/games/tables/{table}", True),
    "others": ("games:run-1/others/tables/{table}", False),
    "release_of_others": ("games:run-1/release/others/tables/{table}", False),
    "former_sink": ("games:run-1/games/upsert/{table}", False),
    "other_query": ("plays:run-1/games/tables/{table}", False),
    "other_table": ("games:run-1/games/tables/silver.another", False),
    "deletions": ("games:run-1/games/tables/{table}/deletions", False),
    "repair": (REPAIRED_BY_SPARK, True),
    "somebody": ("a notebook", False),
}


def write_with(query: Query, table: str, app_id: str, notes: dict[str, str] | None = None) -> None:
    """Append a row to a table under a transaction id."""
    properties = CommitProperties(custom_metadata=notes, app_transactions=[Transaction(app_id, 1)])
    address = query.lake.address(table)
    write_deltalake(address, pa.table({"id": [1]}), mode="append", commit_properties=properties)


def sources(query: Query) -> set[str]:
    """Return the tables that the view reads, as a new process finds them."""
    return {*create_refresher(query.config, query.spark, query.lake, query.store).tables.open_sources(COUNTS).tables}


def test_the_ids_of_all_runs_tell_whose_a_table_is(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it rows of a replay, or those that left the quarantine, are in no view."""
    routes = (route("games", "event.gamer = 1"), route("others", "event.gamer = 2"))
    query = make_query(tmp_path, decode=Json(schema=SCHEMA), routes=routes)
    for name, (app_id, _) in IDS.items():
        write_with(query, f"silver.{name}", app_id.format(table=f"silver.{name}"))
    for writer in ("games", "others"):
        notes = {"router.query": "games:run-1", "router.repaired": json.dumps({f"{writer}/tables": 3})}
        write_with(query, f"silver.repaired_{writer}", REPAIRED_BY_SPARK, notes)
    wanted = {f"silver.{name}" for name, (_, is_source) in IDS.items() if is_source}
    assert sources(query) == {*wanted, "silver.repaired_games"}


MOVED = """
name: games
lake: {lake}
source: {{files: {{path: ./in}}}}
decode: {{json: {{schema: "{schema}"}}}}
routes:
  - name: games
    match: {{sql: "true"}}
    sinks:
      - {{tables: "silver.{{event.game}}"}}
      - {{upsert: {{table: {table}, keys: [id]}}}}
dead_letters: ops.dead
views:
  - {{name: counts, from: {{route: games}}, into: gold.counts,
      sql: "SELECT table, count(*) AS n FROM source GROUP BY table"}}
"""


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings since the last call."""
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    return texts


def test_a_table_that_a_sink_has_left_is_named_and_not_counted(
    make_query: MakeQuery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it gold counts every order twice after an upsert has got a new table, and says so to nobody."""
    file = tmp_path / "games.yaml"

    def configured(table: str) -> Query:
        file.write_text(MOVED.format(lake=tmp_path / "lake", schema=SCHEMA, table=table))
        config = load_config(file, load_registry(())).config
        return make_query(tmp_path, decode=Json(schema=SCHEMA), routes=config.routes, views=config.views)

    def take(query: Query, events: Iterable[dict[str, Any]], batch: int) -> None:
        query.taken.update(dict.fromkeys(range(batch), pa.table({})))
        query.take(records(events, first=10 * batch))

    def accept(*views: str) -> int:
        return (
            CliRunner().invoke(router.cli.commands, ["views", str(file), *views, "--accept", "lost-sources"]).exit_code
        )

    query = configured("silver.orders")
    take(query, [{"game": "uno", "id": number, "gamer": 1} for number in range(3)], 0)
    refresh(query)
    assert counts(query) == {"uno": 3, "orders": 3}
    assert warnings_of(caplog) == []

    query = configured("silver.latest_orders")
    take(query, [{"game": "uno", "id": number, "gamer": 1} for number in range(3)], 1)
    for _ in range(2):  # every process names it
        refresh(query)
        assert counts(query) == {"uno": 6, "latest_orders": 3}
        (warning,) = warnings_of(caplog)
        assert "silver.orders" in warning
        assert "--accept lost-sources` ends" in warning
    shown = CliRunner().invoke(router.cli.commands, ["views", str(file)]).stdout
    assert "silver.orders has left it" in shown

    assert accept("unknown") == 2
    assert accept() == 0
    refresh(query)
    assert warnings_of(caplog) == []
    assert Counter(counts(query)) == Counter(uno=6, latest_orders=3)

    # The sink writes it again: it is one of the view's tables as before.
    query = configured("silver.orders")
    take(query, [{"game": "uno", "id": 7, "gamer": 1}], 2)
    refresh(query)
    assert counts(query) == {"uno": 7, "orders": 4}
    (warning,) = warnings_of(caplog)
    assert "silver.latest_orders" in warning


@pytest.fixture
def gold(make_query: MakeQuery, tmp_path: Path) -> Query:
    """Return a query with a view of one table for each game, refreshed."""
    view = COUNTS.model_copy(update={"into": "gold.{table}_counts"})
    query = make_query(tmp_path, decode=Json(schema=SCHEMA), routes=(route("games", "true"),), views=(view,))
    query.take(records([{"game": "uno", "id": 1, "gamer": 1}, {"game": "chess", "id": 2, "gamer": 2}]))
    query.write_run_id()
    refresh(query, view)
    return query


@pytest.mark.parametrize("how", ["dropped", "damaged"])
def test_a_source_that_a_repair_made_again_needs_no_acceptance(make_query: MakeQuery, tmp_path: Path, how: str) -> None:
    """Without it gold stands still after a repair, though every row is back."""
    routes = (route("games", "true"),)
    query = make_query(tmp_path, decode=Json(schema=SCHEMA), bronze="bronze.events", routes=routes, views=(COUNTS,))
    query.take(records([{"game": "uno", "id": 1, "gamer": 1}, {"game": "chess", "id": 2, "gamer": 2}]))
    query.write_run_id()
    refresh(query)
    folder = Path(query.lake.address("silver.uno"))
    if how == "dropped":
        shutil.rmtree(folder)
    else:
        (folder / f"_delta_log/{0:020}.json").write_text("no log")
    with pytest.raises(ViewError, match=r"silver\.uno"):
        refresh(query)
    query.rebuilt("silver.uno")
    query.take(records([{"game": "uno", "id": 3, "gamer": 1}], first=2))
    refresh(query)
    assert counts(query) == {"uno": 2, "chess": 1}


def audits(query: Query) -> dict[str, list[str]]:
    """Return what `router verify` finds wrong, by table."""
    return {audit.table: audit.problems for audit in verify_tables(query.config)}


def test_gold_is_listed_and_verified(gold: Query) -> None:
    """Without it nobody sees gold among the tables, nor that somebody has changed it."""
    listed = {state.table: state for state in table_states(gold.config)}
    assert (listed["gold.uno_counts"].state, listed["gold.uno_counts"].rows) == ("ok", 1)
    assert "view counts" in listed["gold.uno_counts"].why
    found = audits(gold)
    assert found["gold.uno_counts"] == found["gold.chess_counts"] == []

    gold.open("gold.uno_counts").delete("true")
    shutil.rmtree(gold.lake.address("gold.chess_counts"))
    found = audits(gold)
    assert "removed 1 rows" in found["gold.uno_counts"][0]
    assert "it is gone" in found["gold.chess_counts"][0]
    listed = {state.table: state for state in table_states(gold.config)}
    assert listed["gold.chess_counts"].state == "gone"

    # A refresh puts the rows back: what somebody did before is not wrong any more.
    refresh(gold, gold.config.views[0])
    found = audits(gold)
    assert found["gold.uno_counts"] == found["gold.chess_counts"] == []


@pytest.mark.parametrize("harm", ["an older copy", "another table", "a lost row"])
def test_a_table_that_is_not_as_its_view_left_it_is_named(gold: Query, harm: str) -> None:
    """Without it gold that was put back from a backup counts as good."""
    folder = Path(gold.lake.address("gold.uno_counts"))
    if harm == "an older copy":
        backup = folder.with_name("backup")
        shutil.copytree(folder, backup)
        gold.take(records([{"game": "uno", "id": 3, "gamer": 1}], first=2))
        refresh(gold, gold.config.views[0])
        shutil.rmtree(folder)
        backup.rename(folder)
    if harm == "another table":
        shutil.rmtree(folder)
        write_deltalake(folder, pa.table({"table": ["uno"], "n": [1]}))
    if harm == "a lost row":
        log = folder / f"_delta_log/{0:020}.json"
        lines = [line for line in log.read_text().splitlines() if not line.startswith('{"add"')]
        log.write_text("\n".join(lines))
    assert len(audits(gold)["gold.uno_counts"]) >= 1
    assert audits(gold)["gold.chess_counts"] == []


AMOUNTS = View.model_validate(
    {
        "name": "amounts",
        "from": {"route": "games"},
        "sql": "SELECT table, gamer, count(*) AS n, sum(id / 10) AS amount, max(id) AS last FROM source "
        "GROUP BY table, gamer",
        "into": "gold.{table}_amounts",
    }
)


@pytest.fixture
def amounts(make_query: MakeQuery, tmp_path: Path) -> Query:
    """Return a query with a view of sums that were merged twice, and rows that have come since."""
    routes = (route("games", "true"),)
    query = make_query(tmp_path, decode=Json(schema=SCHEMA), routes=routes, views=(AMOUNTS,))
    for batch in range(3):
        events = [{"game": game, "id": 10 * batch + n, "gamer": n % 2} for game in ("uno", "chess") for n in range(7)]
        query.take(records(events, first=100 * batch))
        if batch < 2:
            refresh(query, AMOUNTS)
    return query


def compared(query: Query, view: View = AMOUNTS) -> dict[str, str]:
    """Return what a new process finds different between a view and its query."""
    return find_differences(create_refresher(query.config, query.spark, query.lake, query.store), view)


def replace_rows(query: Query, table: str, rows: list[dict[str, Any]]) -> None:
    """Put other rows into a table of the view, and into the note that the view left them there."""
    schema = query.content(table).schema
    write_deltalake(query.lake.address(table), pa.Table.from_pylist(rows, schema), mode="overwrite")
    path = view_note_path("amounts")
    note = Note.from_json(query.store.load(path))
    target = note.targets[table]._replace(version=query.open(table).version(), rows=len(rows))
    query.store.write(path, replace(note, targets={**note.targets, table: target}).to_json())


def test_a_view_is_held_against_its_query(amounts: Query) -> None:
    """Without it nobody knows that gold is wrong before its numbers are in a report."""
    assert compared(amounts) == {}

    rows = amounts.rows("gold.uno_amounts")
    for changed, said in (
        (rows[:1], "it has 1 rows, and its query gives 2"),
        ([{**rows[0], "last": 7}, rows[1]], "its 2 rows have other values"),
        ([{**rows[0], "amount": rows[0]["amount"] + 0.001}, rows[1]], "amount adds up to"),
    ):
        replace_rows(amounts, "gold.uno_amounts", changed)
        found = compared(amounts)
        assert [*found] == ["gold.uno_amounts"]
        assert said in found["gold.uno_amounts"]


def test_a_view_that_cannot_be_held_against_its_query_says_why(amounts: Query) -> None:
    """Without it a version that is gone looks like rows that are wrong."""
    handle = amounts.open("silver.uno")
    handle.delete("true")
    handle.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(ViewError):
        compared(amounts)
    refresh(amounts, AMOUNTS)
    assert compared(amounts) == {}
    with pytest.raises(ViewError, match="changed since its last refresh"):
        compared(amounts, AMOUNTS.model_copy(update={"into": "gold.{table}_sums"}))


def test_verify_recomputes_views_on_request(
    make_query: MakeQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the comparison is there, and nobody can ask for it."""
    file = tmp_path / "games.yaml"
    file.write_text(MOVED.format(lake=tmp_path / "lake", schema=SCHEMA, table="silver.orders"))
    config = load_config(file, load_registry(())).config
    query = make_query(tmp_path, decode=Json(schema=SCHEMA), routes=config.routes, views=config.views)
    query.take(records([{"game": "uno", "id": number, "gamer": 1} for number in range(3)]))
    query.write_run_id()
    refresh(query, config.views[0])
    monkeypatch.setattr(session, "build_session", lambda config, master=None: query.spark)
    monkeypatch.setattr(session, "stop_session", lambda session: None)

    def verify(*options: str) -> tuple[int, dict[str, str]]:
        done = CliRunner().invoke(router.cli.commands, ["verify", str(file), *options])
        lines = [line.partition("  ") for line in done.stdout.splitlines()]
        return done.exit_code, {table.strip(): text.strip() for table, _, text in lines}

    assert verify("--recompute")[0] == 0
    note = Note.from_json(query.store.load(view_note_path("counts")))
    forged = note.targets["gold.counts"]._replace(version=1)
    rows = pa.table({"table": ["uno", "orders"], "n": [3, 4]})
    write_deltalake(query.lake.address("gold.counts"), rows, mode="overwrite")
    query.store.write(view_note_path("counts"), replace(note, targets={"gold.counts": forged}).to_json())
    assert "other values than its query gives" not in verify()[1]["gold.counts"]
    code, lines = verify("gold.counts", "--recompute")
    assert code == 1
    assert "other values than its query gives" in lines["gold.counts"]


def test_tables_that_only_spark_opens_are_told_apart(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it `commit: spark` counts tables of other routes."""
    routes = (route("games", "event.gamer = 1"), route("others", "event.gamer = 2"))
    query = make_query(tmp_path, decode=Json(schema=SCHEMA), routes=routes, commit="spark")
    query.take(records([{"game": "uno", "id": 1, "gamer": 1}, {"game": "chess", "id": 2, "gamer": 2}]))
    assert sources(query) == {"silver.uno"}


def test_a_view_of_a_view_has_the_tables_that_this_made(gold: Query) -> None:
    """Without it a table that somebody calls alike is counted in gold of gold."""
    shutil.copytree(gold.lake.address("gold.uno_counts"), gold.lake.address("gold.backup_counts"))
    write_deltalake(gold.lake.address("gold.go_counts"), pa.table({"table": ["go"], "n": [1]}))
    top = View.model_validate(
        {"name": "top", "from": {"view": "counts"}, "sql": "SELECT max(n) AS n FROM source", "into": "top.n"}
    )
    found = create_refresher(gold.config, gold.spark, gold.lake, gold.store).tables.open_sources(top)
    assert {*found.tables} == {"gold.uno_counts", "gold.chess_counts"}
    assert {*found.others} == {"gold.backup_counts", "gold.go_counts"}


def test_a_table_that_leaves_with_its_only_sink_keeps_gold_until_there_is_another(
    make_query: MakeQuery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it gold is empty, or the refresh fails, between a change of names and the first record after it."""
    query = make_query(tmp_path, decode=Json(schema=SCHEMA), routes=(route("games", "true", "silver.all"),))
    query.take(records([{"game": "uno", "id": 1, "gamer": 1}]))
    refresh(query)
    moved = query.restarted(routes=(route("games", "true", "silver.every"),))
    assert refresh(moved).why == "none of the tables that route games writes is there yet"
    assert counts(moved) == {"all": 1}
    moved.take(records([{"game": "uno", "id": 2, "gamer": 1}], first=1))
    refresh(moved)
    assert counts(moved) == {"every": 1}
    (warning,) = warnings_of(caplog)
    assert "silver.all" in warning


def test_a_renamed_route_names_the_tables_that_it_has_not_written_yet(
    two_routes: Query, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it gold loses the tables of a route with its new name, and says so to nobody."""
    refresh(two_routes)
    renamed = two_routes.restarted(routes=(route("plays", "event.gamer = 1"), route("others", "event.gamer = 2")))
    view = COUNTS.model_copy(update={"source": COUNTS.source.model_copy(update={"route": "plays"})})
    renamed.take(records([{"game": "go", "id": 3, "gamer": 1}], first=2))
    refresh(renamed, view)
    assert counts(renamed) == {"go": 1}
    (warning,) = warnings_of(caplog)
    assert "silver.uno" in warning
    assert "silver.chess" not in warning
    renamed.take(records([{"game": "uno", "id": 4, "gamer": 1}], first=3))
    refresh(renamed, view)
    assert counts(renamed) == {"go": 1, "uno": 2}
    assert warnings_of(caplog) == []
