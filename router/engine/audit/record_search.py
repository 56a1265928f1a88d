"""Find what a lake has of one record: rows with its coordinates, and the commits of its batch. Without Spark.

Files of a table are skipped by the statistics in its log. The log is searched by halves: each commit that is read tells
which batch was the last one until then.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from router.delta.dataset import rows_with
from router.delta.history import REPAIRED, log_commits, log_versions
from router.delta.unreadable_values import as_rows
from router.errors import TableError
from router.own_names import OFFSET, PARTITION, TOPIC
from router.record import PLACE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalake import DeltaTable

    from router.delta.history import LogCommit
    from router.delta.lake import Lake

OWN_PLACE = (TOPIC, PARTITION, OFFSET)
"""The coordinates of records in tables that the router adds them to: of upserts, outboxes and quarantines."""


class TracedPlace(NamedTuple):
    """The place of a record; topic and partition are None if its source has none."""

    topic: str | None
    partition: int | None
    offset: int

    def __str__(self) -> str:
        return "/".join("" if part is None else str(part) for part in self)

    def holds(self, columns: tuple[str, ...]) -> pc.Expression:
        """Return the condition that columns have the coordinates of the record, or the first ones of them."""
        condition = pc.scalar(True)
        for column, value in zip(columns, self, strict=False):
            condition &= pc.field(column).is_null() if value is None else pc.field(column) == value
        return condition


def coordinates_in(schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns in which a table has the coordinates of records; none if it has no such columns."""
    for columns in (OWN_PLACE, PLACE):
        # Others may have columns of these names, of other types.
        if set(columns) <= set(schema.names) and pa.types.is_integer(schema.field(columns[-1]).type):
            return columns
    return ()


def rows_at(table: DeltaTable, place: TracedPlace) -> list[dict[str, Any]] | None:
    """Return the rows of a table that have the coordinates of a record; None if it has no coordinates."""
    columns = coordinates_in(pa.schema(table.schema().to_arrow()))
    if not columns:
        return None
    return as_rows(rows_with(table, place.holds(columns), columns))


def find_commit(lake: Lake, table: str, app_id: str, batch: int, *, exact: bool = True) -> LogCommit | None:
    """Return the commit of a table that has a transaction id with this number, None if there was none.

    Without `exact` the first one with this number or a larger one. Raises TableError if the log begins too late to
    tell.
    """
    versions = log_versions(lake, table)
    if versions and versions[0] == 0 and REPAIRED in next(log_commits(lake, table, [0])).notes:
        raise TableError(table, "it was rebuilt with a new log")
    # A version knows the newest number of each id: most tables never had this one, and need no search.
    newest = lake.open(table)
    last = None if newest is None else newest.transaction_version(app_id)
    if last is None or last < batch:
        return None

    @cache
    def own_number(version: int) -> int | None:
        (commit,) = log_commits(lake, table, [version])
        return commit.transactions.get(app_id)

    def last_number(version: int) -> int:
        """Return the number that the id has after a version, -1 if no commit of the log up to it has the id."""
        for earlier in range(version, versions[0] - 1, -1):
            number = own_number(earlier)
            if number is not None:
                return number
        return -1

    index = bisect_left(versions, batch, key=last_number)
    number = own_number(versions[index]) if index < len(versions) else None
    # A commit that the log does not have any more may be the one, if it has none that came before.
    has_earlier = not versions or versions[0] == 0 or (index > 0 and last_number(versions[index - 1]) >= 0)
    if number != batch and not has_earlier:
        raise TableError(table, f"its log begins with version {versions[0]}")
    if number is None or (exact and number != batch):
        return None
    return next(log_commits(lake, table, versions[index:]))


def added_rows_at(lake: Lake, table: str, commit: LogCommit, place: TracedPlace) -> Iterator[dict[str, Any] | None]:
    """Yield the rows of a record in the files that a commit added; None for each file that was deleted since."""
    for file in commit.added:
        path = f"{table.replace('.', '/')}/{unquote(file.path)}"
        if not lake.files.get_file_info(path).is_file:
            yield None
            continue
        with lake.files.open_input_file(path) as source:
            columns = coordinates_in(pq.read_schema(source))
            if columns:
                yield from as_rows(pq.read_table(source, filters=place.holds(columns)))
