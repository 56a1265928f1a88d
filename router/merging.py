"""Sinks that keep one row per key: what a merging sink asks the engine for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from router.parts import Sink

if TYPE_CHECKING:
    from pyspark.sql import Column


Evolution = Literal["evolve", "freeze", "fail"]
WEEK = timedelta(days=7)


@dataclass(frozen=True)
class KeyedTable:
    """A table that holds one row per key, or one of several such tables.

    `keys` are columns of the route. `newest` is the number of columns that say which row of a key is the newest: those
    of `MergingSink.newest`, the engine counts them; with none it is the record's offset. Ties go to the larger
    partition, then offset, topic. A row that is not newer than what the table holds changes nothing; a null is older
    than any value.

    `when_matched` `ignore` keeps the row that is there; `columns` are the only ones that change in it. A deleted row
    disappears, and its key is remembered for `deletions_kept`, so that an older row that comes later does not bring it
    back; with `soft_delete`, a column of that name is true instead. With `history` each state of a key stays as a row
    of its own, from `valid_from` up to `valid_to`. A row that comes back after a deletion is a new one.

    `evolution`: what becomes of rows whose columns the table does not have. They change it (`evolve`), are refused
    (`freeze`), or stop the stream (`fail`). `partition_by` or `cluster_by`, `properties`, `comment` and the `comments`
    of columns are for tables and columns that are made. A table that was merged into and is gone is made anew
    (`dropped: remake`), or its rows wait until it is back.

    `engine`: who merges, delta-rs in tasks (`arrow`) or Delta on Spark; `auto` goes by each table's size, and what only
    Delta on Spark may write is left to it in any case. Above `memory` bytes a merge by delta-rs spills to disk.
    """

    keys: tuple[str, ...]
    newest: int = 0
    when_matched: Literal["update", "ignore"] = "update"
    columns: tuple[str, ...] | None = None
    soft_delete: str | None = None
    history: bool = False
    evolution: Evolution = "evolve"
    deletions_kept: timedelta = WEEK
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    comment: str | None = None
    comments: dict[str, str] = field(default_factory=dict)
    dropped: Literal["wait", "remake"] = "wait"
    engine: Literal["auto", "arrow", "spark"] = "auto"
    memory: int | None = None


class MergingSink(Sink, ABC):
    """A sink that keeps one row per key, in one Delta table or in one per value: the engine stages its rows and merges.

    Delivery: exactly once; a late row never overwrites a newer one.
    """

    at_most: int = Field(
        default=1000, ge=1, description="distinct tables that this sink may create; events for more are dead letters"
    )

    tombstones: bool = Field(
        default=False,
        description="a record with a key and no value deletes its key; all sinks of the route, or none",
    )

    @abstractmethod
    def table(self) -> str | Column:
        """Return one fixed `layer.table`, or a string column over `event` and the raw columns that names it per row.

        A name that breaks the naming rule makes the row a dead letter. Runs on the driver.
        """

    @abstractmethod
    def keyed(self) -> KeyedTable:
        """Return how the rows of one key become one row."""

    def newest(self) -> tuple[Column, ...]:
        """Return what says which row of a key is the newest, the most important first; nothing for the offset.

        Numbers, texts, dates and times over `event` and the raw columns. Runs on the driver.
        """
        return ()

    def deletes(self) -> Column | None:
        """Return a boolean column over `event` and the raw columns: the row deletes its key. Runs on the driver."""
        return None
