"""Load the tables that routes look events up in, and load them again at an interval. Runs on the driver.

The first load must succeed: it says which columns there are, and they stay until the next start. A later load runs in a
thread beside the batches. Where it fails, because the table is away or has lost a column, batches go on with the rows
that they have, and one line says so.
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

from router.config.models import interval
from router.delta.lake import Lake
from router.engine.expressions.evaluator import Node, Untranslatable, translate
from router.engine.expressions.tree import arrow_type as arrow_type_of
from router.engine.lookup.join import LookupTable, chosen
from router.engine.lookup.let import define
from router.errors import LookupTableError, first_line
from router.spark_internals import arrow_type, delta_snapshot, to_spark_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from router.config.models import Config, Lookup

log = logging.getLogger("router")
WAIT_SECONDS = 1.0
"""How long a batch waits for a table that is being loaded again; a table that takes longer is for a later batch."""


@dataclass
class _Loaded:
    """A state of a table: what tasks need of it, without the expressions."""

    version: str
    state: str
    schema: pa.Schema
    rows: Any


@dataclass
class _Source:
    """One table, as it was loaded last, and the load that is under way."""

    lookup: Lookup
    now: _Loaded | None = None
    former: _Loaded | None = None
    due: float = 0.0
    thread: threading.Thread | None = None
    outcome: list[_Loaded | Exception] = field(default_factory=list)
    away: bool = False


class Lookups:
    """The tables that the routes of a configuration look events up in: by name, each loaded once for all routes."""

    def __init__(self, config: Config) -> None:
        self.query = config.name
        self.lake = Lake.at(config.lake, config.storage(), config.locations())
        self.sources = {name: _Source(lookup) for name, lookup in config.lookups().items()}
        self.spark: SparkSession | None = None

    def load(self, spark: SparkSession) -> None:
        """Load every table that is not loaded yet.

        Raises LookupTableError where one can never be looked up in, an OSError while it cannot be reached.
        """
        self.spark = spark
        for source in self.sources.values():
            if source.now is None:
                self._take(source, self._loaded(source))

    def refresh(self) -> None:
        """Take what was loaded since the last batch, and load again what is due."""
        for source in self.sources.values():
            if source.now is None or source.lookup.rows is not None:
                continue
            if source.thread is None and time.monotonic() >= source.due:
                source.thread = threading.Thread(target=self._again, args=(source,), daemon=True)
                source.thread.start()
            if source.thread is not None:
                source.thread.join(WAIT_SECONDS)
            if source.outcome:
                source.thread = None
                self._finish(source, source.outcome.pop())

    def versions(self) -> dict[str, str]:
        """Return the version of each table that the batches of now are joined with."""
        return {name: source.now.version for name, source in self.sources.items() if source.now}

    def states(self) -> tuple[str, ...]:
        """Return names of the contents that are loaded."""
        return tuple(source.now.state for source in self.sources.values() if source.now)

    def fields(self, names: list[str]) -> list[StructField]:
        """Return the columns that the tables add to those of decoded records. Raises LookupTableError."""
        found = []
        for name, source in self.sources.items():
            if name in names:
                what = f"the decoder makes a column {name}, too; give the lookup another name"
                raise LookupTableError(name, what, "name")
            found.append(StructField(name, to_spark_type(self._gives(source))))
        return found

    def on(self, frame: DataFrame) -> dict[str, tuple[Node, ...]]:
        """Return the expressions of each table's keys over decoded records. Raises LookupTableError."""
        asked = self.sources.items()
        return {name: tuple(self._key(source, frame, key) for key in source.lookup.on) for name, source in asked}

    def tables(self, on: dict[str, tuple[Node, ...]]) -> tuple[LookupTable, ...]:
        """Return the tables as they are loaded now."""
        found = []
        for name, source in self.sources.items():
            assert source.now  # `load` comes first
            keys = tuple(source.lookup.on)
            found.append(LookupTable(name, source.now.state, on[name], keys, self._gives(source), source.now.rows))
        return tuple(found)

    def _gives(self, source: _Source) -> pa.StructType:
        assert source.now
        lookup = source.lookup
        every = source.now.schema.names
        names = lookup.columns or [name for name in every if name not in lookup.on] or every
        return pa.struct([source.now.schema.field(name) for name in names])

    def _key(self, source: _Source, frame: DataFrame, key: str) -> Node:
        text = source.lookup.on[key]
        try:
            (node,) = translate(frame, [F.expr(text)])
            kind = arrow_type_of(node.kind)
        except Untranslatable as why:
            what = f"{text}: tasks cannot evaluate {why}; make the key of fields, casts and plain functions"
            raise LookupTableError(source.lookup.name, what, "on", key) from None
        except (AnalysisException, ParseException) as error:
            raise LookupTableError(source.lookup.name, first_line(error), "on", key) from None
        assert source.now
        have = source.now.schema.field(key).type
        if not _comparable(kind, have):
            what = f"{key} is {have} in the table, and {text} is {kind}; cast it"
            raise LookupTableError(source.lookup.name, what, "on", key)
        return node

    def _again(self, source: _Source) -> None:
        try:
            source.outcome.append(self._loaded(source))
        except Exception as error:  # whatever it is, batches go on with the rows that they have
            source.outcome.append(error)

    def _finish(self, source: _Source, outcome: _Loaded | Exception) -> None:
        name = f"{self.query}: lookup {source.lookup.name}"
        source.due = time.monotonic() + interval(source.lookup.every).total_seconds()
        if isinstance(outcome, Exception):
            if not source.away:
                log.warning("%s: %s; batches go on with the rows of before", name, first_line(outcome))
            source.away = True
            return
        if source.away:
            log.info("%s: the table is there again", name)
        source.away = False
        self._take(source, outcome)

    def _take(self, source: _Source, loaded: _Loaded) -> None:
        source.due = time.monotonic() + interval(source.lookup.every).total_seconds()
        if source.now is not None and loaded.rows is source.now.rows:
            source.now = loaded
            return
        if source.former is not None:
            source.former.rows.destroy()  # no batch has it any more
        source.former, source.now = source.now, loaded

    def _loaded(self, source: _Source) -> _Loaded:
        """Return the newest state of a table; the one that is known where nothing has changed."""
        lookup, now = source.lookup, source.now
        version, read = self._opened(lookup)
        if now and version and version == now.version:
            return now
        table = self._fitted(lookup, read(), now.schema if now else None)
        table, twice = chosen(table, [*lookup.on], lookup.newest_by)
        if twice is not None:
            what = f"the table has several rows for {twice}; say by `newest_by` which of them counts"
            raise LookupTableError(lookup.name, what)
        asked = list(dict.fromkeys([*lookup.on, *lookup.columns])) if lookup.columns else table.schema.names
        table = table.select(now.schema.names if now else asked)
        sent = _stream(table)
        state = hashlib.sha256(sent + repr((*lookup.on, lookup.columns)).encode()).hexdigest()[:16]
        if now and state == now.state:
            return _Loaded(version or now.version, state, now.schema, now.rows)
        assert self.spark
        return _Loaded(version or state, state, table.schema, self.spark.sparkContext.broadcast(sent))

    def _fitted(self, lookup: Lookup, table: pa.Table, former: pa.Schema | None) -> pa.Table:
        """Return a table with the columns that are asked for, in the types of before. Raises LookupTableError."""
        if table.num_rows > lookup.at_most:
            what = f"the table has more than {lookup.at_most:,} rows (`at_most`), and every executor keeps all of them"
            raise LookupTableError(lookup.name, what)
        wanted = list(dict.fromkeys([*_asked(lookup), *(former.names if former else ())]))
        if lost := [name for name in wanted if name not in table.schema.names]:
            have = ", ".join(table.schema.names)
            at = ("on", lost[0]) if lost[0] in lookup.on else ("columns",)
            raise LookupTableError(lookup.name, f"the table has no column {lost[0]}; it has {have}", *at)
        names = wanted if lookup.columns or former else table.schema.names
        table = table.select(names)
        had = former or pa.schema([])
        kinds = [had.field(f.name).type if f.name in had.names else _kept(f.type) for f in table.schema]
        try:
            return table.cast(pa.schema([*zip(names, kinds, strict=True)]))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            what = f"a column has another type than at the start: {first_line(error)}"
            raise LookupTableError(lookup.name, what) from None

    def _opened(self, lookup: Lookup) -> tuple[str, Callable[[], pa.Table]]:
        """Return the version of a table, where it has one, and a function that reads it."""
        if lookup.rows is not None:
            rows = [*lookup.rows]
            return "", lambda: pa.Table.from_pylist(rows, _columns_of(rows))
        if lookup.database:
            return "", lambda: _from_database(lookup)
        return self._let(lookup) if lookup.let else self._delta(lookup)

    def _delta(self, lookup: Lookup) -> tuple[str, Callable[[], pa.Table]]:
        assert lookup.table
        outside = "/" in lookup.table
        pinned = self._pinned(lookup, lookup.table, lookup.table if outside else self.lake.spark_address(lookup.table))

        def read() -> pa.Table:
            assert lookup.table
            assert self.spark
            frame = pinned.rows(self.spark)
            if lookup.columns:
                frame = frame.select(*(name for name in _asked(lookup) if name in frame.columns))
            return _collected(lookup, lookup.table, frame)

        return pinned.version, read

    def _let(self, lookup: Lookup) -> tuple[str, Callable[[], pa.Table]]:
        """Return the versions of the tables that a query of `let` reads, and a function that runs it."""
        let = lookup.let
        assert let
        tables = {name: self._pinned(lookup, name, self.lake.spark_address(name)) for name in sorted(let.joined)}

        def read() -> pa.Table:
            assert self.spark
            session = self.spark.newSession()
            try:
                define(session, let, lambda table: tables[table].rows(session))
                frame = session.table(let.name)
                frame = frame.select(*_asked(lookup)) if lookup.columns else frame
            except (AnalysisException, ParseException) as error:
                raise LookupTableError(lookup.name, f"the query {let.name}: {first_line(error)}", "let") from error
            return _collected(lookup, let.name, frame)

        return ",".join(one.version for one in tables.values()), read

    def _pinned(self, lookup: Lookup, table: str, address: str) -> _Pinned:
        """Return the newest version of a Delta table."""
        assert self.spark
        try:
            snapshot = delta_snapshot(self.spark, address)
            if snapshot is None:
                key = "let" if lookup.let else "table"
                raise LookupTableError(lookup.name, f"there is no table {table}; make it first", key)
            return _Pinned(address, snapshot.version(), f"{snapshot.metadata().id()}@{snapshot.version()}")
        except LookupTableError:
            raise
        except Exception as error:  # of the JVM: a log that cannot be read now
            what = f"lookup {lookup.name}: {table} cannot be read: {first_line(error)}"
            raise ConnectionError(what) from error


class _Pinned(NamedTuple):
    """A version of a Delta table."""

    address: str
    number: int
    version: str

    def rows(self, session: SparkSession) -> DataFrame:
        return session.read.format("delta").option("versionAsOf", self.number).load(self.address)


def _collected(lookup: Lookup, table: str, frame: DataFrame) -> pa.Table:
    kinds = pa.schema([(f.name, arrow_type(f.dataType)) for f in frame.schema])
    try:
        return frame.limit(lookup.at_most + 1).toArrow().cast(kinds)
    except Exception as error:
        raise ConnectionError(f"lookup {lookup.name}: {table} cannot be read: {first_line(error)}") from error


def _asked(lookup: Lookup) -> list[str]:
    return list(dict.fromkeys([*lookup.on, *lookup.columns, *filter(None, (lookup.newest_by,))]))


def _comparable(one: pa.DataType, other: pa.DataType) -> bool:
    for same in (pa.types.is_integer, pa.types.is_decimal):
        if same(one) and same(other):
            return True
    return one == other and not pa.types.is_floating(one) and not pa.types.is_nested(one)


def _kept(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column is given to expressions: that which Spark has for it."""
    return pa.string() if pa.types.is_null(kind) else arrow_type(to_spark_type(kind))


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


def _columns_of(rows: list[dict[str, Any]]) -> pa.Schema:
    """Return the columns of rows of which each may lack some."""
    names = dict.fromkeys(name for row in rows for name in row)
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
        named = sa.make_url(url).render_as_string(hide_password=True)
        engine = sa.create_engine(url, poolclass=sa.pool.NullPool, hide_parameters=True)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ModuleNotFoundError):
        what = "the URL is none of SQLAlchemy's, or its driver is not installed"
        raise LookupTableError(lookup.name, what, "database", "url") from None
    try:
        connection = engine.connect()
    except Exception as error:  # drivers have errors of their own for a server that is away
        raise ConnectionError(f"lookup {lookup.name}: {named} cannot be reached: {first_line(error)}") from None
    with connection:
        try:
            found = connection.execution_options(stream_results=True).execute(sa.text(lookup.database.query))
            names, rows = [*found.keys()], found.fetchmany(lookup.at_most + 1)
        except sa.exc.DBAPIError as error:
            if error.connection_invalidated:
                raise ConnectionError(f"lookup {lookup.name}: {named} went away: {first_line(error)}") from None
            what = f"{named} refuses the query: {first_line(error)}"
            raise LookupTableError(lookup.name, what, "database", "query") from None
    try:
        return pa.table({name: pa.array([row[k] for row in rows]) for k, name in enumerate(names)})
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        what = f"a column of the query has no type: {first_line(error)}; cast it in the query"
        raise LookupTableError(lookup.name, what, "database", "query") from None
