"""What sinks implement: the places where the events of a route go.

| kind | what the sink does | what the engine does | delivery |
|---|---|---|---|
| TableSink | names the table of each row | appends the rows | exactly once |
| MergingSink | names the key of a row, and what makes it newer than another | merges the rows | exactly once |
| ApplyingSink | sends the rows of a batch, and reports how many | stages the rows, calls `apply` | at least once |
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

from pydantic import Field, PrivateAttr, model_validator

from router.api.parts import Part
from router.api.table_options import NewTable, TableOptions
from router.errors import StartError
from router.templates import parse_template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from typing_extensions import Self

_Task: TypeAlias = "Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]"
Evolution = Literal["evolve", "freeze", "quarantine", "fail"]
"""What happens to rows with fields that their table cannot store."""
Widening = Literal["rewrite", "feature"]
"""How a column of a table gets a wider type, as int becomes bigint."""


class Sink(Part, ABC):
    """A place where a route's events go. Derive from TableSink, MergingSink or ApplyingSink instead."""

    kind = "sink"

    was: str | None = Field(
        default=None,
        pattern=r"^[a-z][a-z0-9_]{0,63}$",
        description="the name that this sink had in its route, as rest_2: its waiting rows, notes and ids "
        "stay under that name. Keep this option",
    )


class LakeSink(TableOptions, Sink, ABC):
    """A sink whose rows are in tables of the lake. Derive from TableSink or MergingSink instead."""

    at_most: int = Field(
        default=1000, ge=1, description="distinct tables that this sink may create; events for more are dead letters"
    )

    @abstractmethod
    def table(self) -> str | Column:
        """Return one fixed `layer.table`, or a string column over `event` and the raw columns that names it per row.

        A name that breaks the naming rule makes the row a dead letter. Runs on the driver.
        """

    def table_template(self) -> str | None:
        """Return the template of the table names, with fields in braces, if the sink builds its names from one.

        `router check` then refuses a template with which two rows of different fields could get the same table. None:
        any two rows may share a table. `{{` and `}}` are braces; a sink whose other braces do not pair is refused.
        """
        return None

    @model_validator(mode="after")
    def _has_readable_template(self) -> Self:
        parse_template(self.table_template() or "")
        return self


class TableSink(LakeSink, ABC):
    """A sink that names the Delta table of each event; the engine stages and commits the rows.

    Delivery: exactly once.
    """

    columns: Literal["all", "seen"] = Field(
        default="all",
        description="`all`: a table has every column of the route; `seen`: it gains a column with its first value",
    )
    evolution: Evolution = Field(
        default="evolve",
        description="what becomes of rows with fields that their table has no place for. `evolve`: it gains them; "
        "`freeze`: rows land without them and are counted; `quarantine`: these rows stay there until `router "
        "quarantine approve` lets the table gain them; `fail`: the stream stops, and nothing of the batch is committed",
    )
    widening: Widening = Field(
        default="rewrite",
        description="how a column becomes wider, as int becomes bigint. `rewrite`: a table that the router made, of at "
        "most 1 GiB, is rewritten once; any other keeps its types, and a row with a value that does not fit is a dead "
        "letter; `feature`: any other gets Delta's type widening, with which delta-rs, and so polars, cannot read it",
    )


WEEK = timedelta(days=7)


@dataclass(frozen=True)
class KeyedTable:
    """How the rows of one key become one row, in one table or in several tables alike.

    Which rows belong together and which one is newer:

    - `keys` are columns of the route. Rows with equal keys are one row of the table.
    - `newest` is the number of columns that `MergingSink.newest` returns; the engine counts them. The row with the
      larger values is newer, and a null is older than any value.
    - With no such columns, or between equal values, the order of the records decides. In one partition the larger
      offset is newer. Across partitions it is the record that arrived in the later batch; in one batch the one with
      the later time, then topic, then partition.
    - A row that is not newer than the table's row of its key changes nothing.
    - `newest_by` names the order columns in the words of the configuration. A table stores it with `keys` and `history`
      as a property, and rejects rows of a sink that differs in them.

    What a row does to the table's row of its key:

    - `when_matched: ignore` keeps the table's row. `columns`, if set, are the only ones that change in it.
    - A deletion removes the row. Its key is remembered for `deletions_kept`, so that an older record which arrives
      later does not restore the row. A newer one inserts it as a new row. With `soft_delete`, the row stays and the
      column of that name becomes true.
    - With `history` each state of a key stays as a row of its own, valid from `valid_from` up to `valid_to`.

    How the table is made and changed:

    - `evolution`: rows with columns that the table lacks add them (`evolve`), are refused (`freeze`), or stop the
      stream (`fail`). `widening`: see TableSink.
    - `new_table` has the options of new tables and new columns; the engine takes them from the sink.
    - `dropped`: if the table existed and is gone, create it again (`remake`), or let its rows wait until it is back.
    - `engine`: merge with delta-rs in tasks (`arrow`), or with Delta on Spark; `auto` chooses by each table's size. A
      table that only Delta on Spark can write is always left to it.
    - Above `memory` bytes a merge by delta-rs spills to disk.
    """

    keys: tuple[str, ...]
    newest: int = 0
    newest_by: tuple[str, ...] = ()
    when_matched: Literal["update", "ignore"] = "update"
    columns: tuple[str, ...] | None = None
    soft_delete: str | None = None
    history: bool = False
    evolution: Literal["evolve", "freeze", "fail"] = "evolve"
    widening: Widening = "rewrite"
    deletions_kept: timedelta = WEEK
    dropped: Literal["wait", "remake"] = "wait"
    engine: Literal["auto", "arrow", "spark"] = "auto"
    memory: int | None = None
    new_table: NewTable = field(default_factory=NewTable)


class MergingSink(LakeSink, ABC):
    """A sink that keeps one row per key, in one Delta table or in several; the engine stages and merges its rows.

    Delivery: exactly once. A late row never overwrites a newer one.
    """

    refused_properties: ClassVar[Mapping[str, str]] = {
        "delta.appendOnly": "rows of a keyed table change; remove the property"
    }

    tombstones: bool = Field(
        default=False,
        description="a record with a key and no value deletes its key; all sinks of the route, or none",
    )

    _renamed: Mapping[str, str] = PrivateAttr(default_factory=dict)

    def columns_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the columns of the route that names mean: columns, or fields of the event (`event.id`)."""
        columns = [name.removeprefix("event.") for name in names]
        return tuple(self._renamed.get(column, column) for column in columns)

    @abstractmethod
    def keyed(self) -> KeyedTable:
        """Return how the rows of one key become one row."""

    def newest(self) -> tuple[Column, ...]:
        """Return the columns that order the rows of a key, the most important first; none to order by offset.

        They are numbers, texts, dates or times over the route's columns, `event` and the raw columns; of one name the
        route's column is taken. If the sink takes tombstones, they have no columns of the route. Runs on the driver.
        """
        return ()

    def deletes(self) -> Column | None:
        """Return a boolean column, true if the row deletes its key; it has the columns that those of `newest` have.

        Null counts as false. Return None if no row deletes. Runs on the driver.
        """
        return None


class Parts(Protocol):
    """The rows that a sink writes about one batch into a table of its own, as its receipts; it is sent to tasks.

    A part is one file. It is written completely or not at all, and it outlives its task and the driver: the next
    attempt at the batch finds it. The table contains the parts only after `commit`.
    """

    def write(self, rows: pa.Table, notes: Mapping[str, str] | None = None) -> None:
        """Write a part, with notes about it. Runs anywhere."""

    def read(self, columns: Sequence[str] | None = None) -> Iterator[tuple[dict[str, str], pa.Table]]:
        """Yield the notes and rows of each part of this batch, of all attempts at it. Runs anywhere."""

    def commit(self, schema: pa.Schema) -> None:
        """Add all parts to the table, whose columns are `schema`, in one commit. Runs on the driver."""

    def committed(self) -> bool:
        """Return whether the parts of this batch are in the table; it takes no more then. Runs on the driver."""

    def recent(self, columns: Sequence[str], at: str, since: datetime) -> pa.Table | None:
        """Return the table's rows, of all batches, whose time in the column `at` is not before `since`.

        None if there is no table. Columns that a table of an older version lacks are left out, as in `read`. Runs on
        the driver.
        """


@dataclass(frozen=True)
class Batch:
    """The identity of one micro-batch of one sink.

    `key` is unique for (query, route, sink). With `id` it identifies the batch, the same in every attempt at it. A sink
    that takes long checks `stop`: once it is set, begin nothing more, and raise a ConnectionError with that reason.
    In a replay, which has rows of many batches, `resending` is its name and `id` is a number of the replay itself.
    `keeps` and `guards` are set by the engine: call `parts` and `guarded`.
    """

    query: str
    id: int
    route: str
    sink: str
    replay: bool = False
    stop: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    keeps: Callable[[str], Parts] | None = field(default=None, compare=False, repr=False)
    resending: str | None = None
    guards: Callable[[_Task], _Task] | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> str:
        """Return query, route and sink as one name."""
        return f"{self.query}/{self.route}/{self.sink}"

    def parts(self, table: str) -> Parts:
        """Return the parts of this batch for a table of the sink's own (`layer.table`)."""
        if self.keeps is None:
            raise StartError(f"there is no lake that {table} could be in")
        return self.keeps(table)

    def guarded(self, task: _Task) -> _Task:
        """Wrap the function of a task, for mapInArrow, so that it checks its executor first.

        The first task in a Python worker checks that the worker reaches the driver's lake and has its versions and
        parts. If not it raises an error, and the start is refused with one sentence. Runs on the driver.
        """
        if self.guards is None:
            return task
        return self.guards(task)


@dataclass(frozen=True)
class Outcome:
    """What an applying sink did with the rows of a batch.

    `refused` holds the rows that can never be applied, with the columns of the batch and a string column `reason`; they
    become dead letters. `parked` counts the rows that the sink keeps and sends later. applied + refused + parked must
    equal the rows of the batch, or the stream stops. `in_doubt` counts the rows among them that may have been applied
    more than once, or not at all.
    """

    applied: int
    refused: DataFrame | None = None
    parked: int = 0
    in_doubt: int = 0


@dataclass(frozen=True)
class Resent:
    """What a sink did with the rows of a replay.

    `moved` counts rows by status: (before, after) -> rows, from `parked` or `dead` to `delivered`, `dead` or `parked`.
    Other rows are unchanged, and `left` is the reason. `refused` holds the rows that were parked and are dead now, as
    in an Outcome. `in_doubt` counts the rows that may have been applied more than once, or not at all.
    """

    moved: Mapping[tuple[str, str], int]
    refused: DataFrame | None = None
    in_doubt: int = 0
    left: str = ""

    def count_before(self, status: str) -> int:
        """Return how many of the moved rows had a status before."""
        return sum(rows for (before, _), rows in self.moved.items() if before == status)

    def count_now(self, status: str) -> int:
        """Return how many of the moved rows have a status now."""
        return sum(rows for (_, after), rows in self.moved.items() if after == status)


class Applied(NamedTuple):
    """The rows of a batch that were applied, became dead letters, were parked, and are in doubt."""

    applied: int = 0
    dead: int = 0
    parked: int = 0
    in_doubt: int = 0

    @property
    def finished_rows(self) -> int:
        """Return the number of rows that need no further work."""
        return self.applied + self.dead + self.parked


class GivenAnswer(NamedTuple):
    """The answer of a sink's API in a route test."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Opening:
    """The things that an applying sink may use to get ready, once, before the stream starts.

    `folder` is the configuration's folder. `events` is an empty frame with the columns that `apply` will get; they may
    become more while the stream runs, if the decoder learns new fields. With `trial` no stream follows (`router check
    --plan`): look, and change nothing. `answer` is the API's answer in a route test, for `preview`.
    """

    folder: Path
    events: DataFrame
    trial: bool = False
    answer: GivenAnswer | None = None


@dataclass(frozen=True)
class ApiState:
    """What the driver knows of the API that a sink sends to.

    `circuit_open`: nothing is sent, because the API does not work. `limit_used` is the share of the stated rate limit
    that is used, 0 to 1; None without one. `answers` counts the calls since the process started by how they ended, in
    words that people see, such as `ok`, `throttled`, `failed`, `timed out`; empty if that is not known. `url` is where
    the sink sends, without query and secrets; `failure` is how the last call that failed ended: `answers 503`.
    `delivered` counts the rows that each sink which shares the limit has delivered since the process started, by
    QUERY/ROUTE/SINK (`Batch.key`), also those of a batch that has not ended.
    """

    circuit_open: bool = False
    limit_used: float | None = None
    answers: Mapping[str, int] = field(default_factory=dict)
    url: str = ""
    failure: str = ""
    delivered: Mapping[str, int] = field(default_factory=dict)


class ApplyingSink(Sink, ABC):
    """A sink that sends a route's events, batch by batch, from its outbox: a Delta table in which they are staged.

    Delivery: at least once. A batch whose `apply` returned is not applied again; one that was interrupted is.
    """

    replay_safe: ClassVar[bool] = False
    """True if applying the same batch twice has the same result as applying it once."""
    ordered: ClassVar[bool] = False
    """True if the sink needs the rows of a source partition in the order of their offsets."""
    previews: ClassVar[bool] = False
    """True if the sink has `preview`, for route tests."""
    resends: ClassVar[bool] = False
    """True if the sink has `set_aside` and `resend`, for `router replay`."""

    @property
    def detached(self) -> bool:
        """Return whether the sink has a query of its own over its outbox, so that no other sink waits for it."""
        return False

    @property
    def seconds_between(self) -> float:
        """Return how long a detached sink waits for more rows before its next batch; 0 not to wait for more."""
        return 0.0

    @property
    def tasks_at_most(self) -> int:
        """Return how many tasks of a detached sink may wait for its API at once; a local run adds as many threads."""
        return 1

    @property
    def receipts_table(self) -> str | None:
        """Return the table in which the sink keeps what became of each row, for `router trace`; None if it has none.

        Of a row it has `query`, `route`, `sink`, `topic`, `partition`, `offset`, `status` and the time `at`, and may
        have `http_status`, `attempts`, `call_id`, `in_doubt`, `replay`, `reason` and `response`.
        """
        return None

    def api_state(self) -> ApiState | None:
        """Return how the API of the sink is, at no cost; None if the driver does not know. Any thread may call it."""
        return None

    def prepare(self, opening: Opening) -> Self:
        """Return a copy that is ready to apply. Called once, at the start of a stream. Runs on the driver.

        Raise StartError if a person has to change something first, OSError if the API is unavailable: then the start
        waits, but for a detached sink, which its own query prepares later.
        """
        return self

    def preview(self, events: DataFrame, opening: Opening) -> list[dict[str, Any]]:
        """Return the calls that `apply` would make for a small batch, in order, as plain values by name; send nothing.

        `opening` is one for a trial. No request may be made. Runs on the driver.
        """
        raise NotImplementedError(f"the sink {self.part_name} does not say what it would send")

    @abstractmethod
    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        """Send one batch: the route's columns and `_topic, _partition, _offset, _timestamp, _key`.

        The frame reads landed files, so using it twice never reads the source again. Raise OSError if the API is
        unavailable: the stream waits, and the batch is applied again. Any other error stops the stream. Runs on the
        driver.
        """

    def set_aside(self, batch: Batch, read: Callable[[str], DataFrame | None]) -> DataFrame | None:
        """Return the rows of this sink that are parked or dead letters now; None if there are none.

        `batch` identifies the sink. `read(layer.table)` returns a table, always at the same version, None if it does
        not exist. The columns to return, with each record once:

        - `topic`, `partition`, `offset`: the record.
        - `status`: `parked` or `dead`.
        - `code` (int), `at` (time), `reason`: the API's last answer.
        - `call`: the name of the call that contained the row, null if there was none.

        Runs on the driver.
        """
        raise NotImplementedError(f"the sink {self.part_name} keeps no rows back")

    def resend(self, events: DataFrame, aside: DataFrame, batch: Batch) -> Resent:
        """Send rows of earlier batches again: `events` is as for `apply`, `aside` the rows of `set_aside` for them.

        A replay that was interrupted is called again with the same rows, under the same name (`batch.resending`). If
        `batch.stop` is set, or a setting is wrong, end early and return what was done. Runs on the driver.
        """
        raise NotImplementedError(f"the sink {self.part_name} does not send anything again")
