"""Measure what the size of bronze adds to a replay: `python -m benchmarks.replays [TURNS]`.

Ten records that a sink refused lie at random places of a bronze of 100 thousand and of one of ten million records, in
files of 25,000. `router replay --send` sends them again, in turns, in one Spark that is warm; the sink refuses none
then. Printed are the seconds of each, and how the medians compare with the bar.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import click
import pyarrow as pa
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

import router.cli

SIZES = (100_000, 10_000_000)
LETTERS = 10
PARTITIONS = 4
FILE = 25_000
TURNS = 5
BAR = 1.5
"""Times as long as a replay from the small bronze may one from the large take."""
CONFIGURATION = """
name: games
lake: {folder}/lake
source: {{files: {{path: {folder}/in, format: lines}}}}
decode: {{json: "game string, id bigint"}}
bronze: bronze.events
routes:
  - {{name: all, match: {{sql: "true"}}, sinks: [{{fickle: "{folder}/refuses"}}]}}
dead_letters: ops.dead
trigger: {{once: true}}
"""
PLUGIN = """
from pathlib import Path
from router import ApplyingSink, Outcome, hookimpl
from pyspark.sql import functions as F

class Fickle(ApplyingSink):
    main_option = "file"
    file: str
    def apply(self, events, batch):
        if Path(self.file).exists():
            return Outcome(0, events.withColumn("reason", F.lit("tired")))
        return Outcome(events.count())

@hookimpl
def router_sinks():
    return {"fickle": Fickle}
"""


def main(turns: int) -> None:
    """Print the seconds of each replay."""
    with tempfile.TemporaryDirectory() as name:
        lakes = {size: _lake(Path(name) / str(size), size) for size in SIZES}
        seconds: dict[int, list[float]] = {size: [] for size in SIZES}
        for turn in range(turns + 1):  # the first one warms
            for size, folder in lakes.items():
                _write_letters(folder, size, turn)
                began = time.monotonic()
                _router("replay", folder, "--send")
                seconds[size].append(time.monotonic() - began)
                left = DeltaTable(folder / "lake/ops/dead").to_pyarrow_table()
                assert left["replayed"].null_count == 0, "not all were sent"
        medians = {size: statistics.median(taken[1:]) for size, taken in seconds.items()}
        for size, taken in seconds.items():
            each = " ".join(f"{one:.2f}" for one in taken[1:])
            click.echo(f"{size:,} records in bronze: {medians[size]:.2f} s ({each})")
        ratio = medians[SIZES[-1]] / medians[SIZES[0]]
        click.echo(f"{ratio:.2f} times as long, of at most {BAR}")


def _lake(folder: Path, size: int) -> Path:
    """Return the folder of a lake whose bronze has so many records, after a run that has made its tables."""
    (folder / "in").mkdir(parents=True)
    (folder / "refuses").touch()
    (folder / "games.yaml").write_text(CONFIGURATION.format(folder=folder))
    (folder / "fickle.py").write_text(PLUGIN)
    (folder / "in" / "events.json").write_text('{"game": "uno", "id": 1}\n' * LETTERS)
    _router("run", folder)
    (folder / "refuses").unlink()
    bronze = folder / "lake/bronze/events"
    row = DeltaTable(bronze).to_pyarrow_table().slice(0, 1)
    block = pa.concat_tables([row] * FILE).combine_chunks()
    for number in range(size // FILE):
        first = number // PARTITIONS * FILE
        offsets = pa.array(range(first, first + FILE), pa.int64())
        write_deltalake(bronze, _at(block, [number % PARTITIONS] * FILE, offsets), mode="append")
    return folder


def _write_letters(folder: Path, size: int, seed: int) -> None:
    """Put ten dead letters at random places in place of those that are there."""
    path = folder / "lake/ops/dead"
    letters = DeltaTable(path).to_pyarrow_table()
    drawn = random.Random(seed)
    places = drawn.sample(range(size), LETTERS)
    partitions = [place % PARTITIONS for place in places]
    letters = _at(letters, partitions, pa.array([place // PARTITIONS for place in places], pa.int64()))
    if "replayed" in letters.column_names:
        index = letters.column_names.index("replayed")
        letters = letters.set_column(index, letters.schema.field(index), pa.nulls(LETTERS, letters.schema.types[index]))
    write_deltalake(path, letters, mode="overwrite")


def _at(rows: pa.Table, partitions: list[int], offsets: pa.Array) -> pa.Table:
    """Return records with other places."""
    columns = {
        "topic": pa.array(["events"] * len(rows)),
        "partition": pa.array(partitions, pa.int32()),
        "offset": offsets,
    }
    for name, column in columns.items():
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def _router(command: str, folder: Path, *options: str) -> None:
    """Run a command of the router in this process, whose Spark goes on."""
    words = [command, str(folder / "games.yaml"), "--plugin", str(folder / "fickle.py"), *options]
    result = CliRunner().invoke(router.cli.commands, words, prog_name="router")
    if result.exit_code:
        raise SystemExit(f"router {' '.join(words)}: exit code {result.exit_code}\n{result.output}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TURNS)
