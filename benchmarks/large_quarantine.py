"""Measure what millions of quarantined rows cost a driver: `python -m benchmarks.large_quarantine ROWS`.

A stream quarantines a thousand rows. Their table of the quarantine then gets these rows again until it has ROWS. The
commands of a user follow, each a process of its own whose peak memory is noted: list, approve, run (which releases),
and a run that has nothing to release, to compare.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import psutil
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from router_bench.machine import MB, Sampler

LOOK_SECONDS = 0.05
BLOCK = 1_000
ROWS_PER_FILE = 1_000_000
CONFIGURATION = """
name: games
lake: {folder}/lake
source: {{files: {{path: {folder}/in, format: lines}}}}
decode: {{json: {{schema: "game string, id bigint, amount double, {column}"}}}}
routes:
  - {{name: all, match: {{sql: "true"}}, sinks: [{{delta: {{table: silver.games, evolution: quarantine}}}}]}}
dead_letters: ops.dead_letters
"""


def main(rows: int) -> None:
    """Print seconds and peak memory of each command."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _quarantine_a_block(folder)
        quarantine = folder / "lake" / "quarantine" / "games__all__delta"
        _repeat_block(quarantine, rows)
        click.echo(f"{DeltaTable(quarantine).count():,} rows in the quarantine")
        wide = str(folder / "wide.yaml")
        _measure("list", "quarantine", "list", wide)
        _measure("approve", "quarantine", "approve", wide)
        _measure("run, releases them", "run", wide, "--once")
        _measure("run, releases nothing", "run", wide, "--once")
        click.echo(f"{DeltaTable(folder / 'lake/silver/games').count():,} rows in the table")


def _quarantine_a_block(folder: Path) -> None:
    """Let a stream make its table, and then quarantine rows that have a new column."""
    (folder / "in").mkdir()
    lines = []
    for number in range(BLOCK):
        event = {"game": "uno", "id": number, "amount": number / 7, "note": f"event {number}", "bonus": 1.5}
        lines.append(json.dumps(event) + "\n")
    # The same events twice: the second schema reads a column more of them, which the table lacks.
    for name, column in (("narrow", "note string"), ("wide", "note string, bonus double")):
        configuration = folder / f"{name}.yaml"
        configuration.write_text(CONFIGURATION.format(folder=folder, column=column))
        (folder / "in" / f"{name}.json").write_text("".join(lines))
        _measure(f"run {name}", "run", str(configuration), "--once")


def _repeat_block(quarantine: Path, rows: int) -> None:
    block = DeltaTable(quarantine).to_pyarrow_table()
    assert block.num_rows == BLOCK, f"{block.num_rows} rows are quarantined"
    file = pa.concat_tables([block] * (ROWS_PER_FILE // BLOCK)).combine_chunks()
    for _ in range(rows // ROWS_PER_FILE):
        write_deltalake(quarantine, file, mode="append")


def _measure(label: str, *words: str) -> None:
    """Run a command of the router; print how long it took, and the peak memory of its Python driver and its JVM."""
    began = time.monotonic()
    process = psutil.Popen([sys.executable, "-m", "router", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    peaks = {"python": 0, "java": 0}

    # The command is the driver; its JVM is a child, and Spark's Python workers are not counted.
    def look() -> None:
        peaks["python"] = max(peaks["python"], process.memory_info().rss)
        for child in process.children(recursive=True):
            if child.name() == "java":
                peaks["java"] = max(peaks["java"], child.memory_info().rss)

    with Sampler(look, LOOK_SECONDS):
        output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{label}: exit code {process.returncode}\n{output.decode()}")
    seconds = time.monotonic() - began
    python_mb = peaks["python"] / MB
    java_mb = peaks["java"] / MB
    click.echo(f"{label}: {seconds:.1f} s, Python driver {python_mb:.0f} MB, JVM {java_mb:.0f} MB")


if __name__ == "__main__":
    main(int(sys.argv[1].replace("_", "")))
