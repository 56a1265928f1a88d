"""Records that Kafka deleted before they were read: which ones, and a batch that passes over them.

Kafka deletes by age and size, read or not. Spark then ends the query (KAFKA_DATA_LOSS), at every start again. The
records cannot come back, so a person decides: the refusal names partitions and offsets, and with `--accept
lost-records` the missing range becomes a batch of its own, with no record and with its ledger rows.

A topic of a pattern that somebody deleted is passed over without being asked: it is not for the other topics to wait.
Nobody can tell whether it had records that were not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router.delta.transaction_id import TransactionId
from router.engine import ledger
from router.engine.checkpoint_store import CheckpointStore
from router.engine.source import source
from router.engine.start.checks import Checkpoint
from router.engine.start.spark_checkpoint import NO_WATERMARK, SparkNotes, offsets_in, with_offsets
from router.errors import StartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.commit.committers import Committers
    from router.engine.source.source import Offsets

_SHOWN_PLACES = 10


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
    """The records that a query would read next and Kafka does not have any more. Runs on the driver."""

    spark: SparkSession
    lake: Lake
    checkpoint: Lake
    config: Config
    committers: Committers

    def make_start_error(self, error: BaseException) -> StartError:
        """Return the sentence that stops a stream whose next records are gone."""
        try:
            lost = self.read_lost_ranges()
        except StartError as other:
            return other
        if not lost:
            reason = str(error).split("\n")[0][:300]
            return StartError(f"{self.config.name}: Kafka does not have the records that come next: {reason}")
        ranges = ", ".join(map(str, lost[:_SHOWN_PLACES]))
        if len(lost) > _SHOWN_PLACES:
            ranges += f" and {len(lost) - _SHOWN_PLACES} more partitions"
        return StartError(
            f"{self.config.name}: Kafka has deleted {sum(map(len, lost)):,} records before they were read: {ranges}. "
            "Restore them; or run with --accept lost-records to continue after them, and the ledger shows which are "
            "missing; and let the topic keep its records for longer"
        )

    def read_lost_ranges(self) -> list[LostRange]:
        """Return the records that come next and that Kafka has deleted, by topic and partition.

        Raises StartError if a topic ends before them: it was deleted and created again, and has other records.
        """
        begin = self._read_begin_offsets(Checkpoint.read(self.checkpoint).last + 1)
        assert self.config.source.kafka is not None
        first: Offsets = {}
        created_again = []
        for topic, spans in source.retained_offsets(self.spark, self.config.source.kafka, begin).items():
            first[topic] = {partition: first_offset for partition, (first_offset, _) in spans.items()}
            # An end before the next record is that of another topic of the same name.
            for partition, (_, end) in spans.items():
                if begin[topic][partition] > end:
                    created_again.append(f"{topic}/{partition}")
        if created_again:
            raise StartError(
                f"{self.config.name}: {', '.join(sorted(created_again)[:_SHOWN_PLACES])} ends before the record that "
                "comes next: the topic was deleted and created again. Give this configuration another name and "
                "checkpoint to read it from its beginning"
            )
        return _ranges_between(begin, first)

    def pass_over(self, *, accepted: bool) -> list[str]:
        """Make a batch of the lost records, so that the next one begins after them; return them in words.

        It also leaves out the deleted topics of a pattern; if the loss of records is not accepted, only these. First
        Spark's offsets, then the ledger under the batch's transaction id, then Spark's commit. Steps that a crash cut
        off are done again, with the same number and, once the ledger has the batch, with the same offsets.
        """
        past = Checkpoint.read(self.checkpoint)
        run = past.run or ""
        batch = past.last + 1
        begin = self._read_begin_offsets(batch)
        if CheckpointStore(self.checkpoint, run).read_manifest(batch) is not None:
            return self._end_decided_batch(batch, self._deleted_topics(begin), accepted=accepted)
        if ledger.last_batch(self.lake.open(self.config.ledger), self.config.name, past.run) >= batch:
            end = self._read_begin_offsets(batch + 1)
            lost = _ranges_between(begin, end)
            if lost and not accepted:
                return []
            deleted = {topic: begin[topic] for topic in begin.keys() - end.keys()}
        else:
            lost = self.read_lost_ranges() if accepted else []
            deleted = self._deleted_topics(begin)
            if not (lost or deleted):
                return []
            for lost_range in lost:
                begin[lost_range.topic][lost_range.partition] = lost_range.last + 1
            for topic in deleted:
                del begin[topic]
            # The settings of Spark are those of the batch that was cut off, or of the one before.
            former = self._notes.read_text(f"offsets/{batch}") or self._notes.read_text(f"offsets/{batch - 1}")
            self._notes.write(f"offsets/{batch}", with_offsets(former, begin))
            app_id = str(TransactionId("ledger", f"{self.config.name}:{past.run}"))
            entry = ledger.LedgerEntry(self.config.ledger, app_id, batch)
            rows = [_ledger_row(self.config.name, run, batch, lost_range) for lost_range in lost]
            ledger.append(self.committers, entry, rows)
        self._notes.write(f"commits/{batch}", self._notes.read_text(f"commits/{batch - 1}") or NO_WATERMARK)
        return [*(f"lost records: {lost_range}" for lost_range in lost), *_in_words(deleted)]

    def _end_decided_batch(self, batch: int, deleted: Offsets, *, accepted: bool) -> list[str]:
        """Let a batch that was decided and cut off end without deleted topics: its records are staged already.

        Raises StartError if other records of it are gone, and that was accepted: it ends only if that is not.
        """
        if accepted and not deleted:
            raise StartError(
                f"{self.config.name}: batch {batch} was decided and cut off, and Kafka does not have its records any "
                "more; start without --accept, which ends that batch first"
            )
        # Spark asks for all topics that the batch began with.
        for path in (f"offsets/{batch}", _begin_note(batch)) if deleted else ():
            text = self._notes.read_text(path) or ""
            offsets = {topic: ends for topic, ends in offsets_in(text).items() if topic not in deleted}
            self._notes.write(path, with_offsets(text, offsets))
        return _in_words(deleted)

    def _deleted_topics(self, begin: Offsets) -> Offsets:
        """Return the topics of a pattern that the brokers do not have any more, with the next offsets of each."""
        kafka = self.config.source.kafka
        assert kafka is not None
        if not kafka.pattern:
            return {}
        existing = source.complete_offsets(self.spark, kafka, begin)
        return {topic: offsets for topic, offsets in begin.items() if topic not in existing}

    def _read_begin_offsets(self, batch: int) -> Offsets:
        """Return the offsets that a batch begins with: where the one before it ends."""
        text = self._notes.read_text(_begin_note(batch))
        if text is None:
            raise StartError(f"{self.config.name}: the checkpoint does not say where batch {batch} begins")
        return offsets_in(text)

    @property
    def _notes(self) -> SparkNotes:
        return SparkNotes(self.checkpoint)


def _begin_note(batch: int) -> str:
    """Return the path of Spark's note with the offsets that a batch begins with."""
    return f"offsets/{batch - 1}" if batch else "sources/0/0"


def _in_words(deleted: Offsets) -> list[str]:
    """Return a sentence for each deleted topic, with its next offsets."""
    sentences = []
    for topic, offsets in sorted(deleted.items()):
        places = ", ".join(f"{topic}/{partition} {offset:,}" for partition, offset in sorted(offsets.items()))
        outcome = f"it was read up to {places}, and what came after that is gone; the other topics continue"
        sentences.append(f"topic {topic} was deleted: {outcome}")
    return sentences


def _ranges_between(begin: Offsets, end: Offsets) -> list[LostRange]:
    """Return the records of each partition from `begin` to `end`; none of a partition that has no end."""
    ranges = []
    for topic, by_partition in begin.items():
        for partition, first in by_partition.items():
            next_offset = end.get(topic, {}).get(partition, first)
            if first < next_offset:
                ranges.append(LostRange(topic, partition, first, next_offset - 1))
    return ranges


def _ledger_row(query: str, run: str, batch: int, lost_range: LostRange) -> dict[str, Any]:
    """Return the ledger row of a lost range: nothing was read."""
    return {
        "query": query,
        "run": run,
        "batch_id": batch,
        "topic": lost_range.topic,
        "partition": lost_range.partition,
        "from_offset": lost_range.first,
        "to_offset": lost_range.last,
        **dict.fromkeys(ledger.COUNTED, 0),
        "lost": len(lost_range),
    }
