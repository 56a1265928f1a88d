"""Routes and sinks that are called like what the router does to tables keep every row whatever it does to theirs."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from router.config.models import Route
from router.engine.audit.table_states import table_states
from router.engine.reprocess.rebuild import Rebuild
from router.engine.reprocess.refresh import Refresh
from router_decoders import Json
from router_rules import Sql
from router_sinks import Delta, Tables
from tests.engine.query import RUN, Query, records
from tests.engine.reprocess.repairs import audit_problems

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router.engine.reprocess.rebuild import RebuiltRows
    from tests.engine.conftest import MakeQuery

NAMES = (
    *("repair-shop", "repair", "release", "held", "unblock", "deletions", "ledger", "bronze", "dead_letters"),
    *("quarantine", "discard", "refuse", "views", "wider", "replayed", "released"),
)


def under(name: str) -> str:
    return name.replace("-", "_")


def sink(template: str, name: str) -> Tables | Delta:
    """Return a sink with a name, as a plugin may have one."""
    made = Tables(table=template) if "{" in template else Delta(table=template)
    made._named = name
    return made


def begun(make_query: MakeQuery, folder: Path, *routes: Route) -> Query:
    query = make_query(folder, decode=Json(schema="game string, id int"), bronze="bronze.events", routes=routes)
    query.write_run_id()
    return query


def take(query: Query) -> None:
    number = len(query.taken)
    query.take(records([{"game": "uno", "id": number}], first=number * 10))


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> list[Query]:
    """Return a list: its query takes a batch between the landing of a repair and its commit."""
    queries: list[Query] = []
    stage = Rebuild.stage

    def landed(*given: Any) -> RebuiltRows:
        found = stage(*given)
        for query in queries:
            take(query)
        return found

    monkeypatch.setattr(Rebuild, "stage", landed)
    return queries


def test_a_repair_keeps_the_rows_that_come_meanwhile(
    make_query: MakeQuery, spark: SparkSession, tmp_path: Path, meanwhile: list[Query]
) -> None:
    """Without it a route called `repair-shop` loses the batches that the stream commits while its table is repaired."""
    routes = tuple(
        Route(name=name, match=Sql(where="true"), sinks=(sink(f"silver.of_{under(name)}", under(name)),))
        for name in NAMES
    )
    query = begun(make_query, tmp_path, *routes)
    take(query)
    take(query)
    assert audit_problems(query) == {}
    meanwhile.append(query)

    refreshed = Refresh(query.context(spark.newSession()), ("silver.*",)).run()

    assert refreshed.failed == {}
    assert len(query.taken) == 3
    kept = {name: [row["id"] for row in query.rows(f"silver.of_{under(name)}")] for name in NAMES}
    assert kept == {name: [0, 1, 2] for name in NAMES}
    assert {one.later for one in refreshed.done} == {1}
    assert audit_problems(query) == {}
    meanwhile.clear()
    shutil.rmtree(query.lake.address("silver.of_held"))
    query.rebuilt("silver.of_held", spark=spark.newSession())
    take(query)
    assert [row["id"] for row in query.rows("silver.of_held")] == [0, 1, 2, 3]
    assert audit_problems(query) == {}
    assert {state.state for state in table_states(query.config)} <= {"ok", "none"}


def test_lost_rows_of_a_sink_called_released_are_missed(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it nobody holds the tables of such a sink against the ledger."""
    route = Route(name="all", match=Sql(where="true"), sinks=(sink("silver.{event.game}", "released"),))
    query = begun(make_query, tmp_path, route)
    take(query)
    assert audit_problems(query) == {}
    shutil.rmtree(query.lake.address("silver.uno"))
    for path in query.store.json_paths(f"manifests/{RUN}"):  # they are pruned after a hundred batches
        query.store.delete(path)

    assert list(audit_problems(query)) == ["all/released"]
