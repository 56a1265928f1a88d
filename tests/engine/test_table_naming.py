"""Which table a row goes to: bronze by topic, names of columns that the route selects."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from router.engine.land.task import Rows
from router.table_names import BronzeTables
from tests.engine.query import records

BRONZE = BronzeTables("bronze.{topic}", frozenset({"ops.dead"}))


def of_topics(*topics: str) -> pa.Table:
    """Return records, one after the other from these topics."""
    raw = records([{"n": i} for i in range(len(topics))])
    return raw.set_column(raw.schema.get_field_index("topic"), "topic", pa.array(topics))


def test_the_rows_of_each_topic_go_to_its_bronze_table() -> None:
    """Without it a record is in the table of another topic, or in none."""
    batch = of_topics("a-b", "c", "a-b", "d.e", "f.g", "a_b").to_batches()[0]

    found = dict(Rows(batch, {}).by_topic(BRONZE.of))

    assert {table: list(at) for table, at in found.items()} == {  # type: ignore[arg-type]
        "bronze.a_b": [0, 2, 5],
        "bronze.c": [1],
        "bronze.other_topics": [3, 4],
    }
    assert np.sort(np.concatenate(list(found.values()))).tolist() == [*range(6)]  # type: ignore[arg-type]
    assert dict(Rows(batch.take(pa.array([0, 2])), {}).by_topic(BRONZE.of)) == {"bronze.a_b": None}
