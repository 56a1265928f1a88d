"""Topics, configurations and processes for runs that are disturbed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from router.config.loader import load_config
from router.config.models import Trigger
from router.engine import stream
from router.registry import Registry, load_registry
from router_demo.simulator import simulate
from router_demo.traffic import Traffic
from tests.chaos.processes import HERE, RouterProcess
from tests.light import LIGHT

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from router import BatchReport

PARTITIONS = 3
SCHEMA = (
    "game string, gamer_id string, ts timestamp, session_id string, amount double, type string, bid bigint, "
    "tricks bigint, color string, card string, blinds struct<small: bigint, big: bigint>, melds array<array<string>>"
)
PLUGINS = (HERE / "failing_parts.py",)


@dataclass(frozen=True)
class Topic:
    """A topic of one test or module."""

    servers: str
    name: str

    def simulate(self, events: int, *, games: int = 7, bad: float = 0.0, seed: int = 0) -> Counter[str]:
        """Send game events; return how many good ones there are of each game."""
        sent = simulate(self.servers, self.name, Traffic(events=events, games=games, bad=bad, seed=seed, skew=0))
        assert not sent.failed
        return sent.games

    def send(self, values: Sequence[bytes | None], partition: int | None = None) -> None:
        """Send values as they are, each with its number as the key."""
        producer = Producer({"bootstrap.servers": self.servers, "message.max.bytes": 16 << 20, "linger.ms": 5})
        where: dict[str, Any] = {} if partition is None else {"partition": partition}
        for number, value in enumerate(values):
            producer.produce(self.name, value, str(number), **where)
            producer.poll(0)
        assert not producer.flush(60)


GAMES = {"name": "games", "match": {"sql": "event.game IS NOT NULL"}, "sinks": [{"tables": "silver.{event.game}"}]}
WINS = {"name": "wins", "match": {"sql": "event.amount > 9000"}, "sinks": [{"delta": "silver.wins"}]}


def configuration(folder: Path, topic: Topic, *, rows: int = 1000, **changes: Any) -> Path:
    """Write the configuration of a test, with its lake beside it; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    text: dict[str, Any] = {
        "name": "games",
        "lake": str(folder / "lake"),
        "source": {"kafka": {"servers": topic.servers, "topics": [topic.name], "rows_per_batch": rows}},
        "decode": {"json": {"schema": SCHEMA}},
        "bronze": "bronze.events",
        "routes": [GAMES, WINS],
        "dead_letters": "ops.dead_letters",
        "spark": LIGHT,
        **changes,
    }
    path = folder / "games.yaml"
    path.write_text(yaml.safe_dump(text, sort_keys=False))
    return path


@pytest.fixture(scope="session")
def registry() -> Registry:
    return load_registry(PLUGINS)


@pytest.fixture(scope="session")
def drain(spark, registry) -> Callable[..., list[BatchReport]]:
    """Run a configuration in this process until its topic is drained; return the reports."""

    def drain(path: Path, **options: Any) -> list[BatchReport]:
        return stream.run(
            load_config(path, registry), registry, spark, stream.RunOptions(trigger=Trigger(once=True), **options)
        )

    return drain


@pytest.fixture(scope="session")
def new_topic(broker, worker_id) -> Callable[[], Topic]:
    """Make topics that nobody else uses."""
    numbers = itertools.count()

    def new_topic() -> Topic:
        name = f"chaos-{worker_id}-{next(numbers)}"
        broker.create_topic(name, PARTITIONS)
        return Topic(broker.servers, name)

    return new_topic


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., RouterProcess]]:
    """Start routers, by default the driver of these tests; whatever is left of them at the end is killed."""
    running: list[RouterProcess] = []

    def start(config: Path, *arguments: str, command: tuple[str, ...] = (str(HERE / "driver.py"),)) -> RouterProcess:
        plugins = [part for plugin in PLUGINS for part in ("--plugin", str(plugin))]
        log = config.parent / f"router-{len(running)}.log"
        process = RouterProcess([*command, str(config), *plugins, *arguments], log)
        running.append(process)
        return process

    yield start
    for process in running:
        process.clear()


@pytest.fixture
def router_run(start) -> Callable[..., RouterProcess]:
    """Start `router run`, as a user would."""
    return lambda config, *arguments: start(config, *arguments, command=("-m", "router", "run"))


def delete_records_before(topic: Topic, offsets: Sequence[int]) -> None:
    """Let the broker delete a topic's records, as it does when they are too old."""
    admin = AdminClient({"bootstrap.servers": topic.servers})
    asked = [TopicPartition(topic.name, partition, offset) for partition, offset in enumerate(offsets)]
    for done in admin.delete_records(asked).values():
        done.result(60)
