"""`router bench`: measure a configuration against the partitions of its topic."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from router.cli import config_argument, plugin_option
from router.config.loader import load
from router.registry import load_registry

if TYPE_CHECKING:
    from router.bench.payload import Payload
    from router.bench.sweep import Cell, Sweep
    from router.config.loader import Loaded

UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


def _count(ctx: click.Context, param: click.Parameter, text: str) -> int:
    """Return a number of records: 500000, 500k, 1M."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text)
    number = int(float(found[1]) * UNITS[found[2].lower()]) if found else 0
    if number < 1:
        raise click.BadParameter(f"{text!r} is no number of records: 500000, 500k, 1M")
    return number


def _counts(ctx: click.Context, param: click.Parameter, text: str) -> tuple[int, ...]:
    """Return numbers of partitions, each once, in order: 1,2,4,8,16."""
    words = text.split(",")
    if not all(word.strip().isdigit() and int(word) for word in words):
        raise click.BadParameter(f"{text!r} are no numbers of partitions: 1,2,4,8,16")
    return tuple(sorted({int(word) for word in words}))


@click.command(short_help="Measure a configuration against the partitions of its topic.")
@config_argument
@click.option("--partitions", callback=_counts, default="1,2,4,8,16", show_default=True, help="Of the topic.")
@click.option("--rows", callback=_count, default="1M", show_default=True, help="Records of a topic: one batch.")
@click.option("--tables", type=click.IntRange(1), default=7, show_default=True, help="Games that the simulator plays.")
@click.option(
    "--sample",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Records to fill the topics with, repeated, in place of the simulator's.",
)
@click.option(
    "--framing",
    type=click.Choice(["lines", "length"]),
    default="lines",
    help="How the sample holds records: one a line, or each after its length (4 bytes, big-endian).",
)
@click.option("--key-separator", metavar="TEXT", help="In a line of the sample, what is before it is the key.")
@click.option("--format", "form", type=click.Choice(["json", "avro", "protobuf"]), default="json", help="Simulator's.")
@click.option("--servers", help="A broker to make the topics in and delete them from; default: an embedded Kafka.")
@click.option("--producer", multiple=True, metavar="KEY=VALUE", help="Setting of librdkafka for --servers; repeatable.")
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True, help="Runs that make a median.")
@click.option("--cold", is_flag=True, help="A fresh process for every run, timed whole; default: one warm session.")
@click.option("--send", is_flag=True, help="Also measure sinks that send to somebody (rest, kafka): they really do.")
@click.option("--timeout", type=float, default=3600, show_default=True, help="Seconds for a number of partitions.")
@click.option("--master", help="Spark master; default: all cores of this machine.")
@click.option(
    "--lake", metavar="URI", help="Where lakes are made, for executors elsewhere; default: a temporary folder."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("router-bench"),
    show_default=True,
    help="Folder of NAME.json and NAME.png.",
)
@plugin_option
def bench(file: Path, plugin_files: tuple[Path, ...], out: Path, **given: Any) -> None:
    """Measure how fast the configuration FILE takes its events, for several numbers of partitions.

    Topics are filled with the simulator's events or those of a sample; the configuration drains each of them once per
    run into a fresh lake in a temporary folder. Its own lake, checkpoint and topics are not touched. Prints a table
    and writes NAME.json and NAME.png. Exit code 1: a number of partitions has no figure.
    """
    try:
        from router.bench import sweep as bench_sweep
    except ModuleNotFoundError as error:
        install = "pip install 'spark-event-router[bench]'"
        raise click.ClickException(f"`bench` needs the module {error.name}: {install}") from error
    loaded = bench_sweep.checked(load(file, load_registry(plugin_files)))
    import_module("router.engine.spark.session").ready_to_start(loaded.config)  # each run is a process of its own
    sweep = bench_sweep.Sweep(
        loaded,
        plugin_files,
        _payload(loaded, given),
        given["partitions"],
        given["rows"],
        given["repeat"],
        given["cold"],
        given["send"],
        given["servers"],
        _settings(given["producer"]),
        given["timeout"],
        given["master"],
        given["lake"],
    )
    if any(cell.problem for cell in _measured(sweep, out)):
        raise SystemExit(1)


def _measured(sweep: Sweep, out: Path) -> list[Cell]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from router.bench import sweep as bench_sweep

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        cells = bench_sweep.measure(sweep, progress)
    Console().print(bench_sweep.shown(sweep, cells))
    for remark in bench_sweep.remarks(sweep, cells):
        click.echo(remark, err=True)
    click.echo(f"wrote {bench_sweep.written(sweep, cells, out)}")
    _draw(sweep, cells, out)
    return cells


def _draw(sweep: Sweep, cells: list[Cell], out: Path) -> None:
    from router.bench import sweep as bench_sweep

    if not any(cell.events_per_second for cell in cells):
        return
    try:
        from router.bench.chart import draw
    except ModuleNotFoundError as error:
        click.echo(f"no chart: {error.name} is not installed (pip install 'spark-event-router[bench]')")
        return
    file = out / f"{sweep.loaded.config.name}.png"
    draw(bench_sweep.chart(sweep, cells), file)
    click.echo(f"wrote {file}")


def _payload(loaded: Loaded, given: dict[str, Any]) -> Payload:
    from router.bench import payload

    if given["sample"]:
        return payload.sample(given["sample"], given["framing"], given["key_separator"])
    # A decoder with a registry says where the simulator has to register its schemas, and under which subject.
    registry, subjects = (getattr(loaded.config.decode, name, None) for name in ("registry", "subjects"))
    subject = next(iter(subjects or ()), f"{loaded.config.name}-bench-value")
    return payload.simulated(given["tables"], given["form"], str(registry) if registry else None, subject)


def _settings(pairs: tuple[str, ...]) -> dict[str, str]:
    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is no KEY=VALUE", param_hint="--producer")
    return dict(pair.split("=", 1) for pair in pairs)
