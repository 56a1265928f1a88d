"""The positions of records: which of two is the newer one, whatever the source is and however it is read."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from deltalake import DeltaTable, write_deltalake

from router.config.loader import load_config
from router.config.models import FilesSource, Route, Trigger
from router.delta import lake
from router.delta.lake import Lake
from router.engine.reprocess.backfill import Backfill, RecordRange
from router.engine.reprocess.context import ReprocessContext
from router.engine.source import source
from router.engine.source.file_rows import FileLines, list_files, listed_files
from router.engine.source.position import RecordNumbers
from router.engine.stream import RunOptions, run
from router.registry import load_registry
from tests.engine.parts import Events, Fixed, Where
from tests.engine.query import RUN, records

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from router.acceptance import Accept
    from router_demo.kafka import EmbeddedKafka
    from tests.engine.conftest import MakeQuery

YAML = """
name: {name}
lake: {folder}/lake
checkpoint: {folder}/{checkpoint}
source: {source}
decode: {decode}
bronze: bronze.orders
routes:
  - name: latest
    match: {{sql: "true"}}
    sinks:
      - upsert: {{table: silver.latest, keys: [id]}}
      - upsert: {{table: silver.history, keys: [id], history: scd2}}
dead_letters: ops.dead
"""


class Orders:
    """A configuration that keeps the latest state of each order, and its history."""

    def __init__(self, folder: Path, spark: SparkSession, source: dict[str, Any]) -> None:
        self.folder = folder
        self.spark = spark
        self.source = source
        self.checkpoint = "checkpoint"
        self.name = "orders"

    def text(self) -> str:
        """Return the configuration."""
        rows = self.source.get("files", {}).get("format") == "json"
        decode = {"rows": {}} if rows else {"json": {"schema": "id long, state string"}}
        values = {"decode": json.dumps(decode), "source": json.dumps(self.source)}
        return YAML.format(folder=self.folder, checkpoint=self.checkpoint, name=self.name, **values)

    def drain(self, *accepted: Accept) -> int:
        """Read what is new; return the number of records."""
        text = self.text()
        registry = load_registry(())
        loaded = load_config(self.folder / "orders.yaml", registry, environ={}, text=text)
        options = RunOptions(trigger=Trigger(once=True), accept={*accepted})
        return sum(report.read for report in run(loaded, registry, self.spark, options))

    def latest(self) -> dict[int, str]:
        """Return the state of each order."""
        rows = self._table("silver/latest").to_pylist()
        return {row["id"]: row["state"] for row in rows}

    def history(self, order: int) -> list[str]:
        """Return the states of an order, the oldest one first; the last one must be the current one."""
        rows = [row for row in self._table("silver/history").to_pylist() if row["id"] == order]
        current = [row["state"] for row in rows if row["is_current"]]
        closed = [row for row in rows if not row["is_current"]]
        closed.sort(key=lambda row: (row["valid_to"], row["valid_from"], row["_arrival"], row["_offset"]))
        assert len(current) == 1
        return [*(row["state"] for row in closed), *current]

    def places(self) -> list[tuple[Any, ...]]:
        """Return topic, partition and offset of each record in bronze."""
        names = ["topic", "partition", "offset"]
        return [tuple(row.values()) for row in self._table("bronze/orders").select(names).to_pylist()]

    def _table(self, path: str) -> pa.Table:
        return DeltaTable(str(self.folder / "lake" / path)).to_pyarrow_table()


def put(folder: Path, name: str, states: dict[int, str], modified: int) -> None:
    """Put a file of orders into a folder, as if it was written at some second."""
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps({"id": order, "state": state}) + "\n" for order, state in states.items())
    unfinished = folder / f".{name}"
    unfinished.write_text(text)
    os.utime(unfinished, (1_700_000_000 + modified, 1_700_000_000 + modified))
    unfinished.rename(folder / name)


FILE_SOURCES = {
    "lines": {"files": {"path": "{inbox}"}},
    "rows": {"files": {"path": "{inbox}", "format": "json"}},
    "format": {"format": {"name": "text", "options": {"path": "{inbox}"}}},
}


@pytest.fixture(params=FILE_SOURCES)
def orders(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Orders:
    """Return orders that come as files, read in each of the ways in which files can be read."""
    source = json.loads(json.dumps(FILE_SOURCES[request.param]).replace("{inbox}", str(tmp_path / "inbox")))
    made = Orders(tmp_path, spark, source)
    (tmp_path / "inbox").mkdir()
    if request.param == "rows":
        made.source["files"]["schema_hints"] = "id bigint, state string"
    return made


def test_a_small_file_after_a_large_one_is_newer(orders: Orders) -> None:
    """Without it the rows of a small file count as late, and a table keeps values that were corrected long ago."""
    put(orders.folder / "inbox", "z.json", dict.fromkeys(range(900), "new"), modified=0)
    assert orders.drain() == 900
    put(orders.folder / "inbox", "a.json", dict.fromkeys(range(5), "paid"), modified=10)
    assert orders.drain() == 5

    latest = orders.latest()
    assert [latest[order] for order in range(6)] == ["paid"] * 5 + ["new"]
    assert orders.history(3) == ["new", "paid"]


def test_files_of_one_batch_are_ordered_by_their_time(orders: Orders) -> None:
    """Without it the task that happens to read a file decides which state of an order is the last."""
    for name, state, modified in (("b.json", "sent", 20), ("c.json", "new", 0), ("a.json", "paid", 10)):
        put(orders.folder / "inbox", name, dict.fromkeys(range(4), state), modified)
    orders.spark.conf.set("spark.sql.files.openCostInBytes", str(64 << 20))  # a task for each file
    try:
        assert orders.drain() == 12
    finally:
        orders.spark.conf.unset("spark.sql.files.openCostInBytes")

    assert orders.latest() == dict.fromkeys(range(4), "sent")
    assert orders.history(2) == ["new", "paid", "sent"]


def test_a_new_checkpoint_goes_on_behind_the_old_one(orders: Orders) -> None:
    """Without it what is read after a lost checkpoint counts as older than all that is there."""
    put(orders.folder / "inbox", "a.json", {order: f"state {order}" for order in range(50)}, modified=0)
    put(orders.folder / "inbox", "b.json", {1: "paid"}, modified=1)
    orders.drain()
    orders.checkpoint = "another"
    for file in (orders.folder / "inbox").iterdir():
        file.unlink()
    put(orders.folder / "inbox", "a.json", {1: "sent"}, modified=2)
    assert orders.drain("duplicates") == 1

    assert orders.latest()[1] == "sent"
    assert orders.history(1) == ["state 1", "paid", "sent"]


def test_a_configuration_of_another_name_goes_on_behind_the_first_one(orders: Orders) -> None:
    """Without it what comes under the new name counts as older than all that the first one brought."""
    for batch in range(2):
        put(orders.folder / "inbox", f"{batch}.json", {1: f"state {batch}"}, modified=batch)
        orders.drain()
    orders.name = orders.checkpoint = "renamed"
    for file in (orders.folder / "inbox").iterdir():
        file.unlink()
    put(orders.folder / "inbox", "1.json", {1: "paid"}, modified=2)  # a name that was read before
    orders.drain()

    assert orders.latest() == {1: "paid"}
    assert orders.history(1) == ["state 0", "state 1", "paid"]
    assert len(set(orders.places())) == 3


def test_two_names_that_read_at_once_give_no_number_twice(orders: Orders) -> None:
    """Without it a REST API that knows a record by its place takes one of the second name for one of the first."""
    for batch in range(2):
        orders.name = orders.checkpoint = "orders"
        put(orders.folder / "inbox", f"{batch}.json", {1: "same"}, modified=batch)
        orders.drain()
        orders.name = orders.checkpoint = "beside"
        orders.drain()

    places = orders.places()
    assert len(places) == len(set(places)) == 4


def test_no_two_records_have_one_position(orders: Orders) -> None:
    """Without it a backfill takes records of other batches for the ones that a table has already."""
    put(orders.folder / "inbox", "a.json", {1: "same", 2: "same"}, modified=0)
    orders.drain()
    put(orders.folder / "inbox", "b.json", {1: "same", 2: "same"}, modified=1)
    orders.drain()

    places = orders.places()
    assert len(places) == len(set(places)) == 4
    assert orders.history(1) == ["same", "same"]


def test_the_second_record_of_all_is_newer_than_the_first(orders: Orders) -> None:
    """Without it a restart after a single record, which has the number 0, begins to count again."""
    put(orders.folder / "inbox", "a.json", {1: "new"}, modified=0)
    orders.drain()
    put(orders.folder / "inbox", "b.json", {1: "paid"}, modified=1)
    orders.drain()

    assert len({offset for _, _, offset in orders.places()}) == 2
    assert orders.latest() == {1: "paid"}
    assert orders.history(1) == ["new", "paid"]


def numbered(frame: DataFrame, folder: Path) -> dict[str, int]:
    """Return the number of each record, by its value."""
    numbers = RecordNumbers(Lake.at(str(folder / "none")), "ops.ledger", "orders", "run", ordinal=0)
    rows = numbers.number_records(frame, 0).collect()
    return {bytes(row["value"]).decode(): row["offset"] for row in rows}


def test_spark_numbers_on_behind_the_same_ledger(
    spark: SparkSession, make_query: MakeQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a stream of files whose lake only Spark may reach asks delta-rs for it, and stops."""
    route = Route(name="all", match=Where(sql="true"), sinks=(Fixed(name="silver.all"),))
    query = make_query(tmp_path, decode=Events(ddl="n int"), routes=(route,))
    query.take(records([{"n": 1}, {"n": 2}]))
    query.take(records([{"n": 3}], first=100))

    raw = spark.range(1).selectExpr("id AS value", "id AS offset")

    def first_numbers(**by: Any) -> list[int]:
        found = []
        for batch in range(3):
            numbers = RecordNumbers(query.lake, query.config.ledger, "games", RUN, ordinal=0, **by)
            (row,) = numbers.number_records(raw, batch).collect()
            found.append(row["offset"])
        return found

    by_delta_rs = first_numbers()
    monkeypatch.setattr(lake, "DeltaTable", None)

    assert by_delta_rs == [0, 2, 101]
    assert first_numbers(by_spark=spark) == by_delta_rs


def test_numbers_are_the_same_with_other_cores(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a batch that is read again, after a kill, on another machine, is ordered in another way."""
    put(tmp_path / "in", "large.json", {order: f"state {order}" for order in range(2_000)}, modified=0)
    put(tmp_path / "in", "small.json", dict.fromkeys(range(3), "corrected"), modified=5)

    def read() -> DataFrame:
        files = FilesSource(path=str(tmp_path / "in"))
        content = FileLines(spark, files, skips_blank=False)
        return source.records_of_files(content, listed_files(list_files(spark.read, files)))

    whole = numbered(read(), tmp_path)
    spark.conf.set("spark.sql.files.maxPartitionBytes", "4096")
    try:
        assert read().rdd.getNumPartitions() > 5
        divided = numbered(read(), tmp_path)
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")

    assert whole == divided
    lines = (tmp_path / "in" / "large.json").read_text().splitlines()
    assert [whole[line] for line in lines] == list(range(2_000))
    assert max(whole.values()) == 2_002


def test_a_file_that_is_read_by_several_tasks_keeps_its_order(spark: SparkSession, tmp_path: Path) -> None:
    """Without it an order's state in the middle of a file wins over the one at its end."""
    made = Orders(tmp_path, spark, {"files": {"path": str(tmp_path / "inbox")}})
    states = [{"id": 1, "state": f"{number:04}"} for number in range(1_000)]
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "a.json").write_text("".join(json.dumps(state) + "\n" for state in states))
    spark.conf.set("spark.sql.files.maxPartitionBytes", "4096")
    try:
        assert made.drain() == 1_000
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")

    assert made.latest() == {1: "0999"}
    assert made.history(1) == [state["state"] for state in states]


def test_commits_of_a_delta_table_are_in_order(spark: SparkSession, tmp_path: Path) -> None:
    """Without it the name of a data file decides which of two commits is the newer one."""
    table = tmp_path / "upstream" / "silver" / "orders"
    for state in ("new", "paid", "sent", "back"):
        write_deltalake(table, pa.table({"id": [1, 2], "state": [state, state]}), mode="append")
    made = Orders(tmp_path, spark, {"delta": {"lake": str(tmp_path / "upstream"), "table": "silver.orders"}})

    assert made.drain() == 8
    assert made.latest() == {1: "back", 2: "back"}
    write_deltalake(table, pa.table({"id": [1], "state": ["kept"]}), mode="append")
    assert made.drain() == 1
    assert made.latest() == {1: "kept", 2: "back"}
    assert len(set(made.places())) == 9


def test_changes_of_one_commit_have_positions_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a backfill takes the second row of a commit for the first one, and leaves it out."""
    table = tmp_path / "upstream" / "silver" / "orders"
    rows = pa.table({"id": list(range(6)), "state": ["new"] * 6})
    write_deltalake(table, rows, configuration={"delta.enableChangeDataFeed": "true"})
    DeltaTable(table).update(predicate="id < 2", updates={"state": "'paid'"})
    source = {"delta": {"lake": str(tmp_path / "upstream"), "table": "silver.orders", "changes": True}}
    made = Orders(tmp_path, spark, source)

    assert made.drain() == 8
    assert len(set(made.places())) == 8
    assert made.latest() == {0: "paid", 1: "paid", **dict.fromkeys(range(2, 6), "new")}


def produce(broker: EmbeddedKafka, topic: str, partition: int, records: list[tuple[int, str, int]]) -> None:
    producer = Producer({"bootstrap.servers": broker.servers})
    for order, state, second in records:
        value = json.dumps({"id": order, "state": state}).encode()
        producer.produce(topic, value, partition=partition, timestamp=1_700_000_000_000 + second * 1000)
    assert producer.flush(60) == 0


def test_a_topic_may_get_more_partitions(spark: SparkSession, broker: EmbeddedKafka, tmp_path: Path) -> None:
    """Without it an order whose key moves to a new partition keeps the state that it had before, for ever."""
    broker.create_topic("growing-orders", 1)
    made = Orders(tmp_path, spark, {"kafka": {"servers": broker.servers, "topics": ["growing-orders"]}})
    produce(broker, "growing-orders", 0, [(order, "new", order) for order in range(40)])
    assert made.drain() == 40
    client = AdminClient({"bootstrap.servers": broker.servers})
    client.create_partitions([NewPartitions("growing-orders", 4)])["growing-orders"].result(30)
    # Of two states in one batch that stand in different partitions, the later one by time is the newer one.
    produce(broker, "growing-orders", 3, [(order, "paid", 100) for order in range(40)])
    produce(broker, "growing-orders", 1, [(order, "sent", 200) for order in range(20)])
    assert made.drain() == 60

    assert made.latest() == {**dict.fromkeys(range(20), "sent"), **dict.fromkeys(range(20, 40), "paid")}
    assert made.history(7) == ["new", "paid", "sent"]
    produce(broker, "growing-orders", 2, [(7, "back", 150)])
    assert made.drain() == 1
    assert made.latest()[7] == "back", "it arrived later, whatever the clock of its producer says"


@pytest.mark.parametrize("orders", ["lines", "format"], indirect=True)
def test_a_backfill_keeps_the_order(orders: Orders) -> None:
    """Without it equal payloads of two batches become one, or what is filled later ends with another state."""
    put(orders.folder / "inbox", "b.json", {1: "new", 2: "new"}, modified=0)
    orders.drain()
    put(orders.folder / "inbox", "a.json", {1: "paid"}, modified=1)
    orders.drain()
    put(orders.folder / "inbox", "0.json", {1: "new"}, modified=2)
    orders.drain()
    before = orders.latest(), orders.history(1)
    assert before == ({1: "new", 2: "new"}, ["new", "paid", "new"])

    text = orders.text().replace("silver.", "gold.")
    loaded = load_config(orders.folder / "orders.yaml", load_registry(()), environ={}, text=text)
    lake = Lake.at(str(orders.folder / "lake"))
    checkpoint = Lake.at(str(orders.folder / orders.checkpoint))
    made = Backfill(ReprocessContext(loaded.config, orders.spark, lake, checkpoint, "fingerprint", orders.folder))
    filled = made.run(made.begin(RecordRange()))

    assert filled.read == 4
    assert DeltaTable(str(orders.folder / "lake/gold/latest")).to_pyarrow_table().num_rows == 2
    rows = DeltaTable(str(orders.folder / "lake/gold/history")).to_pyarrow_table().to_pylist()
    assert sorted((row["state"], row["is_current"]) for row in rows if row["id"] == 1) == [
        ("new", False),
        ("new", True),
        ("paid", False),
    ]
