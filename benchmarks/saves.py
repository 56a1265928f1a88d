"""Measure how long a saved rule takes to be seen: `python -m benchmarks.saves [TURNS]`.

`router preview` of a thousand records of a file, in turns: started anew after the rule was changed, and with `--watch`,
from the save to the last line. Printed are the seconds of each turn, and how the median of the warm ones compares with
the bar.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

RECORDS = 1000
TURNS = 5
BAR_SECONDS = 2.0
CONFIGURATION = """\
name: games
lake: ./lake
source: {files: {path: ./in}}
decode: {json: "game string, gamer_id string, amount double"}
routes:
  - {name: all, match: {sql: "event.game IS NOT NULL"}, sinks: [{tables: "silver.{event.game}"}]}
  - {name: wins, match: {sql: "event.amount > NUMBER"}, sinks: [{delta: gold.wins}]}
dead_letters: ops.dead
"""
PREVIEW = [sys.executable, "-m", "router", "preview", "games.yaml", "--samples", "0"]


def main(turns: int) -> None:
    """Print the seconds of a changed rule, cold and warm, and the bar."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        events = [{"game": f"g{i % 7}", "gamer_id": f"p{i % 50}", "amount": i / 10} for i in range(RECORDS)]
        (folder / "in").mkdir()
        (folder / "in" / "events.json").write_text("\n".join(map(json.dumps, events)))
        _save(folder, -1)
        cold: list[float] = []
        warm: list[float] = []
        with subprocess.Popen([*PREVIEW, "--watch"], cwd=folder, stdout=subprocess.PIPE, text=True) as watched:
            _read_rows(watched)
            for turn in range(turns):
                # With an unchanged file, so that the warm one has nothing to do meanwhile.
                cold.append(_seconds_of_start(folder))
                begin = time.perf_counter()
                wanted = _save(folder, turn)
                while _read_rows(watched) != wanted:
                    pass
                warm.append(time.perf_counter() - begin)
                click.echo(f"turn {turn + 1}: cold {cold[-1]:.1f} s, after a save {warm[-1]:.1f} s")
            watched.terminate()
    of_cold, of_warm = statistics.median(cold), statistics.median(warm)
    click.echo(f"medians: cold {of_cold:.1f} s, after a save {of_warm:.1f} s (bar {BAR_SECONDS:g})")


def _save(folder: Path, number: int) -> int:
    """Save the configuration with another rule; return how many records it holds on."""
    (folder / "games.yaml").write_text(CONFIGURATION.replace("NUMBER", str(number)))
    return sum(i / 10 > number for i in range(RECORDS))


def _seconds_of_start(folder: Path) -> float:
    begin = time.perf_counter()
    subprocess.run(PREVIEW, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def _read_rows(process: subprocess.Popen[str]) -> int:
    """Read a preview up to its last table; return the rows of the first one, gold.wins."""
    rows = 0
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("gold.wins"):
            rows = int(line.split()[1].replace(",", ""))
        if line.startswith("silver.g6"):
            return rows
    raise SystemExit("the preview has ended")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TURNS)
