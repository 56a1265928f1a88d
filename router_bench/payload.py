"""What a benchmark's topic is filled with: the records of a sample file, or the simulator's, repeated."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from router.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

Record = tuple["bytes | None", "bytes | None"]
"""Key and value."""
Framing = Literal["lines", "length"]
DISTINCT = 100_000
"""Records that are made or read; after them the first comes again."""
REPORT_EVERY = 10_000
ANSWER_SECONDS = 30
SIMULATED_FROM = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Payload:
    """Records to fill topics with, and what to call them in a result."""

    name: str
    records: Sequence[Record]

    def repeated(self, rows: int) -> Iterator[Record]:
        """Yield so many records, from the first again after the last."""
        for start in range(0, rows, len(self.records)):
            yield from islice(self.records, rows - start)


def sample(file: Path, framing: Framing = "lines", separator: str | None = None) -> Payload:
    """Return the records of a file.

    `lines`: one in each line; with a `separator`, what is before its first occurrence is the key. `length`: each value
    after its length, four bytes, big-endian, for formats that are not text. Raises StartError when there is none.
    """
    in_file = _read_lengths(file) if framing == "length" else _read_lines(file, (separator or "").encode())
    records = list(islice(in_file, DISTINCT))
    if not records:
        raise StartError(f"{file}: holds no record; give a file with one record a line, or --framing length")
    return Payload(file.name, records)


def simulated(tables: int, form: str = "json", registry: str | None = None, subject: str = "") -> Payload:
    """Return events of so many simulated games; formats other than JSON are registered under a subject first."""
    demo = _demo("records")
    traffic = _demo("traffic").Traffic(events=DISTINCT, games=tables, skew=0.0, seed=7, start=SIMULATED_FROM)
    with demo.opened(form, registry, subject) as write:
        records = [(key, value) for key, value, _ in demo.records(traffic, write)]
    return Payload(f"simulator, {tables} games, {form}", records)


@contextmanager
def broker(servers: str | None) -> Iterator[str]:
    """Give the address of the broker to fill: the one that is named, or an embedded one for as long as the block."""
    with ExitStack() as held:
        yield servers or str(held.enter_context(_demo("kafka").EmbeddedKafka()).servers)


@contextmanager
def topic(servers: str, name: str, partitions: int, settings: Mapping[str, str]) -> Iterator[str]:
    """Make a topic for as long as a block; raise StartError when the broker refuses."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0, **settings})
    try:
        admin.create_topics([NewTopic(name, partitions)])[name].result(ANSWER_SECONDS)
    except KafkaException as error:
        raise StartError(f"topic {name} at {servers}: {error.args[0].str()}; may it be made there?") from error
    try:
        yield name
    finally:
        admin.delete_topics([name])[name].exception(ANSWER_SECONDS)


def fill(
    servers: str,
    name: str,
    partitions: int,
    records: Iterator[Record],
    settings: Mapping[str, str],
    on_progress: Callable[[int], None],
) -> None:
    """Send records to a topic, spread evenly over its partitions; return when the broker has them all."""
    failed: list[str] = []
    # Idempotent, or a retried request would put events twice into the topic and every count would be wrong.
    producer = Producer({**_PRODUCER, "bootstrap.servers": servers, **settings, "on_delivery": _noting(failed)})
    sent = 0
    for sent, (key, value) in enumerate(records, 1):
        _produce(producer, name, key, value, sent % partitions)
        if sent % REPORT_EVERY == 0:
            on_progress(sent)
    unanswered = producer.flush(120)
    if unanswered or failed:
        reason = failed[0] if failed else "no answer from the broker"
        count = unanswered + len(failed)
        raise StartError(f"topic {name} at {servers}: {count:,} records were not delivered: {reason}")
    on_progress(sent)


_PRODUCER: dict[str, Any] = {
    "enable.idempotence": True,
    "linger.ms": 50,
    "batch.size": 1 << 20,
    "log_level": 3,
    "delivery.report.only.error": True,
}


def topic_name() -> str:
    """Return a name that no topic has yet."""
    return f"router-bench-{time.time_ns()}"


def _noting(failed: list[str]) -> Callable[[Any, Any], None]:
    def note(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(error.str())

    return note


def _produce(producer: Producer, name: str, key: bytes | None, value: bytes | None, partition: int) -> None:
    while True:
        try:
            producer.produce(name, value, key, partition=partition)
            return
        except BufferError:
            producer.poll(0.1)


def _read_lines(file: Path, separator: bytes) -> Iterator[Record]:
    with file.open("rb") as lines:
        for line in lines:
            text = line.rstrip(b"\r\n")
            if not text:
                continue
            if separator and separator in text:
                key, _, value = text.partition(separator)
                yield key, value
            else:
                yield None, text


def _read_lengths(file: Path) -> Iterator[Record]:
    with file.open("rb") as content:
        while head := content.read(4):
            size = int.from_bytes(head, "big")
            value = content.read(size)
            if len(head) < 4 or len(value) < size:
                raise StartError(
                    f"{file}: ends inside a record of {size:,} bytes; is it written with --framing length?"
                )
            yield None, value


def _demo(name: str) -> ModuleType:
    try:
        return import_module(f"router_demo.{name}")
    except ModuleNotFoundError as error:
        reason = f"needs the module {error.name}, which is not installed"
        raise StartError(f"the embedded broker and the simulator: {reason}; give --servers and --sample") from error
