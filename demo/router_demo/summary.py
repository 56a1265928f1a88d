"""Show what landed in the demo's lake, and hold it against what was sent."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable
from rich.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from router_demo.simulator import Sent


def show(console: Console, lake: Path, sent: Sent, seconds: float) -> int:
    """Print tables, dead letters, speed and where to look further; return 1 when a count is not what was sent."""
    tables = {table.name: table for table in _tables(lake)}
    console.print(_landed(list(tables.values())))
    dead = tables["ops.dead_letters"]
    console.print(_reasons(dead))
    wrong = _differences(tables, sent)
    for sentence in wrong:
        console.print(f"[red]{sentence}[/]")
    if not wrong:
        console.print(
            f"[bold green]Every record is accounted for:[/] {sent.events:,} sent, "
            f"{tables['bronze.game_events'].rows:,} in bronze; {sent.games.total():,} events in the games' tables, "
            f"{dead.rows:,} pieces of garbage in dead letters"
        )
    console.print(
        f"{sent.events / seconds:,.0f} events/s over {seconds:.0f} s, the first, cold batch included "
        f"(the games sent {sent.rate:,.0f} a second)"
    )
    console.print(_further(lake), soft_wrap=True, highlight=False)
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


def _reasons(dead: _Landed) -> Table:
    found = dead.table.to_pyarrow_table(columns=["stage", "reason"])
    reasons = Counter(zip(found.column("stage").to_pylist(), found.column("reason").to_pylist(), strict=True))
    shown = Table("stage", "reason", title="Dead letters by reason", title_justify="left")
    shown.add_column("records", justify="right")
    most = reasons.most_common(12)
    for (stage, reason), count in most:
        text = reason if len(reason) <= 70 else reason[:70] + "…"
        shown.add_row(stage, text.encode("ascii", "backslashreplace").decode(), f"{count:,}")
    if rest := reasons.total() - sum(count for _, count in most):
        shown.add_row("", f"and {len(reasons) - len(most)} more reasons", f"{rest:,}")
    return shown


def _differences(tables: dict[str, _Landed], sent: Sent) -> list[str]:
    """Return what is not as it was sent, one sentence each."""
    expected = {f"silver.{game}": count for game, count in sent.games.items()}
    expected |= {"bronze.game_events": sent.events, "ops.dead_letters": sent.garbage.total()}
    found = {name: table.rows for name, table in tables.items() if name in expected}
    return [
        f"{name}: {expected[name]:,} expected, {found.get(name, 0):,} there"
        for name in sorted(expected)
        if expected[name] != found.get(name, 0)
    ]


def _further(lake: Path) -> str:
    return (
        "\nLook further:\n"
        f"  LAKE={lake} .venv/bin/router ledger routes/games.yaml          what became of every record\n"
        '  .venv/bin/python -c "from deltalake import DeltaTable; '
        f"print(DeltaTable('{lake}/silver/poker').to_pandas().head())\"\n"
        f"  ls {lake}/silver/poker                                         plain Delta tables: any engine reads them\n"
        "  .venv/bin/router check --plan routes/games.yaml                find mistakes before a run does"
    )
