"""What a sink implements that consumes events: it is given a batch, and tells what it did with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from router.parts import Sink

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame
    from typing_extensions import Self


@dataclass(frozen=True)
class Batch:
    """Identify one micro-batch of one sink.

    `key` is unique for (query, route, sink) and, with `id`, names the batch the same way in every replay.
    """

    query: str
    id: int
    route: str
    sink: str
    replay: bool = False

    @property
    def key(self) -> str:
        """Return the name under which a replay can be recognised."""
        return f"{self.query}/{self.route}/{self.sink}"


@dataclass(frozen=True)
class Outcome:
    """Count what an applying sink did with a batch.

    `refused` holds the rows that can never be applied: the columns of the batch and a string column `reason`. They
    become dead letters. applied + refused must equal the rows of the batch, or the stream stops.
    """

    applied: int
    refused: DataFrame | None = None


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
    """Consume a route's events from its lane, a Delta table that the engine landed them in.

    Delivery: at least once; a batch whose `apply` returned is not applied again, one that was interrupted is.
    """

    replay_safe: ClassVar[bool] = False
    """True when applying the same batch twice leaves the same result."""
    ordered: ClassVar[bool] = False
    """True when the sink needs the rows of a source partition in the order of their offsets."""

    def prepare(self, opening: Opening) -> Self:
        """Return this sink made ready, once, at the start of a stream. Runs on the driver.

        Raise a StartError for what must be changed first, an OSError for what is away: the start then waits.
        """
        return self

    @abstractmethod
    def apply(self, events: DataFrame, batch: Batch) -> Outcome:
        """Consume one batch: the route's columns and `_topic, _partition, _offset, _timestamp, _key`.

        Runs on the driver; the frame reads landed files, so using it twice never reads the source again. An OSError
        says that the other side is away: the stream waits, and the batch is applied again. Any other stops it.
        """
