"""What a sink implements that consumes events: it gets the rows of a batch and returns what became of them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from router.errors import StartError
from router.parts import Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from typing_extensions import Self


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


@dataclass(frozen=True)
class Batch:
    """The identity of one micro-batch of one sink.

    `key` is unique for (query, route, sink) and, with `id`, names the batch the same way in every replay. A sink that
    takes long looks at `stop`: once it is set, leave what is not done, and raise a ConnectionError that says so.
    `resending` is the name of a replay, which has rows of many batches; `id` has no meaning then.
    """

    query: str
    id: int
    route: str
    sink: str
    replay: bool = False
    stop: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    keeps: Callable[[str], Parts] | None = field(default=None, compare=False, repr=False)
    resending: str | None = None

    @property
    def key(self) -> str:
        """Return query, route and sink as one name, the same whenever the batch is applied again."""
        return f"{self.query}/{self.route}/{self.sink}"

    def parts(self, table: str) -> Parts:
        """Return where rows of this batch are kept for a table of the sink's own (`layer.table`)."""
        if self.keeps is None:
            raise StartError(f"there is no lake that {table} could be in")
        return self.keeps(table)


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


@dataclass(frozen=True)
class Opening:
    """What an applying sink may use once, before the stream starts.

    `folder` is the configuration's folder, `events` an empty frame with the columns that `apply` will get. A decoder
    that learns may add columns to them while the stream runs. With `trial` no stream follows (`router check --plan`):
    look, and change nothing.
    """

    folder: Path
    events: DataFrame
    trial: bool = False


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
    """True when the sink has `set_aside` and `resend`: `router rest-replay` can then be asked for it."""

    @property
    def detached(self) -> bool:
        """Say whether the sink has a query of its own over its outbox, so that nothing else waits for it."""
        return False

    @property
    def tasks_at_most(self) -> int:
        """Return how many tasks of a detached sink wait for its API at once: a local run gets as many threads more."""
        return 1

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
