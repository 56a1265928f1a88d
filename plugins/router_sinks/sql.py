"""The sink `sql`: its options, and one batch of it on the driver. Its tasks are in router_sinks.sql_client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, PrivateAttr, SecretStr, field_validator
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F

from router import ApplyingSink, Batch, Opening, Outcome, Placeholder, Server, StartError, parse_template, row, tried
from router_encoders.outbox_rows import PLACE, own_columns, with_event
from router_encoders.reports import outcome_of, run_tasks
from router_encoders.templates import text_column

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame
    from typing_extensions import Self

    from router_sinks.sql_client import InsertJob

SQL_URL_PATTERN = re.compile(r"[a-z0-9_]+(\+[a-z0-9_]+)?://.*", re.DOTALL)
DEFAULT_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "mssql": 1433, "oracle": 1521}


class Database(ApplyingSink):
    """Insert events into a table of a database, or into one per value of one or more fields.

    Any database that SQLAlchemy has a dialect for. The tables must exist: the sink creates none. Columns of the
    route go into those of the same name; structs, lists and maps as JSON. In a column of JSON every value is encoded
    once, by its type: a text is a JSON string, null is NULL. `table: wins_{event.game}` sends an event of
    the game uno to wins_uno.

    Delivery: at least once; with `key`, whose columns have a unique index in the table, a row with the key of another
    takes its place, and the same rows sent twice leave the same table. PostgreSQL, SQLite, MySQL and MariaDB can do
    that. A row that the database refuses (a constraint, a value that is too large) is a dead letter, and its neighbours
    land. While the database is unavailable only this sink waits, with its rows in the outbox. Runs in Python tasks,
    each with one connection.
    """

    extras: ClassVar[Mapping[str, str]] = {"sqlalchemy": "spark-event-router[sql]"}
    needs: ClassVar[tuple[str, ...]] = ("router_sinks.sql_client",)

    url: SecretStr = Field(
        description="of SQLAlchemy, with its driver, which must also be installed: postgresql+pg8000://user@host/database"
    )
    table: str = Field(min_length=1, description="a table, or text followed by fields in braces: wins_{event.game}")
    in_schema: str | None = Field(default=None, min_length=1, description="the schema of the tables, if not the user's")
    key: tuple[str, ...] = Field(
        default=(), description="columns: a row with the same values there is updated instead of inserted again"
    )
    without: tuple[str, ...] = Field(default=(), description="columns of the route that only name tables")
    rows_per_statement: int = Field(default=500, ge=1, le=10_000, description="rows of one insert and its transaction")
    tasks: int = Field(default=2, ge=1, le=100, description="connections at once")
    at_most: int = Field(default=100, ge=1, description="tables that rows of a batch may name; the others' are refused")

    _opening: Opening | None = PrivateAttr(default=None)

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: SecretStr) -> SecretStr:
        if not SQL_URL_PATTERN.fullmatch(url.get_secret_value()):
            raise ValueError(
                "a URL of SQLAlchemy begins with a dialect: postgresql+pg8000://user:password@host/database"
            )
        return url

    @field_validator("table")
    @classmethod
    def _check_table(cls, table: str) -> str:
        pieces = parse_template(table)
        if isinstance(pieces[0], Placeholder):
            raise ValueError(
                "a table begins with fixed text, such as `wins_` in wins_{event.game}: data may name no other"
            )
        return table

    @property
    def detached(self) -> bool:
        """Return True: nothing else waits for the database."""
        return True

    @property
    def tasks_at_most(self) -> int:
        """Return how many connections there are at once."""
        return self.tasks

    def talks_to(self, folder: Path) -> Iterable[Server]:
        """Yield the database, if its URL names a host."""
        from urllib.parse import urlsplit

        url = urlsplit(self.url.get_secret_value())
        if url.hostname:
            port = url.port or DEFAULT_PORTS.get(url.scheme.partition("+")[0], 0)
            yield Server("database", f"{url.hostname}:{port}")

    def prepare(self, opening: Opening) -> Self:
        """Return this sink with its columns checked. Asks the database for a fixed table."""
        from router_sinks.sql_client import check_database

        columns = own_columns(opening.events, self.without)
        if unknown := sorted(set(self.key) - set(columns.names)):
            raise StartError(f"`key` has {', '.join(unknown)}, and the route has no such columns")
        try:
            self._select_rows(opening.events).schema  # noqa: B018 - analyses the expressions
        except (AnalysisException, ParseException) as error:
            raise StartError(str(error).strip().split("\n")[0]) from error
        job = self._make_job(opening.events)
        check_database(job, self.table if job.fixed else None)
        prepared = self.model_copy()
        prepared._opening = opening
        return prepared

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        """Insert the rows of one batch. Raises ConnectionError while the database is unavailable."""
        from router_sinks.sql_client import insert_task, shown_database

        rows = self._select_rows(events)
        # Rows of a key stay together, in the order of their offsets: the table keeps the last one.
        spread_by = [f"_row.`{name}`" for name in self.key] or PLACE
        rows = rows.repartition(self.tasks, "_table", *spread_by).sortWithinPartitions("_table", *PLACE)
        job = self._make_job(events)
        return outcome_of(events, run_tasks(rows, batch, insert_task(job)), shown_database(job))

    def _select_rows(self, events: DataFrame) -> DataFrame:
        """Return the rows to insert: their place, table and columns."""
        # The condition is always true, which no optimiser knows: see `tried`.
        table = tried(F.when(F.col("_offset") >= 0, text_column(parse_template(self.table))))
        value = row(own_columns(events, self.without).fieldNames())
        return with_event(events).select(*PLACE, table.alias("_table"), value.alias("_row"))

    def _make_job(self, events: DataFrame) -> InsertJob:
        from router_sinks.sql_client import InsertJob

        return InsertJob(
            url=self.url.get_secret_value(),
            in_schema=self.in_schema,
            columns=tuple(own_columns(events, self.without).fieldNames()),
            key=self.key,
            rows_per_statement=self.rows_per_statement,
            at_most=self.at_most,
            fixed="{" not in self.table,
        )
