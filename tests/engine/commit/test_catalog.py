"""Tables are registered in the catalog of the session; one that cannot take a table holds up no batch.

With a metastore that is down, and with two sessions at one: tests/chaos/test_catalog.py.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from router.delta.lake import Lake
from router.engine.commit import catalog
from router.engine.commit.catalog import Catalog
from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

LAYER = "of_catalog"
UNO = f"{LAYER}.uno"


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    yield Lake.at(str(tmp_path))
    spark.sql(f"DROP SCHEMA IF EXISTS {LAYER} CASCADE")


def make_table(lake: Lake) -> None:
    write_deltalake(lake.address(UNO), pa.table({"n": [1, 2]}))


def test_a_table_that_the_catalog_does_not_take_is_registered_later(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it a metastore that is down ends the stream when a new game appears."""
    caplog.set_level("INFO", "router")
    now = time.monotonic()
    monkeypatch.setattr(catalog.time, "monotonic", lambda: now)
    make_table(lake)
    schema = Path(spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:"), f"{LAYER}.db")
    schema.parent.mkdir(parents=True, exist_ok=True)
    schema.touch()  # a file in place of the schema's folder
    tables = Catalog(spark, lake)
    tables.register_tables([UNO])
    assert f"the catalog does not take {UNO}" in caplog.text

    schema.unlink()
    tables.register_tables([UNO])
    assert not spark.catalog.tableExists(UNO), "the catalog is not asked in each batch"
    now += catalog.FIRST_PAUSE
    tables.register_tables([])
    assert spark.table(UNO).count() == 2
    assert "the catalog takes tables again" in caplog.text


def test_a_name_of_a_table_elsewhere_is_an_error(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """Without it readers of the catalog take the rows of another lake for those of this one."""
    make_table(lake)
    Catalog(spark, lake).register_tables([UNO])
    other = Lake.at(str(tmp_path / "other"))
    make_table(other)

    with pytest.raises(TableError, match="the catalog has one of this name at"):
        Catalog(spark, other).register_tables([UNO])
