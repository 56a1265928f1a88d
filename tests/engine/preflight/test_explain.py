"""What is said of one table, without Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from router import TableError
from router.api.sinks import KeyedTable
from router.api.table_options import NewTable
from router.cli import commands
from router.config.loader import load_config
from router.delta.keyed import upsert as module
from router.delta.keyed.upsert import TableUpsert, upsert_rows
from router.delta.lake import Lake
from router.engine.checkpoint_store import CheckpointStore
from router.engine.merge.backlog import Backlog, BacklogStore
from router.engine.preflight.explain import explain_table
from router.registry import load_registry
from tests.delta.model import Record, lane

if TYPE_CHECKING:
    from pathlib import Path

    from router.config.models import Config

TEXT = """\
name: games
lake: {lake}
source: {{kafka: {{servers: "127.0.0.1:9092", topics: [profiles]}}}}
decode: {{json: "game string, gamer string, level int"}}
bronze: bronze.profiles
routes:
  - name: profiles
    match: {{sql: "event.game IS NOT NULL"}}
    sinks:
      - upsert: {{table: "silver.{{event.game}}", keys: [event.gamer]}}
      - upsert: {{table: silver.all, keys: [event.gamer], cluster_by: [event.level]}}
      - delta: silver.log
dead_letters: ops.dead
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a configuration, with a lake in which one table was merged in batch 3."""
    lake = Lake.at(str(tmp_path / "lake"))
    keyed = KeyedTable(("gamer",), new_table=NewTable(comment="the last of each"))
    rows = [Record((f"g{n}",), n, values=(("level", n),), deletes=n == 4) for n in range(5)]
    work = TableUpsert("silver.uno", "games:run-7/profiles/upsert/silver.uno", 3, keyed, {})
    upsert_rows(lake, work, lane(rows, keyed, {"gamer": pa.string(), "level": pa.int32()}))
    lake.write("_router/games/spark/metadata", b'{"id": "run-7"}')
    waits = {"silver.uno": Backlog(2, {"profiles": {0: (5, 6)}}, "it was broken by hand")}
    store = CheckpointStore(Lake.at(str(tmp_path / "lake/_router/games")))
    BacklogStore(store, "profiles/upsert").write_backlog("games:run-7", 4, {}, waits)
    path = tmp_path / "games.yaml"
    path.write_text(TEXT.format(lake=lake.root))
    return path


def config(file: Path) -> Config:
    return load_config(file, load_registry()).config


def test_a_table_is_explained(file: Path) -> None:
    """Without it an operator has to read a Delta log to know who writes a table, and what is the matter with it."""
    shown = CliRunner().invoke(commands, ["tables", str(file), "silver.uno"])
    found = dict(line.split("  ", 1) for line in shown.output.splitlines())
    found = {name: text.strip() for name, text in found.items()}

    assert shown.exit_code == 0
    assert found["table"] == f"silver.uno at {config(file).lake}/silver/uno"
    assert found["bytes"].endswith(f"in 1 files, version {DeltaTable(file.parent / 'lake/silver/uno').version()}")
    assert {name: found[name] for name in ("rows", "comment", "written by", "keys", "backlog")} == {
        **{"rows": "4", "comment": "the last of each", "written by": "profiles/upsert, last in batch 3"},
        **{"keys": "gamer", "backlog": "2 rows: it was broken by hand"},
    }
    assert found["engine"].startswith("arrow: ")


@pytest.mark.parametrize(
    ("table", "engine"),
    [("silver.all", "spark: it is to be clustered"), ("silver.log", "arrow: as configured")],
)
def test_a_table_that_is_still_to_come_is_explained(file: Path, table: str, engine: str) -> None:
    """Without it the engine of a table is known when it has been made."""
    assert dict(explain_table(config(file), table))["engine"] == engine


def test_what_the_router_writes_itself_is_said(file: Path) -> None:
    """Without it its own tables look like nobody's."""
    assert dict(explain_table(config(file), "ops.dead"))["written by"] == "`dead_letters`: what went nowhere else"


def test_a_table_that_nobody_knows_is_refused(file: Path) -> None:
    """Without it a typing error is taken for an empty table."""
    with pytest.raises(TableError) as caught:
        explain_table(config(file), "silver.unno")

    assert caught.value.table == "silver.unno"


def test_a_large_table_is_sparks(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it one task has to write a table of any size anew."""
    write_deltalake(lake.address("silver.a"), pa.table({"k": ["a"] * 1000}))
    table, keyed = lake.open("silver.a"), KeyedTable(("k",))
    size = module.stored_bytes(table) if table else 0
    chosen: dict[Any, str] = {}
    for limit in (size, size - 1):
        monkeypatch.setattr(module, "LARGE", limit)
        for engine in ("auto", "arrow", "spark"):
            chosen[limit == size, engine] = module.merge_engine(table, replace(keyed, engine=engine)).engine

    assert chosen == {
        **{(True, "auto"): "arrow", (True, "arrow"): "arrow", (True, "spark"): "spark"},
        **{(False, "auto"): "spark", (False, "arrow"): "arrow", (False, "spark"): "spark"},
    }
