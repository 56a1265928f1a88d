"""Offer the simulator as a command: `python -m router_demo.simulate`."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from router import RouterError
from router_demo.records import opened
from router_demo.simulator import simulate as send
from router_demo.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router_demo.simulator import Sent

MOST_ROWS = 20


def share(text: str) -> float:
    """Read a share, `0.5%` or `0.005`, as a fraction from 0 to 1."""
    try:
        fraction = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a share: write 0.5% or 0.005") from None
    if not 0 <= fraction <= 1:
        raise click.BadParameter(f"{text!r} is not between 0% and 100%")
    return fraction


def moment(text: str) -> datetime:
    """Read a time in ISO 8601; without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time: write 2026-01-31T12:00:00Z") from None
    if time.tzinfo is None:
        return time.replace(tzinfo=timezone.utc)
    return time


@click.command()
@click.option("--servers", required=True, metavar="HOST:PORT", help="Where Kafka is.")
@click.option("--topic", required=True, help="The topic; it is made when it does not exist.")
@click.option("--partitions", default=4, show_default=True, type=click.IntRange(1), help="Of a topic made here.")
@click.option("--events", type=click.IntRange(0), help="Stop after so many records.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Stop after so much time.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Records per second; as fast as possible without it."
)
@click.option("--games", default=7, show_default=True, type=click.IntRange(1), help="How many games send events.")
@click.option(
    "--skew", default=1.0, show_default=True, type=click.FloatRange(0), help="0: every game the same volume; 1: Zipf."
)
@click.option("--gamers", default=10_000, show_default=True, type=click.IntRange(1), help="How many players, the keys.")
@click.option("--bad", default="0%", show_default=True, type=share, help="Share of garbage, such as 0.5%.")
@click.option(
    "--versions",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Schema versions that appear during the run; version v adds the columns col_foo_1 to col_foo_v.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="The same seed, the same events.")
@click.option("--start", type=moment, help="Time of the first event, in ISO 8601; now without it.")
@click.option(
    "--format",
    "form",
    default="json",
    show_default=True,
    type=click.Choice(["json", "protobuf", "avro"]),
    help="Of the values.",
)
@click.option(
    "--registry", metavar="URL", help="Schema registry, for protobuf and avro: each version is registered as it begins."
)
@click.option("--subject", help="Subject of the schemas; TOPIC-value without it.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def simulate(
    servers: str,
    topic: str,
    partitions: int,
    seconds: float | None,
    form: str,
    registry: str | None,
    subject: str | None,
    as_json: bool,
    **traffic: Any,
) -> None:
    """Send events of simulated games to a Kafka topic, and print what was sent.

    It ends after --events or --seconds, or on Ctrl-C, which still delivers what was sent. The exit code is 1 when a
    record was not delivered.
    """
    if form != "json" and registry is None:
        raise click.UsageError(f"--format {form} needs --registry: the URL of a Confluent-compatible schema registry")
    described = Traffic(**traffic)
    try:
        with (
            opened(form, registry, subject or f"{topic}-value") as write,
            _stop_on_interrupt() as stop,
            _progress(described.events) as on_progress,
        ):
            sent = send(
                servers,
                topic,
                described,
                seconds=seconds,
                partitions=partitions,
                stop=stop,
                on_progress=on_progress,
                write=write,
            )
    except RouterError as error:
        raise click.ClickException(str(error)) from error
    _show(sent, as_json)
    if sent.failed:
        raise click.exceptions.Exit(1)


@contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a wish to stop, so that no record is sent without being counted."""
    stop = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def interrupted(number: int, frame: object) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _progress(events: int | None) -> Iterator[Callable[[int], None] | None]:
    """Show a live line on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.completed:,} events"),
        BarColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=events, rate="")

        def show(sent: int) -> None:
            speed = progress.tasks[0].speed
            progress.update(task, completed=sent, rate=f"{speed:,.0f}/s" if speed else "")

        yield show


def _show(sent: Sent, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"events": sent.events, "failed": sent.failed} | vars(sent)))
        return
    table = Table("what", "name", Column("records", justify="right"))
    for group, counts in (("game", sent.games), ("garbage", sent.garbage), ("not delivered", sent.errors)):
        rest = counts.total()
        for name, count in counts.most_common(MOST_ROWS):
            table.add_row(group, name, f"{count:,}")
            rest -= count
        if len(counts) > MOST_ROWS:
            table.add_row(group, f"{len(counts) - MOST_ROWS} more", f"{rest:,}")
    console = Console()
    console.print(table)
    console.print(f"{sent.events:,} records in {sent.seconds:.1f} s: {sent.rate:,.0f} a second")


if __name__ == "__main__":
    simulate(prog_name="python -m router_demo.simulate")
