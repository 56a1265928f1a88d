"""Sinks with a query of their own: they send what lands in their outbox, and nobody waits for them."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from router import SinkError, StartError
from router.config.loader import Loaded, load_config
from router.config.models import Maintenance, Trigger
from router.delta.lake import Lake
from router.delta.maintenance import delete_older
from router.engine.ledger import read_last_batches
from router.engine.maintenance import TableMaintenance
from router.engine.outbox import detached
from router.engine.outbox.detached import detached_outboxes
from router.engine.stream import RunOptions, run
from router.registry import Registry, load_registry
from router_demo.api import Api, Failure
from tests.lake_rows import read_rows
from tests.rest.tasks import shorten_outages
from tests.sinks.topic import delete_topic, read_topic
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from router_demo.kafka import EmbeddedKafka

YAML = """\
name: games
lake: {folder}/lake
source: {{files: {{path: {folder}/in, files_per_batch: 1}}}}
decode: {{json: "{schema}"}}
routes:
  - name: all
    match: {{sql: "event.n IS NOT NULL"}}
    sinks: [{{delta: silver.all}}, {sink}]
trigger: {{once: true}}
outbox_retention: {retention}
dead_letters: ops.dead
"""
PATIENCE_SECONDS = 120


@pytest.fixture(autouse=True)
def brief_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody pause for longer than a second: how often a sink is tried in an outage changes nothing else."""
    monkeypatch.setattr(detached, "_LONGEST_SINK_PAUSE_SECONDS", 1.0)
    shorten_outages(monkeypatch)


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry([Path(__file__).parents[1] / "detached_sink.py"])


class Loft:
    """A folder with events to come, a lake, and pigeons."""

    def __init__(self, folder: Path, registry: Registry, spark: SparkSession) -> None:
        self.folder, self.registry, self.spark = folder, registry, spark
        self.lake = Lake.at(f"{folder}/lake")
        self.sink = f'{{pigeons: "{folder}"}}'
        (folder / "in").mkdir()

    def comes(self, *numbers: int) -> None:
        """Let a file of events arrive at once."""
        name = f"{time.time_ns()}.json"
        unfinished = self.folder / name
        unfinished.write_text("".join(f'{{"n": {n}, "m": {n}}}\n' for n in numbers))
        unfinished.rename(self.folder / "in" / name)

    def run(self, schema: str = "n int", retention: str = "168 h", **options: Any) -> None:
        """Run until all is taken, or as the options say."""
        run(self.loaded(schema, retention), self.registry, self.spark, RunOptions(**options))

    def loaded(self, schema: str = "n int", retention: str = "168 h") -> Loaded:
        text = YAML.format(folder=self.folder, schema=schema, sink=self.sink, retention=retention)
        return load_config(self.folder / "games.yaml", self.registry, environ={}, text=text)

    def flown(self) -> list[int]:
        """Return the events that pigeons took, in order."""
        return sorted(n for n, _, _ in self.log())

    def log(self) -> list[list[Any]]:
        path = self.folder / "flown"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def rows(self, table: str) -> list[dict[str, Any]]:
        return read_rows(self.lake, table)

    def booked(self) -> dict[str, int]:
        """Return what the ledger says of the pigeons, or the sink in their place, summed."""
        rows = [row for row in self.rows("ops.ledger") if row["sink"] in {"pigeons", "rest"}]
        return {name: sum(row[name] or 0 for row in rows) for name in ("landed", "applied", "dead", "backlog")}


@pytest.fixture
def loft(tmp_path: Path, registry: Registry, spark: SparkSession) -> Loft:
    return Loft(tmp_path, registry, spark)


@pytest.fixture
def running(loft: Loft) -> Iterator[Callable[[], None]]:
    """Run without an end in a thread; calling what is returned stops it and raises what it raised."""
    stop, raised = threading.Event(), []

    def work() -> None:
        try:
            loft.run(trigger=Trigger(continuous=True), stop=stop)
        except BaseException as error:  # the test's thread is told
            raised.append(error)

    thread = threading.Thread(target=work)

    def end() -> None:
        stop.set()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
        for error in raised:
            raise error

    thread.start()
    yield end
    stop.set()
    thread.join()


def test_all_that_landed_is_sent_before_a_run_ends(loft: Loft) -> None:
    """Without it a nightly run leaves rows behind, a night each time."""
    loft.comes(1, 2, -3)
    loft.comes(4)

    loft.run()

    assert loft.flown() == [1, 2, 4]
    assert [(row["stage"], row["sink"], row["value"]) for row in loft.rows("ops.dead")] == [
        ("apply", "pigeons", b'{"n":-3}')
    ]
    assert loft.booked() == {"landed": 4, "applied": 3, "dead": 1, "backlog": 0}

    loft.comes(5)
    loft.run()

    assert loft.flown() == [1, 2, 4, 5]
    shown = read_last_batches(loft.loaded().config, 1)
    assert [(row["sink"], row["applied"]) for row in shown if row["sink"] == "pigeons"] == [
        ("pigeons", 0),
        ("pigeons", 1),
    ]
    assert len([row for row in shown if row["route"] is None]) == 1
    assert loft.booked() == {"landed": 5, "applied": 4, "dead": 1, "backlog": 0}


def test_every_sink_that_failed_is_named(loft: Loft, caplog: pytest.LogCaptureFixture) -> None:
    """Without it the next run fails at the next sink, and the one after that at a third."""
    folders = [loft.folder / name for name in ("north", "south", "west")]
    for folder in folders:
        folder.mkdir()
    for folder in folders[:2]:
        (folder / "closed").touch()
    loft.sink = ", ".join(f'{{pigeons: "{folder}"}}' for folder in folders)
    loft.comes(1)

    with pytest.raises(SinkError, match="north is closed"):
        loft.run()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "games, batch 0, route all, sink pigeons_2: ValueError: south is closed"
    ]
    assert (folders[2] / "flown").read_text() == "[1, 0, true]\n"


def test_tables_go_on_while_a_sink_cannot(loft: Loft, running: Callable[[], None]) -> None:
    """Without it one service that is down stops the tables of all games."""
    (loft.folder / "storm").touch()
    loft.comes(1)
    wait_until((loft.folder / "waited").exists, "the sink waits")
    for n in (2, 3):
        loft.comes(n)
        wait_until(lambda n=n: n in [row["n"] for row in loft.rows("silver.all")], "the row is in its table")
    wait_until(lambda: loft.booked()["backlog"] == 3, "three rows are behind")
    assert loft.flown() == []

    (loft.folder / "storm").unlink()

    wait_until(lambda: loft.flown() == [1, 2, 3], "three rows are sent")
    running()
    assert loft.booked() == {"landed": 3, "applied": 3, "dead": 0, "backlog": 0}


def test_a_start_waits_for_no_sink_that_cannot_get_ready(loft: Loft, running: Callable[[], None]) -> None:
    """Without it a broker of one sink that is down keeps the tables of all games from starting."""
    (loft.folder / "night").touch()
    loft.comes(1)
    wait_until(lambda: loft.booked()["backlog"] == 1, "the row has landed")
    assert (loft.flown(), [row["n"] for row in loft.rows("silver.all")]) == ([], [1])

    (loft.folder / "night").unlink()

    wait_until(lambda: loft.flown() == [1], "the row is sent")
    running()


def test_a_sink_that_refuses_stops_only_a_new_configuration(loft: Loft) -> None:
    """Without it what changes outside, as a dropped topic or a newer schema, stops all tables at the next start."""
    moved = loft.folder / "moved"
    moved.touch()
    loft.comes(1)
    with pytest.raises(StartError, match="route all, sink pigeons: the loft has moved"):
        loft.run()
    assert loft.rows("silver.all") == []
    moved.unlink()
    loft.run()
    moved.touch()
    loft.comes(2)

    with pytest.raises(StartError, match="all/pigeons: the loft has moved"):
        loft.run()

    assert sorted(row["n"] for row in loft.rows("silver.all")) == [1, 2]
    assert (loft.flown(), loft.booked()["backlog"]) == ([1], 1)
    moved.unlink()
    loft.run()
    assert loft.flown() == [1, 2]


def test_tables_go_on_while_a_topic_is_gone(loft: Loft, broker: EmbeddedKafka, request: pytest.FixtureRequest) -> None:
    """Without it a topic that somebody deletes stops the tables of all games, with or without a new start."""
    broker.create_topic("all-bets")
    loft.sink = f'{{kafka: {{servers: "{broker.servers}", topic: all-bets}}}}'
    loft.comes(1)
    running = request.getfixturevalue("running")
    wait_until(lambda: len(read_topic(broker.servers, "all-bets")) == 1, "the first row is sent")
    delete_topic(broker.servers, "all-bets")
    for n in (2, 3):
        loft.comes(n)
        wait_until(lambda n=n: n in [row["n"] for row in loft.rows("silver.all")], "the row is in its table")
    running()
    loft.comes(4)

    with pytest.raises(StartError, match="all/kafka: there is no topic all-bets"):
        loft.run()

    assert sorted(row["n"] for row in loft.rows("silver.all")) == [1, 2, 3, 4]
    broker.create_topic("all-bets")
    loft.run()
    values = {json.loads(message.value or b"")["n"] for message in read_topic(broker.servers, "all-bets")}
    assert values == {2, 3, 4}


@pytest.fixture(params=["black-holed", pytest.param("refusing", marks=pytest.mark.slow)])
def away(loft: Loft, request: pytest.FixtureRequest) -> Iterator[Api]:
    """Run an API in the pigeons' place that takes calls and never answers, or takes none."""
    with Api() as api:
        silent = {"failures": [Failure(how="silent")]}
        api.play(**(silent if request.param == "black-holed" else {"outage": "refused"}))
        loft.sink = f'{{rest: {{url: "{api.url}/all", timeouts: {{connect: 1 s, read: 1 s}}}}}}'
        yield api


def test_tables_go_on_while_an_api_is_away(loft: Loft, away: Api, running: Callable[[], None]) -> None:
    """Without it an API that hangs makes the tables of all games old."""
    loft.comes(1)
    wait_until(lambda: any((loft.folder / "lake/ops/receipts").rglob("*.parquet")), "its batch has begun")
    for n in (2, 3, 4, 5):
        loft.comes(n)
        wait_until(lambda n=n: n in [row["n"] for row in loft.rows("silver.all")], "the row is in its table")
    wait_until(lambda: loft.booked()["backlog"] == 5, "five rows are behind")
    assert (away.rows("n"), loft.rows("ops.receipts")) == (Counter(), [])

    away.play()

    wait_until(lambda: away.rows("n") == Counter([1, 2, 3, 4, 5]), "five rows arrive")
    wait_until(lambda: loft.booked()["backlog"] == 0, "no row is behind")
    running()
    assert loft.booked() == {"landed": 5, "applied": 5, "dead": 0, "backlog": 0}


@pytest.mark.slow
def test_a_sink_that_lingers_sends_what_came_meanwhile_together(loft: Loft, request: pytest.FixtureRequest) -> None:
    """Without it each batch of the stream makes a call of few rows for every key."""
    with Api() as api:
        api.play()
        loft.sink = f'{{rest: {{url: "{api.url}/all", rows_per_call: 100, group_by: "event.n % 2", linger: 15 s}}}}'
        end = request.getfixturevalue("running")
        for n in range(6):
            loft.comes(2 * n, 2 * n + 1)
            wait_until(lambda n=n: 2 * n in [row["n"] for row in loft.rows("silver.all")], "the row is in its table")

        wait_until(lambda: api.rows("n") == Counter(range(12)), "twelve rows arrive")
        end()

        bodies = [[row["n"] for row in json.loads(one["body"])] for one in api.requests()]
        assert all(len({n % 2 for n in body}) == 1 and body == sorted(body) for body in bodies)
        batches = {row["batch_id"] for row in loft.rows("ops.receipts")}
        assert len(batches) < 6, "there are six files, and without a pause as many batches"


def test_a_run_can_be_stopped_while_a_sink_cannot_go_on(loft: Loft, running: Callable[[], None]) -> None:
    """Without it an endpoint that is down for good keeps a router from being stopped, or costs the rows that wait."""
    (loft.folder / "storm").touch()
    loft.comes(1)
    wait_until((loft.folder / "waited").exists, "the sink waits")

    running()

    assert loft.flown() == []
    assert loft.booked()["backlog"] == 1
    (loft.folder / "storm").unlink()
    loft.run()
    assert [(n, replay) for n, _, replay in loft.log()] == [(1, True)]
    assert loft.booked()["backlog"] == 0


def test_a_run_can_be_stopped_while_spark_plans_a_first_batch(loft: Loft, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it Ctrl-C waits for Spark to plan the first batch of every sink: half a minute with twenty of them."""
    loft.comes(1)
    loft.run()
    status: Any = StreamingQuery.status
    follow = detached.DetachedSink._follow_query
    stop, began = threading.Event(), threading.Event()

    def note_that_it_began(sink: detached.DetachedSink, query: StreamingQuery) -> None:
        began.set()
        follow(sink, query)

    running = threading.Thread(target=loft.run, kwargs={"trigger": Trigger(continuous=True), "stop": stop})
    with monkeypatch.context() as patch:
        planning = property(lambda query: {**status.fget(query), "isTriggerActive": True})
        patch.setattr(StreamingQuery, "status", planning)
        patch.setattr(detached.DetachedSink, "_follow_query", note_that_it_began)
        running.start()
        began.wait(PATIENCE_SECONDS)
        stop.set()
        running.join(PATIENCE_SECONDS)
        ended = not running.is_alive()
    running.join()

    assert ended
    loft.comes(2)
    loft.run()
    assert loft.flown() == [1, 2]


def test_a_batch_that_begins_while_its_query_is_stopped_is_no_failure(
    loft: Loft, running: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it Ctrl-C ends with an error of a sink that has none, where Spark had just planned its batch."""
    (loft.folder / "storm").touch()
    loft.comes(1)
    wait_until((loft.folder / "waited").exists, "the sink waits")
    running()
    (loft.folder / "storm").unlink()
    stop, refused = threading.Event(), threading.Event()
    handle, stop_query = detached.DetachedSink._handle_batch, StreamingQuery.stop

    def stop_at_once(sink: detached.DetachedSink, query: StreamingQuery) -> None:
        stop.set()

    def note_the_end(sink: detached.DetachedSink, events: DataFrame, number: int) -> None:
        try:
            handle(sink, events, number)
        finally:
            refused.set()

    def stop_late(query: StreamingQuery) -> None:
        if "pigeons" in str(query.name):
            refused.wait(PATIENCE_SECONDS)
        stop_query(query)

    with monkeypatch.context() as patch:
        patch.setattr(detached.DetachedSink, "_follow_query", stop_at_once)
        patch.setattr(detached.DetachedSink, "_handle_batch", note_the_end)
        patch.setattr(StreamingQuery, "stop", stop_late)
        loft.run(trigger=Trigger(continuous=True), stop=stop)

    assert refused.is_set()
    assert loft.flown() == []
    loft.run()
    assert loft.flown() == [1]


def test_an_outbox_that_gains_columns_goes_on(loft: Loft) -> None:
    """Without it a new field of an event stops what is sent for good."""
    loft.comes(1)
    loft.run()
    loft.comes(2)

    loft.run(schema="n int, m int")

    assert loft.flown() == [1, 2]


def test_an_outbox_is_not_compacted_under_the_query_that_follows_it(loft: Loft) -> None:
    """Without it rows that wait for a service for a week are deleted with the files they were compacted from."""
    outboxes = detached_outboxes(loft.loaded().config)
    care = TableMaintenance(loft.lake, lambda: loft.spark, (Maintenance(tables="*.*"),), outboxes)

    assert outboxes == {"outbox.games__all__pigeons"}
    assert [care.plan_for(table) is None for table in ("outbox.games__all__pigeons", "silver.all")] == [True, False]


def test_an_outbox_that_forgot_goes_on(loft: Loft) -> None:
    """Without it the rows that an outbox deletes come once more, or stop its query."""
    loft.comes(1)
    loft.run()
    loft.comes(2)
    loft.run()
    outbox = loft.lake.open("outbox.games__all__pigeons")
    assert outbox is not None

    gone = delete_older(loft.lake, "outbox.games__all__pigeons", datetime.now(timezone.utc), outbox.version())
    loft.comes(3)
    loft.run()

    assert gone == 2
    assert [row["n"] for row in loft.rows("outbox.games__all__pigeons")] == [3]
    assert loft.flown() == [1, 2, 3]


def test_an_outbox_forgets_when_a_run_ends(loft: Loft) -> None:
    """Without it the outbox of a nightly run, which never lasts an hour, keeps every row there ever was."""
    for n in (1, 2, 3):
        loft.comes(n)
        loft.run(retention="1 ms")

    left = [row["n"] for row in loft.rows("outbox.games__all__pigeons")]
    assert 1 not in left
    assert loft.flown() == [1, 2, 3]


def test_an_outbox_of_a_sink_in_the_batches_forgets_when_a_run_ends(loft: Loft) -> None:
    """Without it the rows of a nightly run that merges are in its outbox for ever."""
    loft.sink = "{upsert: {table: silver.last, keys: [event.n]}}"
    loft.comes(1, 2)
    loft.run(retention="1 ms")

    assert loft.rows("outbox.games__all__upsert") == []
    assert len(loft.rows("silver.last")) == 2


def test_an_outbox_that_widens_goes_on(loft: Loft) -> None:
    """Without it a number that outgrew its type stops a detached sink for ever."""
    loft.comes(1, 2)
    loft.run()
    loft.comes(2**40)
    loft.run(schema="n bigint")

    assert loft.flown() == [1, 2, 2**40]


def test_a_lost_checkpoint_does_not_send_all_again(loft: Loft) -> None:
    """Without it a folder that was deleted by mistake posts a year of wins a second time."""
    loft.comes(1, 2)
    loft.run()
    kept = loft.folder / "lake/_router/games/detached"
    kept.rename(kept.with_name("lost"))

    with pytest.raises(StartError, match=r"2 rows of its outbox were sent before"):
        loft.run()
    assert loft.flown() == [1, 2]

    loft.run(accept="duplicates")
    assert loft.flown() == [1, 1, 2, 2]
