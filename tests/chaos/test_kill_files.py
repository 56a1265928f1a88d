"""A router of files that is killed takes each row once: with a table that rows are looked up in, and rows that wait."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from router.config.loader import load_config
from router.engine.audit.verify import verify_tables
from tests.chaos import lakes
from tests.light import LIGHT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.lakes import Rows

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

FILES, ROWS, BEGIN = 7, 40, 1_790_000_000
POINTS = ("plan", "landing", "manifest", "commits", "ledger")


def _configuration(folder: Path) -> Path:
    """Write files of rows, a table to look up in, and a configuration of three batches."""
    (folder / "in").mkdir(parents=True)
    for number in range(FILES):
        lines = [f"game{row % 5},{number * ROWS + row},{'' if row % 10 == 3 else row}" for row in range(ROWS)]
        file = folder / "in" / f"{number}.csv"
        file.write_text("\n".join(["game,id,amount", *lines, ""]))
        os.utime(file, (BEGIN + number, BEGIN + number))  # Spark takes the oldest first, and the rows have the time
    games = [f"game{number}" for number in range(4)]
    write_deltalake(folder / "lake/crm/owners", pa.table({"name": games, "owner": [f"o-{game}" for game in games]}))
    text: dict[str, Any] = {
        "name": "games",
        "lake": str(folder / "lake"),
        "source": {
            "files": {
                **{"path": str(folder / "in"), "format": "csv", "files_per_batch": 3},
                "after": {"archive": str(folder / "old")},
            }
        },
        "decode": {"rows": {}},
        "bronze": "bronze.events",
        "routes": [
            {
                **{"name": "games", "match": {"sql": "true"}, "sinks": [{"tables": "silver.{event.game}"}]},
                "lookup": [{"name": "whose", "table": "crm.owners", "on": {"name": "event.game"}}],
                "select": ["event.*", "whose.owner"],
                "expect": [{"name": "paid", "sql": "event.amount IS NOT NULL", "otherwise": "quarantine"}],
            }
        ],
        "dead_letters": "ops.dead_letters",
        "spark": LIGHT,
    }
    path = folder / "games.yaml"
    path.write_text(yaml.safe_dump(text, sort_keys=False))
    return path


def _tables(folder: Path) -> dict[str, Rows]:
    """Return the tables without what says where the lake is."""
    found = {}
    for table in lakes.tables(folder / "lake"):
        rows = lakes.rows(folder / "lake", table)
        found[table] = type(rows)({row.replace(str(folder), ""): count for row, count in rows.items()})
    return found


@pytest.fixture(scope="module")
def undisturbed(drain, tmp_path_factory) -> dict[str, Rows]:
    folder = tmp_path_factory.mktemp("files")
    drain(_configuration(folder))
    found = _tables(folder)
    landed = sum(rows.total() for table, rows in found.items() if table.startswith("silver."))
    assert (landed, found["quarantine.games__games__tables"].total()) == (FILES * ROWS * 9 // 10, FILES * ROWS // 10)
    assert all("o-game1" in row for row in found["silver.game1"])
    return found


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_router_takes_each_row_of_a_file_once(undisturbed, start, drain, registry, tmp_path, point):
    config, hold = _configuration(tmp_path), tmp_path / "hold"
    killed = start(config, "--kill", point, "--batch", "1", "--hold", str(hold))
    assert killed.ended() == -signal.SIGKILL, killed.said
    hold.unlink(missing_ok=True)

    drain(config)

    assert lakes.differences(_tables(tmp_path), undisturbed) == []
    kept = sorted(path.name for folder in ("in", "old") for path in (tmp_path / folder).rglob("*.csv"))
    assert kept == sorted(f"{number}.csv" for number in range(FILES))
    assert [
        problem for audit in verify_tables(load_config(config, registry).config) for problem in audit.problems
    ] == []
