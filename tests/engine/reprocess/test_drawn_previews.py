"""Configurations that are drawn: a batch does what the preview of its records has said, which leaves no trace."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from router.delta.unreadable_values import as_rows
from router.engine.checkpoint_store import LearntSchemas
from router.engine.outbox.apply import open_sinks
from router.engine.reprocess.preview import Trial, preview_of, staging_lake_of
from router.engine.source.unreadable import RawRecords
from router.engine.views.schedule import create_refresher, in_order
from router.stages import Stage
from router_rest.sink import Rest
from router_sinks.kafka import Kafka
from tests.engine.drawing import raw_table
from tests.engine.parts import Copy, copied
from tests.engine.reprocess.traces import traces_of
from tests.engine.stream.test_drawn_configurations import Drawn, shown
from tests.sinks.topic import read_topic

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from router.api.sinks import Opening
    from router.config.models import Route
    from router.engine.reprocess.preview import Preview
    from router_demo.kafka import EmbeddedKafka
    from tests.engine.conftest import MakeQuery
    from tests.engine.query import Query

RECORDS = 40
IN_EVERY_RUN = 2
CONFIGURATIONS = 10
SEEDS = [
    *range(IN_EVERY_RUN),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(IN_EVERY_RUN, CONFIGURATIONS)),
]
APPENDED = ("t", "d", "bronze", "quarantine", "outbox")
"""Layers of tables whose new rows are those of the batch."""


class SayingCopy(Copy):
    """Say which rows it would copy."""

    previews: ClassVar[bool] = True

    def preview(self, events: DataFrame, opening: Opening) -> list[dict[str, Any]]:
        return [{"place": row["place"]} for row in events.select("place").collect()]


class DrawnWithSinks(Drawn):
    """A drawn configuration whose routes have sinks of every kind."""

    servers: str
    """Of a Kafka that takes what is sent."""

    def topic(self, number: int) -> str:
        return f"{self.folder.name}-{number}"

    def _route(self, number: int) -> Route:
        route = super()._route(number)
        sinks = [sink for sink in route.sinks if not isinstance(sink, Copy)]
        if self.drawing.chance.random() < 0.7:
            sinks.append(SayingCopy(to=str(self.folder / f"said{number}")))
        others = [
            Rest(url="http://127.0.0.1:9/games"),
            Kafka(servers=self.servers, topic=self.topic(number), create_topics={"partitions": 1}, mode="inline"),
        ]
        sinks += self.drawing.chance.sample(others, self.drawing.chance.randint(0, 2))
        return route.model_copy(update={"sinks": tuple(sinks)})

    def sent(self) -> Counter[tuple[str, int]]:
        """Return what has arrived, by sink and record."""
        found: Counter[tuple[str, int]] = Counter()
        for number, route in enumerate(self.routes):
            path = self.folder / f"said{number}"
            for sink in route.sinks:
                if isinstance(sink, SayingCopy) and path.exists():
                    found.update((f"r{number}/sayingcopy", row["place"]) for row in copied(path))
                if isinstance(sink, Kafka):
                    messages = read_topic(self.servers, self.topic(number))
                    found.update((f"r{number}/kafka", json.loads(message.value)["place"]) for message in messages)
        return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_does_what_its_preview_has_said(
    make_query: MakeQuery, spark: SparkSession, tmp_path: Path, broker: EmbeddedKafka, seed: int
) -> None:
    """Without it a preview is a second router, that is right only as long as both are changed together."""
    DrawnWithSinks.servers = broker.servers
    drawn = DrawnWithSinks(seed, make_query, spark, tmp_path)
    for batch in range(2):
        query = drawn.query
        records = raw_table(drawn.drawing.records(RECORDS, hostile=0.3), batch * RECORDS)
        raw = RawRecords(spark.createDataFrame(records))
        before = {table: as_rows(query.content(table)) for table in query.tables()}
        sent = drawn.sent()
        traces = traces_of(tmp_path)

        context = query.context(spark)
        with staging_lake_of(context) as staging_lake:
            found = preview_of(Trial.of(context, staging_lake, "the topic", raw), raw, 10 * RECORDS, "the topic")

        assert traces_of(tmp_path) == traces
        config = open_sinks(query.config, spark, tmp_path, LearntSchemas(query.store)).config
        query = query.restarted(routes=config.routes)
        query.take(records)
        check_tables(query, found, before)
        check_sinks(drawn, found, sent)
        if batch == 0:
            check_views(query, found)


def check_tables(query: Query, found: Preview, before: dict[str, list[dict[str, Any]]]) -> None:
    """Hold the rows, columns and dead letters that were said against those that are there now."""
    rows: dict[str, Counter[str]] = {}
    for table in found.tables:
        route, _, sink = table.target.partition("/")
        is_merged = sink == "upsert"
        name = f"outbox.games__{route}__upsert" if is_merged else table.table
        rows.setdefault(name, Counter()).update(row_texts(table.samples) if not is_merged else {"": table.rows})
        if not is_merged:
            columns = {field.name for field in query.open(table.table).schema().fields}
            known = before_columns(before, table.table)
            assert (table.change == "new") == (table.table not in before)
            assert set(table.columns) - known == columns - known
        else:
            assert table.merge is not None
            assert not table.merge.unknown
    for sink_found in found.sinks:
        rows[f"outbox.games__{sink_found.sink.replace('/', '__')}"] = Counter({"": sink_found.rows})
    gained = {}
    for table_name in query.tables():
        if table_name.split(".")[0].rstrip("0123456789") not in APPENDED:
            continue
        new = row_texts(as_rows(query.content(table_name)))
        new.subtract(row_texts(before.get(table_name, [])))
        if table_name.startswith("outbox."):
            new = Counter({"": new.total()})
        if +new:
            gained[table_name] = +new
    assert {table: counts for table, counts in rows.items() if +counts} == gained
    letters = Counter[tuple[Any, ...]]()
    for group in found.dead_letters:
        letters[group.stage, group.route, group.sink, group.reason] += group.count
    after_landing = (Stage.APPLY.value,)
    batch = len(query.taken) - 1
    assert letters == Counter(
        (row["stage"], row["route"], row["sink"], row["reason"])
        for row in query.rows(query.config.dead_letters)
        if row["batch_id"] == batch and row["stage"] not in after_landing
    )


def before_columns(before: dict[str, list[dict[str, Any]]], table: str) -> set[str]:
    """Return the columns that a table had."""
    return set(before[table][0]) if before.get(table) else set()


def row_texts(rows: list[dict[str, Any]]) -> Counter[str]:
    """Return rows as texts; what says which batch brought them is left out."""
    return Counter(repr(shown({name: row[name] for name in row if name not in OWN})) for row in rows)


OWN = {"_batch_id", "batch_id", "_query", "arrival"}


def check_sinks(drawn: DrawnWithSinks, found: Preview, before: Counter[tuple[str, int]]) -> None:
    """Hold calls and rows that were said against what arrived."""
    for sink in found.sinks:
        arrived = drawn.sent()
        arrived.subtract(before)
        places = Counter(place for name, place in (+arrived).elements() if name == sink.sink)
        if sink.calls and "sayingcopy" in sink.sink:
            assert places == Counter(call["place"] for call in sink.calls)
        elif "kafka" in sink.sink:
            assert places == Counter(message["value"]["place"] for message in sink.calls)
        else:
            assert len(sink.calls) == sink.rows


def check_views(query: Query, found: Preview) -> None:
    """Hold the rows of views that were said against those of the first records."""
    refreshes = create_refresher(query.config, query.spark, query.lake, query.store)
    wanted = {}
    for view in in_order(query.config.views):
        refreshes.refresh_view(view)
        if query.lake.open(view.into):
            wanted[view.into] = row_texts(as_rows(query.content(view.into)))
    assert {view.table: row_texts(view.samples) for view in found.views if view.columns} == wanted
