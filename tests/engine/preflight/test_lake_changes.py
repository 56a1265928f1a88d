"""A configuration beside what its query has left: what a start and `router check --lake` say before it runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from router import ApplyingSink, Batch, Outcome, SinkError, StartError
from router.cli.check import check
from router.config.loader import load_config
from router.config.models import Route, View
from router.delta.table_cache import TableCache
from router.engine.label.planner import Planner
from router.engine.preflight.check import check_lake
from router.engine.preflight.lake_changes import LakeChanges, refuse_changes, tell_changes
from router.engine.stream import run
from router.engine.views.schedule import create_refresher
from router.record import RECORD_SCHEMA
from router.registry import load_registry
from router_decoders import Json
from router_rules import Sql
from router_sinks import Delta, Tables, Upsert
from tests.engine.query import Query, records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from router.api.parts import Part
    from router.config.loader import Loaded
    from router.engine.preflight.lake_changes import Change
    from tests.engine.conftest import MakeQuery

DDL = "game string, n int, amount double"
DELTA = Delta(table="silver.all")
EVENTS: list[dict[str, Any] | bytes | None] = [{"game": "uno", "n": n, "amount": n / 2} for n in range(3)]


class Slow(ApplyingSink):
    """A sink with a query of its own, which has not run yet."""

    @property
    def detached(self) -> bool:
        return True

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        raise AssertionError("no query of its own runs here")


class Parking(ApplyingSink):
    """A sink that keeps every row to send it later."""

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        return Outcome(0, parked=events.count())


class Away(ApplyingSink):
    """A sink whose other side is away: its batch stays cut off."""

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        raise ConnectionError("it is away")


def route(*sinks: Part, name: str = "games", **options: Any) -> Route:
    return Route(name=name, match=Sql(where="true"), sinks=sinks, **options)


def begun(make_query: MakeQuery, folder: Path, *routes: Route, **settings: Any) -> Query:
    """Return a query whose checkpoint says which run it is, as that of a stream does."""
    made = make_query(folder, routes=routes, decode=Json(schema=DDL), **settings)
    made.write_run_id()
    return made


def changes_of(query: Query) -> LakeChanges:
    return LakeChanges(query.config, TableCache(query.lake), query.store.checkpoint)


def severities(changes: list[Change]) -> list[tuple[str, tuple[str | int, ...]]]:
    return [(change.severity, change.place) for change in changes]


def in_the_outbox(make_query: MakeQuery, folder: Path) -> Query:
    query = begun(make_query, folder, route(DELTA), route(Slow(), name="calls"))
    query.take(records(EVENTS))
    return query


def parked(make_query: MakeQuery, folder: Path) -> Query:
    query = begun(make_query, folder, route(DELTA), route(Parking(), name="calls"))
    query.take(records(EVENTS))
    return query


def quarantined(make_query: MakeQuery, folder: Path) -> Query:
    small = {"name": "small", "sql": "event.n > 2", "otherwise": "quarantine"}
    waiting = route(Delta(table="silver.calls"), name="calls", expect=(small,))
    query = begun(make_query, folder, route(DELTA), waiting)
    query.take(records(EVENTS))
    return query


def unmerged(make_query: MakeQuery, folder: Path) -> Query:
    query = begun(make_query, folder, route(DELTA), route(Upsert(table="silver.calls", keys=("n",)), name="calls"))
    query.take(records([{"game": "go", "n": 9}]))
    log = folder / "lake/silver/calls/_delta_log/00000000000000000000.json"
    log.write_bytes(b"damaged")
    query = query.restarted()
    query.take(records(EVENTS, first=10))
    return query


def cut_off(make_query: MakeQuery, folder: Path) -> Query:
    query = begun(make_query, folder, route(DELTA), route(Away(), name="calls"))
    with pytest.raises(SinkError):
        query.take(records(EVENTS))
    return query


WAITING: list[tuple[Callable[[MakeQuery, Path], Query], str]] = [
    (in_the_outbox, "3 rows wait in its outbox"),
    (parked, "3 are parked"),
    (quarantined, "3 are quarantined"),
    (unmerged, "3 rows wait in its outbox"),
    (cut_off, "3 are in a batch that was cut off"),
]


@pytest.mark.parametrize(("played", "what"), WAITING, ids=[played.__name__ for played, _ in WAITING])
def test_a_sink_that_rows_wait_for_may_not_go(
    make_query: MakeQuery, tmp_path: Path, played: Callable[[MakeQuery, Path], Query], what: str
) -> None:
    """Without it its rows are never sent, merged or released, and every batch says that all is well."""
    query = played(make_query, tmp_path)
    refuse_changes(changes_of(query), frozenset())

    after = query.restarted(routes=query.config.routes[:1])
    with pytest.raises(StartError, match=f"calls/.* {what}") as refused:
        refuse_changes(changes_of(after), frozenset())
    assert "--accept gone-sinks" in str(refused.value)
    (gone,) = changes_of(after).gone_sinks()
    assert (gone.severity, gone.place) == ("refused", ("routes",))

    refuse_changes(changes_of(after), {"gone-sinks"})
    refuse_changes(changes_of(after), frozenset())
    assert [change.severity for change in changes_of(after).gone_sinks()] == ["safe"]
    refuse_changes(changes_of(query), frozenset())
    with pytest.raises(StartError):
        refuse_changes(changes_of(after), frozenset())


def test_a_sink_goes_with_its_tables_where_nothing_waits(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it every route that goes needs an order, or its table is read by nobody and nobody knows."""
    second = route(Tables(table="silver.{event.game}"), name="more")
    query = begun(make_query, tmp_path, route(DELTA), second)
    query.take(records(EVENTS))
    foreign = begun(make_query, tmp_path, route(Delta(table="silver.foreign")), name="others")
    foreign.take(records(EVENTS))

    after = query.restarted(routes=query.config.routes[:1])
    refuse_changes(changes_of(after), frozenset())
    (start,) = changes_of(after).at_start()
    assert (start.severity, "silver.uno" in start.what, "more/tables" in start.what) == ("safe", True, True)
    assert [*changes_of(after).unwritten_tables(after.tables())] == [start]

    view = {"name": "all", "from": "silver.*", "sql": "SELECT * FROM source", "into": "gold.all"}
    read = after.restarted(views=(View.model_validate(view),))
    (change,) = changes_of(read).unwritten_tables(read.tables())
    assert change.severity == "to do"
    assert "view all" in change.what


def test_changed_keys_are_found_at_their_sink(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it a check says that all is well, and the start is refused at night."""
    query = begun(make_query, tmp_path, route(DELTA, Upsert(table="silver.latest", keys=("game", "n"))))
    query.take(records(EVENTS))
    assert [*changes_of(query).changed_keys()] == []

    after = query.restarted(routes=(route(DELTA, Upsert(table="silver.latest", keys=("game",))),))
    assert severities([*changes_of(after).changed_keys()]) == [("refused", ("routes", 0, "sinks", 1))]


@pytest.mark.parametrize(
    "sink",
    [DELTA, Tables(table="silver.{event.game}"), Upsert(table="silver.latest", keys=("n",))],
    ids=["one table", "tables that rows name", "merged"],
)
def test_a_type_that_no_table_takes_is_found(make_query: MakeQuery, tmp_path: Path, sink: Part) -> None:
    """Without it every good record becomes a dead letter, and nothing fails."""
    query = begun(make_query, tmp_path, route(sink))
    query.take(records(EVENTS))

    def changes(ddl: str) -> list[Change]:
        config = query.restarted(decode=Json(schema=ddl)).config
        planner = Planner(config, config.decode, quiet=True)
        layout = planner.plan_batch(query.spark.createDataFrame([], RECORD_SCHEMA)).layout
        compared = LakeChanges(config, TableCache(query.lake), query.store.checkpoint)
        return [*compared.changed_types(layout, named_by_rows=True)]

    assert changes(DDL) == []
    conflicts = changes("game string, n int, amount string")
    assert {change.severity for change in conflicts} == {"to do"}
    assert all("column amount is double in the table and string in the event" in change.what for change in conflicts)
    if not isinstance(sink, Upsert):
        (grown,) = changes(f"{DDL}, more int")
        assert (grown.severity, "lacks more" in grown.what) == ("safe", True)


YAML = """\
name: games
lake: {folder}/lake
source: {{files: {{path: {folder}/in}}}}
decode: {{json: "game string, amount {kind}"}}
routes:
  - name: all
    match: {{sql: "true"}}
    sinks: [{{delta: {table}}}]
views:
  - {{name: sums, from: silver.all, sql: "SELECT max(amount) AS most FROM source", into: gold.sums}}
trigger: {{once: true}}
dead_letters: ops.dead
"""


def test_check_and_start_say_what_a_change_does(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a start is the first to say what a change does, by dead letters."""
    registry = load_registry()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.json").write_text('{"game": "uno", "amount": 1.5}\n')

    def loaded(kind: str, table: str = "silver.all") -> Loaded:
        text = YAML.format(folder=tmp_path, kind=kind, table=table)
        return load_config(tmp_path / "games.yaml", registry, environ={}, text=text)

    assert severities(check_lake(loaded("double"), spark)) == [("safe", ("name",)), ("safe", ("views", 0))]
    assert [path for path in (tmp_path / "lake").rglob("*") if path.is_file()] == [], "a check writes nothing"
    run(loaded("double"), registry, spark)
    assert severities(check_lake(loaded("double"), spark)) == []
    changed = [("to do", ("routes", 0, "sinks", 0))]
    assert severities(check_lake(loaded("string"), spark)) == changed
    moved = check_lake(loaded("double", "silver.other"), spark)
    assert severities(moved) == [("to do", ("routes",))]
    assert "view sums still reads its rows" in moved[0].what

    # Each row of docs/how-to/change-a-configuration.md that a text can play.
    of_files = f"files: {{path: {tmp_path}/in}}"
    of_rate = "format: {name: rate, columns: {value: \"'{}'\"}}"
    elsewhere = f"{tmp_path}/lake2\n"
    of_lake = f"checkpoint: {tmp_path}/lake/_router/games\n"
    rows = {
        ("name: games", "name: others"): ("to do", ("name",)),
        ("/in}", "/lake}"): ("refused", ("source",)),
        (of_files, of_rate): ("refused", ("source",)),
        (f"{tmp_path}/lake\n", elsewhere): ("safe", ("name",)),
        (f"{tmp_path}/lake\n", elsewhere + of_lake): ("refused", ("lake",)),
        ("trigger:", "ledger: ops.other\ntrigger:"): ("refused", ("lake",)),
        ("trigger:", f"checkpoint: {tmp_path}/elsewhere\ntrigger:"): ("refused", ("lake",)),
        ("delta: silver.all", f"delta: {{table: silver.all, location: {tmp_path}/moved}}"): ("refused", ("routes",)),
        ("- name: all", "- name: every"): ("safe", ("routes", 0, "sinks", 0)),
        ("trigger:", "bronze: bronze.all\ntrigger:"): None,
    }
    for (old, new), expected in rows.items():
        text = YAML.format(folder=tmp_path, kind="double", table="silver.all")
        assert old in text
        changed_file = load_config(tmp_path / "games.yaml", registry, environ={}, text=text.replace(old, new))
        changes = severities(check_lake(changed_file, spark))
        assert changes == [] if expected is None else expected in changes, (new, changes)

    file = tmp_path / "games.yaml"
    file.write_text(YAML.format(folder=tmp_path, kind="string", table="silver.all"))
    monkeypatch.setattr("router.engine.preflight.check.build_session", lambda config: spark)
    shown = CliRunner().invoke(check, ["--lake", str(file)])
    assert shown.exit_code == 0
    assert f"{file}:8:13: routes.0.sinks.0: to do: silver.all: column amount" in shown.output

    caplog.clear()
    with caplog.at_level(logging.WARNING, "router"):
        run(loaded("string"), registry, spark)
    warnings = [record.getMessage() for record in caplog.records]
    assert any("column amount is double in the table and string in the event" in text for text in warnings)


def test_a_view_that_has_changed_is_computed_in_full(
    make_query: MakeQuery, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it a comma in a view costs an hour of computing that nobody has planned for."""
    query = begun(make_query, tmp_path, route(DELTA))
    query.take(records(EVENTS))
    about = {"name": "sums", "from": "silver.all", "into": "gold.sums"}
    view = View.model_validate({**about, "sql": "SELECT game, count(*) AS many FROM source GROUP BY game"})
    made = query.restarted(views=(view,))
    by = create_refresher(made.config, made.spark, made.lake, made.store)
    assert severities([*changes_of(made).changed_views(by)]) == [("safe", ("views", 0))]
    by.refresh_view(view)
    assert [*changes_of(made).full_views(by)] == []

    other = View.model_validate({**about, "sql": "SELECT game, max(n) AS most FROM source GROUP BY game"})
    after = made.restarted(views=(other,))
    changed = [*changes_of(after).changed_views(create_refresher(after.config, after.spark, after.lake, after.store))]
    assert severities(changed) == [("safe", ("views", 0))]
    caplog.clear()
    with caplog.at_level(logging.INFO, "router"):
        tell_changes(after.config, changed)
    assert [(record.levelname, "view sums" in record.getMessage()) for record in caplog.records] == [("INFO", True)]


def test_a_view_does_not_take_the_table_of_another_configuration(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it the refresh fails with "drop it", and the table is somebody else's."""
    query = begun(make_query, tmp_path, route(DELTA))
    query.take(records(EVENTS))
    about = {"from": "silver.all", "into": "gold.sums", "sql": "SELECT game, count(*) AS many FROM source GROUP BY 1"}
    made = query.restarted(views=(View.model_validate({"name": "sums", **about}),))
    create_refresher(made.config, made.spark, made.lake, made.store).refresh_view(made.config.views[0])
    refuse_changes(changes_of(made), frozenset())

    other = made.restarted(name="shop", views=(View.model_validate({"name": "totals", **about}),))
    told = "gold.sums is the table of the view sums of the configuration games; give `into` another name"
    with pytest.raises(StartError, match=told):
        refuse_changes(changes_of(other), frozenset())
    renamed = made.restarted(views=(View.model_validate({"name": "totals", **about}),))
    assert [*changes_of(renamed).foreign_views()] == []
