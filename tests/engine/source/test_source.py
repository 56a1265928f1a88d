"""Sources: where a stream begins, what a record looks like, and how much of it is a batch."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import write_deltalake
from pyspark.sql.classic.dataframe import DataFrame

from router import RAW_SCHEMA, Decoder, StartError
from router.config.loader import Loaded, load_config
from router.config.models import Config, FilesSource, FormatSource, KafkaSource, Source
from router.delta.lake import Lake
from router.engine.checkpoint_store import CheckpointStore
from router.engine.land.job import BIG_RECORD_BYTES, BOUNDED_BATCH_BYTES
from router.engine.source import source
from router.engine.source.source import kafka_options
from router.engine.spark.session import BATCH_BYTES, UNBOUNDED
from router.engine.stream import run
from router.registry import Registry, load_registry
from router_decoders import Nothing
from router_decoders.by_topic import ByTopic
from router_decoders.json import Json
from router_decoders.protobuf import Protobuf
from router_decoders.record_keys import RecordKeys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router_demo.kafka import EmbeddedKafka

MILLIS = 1767225600000  # 2026-01-01T00:00:00Z


def kafka(**options: Any) -> dict[str, str]:
    resume = options.pop("resume", None)
    return kafka_options(KafkaSource(**{"servers": "one:9092,two:9092", "topics": ("a", "b"), **options}), resume)


BEGINNINGS = {
    "earliest": ({}, {"startingOffsets": "earliest"}),
    "latest": ({"start": "latest"}, {"startingOffsets": "latest"}),
    "offsets": ({"start": {"a": {0: 5, 1: -2}}}, {"startingOffsets": {"a": {"0": 5, "1": -2}}}),
    "time": ({"start_time": "2026-01-01T00:00:00Z"}, {"startingTimestamp": MILLIS}),
    "time elsewhere": ({"start_time": "2026-01-01T02:00:00+02:00"}, {"startingTimestamp": MILLIS}),
    "time of partitions": (
        {"start_time": {"a": {0: "2026-01-01T00:00:00Z", 1: "2026-01-01T00:00:01Z"}}},
        {"startingOffsetsByTimestamp": {"a": {"0": MILLIS, "1": MILLIS + 1000}}},
    ),
    "resumed": ({"start": "latest", "resume": {"a": {0: 7}}}, {"startingOffsets": {"a": {"0": 7}}}),
    "resumed, whatever the time": ({"start_time": "2026-01-01T00:00:00Z", "resume": {}}, {"startingOffsets": {}}),
}


@pytest.mark.parametrize(("options", "wanted"), BEGINNINGS.values(), ids=BEGINNINGS)
def test_where_a_new_checkpoint_begins(options: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Without it a first start skips records, or reads a year of them."""
    found = {name: value for name, value in kafka(**options).items() if name.startswith("starting")}
    strategy = found.pop("startingOffsetsByTimestampStrategy", None)

    assert {
        name: value if isinstance(wanted[name], str) else json.loads(value) for name, value in found.items()
    } == wanted
    assert strategy == (None if "startingOffsets" in wanted else "latest")


def test_topics_pattern_and_own_options() -> None:
    """Without it a secured broker cannot be reached, or the wrong topics are read."""
    secured = kafka(options={"kafka.security.protocol": "SSL", "failOnDataLoss": "false"})
    by_pattern = kafka(topics=(), pattern="game-.*")

    assert (
        secured.items()
        >= {
            **{"subscribe": "a,b", "kafka.bootstrap.servers": "one:9092,two:9092", "includeHeaders": "true"},
            **{"kafka.security.protocol": "SSL", "failOnDataLoss": "false"},
        }.items()
    )
    assert by_pattern["subscribePattern"] == "game-.*"
    assert "subscribe" not in by_pattern


@pytest.mark.parametrize("rows", [1, 50, 10_000, 1_000_000])
def test_the_size_of_a_batch_is_about_what_was_asked(rows: int) -> None:
    """Without it the first batch of a long topic is all of it."""
    assert rows <= int(kafka(rows_per_batch=rows)["maxOffsetsPerTrigger"]) <= rows * 1.01 + 1


YAML = """\
name: games
lake: {lake}
source: {source}
decode: {{json: "n int"}}
bronze: bronze.all
routes:
  - name: all
    match: {{sql: "event.n IS NOT NULL"}}
    sinks: [{{delta: silver.all}}]
trigger: {{once: true}}
dead_letters: ops.dead
"""


@pytest.fixture(scope="module")
def registry() -> Registry:
    """Offer the built-in parts, and an observer that fails."""
    return load_registry([Path(__file__).parents[1] / "observer.py"])


Drain = Callable[..., "tuple[Lake, list[Any]]"]


@pytest.fixture
def drain(spark: SparkSession, registry: Registry, tmp_path: Path) -> Drain:
    """Run a source until it is drained; return the lake and the reports."""

    def drain(source: dict[str, Any], decode: str = "") -> tuple[Lake, list[Any]]:
        text = YAML.format(lake=tmp_path / "lake", source=json.dumps(source))
        loaded: Loaded = load_config(tmp_path / "games.yaml", registry, environ={}, text=text)
        return Lake.at(str(tmp_path / "lake")), run(loaded, registry, spark)

    return drain


def column(lake: Lake, table: str, *names: str) -> list[Any]:
    """Return sorted values of columns."""
    handle = lake.open(table)
    rows = handle.to_pyarrow_table(columns=list(names)).to_pylist() if handle else []
    return sorted(row[names[0]] if len(names) == 1 else tuple(row.values()) for row in rows)


def lines(folder: Path, name: str, *numbers: int) -> None:
    """Put a file into a folder at once, as a careful producer does."""
    folder.mkdir(exist_ok=True)
    unfinished = folder / f".{name}"
    unfinished.write_text("".join(f'{{"n": {number}}}\n' for number in numbers))
    unfinished.rename(folder / name)


def test_files_are_taken_as_they_arrive_each_once(drain: Drain, registry: Registry, tmp_path: Path) -> None:
    """Without it a restart reads every file again, or forgets those that came meanwhile."""
    folder = tmp_path / "in"
    lines(folder, "a.json", 1, 2)
    lines(folder, "b.json", 3)
    lake, first = drain({"files": {"path": str(folder), "files_per_batch": 1}})
    assert [report.read for report in first] == [2, 1] or [report.read for report in first] == [1, 2]

    lines(folder, "c.json", 4, 5)
    _, second = drain({"files": {"path": str(folder)}})
    _, third = drain({"files": {"path": str(folder)}})

    assert ([report.read for report in second], third) == ([2], [])
    assert column(lake, "silver.all", "n") == [1, 2, 3, 4, 5]
    found = {(Path(topic).name, partition) for topic, partition in column(lake, "bronze.all", "topic", "partition")}
    assert found == {("a.json", 0), ("b.json", 0), ("c.json", 0)}
    assert column(lake, "bronze.all", "batch_id") == [0, 0, 1, 2, 2] or column(lake, "bronze.all", "batch_id") == [
        0,
        1,
        1,
        2,
        2,
    ]


def test_a_query_that_begins_anew_lands_with_its_own_settings(
    drain: Drain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it big records after an outage come to a task by the ten thousand, and the JVM dies of them."""
    decided, collected = iter([OSError("the storage is away for a moment")]), DataFrame.collect
    limits = []

    def decide(store: CheckpointStore, manifest: Any, *, new: bool) -> None:
        for error in decided:
            raise error
        to_store(store, manifest, new=new)

    def collect(frame: DataFrame) -> Any:
        if frame.columns == ["report"]:
            limits.append(frame.sparkSession.conf.get(BATCH_BYTES))
        return collected(frame)

    to_store = CheckpointStore.write_manifest
    monkeypatch.setattr(CheckpointStore, "write_manifest", decide)
    monkeypatch.setattr(DataFrame, "collect", collect)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text(json.dumps({"n": "x" * BIG_RECORD_BYTES}) + '\n{"n": 1}\n')
    lake, _ = drain({"files": {"path": str(tmp_path / "in")}})

    assert limits[1:] == [UNBOUNDED, str(BOUNDED_BATCH_BYTES)] * 2  # the first job looks at the executors
    assert len(column(lake, "bronze.all", "value")) == 2


def test_observers_hear_of_every_batch_and_break_none(drain: Drain, registry: Registry, tmp_path: Path) -> None:
    """Without it a faulty dashboard stops the stream."""
    (plugin,) = [plugin for plugin in registry.manager.get_plugins() if hasattr(plugin, "HEARD")]
    plugin.HEARD.clear()
    lines(tmp_path / "in", "a.json", 1, 2)

    _, reports = drain({"files": {"path": str(tmp_path / "in")}})

    assert reports == plugin.HEARD
    assert [(report.query, report.batch, report.read) for report in reports] == [("games", 0, 2)]


def test_a_whole_file_may_be_a_record(spark: SparkSession, tmp_path: Path) -> None:
    """Without it documents of several lines cannot be read."""
    (tmp_path / "a.json").write_text('{\n  "n": 1\n}\n')
    (tmp_path / "b.json").write_text("\n\n")
    frame = source.read_sample(spark, config_of_source(files=FilesSource(path=str(tmp_path), whole_files=True)), 10)

    assert sorted(bytes(row.value) for row in frame.collect()) == [b"\n\n", b'{\n  "n": 1\n}\n']


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[: len(content) // 2],
    "a wrong byte": lambda content: content[:100] + bytes([content[100] ^ 255]) + content[101:],
    "not compressed": gzip.decompress,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_named(drain: Drain, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """Without it the run ends with an error of the JVM, or tries the same file for ever."""
    folder = tmp_path / "in"
    folder.mkdir()
    whole = gzip.compress("".join(f'{{"n": {number}}}\n' for number in range(1000)).encode())
    (folder / "a.json.gz").write_bytes(damage(whole))
    lake, _ = drain({"files": {"path": str(folder)}})
    (name,), (reason,) = column(lake, "ops.dead", "topic"), column(lake, "ops.dead", "reason")
    assert name.endswith("/in/a.json.gz")
    assert reason.startswith("the file cannot be read: ")

    (folder / "b.json.gz").write_bytes(whole)
    lake, _ = drain({"files": {"path": str(folder)}})
    assert column(lake, "silver.all", "n") == [*range(1000)]


@pytest.mark.parametrize("kind", ["lines", "json"])
@pytest.mark.parametrize("path", ["file:{}/nowhere", "{}/nowhere"], ids=["uri", "path"])
def test_a_missing_folder_is_named(spark: SparkSession, tmp_path: Path, path: str, kind: Any) -> None:
    """Without it a mistake in a path ends with an error of Spark; an empty folder and a pattern are good."""
    place = path.format(tmp_path)
    with pytest.raises(StartError, match=r"has no folder .*nowhere; create it"):
        source.open_stream(spark, config_of_source(files=FilesSource(path=place, format=kind)))
    (tmp_path / "nowhere").mkdir()
    source.open_stream(spark, config_of_source(files=FilesSource(path=place, format=kind)))
    source.open_stream(spark, config_of_source(files=FilesSource(path=f"{place}/*.json", format=kind)))


def config_of_source(**kind: Any) -> Config:
    return Config(name="games", lake="none", dead_letters="ops.dead", source=Source(**kind), decode=Nothing())


def test_a_line_is_a_record_and_its_order_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    """Without it blank lines vanish without a word, and an upsert cannot tell old from new."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\n\xff\xfe\nfour")
    os.utime(path, (1_700_000_000, 1_700_000_000))

    rows = source.read_sample(spark, config_of_source(files=FilesSource(path=str(path))), 10).collect()

    assert [bytes(row.value) for row in sorted(rows, key=lambda row: row.offset)] == [b"one", b"", b"\xff\xfe", b"four"]
    assert {row.timestamp.timestamp() for row in rows} == {1_700_000_000}
    assert {(row.key, row.headers, row.timestamp_type) for row in rows} == {(None, None, None)}


@pytest.mark.parametrize("split", [False, True], ids=["one part a file", "parts of a file"])
def test_blank_lines_between_json_are_no_records(
    spark: SparkSession, drain: Drain, tmp_path: Path, split: bool
) -> None:
    """Without it a blank line at the end of each file is a dead letter, and the numbers of records have gaps."""
    folder = tmp_path / "in"
    folder.mkdir()
    # A byte order mark alone is blank too: files are joined by hand.
    blanks = ["", " ", "\t \t", "\r", "\x0b\x0c", "\ufeff", " " * 300]
    texts = [f'{{"n": {number}}}' for number in range(40)]
    mixed: list[str] = [*blanks]
    for number, text in enumerate(texts):
        mixed += [text, blanks[number % len(blanks)], *blanks[: number % 3]]
    (folder / "a.json").write_bytes("\n".join(mixed).encode())
    (folder / "b.json").write_bytes("\n".join(blanks).encode())
    (folder / "c.json").write_bytes(b"")
    # These are records that no decoder can read: nothing of them may vanish.
    (folder / "d.json").write_bytes(b"\xc2\xa0\n\xff\n\xe2\n\xef\xbb\n\x00\n\n")
    for file in folder.iterdir():
        os.utime(file, (1_700_000_000, 1_700_000_000))
    if split:
        spark.conf.set("spark.sql.files.maxPartitionBytes", "200")
    try:
        lake, reports = drain({"files": {"path": str(folder)}})
        settings = config_of_source(files=FilesSource(path=str(folder))).model_copy(update={"decode": JSON})
        sampled = source.read_sample(spark, settings, 1000).collect()
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")

    refused = [b"\xc2\xa0", b"\xff", b"\xe2", b"\xef\xbb", b"\x00"]
    assert [report.read for report in reports] == [45]
    values = [value for _, value in column(lake, "bronze.all", "offset", "value")]
    assert values == [*(text.encode() for text in texts), *refused]
    numbers = column(lake, "bronze.all", "offset")
    assert numbers == [*range(numbers[0], numbers[0] + 45)]
    assert column(lake, "silver.all", "n") == [*range(40)]
    assert column(lake, "ops.dead", "value") == sorted(refused)
    assert sorted(bytes(row.value) for row in sampled) == sorted(values)


def test_files_of_blank_lines_alone_hold_no_records(drain: Drain, tmp_path: Path) -> None:
    """Without it a folder that only got empty exports fails, or counts records that are nowhere."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_bytes(b"\n \n")

    lake, reports = drain({"files": {"path": str(tmp_path / "in")}})
    assert sum(report.read for report in reports) == 0
    assert column(lake, "ops.dead", "value") == []

    lines(tmp_path / "in", "b.json", 1)
    lake, reports = drain({"files": {"path": str(tmp_path / "in")}})
    assert [report.read for report in reports] == [1]
    assert column(lake, "silver.all", "n") == [1]


JSON = Json(schema="n int")
BLANK_LINES: dict[str, tuple[Decoder, bool]] = {
    "json": (JSON, True),
    "json with keys": (RecordKeys(value=JSON, key=Nothing()), True),
    "json of topics": (ByTopic(topics={"a": JSON}), True),
    "bytes": (Nothing(), False),
    "bytes of some topics": (ByTopic(topics={"a": JSON, "b": Protobuf(proto_file="a.proto", message="a.B")}), False),
    "keys": (RecordKeys(value=Nothing(), key=JSON), False),
}


@pytest.mark.parametrize(("decoder", "skips"), BLANK_LINES.values(), ids=BLANK_LINES)
def test_a_blank_line_is_a_value_where_the_decoder_is_not_json(
    spark: SparkSession, tmp_path: Path, decoder: Decoder, skips: bool
) -> None:
    """Without it values of text or bytes vanish, or those of JSON become dead letters."""
    (tmp_path / "a.json").write_text('{"n": 1}\n\n')
    files = FilesSource(path=str(tmp_path))
    settings = config_of_source(files=files).model_copy(update={"decode": decoder})
    whole = config_of_source(files=files.model_copy(update={"whole_files": True})).model_copy(
        update={"decode": decoder}
    )
    (tmp_path / "b.json").write_text("\n")

    assert source.read_sample(spark, settings, 10).count() == (1 if skips else 3)
    assert source.read_sample(spark, whole, 10).count() == 2


def test_any_format_that_spark_streams(drain: Drain, tmp_path: Path) -> None:
    """Without it a table, or whatever connector there is, cannot be a source; null in a column of it stops a batch."""
    kinds = ["x", None, "x", None, None]
    write_deltalake(
        tmp_path / "table",
        pa.table(
            {
                "payload": [f'{{"n": {n}}}' for n in range(5)],
                "kind": pa.array(kinds),
                "part": pa.array([1, 2, None, None, 1], pa.int32()),
            }
        ),
    )
    columns = {"value": "payload", "topic": "kind", "partition": "part", "key": "cast(kind AS binary)"}

    lake, reports = drain(
        {"format": {"name": "delta", "options": {"path": str(tmp_path / "table")}, "columns": columns}}
    )

    assert [report.read for report in reports] == [5]
    assert column(lake, "silver.all", "n") == [0, 1, 2, 3, 4]
    places = Counter(column(lake, "bronze.all", "topic", "partition"))
    assert places == Counter([("x", 1), ("delta", 2), ("x", 0), ("delta", 0), ("delta", 1)])
    handle = lake.open("ops.ledger")
    assert handle is not None
    booked = [row for row in handle.to_pyarrow_table().to_pylist() if row["route"] is None]
    assert Counter((row["topic"], row["partition"]) for row in booked) == places


def test_a_format_without_values_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Without it the first batch fails with a sentence about a column that nobody has written."""
    write_deltalake(tmp_path / "table", pa.table({"payload": ["x"]}))
    options = {"path": str(tmp_path / "table")}

    with pytest.raises(StartError, match="payload"):
        source.open_stream(spark, config_of_source(format=FormatSource(name="delta", options=options)))


def test_only_kafka_and_files_give_a_sample(spark: SparkSession) -> None:
    """Without it inferring a schema from another source fails deep inside of Spark."""
    with pytest.raises(StartError):
        source.read_sample(spark, config_of_source(format=FormatSource(name="rate")), 10)


@pytest.fixture(scope="module")
def topics(broker: EmbeddedKafka) -> EmbeddedKafka:
    """Fill two topics that a pattern finds, and one that it does not; record i of a partition is i seconds late."""
    refused: list[str] = []
    producer = Producer({"bootstrap.servers": broker.servers})
    for topic, partitions in (("source-a", 2), ("source-b", 1), ("other", 1)):
        broker.create_topic(topic, partitions)
        for partition in range(partitions):
            for i in range(20):
                producer.produce(
                    topic,
                    json.dumps({"n": i}).encode(),
                    key=None if i % 5 == 0 else f"k{i}".encode(),
                    partition=partition,
                    timestamp=MILLIS + i * 1000,
                    headers=[("trace", b"\x00\xff"), ("none", None), ("trace", b"again")] if i % 2 else None,
                    on_delivery=lambda error, _: refused.append(str(error)) if error else None,
                )
    assert producer.flush(60) == 0
    assert refused == []
    return broker


def test_kafka_records_arrive_whole_and_in_bounded_batches(drain: Drain, topics: EmbeddedKafka) -> None:
    """Without it headers, keys or times of records are lost, or one batch takes the whole topic."""
    lake, reports = drain({"kafka": {"servers": topics.servers, "pattern": "source-[ab]", "rows_per_batch": 15}})

    assert sum(report.read for report in reports) == 60
    assert all(0 < report.read <= 15 for report in reports)
    handle = lake.open("bronze.all")
    assert handle is not None
    rows = handle.to_pyarrow_table().to_pylist()
    places = Counter((row["topic"], row["partition"], row["offset"]) for row in rows)
    parts = [("source-a", 0), ("source-a", 1), ("source-b", 0)]
    assert places == Counter((*part, offset) for part in parts for offset in range(20))
    for row in rows:
        i = row["offset"]
        assert json.loads(row["value"]) == {"n": i}
        assert row["key"] == (None if i % 5 == 0 else f"k{i}".encode())
        assert row["timestamp"].timestamp() * 1000 == MILLIS + i * 1000
        assert row["timestamp_type"] == 0
        found = [(header["key"], header["value"]) for header in row["headers"] or ()]
        assert found == ([("trace", b"\x00\xff"), ("none", None), ("trace", b"again")] if i % 2 else [])


def test_a_pattern_that_only_java_reads_is_read_as_spark_does(spark: SparkSession, topics: EmbeddedKafka) -> None:
    """Without it a stream with such a pattern never starts again after its checkpoint was lost."""
    kafka = KafkaSource(servers=topics.servers, pattern="\\p{L}+-[ab]")
    assert kafka.reads_topic("source-a") is None
    assert source.complete_offsets(spark, kafka, {"source-a": {1: 7}}) == {
        "source-a": {0: source.EARLIEST, 1: 7},
        "source-b": {0: source.EARLIEST},
    }


STARTS = {
    "offsets": ({"start": {"source-a": {0: 15, 1: 18}}}, {0: 15, 1: 18}),
    "offsets by word": ({"start": {"source-a": {0: -2, 1: -1}}}, {0: 0}),
    "latest": ({"start": "latest"}, {}),
    "time": ({"start_time": "2026-01-01T00:00:10Z"}, {0: 10, 1: 10}),
    "time between two records": ({"start_time": "2026-01-01T00:00:09.500Z"}, {0: 10, 1: 10}),
    "time after all": ({"start_time": "2027-01-01T00:00:00Z"}, {}),
    "time of partitions": (
        {"start_time": {"source-a": {0: "2026-01-01T00:00:05Z", 1: "2026-01-01T00:00:17Z"}}},
        {0: 5, 1: 17},
    ),
}


@pytest.mark.parametrize(("options", "first"), STARTS.values(), ids=STARTS)
def test_kafka_begins_where_it_is_told(
    spark: SparkSession, topics: EmbeddedKafka, options: dict[str, Any], first: dict[int, int]
) -> None:
    """Without it a first start skips records, or reads a year of them."""
    settings = config_of_source(kafka=KafkaSource(servers=topics.servers, topics=("source-a",), **options))
    query = (
        source.open_stream(spark, settings)
        .writeStream.format("memory")
        .queryName("begun")
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
        rows = spark.table("begun").select("partition", "offset").collect()
    finally:
        query.stop()

    assert Counter(tuple(row) for row in rows) == Counter(
        (part, offset) for part, low in first.items() for offset in range(low, 20)
    )


@pytest.mark.parametrize(
    ("pattern", "wanted", "offsets"),
    [
        ("source-b", 8, {("source-b", 0): [*range(4), *range(16, 20)]}),
        ("source-a", 8, {("source-a", part): [0, 1, 18, 19] for part in (0, 1)}),
        ("source-[ab]", 1000, {part: [*range(20)] for part in [("source-a", 0), ("source-a", 1), ("source-b", 0)]}),
        ("source-none", 8, {}),
    ],
    ids=["one partition", "two partitions", "all there is", "nothing"],
)
def test_a_sample_of_kafka_is_its_oldest_and_newest_records(
    spark: SparkSession, topics: EmbeddedKafka, pattern: str, wanted: int, offsets: dict[tuple[str, int], list[int]]
) -> None:
    """Without it a schema is inferred from nothing at the end of a topic, or lacks what producers send by now."""
    settings = config_of_source(kafka=KafkaSource(servers=topics.servers, pattern=pattern, start="latest"))

    rows = source.read_sample(spark, settings, wanted).collect()

    found: dict[tuple[str, int], list[int]] = {}
    for row in sorted(rows, key=lambda row: row["offset"]):
        found.setdefault((row["topic"], row["partition"]), []).append(row["offset"])
    assert found == offsets
    assert not rows or set(rows[0].asDict()) == {
        field.split()[0].rstrip(":") for field in RAW_SCHEMA.replace("<key: string, value: binary>", "").split(", ")
    }
