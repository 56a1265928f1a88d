"""Read the tables of a lake by name in a notebook: as they are, as they were, or what has changed in them."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from router.errors import TableError
from router.moments import parse_moment

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from router.delta.lake import Lake
    from router.engine.audit.as_of import TableVersion

    Moment = int | str | datetime

_CHANGE_DATA_FEED = "delta.enableChangeDataFeed"


def read(
    name: str,
    *,
    lake: str | None = None,
    as_of: Moment | Mapping[str, int] | None = None,
    changes_since: Moment | None = None,
    storage_options: dict[str, str] | None = None,
    ledger: str = "ops.ledger",
) -> DataFrame:
    """Return the rows of the table `layer.table`, or of all tables that match a pattern as `silver.*`.

    Rows of a pattern have a column `table`, the name of their table, in front. `lake` is a folder or URI; without it
    the environment variable LAKE counts, and else ./lake. `storage_options` are those of the configuration.

    `as_of` is a version, or a time (ISO 8601; UTC if it has no zone): return the rows as they were then. Tables of a
    pattern that did not exist then are left out. A dictionary is one moment for all tables: query -> the number of a
    batch in `ledger`. Each table is returned as it was when these batches had ended, with what views, releases and
    others had committed by then. `changes_since` is a version or time: return the changes after it,
    with `_change_type`, `_commit_version` and `_commit_timestamp`; the table must have the property
    delta.enableChangeDataFeed.

    Runs on the driver, in the active session or in a new one. Raises TableError, also with the names of all tables
    that do not go back so far, and StartError for a batch that the ledger does not have.
    """
    from router.delta.lake import Lake  # noqa: PLC0415 - `import router` is quick without it

    # People give no locations here: those that the router noted in the lake tell where its tables are.
    tables_of = Lake.at(lake or os.environ.get("LAKE", "./lake"), storage_options).as_noted()
    names = _matching_tables(tables_of, name)
    moments: dict[str, tuple[str, Moment | None]] = {}
    if isinstance(as_of, Mapping):
        moments |= _versions_after(tables_of, ledger, as_of, names)
    else:
        moments |= {table: (table, as_of) for table in names}
    frames: dict[str, DataFrame] = {}
    for table, (opened, moment) in moments.items():
        handle = tables_of.open(opened)
        if handle is None:
            continue
        rows = _read_rows(tables_of, opened, handle, moment, changes_since)
        if rows is not None:
            frames[table] = rows
    if not frames:
        have = ", ".join(tables_of.every_table()) or "none"
        raise TableError(name, f"{tables_of.root} has no such table at that time; it has {have}")
    if "*" not in name:
        return frames[name]
    return _union_tables(frames)


def _matching_tables(lake: Lake, name: str) -> list[str]:
    """Return the tables that a pattern matches; a name without `*` is its own match, whether it exists or not."""
    if "*" not in name:
        return [name]
    tables: list[str] = []
    for layer in fnmatch.filter(lake.layer_names(), name.partition(".")[0]):
        tables += fnmatch.filter(lake.table_names(layer), name)
    return tables


def _versions_after(lake: Lake, ledger: str, batches: Mapping[str, int], tables: list[str]) -> dict[str, TableVersion]:
    """Return the version of each table that existed when batches had ended."""
    from router.engine.audit.as_of import LakeMoment, versions_at  # noqa: PLC0415 - `import router` is quick without it

    versions, faults = versions_at(lake, LakeMoment.of_batches(lake, ledger, batches), tables)
    if faults:
        raise TableError(", ".join(faults), "; ".join(faults.values()))
    return versions


def _union_tables(frames: dict[str, DataFrame]) -> DataFrame:
    """Return the rows of all tables, each with the name of its table; columns that one lacks are null."""
    from pyspark.sql import functions as F  # noqa: PLC0415 - `import router` is quick without it

    named = [rows.select(F.lit(table).alias("table"), "*") for table, rows in frames.items()]
    union = named[0]
    for rows in named[1:]:
        union = union.unionByName(rows, allowMissingColumns=True)
    return union


def _read_rows(
    lake: Lake, table: str, handle: DeltaTable, as_of: Moment | None, since: Moment | None
) -> DataFrame | None:
    """Return the rows or changes of one table; None if it did not exist at the time `as_of`."""
    address = lake.spark_address(table)
    reader = _active_or_new_session().read.format("delta")
    if as_of is not None:
        version = _version_at(handle, as_of)
        if version is None:
            return None
        return reader.option("versionAsOf", version).load(address)
    if since is None:
        return reader.load(address)
    if handle.metadata().configuration.get(_CHANGE_DATA_FEED) != "true":
        raise TableError(table, f"it keeps no changes; give it the property {_CHANGE_DATA_FEED}, from then on it does")
    newest = handle.version()  # before `_version_at`, which moves the handle
    seen = _version_at(handle, since)
    first = 0 if seen is None else seen + 1
    # Delta refuses to start after the newest version. So start at it to get the columns, and drop its rows.
    changes = reader.option("readChangeFeed", "true").option("startingVersion", min(first, newest)).load(address)
    if first > newest:
        return changes.limit(0)
    return changes


def _version_at(handle: DeltaTable, moment: Moment) -> int | None:
    """Return the last version at a time, None before the first one. Moves the handle to that version."""
    if isinstance(moment, int):
        return moment
    if isinstance(moment, str):
        moment = parse_moment(moment)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    handle.load_as_version(moment)
    # For a time before the first version delta-rs loads the first one: compare with when it was written.
    written = handle.history(1)[0]["timestamp"] / 1000
    if written > moment.timestamp():
        return None
    return handle.version()


def _active_or_new_session() -> SparkSession:
    """Return the active session, or a new one with the connectors of the router."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    from router.config.models import Config  # noqa: PLC0415
    from router.engine.spark.session import build_session  # noqa: PLC0415

    return build_session(Config.model_construct(name="notebook", spark={}))  # type: ignore[call-arg]
