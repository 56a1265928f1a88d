"""The sink `spark`: the rows of a batch, handed to any writer of Spark."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Literal

from pydantic import Field, SecretStr, field_validator

from router import ApplyingSink, Batch, Opening, Outcome, StartError
from router_encoders.outbox_rows import own_columns
from router_http.options import mask_secrets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Self

log = logging.getLogger("router")
TAKEN_WRITER_OPTIONS = {
    "checkpointlocation": "each batch is a write of its own",
    "path": "write `path` next to `options`",
}
"""Options that belong to the sink, and what to do instead."""

SECRET_OPTION_PATTERN = re.compile(r"(?i)pass|pwd|secret|token|credential|key|auth")
"""The names of options whose values are secrets."""


class SparkWriter(ApplyingSink):
    """Write the rows of each batch by a data source of Spark: jdbc, mongodb, parquet, whatever is on the class path.

    As `frame.write.format(...).options(...).mode(...).save(path)`. Jars of a data source come by `spark:` of the
    configuration (spark.jars.packages). The route's columns are written, without where they came from.

    Delivery: at least once; a batch that was cut off is written again completely, and the writer decides what remains
    of a failed try. A writer that fails is tried again with growing pauses, and only this sink waits: a row that it
    does not take holds up those behind it, since Spark does not name that row. Runs as Spark's job.
    """

    format: str = Field(min_length=1, description="short name, or class, of a data source: jdbc, parquet, ...")
    options: dict[str, SecretStr] = Field(
        default_factory=dict, description="passed to the writer as they are: url, dbtable, password: ${PASSWORD}, ..."
    )
    path: str | None = Field(default=None, min_length=1, description="where files are written, for formats of files")
    mode: Literal["append", "overwrite"] = Field(
        default="append", description="`overwrite`: each batch takes the place of the one before"
    )
    partition_by: tuple[str, ...] = Field(default=(), description="columns of the route that files are divided by")
    without: tuple[str, ...] = Field(default=(), description="columns that are not written")

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name in options:
            if name.lower() in TAKEN_WRITER_OPTIONS:
                raise ValueError(f"the option {name} belongs to the sink: {TAKEN_WRITER_OPTIONS[name.lower()]}")
        return options

    @property
    def detached(self) -> bool:
        """Return True: nothing else waits for the writer."""
        return True

    def prepare(self, opening: Opening) -> Self:
        """Return this sink with its columns checked; whether there is such a format shows with the first batch."""
        columns = self._written_columns(opening.events)
        if unknown_names := sorted({*self.without} - {*opening.events.columns}):
            # No mistake if rows that wait have it: the outbox keeps the columns of a former `select`.
            log.warning("`without` has %s, and the route has no such columns now", ", ".join(unknown_names))
        if unknown := sorted(set(self.partition_by) - set(columns)):
            raise StartError(f"`partition_by` has {', '.join(unknown)}, and the route has no such columns")
        return self

    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        """Write the rows of one batch. Raises ConnectionError if the writer fails, without the options' values."""
        columns = self._written_columns(events)
        rows = events.select(*(f"`{name.replace('`', '``')}`" for name in columns))
        secrets = {name: value.get_secret_value() for name, value in self.options.items()}
        writer = rows.write.format(self.format).options(**secrets).mode(self.mode)
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        try:
            writer.save(self.path)
        except Exception as error:  # whatever a data source raises
            raise ConnectionError(
                f"the format {self.format} does not take the rows: {self._mask_error(error)}"
            ) from None
        return Outcome(events.count())

    def _written_columns(self, events: DataFrame) -> list[str]:
        return own_columns(events, {*self.without} & {*events.columns}).names

    def _mask_error(self, error: Exception) -> str:
        """Return the first line of an error that names an exception, without the values of options."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        named = [line for line in lines if "Exception" in line or "Error" in line]
        text = (named or lines or [type(error).__name__])[0]
        values = []
        for name, secret in self.options.items():
            value = secret.get_secret_value()
            if len(value) > 3 or SECRET_OPTION_PATTERN.search(name):
                values.append(value)
        return mask_secrets(text, values)[:500]
