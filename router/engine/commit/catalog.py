"""Make tables known to Spark's catalog, as `layer.table`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from router.delta.lake import Lake


@dataclass(frozen=True)
class Catalog:
    """The catalog of a session. Its layers are schemas; what the router keeps for itself stays out of it."""

    spark: SparkSession
    lake: Lake
    known: set[str] = field(default_factory=set)

    def register(self, tables: Iterable[str]) -> None:
        """Make tables known that are not. Raises TableError where the name is that of a table elsewhere."""
        for table in sorted(set(tables) - self.known):
            if not table.startswith(("outbox.", "quarantine.")):
                self._register(table)
            self.known.add(table)

    def _register(self, table: str) -> None:
        layer, _, name = table.partition(".")
        self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS `{layer}`")
        if self.spark.catalog.tableExists(table):
            (about,) = self.spark.sql(f"DESCRIBE DETAIL `{layer}`.`{name}`").select("location").collect()
            if (place := str(about["location"])).removeprefix("file:") != self.lake.address(table):
                raise TableError(table, f"the catalog has one of this name at {place}; drop it there, or its entry")
        else:
            place = self.lake.address(table).replace("'", "\\'")
            self.spark.sql(f"CREATE TABLE IF NOT EXISTS `{layer}`.`{name}` USING delta LOCATION '{place}'")
