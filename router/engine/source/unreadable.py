"""Find the records of a batch that its source cannot give to Spark, or that end every task that meets them.

A batch whose landing job fails again and again is tried in ranges, without anything being written. A range of at most
`RANGE` offsets that still fails is read by Kafka's own consumer, with the options of the source: that tells a record
which cannot be read from its neighbours. Records that can be read are tried once more, by halves, for a record may as
well end the process that decodes it. What is found becomes dead letters of the stage `read`; all else lands. Runs on
the driver.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

from router import spark_internals
from router.api.halving import by_halves
from router.engine.retryable_errors import is_for_search, is_unreadable
from router.engine.source.failing_records import MOST_FOUND, FailingRecords, FoundRecords, RecordPlace, Span
from router.engine.source.source import Offsets, client_settings, records_between
from router.engine.source.unreadable_files import with_unreadable
from router.errors import first_line
from router.record import RAW_SCHEMA, UNREADABLE, UNREADABLE_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from router.config.models import KafkaSource

RANGE = 1_000
"""Offsets of the smallest range that Spark reads; the consumer reads it record by record, in about half a second."""
RANGES = 10
"""Failing ranges of a partition, after which the consumer reads the rest of it: all of its records may be bad."""
LONGEST_MILLIS = (2**63 - 1) // 1_000
"""The time of a record, in ms since 1970, at most: Spark's timestamps are 64 bits of microseconds."""
TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}
"""The ids of Kafka's types of timestamps by name. Source: org.apache.kafka.common.record.TimestampType."""
CONSUMER_POLL_SECONDS = 10


@dataclass(frozen=True)
class RawRecords:
    """The records of a batch, of which some may not be readable.

    `frame` are all of them, lazily. Of Kafka, `spans` returns where they are, and `shape` makes of Kafka's records
    those of the batch: it may leave some out, keeps the column UNREADABLE, and changes nothing if it is done again.
    """

    frame: DataFrame
    spans: Callable[[], tuple[Span, ...]] | None = None
    shape: Callable[[DataFrame], DataFrame] = lambda frame: frame

    @classmethod
    def of_topic(
        cls,
        spark: SparkSession,
        kafka: KafkaSource,
        offsets: tuple[Offsets, Offsets],
        shape: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    ) -> RawRecords:
        """Return the records of Kafka from the first offsets up to, and without, the second ones."""
        begins, ends = offsets
        if not begins:
            return cls(shape(spark.createDataFrame([], RAW_SCHEMA)))
        spans = []
        for topic, numbers in begins.items():
            spans += [Span(topic, number, first, ends[topic][number]) for number, first in numbers.items()]
        return cls(shape(records_between(spark, kafka, begins, ends)), lambda: tuple(spans), shape)

    def search(
        self,
        spark: SparkSession,
        kafka: KafkaSource | None,
        land: Callable[[DataFrame], object],
        tell: Callable[[int, int], object],
    ) -> UnreadableRecords | FailingRecords:
        """Return the search for those that cannot be read; see UnreadableRecords for `land` and `tell`."""
        if self.spans and kafka:
            return UnreadableRecords(spark, kafka, self.spans(), lambda frame: land(self.shape(frame)), tell)
        return FailingRecords(self.frame, land)


@dataclass(frozen=True)
class UnreadableRecords:
    """The search for unreadable records among those of some spans, which are a batch.

    `land` runs the plan of the batch on other records without writing anything. `tell` is called before each try with
    the offsets that are known to be good or bad, and all of them; it raises to end the search.
    """

    spark: SparkSession
    kafka: KafkaSource
    spans: tuple[Span, ...]
    land: Callable[[DataFrame], object]
    tell: Callable[[int, int], object] = lambda done, of: None

    def find(self) -> FoundRecords:
        """Return the unreadable records and the spans that Spark must skip; none if the records are not to blame."""
        pieces = [*_split_spans(self.spans)]
        failing: Counter[tuple[str, int]] = Counter()

        def try_reading(start: int, stop: int) -> bool:
            chosen = pieces[start:stop]
            if all(failing[piece[:2]] >= RANGES for piece in chosen):
                return False  # for the consumer
            self.tell(start, len(pieces))
            try:
                self.land(self._by_spark(chosen))
            except Exception as error:
                if len(chosen) == 1 and is_for_search(error):
                    failing[chosen[0][:2]] += 1
                raise
            return True

        by_consumer: list[Span] = []
        for halved in by_halves(try_reading, len(pieces), is_for_search):
            if not halved.made:
                by_consumer += pieces[halved.start : halved.stop]
        reasons: dict[RecordPlace, str] = {}
        spans = tuple(_join_spans(by_consumer))
        by_trying: list[int] = []
        for span in spans:
            reasons |= self._find_by_trying(span, by_trying)
            if len(by_trying) > MOST_FOUND:
                return FoundRecords()
        return FoundRecords(spans, reasons) if reasons else FoundRecords()

    def frame_with_reasons(self, found: FoundRecords) -> DataFrame:
        """Return all records of the spans, those that cannot be read with the reason in the column UNREADABLE. Lazy.

        Such a record has no time; without one for the task its key, value and headers are in the reason's struct.
        """
        frame = self._by_spark(_subtract_spans(self.spans, found.by_consumer))
        tables = [self._by_consumer(span, found.reasons) for span in found.by_consumer]
        return frame.unionByName(self.spark.createDataFrame(pa.concat_tables(tables))) if tables else frame

    def _by_spark(self, spans: Iterable[Span]) -> DataFrame:
        """Return the records of spans, as Spark's source reads them. Lazy."""
        # A read has one span of a partition.
        reads: list[tuple[Offsets, Offsets]] = []
        for span in _join_spans(spans):
            free = [read for read in reads if span.partition not in read[0].get(span.topic, {})]
            if not free:
                free = [({}, {})]
                reads += free
            begins, ends = free[0]
            begins.setdefault(span.topic, {})[span.partition] = span.first
            ends.setdefault(span.topic, {})[span.partition] = span.end
        frame = self.spark.createDataFrame(_records_table([]))
        for begins, ends in reads:
            records = records_between(self.spark, self.kafka, begins, ends)
            frame = frame.unionByName(records.withColumn(UNREADABLE, F.lit(None).cast(UNREADABLE_TYPE)))
        return frame

    def _find_by_trying(self, span: Span, by_trying: list[int]) -> dict[RecordPlace, str]:
        """Return why records of a span cannot be read, or end the task that reads them.

        The offsets of the latter are added to `by_trying`; beyond MOST_FOUND nothing is tried any more.
        """
        table = self._by_consumer(span, {})
        good = table.filter(table.column(UNREADABLE).is_null())
        reasons = {}
        for record in table.filter(table.column(UNREADABLE).is_valid()).select(["offset", UNREADABLE]).to_pylist():
            reasons[RecordPlace(*span[:2], record["offset"])] = record[UNREADABLE]["reason"]

        def try_landing(start: int, stop: int) -> bool:
            self.tell(0, 1)
            if len(by_trying) <= MOST_FOUND:
                try:
                    self.land(self.spark.createDataFrame(good[start:stop]))
                except Exception as error:
                    if stop == start + 1 and is_for_search(error):
                        by_trying.append(good.column("offset")[start].as_py())
                    raise
            return True

        for halved in by_halves(try_landing, len(good), is_for_search) if len(good) else ():
            if halved.error is not None:
                offset = good.column("offset")[halved.start].as_py()
                why = f"the task that reads it fails: {first_line(halved.error)}"
                reasons[RecordPlace(*span[:2], offset)] = why
        return reasons

    def _by_consumer(self, span: Span, reasons: dict[RecordPlace, str]) -> pa.Table:
        """Return the records of a span as the consumer reads them, unreadable ones with the reason; others get these.

        An offset that the consumer cannot read is a record without key and value.
        """
        records = []
        for record in self._poll_records(span):
            reason = record.pop("reason") or reasons.get(RecordPlace(*span[:2], record["offset"]))
            record[UNREADABLE] = None
            if reason:
                hidden = {name: record.pop(name, None) for name in ("key", "value", "headers")}
                record[UNREADABLE] = {"reason": reason, **hidden}
                record["timestamp"] = None
            records.append(record)
        return _records_table(records)

    def _poll_records(self, span: Span) -> Iterator[dict[str, Any]]:
        """Yield the records of a span, and why one cannot be read. Raises what no record causes."""
        jvm = spark_internals.jvm(self.spark)
        settings = {"key.deserializer": _BYTES, "value.deserializer": _BYTES, "enable.auto.commit": "false"}
        settings |= client_settings(self.kafka)
        consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
        try:
            partition = jvm.org.apache.kafka.common.TopicPartition(span.topic, span.partition)
            consumer.assign([partition])
            consumer.seek(partition, span.first)
            while (position := consumer.position(partition)) < span.end:
                try:
                    polled = consumer.poll(jvm.java.time.Duration.ofSeconds(CONSUMER_POLL_SECONDS)).records(partition)
                except Py4JJavaError as error:
                    if not is_unreadable(error):
                        raise
                    position = consumer.position(partition)
                    reason = spark_internals.first_cause(error)
                    yield {**_record_place(span, position), "reason": f"Kafka's consumer cannot read it: {reason}"}
                    consumer.seek(partition, position + 1)
                    continue
                records = polled.toArray()
                if not len(records) and consumer.position(partition) == position:
                    raise TimeoutError(f"Kafka gives no record of {span.topic}/{span.partition} from {position} on")
                for record in records:
                    if record.offset() < span.end:
                        yield _raw_record(span, record)
        finally:
            consumer.close()


_BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"


def _record_place(span: Span, offset: int) -> dict[str, Any]:
    return {"topic": span.topic, "partition": span.partition, "offset": offset}


def _raw_record(span: Span, record: Any) -> dict[str, Any]:
    """Return a record of the consumer with the columns of a raw record, and why Spark cannot read it, or None."""
    millis = record.timestamp()
    reason = None
    if abs(millis) > LONGEST_MILLIS:
        reason = f"its time is {millis} ms since 1970, which no timestamp holds: does its producer send microseconds?"
    headers = [{"key": header.key(), "value": header.value()} for header in record.headers().toArray()]
    return {
        **_record_place(span, record.offset()),
        "key": record.key(),
        "value": record.value(),
        "timestamp": None if reason else millis * 1_000,
        "timestamp_type": TIMESTAMP_TYPES[record.timestampType().toString()],
        "headers": headers or None,
        "reason": reason,
    }


def _records_table(records: list[dict[str, Any]]) -> pa.Table:
    """Return records with the columns of raw records and UNREADABLE."""
    return pa.Table.from_pylist(records, with_unreadable())


def _split_spans(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield spans of at most RANGE offsets."""
    for span in spans:
        for first in range(span.first, span.end, RANGE):
            yield span._replace(first=first, end=min(first + RANGE, span.end))


def _join_spans(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield spans, those of a partition that follow each other as one."""
    last: Span | None = None
    for span in spans:
        if last and span[:3] == (last.topic, last.partition, last.end):
            last = last._replace(end=span.end)
            continue
        if last:
            yield last
        last = span
    if last:
        yield last


def _subtract_spans(spans: Iterable[Span], others: tuple[Span, ...]) -> Iterator[Span]:
    """Yield what is left of spans without others, which are parts of them in the same order."""
    for span in spans:
        first = span.first
        for other in others:
            if other[:2] == span[:2]:
                if first < other.first:
                    yield span._replace(first=first, end=other.first)
                first = other.end
        if first < span.end:
            yield span._replace(first=first)
