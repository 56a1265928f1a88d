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

from router_bench.machine import Sampler

MB = 1 << 20
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
        _measure("approve", "approve", wide)
        _measure("run, releases them", "run", wide, "--once")
        _measure("run, releases nothing", "run", wide, "--once")
        click.echo(f"{DeltaTable(folder / 'lake/silver/games').count():,} rows in the table")


def _quarantine_a_block(folder: Path) -> None:
    """Let a stream make its table, and then quarantine rows that have a new column."""
    (folder / "in").mkdir()
    for column, file in (("note string", "narrow"), ("note string, bonus double", "wide")):
        (folder / f"{file}.yaml").write_text(CONFIGURATION.format(folder=folder, column=column))
        events = [{"game": "uno", "id": n, "amount": n / 7, "note": f"event {n}", "bonus": 1.5} for n in range(BLOCK)]
        (folder / "in" / f"{file}.json").write_text("".join(json.dumps(event) + "\n" for event in events))
        _measure(f"run {file}", "run", str(folder / f"{file}.yaml"), "--once")


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
    python, java = (peaks[name] / MB for name in ("python", "java"))
    click.echo(f"{label}: {seconds:.1f} s, Python driver {python:.0f} MB, JVM {java:.0f} MB")


if __name__ == "__main__":
    main(int(sys.argv[1].replace("_", "")))
