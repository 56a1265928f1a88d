"""`router bench`: measure a configuration against the partitions of its topic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from router.cli import config_argument, existing_file, plugin_option
from router.cli.documents import json_option
from router.cli.values import parse_number, parse_pairs
from router.config.loader import load_config
from router.errors import StartError
from router.registry import load_registry
from router_bench.estimate import estimate_options, show_estimate

if TYPE_CHECKING:
    from router.config.loader import Loaded
    from router_bench.payload import Payload
    from router_bench.sweep import Cell, Sweep


GAMES = 7
"""Games that the simulator plays."""


def _parse_count(ctx: click.Context, param: click.Parameter, text: str) -> int:
    """Return a number of records: 500000, 500k, 1M."""
    number = int(parse_number(text) or 0)
    if number < 1:
        raise click.BadParameter(f"{text!r} is no number of records: 500000, 500k, 1M")
    return number


def _parse_counts(ctx: click.Context, param: click.Parameter, text: str) -> tuple[int, ...]:
    """Return numbers of partitions, each once, in order: 1,2,4,8,16."""
    words = text.split(",")
    if not all(word.strip().isdigit() and int(word) for word in words):
        raise click.BadParameter(f"{text!r} are no numbers of partitions: 1,2,4,8,16")
    return tuple(sorted({int(word) for word in words}))


@click.command()
@config_argument
@click.option("--partitions", callback=_parse_counts, default="1,2,4,8,16", show_default=True, help="Of the topic.")
@click.option("--rows", callback=_parse_count, default="1M", show_default=True, help="Records of a topic: one batch.")
@click.option(
    "--tables",
    type=click.IntRange(1),
    help="Games that the simulator plays (7), or tables that a batch touches (those of FILE).",
)
@click.option(
    "--sample",
    type=existing_file,
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
@click.option("--send", is_flag=True, help="Also measure sinks that send to others (rest, kafka): they really do.")
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
@estimate_options
@json_option
@plugin_option
def bench(
    file: Path,
    plugin_files: tuple[Path, ...],
    out: Path,
    tables: int | None,
    rate: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how fast the configuration FILE takes its events, for several numbers of partitions.

    Topics are filled with the simulator's events or those of a sample; the configuration drains each of them once per
    run into a fresh lake in a temporary folder. Its own lake, checkpoint and topics are not touched. Prints a table
    and writes NAME.json and NAME.png. Exit code 1: a number of partitions has no figure.

    With --estimate nothing is measured: printed is what FILE needs to take that many events and have them in their
    tables within --latency, by measured constants, right within about a quarter. That starts no Spark.
    """
    if rate is not None:
        show_estimate(load_config(file, load_registry(plugin_files)).config, rate, tables, options, as_json=as_json)
        return
    if as_json:
        raise click.UsageError("--json goes with --estimate; a measurement writes NAME.json")
    try:
        from router_bench import sweep as bench_sweep
    except ModuleNotFoundError as error:
        install = "pip install 'spark-event-router[bench]'"
        raise StartError(f"`bench` needs the module {error.name}: {install}") from error

    from router.engine.spark.session import ready_to_start

    loaded = bench_sweep.checked(load_config(file, load_registry(plugin_files)))
    # Each run is a process of its own, and none is to fail for want of Java.
    ready_to_start(loaded.config)
    sweep = bench_sweep.Sweep(
        loaded=loaded,
        plugins=plugin_files,
        payload=_payload(loaded, {**options, "tables": tables or GAMES}),
        partitions=options["partitions"],
        rows=options["rows"],
        repeat=options["repeat"],
        cold=options["cold"],
        send=options["send"],
        servers=options["servers"],
        producer=parse_pairs(options["producer"], "--producer"),
        timeout=options["timeout"],
        master=options["master"],
        lake=options["lake"],
    )
    if any(cell.problem for cell in _measured(sweep, out)):
        raise SystemExit(1)


def _measured(sweep: Sweep, out: Path) -> list[Cell]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from router_bench import sweep as bench_sweep

    progress_shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with progress_shown as progress:
        cells = bench_sweep.measure(sweep, progress)
    Console().print(bench_sweep.shown(sweep, cells))
    for remark in bench_sweep.remarks(sweep, cells):
        click.echo(remark, err=True)
    click.echo(f"wrote {bench_sweep.written(sweep, cells, out)}")
    _draw(sweep, cells, out)
    return cells


def _draw(sweep: Sweep, cells: list[Cell], out: Path) -> None:
    from router_bench import sweep as bench_sweep

    if not any(cell.events_per_second for cell in cells):
        return
    try:
        from router_bench.chart import draw
    except ModuleNotFoundError as error:
        click.echo(f"no chart: {error.name} is not installed (pip install 'spark-event-router[bench]')")
        return
    file = out / f"{sweep.loaded.config.name}.png"
    draw(bench_sweep.chart(sweep, cells), file)
    click.echo(f"wrote {file}")


def _payload(loaded: Loaded, options: dict[str, Any]) -> Payload:
    from router_bench import payload

    if options["sample"]:
        return payload.sample(options["sample"], options["framing"], options["key_separator"])
    # A decoder with a registry says where the simulator has to register its schemas, and under which subject.
    decoder = loaded.config.decode
    registry = getattr(decoder, "registry", None)
    subjects = getattr(decoder, "subjects", None) or (f"{loaded.config.name}-bench-value",)
    address = str(registry) if registry else None
    return payload.simulated(options["tables"], options["form"], address, next(iter(subjects)))
