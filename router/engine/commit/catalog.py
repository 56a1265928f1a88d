"""Register the tables of a lake in the catalog of Spark's session, as `layer.table` (`register: true`).

Nothing of the router reads the catalog: the tables are found by their places. So a metastore that does not answer holds
up no batch, and the tables are registered after a later one.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from router.errors import TableError
from router.own_names import OWN_LAYERS
from router.spark_internals import first_cause

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from router.delta.lake import Lake

log = logging.getLogger("router")
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 600.0
"""Seconds before the catalog is asked again. Spark tries for some twelve seconds to reach a metastore that is down, and
the stream waits meanwhile."""


@dataclass
class Catalog:
    """The catalog of a session. Its schemas are the layers; outboxes and quarantines are not in it."""

    spark: SparkSession
    lake: Lake
    known: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    """Tables that the catalog could not take yet."""
    next_try: float = 0.0
    pause: float = FIRST_PAUSE

    def register_tables(self, tables: Iterable[str]) -> None:
        """Register tables that are not registered, or note that they have to wait.

        Raises TableError if the name is that of a table elsewhere.
        """
        for table in tables:
            if table not in self.known and not table.startswith(OWN_LAYERS):
                self.waiting.add(table)
        if not self.waiting or time.monotonic() < self.next_try:
            return
        had_to_wait = self.next_try > 0
        for table in sorted(self.waiting):
            try:
                self._register_table(table)
            except (PySparkException, Py4JError) as error:
                self._postpone_next_try(table, error)
                return
            self.known.add(table)
            self.waiting.remove(table)
        self.next_try = 0.0
        self.pause = FIRST_PAUSE
        if had_to_wait:
            log.info("the catalog takes tables again")

    def _postpone_next_try(self, table: str, error: Exception) -> None:
        message = "the catalog does not take %s: %s; the batch goes on, and tables are registered after one in %.0f s"
        log.warning(message, table, first_cause(error), self.pause)
        self.next_try = time.monotonic() + self.pause
        self.pause = min(LONGEST_PAUSE, 2 * self.pause)

    def _register_table(self, table: str) -> None:
        layer, _, name = table.partition(".")
        self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS `{layer}`")
        if self.spark.catalog.tableExists(table):
            (detail,) = self.spark.sql(f"DESCRIBE DETAIL `{layer}`.`{name}`").select("location").collect()
            location = str(detail["location"])
            if location.removeprefix("file:") != self.lake.spark_address(table):
                raise TableError(table, f"the catalog has one of this name at {location}; drop it there, or its entry")
            return
        address = self.lake.spark_address(table).replace("'", "\\'")
        self.spark.sql(f"CREATE TABLE IF NOT EXISTS `{layer}`.`{name}` USING delta LOCATION '{address}'")
