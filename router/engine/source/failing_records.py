"""Find the records of a batch that end every task that meets them, by halves of the batch. Runs on the driver.

The plan of the batch runs on parts of its records, without anything being written: what fails on one record alone
fails on that record. For each record that is found the batch is read some twenty times.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F

from router.api.halving import by_halves
from router.engine.retryable_errors import is_for_search
from router.record import UNREADABLE, UNREADABLE_TYPE
from router.spark_internals import first_cause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import Column, DataFrame

MOST_FOUND = 64
"""Records that are found by trying; if there are more, something else than records is to blame."""
MOST_FAILURES = 256
"""The same for tries that fail: each takes some seconds."""


class Span(NamedTuple):
    """Records of a partition, from the offset `first` up to, and without, `end`."""

    topic: str
    partition: int
    first: int
    end: int


class RecordPlace(NamedTuple):
    """The place of a record in its source."""

    topic: str
    partition: int
    offset: int

    def as_column(self) -> Column:
        """Return the place as a column, which can be compared with that of a record: places are ordered."""
        return F.struct(F.lit(self.topic), F.lit(self.partition), F.lit(self.offset).cast("long"))

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}, offset {self.offset}"


def is_at(places: Iterable[RecordPlace]) -> Column:
    """Return whether a record is at one of some places."""
    return reduce(or_, [_of_record() == place.as_column() for place in places])


def _of_record() -> Column:
    return F.struct("topic", "partition", "offset")


@dataclass(frozen=True)
class FoundRecords:
    """What a search has found: the spans that Spark must not read, and why records cannot be read, by place."""

    by_consumer: tuple[Span, ...] = ()
    reasons: dict[RecordPlace, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        reasons = [[*place, reason] for place, reason in self.reasons.items()]
        return {"by_consumer": self.by_consumer, "reasons": reasons}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> FoundRecords:
        """Return the found records from the content that `as_json` has made."""
        spans = tuple(Span(*span) for span in content["by_consumer"])
        return cls(
            spans, {RecordPlace(topic, number, offset): why for topic, number, offset, why in content["reasons"]}
        )

    def __str__(self) -> str:
        place, reason = next(iter(self.reasons.items()))
        what = f"{len(self.reasons):,} records cannot be read and become dead letters of the stage read; the first is"
        return f"{what} {place}: {reason}"


@dataclass(frozen=True)
class FailingRecords:
    """The search for records of a batch that end its job; `land` runs the job on others without writing anything."""

    raw: DataFrame
    land: Callable[[DataFrame], object]

    def find(self) -> FoundRecords:
        """Return the records that end the job; none if no record alone does, or too many do."""
        return FoundRecords(reasons=failing_records(self.raw, self.land))

    def frame_with_reasons(self, found: FoundRecords) -> DataFrame:
        """Return all records; of those that were found key, value and headers are beside the reason in UNREADABLE."""
        hidden = ("key", "value", "headers")
        reason = F.coalesce(*[F.when(is_at([place]), F.lit(why)) for place, why in found.reasons.items()])
        unreadable = F.when(reason.isNotNull(), F.struct(reason.alias("reason"), *hidden).cast(UNREADABLE_TYPE))
        if UNREADABLE in self.raw.columns:
            unreadable = F.coalesce(F.col(UNREADABLE), unreadable)
        columns = {name: F.when(reason.isNull(), F.col(name)) for name in hidden}
        return self.raw.withColumns({**columns, UNREADABLE: unreadable})


def failing_records(raw: DataFrame, land: Callable[[DataFrame], object]) -> dict[RecordPlace, str]:
    """Return the records that end the job of `land`, with the reasons; none if no record alone does, or too many do."""
    ends = raw.groupBy("topic", "partition").agg(F.min("offset"), F.max("offset")).collect()
    firsts = sorted(RecordPlace(topic, partition, first) for topic, partition, first, _ in ends)
    lengths = {(topic, partition): last - first + 1 for topic, partition, first, last in ends}
    begins = [0, *accumulate(lengths[first[:2]] for first in firsts)]
    found: dict[RecordPlace, str] = {}
    failures: list[str] = []

    def record_place(number: int) -> RecordPlace:
        span = bisect_right(begins, number) - 1
        return firsts[span]._replace(offset=firsts[span].offset + number - begins[span])

    def is_over() -> bool:
        return len(found) > MOST_FOUND or len(failures) > MOST_FAILURES

    def try_some(start: int, stop: int) -> bool:
        if not is_over() and start < stop:
            chosen = _of_record().between(record_place(start).as_column(), record_place(stop - 1).as_column())
            try:
                land(raw.where(chosen))
            except Exception as error:
                failures.append(first_cause(error))
                if stop == start + 1 and is_for_search(error):
                    found[record_place(start)] = failures[-1]
                raise
        return True

    by_halves(try_some, begins[-1], is_for_search)
    return {} if is_over() else found
