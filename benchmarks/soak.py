"""Measure what a lake grows to: `python -m benchmarks.soak [MINUTES]`.

A stream of 300 events a second goes for hours into bronze, a table for each game, a table by key, and a view that is
refreshed every five seconds. Printed are the bytes of each table's newest version and those of its folder.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import yaml
from confluent_kafka import Producer
from deltalake import DeltaTable

from router_demo.kafka import EmbeddedKafka

if TYPE_CHECKING:
    from collections.abc import Iterator

MINUTES = 120
EVENTS_PER_SECOND = 300
GAMES = 7
PLAYERS = 10_000
REPORT_SECONDS = 600
BAR = 5.0
"""Times the size of its tables that a lake may have at the end."""


def main(minutes: float) -> None:
    """Print the sizes every ten minutes, and how the last ones compare with the bar."""
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kafka.create_topic("events")
        (folder / "soak.yaml").write_text(yaml.safe_dump(_configuration(folder, kafka.servers)))
        with (folder / "log").open("wb") as log:
            stream = subprocess.Popen(
                [sys.executable, "-m", "router", "run", str(folder / "soak.yaml")], stdout=log, stderr=log
            )
            try:
                _feed(stream, kafka.servers, folder, minutes * 60)
            finally:
                stream.terminate()
                code = stream.wait()
        click.echo(f"the stream ended with {code}")
        _report(folder / "lake", minutes * 60, last=True)


def _configuration(folder: Path, servers: str) -> dict[str, object]:
    everything = {"sql": "true"}
    return {
        "name": "soak",
        "lake": str(folder / "lake"),
        "source": {"kafka": {"servers": servers, "topics": ["events"]}},
        "decode": {"json": "game string, player string, amount double, ts timestamp"},
        "bronze": "bronze.events",
        "dead_letters": "ops.dead_letters",
        "routes": [
            {"name": "games", "match": everything, "sinks": [{"tables": "silver.{event.game}"}]},
            {
                "name": "players",
                "match": everything,
                "select": ["event.player", "event.game", "event.amount", "event.ts"],
                "sinks": [{"upsert": {"table": "gold.players", "keys": ["player"], "newest_by": "event.ts"}}],
            },
        ],
        "views": [
            {
                "name": "totals",
                "from": {"route": "games"},
                "every": "5 s",
                "into": "gold.totals",
                "sql": "SELECT game, player, count(*) AS bets, sum(amount) AS amount FROM source GROUP BY game, player",
            }
        ],
    }


def _feed(stream: subprocess.Popen[bytes], servers: str, folder: Path, seconds: float) -> None:
    """Send events at a steady rate while the stream runs, and report meanwhile."""
    producer = Producer({"bootstrap.servers": servers})
    rand = random.Random(50)
    begin = time.monotonic()
    sent = 0
    next_report = float(REPORT_SECONDS)
    while (passed := time.monotonic() - begin) < seconds:
        if stream.poll() is not None:
            raise SystemExit((folder / "log").read_text()[-2000:])
        while sent < passed * EVENTS_PER_SECOND:
            player = rand.randrange(PLAYERS)
            event = {
                "game": f"game_{player % GAMES}",
                "player": f"p-{player}",
                "amount": round(rand.expovariate(0.1), 2),
                "ts": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            producer.produce("events", json.dumps(event))
            sent += 1
        producer.poll(0)
        if passed > next_report:
            _report(folder / "lake", passed)
            next_report += REPORT_SECONDS
        time.sleep(0.1)
    producer.flush()


def _report(lake: Path, passed: float, *, last: bool = False) -> None:
    newest_bytes = folder_bytes = log_bytes = files = 0
    for table in _tables(lake):
        # The stream may delete files meanwhile.
        sizes = {path: _size(path) for path in table.rglob("*") if path.is_file()}
        logs = sum(size for path, size in sizes.items() if "_delta_log" in path.parts)
        newest = sum(DeltaTable(str(table)).get_add_actions().column("size_bytes").to_pylist())
        name = f"{table.parent.name}.{table.name}"
        data = sum(sizes.values()) - logs
        click.echo(
            f"  {name:16} newest {newest / 1e6:8.2f} MB, data {data / 1e6:8.2f} MB "
            f"({data / max(newest, 1):5.1f} times), log {logs / 1e6:7.2f} MB, {len(sizes)} files"
        )
        newest_bytes += newest
        folder_bytes += sum(sizes.values())
        log_bytes += logs
        files += len(sizes)
    bar = f" (bar {BAR:g})" if last else ""
    click.echo(
        f"after {passed / 60:.0f} min: {newest_bytes / 1e6:.1f} MB in tables, {folder_bytes / 1e6:.1f} MB on disk, "
        f"{folder_bytes / max(newest_bytes, 1):.1f} times{bar}; logs {log_bytes / 1e6:.1f} MB, {files} files"
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _tables(lake: Path) -> Iterator[Path]:
    for log in sorted(lake.glob("*/*/_delta_log")):
        yield log.parent


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else MINUTES)
