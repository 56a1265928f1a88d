"""Tables that were merged by some keys, and a configuration that names others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from router import StartError
from router.api.sinks import KeyedTable
from router.config.models import Route
from router.delta.keyed.key_property import KEYED_BY, keyed_by, repeated_keys
from router.delta.table_cache import TableCache
from router.engine.audit.verify import verify_tables
from router.engine.merge.key_checks import refuse_changed_keys
from router.engine.reprocess.refresh import Refresh
from router_decoders import Json
from router_rules import Sql
from router_sinks import Upsert
from tests.engine.query import Query, records

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.conftest import MakeQuery

TABLE = "silver.latest"


def routes(commit: str = "auto", **options: Any) -> tuple[Route, ...]:
    settings = {"table": TABLE, "keys": ("game", "id"), "engine": "spark" if commit == "spark" else "auto", **options}
    return (Route(name="latest", match=Sql(where="true"), sinks=(Upsert(**settings),)),)


def events(*pairs: tuple[str, int], **more: Any) -> list[dict[str, Any]]:
    return [{"game": game, "id": number, **more} for game, number in pairs]


@pytest.fixture(params=["delta-rs", "spark"])
def query(request: pytest.FixtureRequest, make_query: MakeQuery, tmp_path: Path) -> Query:
    """Return a query that has merged ten rows by game and id, and deleted one of them."""
    commit = "spark" if request.param == "spark" else "auto"
    settings: dict[str, Any] = {
        "decode": Json(schema="game string, id long, gone boolean"),
        "bronze": {"table": "bronze.all"},
    }
    made = make_query(tmp_path, routes=routes(commit, delete_when="event.gone"), **settings)
    made.write_run_id()
    pairs = [(game, number) for game in ("uno", "poker") for number in range(5)]
    made.take(records(events(*pairs)))
    made.take(records(events(("uno", 0), gone=True), first=10))
    return made


def start(query: Query) -> None:
    """Look at the tables as a start does."""
    refuse_changed_keys(TableCache(query.lake), query.store, query.config)


def changed(query: Query, **options: Any) -> Query:
    """Return the query as it is after a restart with other options of its sink."""
    engine = query.config.routes[0].sinks[0].engine  # type: ignore[attr-defined]
    return query.restarted(routes=routes(engine=engine, delete_when="event.gone", **options))


CHANGES = {
    "fewer keys": {"keys": ("game",)},
    "another order": {"newest_by": "event.id"},
    "a history": {"history": "scd2"},
}


@pytest.mark.parametrize("options", CHANGES.values(), ids=CHANGES)
def test_another_key_is_refused_at_the_start(query: Query, options: dict[str, Any]) -> None:
    """Without it ten rows by game and id become two by game, and every check says that all is well."""
    start(query)
    after = changed(query, **options)

    with pytest.raises(StartError, match="router rebuild") as refused:
        start(after)
    assert TABLE in str(refused.value)
    report = after.take(records(events(("uno", 7)), first=11))
    assert report.read == 1
    assert len(after.rows(TABLE)) == 9, "a stream that got past the start merges nothing either"


def test_a_refresh_merges_by_the_new_keys(query: Query) -> None:
    """Without it nobody can change a key, or a deletion by the old keys deletes what it does not name."""
    after = changed(query, keys=("game",))
    Refresh(after.context(), (TABLE,)).run()

    start(after)
    assert sorted(row["game"] for row in after.rows(TABLE)) == ["poker"], "the last event of uno deleted it"
    after.take(records(events(("uno", 3)), first=11))
    assert sorted((row["game"], row["id"]) for row in after.rows(TABLE)) == [("poker", 4), ("uno", 3)]
    with pytest.raises(StartError):
        start(changed(after))


def test_a_table_that_was_ordered_by_offsets_alone_is_refused_until_it_is_rebuilt(query: Query) -> None:
    """Without it rows of an older version count as older, or as newer, than all that comes."""
    table = query.open(TABLE)
    before = table.to_pyarrow_table()
    write_deltalake(table, before.drop_columns(["_arrival", "_timestamp"]), mode="overwrite", schema_mode="overwrite")

    with pytest.raises(StartError, match=rf"router rebuild .*{TABLE}"):
        start(query.restarted())
    Refresh(query.context(), (TABLE,), accept=True).run()
    start(query.restarted())
    rebuilt = query.open(TABLE).to_pyarrow_table().select(before.column_names)
    assert sorted(map(repr, rebuilt.to_pylist())) == sorted(map(repr, before.to_pylist()))


def test_verify_finds_several_rows_of_a_key(query: Query) -> None:
    """Without it a table that somebody has appended to counts every gamer twice, and nothing says so."""
    assert [audit.problems for audit in verify_tables(query.config, [TABLE])] == [[]]
    table = query.open(TABLE)
    write_deltalake(table, table.to_pyarrow_table().slice(0, 2), mode="append")

    (audit,) = verify_tables(query.config, [TABLE])
    assert any("several rows for" in what for what in audit.wrong)


def test_a_table_of_others_is_taken_over_once_it_has_one_row_per_key(query: Query) -> None:
    """Without it a merge into a table with doubles updates one of them, or both, by chance."""
    name = "silver.foreign"
    rows = pa.table({"game": ["uno", "uno"], "id": [1, 1], "gone": [False, True]})
    write_deltalake(query.lake.address(name), rows)
    after = query.restarted(routes=(replace_table(query, name),))
    after.take(records(events(("uno", 1)), first=11))
    assert len(after.rows(name)) == 2, "its rows wait"
    assert KEYED_BY not in after.open(name).metadata().configuration

    write_deltalake(query.lake.address(name), rows.slice(0, 1), mode="overwrite")
    after.take(records(events(("uno", 2)), first=12))
    assert sorted(row["id"] for row in after.rows(name)) == [1, 2]
    assert after.open(name).metadata().configuration[KEYED_BY] == keyed_by(KeyedTable(("game", "id")))


def replace_table(query: Query, name: str) -> Route:
    (sink,) = query.config.routes[0].sinks
    return query.config.routes[0].model_copy(update={"sinks": (sink.model_copy(update={"template": name}),)})


def test_keys_of_any_type_are_counted(tmp_path: Path) -> None:
    """Without it doubles of a key of dates, bytes or several columns are overlooked, or keys taken for doubles."""
    rows = pa.table(
        {
            "text": ["a", "ab", "a", "a", "é"],
            "other": ["bc", "c", "bc", "b", ""],
            "day": pa.array([1, 2, 1, 1, 3], pa.int32()).cast(pa.date32()),
            "raw": pa.array([b"\x00", b"", b"\x00", b"\x00", b"\xff"]),
        }
    )
    write_deltalake(tmp_path, rows)
    table = DeltaTable(tmp_path)

    whole = KeyedTable(("text", "other", "day", "raw"))
    assert [key["text"] for key in repeated_keys(table, whole)] == ["a"]
    assert repeated_keys(table, replace(whole, keys=("text", "other"))) == [{"text": "a", "other": "bc"}]
    assert repeated_keys(DeltaTable(tmp_path), replace(whole, keys=("day",))) != []


def test_repeated_keys_are_found_in_columns_of_any_name(tmp_path: Path) -> None:
    """Without it a table with a key `.x` cannot be verified: Arrow takes a leading dot for a path."""
    write_deltalake(tmp_path, pa.table({".x": ["a", "a", "b"], "..": [1, 1, 1]}))

    assert repeated_keys(DeltaTable(tmp_path), KeyedTable((".x", ".."))) == [{".x": "a", "..": 1}]
