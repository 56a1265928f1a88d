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
MOST_REASONS = 15
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
    player_events = landed.players(lake)
    expected = _expected_rows(sent, profiles)
    # Only framed records carry the id of a schema: without a registry there are no versions to count by.
    read_by_version: Counter[int] = Counter()
    if versions:
        ids = landed.schema_ids(tables[BRONZE], tables[DEAD])
        for version in versions:
            read_by_version[version.number] = ids[version.id]

    # What is not as it was sent.
    wrong = _differences(tables, letters, expected, sent)
    if versions:
        wrong += _unequal_counts(sent.versions, read_by_version, lambda number: f"events of schema version {number}")
    if profiles.levels != landed.levels(tables):
        wrong.append("the latest profiles are not those that were sent last")
    if player_events and player_events != sent.games:
        wrong += _unequal_counts(sent.games, player_events, lambda game: f"events in gold.{game}_players")
    wrong += posted.wrong

    # The tables.
    shown = [_landed_table(tables, expected, versions), _reason_table(letters)]
    if versions:
        shown.append(_version_table(versions, read_by_version, sent))
    shown.append(_big_win_table(posted))
    for table in shown:
        console.print()
        console.print(table)
    console.print()

    # The sentences: what is wrong or that all is right, how fast it was, where to look further.
    for sentence in wrong:
        console.print(f"[bold red]{sentence}[/]", soft_wrap=True)
    if player_events and not wrong:
        console.print(
            f"[bold green]{len(player_events)} tables of players[/] in gold, by a view of the games' tables while the "
            f"stream ran: they count all {player_events.total():,} events.",
            highlight=False,
        )
    for sentence in _sentences(tables, sent, versions, profiles, speed, right=not wrong):
        console.print(sentence, highlight=False)
    if not wrong:
        console.print(_sentence_of_calls(posted), highlight=False)
    console.print(_next_commands(lake, routes), soft_wrap=True, highlight=False)
    return 1 if wrong else 0


def _table(title: str, *columns: str, texts: int = 1) -> Table:
    """Return an empty table; the first columns are texts, the others numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < texts else "right", no_wrap=True)
    return table


def _landed_table(tables: dict[str, Landed], expected: Counter[str], versions: list[Version]) -> Table:
    gained: Counter[str] = Counter()
    for version in versions:
        gained.update(version.gained.keys())
    shown = _table("What landed where", "table", "expected", "landed", "columns", "gained", "files", "MB")
    for name, table in tables.items():
        # Without a colour: tables of which the demo does not know how many rows they must have.
        rows = f"{table.rows:,}"
        expected_rows = ""
        if name in expected:
            expected_rows = f"{expected[name]:,}"
            color = "green" if table.rows == expected[name] else "bold red"
            rows = f"[{color}]{rows}[/]"
        columns_gained = f"+{gained[name]}" if gained[name] else ""
        megabytes = f"{table.bytes / 1e6:.1f}"
        shown.add_row(name, expected_rows, rows, str(table.columns), columns_gained, str(table.files), megabytes)
    return shown


def _reason_table(letters: Counter[tuple[str, str]]) -> Table:
    """Count by what is wrong; names that no table may get are many, and one reason."""
    counts: Counter[tuple[str, str]] = Counter()
    for (stage, reason), count in letters.items():
        separator = ":" if stage == "name" else DETAIL
        stem, _, _ = reason.partition(separator)
        counts[stage, stem] += count
    shown = _table("Dead letters by reason", "stage", "reason", "records", texts=2)
    rest = counts.total()
    for (stage, stem), count in counts.most_common(MOST_REASONS):
        text = stem
        if len(text) > LONGEST_REASON:
            text = text[:LONGEST_REASON] + "..."
        # Escaped: a reason may quote what was sent, and so hold what a terminal obeys or cannot show.
        shown.add_row(stage, text.encode("unicode_escape").decode(), f"{count:,}")
        rest -= count
    if rest:
        shown.add_row("", f"and {len(counts) - MOST_REASONS} more reasons", f"{rest:,}")
    return shown


def _version_table(versions: list[Version], read: Counter[int], sent: Sent) -> Table:
    columns = ["version", "brought", "id", "sent", "landed", "tables gained it", "last one after"]
    shown = _table("Schema versions", *columns, texts=2)
    for version in versions:
        tables_gained = ""
        last_after = ""
        if version.gained:
            tables_gained = str(len(version.gained))
            last_after = f"{max(version.gained.values()):.1f} s"
        shown.add_row(
            str(version.number),
            version.column,
            str(version.id),
            f"{sent.versions[version.number]:,}",
            f"{read[version.number]:,}",
            tables_gained,
            last_after,
        )
    return shown


def _big_win_table(posted: Posted) -> Table:
    """Compare the table of big wins with the API."""
    title = f"Big wins in a table, and at an API that takes {posted.limit} calls a second"
    shown = _table(title, "", "table", "API")
    sent = f"{posted.sent.total():,}"
    shown.add_row("sent by the games", sent, sent)
    color = "bold red" if posted.wrong else "green"
    shown.add_row("landed", f"[{color}]{posted.table.total():,}[/]", f"[{color}]{posted.taken.total():,}[/]")
    for (_, reason), count in posted.letters.most_common(3):
        shown.add_row(f"dead letters: {escape(reason[:LONGEST_REASON])}", "", f"{count:,}")
    shown.add_row("landed twice", f"{(posted.table - posted.sent).total():,}", f"{posted.twice:,}")
    shown.add_row("all of them after", f"{posted.tables_after:.1f} s", f"{posted.api_after:.1f} s")
    for label, figure in _call_figures(posted).items():
        shown.add_row(label, "", figure)
    return shown


def _call_figures(posted: Posted) -> dict[str, str]:
    """Return what the API counted."""
    figures = {f"most calls in any second, of {posted.limit}": f"{posted.highest:,}"}
    if posted.highest > posted.limit:  # a busy machine: what waits to be read seems to come at once
        figures["the API itself was held up, at most"] = f"{posted.held_up:.2f} s"
    share_used = "" if posted.used is None else f"{posted.used:.0%}"
    figures[f"limit used, pauses of over {PAUSE} s left out"] = share_used
    figures["calls answered 429: too many"] = f"{posted.statuses.get(429, 0):,}"
    figures[f"calls answered 503: {posted.course.outage:.1f} s out of order"] = f"{posted.refused:,}"
    figures["first call taken after its return"] = f"{posted.again:.1f} s"
    return figures


def _sentence_of_calls(posted: Posted) -> str:
    return (
        f"[bold green]{posted.taken.total():,} big wins at the API,[/] each once, and {posted.receipts['dead']:,} that "
        f"it refuses for good in dead letters: the {posted.table.total():,} in the table. It was out of order for "
        f"{posted.course.outage:.1f} s; the tables took {posted.course.landed:,} records meanwhile."
    )


def _expected_rows(sent: Sent, profiles: Profiles) -> Counter[str]:
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
    counted = Counter({name: table.rows for name, table in tables.items() if name in expected})
    for kind, count in sent.garbage.items():
        expected[f"dead letters of stage {stage_of(kind)}"] += count
    for (stage, _), count in letters.items():
        counted[f"dead letters of stage {stage}"] += count
    return _unequal_counts(expected, counted, str)


def _unequal_counts(expected: Counter, counted: Counter, describe: Callable[..., str]) -> list[str]:  # type: ignore[type-arg]
    """Return what was not counted as expected, one sentence each; `describe` makes a noun of a key."""
    sentences = []
    for key in sorted(expected.keys() | counted.keys()):
        if expected[key] != counted[key]:
            sentences.append(f"{describe(key)}: {expected[key]:,} expected, {counted[key]:,} there")
    return sentences


def _sentences(
    tables: dict[str, Landed], sent: Sent, versions: list[Version], profiles: Profiles, speed: Speed, *, right: bool
) -> list[str]:
    sentences = []
    if right:
        sentences.append(
            f"[bold green]Every record is accounted for:[/] {sent.events:,} sent, {tables[BRONZE].rows:,} in bronze; "
            f"{sent.games.total():,} events in the games' tables, {tables[DEAD].rows:,} pieces of garbage in dead "
            "letters, each at the stage that had to refuse it."
        )
    delays: list[float] = []
    for version in versions:
        delays.extend(version.gained.values())
    if delays:
        sentences.append(
            f"[bold green]{len(versions)} schema versions,[/] all but the first one registered while the stream ran: "
            f"the tables gained {len(delays)} columns without a restart, half of them within {_middle(delays):.1f} s "
            "of the registration."
        )
    if right:
        sentences.append(
            f"[bold green]{len(profiles.levels):,} latest profiles,[/] a table per game, out of {profiles.records:,} "
            f"changes of them, each the one that was sent last; {profiles.states:,} states in {HISTORY}."
        )
    sentences.append(
        f"[bold green]{sent.events / speed.seconds:,.0f} records/s[/] over {speed.seconds:.0f} s, the first, cold "
        f"batch and the pace of the games included; the fastest batch took {speed.fastest:,.0f} a second."
    )
    return sentences


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _next_commands(lake: Path, routes: Path) -> str:
    """Return the commands to type next, each under what it shows."""
    bin_folder = Path(sys.executable).parent
    if bin_folder.is_relative_to(Path.cwd()):
        bin_folder = bin_folder.relative_to(Path.cwd())
    test = routes.with_suffix(".test.yaml")
    commands = {
        "what became of every record, batch by batch": f"LAKE={lake} {bin_folder}/router ledger {routes}",
        "the newest rows of a table, with any reader of Delta": _newest_rows(bin_folder, lake / "silver/poker"),
        "what became of every call": _newest_rows(bin_folder, lake.parent / "wins/ops/receipts"),
        "the configuration, and what its tests say": f"cat {routes}; {bin_folder}/router test {test}",
    }
    lines = ["\n[bold]Look further[/]"]
    for purpose, command in commands.items():
        lines.append(f"  [dim]# {purpose}[/]\n  {command}")
    return "\n".join(lines)


def _newest_rows(bin_folder: Path, table: Path) -> str:
    """Return a command that prints the newest rows of a table."""
    return (
        f"{bin_folder}/python -c \"from deltalake import DeltaTable; print(DeltaTable('{table}').to_pandas().tail())\""
    )
