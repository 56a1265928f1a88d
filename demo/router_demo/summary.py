"""Show what landed in the demo's lake, and hold it against what was sent."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable
from rich.table import Table

from router_demo.garbage import stage_of

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from router_demo.simulator import Sent


GROWING = "silver.poker"
"""The table whose columns are followed: that of the game with the fewest events, which gains them last."""


def show(console: Console, lake: Path, routes: Path, sent: Sent, seconds: float) -> int:
    """Print tables, dead letters, speed and where to look further; return 1 when a count is not what was sent."""
    tables = {table.name: table for table in _tables(lake)}
    dead = tables["ops.dead_letters"]
    letters = _letters(dead)
    console.print(_landed(list(tables.values())))
    console.print(_reasons(letters))
    wrong = _differences(tables, letters, sent)
    for sentence in wrong:
        console.print(f"[red]{sentence}[/]")
    if not wrong:
        console.print(
            f"[bold green]Every record is accounted for:[/] {sent.events:,} sent, "
            f"{tables['bronze.game_events'].rows:,} in bronze; {sent.games.total():,} events in the games' tables, "
            f"{dead.rows:,} pieces of garbage in dead letters, each at its stage"
        )
    if GROWING in tables:
        console.print(_grown(tables[GROWING]), highlight=False)
    console.print(
        f"{sent.events / seconds:,.0f} events/s over {seconds:.0f} s, the first, cold batch included "
        f"(the games sent {sent.rate:,.0f} a second)"
    )
    console.print(_further(lake, routes), soft_wrap=True, highlight=False)
    return 1 if wrong else 0


class _Landed:
    """Be what a Delta table of the lake holds now."""

    def __init__(self, name: str, path: Path) -> None:
        table = DeltaTable(str(path))
        adds = pa.table(table.get_add_actions())
        self.name, self.table, self.version = name, table, table.version()
        self.files = len(adds)
        self.rows = sum(adds.column("num_records").to_pylist())
        self.bytes = sum(adds.column("size_bytes").to_pylist())
        self.columns = len(table.schema().fields)


def _tables(lake: Path) -> list[_Landed]:
    logs = sorted(lake.glob("[!_]*/*/_delta_log"))
    return [_Landed(f"{log.parent.parent.name}.{log.parent.name}", log.parent) for log in logs]


def _landed(tables: list[_Landed]) -> Table:
    shown = Table(title="What landed where", title_justify="left")
    for name in ("table", "rows", "files", "MB", "columns", "version"):
        shown.add_column(name, justify="left" if name == "table" else "right")
    for table in tables:
        megabytes = f"{table.bytes / 1e6:.1f}"
        shown.add_row(
            table.name, f"{table.rows:,}", f"{table.files:,}", megabytes, str(table.columns), str(table.version)
        )
    return shown


def _letters(dead: _Landed) -> Counter[tuple[str, str]]:
    """Count dead letters by stage and reason."""
    found = dead.table.to_pyarrow_table(columns=["stage", "reason"])
    return Counter(zip(found.column("stage").to_pylist(), found.column("reason").to_pylist(), strict=True))


def _reasons(letters: Counter[tuple[str, str]]) -> Table:
    shown = Table("stage", "reason", title="Dead letters by reason", title_justify="left")
    shown.add_column("records", justify="right")
    most = letters.most_common(12)
    for (stage, reason), count in most:
        text = reason if len(reason) <= 70 else reason[:70] + "..."
        shown.add_row(stage, text.encode("unicode_escape").decode(), f"{count:,}")
    if rest := letters.total() - sum(count for _, count in most):
        shown.add_row("", f"and {len(letters) - len(most)} more reasons", f"{rest:,}")
    return shown


def _differences(tables: dict[str, _Landed], letters: Counter[tuple[str, str]], sent: Sent) -> list[str]:
    """Return what is not as it was sent, one sentence each."""
    expected = Counter({f"silver.{game}": count for game, count in sent.games.items()})
    expected |= Counter({"bronze.game_events": sent.events, "ops.dead_letters": sent.garbage.total()})
    found = Counter({name: table.rows for name, table in tables.items() if name in expected})
    for kind, count in sent.garbage.items():
        expected[f"dead letters of stage {stage_of(kind)}"] += count
    for (stage, _), count in letters.items():
        found[f"dead letters of stage {stage}"] += count
    return [
        f"{name}: {expected[name]:,} expected, {found[name]:,} there"
        for name in sorted(expected | found)
        if expected[name] != found[name]
    ]


def _grown(table: _Landed) -> str:
    """Say which columns a table gained with which commit."""
    older = DeltaTable(table.table.table_uri, version=0)
    begun = known = _columns(older)
    gained = []
    for version in range(1, table.version + 1):
        older.load_as_version(version)
        columns = _columns(older)
        gained += [f"{name} (commit {version})" for name in columns if name not in known]
        known = columns
    how = f"gained {', '.join(gained)}" if gained else "gained no further one"
    return f"{table.name} began with {len(begun)} columns and {how}, while the stream ran"


def _columns(table: DeltaTable) -> list[str]:
    return [field.name for field in table.schema().fields]


def _further(lake: Path, routes: Path) -> str:
    shown = f"print(DeltaTable('{lake}/silver/poker').to_pandas().head())"
    commands = {
        f"LAKE={lake} .venv/bin/router ledger {routes}": "what became of every record",
        f'.venv/bin/python -c "from deltalake import DeltaTable; {shown}"': "",
        f"ls {lake}/silver/poker": "plain Delta tables: any engine reads them",
        f".venv/bin/router check --plan {routes}": "find mistakes before a run does",
    }
    width = max(len(command) for command, what in commands.items() if what)
    return "\n".join(
        ["\nLook further:", *(f"  {command:{width}}  {what}".rstrip() for command, what in commands.items())]
    )
