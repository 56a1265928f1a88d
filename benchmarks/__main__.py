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
    arguments = _parser().parse_args(words)
    console = Console(width=None if sys.stdout.isatty() else 150)
    if arguments.render:
        results = Results.load(arguments.render)
        folder = arguments.out or arguments.render.parent
        report(results, _chosen_measurements(arguments, results.scale), console, folder)
        return 0
    scale = _scale(arguments)
    chosen = _chosen_measurements(arguments, scale)
    results = _load_results(arguments, scale)
    cells = _chosen_cells(chosen, scale, arguments.cells)
    missing = [cell for cell in cells if not results.complete(cell)]
    if arguments.list:
        marked = [f"{'  ' if cell in missing else '= '}{cell.key} x{cell.repeat}" for cell in cells]
        console.print("\n".join(marked))
        return 0
    if missing:
        # As Ctrl-C: it unwinds the `with` blocks, which end the broker and the running process.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            _measure(missing, results, console, arguments)
        except KeyboardInterrupt:
            console.print(f"interrupted; go on with: {results.command} --resume", markup=False)
            return 130
    report(results, _shown_measurements(chosen, results), console, results.path.parent)
    return int(any(not results.complete(cell) for cell in cells))


def _measure(cells: list[Cell], results: Results, console: Console, arguments: argparse.Namespace) -> None:
    """Measure the cells one after the other, those of the same turns together; save and print each result."""
    timeout = arguments.timeout or results.scale.timeout
    logs = results.path.parent / "failed"
    done = 0
    with EmbeddedKafka() as broker:
        topics = Topics(broker)
        for together in in_turns(cells):
            began = time.monotonic()
            for result in measure(together, topics, timeout, logs, arguments.date):
                results.add(result)
                done += 1
                took = time.monotonic() - began
                console.print(f"[{done}/{len(cells)}] {_line(result)} ({took:.0f} s)", markup=False)


def _line(result: CellResult) -> str:
    text = f"{result.cell.key}: {figure(result)}"
    if result.problem:
        text += f": {result.problem}"
    else:
        text += f", {count(events_per_second(result))} events/s"
    if result.noisy:
        text += f", others used {result.foreign_cores:.2f} cores"
    return text


def _scale(arguments: argparse.Namespace) -> Scale:
    scale = FULL if arguments.full else SHORT
    return replace(scale, events=arguments.events or scale.events, repeat=arguments.repeat or scale.repeat)


def _chosen_measurements(arguments: argparse.Namespace, scale: Scale) -> list[Measurement]:
    """Return the measurements that the command line names; without names those of the scale."""
    every = measurements()
    if not arguments.only:
        return [measurement for measurement in every.values() if scale.full or measurement.short]
    unknown = [name for name in arguments.only if name not in every]
    if unknown:
        raise SystemExit(f"no measurement {', '.join(unknown)}: there are {', '.join(every)}")
    return [measurement for name, measurement in every.items() if name in arguments.only]


def _chosen_cells(chosen: list[Measurement], scale: Scale, patterns: list[str]) -> list[Cell]:
    """Return the cells of measurements, each once; with patterns only those whose key matches one."""
    cells: list[Cell] = []
    for measurement in chosen:
        cells += measurement.cells(scale)
    once = distinct(cells)
    if not patterns:
        return once
    return [cell for cell in once if any(fnmatch(cell.key, pattern) for pattern in patterns)]


def _shown_measurements(chosen: list[Measurement], results: Results) -> list[Measurement]:
    """Return the chosen measurements, and those whose cells are all there, from earlier sessions too."""
    shown = []
    for measurement in measurements().values():
        is_measured = all(results.of(cell) for cell in measurement.cells(results.scale))
        if measurement in chosen or is_measured:
            shown.append(measurement)
    return shown


def _load_results(arguments: argparse.Namespace, scale: Scale) -> Results:
    """Return empty results for this session; with --resume those of the file that need not be measured again."""
    folder = arguments.out or FOLDER / ("full" if scale.full else "short")
    path = folder / "results.json"
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    results = Results(path, scale, command)
    if not arguments.resume or not path.exists():
        return results
    here = Label.now(arguments.date)
    console = Console(stderr=True)
    for key, result in Results.load(path).cells.items():
        reason = _reason_to_repeat(result, arguments.redo, here)
        if reason:
            console.print(f"measured again: {key}: {reason}", markup=False, soft_wrap=True)
        else:
            results.cells[key] = result
    return results


def _reason_to_repeat(result: CellResult, redo: str, here: Label) -> str:
    """Return why a cell is not taken over by --resume, or ""."""
    if not result.label.same_machine(here):
        return f"it is of another machine ({result.label.machine_text()}); this one is {here.machine_text()}"
    if redo == "noisy" and result.noisy:
        return f"others used {result.foreign_cores:.2f} cores"
    if redo and redo != "noisy" and fnmatch(result.cell.key, redo):
        return f"--redo {redo}"
    return ""


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
