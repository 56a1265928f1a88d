"""Insert rows of an outbox into tables of a database, in tasks of the sink `sql`. Needs SQLAlchemy.

Names and values go through SQLAlchemy alone: names are those of tables and columns that it found in the database, and
quoted by it; values are parameters. A statement that fails for its values is halved until the faulty row is found.
SQLSTATE tells errors of a row from those of the server, if the driver has it (SQL:2016, part 2, clause 24), else the
classes of PEP 249 do.
"""

from __future__ import annotations

import base64
import json
import logging
import math
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.pool import NullPool

from router import StartError
from router_encoders.reports import Reports
from router_http.options import mask_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

CONFLICT_DIALECTS = ("postgresql", "sqlite")
"""Dialects with ON CONFLICT; MySQL and MariaDB have ON DUPLICATE KEY."""
MAX_TRANSACTION_TRIES = 3
"""How often a transaction is tried that another one ends: a deadlock, or a serialisation failure."""
ROW_FAULT_CLASSES = ("21", "22", "23", "44")
"""Classes of SQLSTATE: cardinality, data exceptions, constraints, check options."""
SETTING_FAULT_CLASSES = ("0A", "28", "3D", "3F", "42")
"""Classes of SQLSTATE: unsupported features, logins, names of databases and schemas, access rules and tables."""
MAX_PARAMETERS = 30_000
"""Parameters of a statement: PostgreSQL takes 65 535, SQLite 32 766."""


@dataclass(frozen=True)
class InsertJob:
    """What the tasks of a batch need; the URL holds the password. `fixed`: all rows are for one table."""

    url: str = field(repr=False)
    in_schema: str | None
    columns: tuple[str, ...]
    key: tuple[str, ...]
    rows_per_statement: int
    at_most: int
    fixed: bool = False


class _RowFault(Exception):  # noqa: N818 - it says whose fault
    """The reason why a database will never take a statement's values."""


class _Away(Exception):  # noqa: N818 - it says what happened
    """The reason why a database takes nothing now."""


class _Wrong(Exception):  # noqa: N818 - it says what is the matter
    """The reason why a database takes nothing until a person changes something: rights, a table, a column."""


def shown_database(job: InsertJob) -> str:
    """Return the database of a job as text, without its password."""
    return sa.make_url(job.url).render_as_string(hide_password=True)


def check_database(job: InsertJob, table: str | None) -> None:
    """Raise StartError if rows can never be inserted, ConnectionError while the database is unavailable."""
    try:
        with closing(Session(job)) as session:
            dialect = session.engine.dialect.name
            if job.key and dialect not in (*CONFLICT_DIALECTS, "mysql", "mariadb"):
                raise StartError(f"`key` needs PostgreSQL, SQLite, MySQL or MariaDB, not {dialect}")
            if table is None:
                session.check_connection()
                return
            found_table = session.find_table(table)
            if isinstance(found_table, str):
                raise _Wrong(found_table)
    except _Away as error:
        raise ConnectionError(f"{shown_database(job)} cannot be reached: {error}") from None
    except _Wrong as error:
        raise StartError(f"{shown_database(job)}: {error}") from None


def insert_task(job: InsertJob) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of one task, for mapInArrow: it inserts rows and returns reports. Runs on executors."""

    def insert_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reports = Reports()
        session: Session | None = None
        try:
            for batch in batches:
                session = session or Session(job)
                row_type = batch.schema.field("_row").type
                for table, rows in _by_table(batch):
                    session.insert_rows(table, rows, row_type, reports)
                yield reports.take_batch()
        except _Away as error:
            reports.add_end("away", str(error))
        except (_Wrong, StartError) as error:
            reports.add_end("wrong", str(error))
        finally:
            if session:
                session.close()
        yield reports.take_batch()

    return insert_batches


def _by_table(batch: pa.RecordBatch) -> Iterator[tuple[str | None, list[dict[str, Any]]]]:
    """Yield the rows of a batch that is sorted by table, for each of its tables."""
    rows = batch.to_pylist()
    first = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place]["_table"] != rows[first]["_table"]:
            yield rows[first]["_table"], rows[first:place]
            first = place


class Session:
    """One connection to a database, and the tables that it found there."""

    def __init__(self, job: InsertJob) -> None:
        self.job = job
        # When a server restarts, closing its connections also fails, which SQLAlchemy logs with a traceback. What went
        # wrong stands in the report of the task, in one line.
        logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
        try:
            self.engine = sa.create_engine(job.url, poolclass=NullPool, hide_parameters=True)
        except (exc.NoSuchModuleError, ModuleNotFoundError) as error:
            driver = sa.make_url(job.url).drivername
            if isinstance(error, ModuleNotFoundError):
                driver = str(error.name)
            raise StartError(
                f"{shown_database(job)} needs the driver {driver}; install it, here and on every node"
            ) from None
        self.connection: sa.Connection | None = None
        self.tables: dict[str, sa.Table | str] = {}

    def close(self) -> None:
        """Close the connection."""
        if self.connection:
            self.connection.close()
        self.engine.dispose()

    def check_connection(self) -> None:
        """Ask the database for nothing. Raises the same as `insert`."""
        self._run_in_transaction(lambda connection: connection.execute(sa.select(1)))

    def find_table(self, name: str) -> sa.Table | str:
        """Return a table as it is in the database, or why no row can go there."""
        if name in self.tables:
            return self.tables[name]
        if len(self.tables) >= self.job.at_most:
            return f"table {name}: the sink may have {self.job.at_most} tables in a batch and has them"
        self.tables[name] = self._run_in_transaction(lambda connection: self._read_table(connection, name))
        return self.tables[name]

    def _read_table(self, connection: sa.Connection, name: str) -> sa.Table | str:
        try:
            table = sa.Table(name, sa.MetaData(), schema=self.job.in_schema, autoload_with=connection)
        except exc.NoSuchTableError:
            return f"there is no table {name}"
        missing = [column for column in self.job.columns if column not in table.columns]
        if missing:
            return f"the table {name} has no column {', '.join(missing)}"
        for column in table.columns:
            column.type = _with_json_as_text(column.type)
        return table

    def insert_rows(
        self, name: str | None, rows: list[dict[str, Any]], row_type: pa.StructType, reports: Reports
    ) -> None:
        """Insert rows into a table, and report each; `row_type` has the route's columns.

        Raises _Away or _Wrong if the database takes no more.
        """
        table = "its table cannot be evaluated" if name is None else self.find_table(name)
        if isinstance(table, str):
            if self.job.fixed and name is not None:
                raise _Wrong(table)  # it was dropped or changed: no row is at fault
            for row in rows:
                reports.add_refused(row, table)
            return
        step = max(1, min(self.job.rows_per_statement, MAX_PARAMETERS // len(self.job.columns)))
        for first in range(0, len(rows), step):
            self._insert_in_transaction(table, rows[first : first + step], row_type, reports)

    def _insert_in_transaction(
        self, table: sa.Table, rows: list[dict[str, Any]], row_type: pa.StructType, reports: Reports
    ) -> None:
        """Insert rows in a transaction; if the database refuses a row for its values, insert each half of them."""
        try:
            values = self._row_values(table, rows, row_type)
            self._run_in_transaction(lambda connection: connection.execute(self._make_statement(table, values)))
        except _RowFault as error:
            if len(rows) == 1:
                reports.add_refused(rows[0], str(error))
                return
            middle = len(rows) // 2
            self._insert_in_transaction(table, rows[:middle], row_type, reports)
            self._insert_in_transaction(table, rows[middle:], row_type, reports)
        else:
            reports.add_sent(len(rows))

    def _row_values(self, table: sa.Table, rows: list[dict[str, Any]], row_type: pa.StructType) -> list[dict[str, Any]]:
        """Return the values of rows; of those with one key only the last: a statement may not change a row twice."""
        values = []
        last_of_key = {}
        try:
            for row in rows:
                row_values = {}
                for name in self.job.columns:
                    row_values[name] = _column_value(
                        row["_row"][name], row_type.field(name).type, table.columns[name].type
                    )
                values.append(row_values)
                # By repr: values of some types cannot be keys of a dict.
                last_of_key[tuple(repr(row_values[name]) for name in self.job.key)] = row_values
        except (ValueError, TypeError, OverflowError) as error:
            raise _RowFault(str(error)) from None
        return list(last_of_key.values()) if self.job.key else values

    def _make_statement(self, table: sa.Table, values: list[dict[str, Any]]) -> Any:
        """Return the INSERT of rows, which updates rows that have their key already."""
        key = self.job.key
        if not key:
            return sa.insert(table).values(values)
        dialect = self.engine.dialect.name
        others = [name for name in self.job.columns if name not in key]
        if dialect not in CONFLICT_DIALECTS:
            # MySQL has no "do nothing": without other columns the key is set to itself.
            of_mysql = mysql.insert(table).values(values)
            return of_mysql.on_duplicate_key_update({name: of_mysql.inserted[name] for name in others or key})
        module: Any = postgresql if dialect == "postgresql" else sqlite
        insert = module.insert(table).values(values)
        if not others:
            return insert.on_conflict_do_nothing(index_elements=list(key))
        new_values = {name: insert.excluded[name] for name in others}
        return insert.on_conflict_do_update(index_elements=list(key), set_=new_values)

    def _run_in_transaction(self, work: Callable[[sa.Connection], Any]) -> Any:
        """Do something in a transaction of its own; raise what its error means for the rows."""
        for attempt in range(MAX_TRANSACTION_TRIES):
            try:
                self.connection = self.connection or self.engine.connect()
                with self.connection.begin():
                    return work(self.connection)
            except (exc.SQLAlchemyError, OSError) as error:
                # Class 40: another transaction has ended this one.
                if _sql_state(error)[:2] != "40" or attempt == MAX_TRANSACTION_TRIES - 1:
                    raise self._error_for(error) from None
                self._close_connection()
        raise AssertionError  # the last attempt raises

    def _close_connection(self) -> None:
        if self.connection:
            self.connection.invalidate()
            self.connection.close()
            self.connection = None

    def _error_for(self, error: Exception) -> Exception:
        """Return an error by its meaning: a row at fault, an unavailable server, or something to change first."""
        text = self._error_text(error)
        state = _sql_state(error)
        if isinstance(error, exc.StatementError) and not isinstance(error, exc.DBAPIError):
            return _RowFault(text)  # the driver was never asked: a value that its type does not take
        if state[:2] in ROW_FAULT_CLASSES or (not state and isinstance(error, (exc.DataError, exc.IntegrityError))):
            return _RowFault(text)
        if state[:2] in SETTING_FAULT_CLASSES or (not state and isinstance(error, exc.ProgrammingError)):
            self._close_connection()
            return _Wrong(text)
        if not state and isinstance(error, exc.DBAPIError) and isinstance(error.orig, (ValueError, OverflowError)):
            return _RowFault(text)
        self._close_connection()
        return _Away(text)

    def _error_text(self, error: Exception) -> str:
        """Return the message of a database, without the statement, its values and the password."""
        orig = getattr(error, "orig", None) or error
        message = orig.args[0] if orig.args else ""
        if isinstance(message, dict):
            message = message.get("M", message)  # pg8000 gives the fields of the message
        line = str(message or type(orig).__name__).strip().splitlines()[0]
        return mask_secrets(line, [str(sa.make_url(self.job.url).password or "")])


def _sql_state(error: Exception) -> str:
    """Return the SQLSTATE of an error; an empty text if its driver has none."""
    orig = getattr(error, "orig", None)
    state = getattr(orig, "sqlstate", None) or getattr(orig, "pgcode", None)
    if not state and orig is not None and orig.args and isinstance(orig.args[0], dict):
        state = orig.args[0].get("C")  # of pg8000
    return str(state or "")


class _JsonText(sa.types.TypeDecorator[str]):
    """A JSON type of a database that gets JSON as text, so that nothing encodes it a second time."""

    impl = sa.JSON
    cache_ok = True

    def __init__(self, column_type: sa.types.TypeEngine[Any]) -> None:
        super().__init__()
        self.column_type = column_type

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        """Return the type that the database itself has reported."""
        return dialect.type_descriptor(self.column_type)

    def bind_processor(self, dialect: sa.Dialect) -> None:
        """Return None: a text is bound as it is, and None is NULL. The type itself would make JSON of both."""
        return


def _with_json_as_text(column_type: sa.types.TypeEngine[Any]) -> sa.types.TypeEngine[Any]:
    """Return the type of a column, with `_JsonText` for JSON, also below arrays and domains."""
    if isinstance(column_type, postgresql.DOMAIN):
        return _with_json_as_text(column_type.data_type)
    if isinstance(column_type, sa.JSON):
        return _JsonText(column_type)
    if isinstance(column_type, sa.ARRAY):
        column_type.item_type = _with_json_as_text(column_type.item_type)
    return column_type


def _column_value(value: Any, arrow_type: pa.DataType, column_type: sa.types.TypeEngine[Any]) -> Any:
    """Return a value of an Arrow type as a column of a database's type takes it."""
    if value is None:
        return None
    if isinstance(value, str) and "\x00" in value:
        raise ValueError("a text has the character NUL, which databases do not take")
    if isinstance(column_type, _JsonText):
        return _json_text(value, arrow_type)
    if isinstance(column_type, sa.ARRAY) and pa.types.is_list(arrow_type):
        return _array_elements(value, arrow_type.value_type, column_type)
    if pa.types.is_nested(arrow_type):
        return _json_text(value, arrow_type)
    if isinstance(value, datetime) and value.tzinfo and isinstance(column_type, sa.DateTime):
        return value if column_type.timezone else value.astimezone(timezone.utc).replace(tzinfo=None)
    return value


def _array_elements(values: list[Any], arrow_type: pa.DataType, column_type: sa.ARRAY[Any]) -> list[Any]:
    """Return the elements of an array, which are of the Arrow type given."""
    element_type = column_type.item_type
    # A database reports the innermost type only, whether an array has one dimension or several.
    if pa.types.is_list(arrow_type) and not isinstance(element_type, _JsonText):
        element_type = column_type
    return [_column_value(value, arrow_type, element_type) for value in values]


def _json_text(value: Any, arrow_type: pa.DataType) -> str:
    """Return a value as JSON, in the formats of the encoder `to_json`; a field that is null is written as null."""
    if value is None:
        return "null"
    # By the type: an empty map and an empty list look the same.
    if pa.types.is_struct(arrow_type):
        fields = []
        for number in range(arrow_type.num_fields):
            field = arrow_type.field(number)
            fields.append(f"{json.dumps(field.name)}: {_json_text(value[field.name], field.type)}")
        return "{" + ", ".join(fields) + "}"
    if pa.types.is_map(arrow_type):
        entries = []
        for key, entry in value:
            key_text = _json_text(key, arrow_type.key_type)
            if not key_text.startswith('"'):
                key_text = json.dumps(key_text)
            entries.append(f"{key_text}: {_json_text(entry, arrow_type.item_type)}")
        return "{" + ", ".join(entries) + "}"
    if pa.types.is_list(arrow_type):
        elements = [_json_text(element, arrow_type.value_type) for element in value]
        return "[" + ", ".join(elements) + "]"
    if isinstance(value, Decimal):
        return format(value, "f")
    return json.dumps(_json_scalar(value))


def _json_scalar(value: Any) -> Any:
    """Return a value that is no list, map, struct or decimal as the number, text or boolean of its JSON."""
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        return value
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat(timespec="microseconds")
        in_utc = value.astimezone(timezone.utc).replace(tzinfo=None)
        return f"{in_utc.isoformat(timespec='microseconds')}Z"
    return str(value)
