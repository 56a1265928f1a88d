"""`router dead-letters`: count dead letters by stage, route, sink and reason, or capture one as a route test.

The options that choose some of them stand here, also those of `router replay`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from router.cli import config_argument, plugin_option
from router.cli.documents import json_option
from router.cli.listing import Listing, ListingField, ListOptions, list_options, show_list
from router.cli.values import parse_since
from router.config.loader import load_config
from router.errors import to_printable
from router.registry import load_registry
from router.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from router.config.models import Config
    from router.engine.audit.dead_letters import DeadLetterGroup

CHARACTERS_SHOWN = 120
"""Characters of a reason and of a value that are shown."""


def letter_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose dead letters: it gets `stages`, `route`, `name`, `reason` and `since`."""
    options = [
        click.option(
            "--stage",
            "stages",
            multiple=True,
            type=click.Choice([stage.value for stage in Stage]),
            help="Dead letters of this stage.",
        ),
        click.option("--route", metavar="NAME", help="Only those of this route."),
        click.option("--sink", "name", metavar="NAME", help="Only those of this sink."),
        click.option("--reason", metavar="TEXT", help="Only dead letters with this text in their reason."),
        click.option("--since", metavar="TIME", help="Only those since: 2025-01-31T12:00:00Z, or 2 h ago."),
    ]
    # As decorators they would stand one above the other: the last is applied first.
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@config_argument
@letter_options
@click.option("--all", "replayed", is_flag=True, help="Also those that a replay has taken.")
@click.option("--samples", default=0, show_default=True, type=click.IntRange(0, 1000), help="Newest records of each.")
@click.option(
    "--capture",
    type=click.IntRange(1),
    metavar="N",
    help="Add the newest record of group N to the route tests, with masked values (starts Spark).",
)
@click.option("--with-values", is_flag=True, help="With --capture: the values as they are.")
@list_options
@json_option
@plugin_option
def dead_letters(
    file: Path,
    stages: tuple[str, ...],
    route: str | None,
    name: str | None,
    reason: str | None,
    since: str | None,
    replayed: bool,
    samples: int,
    capture: int | None,
    with_values: bool,
    list_options: ListOptions,
    as_json: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Count the dead letters of the configuration FILE that no replay has taken, the most frequent first.

    A group has one stage, route, sink and reason, and the times of its first and last record. The 300 most frequent
    reasons are listed; the dead letters with all others are counted together, by stage, route and sink. `--samples`
    shows records, escaped and cut. `router replay` shows what would become of them today, and sends them. Needs no
    Spark.

    With `--capture N` the newest record of group N becomes a case in NAME.test.yaml beside FILE, which fails until FILE
    takes the record. Its texts and numbers are masked: others of the same form stand there. The case is tried first.
    """
    from router.engine.audit.dead_letters import DeadLetterSelection, dead_letter_groups

    if with_values and not capture:
        raise click.UsageError("--with-values goes with --capture")
    if capture and (as_json or samples or list_options != ListOptions()):
        raise click.UsageError(
            "--capture prints no list: it goes without --json, --samples, --watch, --sort and --only"
        )
    registry = load_registry(plugin_files)
    config = load_config(file, registry).config
    seconds = None if since is None else parse_since(since)
    identity, sink = config.identity_of(route, name)
    selection = DeadLetterSelection(stages, identity, sink, reason, seconds, replayed)
    if capture:
        from router.cli.capture import capture_record

        groups = dead_letter_groups(config, selection, whole=capture - 1)
        if capture > len(groups):
            raise click.UsageError(f"--capture {capture}: there are {len(groups)} groups; `router dead-letters FILE`")
        (record,) = groups[capture - 1].samples
        letter = {**group_row(config, capture, groups[capture - 1]), "reason": record["letter_reason"]}
        capture_record(file, registry, letter, record, with_values=with_values)
        return

    def read_groups() -> list[Listing]:
        groups = dead_letter_groups(config, selection, samples)
        rows = [group_row(config, number, group) for number, group in enumerate(groups, 1)]
        total = sum(group.count for group in groups)
        title = f"{total:,} dead letters in {config.dead_letters}"
        listing = Listing("dead_letters", title, LETTER_GROUP_FIELDS, rows, keys=("stage", "route", "sink", "reason"))
        if as_json:
            return [listing]
        newest = []
        for row in rows:
            newest += [{"number": row["number"], **sample} for sample in row["samples"]]
        return [listing, Listing("samples", "newest records of each", LETTER_SAMPLE_FIELDS, newest)]

    conditions = []
    if not replayed:
        conditions.append("no replay has taken")
    if selection != DeadLetterSelection(replayed=replayed):
        conditions.append("the options choose")
    nothing = f"{config.dead_letters} in {config.lake} has no dead letters"
    if conditions:
        nothing += f" that {' and '.join(conditions)}"
    show_list(config, read_groups, list_options, as_json=as_json, nothing=nothing)


def group_row(config: Config, number: int, group: DeadLetterGroup) -> dict[str, Any]:
    """Return a group as lists show it, with its number, and names of route and sink as people see them."""
    row = asdict(group)
    route, sink = config.shown_names(group.route or "", group.sink or "")
    samples = [_sample_row(sample) for sample in group.samples]
    return {"number": number, **row, "route": route or None, "sink": sink or None, "samples": samples}


def _sample_row(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its value as text: of bytes that are no UTF-8, and of control characters, escaped."""
    value = sample["value"]
    if value is None:
        return sample
    return {**sample, "value": shorten_text(to_printable(value.decode("utf-8", "backslashreplace")))}


def _shown_reason(group: dict[str, Any]) -> str:
    if group["reason"] is None:
        return "other reasons"
    return shorten_text(group["reason"])


def shorten_text(text: str) -> str:
    """Return the beginning of a text that others wrote, as long as is shown of it."""
    if len(text) <= CHARACTERS_SHOWN:
        return text
    return f"{text[:CHARACTERS_SHOWN]}..."


LETTER_GROUP_FIELDS = (
    ListingField("number", "number", "#", compared=False),
    ListingField("count", "number"),
    ListingField("stage"),
    ListingField("route"),
    ListingField("sink"),
    ListingField("first", compared=False),
    ListingField("last", compared=False),
    ListingField("reason", "sentence", shown=_shown_reason),
)
LETTER_SAMPLE_FIELDS = (
    ListingField("number", "number", "#", compared=False),
    ListingField("topic"),
    ListingField("partition", "number", counted=False),
    ListingField("offset", "number", counted=False),
    ListingField("timestamp"),
    ListingField("value", "sentence"),
)
