"""Run a real Apache Kafka for as long as a `with` block: one node, loopback only, gone afterwards."""

from __future__ import annotations

import base64
import logging
import os
import subprocess
import time
from typing import TYPE_CHECKING, ClassVar

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from router import StartError
from router_demo.embedded import HOST, Embedded, fetched_once, find_java, free_ports, is_open, resolve, tail

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KAFKA = "4.1.1"
_KAFKA_MODULES = (
    ("org.apache.kafka", "kafka_2.13", KAFKA),
    # Kafka's own jars bring no backend for its logging: without one a failed start would say nothing.
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
_DEPENDENCY = '    <dependency org="{}" name="{}" rev="{}" conf="default->default"/>'
LARGEST_MESSAGE = 16 * 1024 * 1024
"""Bytes of one record the broker takes; tests send values of 5 MB and more."""
STOP_SECONDS = 20
TOPIC_SECONDS = 30

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{broker},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
log.retention.ms=-1
log.cleaner.dedupe.buffer.size=16777216
message.max.bytes={largest}
replica.fetch.max.bytes={largest}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
"""

log = logging.getLogger(__name__)


class EmbeddedKafka(Embedded):
    """A broker. `settings` are further broker properties."""

    what: ClassVar[str] = "Kafka"
    start_seconds: ClassVar[int] = 90
    java_options: ClassVar[tuple[str, ...]] = ("-Xmx512m",)

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._settings = dict(settings or {})

    @property
    def servers(self) -> str:
        """Return `host:port` for clients; the same after a restart."""
        return self._address()

    def stop(self) -> None:
        """Shut the broker down in order; its data stays."""
        if self._server is not None and self.running:
            self._server.terminate()
            try:
                self._server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                log.warning("the embedded Kafka did not stop within %s s and is killed", STOP_SECONDS)
        self.kill()

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and return when it can be used; raise KafkaException when it exists already."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        admin.create_topics([wanted])[name].result(timeout=30)
        await_topic(admin, name, partitions)

    def _prepare(self, folder: Path) -> None:
        """Choose ports, and format the storage as Kafka demands before the first start."""
        self._port, controller = free_ports(2)
        text = _PROPERTIES.format(
            host=HOST, broker=self._port, controller=controller, data=folder / "data", largest=LARGEST_MESSAGE
        )
        for key, value in self._settings.items():
            text += f"{key}={value}\n"
        properties = folder / "server.properties"
        properties.write_text(text)
        cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        # Compiled lightly: this process lives for a second.
        command = [*_java("-XX:TieredStopAtLevel=1"), "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}"]
        command += ["-c", str(properties)]
        with (folder / "server.log").open("wb") as output:
            formatting = subprocess.run(command, stdout=output, stderr=output, check=False)
        if formatting.returncode != 0:
            raise StartError(f"the embedded Kafka could not format its storage:\n{tail(folder)}")

    def _command(self, folder: Path) -> list[str]:
        return [*_java(*self.java_options), "kafka.Kafka", str(folder / "server.properties")]

    def _answers(self) -> bool:
        """Say whether the port is open and the metadata names a live broker."""
        if not is_open(self._port):
            return False
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        try:
            return bool(admin.list_topics(timeout=10).brokers)
        except KafkaException:
            return False


def kafka_jars() -> Path:
    """Return the folder of Kafka's jars; fetch them first (43 MB, about half a minute) when they are missing."""
    return fetched_once(f"kafka-{KAFKA}", f"Kafka {KAFKA} (43 MB, about half a minute, once)", _fetch_kafka)


def _fetch_kafka(part: Path) -> Path:
    dependencies = "\n".join(_DEPENDENCY.format(*module) for module in _KAFKA_MODULES)
    names = ", ".join(":".join(module) for module in _KAFKA_MODULES)
    pattern = "jars/[artifact]-[revision](-[classifier]).[ext]"
    resolve(names, dependencies, part, "-retrieve", f"{part}/{pattern}", "-types", "jar", "bundle")
    return part / "jars"


def _java(*options: str) -> list[str]:
    return [str(find_java()), *options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{kafka_jars()}/*"]


def await_topic(admin: AdminClient, name: str, partitions: int) -> None:
    """Wait until a broker serves every partition of a new topic; raise StartError when it takes too long.

    A broker lists a topic a moment before it can read or write it: on a busy machine clients see that.
    """
    deadline = time.monotonic() + TOPIC_SECONDS
    while not _is_served(admin, name, partitions):
        if time.monotonic() > deadline:
            raise StartError(f"topic {name} was created, but its partitions are not served after {TOPIC_SECONDS} s")
        time.sleep(0.02)


def _is_served(admin: AdminClient, name: str, partitions: int) -> bool:
    try:
        listed = admin.list_topics(name, timeout=10).topics[name].partitions
        ends = {TopicPartition(name, number): OffsetSpec.latest() for number in listed}  # type: ignore[no-untyped-call]
        if ends:
            # A broker that reports where a partition ends serves it; of any other one `result` raises.
            for end in admin.list_offsets(ends, request_timeout=10).values():
                end.result()
    except KafkaException:
        return False
    return len(listed) >= partitions
