"""The rows of a commit that failed go to a quarantine that has other types than their table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from router.config.models import Expectation, Route
from router_decoders import Json
from router_rules import Sql
from router_sinks import Tables
from tests.engine.commit.test_recorded_ids import HUGE, Recorder
from tests.engine.query import shape

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.engine.conftest import MakeQuery

QUARANTINE = "quarantine.games__all__tables"


@pytest.mark.parametrize(
    ("held", "game", "kinds"),
    [
        (({"game": "go", "id": HUGE},), "go", (pa.int64(), pa.int32())),
        ((), "fish", (pa.int32(), pa.int64())),
    ],
    ids=["the quarantine is wider", "the quarantine is narrower"],
)
def test_rows_of_a_failed_commit_wait_whatever_the_types_of_the_quarantine(
    make_query: MakeQuery, spark: SparkSession, tmp_path: Path, held: tuple[dict[str, Any], ...], game: str, kinds: Any
) -> None:
    """Without it the batch ends with an error as long as the table cannot be written, and nothing lands any more."""
    small = Expectation(name="small", sql="event.id < 100", otherwise="quarantine")
    sinks = (Tables(table="silver.{event.game}", evolution="quarantine"),)
    route = Route(name="all", match=Sql(where="event.game IS NOT NULL"), expect=(small,), sinks=sinks)
    query = make_query(tmp_path, decode=Json(schema="game string, id int"), bronze="bronze.events", routes=(route,))
    query.write_run_id()
    life = Recorder(query, spark)
    life.take({"game": "go", "id": 1}, {"game": "go", "id": 300})
    life.query = life.query.restarted(decode=Json(schema="game string, id bigint"))
    life.take({"game": "fish", "id": 5}, *held)
    assert tuple(dict(shape(life.query, table))["id"] for table in (QUARANTINE, f"silver.{game}")) == kinds

    life.damage_after_manifest(f"silver.{game}")
    life.take({"game": game, "id": 9})
    waiting = [row["id"] for row in life.query.rows(QUARANTINE) if row["_table"] == f"silver.{game}"]
    assert 9 in waiting

    life.mend(f"silver.{game}")
    assert 9 in [row["id"] for row in life.query.rows(f"silver.{game}")]
