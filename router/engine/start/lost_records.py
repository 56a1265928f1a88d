"""Records that Kafka deleted before they were read: which ones, and a batch that passes over them where that is wanted.

Kafka deletes by age and size, whether somebody has read or not. Spark then ends the query (KAFKA_DATA_LOSS), at every
start anew. What is gone is gone, so a person decides: the refusal names partitions and offsets, and with
`--accept lost-records` the missing range becomes a batch of its own, with no record and with its ledger rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router.delta.transaction_id import TransactionId
from router.engine import ledger, source
from router.engine.checkpoint_store import CheckpointStore
from router.engine.start.checks import Checkpoint
from router.engine.start.spark_checkpoint import NO_WATERMARK, SparkNotes, offsets_in, with_offsets
from router.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.commit.committers import Committers
    from router.engine.source import Offsets

SHOWN = 10


@dataclass(frozen=True)
class LostRange:
    """Records of a partition that are not in Kafka any more, from `first` to `last`."""

    topic: str
    partition: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} {self.first:,} to {self.last:,} ({len(self):,})"

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class LostRecords:
    """What a query would read next, held against what Kafka still has. Runs on the driver, while no query runs."""

    spark: SparkSession
    lake: Lake
    checkpoint: Lake
    config: Config
    committers: Committers

    def refusal(self, error: BaseException) -> StartError:
        """Return the sentence that stops a stream whose next records are gone."""
        try:
            lost = self.ranges()
        except StartError as other:
            return other
        if not lost:
            return StartError(f"{self.config.name}: Kafka does not have the records that come next: {_first(error)}")
        many = f" and {len(lost) - SHOWN} more partitions" if len(lost) > SHOWN else ""
        total = sum(map(len, lost))
        return StartError(
            f"{self.config.name}: Kafka has deleted {total:,} records before they were read: "
            f"{', '.join(map(str, lost[:SHOWN]))}{many}. Restore them; or run with --accept lost-records to go on "
            "after them, and the ledger will say which are missing; and let the topic keep its records for longer"
        )

    def ranges(self) -> list[LostRange]:
        """Return what is gone of the records that come next, by topic and partition.

        Raises StartError where a topic ends before them: it was deleted and made anew, and has other records.
        """
        begin = self._begin(Checkpoint.read(self.checkpoint).last + 1)
        assert self.config.source.kafka is not None
        kept = source.retained_offsets(self.spark, self.config.source.kafka, begin)
        if anew := sorted(f"{t}/{p}" for t, p, at in _each(begin) if t in kept and p in kept[t] and at > kept[t][p][1]):
            raise StartError(
                f"{self.config.name}: {', '.join(anew[:SHOWN])} ends before the record that comes next: the topic was "
                "deleted and made anew. Give this configuration another name and checkpoint to read it from its "
                "beginning"
            )
        first = {topic: {number: ends[0] for number, ends in by.items()} for topic, by in kept.items()}
        return _between(begin, first)

    def pass_over(self) -> list[LostRange]:
        """Make a batch of what is gone, so that the next one begins after it; return what it was.

        First Spark's offsets, then the ledger under the batch's transaction id, then Spark's commit: whatever is cut
        off is done again, with the same number and, once the ledger has it, with the same offsets.
        """
        past = Checkpoint.read(self.checkpoint)
        store, batch = CheckpointStore(self.checkpoint, past.run or ""), past.last + 1
        if store.manifest(batch) is not None:
            raise StartError(
                f"{self.config.name}: batch {batch} was decided and cut off, and Kafka does not have its records any "
                "more; start without --accept, which ends that batch first"
            )
        app = TransactionId("ledger", f"{self.config.name}:{past.run}")
        entry = ledger.LedgerEntry(self.config.ledger, str(app), batch)
        begin = self._begin(batch)
        if self._booked(entry):
            lost = _between(begin, self._begin(batch + 1))
        else:
            lost = self.ranges()
            if not lost:
                return []
            for gone in lost:
                begin[gone.topic][gone.partition] = gone.last + 1
            self._write("offsets", batch, with_offsets(self._log("offsets", batch, batch - 1), begin))
            ledger.append(self.committers, entry, _rows(self.config.name, past.run or "", batch, lost))
        self._write("commits", batch, self._log("commits", batch - 1) or NO_WATERMARK)
        return lost

    def _booked(self, entry: ledger.LedgerEntry) -> bool:
        table = self.lake.open(entry.table)
        version = table.transaction_version(entry.app_id) if table else None
        return version is not None and version >= entry.version

    def _begin(self, batch: int) -> Offsets:
        """Return the offsets that a batch begins with: where the one before it ends."""
        text = self._log("offsets", batch - 1) if batch else self._notes.text("sources/0/0")
        if text is None:
            raise StartError(f"{self.config.name}: the checkpoint does not say where batch {batch} begins")
        return offsets_in(text)

    def _log(self, folder: str, *batches: int) -> str | None:
        """Return Spark's note about the first of some batches that has one."""
        texts = (self._notes.text(f"{folder}/{batch}") for batch in batches)
        return next((text for text in texts if text is not None), None)

    def _write(self, folder: str, batch: int, text: str) -> None:
        self._notes.write(f"{folder}/{batch}", text)

    @property
    def _notes(self) -> SparkNotes:
        return SparkNotes(self.checkpoint)


def _between(begin: Offsets, end: Offsets) -> list[LostRange]:
    """Return the records of each partition from where it begins to where it goes on."""
    ends = {(topic, number): at for topic, number, at in _each(end)}
    spans = ((topic, number, at, ends.get((topic, number), at)) for topic, number, at in _each(begin))
    return [LostRange(topic, number, at, goes_on - 1) for topic, number, at, goes_on in spans if at < goes_on]


def _rows(query: str, run: str, batch: int, lost: list[LostRange]) -> list[dict[str, Any]]:
    """Return the ledger rows of a gap: nothing was read, and so many records are lost."""
    nothing = dict.fromkeys(("read", "decoded", "failed", "bare", "unmatched"), 0)
    return [
        {
            **{"query": query, "run": run, "batch_id": batch, "topic": gone.topic, "partition": gone.partition},
            **{"from_offset": gone.first, "to_offset": gone.last, **nothing, "lost": len(gone)},
        }
        for gone in lost
    ]


def _each(offsets: Offsets) -> Iterator[tuple[str, int, int]]:
    return ((topic, number, at) for topic, by in offsets.items() for number, at in by.items())


def _first(error: BaseException) -> str:
    return str(error).split("\n")[0][:300]
