"""What sinks implement: where the events of a route go. There are three kinds.

A table sink names a table for each row, and the engine commits the rows; a merging sink says what is a key and what is
newest, and the engine merges them; an applying sink gets the rows of a batch and returns what became of them.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

from pydantic import Field

from router.errors import StartError
from router.parts import Part
from router.table_options import LOCATION, RESET, CatalogOptions, Location, Reset, TableOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from typing_extensions import Self

Task: TypeAlias = "Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]"
Evolution = Literal["evolve", "freeze", "quarantine", "fail"]
"""What becomes of rows with fields that their table has no place for."""
Widening = Literal["rewrite", "feature"]
"""How columns of a table become wider."""


class Sink(Part, ABC):
    """The place where a route's events go: see TableSink, MergingSink and ApplyingSink."""

    kind = "sink"

    was: str | None = Field(
        default=None,
        pattern=r"^[a-z][a-z0-9_]{0,63}$",
        description="the name that this sink had in its route, as rest_2: what waits for it, its notes and its ids "
        "stay under that name. Stays for good",
    )


class TableSink(TableOptions, Sink, ABC):
    """A sink that names the Delta table of each event; the engine stages and commits the rows.

    Delivery: exactly once.
    """

    at_most: int = Field(
        default=1000, ge=1, description="distinct tables that this sink may create; events for more are dead letters"
    )
    columns: Literal["all", "seen"] = Field(
        default="all",
        description="`all`: a table has every column of the route; `seen`: it gains a column with its first value",
    )
    evolution: Evolution = Field(
        default="evolve",
        description="what becomes of rows with fields that their table has no place for. `evolve`: it gains them; "
        "`freeze`: rows land without them and are counted; `quarantine`: these rows stay there until `router "
        "approve` lets the table gain them; `fail`: the stream stops, and nothing of the batch is committed",
    )
    widening: Widening = Field(
        default="rewrite",
        description="how a column becomes wider, as int becomes bigint. `rewrite`: a table that the router made, of at "
        "most 1 GiB, is rewritten once; any other keeps its types, and a row with a value that does not fit is a dead "
        "letter; `feature`: any other gets Delta's type widening, with which delta-rs, and so polars, cannot read it",
    )

    @abstractmethod
    def table(self) -> str | Column:
        """Return one fixed `layer.table`, or a string column over `event` and the raw columns that names it per row.

        A name that breaks the naming rule makes the row a dead letter. Runs on the driver.
        """

    def table_template(self) -> str | None:
        """Return the template of the names, with fields in braces, where rows that differ in a field must not meet.

        `router check` refuses one with which they could. None: names are as they are.
        """
        return None


WEEK = timedelta(days=7)


@dataclass(frozen=True)
class KeyedTable:
    """A table that holds one row per key, or one of several such tables.

    `keys` are columns of the route. `newest` is the number of columns that say which row of a key is the newest: those
    of `MergingSink.newest`, the engine counts them; with none it is the order of the records. Of two records of one
    partition the one with the larger offset is the newer one. Of records of different partitions it is the one that
    arrived in a later batch or, in one batch, that has the later time, topic, partition. That also decides between rows
    that are equally new. A row that is not newer than what the table holds changes nothing; a null is older than any
    value. `newest_by` says in the words of the configuration what the columns are: a table keeps it, with keys and
    `history`, as a property, and takes no rows of a sink that differs in them.

    `when_matched` `ignore` keeps the row that is there; `columns` are the only ones that change in it. A deleted row
    disappears, and its key is remembered for `deletions_kept`, so that an older row that comes later does not bring it
    back; with `soft_delete`, a column of that name is true instead. With `history` each state of a key stays as a row
    of its own, from `valid_from` up to `valid_to`. A row that comes back after a deletion is a new one.

    `evolution`: what becomes of rows whose columns the table does not have. They change it (`evolve`), are refused
    (`freeze`), or stop the stream (`fail`). `widening` says how a column of theirs becomes wider: see TableSink.
    `partition_by` or `cluster_by`, `properties`, `comment` and the `comments` of columns are for tables and columns
    that are made. A table that was merged into and is gone is made anew (`dropped: remake`), or its rows wait until it
    is back.

    `engine`: who merges, delta-rs in tasks (`arrow`) or Delta on Spark; `auto` goes by each table's size, and what only
    Delta on Spark may write is left to it in any case. Above `memory` bytes a merge by delta-rs spills to disk.
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
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    comment: str | None = None
    comments: dict[str, str] = field(default_factory=dict)
    dropped: Literal["wait", "remake"] = "wait"
    engine: Literal["auto", "arrow", "spark"] = "auto"
    memory: int | None = None


class MergingSink(CatalogOptions, Sink, ABC):
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
    location: Location | None = Field(default=None, description=LOCATION)
    reset: Reset = Field(default="allowed", description=RESET)

    @abstractmethod
    def table(self) -> str | Column:
        """Return one fixed `layer.table`, or a string column over `event` and the raw columns that names it per row.

        A name that breaks the naming rule makes the row a dead letter. Runs on the driver.
        """

    def table_template(self) -> str | None:
        """Return the template of the names, with fields in braces, where rows that differ in a field must not meet.

        `router check` refuses one with which they could. None: names are as they are.
        """
        return None

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


class Parts(Protocol):
    """The rows that a sink makes of one batch for a table of its own; travels to tasks.

    A part is one file. It is there as a whole or not at all, and stays when its task, or the driver, dies: the next
    attempt at the batch finds it. The table has no part before `commit`.
    """

    def write(self, rows: pa.Table, notes: Mapping[str, str] | None = None) -> None:
        """Write a part, with what is to be known about it. Runs anywhere."""

    def read(self, columns: Sequence[str] | None = None) -> Iterator[tuple[dict[str, str], pa.Table]]:
        """Yield the notes and rows of each part of this batch, of whichever attempt. Runs anywhere."""

    def commit(self, schema: pa.Schema) -> None:
        """Add all parts to the table, which has these columns, in one commit for the batch. Runs on the driver."""

    def committed(self) -> bool:
        """Say whether the table has the parts of this batch; it takes no more after that. Runs on the driver."""

    def recent(self, columns: Sequence[str], at: str, since: datetime) -> pa.Table | None:
        """Return rows of the table whose time `at` is not before `since`; None: there is none. Runs on the driver.

        Columns that a table of an older version does not have are left out, as in `read`.
        """


@dataclass(frozen=True)
class Batch:
    """The identity of one micro-batch of one sink.

    `key` is unique for (query, route, sink) and, with `id`, names the batch the same way in every replay. A sink that
    takes long looks at `stop`: once it is set, leave what is not done, and raise a ConnectionError that says so.
    `resending` is the name of a replay, which has rows of many batches; `id` is a number of its own then.
    """

    query: str
    id: int
    route: str
    sink: str
    replay: bool = False
    stop: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    keeps: Callable[[str], Parts] | None = field(default=None, compare=False, repr=False)
    resending: str | None = None
    guards: Callable[[Task], Task] | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> str:
        """Return query, route and sink as one name, the same whenever the batch is applied again."""
        return f"{self.query}/{self.route}/{self.sink}"

    def parts(self, table: str) -> Parts:
        """Return where rows of this batch are kept for a table of the sink's own (`layer.table`)."""
        if self.keeps is None:
            raise StartError(f"there is no lake that {table} could be in")
        return self.keeps(table)

    def guarded(self, task: Task) -> Task:
        """Return the function of a task, for mapInArrow, that looks at its executor before it works there.

        The first task in a Python worker makes sure that it has the driver's lake, versions and parts; where something
        is missing it raises, and the start is refused in a sentence. Runs on the driver.
        """
        return task if self.guards is None else self.guards(task)


@dataclass(frozen=True)
class Outcome:
    """What an applying sink did with a batch, in rows.

    `refused` holds the rows that can never be applied: the columns of the batch and a string column `reason`. They
    become dead letters. `parked` rows are those that the sink keeps to send them later. applied + refused + parked must
    equal the rows of the batch, or the stream stops. Of `in_doubt` rows nobody knows how often they were applied.
    """

    applied: int
    refused: DataFrame | None = None
    parked: int = 0
    in_doubt: int = 0


@dataclass(frozen=True)
class Resent:
    """What became of the rows that a sink sent again.

    `moved` counts them by their status before, `parked` or `dead`, and after: `delivered`, `dead` or `parked`. Other
    rows are as they were, and `left` says why. `refused` holds the rows that were parked and are dead now, as in an
    Outcome. Of `in_doubt` rows nobody knows how often they were applied.
    """

    moved: Mapping[tuple[str, str], int]
    refused: DataFrame | None = None
    in_doubt: int = 0
    left: str = ""

    def were(self, status: str) -> int:
        """Return how many rows had a status before."""
        return sum(rows for (before, _), rows in self.moved.items() if before == status)

    def are(self, status: str) -> int:
        """Return how many rows have a status now."""
        return sum(rows for (_, after), rows in self.moved.items() if after == status)


class Applied(NamedTuple):
    """The rows of a batch that were applied, became dead letters, were parked, and are in doubt."""

    applied: int = 0
    dead: int = 0
    parked: int = 0
    in_doubt: int = 0

    @property
    def done(self) -> int:
        """Return the number of rows that need no further work."""
        return self.applied + self.dead + self.parked


class GivenAnswer(NamedTuple):
    """What the other side of a sink answers in a route test."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Opening:
    """What an applying sink may use once, before the stream starts.

    `folder` is the configuration's folder, `events` an empty frame with the columns that `apply` will get. A decoder
    that learns may add columns to them while the stream runs. With `trial` no stream follows (`router check --plan`):
    look, and change nothing. `answer`: what the other side is to answer in a route test, for `preview`.
    """

    folder: Path
    events: DataFrame
    trial: bool = False
    answer: GivenAnswer | None = None


@dataclass(frozen=True)
class ApiState:
    """What the driver knows of the API that a sink sends to.

    `circuit_open`: nothing is sent, because the API does not work. `limit_used` is the share of the stated rate limit
    that is used, 0 to 1; None without one.
    """

    circuit_open: bool = False
    limit_used: float | None = None


class ApplyingSink(Sink, ABC):
    """A sink that consumes a route's events from its outbox, a Delta table in which the engine stages them.

    Delivery: at least once; a batch whose `apply` returned is not applied again, one that was interrupted is.
    """

    replay_safe: ClassVar[bool] = False
    """True when applying the same batch twice leaves the same result."""
    ordered: ClassVar[bool] = False
    """True when the sink needs the rows of a source partition in the order of their offsets."""
    previews: ClassVar[bool] = False
    """True when `preview` says what would be sent: route tests can then ask for it."""
    resends: ClassVar[bool] = False
    """True when the sink has `set_aside` and `resend`: `router replay` can then be asked for it."""

    @property
    def detached(self) -> bool:
        """Say whether the sink has a query of its own over its outbox, so that nothing else waits for it."""
        return False

    @property
    def seconds_between(self) -> float:
        """Return how long a detached sink waits for more rows before its next batch; 0: no longer than it has to."""
        return 0.0

    @property
    def tasks_at_most(self) -> int:
        """Return how many tasks of a detached sink wait for its API at once: a local run gets as many threads more."""
        return 1

    def api_state(self) -> ApiState | None:
        """Return how the API of the sink is, at no cost; None if the driver does not know. Any thread may call it."""
        return None

    def prepare(self, opening: Opening) -> Self:
        """Return this sink made ready, once, at the start of a stream. Runs on the driver.

        Raise a StartError for what must be changed first, an OSError for what is away: the start then waits.
        """
        return self

    def preview(self, events: DataFrame, opening: Opening) -> list[dict[str, Any]]:
        """Return what `apply` would send of a small batch, in order, and send nothing: plain values by name.

        `opening` is one for a trial; nothing may be asked of the other side. Runs on the driver.
        """
        raise NotImplementedError(f"the sink {self.part_name} does not say what it would send")

    @abstractmethod
    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        """Consume one batch: the route's columns and `_topic, _partition, _offset, _timestamp, _key`.

        Runs on the driver; the frame reads landed files, so using it twice never reads the source again. An OSError
        says that the other side is away: the stream waits, and the batch is applied again. Any other stops it.
        """

    def set_aside(self, batch: Batch, read: Callable[[str], DataFrame | None]) -> DataFrame | None:
        """Return the rows that are parked or dead letters now; None where there are none.

        `batch` names the sink; `read` returns a table (`layer.table`), always at the same version, None where there
        is none. Columns: `topic`, `partition` and `offset` of the row, once each; `status`, `parked` or `dead`; `code`,
        an int, what the other side answered; `at`, the time of that; `reason`; `call`, the name of the call that the
        row went out in, null where there is none. Runs on the driver.
        """
        raise NotImplementedError(f"the sink {self.part_name} keeps no rows back")

    def resend(self, events: DataFrame, aside: DataFrame, batch: Batch) -> Resent:
        """Consume rows again: `events` is as for `apply`, `aside` has what `set_aside` said of just these rows.

        A replay that was cut off comes again with the same rows, under the same name. Ends when `batch.stop` is set or
        a setting is wrong, and then says what it did. Runs on the driver.
        """
        raise NotImplementedError(f"the sink {self.part_name} does not send anything again")
