"""Files of checkpoint, store, logs and data that are empty or cut off when a run starts, after each step of a batch.

A run is crashed behind a step, its newest files are damaged as by a power cut, and it is started again: it goes
on, waits, or stops, as `table.py` says, and in the end the lake is that of an undisturbed run.
docs/evidence/storage-faults.md says the same to users.
"""

from __future__ import annotations

import logging
import shutil
import threading
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from router import RouterError
from router.engine.commit.committers import Committers
from router.errors import TableError
from tests.chaos import lakes
from tests.chaos.conftest import GAMES, WINS, configuration
from tests.chaos.faults.table import FAULTS, Fault
from tests.kills import CrashError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EVENTS, ROWS = 90, 30
WATCHED = {
    "land, first batch": (0, "decide", 0),
    "manifest, first batch": (0, "commit", 0),
    "land": (1, "decide", 0),
    "manifest": (1, "commit", 0),
    "apply": (1, "apply", 0),
    "ledger": (1, "ledger", 0),
    "offsets": (1, "ledger", 1),
    "plan": (2, "plan", 0),
    "end": (2, "plan", 0),
}
"""Batch, step and progress at which a run is crashed behind a step of the table."""
CASES = [
    pytest.param(
        fault, damage, id=f"{fault.name}-{damage}", marks=() if fault.quick and damage == "cut" else pytest.mark.slow
    )
    for fault in FAULTS
    for damage in fault.damages
]


class Crashing:
    """A configuration in a folder of its own, whose runs are crashed; each fault begins with a copy of what is left."""

    def __init__(self, folder: Path, topic: Any, drain: Any, spark: Any) -> None:
        gamers = {"name": "gamers", "match": {"sql": "event.gamer_id IS NOT NULL"}}
        upsert = {"upsert": {"table": "gold.gamers", "keys": ["event.gamer_id"]}}
        self.folder, self.drain, self.spark = folder, drain, spark
        routes = [GAMES, WINS, {**gamers, "sinks": [upsert]}]
        self.config = configuration(folder / "run", topic, rows=ROWS, routes=routes)
        self.lake = folder / "run" / "lake"
        self.crashed = cache(self._crashed)

    def undisturbed(self) -> dict[str, lakes.Rows]:
        """Return what the lake has after a run without a fault."""
        self.drain(self.config)
        found = lakes.contents(self.lake)
        shutil.rmtree(self.lake)
        return found

    def begin(self, step: str) -> None:
        """Put the lake as a run has left it that was crashed behind a step."""
        kept = self.crashed(step)
        shutil.rmtree(self.lake, ignore_errors=True)
        shutil.copytree(kept, self.lake)
        self.spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def _crashed(self, step: str) -> Path:
        shutil.rmtree(self.lake, ignore_errors=True)
        with pytest.MonkeyPatch.context() as patch:
            if step == "commit":
                crash_half_way(patch)
            with pytest.raises(CrashError):
                self.drain(self.config, watch=crash_at(*WATCHED[step]) if step in WATCHED else None)
        kept = self.folder / "kept" / step
        shutil.copytree(self.lake, kept)
        if step == "end":  # the crash comes a moment later, when Spark has planned the next batch
            for note in (kept / "_router/games/spark/offsets").glob("*2*"):
                note.unlink()
        return kept


def crash_at(batch: int, step: str, done: int) -> Callable[[int, str, int, int], None]:
    def watch(*now: Any) -> None:
        if now[:3] == (batch, step, done):
            raise CrashError

    return watch


def crash_half_way(patch: pytest.MonkeyPatch) -> None:
    """Let the tables of the second batch be committed one after another, and crash after two of them."""
    original, made = Committers._commit_table, []

    def table(self: Committers, works: list[Any], *about: Any) -> int:
        if works[0].version == 1 and works[0].table != "ops.ledger":
            made.append(works)
            if len(made) > 2:
                raise CrashError
        return original(self, works, *about)

    patch.setattr("router.engine.commit.committers.THREADS", 1)
    patch.setattr(Committers, "_commit_table", table)


@pytest.fixture(scope="module")
def crashing(spark, drain, new_topic, tmp_path_factory):
    """Return the configuration of this module, and the lake of its undisturbed run."""
    topic = new_topic()
    topic.simulate(EVENTS, games=3, bad=0.2)
    made = Crashing(tmp_path_factory.mktemp("faults"), topic, drain, spark)
    return made, made.undisturbed()


def harmed(lake: Path, fault: Fault, damage: str) -> dict[Path, bytes]:
    """Damage files; return what they had."""
    found = sorted(path for path in lake.glob(fault.path) if path.is_file())
    found = [path for path in found if fault.path.rpartition("/")[2].startswith(".") or path.name[0] != "."]
    assert found, f"no file {fault.path}"
    chosen = found if fault.every else sorted(found, key=_number)[-1:]
    had = {path: path.read_bytes() for path in chosen}
    for path, content in had.items():
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    return had


def _number(path: Path) -> tuple[int, str]:
    digits = "".join(sign for sign in path.name if sign.isdigit())
    return (int(digits), path.name) if path.suffix in ("", ".crc") and digits else (0, path.name)


class Waiting(logging.Handler):
    """Stop a run as soon as it says that it waits."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self.stop = stop
        self.said = ""

    def emit(self, record: logging.LogRecord) -> None:
        if "trying again" in record.getMessage():
            self.said = self.said or record.getMessage()
            self.stop.set()


@pytest.mark.parametrize(("fault", "damage"), CASES)
def test_a_damaged_file_loses_and_doubles_nothing(crashing, caplog, monkeypatch, fault: Fault, damage: str) -> None:
    """Without it a power cut ends a stream for good, or rows are lost or doubled when somebody helps it on."""
    run, undisturbed = crashing
    monkeypatch.setattr("router.engine.quarantine.table.FIRST_RELEASE_PAUSE_SECONDS", 0.0)
    run.begin(fault.step)
    had = harmed(run.lake, fault, damage)
    caplog.set_level(logging.INFO, "router")
    if fault.outcome == "stops":
        with pytest.raises(RouterError) as stopped:
            run.drain(run.config)
        said = str(stopped.value)
        assert stopped.value.exit_code == 2, said
    else:
        waits = drained(run)
        assert (waits != "") is (fault.outcome == "waits"), waits
        said = waits or caplog.text
    if fault.says:
        assert fault.says in said, said
        assert any(path.name in said for path in had), said
    elif fault.outcome != "goes on":
        assert any(path.name in said for path in had), said
    help_on(run, fault, had)
    if fault.left_out:
        for log in run.lake.glob(f"{fault.left_out}/*/_delta_log"):
            shutil.rmtree(log)
    found = lakes.contents(run.lake)
    undisturbed = {name: rows for name, rows in undisturbed.items() if not name.startswith(fault.left_out or "-")}
    if fault.outcome == "quarantine":  # which the ledger counts
        assert not found.pop("quarantine.games__games__tables"), "rows that were released have left the quarantine"
        undisturbed = {name: rows for name, rows in undisturbed.items() if name != "ops.ledger"}
        assert found.pop("ops.ledger")
    assert lakes.differences(found, undisturbed) == []


def drained(run: Crashing) -> str:
    """Run until the topic is drained, or until it says that it waits; return that line."""
    stop = threading.Event()
    handler = Waiting(stop)
    logging.getLogger("router").addHandler(handler)
    try:
        with suppress(TableError):  # stopped while it could not go on
            run.drain(run.config, stop=stop)
    finally:
        logging.getLogger("router").removeHandler(handler)
    return handler.said


def help_on(run: Crashing, fault: Fault, had: dict[Path, bytes]) -> None:
    """Do what the sentence says, and run again."""
    if fault.outcome == "goes on":
        return
    for path, content in had.items():
        if fault.way == "delete it":
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        else:
            path.write_bytes(content)
    if "commits" in fault.way:
        for note in (run.lake / "_router/games/spark/commits").glob("*1*"):
            note.unlink()
    run.spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert drained(run) == ""
