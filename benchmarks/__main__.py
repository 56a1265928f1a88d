"""Run the benchmark: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks.cells import FULL, SHORT, Cell, Scale, distinct, in_turns
from benchmarks.discovery import measurements
from benchmarks.format import count, events_per_second, figure
from benchmarks.harness import measure
from benchmarks.report import report
from benchmarks.results import CellResult, Results
from benchmarks.topics import Topics
from router_bench.machine import Label
from router_demo.kafka import EmbeddedKafka

if TYPE_CHECKING:
    from benchmarks.measurements import Measurement

FOLDER = Path(__file__).parent / "results"


def main(words: list[str]) -> int:
    """Do what the command line says; return 1 when a cell has no valid figure, 130 when interrupted."""
    given = _parser().parse_args(words)
    console = Console(width=None if sys.stdout.isatty() else 150)
    if given.render:
        results = Results.load(given.render)
        report(results, _asked(given, results.scale), console, given.out or given.render.parent)
        return 0
    scale = _scale(given)
    asked = _asked(given, scale)
    results = _results(given, scale)
    cells = [cell for cell in distinct([c for item in asked for c in item.cells(scale)]) if _named(cell, given.cells)]
    missing = [cell for cell in cells if not results.complete(cell)]
    if given.list:
        console.print("\n".join(f"{'  ' if cell in missing else '= '}{cell.key} x{cell.repeat}" for cell in cells))
        return 0
    if missing and not _measured(missing, results, console, given):
        return 130
    report(results, _shown(asked, results), console, results.path.parent)
    return int(any(not results.complete(cell) for cell in cells))


def _measured(cells: list[Cell], results: Results, console: Console, given: argparse.Namespace) -> bool:
    # As Ctrl-C: it unwinds the `with` blocks, which end the broker and the running process.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _measure(cells, results, console, given)
    except KeyboardInterrupt:
        console.print(f"interrupted; go on with: {results.command} --resume", markup=False)
        return False
    return True


def _measure(cells: list[Cell], results: Results, console: Console, given: argparse.Namespace) -> None:
    timeout, logs, done = given.timeout or results.scale.timeout, results.path.parent / "failed", 0
    with EmbeddedKafka() as broker:
        topics = Topics(broker)
        for together in in_turns(cells):
            began = time.monotonic()
            for result in measure(together, topics, timeout, logs, given.date):
                results.add(result)
                done += 1
                took = time.monotonic() - began
                console.print(f"[{done}/{len(cells)}] {_line(result)} ({took:.0f} s)", markup=False)


def _line(result: CellResult) -> str:
    speed = f": {result.problem}" if result.problem else f", {count(events_per_second(result))} events/s"
    noise = f", others used {result.foreign_cores:.2f} cores" if result.noisy else ""
    return f"{result.cell.key}: {figure(result)}{speed}{noise}"


def _scale(given: argparse.Namespace) -> Scale:
    scale = FULL if given.full else SHORT
    return replace(scale, events=given.events or scale.events, repeat=given.repeat or scale.repeat)


def _asked(given: argparse.Namespace, scale: Scale) -> list[Measurement]:
    every = measurements()
    if not given.only:
        return [item for item in every.values() if scale.full or item.short]
    unknown = [name for name in given.only if name not in every]
    if unknown:
        raise SystemExit(f"no measurement {', '.join(unknown)}: there are {', '.join(every)}")
    return [item for name, item in every.items() if name in given.only]


def _shown(asked: list[Measurement], results: Results) -> list[Measurement]:
    """Return what was asked now, and what is answered by the cells there are: those of sessions before too."""
    measured = {item.name for item in measurements().values() if all(map(results.of, item.cells(results.scale)))}
    return [item for item in measurements().values() if item in asked or item.name in measured]


def _results(given: argparse.Namespace, scale: Scale) -> Results:
    path = (given.out or FOLDER / ("full" if scale.full else "short")) / "results.json"
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    results = Results(path, scale, command)
    if given.resume and path.exists():
        here, console = Label.now(given.date), Console(stderr=True)
        for key, result in Results.load(path).cells.items():
            why = _again(result, given.redo, here)
            if why:
                console.print(f"measured again: {key}: {why}", markup=False, soft_wrap=True)
            else:
                results.cells[key] = result
    return results


def _named(cell: Cell, patterns: list[str]) -> bool:
    return not patterns or any(fnmatch(cell.key, pattern) for pattern in patterns)


def _again(result: CellResult, redo: str, here: Label) -> str:
    """Return why a cell is not taken over by --resume, or ""."""
    if not result.label.same_machine(here):
        return f"it is of another machine ({result.label.machine_text()}); this one is {here.machine_text()}"
    if redo == "noisy":
        return f"others used {result.foreign_cores:.2f} cores" if result.noisy else ""
    return f"--redo {redo}" if redo and fnmatch(result.cell.key, redo) else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add(
        "--full",
        action="store_true",
        help="everything, about two hours; without it a short version, twenty minutes",
    )
    add("--only", type=lambda text: text.split(","), metavar="NAME[,NAME]", help=f"of {', '.join(measurements())}")
    add(
        "--cells", action="append", default=[], metavar="PATTERN", help="of those only what --list calls so; repeatable"
    )
    add("--events", type=int, help=f"events per topic (short {SHORT.events}, full {FULL.events})")
    add("--repeat", type=int, help=f"runs per figure, which is their median (short {SHORT.repeat}, full {FULL.repeat})")
    add("--out", type=Path, help="folder of results.json, results.md and plots (benchmarks/results/short or full)")
    add(
        "--resume",
        action="store_true",
        help="keep the valid cells of results.json that are of this machine, measure the others",
    )
    add("--redo", default="", metavar="PATTERN", help="with --resume: measure these cells again; or `noisy`")
    add("--timeout", type=float, help="seconds a process may take (short 300, full 5400)")
    add("--date", default=f"{datetime.now().astimezone():%Y-%m-%d}", help="the date written into the cells")
    add("--list", action="store_true", help="name the cells and end; = marks those that --resume would keep")
    add("--render", type=Path, metavar="results.json", help="make tables and plots again, measure nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
