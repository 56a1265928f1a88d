"""Open the source as a stream (or a sample) of raw records."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import contextmanager, suppress
from datetime import timezone
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from router import spark_internals
from router.delta.history import log_commits, log_versions
from router.delta.lake import Lake
from router.engine.source.file_rows import FileLines, FileRows, files_to_read, has_pattern, list_files, listed_files
from router.engine.source.position import BLOCK, CHANGE, FILE, MODIFIED, PLACE_COLUMNS, VERSION
from router.engine.source.unreadable_files import records_of_unreadable, unreadable_files
from router.errors import StartError
from router.moments import parse_moment
from router.record import RAW_SCHEMA, UNREADABLE, UNREADABLE_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.api.parts import Memory
    from router.config.models import Config, DeltaSource, FilesSource, FormatSource, KafkaSource
    from router.engine.source.position import CommitVersions, RecordNumbers
    from router.engine.source.unreadable_files import ListedFile

log = logging.getLogger("router")
Offsets = dict[str, dict[int, int]]
"""topic -> partition -> the next offset to read."""
CONSUMER = {
    "kafka.fetch.max.wait.ms": "20",
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
}
"""The options of a task's consumer that the configuration does not set.

Before a task ends, its consumer requests records beyond the last one, and Spark's question for the partition's range
waits behind that request: with Kafka's default of 500 ms, half a second per task of every batch that reaches the end
of the topic. More than 500 records a poll and 1 MB a request take a third off the reading of a backlog.
"""
_SAMPLED_FILES = 1000
EARLIEST = -2
"""The number that means the offset of a partition's first record for Spark."""


def open_stream(spark: SparkSession, config: Config, resume: Offsets | None = None) -> DataFrame:
    """Return the source as a streaming frame with the columns of `RAW_SCHEMA`; that of files lists them.

    A source without offsets also has columns of PLACE_COLUMNS. `records` makes raw records of one of its batches.
    `resume` overrides where a new checkpoint of a Kafka source begins.
    """
    source = config.source
    if source.kafka:
        options = kafka_options(source.kafka, resume)
        return _kafka_columns(spark.readStream.format("kafka").options(**options).load())
    if source.files:
        files = source.files
        return list_files(
            spark.readStream.options(maxFilesPerTrigger=files.files_per_batch, **_cleanup_options(files)), files
        )
    if source.delta:
        options = {}
        if source.delta.changes:
            options.update({"readChangeFeed": "true", "startingVersion": "0"})
        if source.delta.start != "earliest":
            options["startingVersion"] = str(source.delta.start)
        reader = spark.readStream.format("delta").options(**options)
        reader = reader.option("maxFilesPerTrigger", source.delta.files_per_batch)
        return _delta_columns(reader.load(_delta_address(config, source.delta)), source.delta)
    assert source.format
    options = {key: value.get_secret_value() for key, value in source.format.options.items()}
    return _any_columns(spark.readStream.format(source.format.name).options(**options).load(), source.format)


def display_name(config: Config) -> str:
    """Return the name of the source for messages."""
    source = config.source
    if source.kafka:
        topics = ", ".join(source.kafka.topics) if source.kafka.topics else source.kafka.pattern
        return f"Kafka, {topics}"
    if source.delta:
        changes = " and its changes" if source.delta.changes else ""
        return f"the table {source.delta.table}{changes}"
    if source.files:
        return source.files.path
    assert source.format
    return f"the format {source.format.name}"


def read_sample(spark: SparkSession, config: Config, rows: int) -> DataFrame:
    """Return about `rows` raw records of the source as a static frame.

    From Kafka come the oldest and the newest of every partition, as many of each: records of today may have fields that
    those at the topic's begin lack. From files come the first.
    """
    source = config.source
    if source.kafka:
        return _kafka_sample(spark, source.kafka, rows)
    if source.files:
        if source.files.format != "lines":
            raise StartError("rows of files have columns of their own; write decode: {rows: {}}")
        lines = FileLines(spark, source.files, config.decode.skips_blank_lines)
        listed = listed_files(list_files(spark.read, source.files).limit(_SAMPLED_FILES))
        return _number_sample(records_of_files(lines, listed), rows)
    if source.delta:
        frame = spark.read.format("delta").load(_delta_address(config, source.delta))
        return _number_sample(_delta_columns(frame, source.delta), rows)
    raise StartError("a sample can be taken from kafka, files and delta only; give the decoder a schema")


def _kafka_sample(spark: SparkSession, kafka: KafkaSource, rows: int) -> DataFrame:
    begins, ends = newest_offsets(spark, kafka, sys.maxsize)
    partitions = sum(len(offsets) for offsets in begins.values())
    if not partitions:
        return spark.createDataFrame([], RAW_SCHEMA)

    # Half of a partition's share are its oldest records, half its newest; a short partition has no newest ones left.
    share = -(-rows // (2 * partitions))
    oldest_ends: Offsets = {}
    newest_begins: Offsets = {}
    for topic, offsets in begins.items():
        oldest_ends[topic] = {number: min(begin + share, ends[topic][number]) for number, begin in offsets.items()}
        middles = oldest_ends[topic].items()
        newest_begins[topic] = {number: max(ends[topic][number] - share, middle) for number, middle in middles}
    oldest = records_between(spark, kafka, begins, oldest_ends)
    return oldest.unionByName(records_between(spark, kafka, newest_begins, ends))


def read_batch(frame: DataFrame, config: Config, memory: Memory, batch: int, numbers: RecordNumbers) -> DataFrame:
    """Return the raw records of a batch of `stream`, with offsets; one for each file that cannot be read.

    `memory` has the known columns of files; `numbers` are for records without offsets.
    """
    files = config.source.files
    if files is None:
        delta = config.source.delta
        versions: CommitVersions | None = None
        if delta and not delta.changes:
            versions = partial(_commit_versions, config, delta)
        elif config.source.format:
            versions = _refuse_patterns
        return numbers.number_records(frame, batch, versions) if FILE in frame.columns else frame
    spark = frame.sparkSession
    content = _make_file_reader(spark, config, files, memory)
    listed = files_to_read(frame)
    try:
        return numbers.number_records(records_of_files(content, listed), batch)
    except Exception:
        reasons = unreadable_files(spark, listed, content.read_parts)
        if not reasons:
            raise
    first = next(iter(reasons))
    if files.after == "delete":  # by Spark, once the next batch has begun
        todo = "Mend it, or move it out of the folder, and start again"
        raise StartError(f"{first}: {reasons[first]}. Spark would delete it, by `after: delete`. {todo}")
    what = "%s, batch %d: %d files become dead letters of the stage read; the first is %s: %s"
    log.warning(what, config.name, batch, len(reasons), first, reasons[first])
    readable = records_of_files(content, [file for file in listed if file.url not in reasons])
    readable = readable.withColumn(UNREADABLE, F.lit(None).cast(UNREADABLE_TYPE))
    return numbers.number_records(readable.unionByName(records_of_unreadable(spark, listed, reasons)), batch)


def _make_file_reader(spark: SparkSession, config: Config, files: FilesSource, memory: Memory) -> FileLines | FileRows:
    """Return the reader of the content of files."""
    if files.format == "lines":
        return FileLines(spark, files, config.decode.skips_blank_lines)
    return FileRows(spark, files, memory)


def records_of_files(content: FileLines | FileRows, files: list[ListedFile]) -> DataFrame:
    """Return the raw records of some files, with their places."""
    found = content.read_records([file.path for file in files])
    columns = {name: F.col(name) for name in ("value", "topic", "timestamp")}
    columns["partition"] = F.lit(0)
    places = {MODIFIED: F.unix_micros("timestamp"), FILE: F.col("topic"), BLOCK: F.col("block")}
    return found.select(*_raw_columns(columns), *_alias_columns(places))


def _commit_versions(config: Config, source: DeltaSource, files: set[str]) -> dict[str, int]:
    """Return the commits that added files of a table, as far back as its log reaches. Reads the newest commits first.

    Spark names a file by its address, with escapes; the log by its path below the table, with escapes of its own.
    """
    lake = _source_lake(config, source)
    address = lake.spark_address(source.table)
    root = address.rstrip("/").partition("://")[2] or address
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


def _refuse_patterns(files: set[str | None]) -> dict[str, int]:
    """Raise StartError if files of a batch were read twice; no file has a commit.

    Of files beside one whose name may be a pattern Spark (4.0 to 4.2) gives the rows twice.
    """
    for file in sorted(filter(None, files)):
        if len(files) > 1 and has_pattern(unquote(file)):
            todo = "Read its folder by source.files, or rename it and begin with another name and checkpoint"
            raise StartError(f"{file}: beside a file of such a name Spark reads others twice. {todo}")
    return {}


def learn_columns(spark: SparkSession, config: Config, memory: Memory) -> None:
    """Learn the columns of the source, if it has columns of its own, before the decoder is prepared."""
    files = config.source.files
    if files and files.format != "lines":
        FileRows(spark, files, memory).learn_columns()


def records_between(spark: SparkSession, kafka: KafkaSource, begins: Offsets, ends: Offsets) -> DataFrame:
    """Return the records of Kafka from `begins` up to, and without, `ends`, as a static frame. Lazy."""
    options = kafka_options(kafka)
    # Spark refuses options of a stream in a static read.
    for name in (
        "maxOffsetsPerTrigger",
        "subscribe",
        "subscribePattern",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
    ):
        options.pop(name, None)
    reader = spark.read.format("kafka").options(**options)
    reader = reader.option("assign", json.dumps({topic: [*numbers] for topic, numbers in begins.items()}))
    reader = reader.options(startingOffsets=json.dumps(begins), endingOffsets=json.dumps(ends))
    return _kafka_columns(reader.load())


def newest_offsets(spark: SparkSession, kafka: KafkaSource, rows: int) -> tuple[Offsets, Offsets]:
    """Return the offsets of about the newest records of a source's topics, as many of each partition: first and end."""
    offset_spans = retained_offsets(spark, kafka, complete_offsets(spark, kafka, {}))
    share = -(-rows // max(1, sum(len(spans) for spans in offset_spans.values())))
    begins: Offsets = {}
    ends: Offsets = {}
    for topic, spans in offset_spans.items():
        begins[topic] = {number: max(begin, end - share) for number, (begin, end) in spans.items()}
        ends[topic] = {number: end for number, (_, end) in spans.items()}
    return begins, ends


def _number_sample(raw: DataFrame, rows: int) -> DataFrame:
    """Return some records of a source without offsets, with numbers that tell them apart as offsets."""
    records = raw.drop(*PLACE_COLUMNS).limit(rows)
    return records.withColumn("offset", F.coalesce("offset", F.monotonically_increasing_id()))


def kafka_options(kafka: KafkaSource, resume: Offsets | None = None) -> dict[str, str]:
    """Return the options of Spark's Kafka source. Source: Structured Streaming + Kafka Integration Guide."""
    options = dict(CONSUMER)
    for name, secret in kafka.options.items():
        options[name] = secret.get_secret_value()
    options["kafka.bootstrap.servers"] = kafka.servers
    options["includeHeaders"] = "true"
    # Spark rounds the share of every partition down: without the slack, a handful of records would need another batch.
    options["maxOffsetsPerTrigger"] = str(kafka.rows_per_batch + min(256, kafka.rows_per_batch // 100))
    if kafka.pattern:
        options["subscribePattern"] = kafka.pattern
    else:
        options["subscribe"] = ",".join(kafka.topics)
    if resume is not None:
        options["startingOffsets"] = json.dumps(resume)
    elif isinstance(kafka.start_time, str):
        options["startingTimestamp"] = str(_epoch_millis(kafka.start_time))
        options.setdefault("startingOffsetsByTimestampStrategy", "latest")
    elif kafka.start_time:
        timestamps: Offsets = {}
        for topic, times in kafka.start_time.items():
            timestamps[topic] = {partition: _epoch_millis(time) for partition, time in times.items()}
        options["startingOffsetsByTimestamp"] = json.dumps(timestamps)
        options.setdefault("startingOffsetsByTimestampStrategy", "latest")
    else:
        options["startingOffsets"] = kafka.start if isinstance(kafka.start, str) else json.dumps(kafka.start)
    return options


def complete_offsets(spark: SparkSession, kafka: KafkaSource, resume: Offsets) -> Offsets:
    """Return offsets for exactly the partitions that the source has now, as Spark demands.

    A partition that nothing was read from yet begins with its earliest record. Runs on the driver, asks the brokers.
    """
    with _opened_admin(spark, kafka) as admin:
        topics = [topic for topic in admin.listTopics().names().get() if _is_read(spark, kafka, topic)]
        described = admin.describeTopics(topics).allTopicNames().get()
        offsets: Offsets = {}
        for topic in topics:
            resumed = resume.get(topic, {})
            numbers = [partition.partition() for partition in described[topic].partitions()]
            offsets[topic] = {number: resumed.get(number, EARLIEST) for number in numbers}
    return offsets


def _is_read(spark: SparkSession, kafka: KafkaSource, topic: str) -> bool:
    """Return whether the source reads a topic."""
    is_read: bool | None = kafka.reads_topic(topic)
    if is_read is None:
        is_read = bool(spark_internals.jvm(spark).java.util.regex.Pattern.matches(kafka.pattern, topic))
    return is_read


def retained_offsets(
    spark: SparkSession, kafka: KafkaSource, offsets: Offsets
) -> dict[str, dict[int, tuple[int, int]]]:
    """Return the first offset that Kafka still has of each partition, and the next one that it will write.

    Partitions that are gone are left out. Runs on the driver, asks the brokers.
    """
    # One partition that does not exist would fail the request for all.
    existing = complete_offsets(spark, kafka, offsets)
    partitions = []
    for topic, numbers in offsets.items():
        for number in numbers:
            if number in existing.get(topic, {}):
                partitions.append((topic, number))

    with _opened_admin(spark, kafka) as admin:
        first = _listed_offsets(spark, admin, partitions, "earliest")
        end = _listed_offsets(spark, admin, partitions, "latest")
    spans: dict[str, dict[int, tuple[int, int]]] = {}
    for topic, number in partitions:
        spans.setdefault(topic, {})[number] = (first[topic, number], end[topic, number])
    return spans


def _listed_offsets(
    spark: SparkSession, admin: Any, partitions: list[tuple[str, int]], which: Literal["earliest", "latest"]
) -> dict[tuple[str, int], int]:
    """Return the earliest or the latest offset of each partition, by (topic, partition)."""
    jvm = spark_internals.jvm(spark)
    request = jvm.java.util.HashMap()
    for topic, number in partitions:
        partition = jvm.org.apache.kafka.common.TopicPartition(topic, number)
        request[partition] = getattr(jvm.org.apache.kafka.clients.admin.OffsetSpec, which)()
    answer = admin.listOffsets(request).all().get()
    offsets = {}
    for partition in answer:
        offsets[partition.topic(), partition.partition()] = answer[partition].offset()
    return offsets


def client_settings(kafka: KafkaSource) -> dict[str, str]:
    """Return the settings of the source for Kafka's own clients."""
    settings = {}
    for name, value in kafka_options(kafka).items():
        if name.startswith("kafka."):
            settings[name.removeprefix("kafka.")] = value
    return settings


def open_admin(spark: SparkSession, kafka: KafkaSource) -> Any:
    """Open Kafka's admin client in the driver's JVM, with the settings of the source. Close it after use."""
    return spark_internals.jvm(spark).org.apache.kafka.clients.admin.AdminClient.create(client_settings(kafka))


@contextmanager
def _opened_admin(spark: SparkSession, kafka: KafkaSource) -> Iterator[Any]:
    admin = open_admin(spark, kafka)
    try:
        yield admin
    finally:
        admin.close()


def _epoch_millis(moment: str) -> int:
    time = parse_moment(moment)
    if time.tzinfo is None:
        time = time.replace(tzinfo=timezone.utc)
    return int(time.timestamp() * 1000)


def _kafka_columns(frame: DataFrame) -> DataFrame:
    return frame.withColumnRenamed("timestampType", "timestamp_type").select(*_raw_types())


def _cleanup_options(files: FilesSource) -> dict[str, str]:
    """Return Spark's options for files that have been read: it deletes or moves them once a later batch has begun."""
    if files.after == "keep":
        return {}
    if files.after == "delete":
        return {"cleanSource": "delete"}
    return {"cleanSource": "archive", "sourceArchiveDir": files.after.archive}


def _file_places() -> dict[str, Column]:
    """Return the columns that order the records of files that Spark reads as a source of another format."""
    return {
        MODIFIED: F.unix_micros("_metadata.file_modification_time"),
        FILE: F.col("_metadata.file_path"),
        BLOCK: F.col("_metadata.file_block_start"),
    }


def _alias_columns(columns: dict[str, Column]) -> list[Column]:
    return [column.alias(name) for name, column in columns.items()]


def _delta_address(config: Config, source: DeltaSource) -> str:
    """Return the table's address for Spark. Raises StartError if there is no table."""
    lake = _source_lake(config, source)
    if lake.open(source.table) is None:
        raise StartError(f"there is no table {source.table} in {lake.root} yet; start what makes it first")
    return lake.spark_address(source.table)


def _source_lake(config: Config, source: DeltaSource) -> Lake:
    if source.lake:
        return Lake.at(source.lake, config.revealed_storage_options(), ())
    return Lake.at(config.lake, config.revealed_storage_options(), config.table_locations())


def _delta_columns(frame: DataFrame, source: DeltaSource) -> DataFrame:
    """Return raw records of a table's rows; their topic is the table.

    A table with the columns of raw records, as bronze, is read as it is. Of the changes of one commit those that delete
    a row come first.
    """
    if {"key", "value", "topic", "partition", "offset"} <= {*frame.columns} and not source.changes:
        return frame.select(_raw_columns({name: F.col(name) for name in _raw_types() if name in frame.columns}))
    columns = {"topic": F.lit(source.table), "partition": F.lit(0)}
    # Spark gives a Delta stream no `_metadata`; these two functions work in any scan of files.
    places = {FILE: F.input_file_name(), BLOCK: F.input_file_block_start()}
    if "_change_type" in frame.columns:
        frame = frame.filter("_change_type != 'update_preimage'")
        places[VERSION] = F.col("_commit_version")
        places[CHANGE] = F.when(F.col("_change_type") == "delete", 0).otherwise(1)
        columns["timestamp"] = F.col("_commit_timestamp")
        frame = frame.withColumn("_commit_timestamp", F.col("_commit_timestamp").cast("string"))
    columns["value"] = F.to_json(F.struct("*")).cast("binary")
    return frame.select(*_raw_columns(columns), *_alias_columns(places))


def _any_columns(frame: DataFrame, source: FormatSource) -> DataFrame:
    columns: dict[str, Column] = {name: F.col(name) for name in _raw_types() if name in frame.columns}
    for name, sql in source.columns.items():
        columns[name] = F.expr(sql)
    if "value" not in columns:
        have = ", ".join(frame.columns)
        raise StartError(
            f"the source {source.name} has no column value (it has {have}); map one under source.format.columns"
        )
    columns["value"] = columns["value"].cast("binary")
    # Every record counts for one source partition, so that neither of its columns may be null.
    for name, default in (("topic", source.name), ("partition", 0)):
        column = columns.get(name, F.lit(None)).cast(_raw_types()[name])
        columns[name] = F.coalesce(column, F.lit(default))

    places = {FILE: F.lit(None).cast("string")}
    with suppress(AnalysisException):  # a format that reads no files has no such column
        frame.select(*_file_places().values()).schema  # noqa: B018 - analyses the frame
        places = _file_places()
        columns.setdefault("timestamp", F.col("_metadata.file_modification_time"))
    if "offset" in columns:
        return frame.select(_raw_columns(columns))
    return frame.select(*_raw_columns(columns), *_alias_columns(places))


def _raw_columns(columns: dict[str, Column]) -> list[Column]:
    """Return the columns of raw records in their types; those that the source lacks are null."""
    raw = []
    for name, kind in _raw_types().items():
        raw.append(columns.get(name, F.lit(None)).cast(kind).alias(name))
    return raw


def _raw_types() -> dict[str, DataType]:
    raw = StructType.fromDDL(RAW_SCHEMA)
    assert isinstance(raw, StructType)
    return {field.name: field.dataType for field in raw}
