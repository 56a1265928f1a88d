"""Run a real Apache Kafka for as long as a `with` block: one node, loopback only, gone afterwards."""

from __future__ import annotations

import atexit
import base64
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from router import StartError
from router_demo.jars import kafka_jars
from router_demo.java import find_java

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

HOST = "127.0.0.1"
LARGEST_MESSAGE = 16 * 1024 * 1024
"""Bytes of one record the broker takes; tests send values of 5 MB and more."""
START_SECONDS = 90
STOP_SECONDS = 20

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

# Waits for the end of its standard input, which the kernel brings about however this process ends, even by SIGKILL.
# The broker may write for a moment after its own SIGKILL, so the folder is removed when it is gone.
WATCHDOG = """\
read -r _
kill -9 "$0" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$0" 2>/dev/null || break; sleep 0.1; done
rm -rf "$1"
"""

log = logging.getLogger(__name__)


class EmbeddedKafka:
    """Hold a broker with its own ports and its own temporary folder.

    `stop()` and `start()` keep data and port, so a test can take the broker away and bring it back; `close()` ends it
    and removes the folder. `settings` are further broker properties.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._settings = dict(settings or {})
        self._folder: Path | None = None
        self._port = 0
        self._broker: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> EmbeddedKafka:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def servers(self) -> str:
        """Return `host:port` for clients; the same after a restart."""
        if self._folder is None:
            raise StartError("the embedded Kafka has no address before its start: use it in a `with` block")
        return f"{HOST}:{self._port}"

    @property
    def running(self) -> bool:
        """Say whether the broker's process lives."""
        return self._broker is not None and self._broker.poll() is None

    def start(self) -> None:
        """Start the broker, or start it again on the same port with the same data; return when it answers."""
        if self.running:
            return
        self._halt()
        try:
            folder = self._folder or self._prepare()
            self._launch(folder)
            self._await_answer(folder)
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Shut the broker down in order; its data stays."""
        if self._broker is not None and self.running:
            self._broker.terminate()
            try:
                self._broker.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                log.warning("the embedded Kafka did not stop within %s s and is killed", STOP_SECONDS)
        self._halt()

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as a power cut would; its data stays."""
        self._halt()

    def close(self) -> None:
        """End the broker and remove its folder; its data does not matter any more, so it is not shut down in order."""
        self._halt()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        atexit.unregister(self.close)

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and return when it can be used; raise KafkaException when it exists already."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        admin.create_topics([wanted])[name].result(timeout=30)
        deadline = time.monotonic() + 30
        while len(admin.list_topics(name, timeout=10).topics[name].partitions) < partitions:
            if time.monotonic() > deadline:
                raise StartError(f"topic {name} was created, but its partitions do not appear: see {self._folder}")
            time.sleep(0.02)

    def _prepare(self) -> Path:
        """Choose ports and a folder, and format the storage as Kafka demands before the first start."""
        self._folder = folder = Path(tempfile.mkdtemp(prefix="router-kafka-"))
        atexit.register(self.close)
        self._port, controller = free_ports(2)
        text = _PROPERTIES.format(
            host=HOST, broker=self._port, controller=controller, data=folder / "data", largest=LARGEST_MESSAGE
        )
        further = "".join(f"{key}={value}\n" for key, value in self._settings.items())
        (folder / "server.properties").write_text(text + further)
        cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        # Compiled lightly: this process lives for a second.
        command = [*_java("-XX:TieredStopAtLevel=1"), "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}"]
        with (folder / "broker.log").open("wb") as output:
            command += ["-c", str(folder / "server.properties")]
            if subprocess.run(command, stdout=output, stderr=output, check=False).returncode != 0:
                raise StartError(f"the embedded Kafka could not format its storage:\n{_tail(folder)}")
        return folder

    def _launch(self, folder: Path) -> None:
        command = [*_java("-Xmx512m"), "kafka.Kafka", str(folder / "server.properties")]
        with (folder / "broker.log").open("ab") as output:
            # A session of its own, or Ctrl-C on the terminal would take the broker away from a stream that is ending.
            self._broker = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self._watchdog = subprocess.Popen(
            ["sh", "-c", WATCHDOG, str(self._broker.pid), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _await_answer(self, folder: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(self._port):
            if not self.running:
                raise StartError(f"the embedded Kafka ended at its start:\n{_tail(folder)}")
            if time.monotonic() > deadline:
                raise StartError(f"the embedded Kafka gave no answer for {START_SECONDS} s:\n{_tail(folder)}")
            time.sleep(0.05)

    def _halt(self) -> None:
        """Kill what still runs of broker and watchdog, the broker first: until then the watchdog is needed."""
        for process in (self._broker, self._watchdog):
            if process is not None:
                process.send_signal(signal.SIGKILL)
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()
        self._broker = self._watchdog = None


def _java(*options: str) -> list[str]:
    return [str(find_java()), *options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{kafka_jars()}/*"]


def free_ports(count: int) -> list[int]:
    """Pick ports below the range the kernel hands to clients.

    From inside that range a client that keeps trying to reach a stopped broker may be given the broker's own port,
    connect to itself, and so hold the port when the broker wants it back.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.randint(20_000, 32_000)
        with socket.socket() as probe:
            if port not in found and probe.connect_ex((HOST, port)) != 0:
                found.append(port)
    return found


def _answers(port: int) -> bool:
    """Say whether a broker is in service: the port is open and its metadata names a live broker."""
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) != 0:
            return False
    admin = AdminClient({"bootstrap.servers": f"{HOST}:{port}", "log_level": 0})
    try:
        return bool(admin.list_topics(timeout=10).brokers)
    except KafkaException:
        return False


def _tail(folder: Path, lines: int = 30) -> str:
    return "\n".join((folder / "broker.log").read_text(errors="replace").splitlines()[-lines:])
