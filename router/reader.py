"""Read tables of a lake by name, in a notebook: as they are, as they were, or what has changed."""

from __future__ import annotations

import fnmatch
import os
from datetime import datetime, timezone
from functools import reduce
from typing import TYPE_CHECKING

from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from router.delta.lake import Lake

    Moment = int | str | datetime

CHANGES = "delta.enableChangeDataFeed"


def read(
    name: str,
    *,
    lake: str | None = None,
    as_of: Moment | None = None,
    changes_since: Moment | None = None,
    storage_options: dict[str, str] | None = None,
) -> DataFrame:
    """Return the rows of `layer.table`; of all tables that match `silver.*`, with a column `table` that says whose.

    `lake` is the folder or URI, the variable LAKE without it, and else ./lake; `storage_options` are those of the
    configuration. `as_of` is a version, or a time (ISO 8601; UTC where it has no zone): the rows as they were then.
    `changes_since` gives what changed after a version or time, with `_change_type`, `_commit_version` and
    `_commit_timestamp`; the table must have the property delta.enableChangeDataFeed. Tables of a pattern that were not
    there yet are left out. Runs on the driver, in the session that is active, or one that it starts. Raises TableError.
    """
    from router.delta.lake import Lake  # noqa: PLC0415 - `import router` is quick without it

    place = Lake.at(lake or os.environ.get("LAKE", "./lake"), storage_options).as_noted()
    asked = ((table, _rows(place, table, handle, as_of, changes_since)) for table, handle in _handles(place, name))
    found = [(table, rows) for table, rows in asked if rows is not None]
    if not found:
        have = ", ".join(place.every_table()) or "none"
        raise TableError(name, f"{place.root} has no such table at that time; it has {have}")
    if "*" not in name:
        return found[0][1]
    from pyspark.sql import functions as F  # noqa: PLC0415

    frames = [rows.select(F.lit(table).alias("table"), "*") for table, rows in found]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _handles(lake: Lake, name: str) -> Iterator[tuple[str, DeltaTable]]:
    tables = [name]
    if "*" in name:
        layers = fnmatch.filter(lake.layers(), name.partition(".")[0])
        tables = fnmatch.filter([table for layer in layers for table in lake.tables(layer)], name)
    for table in tables:
        if handle := lake.open(table):
            yield table, handle


def _rows(lake: Lake, table: str, handle: DeltaTable, as_of: Moment | None, since: Moment | None) -> DataFrame | None:
    """Return the rows of one table; None where it was not there yet."""
    reader = _session().read.format("delta")
    if as_of is not None:
        version = _version(handle, as_of)
        return None if version is None else reader.option("versionAsOf", version).load(lake.spark_address(table))
    if since is None:
        return reader.load(lake.spark_address(table))
    if handle.metadata().configuration.get(CHANGES) != "true":
        raise TableError(table, f"it keeps no changes; give it the property {CHANGES}, from then on it does")
    last, version = handle.version(), _version(handle, since)
    first = 0 if version is None else version + 1
    changes = reader.option("readChangeFeed", "true").option("startingVersion", min(first, last))
    rows = changes.load(lake.spark_address(table))
    return rows if first <= last else rows.limit(0)


def _version(handle: DeltaTable, when: Moment) -> int | None:
    """Return the last version at a time, None before the first one; leaves the handle at it."""
    if isinstance(when, int):
        return when
    moment = datetime.fromisoformat(when.replace("Z", "+00:00")) if isinstance(when, str) else when
    moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    handle.load_as_version(moment)
    written = handle.history(1)[0]["timestamp"] / 1000
    return handle.version() if written <= moment.timestamp() else None


def _session() -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    if active := SparkSession.getActiveSession():
        return active
    from router.config.models import Config  # noqa: PLC0415
    from router.engine.spark.session import build_session  # noqa: PLC0415

    return build_session(Config.model_construct(name="notebook", spark={}))  # type: ignore[call-arg]
