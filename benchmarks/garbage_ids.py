"""Measure what ids that a registry does not have cost a batch: `python -m benchmarks.garbage_ids [ROUNDS]`.

One run reads batches of 2,000 records in turns: all of a known schema, one with an id of random bytes, a hundred with
such ids; once in a warm process, and once as the first batch of a process each. No id comes twice, since one that is
not found is not asked for again for a minute. Then the same with a registry that takes two seconds for each answer, and
once more within the minute with ids that it has refused.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

import click
import requests
import yaml
from confluent_kafka import Producer
from requests.adapters import HTTPAdapter

from router.config.loader import load_config
from router.config.models import Trigger
from router.engine.spark.session import build_session
from router.engine.stream import RunOptions, run
from router.registry import load_registry
from router_demo.kafka import EmbeddedKafka
from router_demo.registry import EmbeddedRegistry, subject_in
from router_schemas.registry_client import REQUESTS_AT_ONCE
from router_schemas.wire_format import pack_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from router.api.parts import BatchReport

RECORDS = 2_000
GARBAGE = (0, 1, 100)
BARS = {1: 1.1, 100: 1.2}
"""Times a batch without garbage that one with so many ids may take."""
WARMING = 5_000
NOT_FOUND = 404
ROUNDS = 8
FIRST_ROUNDS = 3
SLOW_SECONDS = 2.0
SLOW_BAR = 14.0
"""Seconds that a batch with 100 ids may take with the slow registry."""
ROWS_PER_BATCH = 1_981
"""With the router's tolerance of a hundredth, batches of 2,000."""
SCHEMA = json.dumps({"title": "Bet", "type": "object", "properties": {"game": {"type": "string"}}})


def main(rounds: int) -> None:
    """Print the seconds of batches, and how they compare with the bars."""
    with EmbeddedKafka() as kafka, EmbeddedRegistry() as registry, tempfile.TemporaryDirectory() as name:
        with subject_in(registry.url, "bets-value") as subject:
            known = subject.register("JSON", SCHEMA)
            new_ids = _random_ids()
            _warm(registry.url, new_ids)
            _measure(Path(name), kafka, registry.url, known, new_ids, rounds)


def _warm(url: str, ids: Iterator[int]) -> None:
    """Ask for ids, as others have for days: a registry's first hundreds of answers take a multiple of later ones."""
    with requests.Session() as session, ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
        session.mount(url, HTTPAdapter(pool_maxsize=REQUESTS_AT_ONCE))
        for answer in threads.map(lambda key: session.get(f"{url}/schemas/ids/{key}"), islice(ids, WARMING)):
            if answer.status_code != NOT_FOUND:
                raise SystemExit(f"{answer.url}: {answer.status_code}")


def _measure(folder: Path, kafka: EmbeddedKafka, url: str, known: int, new_ids: Iterator[int], rounds: int) -> None:
    # The first round makes tables and compiles code.
    blocks = [[next(new_ids) for _ in range(count)] for _ in range(rounds + 1) for count in GARBAGE]
    spark = build_session(_loaded(folder, kafka.servers, "quick", url).config)
    _fill(kafka, "quick", blocks, known)
    seconds = _batches(_loaded(folder, kafka.servers, "quick", url), spark)
    if len(seconds) != len(blocks):
        raise SystemExit(f"{len(seconds)} batches instead of {len(blocks)}")
    times = {count: seconds[len(GARBAGE) + place :: len(GARBAGE)] for place, count in enumerate(GARBAGE)}
    _print_times("", times)

    _measure_first(folder, kafka, url, known, new_ids)
    garbage = [next(new_ids) for _ in range(GARBAGE[-1])]
    with _slow(url) as slow_url:
        _fill(kafka, "slow", [[], garbage, garbage], known)
        _, first, again = _batches(_loaded(folder, kafka.servers, "slow", slow_url), spark)
    click.echo(
        f"registry of {SLOW_SECONDS:g} s: {len(garbage)} ids {first:.1f} s, bar {SLOW_BAR:g} s; again {again:.1f} s"
    )


def _measure_first(folder: Path, kafka: EmbeddedKafka, url: str, known: int, new_ids: Iterator[int]) -> None:
    """Print how long the first batch of a process takes, in turns."""
    times: dict[int, list[float]] = {count: [] for count in GARBAGE}
    for turn in range(FIRST_ROUNDS):
        for count in GARBAGE:
            topic = f"first_{turn}_{count}"
            _fill(kafka, topic, [[next(new_ids) for _ in range(count)]], known)
            asked = ["--first", str(folder), kafka.servers, topic, url]
            command = [sys.executable, "-m", "benchmarks.garbage_ids", *asked]
            times[count].append(float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.split()[-1]))
    _print_times("first batch, ", times)


def _print_times(which: str, times: dict[int, list[float]]) -> None:
    """Print the seconds of batches by how many ids are garbage, beside the bars."""
    without = statistics.median(times[0])
    for count, seconds in times.items():
        median = statistics.median(seconds)
        bar = f", bar {BARS[count]:g}" if count in BARS else ""
        spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
        click.echo(f"{which}{count:4d} random ids: {median:.2f} s ({spread}), {median / without:.2f} times{bar}")


def _print_first(folder: str, servers: str, topic: str, url: str) -> None:
    """Drain a topic in this process, and print the seconds of its only batch."""
    loaded = _loaded(Path(folder), servers, topic, url)
    (seconds,) = _batches(loaded, build_session(loaded.config))
    click.echo(f"{seconds}")


def _random_ids() -> Iterator[int]:
    random = Random(50)
    seen: set[int] = set()
    while True:
        number = random.randrange(10**6, 2**31)
        if number not in seen:
            seen.add(number)
            yield number


def _fill(kafka: EmbeddedKafka, topic: str, blocks: list[list[int]], known: int) -> None:
    """Write blocks of records, each with garbage ids in equal distances."""
    kafka.create_topic(topic)
    producer = Producer({"bootstrap.servers": kafka.servers})
    for ids in blocks:
        for number in range(RECORDS):
            schema_id = known
            if ids and number % (RECORDS // len(ids)) == 0:
                schema_id = ids[number // (RECORDS // len(ids))]
            producer.produce(topic, pack_value(schema_id, None, b'{"game": "uno"}'), partition=0)
        producer.flush()


def _loaded(folder: Path, servers: str, topic: str, url: str) -> Any:
    content = {
        "name": topic,
        "lake": str(folder / topic),
        "source": {"kafka": {"servers": servers, "topics": [topic], "rows_per_batch": ROWS_PER_BATCH}},
        "decode": {"json_schema": {"registry": url, "subjects": ["bets-value"]}},
        "bronze": "bronze.all",
        "dead_letters": "ops.dead_letters",
        "routes": [{"name": "all", "match": {"sql": "true"}, "sinks": [{"tables": {"table": "silver.{event.game}"}}]}],
        "spark": {"spark.master": "local[2]", "spark.ui.enabled": False},
    }
    return load_config(folder / f"{topic}.yaml", load_registry(), text=yaml.safe_dump(content))


def _batches(loaded: Any, spark: SparkSession) -> list[float]:
    """Drain a topic; return the seconds of each batch, without what Spark does between two."""
    seconds: list[float] = []

    def finished(report: BatchReport, _: int | None) -> None:
        seconds.append(sum(report.seconds.values()))

    run(loaded, load_registry(), spark, RunOptions(trigger=Trigger(once=True), finished=finished))
    return seconds


class _slow:  # noqa: N801 - used as a function
    """A registry that passes on what another one answers, seconds later."""

    def __init__(self, url: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                time.sleep(SLOW_SECONDS)
                try:
                    with urlopen(f"{url}{self.path}") as answer:
                        status, body = answer.status, answer.read()
                except HTTPError as error:
                    status, body = error.code, error.read()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--first"]:
        _print_first(*sys.argv[2:])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
