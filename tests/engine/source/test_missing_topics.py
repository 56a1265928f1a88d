"""A topic that is not there is said at the start, or waited for where that is asked for."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from router import StartError
from router.config.loader import Loaded, load_config
from router.config.models import Trigger
from router.engine.stream import RunOptions, run
from router.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router_demo.kafka import EmbeddedKafka

REGISTRY = load_registry()


def loaded(folder: Path, broker: EmbeddedKafka, source: str, decode: str = "none: {}") -> Loaded:
    """Return a configuration that keeps records in bronze."""
    text = (
        f"name: games\nlake: {folder}/lake\nsource: {{kafka: {{servers: '{broker.servers}', {source}}}}}\n"
        f"decode: {{{decode}}}\nbronze: bronze.all\ndead_letters: ops.dead\ntrigger: {{once: true}}\n"
    )
    return load_config(folder / "games.yaml", REGISTRY, text=text)


def send(broker: EmbeddedKafka, topic: str) -> None:
    broker.create_topic(topic)
    producer = Producer({"bootstrap.servers": broker.servers})
    producer.produce(topic, b'{"a": 1}')
    assert producer.flush(30) == 0


@pytest.fixture
def once_logged(caplog: pytest.LogCaptureFixture) -> Callable[[str, Callable[[], Any]], None]:
    """Call a function as soon as a text is logged."""
    caplog.set_level(logging.INFO, "router")

    def register(text: str, action: Callable[[], Any]) -> None:
        done = threading.Event()

        def act(record: logging.LogRecord) -> bool:
            if text in record.getMessage() and not done.is_set():
                done.set()
                action()
            return True

        caplog.handler.addFilter(act)

    return register


@pytest.mark.parametrize("decode", ["none: {}", "json: {infer: {file: x.ddl}}"], ids=["plain", "inferred"])
def test_a_missing_topic_is_refused_by_its_name(
    spark: SparkSession, own_broker: EmbeddedKafka, tmp_path: Path, decode: str
) -> None:
    """Without it a typing error in `topics` is tried for ever, and the log names no topic."""
    own_broker.create_topic(f"there-{len(decode)}")
    configuration = loaded(tmp_path, own_broker, f"topics: [there-{len(decode)}, absent]", decode)
    with pytest.raises(StartError, match=r"games: the broker has no topic absent; create it") as refused:
        run(configuration, REGISTRY, spark)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("decode", ["none: {}", "json: {infer: {file: x.ddl}}"], ids=["plain", "inferred"])
def test_a_missing_topic_is_waited_for_where_that_is_asked_for(
    spark: SparkSession,
    broker: EmbeddedKafka,
    tmp_path: Path,
    once_logged: Callable[[str, Callable[[], Any]], None],
    decode: str,
) -> None:
    """Without it a router cannot be started before what makes its topic."""
    topic = f"late-{len(decode)}"
    once_logged("waiting: the broker has no topic", lambda: send(broker, topic))
    configuration = loaded(tmp_path, broker, f"topics: [{topic}]", decode)
    reports = run(configuration, REGISTRY, spark, RunOptions(wait_for_topic=True))
    again = run(configuration, REGISTRY, spark)  # the record may have come after the first run had seen the topic
    assert sum(report.read for report in [*reports, *again]) == 1


def test_a_pattern_without_topics_waits_for_one(
    spark: SparkSession,
    broker: EmbeddedKafka,
    tmp_path: Path,
    once_logged: Callable[[str, Callable[[], Any]], None],
) -> None:
    """Without it a router of topics that come and go cannot be started before the first."""
    stop = threading.Event()
    once_logged("reading Kafka", lambda: threading.Thread(target=send, args=(broker, "absent-late")).start())
    # the topic may be seen before its record: the batch of then reads nothing
    options = RunOptions(
        Trigger(continuous=True), stop=stop, finished=lambda report, behind: stop.set() if report.read else None
    )
    configuration = loaded(tmp_path, broker, "pattern: 'absent-.*', options: {kafka.metadata.max.age.ms: '500'}")
    reports = run(configuration, REGISTRY, spark, options)
    assert sum(report.read for report in reports) == 1


def test_a_broker_that_is_away_is_waited_for(
    spark: SparkSession,
    own_broker: EmbeddedKafka,
    tmp_path: Path,
    once_logged: Callable[[str, Callable[[], Any]], None],
) -> None:
    """Without it a start during a restart of the broker looks like one with a wrong topic."""
    send(own_broker, "away")
    own_broker.stop()
    once_logged("no broker answers", own_broker.start)
    configuration = loaded(tmp_path, own_broker, "topics: [away]")
    (report,) = run(configuration, REGISTRY, spark)
    assert report.read == 1
