"""Measure what a lake grows to: `python -m benchmarks.soak [MINUTES]`.

A stream of 300 events a second of the demo's simulator goes for hours into bronze, a table for each game, a table by
key, and a view that is refreshed every five seconds. Printed are the bytes of each table's newest version and of its
folder.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import yaml
from deltalake import DeltaTable

from router_demo.kafka import EmbeddedKafka

if TYPE_CHECKING:
    from collections.abc import Iterator

MINUTES = 120
EVENTS_PER_SECOND = 300
WAIT_SECONDS = 10
SCHEMA = Path(__file__).parent.parent / "routes" / "games_json.schema.json"
REPORT_SECONDS = 600
BAR = 5.0
"""Times the size of its tables that a lake may have at the end."""


def main(minutes: float) -> None:
    """Print the sizes every ten minutes, and how the last ones compare with the bar."""
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as name, ExitStack() as processes:
        folder = Path(name)
        file = folder / "soak.yaml"
        file.write_text(yaml.safe_dump(_configuration(folder, kafka.servers)))
        options = f"--rate {EVENTS_PER_SECOND} --seconds {minutes * 60} --servers {kafka.servers} --topic events"
        events = processes.enter_context(_running(folder, "router_demo.simulate", *options.split()))
        time.sleep(WAIT_SECONDS)  # for the topic
        stream = processes.enter_context(_running(folder, "router", "run", str(file)))
        begin = time.monotonic()
        next_report = float(REPORT_SECONDS)
        while events.poll() is None:
            if stream.poll() is not None:
                events.terminate()
                raise SystemExit((folder / "router.log").read_text()[-2000:])
            time.sleep(1)
            if (passed := time.monotonic() - begin) > next_report:
                _report(folder / "lake", passed)
                next_report += REPORT_SECONDS
        stream.terminate()
        click.echo(f"the stream ended with {stream.wait()}")
        _report(folder / "lake", minutes * 60, last=True)


@contextmanager
def _running(folder: Path, module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module, which ends with the block; its output goes to a file."""
    with (folder / f"{module}.log").open("wb") as log:
        called = [sys.executable, "-m", module, *arguments]
        with subprocess.Popen(called, stdout=log, stderr=log) as process:
            try:
                yield process
            finally:
                process.terminate()


def _configuration(folder: Path, servers: str) -> dict[str, object]:
    everything = {"sql": "event.game IS NOT NULL"}
    return {
        "name": "soak",
        "lake": str(folder / "lake"),
        "source": {"kafka": {"servers": servers, "topics": ["events"]}},
        "decode": {"json": {"schema_file": str(SCHEMA)}},
        "bronze": "bronze.events",
        "dead_letters": "ops.dead_letters",
        "routes": [
            {"name": "games", "match": everything, "sinks": [{"tables": "silver.{event.game}"}]},
            {
                "name": "players",
                "match": everything,
                "select": ["event.gamer_id", "event.game", "event.amount", "event.ts"],
                "sinks": [{"upsert": {"table": "gold.players", "keys": ["gamer_id"], "newest_by": "event.ts"}}],
            },
        ],
        "views": [
            {
                "name": "totals",
                "from": {"route": "games"},
                "every": "5 s",
                "into": "gold.totals",
                "sql": "SELECT table, gamer_id, count(*) AS events, sum(amount) AS amount, max(ts) AS last_ts "
                "FROM source GROUP BY table, gamer_id",
            }
        ],
    }


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
        f"{folder_bytes / max(newest_bytes, 1):.1f} times{bar}; of that logs {log_bytes / 1e6:.1f} MB, {files} files"
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the blocks end
    main(float(sys.argv[1]) if len(sys.argv) > 1 else MINUTES)
