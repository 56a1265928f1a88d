"""Rows that wait in a lane because their table has no place for them: what they would add, and letting it.

Waiting is told from the tables alone. A row in a lane waits while its batch is above the one up to which its table has
got them, and that number is the version of a transaction id of the table (`QUERY/release/ROUTE/SINK/TABLE`), so it
changes in the very commit that brings the rows. An approval is a file beside the checkpoint, until they are in.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset, fs

from router.delta.commit import to_arrow, to_arrow_schema, to_delta
from router.delta.schema_diff import Difference, compare, plain_schema
from router.engine.label.layout import COORDINATES, VERSIONS, WAITING
from router.engine.label.route import lane_of, sink_names
from router.parts import TableSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from deltalake import DeltaTable

    from router.config.models import Config
    from router.delta.lake import Lake

OWN = {*WAITING, *COORDINATES, *VERSIONS}
"""Columns of a lane that are not those of its rows."""


@dataclass(frozen=True)
class Place:
    """Be the table of a sink that rows wait for."""

    route: str
    sink: str
    table: str

    def app_id(self, query: str) -> str:
        """Return the transaction id under which the table has what waited; its version is a batch of the query."""
        return f"{query}/release/{self.route}/{self.sink}/{self.table}"


@dataclass(frozen=True)
class Waiting:
    """Say what waits for a table, and how that would change it.

    `upto`: query (with its run) -> the last batch with a row that waits; `columns`: the schema of what the rows hold;
    `versions`: message and number of the schemas that wrote them, where known; `since`: the time of the oldest record.
    """

    place: Place
    lane: str
    rows: int
    upto: dict[str, int]
    columns: pa.Schema
    versions: tuple[str, ...]
    since: datetime | None
    change: Difference


@dataclass(frozen=True)
class Approval:
    """Let a table gain what rows of batches up to some hold. `columns` is their schema, as Delta's JSON.

    `decided`: query -> (last batch, rows), once it is known what is released. `number` makes its file its own: another
    approval for the same table, while this one is carried out, must not go with it.
    """

    place: Place
    upto: dict[str, int]
    columns: str
    number: int
    decided: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"approvals/{self.place.route}/{self.place.sink}/{self.place.table}.{self.number}.json"


def approve(checkpoint: Lake, found: Waiting) -> None:
    """Write an approval where a running or the next stream finds it."""
    write(checkpoint, Approval(found.place, found.upto, to_delta(found.columns), time.time_ns()))


def write(checkpoint: Lake, approval: Approval) -> None:
    """Write an approval whole or not at all."""
    checkpoint.write(approval.path, json.dumps(asdict(approval)).encode())


def approvals(checkpoint: Lake) -> list[Approval]:
    """Return the approvals that are not done yet, oldest first."""
    found = checkpoint.files.get_file_info(fs.FileSelector("approvals", recursive=True, allow_not_found=True))
    texts = [checkpoint.read(entry.path) for entry in found if entry.path.endswith(".json")]
    read = [json.loads(text) for text in texts if text]
    made = (Approval(**{**approval, "place": Place(**approval["place"])}) for approval in read)
    return sorted(made, key=lambda approval: approval.number)


def waiting(config: Config, lake: Lake) -> list[Waiting]:
    """Return what waits in the lanes of a configuration, whatever its sinks say now. Runs on the driver; no Spark."""
    found: list[Waiting] = []
    for route in config.routes:
        for name, sink in zip(sink_names(route.sinks), route.sinks, strict=True):
            lane = lane_of(config.name, route.name, name)
            if isinstance(sink, TableSink) and (handle := lake.open(lane)):
                found += _in_lane(lake, handle, (route.name, name, lane))
    return found


def _in_lane(lake: Lake, handle: DeltaTable, where: tuple[str, str, str]) -> Iterator[Waiting]:
    route, sink, lane = where
    if not handle.file_uris():
        return
    schema = plain_schema(to_arrow(handle))
    rows = _files(lake, handle, lane, schema)
    there = dataset.Scanner.from_dataset(rows, columns=list(WAITING)).to_table()
    for table in sorted(pc.unique(there.column("_table")).to_pylist()):
        place = Place(route, sink, table)
        target = lake.open(table)
        mine = (
            there.filter(pc.equal(there.column("_table"), table)).group_by("_query").aggregate([("_batch_id", "max")])
        )
        upto = {row["_query"]: row["_batch_id_max"] for row in mine.to_pylist()}
        left = {query: last for query, last in upto.items() if released(target, place, query) < last}
        if left:
            parts = rows.scanner(filter=_left(target, place, left)).to_batches()
            yield _told((place, lane), schema, left, parts, target)


def released(table: DeltaTable | None, place: Place, query: str) -> int:
    """Return the batch up to which what waited is in its table, -1 for none."""
    version = table.transaction_version(place.app_id(query)) if table else None
    return -1 if version is None else version


def _left(target: DeltaTable | None, place: Place, upto: dict[str, int]) -> pc.Expression:
    after = [(pc.field("_query") == query) & (pc.field("_batch_id") > released(target, place, query)) for query in upto]
    either = after[0]
    for one in after[1:]:
        either |= one
    return (pc.field("_table") == place.table) & either


def _files(lake: Lake, handle: DeltaTable, lane: str, schema: pa.Schema) -> dataset.Dataset:
    """Return the rows of a lane: delta-rs does not read a table that was widened, but its files can be."""
    folder = lane.replace(".", "/")
    actions: Any = pa.table(handle.get_add_actions())
    paths = [f"{folder}/{path}" for path in actions.column("path").to_pylist()]
    return dataset.dataset(paths, schema=schema, format="parquet", filesystem=lake.files)


def _told(
    where: tuple[Place, str],
    schema: pa.Schema,
    upto: dict[str, int],
    parts: Iterable[pa.RecordBatch],
    target: DeltaTable | None,
) -> Waiting:
    place, lane = where
    rows, since = 0, None
    valued: set[str] = set()
    versions: set[str] = set()
    for part in parts:
        rows += part.num_rows
        for name in set(schema.names) - OWN - valued:
            if part.column(name).null_count < part.num_rows:  # a zero, too: a row that waits loses nothing
                valued.add(name)
        versions |= _versions(part)
        times = pc.min(part.column("_timestamp")).as_py() if "_timestamp" in schema.names else None
        since = min(filter(None, (since, times)), default=None)
    columns = pa.schema([field for field in schema if field.name in valued])
    change = compare(plain_schema(to_arrow(target)), columns) if target else Difference(added=tuple(columns))
    return Waiting(place, lane, rows, upto, columns, tuple(sorted(versions)), since, change)


def _versions(part: pa.RecordBatch) -> set[str]:
    """Return the schemas of records as text: message and version, or its id where there is no version."""
    names = [name for name in VERSIONS if name in part.schema.names]
    if not names:
        return set()
    known = pa.Table.from_batches([part.select(names)]).group_by(names).aggregate([]).to_pylist()
    return {_version(row) for row in known} - {""}


def _version(row: dict[str, Any]) -> str:
    version, of = row.get("_schema_version"), row.get("_schema_id")
    number = f"version {version}" if version is not None else f"schema {of}" if of is not None else ""
    return " ".join(filter(None, (row.get("_message"), number)))


def allowed(table: pa.Schema | None, approval: Approval) -> dict[str, pa.DataType]:
    """Return the columns and types that a table may have after an approval."""
    come = plain_schema(to_arrow_schema(approval.columns))
    if table is None:
        return {column.name: column.type for column in come}
    change = compare(table, come)
    return {column.name: column.type for column in (*table, *change.added, *change.widened)}
