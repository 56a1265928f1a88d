"""Which table a row goes to: bronze by topic, names of columns that the route selects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

from router.config.models import Config, Landing, Route
from router.delta.lake import Lake
from router.engine.label.layout import quarantine_of
from router.engine.land.task import Rows
from router.engine.start.checks import refuse_shared
from router.errors import StartError
from router.table_names import BronzeTables
from router_decoders.json import Json
from router_rules.rules import Sql
from router_sinks.tables import Delta, Tables
from tests.engine.query import SOURCE, records

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.conftest import MakeQuery

BRONZE = BronzeTables("bronze.{topic}", frozenset({"ops.dead"}))


def of_topics(*topics: str) -> pa.Table:
    """Return records, one after the other from these topics."""
    raw = records([{"n": i} for i in range(len(topics))])
    return raw.set_column(raw.schema.get_field_index("topic"), "topic", pa.array(topics))


def test_the_rows_of_each_topic_go_to_its_bronze_table() -> None:
    """Without it a record is in the table of another topic, or in none."""
    batch = of_topics("a-b", "c", "a-b", "d.e", "f.g", "a_b").to_batches()[0]

    found = dict(Rows(batch, {}).by_topic(BRONZE.table_of))

    assert {table: list(at) for table, at in found.items()} == {  # type: ignore[arg-type]
        "bronze.a_b": [0, 2, 5],
        "bronze.c": [1],
        "bronze.other_topics": [3, 4],
    }
    assert np.sort(np.concatenate(list(found.values()))).tolist() == [*range(6)]  # type: ignore[arg-type]
    assert dict(Rows(batch.take(pa.array([0, 2])), {}).by_topic(BRONZE.table_of)) == {"bronze.a_b": None}


def test_queries_whose_names_fold_to_one_do_not_share_a_table(tmp_path: Path) -> None:
    """Without it the rows of both are sent, or merged, by each of them."""
    lake, about = Lake.at(str(tmp_path)), CommitProperties(custom_metadata={"router.query": "ga-mes:run"})
    copies = Route(name="big-wins", match=Sql(where="true"), sinks=(Delta(table="silver.a"),))
    settings = {"lake": lake.root, "source": SOURCE, "decode": Json(schema="n int"), "dead_letters": "ops.dead"}
    ours = Config(name="ga_mes", routes=(copies,), **settings)  # type: ignore[arg-type]
    table = quarantine_of("ga-mes", "big-wins", "delta")
    assert table == "quarantine.ga_mes__big_wins__delta"
    refuse_shared(lake, ours)
    write_deltalake(lake.address(table), pa.table({"n": [1]}), commit_properties=about)

    refuse_shared(lake, ours.model_copy(update={"name": "ga-mes"}))
    with pytest.raises(StartError, match=r"belongs to the query ga-mes, and ga_mes would also write it"):
        refuse_shared(lake, ours)


MONTHS = Route(
    name="months",
    match=Sql(where="event.n IS NOT NULL"),
    select=("event.*", "date_format(timestamp, 'yyyyMM') AS month", "10 / (event.n - 3) AS share", "'x' AS topic"),
    sinks=(Tables(table="silver.m{month}"), Tables(table="gold.{topic}_{n}", columns="all")),
)
PLAIN = MONTHS.model_copy(
    update={"name": "plain", "select": ("event.*", "event.n % 2 AS odd"), "sinks": (Tables(table="silver.odd_{odd}"),)}
)


@pytest.mark.parametrize("spread", ["keep", pytest.param("by_table", marks=pytest.mark.slow)])
def test_a_name_may_be_made_of_what_select_makes(make_query: MakeQuery, tmp_path: Path, spread: str) -> None:
    """Without it a table per month needs the month in the event."""
    settings = {"landing": Landing(spread=spread), "bronze": "bronze.{topic}", "routes": (MONTHS, PLAIN)}
    query = make_query(tmp_path, decode=Json(schema="n int"), **settings)

    query.take(of_topics("a-b", "a-b", "c", "a-b", "d.e"))

    assert set(query.batches.decider.planner.stages.routes_by_spark) == {"months"}  # type: ignore[union-attr]
    ns = {
        table: sorted(row["n"] for row in query.rows(table))
        for table in query.tables()
        if table[:4] in ("silv", "gold")
    }
    assert ns == {
        "silver.m202601": [0, 1, 2, 4],
        "silver.odd_0": [0, 2, 4],
        "silver.odd_1": [1, 3],
        **{f"gold.a_b_{n}": [n] for n in (0, 1)},  # the topic of the record, not the one that `select` makes
        "gold.c_2": [2],
    }
    assert {table: len(query.rows(table)) for table in query.tables() if table.startswith("bronze.")} == {
        "bronze.a_b": 3,
        "bronze.c": 1,
        "bronze.other_topics": 1,
    }
    assert query.letters("stage", "reason") == {
        ("select", "the projection cannot be evaluated"): 1,
        ("name", "unusable table name: gold.d.e_4"): 1,
    }
