"""A query of five games whose tables are harmed and repaired."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from router.config.models import Route
from router.engine.audit.verify import Verification
from router_decoders import Json
from router_rules import Sql
from router_sinks import Delta, Tables, Upsert
from tests.engine.query import records

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from router.engine.reprocess.repair_target import Repaired
    from tests.engine.conftest import MakeQuery
    from tests.engine.query import Query


GAMES = ("uno", "go", "rummy", "poker", "euchre")


def game_records(number: int) -> pa.Table:
    """Return records for every game, with a column that comes later, and one that nobody can decode."""
    events: list[Any] = [
        {"game": game, "id": number * 10 + n, **({"bonus": 0.5} if number else {})} for game in GAMES for n in range(3)
    ]
    return records([*events, b"garbage"], first=number * 100)


def query_of_games(make_query: MakeQuery, folder: Path, batches: int = 3) -> Query:
    """Return a query that took some batches into tables by game, one table of all and a keyed one."""
    sinks = (Tables(table="silver.{event.game}"), Delta(table="gold.all"))
    routes = (
        Route(name="all", match=Sql(where="true"), sinks=sinks),
        Route(
            name="profiles", match=Sql(where="event.id > 0"), sinks=(Upsert(table="silver.ids", keys=("event.id",)),)
        ),
    )
    decode = Json(schema="game string, id int, bonus double")
    query = make_query(folder, decode=decode, bronze="bronze.events", routes=routes)
    query.write_run_id()
    for number in range(batches):
        query.take(game_records(number))
    return query


def repair_table(query: Query, spark: SparkSession, table: str, *, accept: bool = False) -> Repaired:
    """Rebuild one table; return what was done."""
    (done,) = query.rebuilt(table, accept=accept, spark=spark.newSession())
    return done


def audit_problems(query: Query) -> dict[str, list[str]]:
    """Return what an audit finds wrong, by table."""
    return {
        audit.table: audit.problems for audit in Verification.of_config(query.config).audit_tables() if audit.problems
    }


def table_folder(query: Query, table: str) -> Path:
    """Return the folder of a table."""
    return Path(query.lake.root, table.replace(".", "/"))
