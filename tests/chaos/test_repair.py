"""Tables are damaged and repaired by a process of its own while another one runs the stream."""

from __future__ import annotations

import json
import signal
import threading
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.chaos import lakes
from tests.chaos.processes import RouterProcess
from tests.light import LIGHT
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]
GAMES = ("uno", "go", "rummy")
CONFIG = """\
name: games
lake: {folder}/{lake}
source: {{files: {{path: {folder}/in, files_per_batch: {files}}}}}
decode: {{json: "game string, id int"}}
bronze: bronze.events
routes:
  - name: games
    match: {{sql: "event.game IS NOT NULL"}}
    sinks: [{{tables: "silver.{{event.game}}"}}, {{delta: gold.all}}]
dead_letters: ops.dead
spark: {spark}
"""


def configured(folder: Path, lake: str, files: int) -> Path:
    file = folder / f"{lake}.yaml"
    file.write_text(CONFIG.format(folder=folder, lake=lake, files=files, spark=json.dumps(LIGHT)))
    return file


def write(folder: Path, number: int) -> None:
    lines = [json.dumps({"game": game, "id": number * 10 + n}) for game in GAMES for n in range(5)]
    hidden = folder / "in" / f".{number:05}"
    hidden.write_text("\n".join([*lines, "garbage"]))
    hidden.rename(folder / "in" / f"{number:05}.json")


def batches(lake: Path) -> int:
    return max((int(path.name) for path in (lake / "_router/games/spark/commits").glob("[0-9]*")), default=-1)


def command(folder: Path, name: str, *arguments: str) -> tuple[int, str]:
    process = RouterProcess(["-m", "router", *arguments], folder / f"{name}.log")
    return process.ended(), process.said


def test_tables_are_repaired_while_the_stream_runs(tmp_path: Path) -> None:
    """Without it a table can be mended only while nothing comes in, that is never."""
    (tmp_path / "in").mkdir()
    config, lake = configured(tmp_path, "lake", 1), tmp_path / "lake"
    stop = threading.Event()

    def produce() -> None:
        number = 0
        while not stop.wait(0.7):
            write(tmp_path, number)
            number += 1

    producer = threading.Thread(target=produce)
    producer.start()
    stream = RouterProcess(["-m", "router", "run", str(config), "--continuous"], tmp_path / "stream.log")
    try:
        wait_until(lambda: batches(lake) > 4, "some batches are done")
        sorted((lake / "silver/uno").glob("*.parquet"))[1].unlink()
        DeltaTable(lake / "silver/go").delete("id < 7")
        (lake / "silver/rummy").rename(tmp_path / "dropped")
        assert command(tmp_path, "verify", "verify", str(config), "silver.uno")[0] == 1
        before = batches(lake)
        first, *others = [f"silver.{game}" for game in GAMES]
        code, said = command(tmp_path, "one", "rebuild", str(config), first, "--accept", "foreign-changes")
        assert code == 0, said
        accepted = ("--accept", "foreign-changes")
        code, said = command(tmp_path, "refused", "rebuild", str(config), "ops.ledger", *others, *accepted)
        assert code == 2
        assert "ops.ledger is the router's own" in said
        assert not any(f"{table}: " in said for table in others), "one that cannot be rebuilt keeps all as they are"
        code, said = command(tmp_path, "several", "rebuild", str(config), *others, *accepted)
        assert code == 0, said
        assert all(f"{table}: " in said for table in others)
        assert batches(lake) > before
        wait_until(lambda: batches(lake) > before + 5, "more batches are done")
        # Until then rows wait for the table that was gone, which `verify` says.
        stream.says("silver.rummy can be written again")
        found = command(tmp_path, "beside", "verify", str(config))
        assert found[0] == 0, found[1]
    finally:
        stop.set()
        producer.join()
        stream.send(signal.SIGTERM)
        stream.ended()
        stream.clear()
    assert command(tmp_path, "rest", "run", str(config), "--once")[0] == 0
    assert command(tmp_path, "at the end", "verify", str(config), "--contents")[0] == 0
    undisturbed = configured(tmp_path, "other", 1000)
    assert command(tmp_path, "other", "run", str(undisturbed), "--once")[0] == 0
    mine, others = lakes.contents(lake), lakes.contents(tmp_path / "other")
    tables = ("gold.all", *(f"silver.{game}" for game in GAMES))
    assert lakes.differences({t: mine[t] for t in tables}, {t: others[t] for t in tables}) == []
