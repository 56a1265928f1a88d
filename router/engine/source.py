"""Open the source as a stream (or a sample) of raw records."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from router import spark_internals
from router.delta.history import log_commits, log_versions
from router.delta.lake import Lake
from router.engine.file_rows import FileRows, listing_options
from router.engine.position import BLOCK, CHANGE, FILE, MODIFIED, PLACE_COLUMNS, VERSION
from router.errors import StartError
from router.parts import RAW_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.config.models import Config, DeltaSource, FilesSource, FormatSource, KafkaSource
    from router.engine.position import RecordNumbers
    from router.parts import Memory

Offsets = dict[str, dict[int, int]]
"""topic -> partition -> the next offset to read."""
CONSUMER = {
    "kafka.fetch.max.wait.ms": "20",
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
}
"""How a task's consumer reads when the configuration says nothing else.

Before a task ends, its consumer asks for records beyond the last one, and Spark's question for the partition's range
waits behind that request: with Kafka's default of 500 ms, half a second per task of every batch that reaches the end
of the topic. More than 500 records a poll and 1 MB a request take a third off the reading of a backlog.
"""
LISTED = "path string, modificationTime timestamp, length bigint, content binary"
"""The columns of Spark's binary files, of which only those that are asked for are read."""
EARLIEST = -2
"""What Spark takes for the offset of a partition's first record."""


def stream(spark: SparkSession, config: Config, resume: Offsets | None = None) -> DataFrame:
    """Return the source as a streaming frame with the columns of `RAW_SCHEMA`; of files with rows, with their paths.

    A source without offsets has columns of PLACE_COLUMNS besides. `records` makes raw records of a batch of it.
    `resume` overrides where a new checkpoint of a Kafka source begins.
    """
    source = config.source
    if source.kafka:
        options = kafka_options(source.kafka, resume)
        return _kafka_columns(spark.readStream.format("kafka").options(**options).load())
    if source.files:
        files = source.files
        reader = spark.readStream.options(maxFilesPerTrigger=files.files_per_batch, **_after(files))
        if files.format != "lines":  # the names only: what is in them is read batch by batch, see file_rows
            reader = reader.format("binaryFile").schema(LISTED).options(**listing_options(files))
            return reader.load(files.path).select("path", "modificationTime")
        return _file_columns(reader.format("text").options(**_file_options(files)).load(files.path))
    if source.delta:
        changes = {"readChangeFeed": "true", "startingVersion": "0"} if source.delta.changes else {}
        begin = {} if source.delta.start == "earliest" else {"startingVersion": str(source.delta.start)}
        reader = spark.readStream.format("delta").options(**{**changes, **begin})
        reader = reader.option("maxFilesPerTrigger", source.delta.files_per_batch)
        return _delta_columns(reader.load(_delta_address(config, source.delta)), source.delta)
    assert source.format
    options = {key: value.get_secret_value() for key, value in source.format.options.items()}
    return _any_columns(spark.readStream.format(source.format.name).options(**options).load(), source.format)


def named(config: Config) -> str:
    """Return the name of the source for messages."""
    source = config.source
    if source.kafka:
        return f"Kafka, {', '.join(source.kafka.topics) if source.kafka.topics else source.kafka.pattern}"
    if source.delta:
        return f"the table {source.delta.table}{' and its changes' if source.delta.changes else ''}"
    return source.files.path if source.files else f"the format {source.format.name}"  # type: ignore[union-attr]


def sample(spark: SparkSession, config: Config, rows: int) -> DataFrame:
    """Return about `rows` raw records of the source as a static frame.

    Of Kafka the oldest and the newest of every partition, as many of each: what producers send now may have fields that
    they had not when the topic began. Of files the first.
    """
    source = config.source
    if source.kafka:
        return _kafka_sample(spark, source.kafka, rows)
    if source.files and source.files.format != "lines":
        raise StartError("rows of files have columns of their own; write decode: {rows: {}}")
    if source.files:
        lines = spark.read.format("text").options(**_file_options(source.files)).load(source.files.path)
        return _sampled(_file_columns(lines), rows)
    if source.delta:
        frame = spark.read.format("delta").load(_delta_address(config, source.delta))
        return _sampled(_delta_columns(frame, source.delta), rows)
    raise StartError("a sample can be taken from kafka, files and delta only; give the decoder a schema")


def _kafka_sample(spark: SparkSession, kafka: KafkaSource, rows: int) -> DataFrame:
    ends = kept(spark, kafka, completed(spark, kafka, {}))
    parts = [(topic, number, *ends_of) for topic, by in ends.items() for number, ends_of in by.items()]
    share = -(-rows // (2 * len(parts))) if parts else 0
    oldest = [(topic, number, first, min(first + share, end)) for topic, number, first, end in parts]
    newest = [(topic, number, max(first + share, end - share), end) for topic, number, first, end in parts]
    found = spark.createDataFrame([], RAW_SCHEMA)
    for ranges in (oldest, newest):
        begins: Offsets = {}
        ends_at: Offsets = {}
        for topic, number, begin, end in ranges:
            if begin < end:
                begins.setdefault(topic, {})[number] = begin
                ends_at.setdefault(topic, {})[number] = end
        if begins:
            found = found.unionByName(between(spark, kafka, begins, ends_at))
    return found


def records(frame: DataFrame, config: Config, memory: Memory, batch: int, numbers: RecordNumbers) -> DataFrame:
    """Return the raw records of a batch of `stream`, with offsets. Raises StartError for a file that nobody can read.

    `memory` has what is known of the columns of files; `numbers` are for records without offsets.
    """
    files = config.source.files
    if files and files.format != "lines":
        rows = FileRows(frame.sparkSession, files, memory).records(frame)
        known = {name: F.col(name) for name in ("value", "topic", "timestamp")}
        places = {MODIFIED: F.col("timestamp"), FILE: F.col("topic"), BLOCK: F.col("block")}
        frame = rows.select(*_raw({**known, "partition": F.lit(0)}), *_named(places))
    if FILE not in frame.columns:
        return frame
    delta = config.source.delta
    versions = partial(_commit_versions, config, delta) if delta and not delta.changes else None
    return numbers.numbered(frame, batch, versions)


def _commit_versions(config: Config, source: DeltaSource, files: set[str]) -> dict[str, int]:
    """Return the commits that added files of a table, as far back as its log says so. Reads the newest commits first.

    Spark names a file by its address, with escapes; the log by its path below the table, with escapes of its own.
    """
    lake = _source_lake(config, source)
    root = lake.spark_address(source.table).rstrip("/").partition("://")[2] or lake.spark_address(source.table)
    by_path: dict[str, str] = {}
    for file in files:
        by_path[unquote(file).partition(root.rstrip("/") + "/")[2]] = file
    versions: dict[str, int] = {}
    for version in reversed(log_versions(lake, source.table)):
        if len(versions) == len(files):
            break
        (commit,) = log_commits(lake, source.table, [version])
        for added in commit.added:
            file_of_batch = by_path.get(unquote(added.path))
            if file_of_batch is not None:
                versions[file_of_batch] = min(version, versions.get(file_of_batch, version))
    return versions


def learn(spark: SparkSession, config: Config, memory: Memory) -> None:
    """Learn what the source says about its columns, where it has any, before the decoder is prepared."""
    files = config.source.files
    if files and files.format != "lines":
        FileRows(spark, files, memory).learn()


def between(spark: SparkSession, kafka: KafkaSource, begins: Offsets, ends: Offsets) -> DataFrame:
    """Return the records of Kafka from some offsets on, up to those behind the last, as a static frame. Lazy."""
    options = kafka_options(kafka)
    streaming = ("maxOffsetsPerTrigger", "subscribe", "subscribePattern", "startingTimestamp")
    for name in (*streaming, "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"):
        options.pop(name, None)
    reader = spark.read.format("kafka").options(**options)
    reader = reader.option("assign", json.dumps({topic: [*numbers] for topic, numbers in begins.items()}))
    reader = reader.options(startingOffsets=json.dumps(begins), endingOffsets=json.dumps(ends))
    return _kafka_columns(reader.load())


def _sampled(raw: DataFrame, rows: int) -> DataFrame:
    """Return some records of a source without offsets; theirs tell them apart, no more."""
    records = raw.drop(*PLACE_COLUMNS).limit(rows)
    return records.withColumn("offset", F.coalesce("offset", F.monotonically_increasing_id()))


def kafka_options(kafka: KafkaSource, resume: Offsets | None = None) -> dict[str, str]:
    """Return the options of Spark's Kafka source. Source: Structured Streaming + Kafka Integration Guide."""
    options = {**CONSUMER, **{key: value.get_secret_value() for key, value in kafka.options.items()}}
    options["kafka.bootstrap.servers"] = kafka.servers
    options["includeHeaders"] = "true"
    # Spark rounds every partition's share down: without the slack, a handful of records would take a batch of their own
    options["maxOffsetsPerTrigger"] = str(kafka.rows_per_batch + min(256, kafka.rows_per_batch // 100))
    options.update({"subscribePattern": kafka.pattern} if kafka.pattern else {"subscribe": ",".join(kafka.topics)})
    if resume is not None:
        options["startingOffsets"] = json.dumps(resume)
    elif isinstance(kafka.start_time, str):
        options["startingTimestamp"] = str(_millis(kafka.start_time))
        options.setdefault("startingOffsetsByTimestampStrategy", "latest")
    elif kafka.start_time:
        stamps = {t: {p: _millis(at) for p, at in by.items()} for t, by in kafka.start_time.items()}
        options["startingOffsetsByTimestamp"] = json.dumps(stamps)
        options.setdefault("startingOffsetsByTimestampStrategy", "latest")
    else:
        options["startingOffsets"] = kafka.start if isinstance(kafka.start, str) else json.dumps(kafka.start)
    return options


def completed(spark: SparkSession, kafka: KafkaSource, resume: Offsets) -> Offsets:
    """Return offsets for exactly the partitions that the source has now, as Spark demands.

    A partition that nothing was read from yet begins with its earliest record. Runs on the driver, asks the brokers.
    """
    with _admin(spark, kafka) as admin:
        every = admin.listTopics().names().get()
        topics = [t for t in every if (re.fullmatch(kafka.pattern, t) if kafka.pattern else t in kafka.topics)]
        described = admin.describeTopics(topics).allTopicNames().get()
        found = {topic: [part.partition() for part in described[topic].partitions()] for topic in topics}
    return {t: {p: resume.get(t, {}).get(p, EARLIEST) for p in numbers} for t, numbers in found.items()}


def kept(spark: SparkSession, kafka: KafkaSource, offsets: Offsets) -> dict[str, dict[int, tuple[int, int]]]:
    """Return the first offset that Kafka has of each partition named, and the next one that it will write.

    Partitions that are gone are left out. Runs on the driver, asks the brokers.
    """
    jvm = spark_internals.jvm(spark)
    named = completed(spark, kafka, offsets)
    parts = [(topic, number) for topic, by in offsets.items() for number in by if number in named.get(topic, {})]
    found: list[dict[tuple[str, int], int]] = []
    with _admin(spark, kafka) as admin:
        for which in ("earliest", "latest"):
            asked = jvm.java.util.HashMap()
            for topic, number in parts:
                place = jvm.org.apache.kafka.common.TopicPartition(topic, number)
                asked[place] = getattr(jvm.org.apache.kafka.clients.admin.OffsetSpec, which)()
            answer = admin.listOffsets(asked).all().get()
            found.append({(place.topic(), place.partition()): answer[place].offset() for place in answer})
    first, end = found
    every: dict[str, dict[int, tuple[int, int]]] = {}
    for topic, number in parts:
        every.setdefault(topic, {})[number] = first[topic, number], end[topic, number]
    return every


@contextmanager
def _admin(spark: SparkSession, kafka: KafkaSource) -> Iterator[Any]:
    """Open Kafka's admin client in the driver's JVM, with the settings of the source."""
    jvm = spark_internals.jvm(spark)
    settings = {key[6:]: value for key, value in kafka_options(kafka).items() if key.startswith("kafka.")}
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    try:
        yield admin
    finally:
        admin.close()


def _millis(moment: str) -> int:
    at = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    return int((at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp() * 1000)


def _kafka_columns(frame: DataFrame) -> DataFrame:
    return frame.withColumnRenamed("timestampType", "timestamp_type").select(*_kinds())


def _after(files: FilesSource) -> dict[str, str]:
    """Return Spark's options for files that have been read: it deletes or moves them once a later batch has begun."""
    if files.after == "keep":
        return {}
    if files.after == "delete":
        return {"cleanSource": "delete"}
    return {"cleanSource": "archive", "sourceArchiveDir": files.after.archive}


def _file_options(files: FilesSource) -> dict[str, str]:
    return {"wholetext": str(files.whole_files).lower(), **files.options}


def _file_columns(frame: DataFrame) -> DataFrame:
    """Take the file as topic."""
    known = {
        "value": F.col("value").cast("binary"),
        "topic": F.col("_metadata.file_path"),
        "partition": F.lit(0),
        "timestamp": F.col("_metadata.file_modification_time"),
    }
    return frame.select(*_raw(known), *_named(_file_places()))


def _file_places() -> dict[str, Column]:
    """Return what orders the records of files that Spark reads as a source."""
    return {
        MODIFIED: F.col("_metadata.file_modification_time"),
        FILE: F.col("_metadata.file_path"),
        BLOCK: F.col("_metadata.file_block_start"),
    }


def _named(columns: dict[str, Column]) -> list[Column]:
    return [column.alias(name) for name, column in columns.items()]


def _delta_address(config: Config, source: DeltaSource) -> str:
    """Return where Spark finds the table. Raises StartError where there is none."""
    lake = _source_lake(config, source)
    if lake.open(source.table) is None:
        raise StartError(f"there is no table {source.table} in {lake.root} yet; start what makes it first")
    return lake.spark_address(source.table)


def _source_lake(config: Config, source: DeltaSource) -> Lake:
    return Lake.at(source.lake or config.lake, config.storage(), () if source.lake else config.locations())


def _delta_columns(frame: DataFrame, source: DeltaSource) -> DataFrame:
    """Take the table as topic. Of the changes of one commit those come first that delete a row."""
    if {"key", "value", "topic", "partition", "offset"} <= {*frame.columns} and not source.changes:
        return frame.select(_raw({name: F.col(name) for name in _kinds() if name in frame.columns}))
    known = {"topic": F.lit(source.table), "partition": F.lit(0)}
    # Spark gives a Delta stream no `_metadata`; these two functions work in any scan of files.
    places = {FILE: F.input_file_name(), BLOCK: F.input_file_block_start()}
    if "_change_type" in frame.columns:
        frame = frame.filter("_change_type != 'update_preimage'")
        places[VERSION] = F.col("_commit_version")
        places[CHANGE] = F.when(F.col("_change_type") == "delete", 0).otherwise(1)
        known["timestamp"] = F.col("_commit_timestamp")
        frame = frame.withColumn("_commit_timestamp", F.col("_commit_timestamp").cast("string"))
    known["value"] = F.to_json(F.struct("*")).cast("binary")
    return frame.select(*_raw(known), *_named(places))


def _any_columns(frame: DataFrame, source: FormatSource) -> DataFrame:
    known: dict[str, Column] = {name: F.col(name) for name in _kinds() if name in frame.columns}
    known |= {name: F.expr(sql) for name, sql in source.columns.items()}
    if "value" not in known:
        have = ", ".join(frame.columns)
        raise StartError(
            f"the source {source.name} has no column value (it has {have}); map one under source.format.columns"
        )
    known["value"] = known["value"].cast("binary")
    for name, otherwise in (("topic", source.name), ("partition", 0)):  # every record counts for one source partition
        known[name] = F.coalesce(known.get(name, F.lit(None)).cast(_kinds()[name]), F.lit(otherwise))
    places = {FILE: F.lit(None).cast("string")}
    with suppress(AnalysisException):  # a format that reads no files has no such column
        frame.select(*_file_places().values()).schema  # noqa: B018 - analyses the frame
        places = _file_places()
        known.setdefault("timestamp", places[MODIFIED])
    if "offset" in known:
        return frame.select(_raw(known))
    return frame.select(*_raw(known), *_named(places))


def _raw(known: dict[str, Column]) -> list[Column]:
    return [known.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in _kinds().items()]


def _kinds() -> dict[str, DataType]:
    raw = StructType.fromDDL(RAW_SCHEMA)
    assert isinstance(raw, StructType)
    return {field.name: field.dataType for field in raw}
