"""The quarantine: a Delta table per sink, the router's own, for whole rows that their table does not take.

| rows wait because | `_cause` | they leave it | kind |
|---|---|---|---|
| their table may not take them yet (`evolution: quarantine`) | null | after `router quarantine approve` | `release` |
| their table cannot be written: damaged, lost rights, an unknown feature, ... | why | by themselves | `unblock` |
| they violate an expectation (`otherwise: quarantine`) | `HELD` | after `router quarantine release` | `held` |

A release is one commit: the table gets a transaction id of that kind, whose version is the last batch whose rows were
released. The checkpoint's store has what to do: an approval, or a note for each table that is blocked. `release`
carries both out between two batches. A blocked table gets rows by its release only, so that rows of later batches wait
behind those of earlier ones; in the first case later rows land past those that wait.
"""

from __future__ import annotations

import json
import logging
import shlex
import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError
from pyspark.sql import functions as F

from router.api.columns import quote_identifier
from router.api.sinks import MergingSink
from router.delta.commit import TableCommit, is_committed, to_arrow, to_arrow_schema, to_delta
from router.delta.lake import is_damaged
from router.delta.replace_by_spark import staged_rows
from router.delta.schema_diff import SchemaDiff, compare_schemas, delta_schema
from router.delta.table_cache import SparkTable, TableCache
from router.delta.transaction_id import ReleaseKind, TransactionId, moved_rows_id
from router.delta.widening import choose_widening_way, rewrite_table
from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
from router.engine.commit.violations import CONSTRAINT_CAUSE, Conditions
from router.engine.json_rows import ROW, as_json
from router.engine.label.layout import (
    HELD_REASON,
    MERGED_COORDINATES,
    QUARANTINE_COLUMNS,
    SCHEMA_COLUMNS,
    quarantine_of,
)
from router.engine.merge.backlog import Backlog, BacklogStore
from router.errors import TableError, join_names, line_of, shorten_cause, to_printable
from router.own_names import BATCH_ID, CAUSE, OUTBOX, QUARANTINE, QUERY, TABLE, TIMESTAMP
from router.spark_internals import to_spark_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

    from router.config.models import Config
    from router.delta.lake import Lake
    from router.delta.staged_files import StagedFile
    from router.engine.checkpoint_store import Manifest
    from router.engine.commit.committers import Committers
    from router.states import WaitsFor

log = logging.getLogger("router")
SYSTEM_COLUMNS = {*QUARANTINE_COLUMNS, *MERGED_COORDINATES, *SCHEMA_COLUMNS, ROW}
"""Columns of a quarantine that are not those of its rows."""
FIRST_RELEASE_PAUSE_SECONDS = 5.0
"""Seconds until the first try to release the rows of a blocked table."""
_LONGEST_RELEASE_PAUSE_SECONDS = 600.0
_LISTED_ROWS_AT_ONCE = 16_384
"""Rows that memory holds while a quarantine is listed."""


def pause_after(failures: int) -> float:
    """Return the seconds until the next try to release the rows of a blocked table, after so many that failed.

    5 s after the first one, and twice as long after each further one, up to ten minutes.
    """
    # A table may be blocked for weeks: 2 to the power of all its tries is no float any more.
    return min(_LONGEST_RELEASE_PAUSE_SECONDS, FIRST_RELEASE_PAUSE_SECONDS * 2.0 ** min(failures - 1, 10))


WAITS_FOR: dict[ReleaseKind, WaitsFor] = {"release": "approval", "unblock": "table", "held": "release"}
"""What rows wait for, by the kind of their release: in JSON, and on the page of a stream."""


def kind_of(cause: str | None) -> ReleaseKind:
    """Return why rows with a cause wait."""
    if cause is None:
        return "release"
    return "held" if cause.startswith(HELD_REASON) else "unblock"


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

    def app_id(self, query: str, kind: ReleaseKind = "release") -> str:
        """Return the transaction id of releases into the table; its version is a batch of the query."""
        return str(TransactionId(kind, query, self.route, self.sink, self.table))

    def __str__(self) -> str:
        return f"{self.route}/{self.sink}/{self.table}"


@dataclass(frozen=True)
class Quarantined:
    """The quarantined rows of a table, and how they would change it.

    `cause` is why they wait, None if it is for an approval. `upto`: query (with its run) -> the last batch with a
    quarantined row; `columns`: the columns that have a value; `versions`: message and number of the schemas that wrote
    them, if known; `since`: the time of the oldest record, if known.
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
    def kind(self) -> ReleaseKind:
        """Return why they wait."""
        return kind_of(self.cause)


@dataclass(frozen=True)
class PendingRelease:
    """A release of the quarantined rows of a table: the approval of a person, or the note of a blocked table.

    An approval lets the table take the rows of batches up to `upto`, whose schema as Delta's JSON is `columns`; with
    `discard` they become dead letters instead. `number` makes the file's name unique: a second approval for the same
    table, written while this one is carried out, must not be deleted with it.

    With a `cause` it is the note of a blocked table: `upto` and `columns` are those of the rows that wait when the
    release is tried, the next time at `due` (seconds since 1970), after `tries` that failed. With `forced` a person
    accepts the table as it is, though it lacks batches.

    Of both: `decided`: query -> (last batch, rows that land), once that is decided; `refused`: query -> other rows of
    these batches, which violate a constraint of their table; `demanded`: query -> the constraints at that time.
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
    def kind(self) -> ReleaseKind:
        """Return why the rows wait."""
        if self.held:
            return "held"
        return "unblock" if self.blocked else "release"

    @property
    def path(self) -> str:
        """Return the path of its file in the store."""
        if self.cause:
            return f"blocked/{self.place}.json"
        return f"approvals/{self.place}.{self.number}.json"


def write_approval(store: CheckpointStore, waiting: Quarantined, *, discard: bool = False) -> None:
    """Write an approval in place of an earlier decision; the running or the next stream carries it out.

    Raises TableError if another decision about these rows is being carried out.
    """
    approval = PendingRelease(
        place=waiting.place,
        upto=waiting.upto,
        columns=to_delta(waiting.columns),
        number=time.time_ns(),
        discard=discard,
        blocked=waiting.kind == "unblock",
        held=waiting.kind == "held",
    )
    _withdraw_earlier(store, approval)
    write_pending(store, approval)


def try_now(store: CheckpointStore, place: Place) -> None:
    """Let the release of a blocked table be tried next, whatever its pause, in place of an earlier decision.

    Raises TableError if its rows are being discarded.
    """
    _withdraw_earlier(store, PendingRelease(place, blocked=True))
    for note in pending_releases(store, "blocked"):
        if note.place == place:
            write_pending(store, replace(note, due=0.0, tries=0, forced=True))


def _withdraw_earlier(store: CheckpointStore, newer: PendingRelease) -> None:
    """Delete earlier approvals for the rows of a newer decision: the last one counts.

    Raises TableError if one that decides otherwise has begun, since its rows are counted already.
    """
    notes = pending_releases(store, "blocked") if newer.blocked else []
    for earlier in [*pending_releases(store), *notes]:
        if (earlier.place, earlier.kind, earlier.held) != (newer.place, newer.kind, newer.held):
            continue
        if earlier.decided and earlier.discard != newer.discard:
            done = "discarded" if earlier.discard else "released"
            problem = f"its rows are being {done}, which the next batch or start ends"
            raise TableError(newer.place.table, f"{problem}; then see `router quarantine list FILE`")
        if not earlier.decided and not earlier.cause:
            store.delete(earlier.path)


def try_mended(store: CheckpointStore, table: str) -> None:
    """Let the release of a blocked table be tried next, after a repair of it."""
    for note in pending_releases(store, "blocked"):
        if note.place.table == table:
            write_pending(store, replace(note, due=0.0, tries=0))


def write_pending(store: CheckpointStore, pending: PendingRelease) -> None:
    """Write an approval or a note; after a crash the store has all of it or nothing."""
    store.write(pending.path, json.dumps(asdict(pending)).encode())


def pending_releases(store: CheckpointStore, folder: str = "approvals") -> list[PendingRelease]:
    """Return the approvals (or the notes in `blocked`) that are not carried out yet, oldest first."""
    pending = []
    for path in store.json_paths(folder):
        content = store.load(path)
        if content:  # a running stream may have carried it out just now
            pending.append(PendingRelease(**{**content, "place": Place(**content["place"])}))
    return sorted(pending, key=lambda release: release.number)


def sentence_on_blocked(blocked: Mapping[str, str], rows: int, file: str) -> tuple[str, str]:
    """Return the sentence on tables that cannot be written, with the cause of the first, and the command that mends it.

    `rows` of theirs are quarantined so far; those of `upsert` wait in its outbox.
    """
    cause = next(iter(blocked.values()))
    command = f"router tables {file}"
    if is_damaged(cause):
        command = f"router rebuild {file} {' '.join(map(shlex.quote, blocked))}"
    so_far = f" ({rows:,} so far)" if rows else ""
    waiting = f"Their rows wait, and land when it works again{so_far}."
    return f"Tables that cannot be written: {join_names(list(blocked))}. {waiting} Why: {shorten_cause(cause)}", command


def blocked_places(store: CheckpointStore) -> dict[str, str]:
    """Return why tables cannot be written, by place."""
    return {str(note.place): note.cause for note in pending_releases(store, "blocked")}


def waiting_places(config: Config, store: CheckpointStore) -> dict[str, Backlog]:
    """Return the backlogs of tables, by place: the rows of upserts in their outboxes, and why those of others wait.

    Rows in a quarantine are not counted: they are 0.
    """
    waiting = {place: Backlog(0, {}, cause) for place, cause in blocked_places(store).items()}
    for route, sink_name, sink in config.all_sinks():
        if isinstance(sink, MergingSink):
            for table, backlog in BacklogStore(store, f"{route}/{sink_name}").read_now().items():
                waiting[f"{route}/{sink_name}/{table}"] = backlog
    return waiting


def waiting_tables(config: Config) -> dict[str, str]:
    """Return why rows of a configuration wait for tables, by table."""
    _, checkpoint = lake_and_checkpoint(config)
    waiting = waiting_places(config, CheckpointStore(checkpoint))
    return {Place.of(place).table: backlog.why for place, backlog in waiting.items()}


@dataclass(frozen=True)
class Quarantine:
    """The quarantine of one query: which tables are blocked, and the rows of commits that failed."""

    config: Config
    lake: Lake
    store: CheckpointStore
    committers: Committers
    query: str

    def blocked_reasons(self) -> dict[str, str]:
        """Return why tables cannot be written, by place."""
        return blocked_places(self.store)

    def note_blocked(self, blocked: dict[str, str]) -> None:
        """Note tables that cannot be written, before a manifest names the quarantine as the place of their rows."""
        if not blocked:
            return
        for key in sorted(blocked.keys() - self.blocked_reasons().keys()):
            place = Place.of(key)
            cause = blocked[key]
            # Rows that no task can check are released at once: the release checks them by Spark.
            pause = 0 if cause.startswith(CONSTRAINT_CAUSE) else FIRST_RELEASE_PAUSE_SECONDS
            write_pending(self.store, PendingRelease(place, cause=cause, blocked=True, due=time.time() + pause))
            sentence = sentence_on_blocked({place.table: to_printable(cause)}, 0, "FILE")
            log.warning("%s: %s", self.config.name, line_of(*sentence))

    def note_again(self) -> None:
        """Note tables that rows wait for and whose note is lost: without it rows of later batches land before those."""
        blocked: dict[str, str] = {}
        for route, name, _ in self.config.all_sinks():
            for table, cause in _read_causes(self.lake, quarantine_of(self.config.name, route, name)).items():
                blocked[str(Place(route, name, table))] = cause
        self.note_blocked(blocked)

    def has_rows_of(self, work: TableCommit) -> bool:
        """Return whether the rows of a commit that failed are in the quarantine."""
        quarantine = self._quarantine_of(work)
        table = TableCache(self.lake).open_tables([quarantine])[quarantine]
        return table is not None and is_committed(table, replace(work, app_id=moved_rows_id(work.app_id)))

    def take_rows(self, work: TableCommit, manifest: Manifest) -> None:
        """Put the rows of a commit that failed into the quarantine, once. Raises TableError.

        They were staged for their table, so that the coordinates of each are not known any more; those of an outbox
        have them, and become JSON.
        """
        session = self.committers.spark.newSession()
        rows = staged_rows(session, self.lake, work)
        moved = TableCommit(
            target=work.target,
            table=self._quarantine_of(work),
            app_id=moved_rows_id(work.app_id),
            version=work.version,
            files=(),
            columns=work.columns,
        )
        values = {
            TABLE: work.table,
            QUERY: self.query,
            BATCH_ID: work.version,
            CAUSE: manifest.quarantined[work.note_key],
        }
        kinds = to_spark_columns(pa.schema(list(QUARANTINE_COLUMNS.items())))
        own_columns = [F.lit(values[kind.name]).cast(kind.dataType).alias(kind.name) for kind in kinds]
        if work.table.startswith(OUTBOX):
            rows = as_json(rows, own_columns)
        else:
            rows, moved = self._in_types_of_quarantine(rows, moved)
            rows = rows.select(*own_columns, "*")
        self.committers.append_rows(session, moved, manifest.commit_notes(self.query), rows)
        # A log that cannot be read may refer to the files, and be restored from a copy later.
        if not isinstance(TableCache(self.lake).open_readable_tables([work.table])[work.table], TableError):
            self.lake.delete(*(file.path for file in work.files))

    def _in_types_of_quarantine(self, rows: DataFrame, moved: TableCommit) -> tuple[DataFrame, TableCommit]:
        """Return staged rows, cast to wider types of the quarantine, and the commit with columns that it must widen.

        A quarantine has rows of many tables: some types are wider than those of this one, others narrower.
        """
        handle: Any = TableCache(self.lake).open_tables([moved.table])[moved.table]
        if handle is None:
            return rows, moved
        change = compare_schemas(delta_schema(to_arrow(handle)), delta_schema(to_arrow_schema(moved.columns)))
        if change.cast:
            kinds = to_spark_columns(pa.schema(list(change.cast.items())), ntz=True)
            casts = {kind.name: F.col(quote_identifier(kind.name)).cast(kind.dataType) for kind in kinds}
            rows = rows.withColumns(casts)
        if not change.widened:
            return rows, moved
        widened = to_delta(pa.schema(list(change.widened)))
        if isinstance(handle, SparkTable) or choose_widening_way(handle, moved.table, "feature") == "feature":
            return rows, replace(moved, widened=widened)  # the append widens them in place
        rewrite_table(self.lake, moved.table, handle, widened, moved.app_id)
        return rows, moved

    def _quarantine_of(self, work: TableCommit) -> str:
        return quarantine_of(self.config.name, *work.target.split("/", 1))


def faults_of_size(config: Config, lake: Lake, staged: Iterable[StagedFile]) -> list[str]:
    """Return why a batch must not be committed: with its staged files the quarantine would be larger than it may be."""
    size = sum(file.bytes for file in staged if file.table.startswith(QUARANTINE))
    if not size:
        return []
    tables = {quarantine_of(config.name, route, name) for route, name, _ in config.all_sinks()}
    for handle in TableCache(lake).open_tables(tables).values():
        if handle is not None:
            size += pc.sum(_read_add_actions(handle).column("size_bytes")).as_py() or 0
    most = config.quarantine.at_most
    if size <= most:
        return []
    what = f"the quarantine would have {size:,} bytes of {most:,} that it may have (`quarantine: at_most`)"
    return [f"{what}; see `router quarantine list FILE`"]


def _read_causes(lake: Lake, quarantine: str) -> dict[str, str]:
    """Return the tables that rows of a quarantine wait for because they could not be written, each with the cause."""
    causes: dict[str, str] = {}
    try:
        handle = lake.open(quarantine)
        if handle is None or not handle.file_uris():
            return {}
        for path in _quarantine_files(handle, quarantine):
            for part in _read_parts(lake, path, [TABLE, CAUSE]):
                for row in part.group_by([TABLE, CAUSE]).aggregate([]).to_pylist():
                    if kind_of(row[CAUSE]) == "unblock":
                        causes[row[TABLE]] = max(row[CAUSE], causes.get(row[TABLE], ""))
    except (DeltaError, OSError):  # the first batch that needs the quarantine reports it
        return {}
    return causes


def _read_add_actions(handle: DeltaTable) -> pa.Table:
    return pa.table(handle.get_add_actions())


def list_quarantined(config: Config, lake: Lake) -> list[Quarantined]:
    """Return the quarantined rows by table, whatever the sinks' options are now. Runs on the driver, without Spark."""
    waiting: list[Quarantined] = []
    for route, name, _ in config.all_sinks():
        table = quarantine_of(config.name, route, name)
        handle = lake.open(table)
        if handle is not None:
            waiting += quarantined_in(lake, handle, (route, name, table))
    return waiting


def quarantined_in(
    lake: Lake, handle: DeltaTable, where: tuple[str, str, str], table: str | None = None
) -> Iterator[Quarantined]:
    """Yield the rows of one sink's quarantine by table, and by why they wait; of one table only if it is named.

    `where` has route, sink and quarantine. The files are read twice, a part at a time: for the batches of the rows,
    then for their values.
    """
    route, sink, quarantine = where
    if not handle.file_uris():
        return
    schema = delta_schema(to_arrow(handle))
    if CAUSE not in schema.names:
        schema = schema.append(pa.field(CAUSE, pa.string()))
    batches, files = _waiting_batches(lake, _quarantine_files(handle, quarantine), table)
    targets = TableCache(lake).open_readable_tables({name for name, _ in batches})
    waiting: dict[_Key, _WaitingRows] = {}
    for (name, kind), batches_of_query in sorted(batches.items()):
        target = targets[name]
        if isinstance(target, TableError):
            target = None
        place = Place(route, sink, name)
        rows_of_table = _WaitingRows(place, kind, target)
        for query, (first, last) in batches_of_query.items():
            after = last_released_batch(target, place, query, kind)
            if after >= last:
                continue
            rows_of_table.upto[query] = last
            # Rows that are released are deleted at once: they are here only after a release that was cut off.
            if after >= first:
                rows_of_table.released[query] = after
        if rows_of_table.upto:
            waiting[name, kind] = rows_of_table
    _describe_waiting(lake, [path for path, keys in files.items() if keys & waiting.keys()], schema, waiting)
    for rows_of_table in waiting.values():
        yield rows_of_table.to_quarantined(quarantine, schema)


_Key = tuple[str, ReleaseKind]
"""A table, and why its rows wait."""


@dataclass
class _WaitingRows:
    """The quarantined rows of a table that wait for one reason, as they are counted.

    `released` has the last batch that is in the table already, of queries with rows that are not deleted yet.
    """

    place: Place
    kind: ReleaseKind
    target: DeltaTable | None
    upto: dict[str, int] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=dict)
    cause: str | None = None
    rows: int = 0
    since: datetime | None = None
    valued: set[str] = field(default_factory=set)
    versions: set[str] = field(default_factory=set)

    def add_group(self, group: dict[str, Any]) -> None:
        """Add a group of rows of one query and one cause: how many, and which columns have a value."""
        if group[QUERY] not in self.upto:
            return
        self.rows += group["_batch_id_count"]
        version = _describe_schema(group)
        if version:
            self.versions.add(version)
        if group[CAUSE]:
            self.cause = max(group[CAUSE], self.cause or "")
        since = group.get("_timestamp_min")
        if since is not None and (self.since is None or since < self.since):
            self.since = since
        for name, value in group.items():
            if value is True and name.startswith(_HAS_VALUE):
                self.valued.add(name.removeprefix(_HAS_VALUE).removesuffix("_any"))

    def to_quarantined(self, quarantine: str, schema: pa.Schema) -> Quarantined:
        """Return the rows with what they would change in their table."""
        columns = pa.schema([column for column in schema if column.name in self.valued])
        if self.target is None:
            change = SchemaDiff(added=tuple(columns))
        else:
            change = compare_schemas(delta_schema(to_arrow(self.target)), columns)
        return Quarantined(
            place=self.place,
            quarantine=quarantine,
            cause=self.cause,
            rows=self.rows,
            upto=self.upto,
            columns=columns,
            versions=tuple(sorted(self.versions)),
            since=self.since,
            change=change,
        )


_HAS_VALUE = "has "
"""Before the name of a column for whether rows have a value in it: Arrow takes a leading dot for a path to a field."""


def _waiting_batches(
    lake: Lake, paths: list[str], table: str | None
) -> tuple[dict[_Key, dict[str, tuple[int, int]]], dict[str, set[_Key]]]:
    """Return the first and the last batch of each query with rows in a quarantine, and of which each file has rows."""
    batches: dict[_Key, dict[str, tuple[int, int]]] = {}
    files: dict[str, set[_Key]] = {path: set() for path in paths}
    for path in paths:
        for part in _read_parts(lake, path, list(QUARANTINE_COLUMNS)):
            grouped = part.group_by([TABLE, CAUSE, QUERY])
            for row in grouped.aggregate([(BATCH_ID, "min"), (BATCH_ID, "max")]).to_pylist():
                if table not in (None, row[TABLE]):
                    continue
                key: _Key = (row[TABLE], kind_of(row[CAUSE]))
                files[path].add(key)
                of_query = batches.setdefault(key, {})
                first, last = of_query.get(row[QUERY], (row[f"{BATCH_ID}_min"], row[f"{BATCH_ID}_max"]))
                of_query[row[QUERY]] = (min(first, row[f"{BATCH_ID}_min"]), max(last, row[f"{BATCH_ID}_max"]))
    return batches, files


def _describe_waiting(lake: Lake, paths: list[str], schema: pa.Schema, waiting: dict[_Key, _WaitingRows]) -> None:
    """Add to waiting rows how many they are and which columns have a value."""
    schema_columns = [name for name in SCHEMA_COLUMNS if name in schema.names]
    system_columns = [*QUARANTINE_COLUMNS, *schema_columns]
    if TIMESTAMP in schema.names:
        system_columns.append(TIMESTAMP)
    names = [name for name in schema.names if name not in SYSTEM_COLUMNS]
    for path in paths:
        # A column of which all tables have had a value need not be read any more.
        valued_in_all = set(names).intersection(*(rows.valued for rows in waiting.values()))
        undecided = [name for name in names if name not in valued_in_all]
        for part in _read_parts(lake, path, [*system_columns, *undecided]):
            for group in _group_rows(_not_released(part, waiting), schema_columns, undecided):
                rows_of_table = waiting.get((group[TABLE], kind_of(group[CAUSE])))
                if rows_of_table is not None:
                    rows_of_table.add_group(group)


def _not_released(rows: pa.Table, waiting: dict[_Key, _WaitingRows]) -> pa.Table:
    """Return rows without those that their table has already."""
    for rows_of_table in waiting.values():
        for query, last in rows_of_table.released.items():
            condition = (pc.field(TABLE) == rows_of_table.place.table) & _of_kind(rows_of_table.kind)
            condition &= (pc.field(QUERY) == query) & (pc.field(BATCH_ID) <= last)
            # A condition that is null for a row would drop it.
            rows = rows.filter(~pc.coalesce(condition, False))
    return rows


def _group_rows(part: pa.Table, schema_columns: list[str], undecided: list[str]) -> list[dict[str, Any]]:
    """Return rows by table, cause, query and schema: how many, the oldest time, and which columns have a value."""
    columns = {name: part.column(name) for name in (*QUARANTINE_COLUMNS, *schema_columns)}
    aggregates = [(BATCH_ID, "count")]
    if TIMESTAMP in part.column_names:
        columns[TIMESTAMP] = part.column(TIMESTAMP)
        aggregates.append((TIMESTAMP, "min"))
    for name in undecided:  # a zero is a value: a quarantined row loses nothing
        columns[f"{_HAS_VALUE}{name}"] = part.column(name).is_valid()
        aggregates.append((f"{_HAS_VALUE}{name}", "any"))
    keys = [TABLE, CAUSE, QUERY, *schema_columns]
    groups: list[dict[str, Any]] = pa.table(columns).group_by(keys).aggregate(aggregates).to_pylist()
    return groups


def last_released_batch(table: DeltaTable | None, place: Place, query: str, kind: ReleaseKind = "release") -> int:
    """Return the last batch whose quarantined rows were released into the table, -1 for none."""
    if table is None:
        return -1
    version = table.transaction_version(place.app_id(query, kind))
    return -1 if version is None else version


def _of_kind(kind: ReleaseKind) -> pc.Expression:
    cause = pc.field(CAUSE)
    is_held = pc.starts_with(cause, HELD_REASON)
    if kind == "release":
        return cause.is_null()
    return cause.is_valid() & (is_held if kind == "held" else ~is_held)


def _quarantine_files(handle: DeltaTable, quarantine: str) -> list[str]:
    """Return the files of a quarantine: delta-rs does not read a table that was widened, but its files can be."""
    folder = quarantine.replace(".", "/")
    return [f"{folder}/{path}" for path in _read_add_actions(handle).column("path").to_pylist()]


def _read_parts(lake: Lake, path: str, columns: list[str]) -> Iterator[pa.Table]:
    """Yield some columns of a file's rows, a part of the rows at a time; a column that the file lacks is null.

    A scan of Arrow's `dataset` holds a whole row group at once, which here may be the whole file.
    """
    with lake.files.open_input_file(path) as source:
        file = pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20)
        names = [name for name in columns if name in file.schema_arrow.names]
        for part in file.iter_batches(_LISTED_ROWS_AT_ONCE, columns=names, use_threads=False):
            rows = pa.Table.from_batches([part]).select(names)
            for name in columns:
                if name not in names:
                    rows = rows.append_column(name, pa.nulls(len(rows), QUARANTINE_COLUMNS.get(name, pa.null())))
            yield rows


def _describe_schema(row: dict[str, Any]) -> str:
    """Return message and number of the schema that wrote rows; an empty text if both are unknown."""
    parts = []
    if row.get("_message"):
        parts.append(row["_message"])
    if row.get("_schema_version") is not None:
        parts.append(f"version {row['_schema_version']}")
    elif row.get("_schema_id") is not None:
        parts.append(f"schema {row['_schema_id']}")
    return " ".join(parts)


def allowed_types(table: pa.Schema | None, pending: PendingRelease) -> dict[str, pa.DataType]:
    """Return the columns and types that a table may have after an approval."""
    columns = [*delta_schema(to_arrow_schema(pending.columns))]
    if table is not None:
        change = compare_schemas(table, pa.schema(columns))
        columns = [*table, *change.added, *change.widened]
    return {column.name: column.type for column in columns}
