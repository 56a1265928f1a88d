"""Load the tables that routes look events up in, and load them again at an interval. Runs on the driver.

The first load must succeed: it sets the columns, which stay until the next start. A later load runs in a thread while
batches run. If it fails, because the table is unavailable or has lost a column, batches continue with the rows that
they have, and one line is logged.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from router.config.models import parse_interval
from router.delta.lake import Lake
from router.engine.expressions.evaluator import Node, Untranslatable, translate_columns
from router.engine.expressions.tree import arrow_type_of
from router.engine.lookup.join import LookupTable, choose_rows
from router.engine.lookup.let import define_view
from router.errors import LookupTableError, first_line
from router.spark_internals import arrow_type, delta_snapshot, to_spark_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from router.config.models import Config, Lookup

log = logging.getLogger("router")
_LOAD_WAIT_SECONDS = 1.0
"""How long a batch waits for a table that is being loaded again; a table that takes longer is for a later batch."""


@dataclass
class _Loaded:
    """A state of a table, as a `LookupTable` has it: `rows` is a broadcast, `state` names the content."""

    version: str
    state: str
    schema: pa.Schema
    rows: Any


@dataclass
class _Source:
    """One table, as it was loaded last, and the load that is under way, whose thread leaves its `outcome`."""

    lookup: Lookup
    current: _Loaded | None = None
    former: _Loaded | None = None
    due: float = 0.0
    thread: threading.Thread | None = None
    outcome: list[_Loaded | Exception] = field(default_factory=list)
    unavailable: bool = False


class Lookups:
    """The tables that the routes of a configuration look events up in: by name, each loaded once for all routes."""

    def __init__(self, config: Config) -> None:
        self.query = config.name
        self.lake = Lake.at(config.lake, config.revealed_storage_options(), config.table_locations())
        self.sources = {name: _Source(lookup) for name, lookup in config.lookups_by_name().items()}
        self.spark: SparkSession | None = None

    def load_missing(self, spark: SparkSession) -> None:
        """Load every table that is not loaded yet.

        Raises LookupTableError if events can never be looked up in one, an OSError while one is unavailable.
        """
        self.spark = spark
        for source in self.sources.values():
            if source.current is None:
                self._replace_current(source, self._load_newest(source))

    def refresh_due(self) -> None:
        """Take the tables that were loaded since the last batch, and load again those that are due."""
        for source in self.sources.values():
            if source.current is None or source.lookup.rows is not None:
                continue
            if source.thread is None and time.monotonic() >= source.due:
                source.thread = threading.Thread(target=self._load_in_thread, args=(source,), daemon=True)
                source.thread.start()
            if source.thread is not None:
                source.thread.join(_LOAD_WAIT_SECONDS)
            if source.outcome:
                source.thread = None
                self._finish_load(source, source.outcome.pop())

    def loaded_versions(self) -> dict[str, str]:
        """Return the version of each table that batches are joined with now."""
        return {name: source.current.version for name, source in self.sources.items() if source.current}

    def loaded_states(self) -> tuple[str, ...]:
        """Return names of the contents that are loaded."""
        return tuple(source.current.state for source in self.sources.values() if source.current)

    def added_fields(self, names: list[str]) -> list[StructField]:
        """Return the columns that the tables add to those of decoded records. Raises LookupTableError."""
        fields = []
        for name, source in self.sources.items():
            if name in names:
                clash = f"the decoder also makes a column {name}; give the lookup another name"
                raise LookupTableError(name, clash, "name")
            fields.append(StructField(name, to_spark_type(self._columns_of_events(source))))
        return fields

    def key_expressions(self, frame: DataFrame) -> dict[str, tuple[Node, ...]]:
        """Return the expressions of each table's keys over decoded records. Raises LookupTableError."""
        nodes = {}
        for name, source in self.sources.items():
            nodes[name] = tuple(self._key_expression(source, frame, key) for key in source.lookup.on)
        return nodes

    def loaded_tables(self, on: dict[str, tuple[Node, ...]]) -> tuple[LookupTable, ...]:
        """Return the tables as they are loaded now."""
        tables = []
        for name, source in self.sources.items():
            assert source.current  # `load_missing` comes first
            table = LookupTable(
                name=name,
                state=source.current.state,
                on=on[name],
                keys=tuple(source.lookup.on),
                gives=self._columns_of_events(source),
                rows=source.current.rows,
            )
            tables.append(table)
        return tuple(tables)

    def _columns_of_events(self, source: _Source) -> pa.StructType:
        """Return the columns that events get: those of the configuration, by default all but the keys."""
        assert source.current
        schema = source.current.schema
        names = list(source.lookup.columns) or [name for name in schema.names if name not in source.lookup.on]
        return pa.struct([schema.field(name) for name in names or schema.names])

    def _key_expression(self, source: _Source, frame: DataFrame, key: str) -> Node:
        lookup = source.lookup
        sql = lookup.on[key]
        try:
            (node,) = translate_columns(frame, [F.expr(sql)])
            event_type = arrow_type_of(node.kind)
        except Untranslatable as reason:
            fault = f"{sql}: tasks cannot evaluate {reason}; make the key of fields, casts and plain functions"
            raise LookupTableError(lookup.name, fault, "on", key) from None
        except (AnalysisException, ParseException) as error:
            raise LookupTableError(lookup.name, first_line(error), "on", key) from None
        assert source.current
        table_type = source.current.schema.field(key).type
        if not _are_comparable(event_type, table_type):
            fault = f"{key} is {table_type} in the table, and {sql} is {event_type}; cast it"
            raise LookupTableError(lookup.name, fault, "on", key)
        return node

    def _load_in_thread(self, source: _Source) -> None:
        try:
            source.outcome.append(self._load_newest(source))
        except Exception as error:  # of any kind: batches continue with the rows that they have
            source.outcome.append(error)

    def _finish_load(self, source: _Source, outcome: _Loaded | Exception) -> None:
        name = f"{self.query}: lookup {source.lookup.name}"
        source.due = time.monotonic() + parse_interval(source.lookup.every).total_seconds()
        if isinstance(outcome, Exception):
            if not source.unavailable:
                log.warning("%s: %s; batches continue with the rows of before", name, first_line(outcome))
            source.unavailable = True
            return
        if source.unavailable:
            log.info("%s: the table is available again", name)
        source.unavailable = False
        self._replace_current(source, outcome)

    def _replace_current(self, source: _Source, loaded: _Loaded) -> None:
        source.due = time.monotonic() + parse_interval(source.lookup.every).total_seconds()
        if source.current is not None and loaded.rows is source.current.rows:
            source.current = loaded
            return
        if source.former is not None:
            source.former.rows.destroy()  # no batch has it any more
        source.former = source.current
        source.current = loaded

    def _load_newest(self, source: _Source) -> _Loaded:
        """Return the newest state of a table; the current one if nothing has changed."""
        lookup = source.lookup
        current = source.current
        version, read = self._open_source(lookup)
        if current and version and version == current.version:
            return current
        table = self._with_columns(lookup, read(), current.schema if current else None)
        table, ambiguous_key = choose_rows(table, [*lookup.on], lookup.newest_by)
        if ambiguous_key is not None:
            fault = f"the table has several rows for {ambiguous_key}; choose the one that counts with `newest_by`"
            raise LookupTableError(lookup.name, fault)
        if current:
            table = table.select(current.schema.names)
        elif lookup.columns:
            table = table.select(list(dict.fromkeys([*lookup.on, *lookup.columns])))
        # A new version with the same content is none for tasks: they keep the rows that they have.
        stream = _to_stream(table)
        state = hashlib.sha256(stream + repr((*lookup.on, lookup.columns)).encode()).hexdigest()[:16]
        if current and state == current.state:
            return _Loaded(version or current.version, state, current.schema, current.rows)
        assert self.spark
        return _Loaded(version or state, state, table.schema, self.spark.sparkContext.broadcast(stream))

    def _with_columns(self, lookup: Lookup, table: pa.Table, former: pa.Schema | None) -> pa.Table:
        """Return a table with the columns of the configuration, in the types of before. Raises LookupTableError."""
        if table.num_rows > lookup.at_most:
            fault = f"the table has more than {lookup.at_most:,} rows (`at_most`), and every executor keeps all of them"
            raise LookupTableError(lookup.name, fault)
        # The first load sets columns and types: expressions of routes are made for them.
        former = former or pa.schema([])
        required = list(dict.fromkeys([*_named_columns(lookup), *former.names]))
        lost = [name for name in required if name not in table.schema.names]
        if lost:
            fault = f"the table has no column {lost[0]}; it has {', '.join(table.schema.names)}"
            place = ("on", lost[0]) if lost[0] in lookup.on else ("columns",)
            raise LookupTableError(lookup.name, fault, *place)
        if lookup.columns or former.names:
            table = table.select(required)
        fields = []
        for column in table.schema:
            kind = former.field(column.name).type if column.name in former.names else _spark_sized(column.type)
            fields.append((column.name, kind))
        try:
            return table.cast(pa.schema(fields))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            fault = f"a column has another type than at the start: {first_line(error)}"
            raise LookupTableError(lookup.name, fault) from None

    def _open_source(self, lookup: Lookup) -> tuple[str, Callable[[], pa.Table]]:
        """Return the version of a table, if it has one, and a function that reads it."""
        if lookup.rows is not None:
            rows = [*lookup.rows]
            return "", lambda: pa.Table.from_pylist(rows, _schema_of(rows))
        if lookup.database:
            return "", lambda: _from_database(lookup)
        return self._open_let(lookup) if lookup.let else self._open_delta(lookup)

    def _open_delta(self, lookup: Lookup) -> tuple[str, Callable[[], pa.Table]]:
        table = lookup.table
        assert table
        address = table if "/" in table else self.lake.spark_address(table)
        snapshot = self._newest_snapshot(lookup, table, address)

        def read() -> pa.Table:
            assert self.spark
            frame = snapshot.read_rows(self.spark)
            if lookup.columns:
                frame = frame.select(*(name for name in _named_columns(lookup) if name in frame.columns))
            return _collect_rows(lookup, table, frame)

        return snapshot.version, read

    def _open_let(self, lookup: Lookup) -> tuple[str, Callable[[], pa.Table]]:
        """Return the versions of the tables that a query of `let` reads, and a function that runs it."""
        let = lookup.let
        assert let
        snapshots = {
            name: self._newest_snapshot(lookup, name, self.lake.spark_address(name))
            for name in sorted(let.joined_tables)
        }

        def read() -> pa.Table:
            assert self.spark
            # A session of its own, since the temporary views take names of tables.
            session = self.spark.newSession()
            try:
                define_view(session, let, lambda table: snapshots[table].read_rows(session))
                frame = session.table(let.name)
                if lookup.columns:
                    frame = frame.select(*_named_columns(lookup))
            except (AnalysisException, ParseException) as error:
                raise LookupTableError(lookup.name, f"the query {let.name}: {first_line(error)}", "let") from error
            return _collect_rows(lookup, let.name, frame)

        return ",".join(snapshot.version for snapshot in snapshots.values()), read

    def _newest_snapshot(self, lookup: Lookup, table: str, address: str) -> _Snapshot:
        """Return the newest version of a Delta table."""
        assert self.spark
        try:
            snapshot = delta_snapshot(self.spark, address)
            if snapshot is None:
                key = "let" if lookup.let else "table"
                raise LookupTableError(lookup.name, f"there is no table {table}; make it first", key)
            return _Snapshot(address, snapshot.version(), f"{snapshot.metadata().id()}@{snapshot.version()}")
        except LookupTableError:
            raise
        except Exception as error:  # of the JVM: a log that cannot be read now
            raise ConnectionError(f"lookup {lookup.name}: {table} cannot be read: {first_line(error)}") from error


class _Snapshot(NamedTuple):
    """A version of a Delta table."""

    address: str
    number: int
    version: str

    def read_rows(self, session: SparkSession) -> DataFrame:
        return session.read.format("delta").option("versionAsOf", self.number).load(self.address)


def _collect_rows(lookup: Lookup, table: str, frame: DataFrame) -> pa.Table:
    schema = pa.schema([(field.name, arrow_type(field.dataType)) for field in frame.schema])
    try:
        return frame.limit(lookup.at_most + 1).toArrow().cast(schema)
    except Exception as error:
        raise ConnectionError(f"lookup {lookup.name}: {table} cannot be read: {first_line(error)}") from error


def _named_columns(lookup: Lookup) -> list[str]:
    """Return the columns of a table that its lookup names, each once."""
    names = [*lookup.on, *lookup.columns]
    if lookup.newest_by:
        names.append(lookup.newest_by)
    return list(dict.fromkeys(names))


def _are_comparable(event_type: pa.DataType, table_type: pa.DataType) -> bool:
    for is_kind in (pa.types.is_integer, pa.types.is_decimal):
        if is_kind(event_type) and is_kind(table_type):
            return True
    return event_type == table_type and not pa.types.is_floating(event_type) and not pa.types.is_nested(event_type)


def _spark_sized(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type in which expressions get a column: that of its type in Spark."""
    return pa.string() if pa.types.is_null(kind) else arrow_type(to_spark_type(kind))


def _to_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


def _schema_of(rows: list[dict[str, Any]]) -> pa.Schema:
    """Return the columns of rows of which each may lack some."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    return pa.schema([(name, pa.array([row.get(name) for row in rows]).type) for name in names])


def _from_database(lookup: Lookup) -> pa.Table:
    """Return the rows of a query, at most one more than may be. Needs SQLAlchemy."""
    try:
        import sqlalchemy as sa  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise LookupTableError(
            lookup.name, "a database needs SQLAlchemy: pip install 'spark-event-router[sql]'"
        ) from None

    assert lookup.database
    url = lookup.database.url.get_secret_value()
    try:
        shown_url = sa.make_url(url).render_as_string(hide_password=True)
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool, hide_parameters=True)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ModuleNotFoundError):
        fault = "the URL is none of SQLAlchemy's, or its driver is not installed"
        raise LookupTableError(lookup.name, fault, "database", "url") from None
    try:
        connection = engine.connect()
    except Exception as error:  # drivers have errors of their own for a server that is unavailable
        raise ConnectionError(f"lookup {lookup.name}: {shown_url} cannot be reached: {first_line(error)}") from None
    with connection:
        try:
            result = connection.execution_options(stream_results=True).execute(sa.text(lookup.database.query))
            names = [*result.keys()]
            rows = result.fetchmany(lookup.at_most + 1)
        except sa.exc.DBAPIError as error:
            if error.connection_invalidated:
                raise ConnectionError(f"lookup {lookup.name}: {shown_url} went away: {first_line(error)}") from None
            fault = f"{shown_url} refuses the query: {first_line(error)}"
            raise LookupTableError(lookup.name, fault, "database", "query") from None
    try:
        return pa.table({name: pa.array([row[k] for row in rows]) for k, name in enumerate(names)})
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        fault = f"a column of the query has no type: {first_line(error)}; cast it in the query"
        raise LookupTableError(lookup.name, fault, "database", "query") from None
