"""Sinks whose rows land in Delta tables: append events (`delta`, `tables`), or keep the newest row per key (`upsert`).

Each names its table by one text or, if the text has fields in braces, by a column; the engine lands and commits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pyspark.sql import Column
from pyspark.sql import functions as F

from router import KeyedTable, MergingSink, TableSink
from router_encoders.templates import check_name, check_template, table_column

if TYPE_CHECKING:
    from typing_extensions import Self


class Delta(TableSink):
    """Append events to one Delta table. The table is made with the first events, and gains columns as they come.

    Delivery: exactly once.
    """

    main_option: ClassVar[str | None] = "table"

    # `table` is the method that every table sink has, so the option of that name is an alias
    name: str = Field(alias="table", description="the table, as layer.table, such as gold.big_wins")

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return check_name(name)

    def table(self) -> str:
        """Return the table's name."""
        return self.name


class Tables(TableSink):
    """Append events to one Delta table per value of one or more fields.

    `table: silver.{event.game}` sends an event of the game uno to silver.uno. In braces is a field, a raw
    column or, if there is none of that name, a column that `select` makes; the rest is taken as it is. Tables are
    created with their first event. An event for which a field in braces is null, or whose name breaks the naming
    rule (letters, digits and underscores; capitals become small, and hyphens of `topic` underscores), is a dead letter,
    and so is one for a table beyond `at_most`.

    Delivery: exactly once, for hundreds of tables at the price of about one.
    """

    main_option: ClassVar[str | None] = "table"

    # `table` is the method that every table sink has, so the option of that name is an alias
    template: str = Field(alias="table", description="layer.table with fields in braces, such as silver.{event.game}")
    columns: Literal["all", "seen"] = Field(
        default="seen",
        description="`seen`: a table gains a column with its first value; `all`: it has every column of the route",
    )
    collisions: Literal["refuse", "accept"] = Field(
        default="refuse",
        description="`accept`: rows may meet in a table though fields of its name differ (a_b, c and a, b_c: a_b_c)",
    )

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str) -> str:
        return check_template(template)

    def table(self) -> Column:
        """Return the name as the data has it, null if a field of it is null; the engine applies the naming rule."""
        return table_column(self.template)

    def table_template(self) -> str | None:
        """Return the template, unless tables may be shared."""
        return self.template if self.collisions == "refuse" else None


KEPT_PATTERN = re.compile(r"\s*([0-9]{1,6})\s*(min|h|d)\s*")
UNIT_DURATIONS = {"min": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
ORDER_BY_OFFSET = "offset"
SIZE_PATTERN = re.compile(r"\s*([0-9]{1,6})\s*(mb|gb)\s*", re.IGNORECASE)
SIZE_UNIT_BYTES = {"mb": 1 << 20, "gb": 1 << 30}
MIN_MERGE_BYTES = 256 << 20
"""Bytes. A merge reads several files at once, and the rows of a batch cannot be spilled."""


class Upsert(MergingSink):
    """Keep one row per key with its newest state, in one Delta table or in one per value.

    `upsert: {table: silver.profiles, keys: [event.gamer_id]}` has the last profile of every gamer. Of the rows of a key
    the one that was written last wins, or the one with the largest of the fields of `newest_by`. Within a partition
    that is the larger offset; of records of different partitions the one that arrived in a later batch, or, in one
    batch, the one with the later time. Files are ordered by batch, modification time and path. A row that comes late
    never overwrites a newer one, also not in a later batch, and does not bring a deleted key back within
    `deletions_kept`. A table keeps when its rows' records arrived and where they were in `_arrival`, `_timestamp`,
    `_topic`, `_partition` and `_offset`, and the values of `newest_by` in `_newest_1` onwards: leave these alone.

    A row without a value in a key, and one that the table refuses, is a dead letter. Let a key's records come in one
    partition of one topic: the order of records of different partitions is that of their arrival.

    Delivery: exactly once, for hundreds of tables at the price of about one job.
    """

    texts: ClassVar[Mapping[str, str]] = {
        "keys": "column",
        "columns": "column",
        "newest_by": "order",
        "delete_when": "order",
    }

    # `table` is the method that the engine calls, so the option of that name is an alias
    template: str = Field(alias="table", description="silver.profiles, or with fields: silver.{event.game}_profiles")
    collisions: Literal["refuse", "accept"] = Field(
        default="refuse",
        description="`accept`: rows may meet in a table though fields of its name differ (a_b, c and a, b_c: a_b_c)",
    )
    keys: tuple[str, ...] = Field(
        min_length=1,
        description="columns of the route, or fields of the event that are columns of it: event.gamer_id",
    )
    newest_by: str | tuple[str, ...] = Field(
        default=ORDER_BY_OFFSET,
        min_length=1,
        description="SQL over columns of the route, the event and the record, the most important first: event.at",
    )
    when_matched: Literal["update", "ignore"] = Field(
        default="update", description="`ignore` keeps the row that is there: the first of a key wins"
    )
    delete_when: str | None = Field(
        default=None,
        min_length=1,
        description='SQL condition, over the same columns, of rows that delete their key: "event.left"',
    )
    changes: tuple[str, ...] | None = Field(
        default=None, alias="columns", min_length=1, description="the only columns that change in a row that is there"
    )
    soft_delete: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$",
        description="a column that is true in deleted rows; they stay",
    )
    history: Literal["scd2"] | None = Field(
        default=None, description="keep every state, from valid_from up to valid_to; is_current marks the last"
    )
    evolution: Literal["evolve", "freeze", "fail"] = Field(
        default="evolve",
        description="rows with other columns: they change the table, become dead letters, or stop the stream",
    )
    widening: Literal["rewrite", "feature"] = Field(
        default="rewrite",
        description="how a column becomes wider, as int becomes bigint. `rewrite`: a table that the router made, of at "
        "most 1 GiB, is rewritten once; any other keeps its types, and a row with a value that does not fit is a dead "
        "letter; `feature`: any other gets Delta's type widening, with which delta-rs, and so polars, cannot read it",
    )
    deletions_kept: str = Field(
        default="7 d", description="how long a late row cannot bring a deleted key back: 30 min, 12 h, 7 d"
    )
    dropped: Literal["wait", "remake"] = Field(
        default="wait", description="a table that was dropped: its rows wait until it is back, or it is created again"
    )
    engine: Literal["auto", "arrow", "spark"] = Field(
        default="auto", description="who merges: see `router tables`; `auto` goes by each table"
    )
    memory: str | None = Field(
        default=None, description="above this a merge spills to disk: 512 MB, 2 GB; of the engine `arrow`, a table each"
    )

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str) -> str:
        if "{" in template:
            return check_template(template)
        return check_name(template)

    @field_validator("deletions_kept")
    @classmethod
    def _check_deletions_kept(cls, text: str) -> str:
        if not KEPT_PATTERN.fullmatch(text):
            raise ValueError("is not a time; write a number and a unit: 30 min, 12 h, 7 d")
        return text

    @field_validator("memory")
    @classmethod
    def _check_memory(cls, text: str | None) -> str | None:
        if text is not None and _parse_bytes(text) < MIN_MERGE_BYTES:
            raise ValueError(f"is less than {MIN_MERGE_BYTES >> 20} MB, with which no merge gets far")
        return text

    @model_validator(mode="after")
    def _clustered_by_spark(self) -> Self:
        if self.engine == "arrow" and self.cluster_by:
            raise ValueError("`engine: arrow` cannot write clustered tables; remove the engine, or `cluster_by`")
        return self

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        ignores = self.when_matched == "ignore"
        for name, is_set in {"soft_delete": self.soft_delete, "columns": self.changes, "when_matched": ignores}.items():
            if self.history and is_set:
                raise ValueError(f"`{name}` and `history` exclude each other: a history keeps every state as it was")
        for sql in self._newest_by:
            if self.tombstones and re.search(r"\bevent\.", sql):
                raise ValueError(f"a tombstone has no event to be ordered by {sql}; order by `offset` or `timestamp`")
        if self.changes and ignores:
            raise ValueError("`columns` and `when_matched: ignore` exclude each other: no column of such a row changes")
        return self

    @property
    def _newest_by(self) -> tuple[str, ...]:
        if isinstance(self.newest_by, str):
            return (self.newest_by,)
        return self.newest_by

    @property
    def _ordering(self) -> tuple[str, ...]:
        return () if self._newest_by == (ORDER_BY_OFFSET,) else self._newest_by

    def table(self) -> str | Column:
        """Return the fixed name, or the name as the data has it; the engine applies the naming rule."""
        if "{" in self.template:
            return table_column(self.template)
        return self.template

    def table_template(self) -> str | None:
        """Return the template, unless tables may be shared."""
        return self.template if self.collisions == "refuse" else None

    def keyed(self) -> KeyedTable:
        """Return the options by which the rows of a key become one."""
        deletions_kept = KEPT_PATTERN.fullmatch(self.deletions_kept)
        assert deletions_kept  # by validation
        return KeyedTable(
            keys=self.columns_of(self.keys),
            newest_by=self._ordering,
            when_matched=self.when_matched,
            columns=self.columns_of(self.changes) if self.changes else None,
            soft_delete=self.soft_delete,
            history=self.history == "scd2",
            evolution=self.evolution,
            widening=self.widening,
            deletions_kept=int(deletions_kept[1]) * UNIT_DURATIONS[deletions_kept[2]],
            dropped=self.dropped,
            engine=self.engine,
            memory=_parse_bytes(self.memory) if self.memory else None,
        )

    def newest(self) -> tuple[Column, ...]:
        """Return the fields that order rows; none for the offset, which every table has anyway."""
        return tuple(F.expr(sql) for sql in self._ordering)

    def deletes(self) -> Column | None:
        """Return the condition of rows that delete their key."""
        if self.delete_when is None:
            return None
        return F.expr(self.delete_when)


def _parse_bytes(text: str) -> int:
    size = SIZE_PATTERN.fullmatch(text)
    if not size:
        raise ValueError("is not a size; write a number and a unit: 512 MB, 2 GB")
    return int(size[1]) * SIZE_UNIT_BYTES[size[2].lower()]
