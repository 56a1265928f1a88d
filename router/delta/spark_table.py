"""A Delta table as Delta on Spark sees it, for lakes that only Spark may reach. Runs on the driver."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltalake import Schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from router.delta.lake import Lake


@dataclass(frozen=True)
class SparkMetadata:
    """What the router reads of a table's metadata."""

    configuration: dict[str, str]


@dataclass(frozen=True)
class SparkTable:
    """A version of a table, by Delta's own snapshot: it answers what the router asks of a `DeltaTable`."""

    snapshot: Any

    def version(self) -> int:
        """Return the version."""
        return int(self.snapshot.version())

    def schema(self) -> Schema:
        """Return the columns."""
        return Schema.from_json(self.snapshot.metadata().schemaString())

    def metadata(self) -> SparkMetadata:
        """Return the table's properties."""
        return SparkMetadata(json.loads(self.snapshot.metadata().json())["metaData"].get("configuration", {}))

    def transaction_version(self, app_id: str) -> int | None:
        """Return the version of a transaction id, None where the table has none of it."""
        found = self.snapshot.transactions().get(app_id)
        return int(found.get()) if found.isDefined() else None


@dataclass(frozen=True)
class SparkTables:
    """The tables of a lake, read through Spark at every call: Delta keeps their logs in memory itself."""

    spark: SparkSession
    lake: Lake

    def open(self, tables: Iterable[str]) -> dict[str, SparkTable | None]:
        """Return tables at their newest version; None where there is none."""
        return {name: spark_table(self.spark, self.lake, name) for name in sorted(tables)}


def spark_table(spark: SparkSession, lake: Lake, name: str) -> SparkTable | None:
    """Return the table of that name at its newest version, or None where there is none."""
    jvm: Any = spark.sparkContext._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, lake.address(name))
    return (
        SparkTable(log.update(False, jvm.scala.Option.empty(), jvm.scala.Option.empty())) if log.tableExists() else None
    )
