"""`router history`: what ran when, what each change changed, and what became of the records since."""

from __future__ import annotations

import difflib
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from router.cli import config_argument, plugin_option
from router.cli.dead_letters import shorten_text
from router.cli.documents import json_option, show_json
from router.cli.listing import Listing, ListingField, number_fields, show_listings
from router.config.loader import load_config
from router.errors import StartError, to_printable
from router.registry import load_registry
from router.stages import Stage

if TYPE_CHECKING:
    from pathlib import Path

    from router.engine.audit.deploy_history import DeployHistory
    from router.engine.deploys import Deploy

_REASONS_SHOWN = 5
"""Reasons of dead letters that are shown of a deploy, the most frequent."""


@click.command()
@config_argument
@click.option("--last", default=10, show_default=True, type=click.IntRange(1), help="How many deploys.")
@click.option("--diff", nargs=2, metavar="A B", help="Show how the text of deploy B differs from that of deploy A.")
@click.option("--write", metavar="A", help="Write the text of deploy A beside FILE, with its number in the name.")
@json_option
@plugin_option
def history(
    file: Path,
    last: int,
    diff: tuple[str, str] | None,
    write: str | None,
    as_json: bool,
    plugin_files: tuple[Path, ...],
) -> None:
    """Show the deploys of the configuration FILE: each change of its text, of the router and of plugins that has run.

    For each there are its batches, who started it, what changed, and what became of its records, by the ledger: compare
    a share of dead letters with the one before. A and B are numbers, or beginnings of fingerprints. Texts have no
    comments, no values of variables, and *** for secrets. Needs no Spark.
    """
    from router.engine.audit.deploy_history import deploy_histories, deploys_of

    config = load_config(file, load_registry(plugin_files)).config
    numbered = dict(enumerate(deploys_of(config), 1))
    if diff:
        first, second = (_find_deploy(numbered, wanted) for wanted in diff)
        _show_difference(numbered, first, second)
    if write:
        number = _find_deploy(numbered, write)
        path = file.with_name(f"{file.stem}.{number}{file.suffix}")
        with path.open("x", encoding="utf-8", newline="") as written:
            written.write(numbered[number].text)
        click.echo(to_printable(f"{path} is written"))
    if diff or write:
        return
    histories = deploy_histories(config, [*numbered.values()], last)
    if as_json:
        show_json({"name": config.name, "deploys": [_facts_of(deploy) for deploy in histories]})
        return
    if not histories:
        raise StartError(f"nothing has run by {config.checkpoint_path()}")
    changes = []
    reasons = []
    for shown in histories:
        changes += [{"deploy": shown.number, "change": shorten_text(sentence)} for sentence in shown.changes]
        causes = [(group.stage, group.reason or "others", group.count) for group in shown.dead_letters[:_REASONS_SHOWN]]
        if shown.refused_by_sinks:
            causes.append((Stage.APPLY, "sinks were refused", shown.refused_by_sinks))
        for stage, reason, count in causes:
            facts = {"stage": stage, "reason": shorten_text(reason), "count": count, "share": _share(count, shown)}
            reasons.append({"deploy": shown.number, **facts})
    show_listings(
        config.name,
        [
            Listing("deploys", "deploys", DEPLOY_FIELDS, [_row_of(shown) for shown in histories]),
            Listing("changes", "changes", CHANGE_FIELDS, changes),
            Listing("reasons", "dead letters by reason", REASON_FIELDS, reasons),
        ],
    )


def _find_deploy(numbered: dict[int, Deploy], wanted: str) -> int:
    """Return the number of a deploy; raise StartError if there is none of this number or fingerprint."""
    for number, deploy in reversed(numbered.items()):
        if wanted == str(number) or (len(wanted) >= 4 and deploy.configuration.startswith(wanted)):
            return number
    raise StartError(f"there is no deploy {wanted}; `router history FILE` lists them")


def _show_difference(numbered: dict[int, Deploy], first: int, second: int) -> None:
    before, now = (numbered[number].text.splitlines() for number in (first, second))
    for line in difflib.unified_diff(before, now, f"deploy {first}", f"deploy {second}", lineterm=""):
        click.echo(to_printable(line))


def _facts_of(shown: DeployHistory) -> dict[str, Any]:
    """Return a deploy as `--json` has it."""
    deploy = asdict(shown.deploy)
    del deploy["text"], deploy["arrival"]
    return {
        "number": shown.number,
        **deploy,
        "last": shown.last,
        **shown.counts,
        "changes": shown.changes,
        "dead_letters": [asdict(group) for group in shown.dead_letters],
    }


def _row_of(shown: DeployHistory) -> dict[str, Any]:
    deploy = shown.deploy
    letters = sum(group.count for group in shown.dead_letters) + shown.refused_by_sinks
    return {
        "deploy": shown.number,
        "since": datetime.fromisoformat(deploy.at),
        "batches": f"{deploy.batch} to {shown.last}" if shown.last is not None else f"from {deploy.batch}",
        "configuration": deploy.configuration,
        "by": f"{deploy.user}@{deploy.host}".strip("@"),
        **shown.counts,
        "dead_letters": letters,
        "share": _share(letters, shown),
    }


def _share(count: int, shown: DeployHistory) -> str:
    """Return a count as a share of the records of a deploy."""
    read = shown.counts["read"]
    return f"{count / read:.2%}" if read else ""


DEPLOY_FIELDS = (
    *number_fields("deploy"),
    *(ListingField(name) for name in ("since", "batches", "configuration", "by")),
    *number_fields("read", "landed", "dead_letters"),
    ListingField("share", "number"),
    *number_fields("quarantined"),
    ListingField("dead", "number", title="refused"),
    *number_fields("parked"),
)
CHANGE_FIELDS = (*number_fields("deploy"), ListingField("change", "sentence"))
REASON_FIELDS = (
    *number_fields("deploy", "count"),
    ListingField("share", "number"),
    ListingField("stage"),
    ListingField("reason", "sentence"),
)
