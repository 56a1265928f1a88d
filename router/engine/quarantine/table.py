"""The quarantine: a Delta table per sink, the router's own, for whole rows that their table does not take.

| rows wait because | `_cause` | they leave it |
|---|---|---|
| their table may not take them yet (`evolution: quarantine`) | null | after `router approve`; others land past them |
| their table cannot be written: damaged, lost rights, an unknown feature, ... | says why | by themselves, in order |
| they violate an expectation (`otherwise: quarantine`) | names it (`HELD`) | after `router quarantine release` |

Either way a release is one commit: the table has a transaction id of the kind `release` (`unblock` for the second
kind, `held` for the third), whose version is the last batch whose rows were released. What is to be done stands
in the checkpoint's store: an approval, or a note for each blocked table, while there is one. A blocked table gets rows
by its release only, so that those of later batches wait behind those of earlier ones; `release` carries both out
between two batches.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from pyspark.sql import functions as F

from router.columns import quoted
from router.delta.commit import TableCommit, is_committed, to_arrow, to_arrow_schema, to_delta
from router.delta.lake import DAMAGED_LOG
from router.delta.replace_by_spark import staged_rows
from router.delta.schema_diff import SchemaDiff, compare, delta_schema
from router.delta.table_cache import SparkTable, TableCache
from router.delta.transaction_id import ReleaseKind, TransactionId, moved_rows_id
from router.delta.widening import rewrite, way
from router.engine.commit.violations import CONSTRAINT_CAUSE, Conditions
from router.engine.json_rows import ROW, as_json
from router.engine.label.layout import HELD, MERGED_COORDINATES, QUARANTINE_COLUMNS, SCHEMA_COLUMNS, quarantine_of
from router.errors import TableError
from router.spark_internals import to_spark_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

    from router.config.models import Config
    from router.delta.commit import StagedFile
    from router.delta.lake import Lake
    from router.engine.checkpoint_store import CheckpointStore, Manifest
    from router.engine.commit.committers import Committers

log = logging.getLogger("router")
OWN = {*QUARANTINE_COLUMNS, *MERGED_COORDINATES, *SCHEMA_COLUMNS, ROW}
"""Columns of a quarantine that are not those of its rows."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 600.0
"""Seconds between two tries to release the rows of a blocked table: twice as many after each."""
ROWS_AT_ONCE = 16_384
"""Rows that are held while a quarantine is listed."""


Kind = ReleaseKind
"""Why rows wait: for an approval, for a table that cannot be written, or because of an expectation."""


WAITS_FOR: dict[Kind, str] = {"release": "approval", "unblock": "table", "held": "release"}
"""What rows wait for, by the kind of their release: in JSON, and on the page of a stream."""


def kind_of(cause: str | None) -> Kind:
    """Return why rows with a cause wait."""
    return "release" if cause is None else "held" if cause.startswith(HELD) else "unblock"


@dataclass(frozen=True)
class Place:
    """The table of a sink that quarantined rows are for."""

    route: str
    sink: str
    table: str

    @classmethod
    def of(cls, place: str) -> Place:
        """Return the place of a key of demands, ROUTE/SINK/TABLE."""
        key, _, table = place.rpartition("/")
        route, _, sink = key.partition("/")
        return cls(route, sink, table)

    def app_id(self, query: str, kind: Kind = "release") -> str:
        """Return the transaction id of releases into the table; its version is a batch of the query."""
        return str(TransactionId(kind, query, self.route, self.sink, self.table))

    def __str__(self) -> str:
        return f"{self.route}/{self.sink}/{self.table}"


@dataclass(frozen=True)
class Quarantined:
    """The quarantined rows of a table, and how they would change it.

    `cause` says why they wait, null where it is for an approval. `upto`: query (with its
    run) -> the last batch with a quarantined row; `columns`: the schema of what the rows hold; `versions`: message and
    number of the schemas that wrote them, where known; `since`: the time of the oldest record, where known.
    """

    place: Place
    quarantine: str
    cause: str | None
    rows: int
    upto: dict[str, int]
    columns: pa.Schema
    versions: tuple[str, ...]
    since: datetime | None
    change: SchemaDiff

    @property
    def kind(self) -> Kind:
        """Return why they wait."""
        return kind_of(self.cause)


@dataclass(frozen=True)
class PendingRelease:
    """What is to become of the quarantined rows of a table: an approval of somebody, or the note of a blocked table.

    An approval lets the table take the rows of batches up to `upto`, whose schema as Delta's JSON is `columns`; with
    `discard` they become dead letters instead. `number` makes the file's name unique: a second approval for the same
    table, written while this one is carried out, must not be deleted with it.

    With a `cause` it is the note of a blocked table: `upto` and `columns` are what waits when its release is tried, the
    next time at `due` (seconds since 1970), after `tries` that failed. With `forced` a person goes on with the table as
    it is, though it lacks batches.

    Of both: `decided`: query -> (last batch, rows that land), once that is decided; `refused`: query -> the rows beside
    them that violate what their table demands; `demanded`: query -> that, as it was then.
    """

    place: Place
    upto: dict[str, int] = field(default_factory=dict)
    columns: str = ""
    number: int = 0
    decided: dict[str, tuple[int, int]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    demanded: dict[str, Conditions] = field(default_factory=dict)
    discard: bool = False
    blocked: bool = False
    held: bool = False
    cause: str = ""
    due: float = 0.0
    tries: int = 0
    forced: bool = False

    @property
    def kind(self) -> Kind:
        """Return why the rows wait."""
        return "held" if self.held else "unblock" if self.blocked else "release"

    @property
    def path(self) -> str:
        """Return where it lies in the store."""
        if self.cause:
            return f"blocked/{self.place}.json"
        return f"approvals/{self.place}.{self.number}.json"


def approve(store: CheckpointStore, found: Quarantined, *, discard: bool = False) -> None:
    """Write an approval; the running or the next stream carries it out."""
    about = found.place, found.upto, to_delta(found.columns), time.time_ns()
    blocked, held = found.kind == "unblock", found.kind == "held"
    write(store, PendingRelease(*about, discard=discard, blocked=blocked, held=held))


def try_now(store: CheckpointStore, found: Quarantined) -> None:
    """Let the release of a blocked table be tried next, whatever its pause."""
    for note in pending_releases(store, "blocked"):
        if note.place == found.place:
            write(store, replace(note, due=0.0, tries=0, forced=True))


def write(store: CheckpointStore, pending: PendingRelease) -> None:
    """Write an approval or a note whole or not at all."""
    store.write(pending.path, json.dumps(asdict(pending)).encode())


def pending_releases(store: CheckpointStore, folder: str = "approvals") -> list[PendingRelease]:
    """Return the approvals (or the notes in `blocked`) that are not carried out yet, oldest first."""
    read = [found for path in store.paths(folder) if (found := store.load(path))]
    made = (PendingRelease(**{**pending, "place": Place(**pending["place"])}) for pending in read)
    return sorted(made, key=lambda pending: pending.number)


def blocked_places(store: CheckpointStore) -> dict[str, str]:
    """Return why tables cannot be written, by place."""
    return {str(note.place): note.cause for note in pending_releases(store, "blocked")}


@dataclass(frozen=True)
class Quarantine:
    """The quarantine of one query: which tables are blocked, and the rows of commits that failed."""

    config: Config
    lake: Lake
    store: CheckpointStore
    committers: Committers
    query: str

    def blocked(self) -> dict[str, str]:
        """Return why tables cannot be written, by place."""
        return blocked_places(self.store)

    def block(self, blocked: dict[str, str]) -> None:
        """Note tables that cannot be written, before anything says that their rows are in the quarantine."""
        for place in sorted(blocked.keys() - self.blocked().keys() if blocked else ()):
            found = Place.of(place)
            cause = blocked[place]
            pause = 0 if cause.startswith(CONSTRAINT_CAUSE) else FIRST_PAUSE  # the release can do what no task can
            write(self.store, PendingRelease(found, cause=cause, blocked=True, due=time.time() + pause))
            text = "%s: %s cannot be written, its rows go to the quarantine until it can: %s%s"
            hint = "; `router repair` makes it whole again" if DAMAGED_LOG in blocked[place] else ""
            log.warning(text, self.config.name, found.table, blocked[place], hint)

    def note_again(self) -> None:
        """Note tables that rows wait for and whose note is lost: without it rows of later batches land before those."""
        waiting: dict[str, str] = {}
        for route, name, _ in self.config.all_sinks():
            found = _causes(self.lake, quarantine_of(self.config.name, route, name))
            waiting |= {str(Place(route, name, table)): cause for table, cause in found.items()}
        self.block(waiting)

    def has(self, work: TableCommit) -> bool:
        """Say whether the rows of a commit that failed are in the quarantine."""
        table = TableCache(self.lake).open([self._table(work)])[self._table(work)]
        return table is not None and is_committed(table, replace(work, app_id=moved_rows_id(work.app_id)))

    def take(self, work: TableCommit, manifest: Manifest) -> None:
        """Put the rows of a commit that failed into the quarantine, once. Raises TableError.

        They were staged for their table, so that the coordinates of each are not known any more; those of an outbox
        have them, and become JSON.
        """
        session = self.committers.spark.newSession()
        about = (work.table, self.query, work.version, manifest.quarantined[work.place])
        kinds = to_spark_columns(pa.schema(list(QUARANTINE_COLUMNS.items())))
        own = [F.lit(value).cast(c.dataType).alias(c.name) for value, c in zip(about, kinds, strict=True)]
        rows = staged_rows(session, self.lake, work)
        moved = TableCommit(work.target, self._table(work), moved_rows_id(work.app_id), work.version, (), work.columns)
        if work.table.startswith("outbox."):
            rows = as_json(rows, own)
        else:
            rows, moved = self._in_types_of_quarantine(rows, moved)
            rows = rows.select(*own, "*")
        self.committers.append(session, moved, manifest.notes(self.query), rows)
        if not isinstance(TableCache(self.lake).readable([work.table])[work.table], TableError):
            for file in work.files:  # a log that nobody can read may refer to them: it may be put back
                self.lake.delete(file.path)

    def _in_types_of_quarantine(self, rows: DataFrame, moved: TableCommit) -> tuple[DataFrame, TableCommit]:
        """Return staged rows cast where the quarantine has wider types, and the commit with those it has to widen.

        A quarantine has rows of many tables: some types are wider than those of this one, others narrower.
        """
        handle: Any = TableCache(self.lake).open([moved.table])[moved.table]
        if handle is None:
            return rows, moved
        change = compare(delta_schema(to_arrow(handle)), delta_schema(to_arrow_schema(moved.columns)))
        if change.cast:
            kinds = to_spark_columns(pa.schema(list(change.cast.items())), ntz=True)
            rows = rows.withColumns({kind.name: F.col(quoted(kind.name)).cast(kind.dataType) for kind in kinds})
        if not change.widened:
            return rows, moved
        widened = to_delta(pa.schema(list(change.widened)))
        if isinstance(handle, SparkTable) or way(handle, moved.table, "feature") == "feature":
            return rows, replace(moved, widened=widened)  # the append widens them in place
        rewrite(self.lake, moved.table, handle, widened, moved.app_id)
        return rows, moved

    def size(self, staged: Iterable[StagedFile]) -> int:
        """Return the bytes that the quarantine has with what is staged for it; 0 where nothing is."""
        more = sum(file.bytes for file in staged if file.table.startswith("quarantine."))
        if not more:
            return 0
        tables = {quarantine_of(self.config.name, route, name) for route, name, _ in self.config.all_sinks()}
        handles = TableCache(self.lake).open(tables).values()
        return more + sum(pc.sum(_actions(handle).column("size_bytes")).as_py() or 0 for handle in handles if handle)

    def _table(self, work: TableCommit) -> str:
        return quarantine_of(self.config.name, *work.target.split("/", 1))


def _causes(lake: Lake, quarantine: str) -> dict[str, str]:
    """Return the tables that rows of a quarantine wait for because they could not be written, each with the cause."""
    try:
        handle = lake.open(quarantine)
        if handle is None or not handle.file_uris():
            return {}
        found: dict[str, str] = {}
        for path in _files(handle, quarantine):
            for part in _parts(lake, path, ["_table", "_cause"]):
                for row in part.group_by(["_table", "_cause"]).aggregate([]).to_pylist():
                    if kind_of(row["_cause"]) == "unblock":
                        found[row["_table"]] = max(row["_cause"], found.get(row["_table"], ""))
    except (DeltaError, OSError):  # the first batch that needs it says what is wrong
        return {}
    return found


def _actions(handle: DeltaTable) -> pa.Table:
    return pa.table(handle.get_add_actions())


def quarantined(config: Config, lake: Lake) -> list[Quarantined]:
    """Return the quarantined rows by table, whatever the sinks say now. Runs on the driver, without Spark."""
    found: list[Quarantined] = []
    for route, name, _ in config.all_sinks():
        table = quarantine_of(config.name, route, name)
        if handle := lake.open(table):
            found += quarantined_in(lake, handle, (route, name, table))
    return found


def quarantined_in(
    lake: Lake, handle: DeltaTable, where: tuple[str, str, str], table: str | None = None
) -> Iterator[Quarantined]:
    """Yield the rows of one sink's quarantine by table, apart by why they wait; of one table only if it is named.

    The files are read twice, a part at a time: for which rows there are, then for what they hold.
    """
    route, sink, quarantine = where
    if not handle.file_uris():
        return
    schema = delta_schema(to_arrow(handle))
    schema = schema if "_cause" in schema.names else schema.append(pa.field("_cause", pa.string()))
    batches, files = _waiting_batches(lake, _files(handle, quarantine), table)
    targets = TableCache(lake).readable({name for name, _ in batches})
    waiting: dict[_Key, _WaitingRows] = {}
    for (name, kind), batches_of_query in sorted(batches.items()):
        target = targets[name]
        target = None if isinstance(target, TableError) else target
        place = Place(route, sink, name)
        rows_of_table = _WaitingRows(place, kind, target)
        for query, (first, last) in batches_of_query.items():
            after = released(target, place, query, kind)
            if after >= last:
                continue
            rows_of_table.upto[query] = last
            # Rows that are released are deleted at once: they are here only after a release that was cut off.
            if after >= first:
                rows_of_table.released[query] = after
        if rows_of_table.upto:
            waiting[name, kind] = rows_of_table
    _describe(lake, [path for path, keys in files.items() if keys & waiting.keys()], schema, waiting)
    for rows_of_table in waiting.values():
        yield rows_of_table.quarantined(quarantine, schema)


_Key = tuple[str, Kind]
"""A table, and why its rows wait."""


@dataclass
class _WaitingRows:
    """What is known of the quarantined rows of a table that wait for one reason.

    `released` has the last batch that is in the table already, of queries with rows that are not deleted yet.
    """

    place: Place
    kind: Kind
    target: DeltaTable | None
    upto: dict[str, int] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=dict)
    cause: str | None = None
    rows: int = 0
    since: datetime | None = None
    valued: set[str] = field(default_factory=set)
    versions: set[str] = field(default_factory=set)

    def add(self, group: dict[str, Any]) -> None:
        """Add a group of rows of one query and one cause: how many, and what they hold."""
        if group["_query"] not in self.upto:
            return
        self.rows += group["_batch_id_count"]
        self.versions |= {_version(group)} - {""}
        if group["_cause"]:
            self.cause = max(group["_cause"], self.cause or "")
        since = group.get("_timestamp_min")
        if since is not None and (self.since is None or since < self.since):
            self.since = since
        for name, value in group.items():
            if value is True and name.endswith(_HAS_VALUE):
                self.valued.add(name.removesuffix(_HAS_VALUE))

    def quarantined(self, quarantine: str, schema: pa.Schema) -> Quarantined:
        """Return the rows with what they would change in their table."""
        columns = pa.schema([column for column in schema if column.name in self.valued])
        if self.target is None:
            change = SchemaDiff(added=tuple(columns))
        else:
            change = compare(delta_schema(to_arrow(self.target)), columns)
        versions = tuple(sorted(self.versions))
        return Quarantined(
            self.place, quarantine, self.cause, self.rows, self.upto, columns, versions, self.since, change
        )


_HAS_VALUE = "_any"
"""How Arrow calls the column that says whether any row of a group has a value."""


def _waiting_batches(
    lake: Lake, paths: list[str], table: str | None
) -> tuple[dict[_Key, dict[str, tuple[int, int]]], dict[str, set[_Key]]]:
    """Return the first and the last batch of each query with rows in a quarantine, and of which each file has rows."""
    batches: dict[_Key, dict[str, tuple[int, int]]] = {}
    files: dict[str, set[_Key]] = {path: set() for path in paths}
    for path in paths:
        for part in _parts(lake, path, list(QUARANTINE_COLUMNS)):
            grouped = part.group_by(["_table", "_cause", "_query"])
            for row in grouped.aggregate([("_batch_id", "min"), ("_batch_id", "max")]).to_pylist():
                if table not in (None, row["_table"]):
                    continue
                key: _Key = row["_table"], kind_of(row["_cause"])
                files[path].add(key)
                of_query = batches.setdefault(key, {})
                first, last = of_query.get(row["_query"], (row["_batch_id_min"], row["_batch_id_max"]))
                of_query[row["_query"]] = min(first, row["_batch_id_min"]), max(last, row["_batch_id_max"])
    return batches, files


def _describe(lake: Lake, paths: list[str], schema: pa.Schema, waiting: dict[_Key, _WaitingRows]) -> None:
    """Add to what waits how many rows it has and what they hold."""
    about = [name for name in SCHEMA_COLUMNS if name in schema.names]
    times = ["_timestamp"] if "_timestamp" in schema.names else []
    names = [name for name in schema.names if name not in OWN]
    for path in paths:
        # A column that every table is known to have a value of need not be read any more.
        undecided = [name for name in names if any(name not in rows.valued for rows in waiting.values())]
        for part in _parts(lake, path, [*QUARANTINE_COLUMNS, *about, *times, *undecided]):
            for group in _groups(_not_released(part, waiting), about, undecided):
                rows_of_table = waiting.get((group["_table"], kind_of(group["_cause"])))
                if rows_of_table is not None:
                    rows_of_table.add(group)


def _not_released(rows: pa.Table, waiting: dict[_Key, _WaitingRows]) -> pa.Table:
    """Return rows without those that their table has already."""
    for rows_of_table in waiting.values():
        for query, last in rows_of_table.released.items():
            condition = (pc.field("_table") == rows_of_table.place.table) & _of_kind(rows_of_table.kind)
            condition &= (pc.field("_query") == query) & (pc.field("_batch_id") <= last)
            # A condition that is null for a row would drop it.
            rows = rows.filter(~pc.coalesce(condition, False))
    return rows


def _groups(part: pa.Table, about: list[str], undecided: list[str]) -> list[dict[str, Any]]:
    """Return rows by table, cause, query and schema: how many, the oldest time, and which columns have a value."""
    columns = {name: part.column(name) for name in (*QUARANTINE_COLUMNS, *about)}
    wanted = [("_batch_id", "count")]
    if "_timestamp" in part.column_names:
        columns["_timestamp"] = part.column("_timestamp")
        wanted.append(("_timestamp", "min"))
    for name in undecided:  # a zero is a value: a quarantined row loses nothing
        columns[name] = part.column(name).is_valid()
        wanted.append((name, "any"))
    keys = ["_table", "_cause", "_query", *about]
    found: list[dict[str, Any]] = pa.table(columns).group_by(keys).aggregate(wanted).to_pylist()
    return found


def released(table: DeltaTable | None, place: Place, query: str, kind: Kind = "release") -> int:
    """Return the last batch whose quarantined rows were released into the table, -1 for none."""
    version = table.transaction_version(place.app_id(query, kind)) if table else None
    return -1 if version is None else version


def _of_kind(kind: Kind) -> pc.Expression:
    cause = pc.field("_cause")
    held = pc.starts_with(cause, HELD)
    return {"release": cause.is_null(), "unblock": cause.is_valid() & ~held, "held": cause.is_valid() & held}[kind]


def _files(handle: DeltaTable, quarantine: str) -> list[str]:
    """Return the files of a quarantine: delta-rs does not read a table that was widened, but its files can be."""
    folder = quarantine.replace(".", "/")
    return [f"{folder}/{path}" for path in _actions(handle).column("path").to_pylist()]


def _parts(lake: Lake, path: str, columns: list[str]) -> Iterator[pa.Table]:
    """Yield some columns of a file's rows, a part of the rows at a time; a column that the file lacks is null.

    A scan of Arrow's `dataset` holds a whole row group at once, which here may be the whole file.
    """
    with lake.files.open_input_file(path) as source:
        file = pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20)
        names = [name for name in columns if name in file.schema_arrow.names]
        for part in file.iter_batches(ROWS_AT_ONCE, columns=names, use_threads=False):
            rows = pa.Table.from_batches([part]).select(names)
            for name in columns:
                if name not in names:
                    rows = rows.append_column(name, pa.nulls(len(rows), QUARANTINE_COLUMNS.get(name, pa.null())))
            yield rows


def _version(row: dict[str, Any]) -> str:
    version, of = row.get("_schema_version"), row.get("_schema_id")
    number = f"version {version}" if version is not None else f"schema {of}" if of is not None else ""
    return " ".join(filter(None, (row.get("_message"), number)))


def allowed(table: pa.Schema | None, pending: PendingRelease) -> dict[str, pa.DataType]:
    """Return the columns and types that a table may have after an approval."""
    come = delta_schema(to_arrow_schema(pending.columns))
    if table is None:
        return {column.name: column.type for column in come}
    change = compare(table, come)
    return {column.name: column.type for column in (*table, *change.added, *change.widened)}
