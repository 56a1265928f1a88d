"""Show what landed in the demo's lake, compared with what was sent."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table

from router_demo import landed
from router_demo.big_wins import PAUSE
from router_demo.landed import BRONZE, DEAD, HISTORY, PROFILE_BRONZE
from router_demo.traffic import stage_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from router_demo.big_wins import Posted
    from router_demo.games import Profiles
    from router_demo.landed import Landed
    from router_demo.running import Version
    from router_demo.simulator import Sent

LONGEST_REASON = 68
DETAIL = ": it answers"
"""Where the reason of an unknown schema continues with the registry's own words."""


@dataclass(frozen=True)
class Speed:
    """How long the router took, the first batch included, and the rate of its fastest batch."""

    seconds: float
    fastest: float


def show(
    console: Console,
    lake: Path,
    routes: Path,
    sent: Sent,
    versions: list[Version],
    profiles: Profiles,
    posted: Posted,
    speed: Speed,
) -> int:
    """Print what landed and was called, speed and where to look further; return 1 if anything is not as it was sent."""
    tables = landed.tables(lake)
    letters = landed.letters(tables[DEAD])
    ids = landed.schema_ids(tables[BRONZE], tables[DEAD]) if versions else Counter[int]()
    read = Counter({version.number: ids[version.id] for version in versions})
    expected = _expected(sent, profiles)
    wrong = _differences(tables, letters, expected, sent) + _unseen(read, sent)
    if profiles.levels != landed.levels(tables):
        wrong.append("the latest profiles are not those that were sent last")
    counted = landed.players(lake)
    if counted and counted != sent.games:
        wrong += _unequal(sent.games, counted, lambda game: f"events in gold.{game}_players")
    wrong += posted.wrong
    for table in (
        _landed(tables, expected, versions),
        _reasons(letters),
        *([_versions(versions, read, sent)] * bool(read)),
        _posted(posted),
    ):
        console.print()
        console.print(table)
    console.print()
    for sentence in wrong:
        console.print(f"[bold red]{sentence}[/]", soft_wrap=True)
    if counted and not wrong:
        console.print(
            f"[bold green]{len(counted)} tables of players[/] in gold, by a view of the games' tables while the stream "
            f"ran: they count all {counted.total():,} events.",
            highlight=False,
        )
    for sentence in _sentences(tables, sent, versions, profiles, speed, right=not wrong):
        console.print(sentence, highlight=False)
    if not wrong:
        console.print(_of_calls(posted), highlight=False)
    console.print(_further(lake, routes), soft_wrap=True, highlight=False)
    return 1 if wrong else 0


def _table(title: str, *columns: str, texts: int = 1) -> Table:
    """Return an empty table; the first columns are texts, the others numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < texts else "right", no_wrap=True)
    return table


def _landed(tables: dict[str, Landed], expected: Counter[str], versions: list[Version]) -> Table:
    gained = Counter(table for version in versions for table in version.gained)
    shown = _table("What landed where", "table", "expected", "landed", "columns", "gained", "files", "MB")
    for name, table in tables.items():
        is_right = expected[name] == table.rows
        rows = f"[{'green' if is_right else 'bold red'}]{table.rows:,}[/]" if name in expected else f"{table.rows:,}"
        counts = (f"{expected[name]:,}" if name in expected else "", rows, str(table.columns))
        shown.add_row(
            name, *counts, f"+{gained[name]}" * bool(gained[name]), str(table.files), f"{table.bytes / 1e6:.1f}"
        )
    return shown


def _reasons(letters: Counter[tuple[str, str]]) -> Table:
    """Count by what is wrong; names that no table may get are many, and one reason."""
    counts: Counter[tuple[str, str]] = Counter()
    for (stage, reason), count in letters.items():
        stem = reason.partition(":")[0] if stage == "name" else reason.partition(DETAIL)[0]
        counts[stage, stem] += count
    shown = _table("Dead letters by reason", "stage", "reason", "records", texts=2)
    for (stage, stem), count in counts.most_common(15):
        text = stem if len(stem) <= LONGEST_REASON else stem[:LONGEST_REASON] + "..."
        shown.add_row(stage, text.encode("unicode_escape").decode(), f"{count:,}")
    if rest := counts.total() - sum(count for _, count in counts.most_common(15)):
        shown.add_row("", f"and {len(counts) - 15} more reasons", f"{rest:,}")
    return shown


def _versions(versions: list[Version], read: Counter[int], sent: Sent) -> Table:
    columns = ("version", "brought", "id", "sent", "landed", "tables gained it", "last one after")
    shown = _table("Schema versions", *columns, texts=2)
    for version in versions:
        number = version.number
        counts = (str(version.id), f"{sent.versions[number]:,}", f"{read[number]:,}")
        last = f"{max(version.gained.values()):.1f} s" if version.gained else ""
        shown.add_row(str(number), version.column, *counts, str(len(version.gained) or ""), last)
    return shown


def _posted(posted: Posted) -> Table:
    """Compare the table of big wins with the API."""
    title = f"Big wins in a table, and at an API that takes {posted.limit} calls a second"
    shown = _table(title, "", "table", "API")
    there = posted.table.total(), posted.taken.total()
    shown.add_row("sent by the games", *[f"{posted.sent.total():,}"] * 2)
    shown.add_row("landed", *(f"[{'bold red' if posted.wrong else 'green'}]{count:,}[/]" for count in there))
    for (_, reason), count in posted.letters.most_common(3):
        shown.add_row(f"dead letters: {escape(reason[:LONGEST_REASON])}", "", f"{count:,}")
    shown.add_row("landed twice", f"{(posted.table - posted.sent).total():,}", f"{posted.twice:,}")
    shown.add_row("all of them after", f"{posted.tables_after:.1f} s", f"{posted.api_after:.1f} s")
    for what, number in _calls(posted).items():
        shown.add_row(what, "", number)
    return shown


def _calls(posted: Posted) -> dict[str, str]:
    """Return what the API counted."""
    counted = {f"most calls in any second, of {posted.limit}": f"{posted.highest:,}"}
    if posted.highest > posted.limit:  # a busy machine: what waits to be read seems to come at once
        counted["the API itself was held up, at most"] = f"{posted.held_up:.2f} s"
    return counted | {
        f"limit used, pauses of over {PAUSE} s left out": "" if posted.used is None else f"{posted.used:.0%}",
        "calls answered 429: too many": f"{posted.statuses.get(429, 0):,}",
        f"calls answered 503: {posted.course.outage:.1f} s out of order": f"{posted.refused:,}",
        "first call taken after its return": f"{posted.again:.1f} s",
    }


def _of_calls(posted: Posted) -> str:
    return (
        f"[bold green]{posted.taken.total():,} big wins at the API,[/] each once, and {posted.receipts['dead']:,} that "
        f"it refuses for good in dead letters: the {posted.table.total():,} in the table. It was out of order for "
        f"{posted.course.outage:.1f} s; the tables took {posted.course.landed:,} records meanwhile."
    )


def _expected(sent: Sent, profiles: Profiles) -> Counter[str]:
    """Return the rows that tables must have."""
    games = Counter({f"silver.{game}": count for game, count in sent.games.items()})
    latest = Counter(f"silver.{game}_profiles" for game, _ in profiles.levels)
    raw = Counter({BRONZE: sent.events, DEAD: sent.garbage.total()})
    return games | latest | raw | Counter({PROFILE_BRONZE: profiles.records, HISTORY: profiles.states})


def _differences(
    tables: dict[str, Landed], letters: Counter[tuple[str, str]], rows: Counter[str], sent: Sent
) -> list[str]:
    """Return what is not as it was sent, one sentence each."""
    expected = Counter(rows)
    found = Counter({name: table.rows for name, table in tables.items() if name in expected})
    for kind, count in sent.garbage.items():
        expected[f"dead letters of stage {stage_of(kind)}"] += count
    for (stage, _), count in letters.items():
        found[f"dead letters of stage {stage}"] += count
    return _unequal(expected, found, str)


def _unseen(read: Counter[int], sent: Sent) -> list[str]:
    return _unequal(sent.versions, read, lambda number: f"events of schema version {number}") if read else []


def _unequal(expected: Counter, found: Counter, named: Callable[..., str]) -> list[str]:  # type: ignore[type-arg]
    """Return what was not counted as expected."""
    keys = sorted(expected.keys() | found.keys())
    different = [key for key in keys if expected[key] != found[key]]
    return [f"{named(key)}: {expected[key]:,} expected, {found[key]:,} there" for key in different]


def _sentences(
    tables: dict[str, Landed], sent: Sent, versions: list[Version], profiles: Profiles, speed: Speed, *, right: bool
) -> list[str]:
    said = []
    if right:
        said.append(
            f"[bold green]Every record is accounted for:[/] {sent.events:,} sent, {tables[BRONZE].rows:,} in bronze; "
            f"{sent.games.total():,} events in the games' tables, {tables[DEAD].rows:,} pieces of garbage in dead "
            "letters, each at the stage that had to refuse it."
        )
    if waited := [seconds for version in versions for seconds in version.gained.values()]:
        said.append(
            f"[bold green]{len(versions)} schema versions,[/] all but the first one registered while the stream ran: "
            f"the tables gained {len(waited)} columns without a restart, half of them within {_middle(waited):.1f} s "
            "of the registration."
        )
    if right:
        said.append(
            f"[bold green]{len(profiles.levels):,} latest profiles,[/] a table per game, out of {profiles.records:,} "
            f"changes of them, each the one that was sent last; {profiles.states:,} states in {HISTORY}."
        )
    said.append(
        f"[bold green]{sent.events / speed.seconds:,.0f} records/s[/] over {speed.seconds:.0f} s, the first, cold "
        f"batch and the pace of the games included; the fastest batch took {speed.fastest:,.0f} a second."
    )
    return said


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _further(lake: Path, routes: Path) -> str:
    bin_folder = Path(sys.executable).parent
    near = bin_folder.relative_to(Path.cwd()) if bin_folder.is_relative_to(Path.cwd()) else bin_folder
    query = f"print(DeltaTable('{lake}/silver/poker').to_pandas().tail())"
    test = routes.with_suffix(".test.yaml")
    commands = {
        "what became of every record, batch by batch": f"LAKE={lake} {near}/router ledger {routes}",
        "the newest rows of a table, with any reader of Delta": f'{near}/python -c "'
        f'from deltalake import DeltaTable; {query}"',
        "what became of every call": f'{near}/python -c "from deltalake import DeltaTable; '
        f"print(DeltaTable('{lake.parent}/wins/ops/receipts').to_pandas().tail())\"",
        "the configuration, and what its tests say": f"cat {routes}; {near}/router test {test}",
    }
    return "\n".join(["\n[bold]Look further[/]", *(f"  [dim]# {what}[/]\n  {one}" for what, one in commands.items())])
