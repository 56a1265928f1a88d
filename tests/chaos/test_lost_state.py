"""Checkpoint and lake that do not belong together: refused in a sentence, and never lost or doubled in silence."""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from router import BatchError, StartError
from router.engine.commit.committers import Committers
from tests.chaos import lakes
from tests.chaos.conftest import GAMES, PARTITIONS, configuration
from tests.kills import CrashError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)
slow = pytest.mark.slow

EVENTS = 90
SENT_FIRST = b'{"game": "rummy", "amount": 1}'


def crash_at(step: str, batch: int = 0):
    """Return a watcher that crashes when a step of a batch begins."""

    def watch(at: int, now: str, done: int, of: int) -> None:
        if (at, now, done) == (batch, step, 0):
            raise CrashError

    return watch


@pytest.fixture
def topic(new_topic):
    topic = new_topic()
    topic.simulate(EVENTS, games=3)
    return topic


def once(lake: Path, events: int) -> None:
    """Assert that so many events are there, each once, and that the ledger says the same."""
    assert len(lakes.places(lake)) == lakes.places(lake).total() == events
    assert sum(lakes.rows(lake, f"silver.{game}").total() for game in ("rummy", "spades", "euchre")) == events
    ledger = lakes.read(lake, "ops.ledger")
    assert sum(row["read"] for row in ledger if row["read"] is not None) == events
    assert sum(row["landed"] for row in ledger if row["route"] == "games") == events


def test_without_its_checkpoint_a_lake_is_not_filled_again(drain, topic, tmp_path):
    config, lake = configuration(tmp_path, topic), tmp_path / "lake"
    drain(config)
    shutil.rmtree(lake / "_router")
    with pytest.raises(StartError, match="--accept lost-checkpoint"):
        drain(config)
    topic.simulate(EVENTS, games=3, seed=1)
    drain(config, accept={"lost-checkpoint"})
    once(lake, 2 * EVENTS)


def test_duplicates_are_written_only_knowingly(drain, topic, tmp_path):
    config, lake = configuration(tmp_path, topic), tmp_path / "lake"
    drain(config)
    shutil.rmtree(lake / "_router")
    drain(config, accept={"duplicates"})
    assert len(lakes.places(lake)) == EVENTS
    assert set(lakes.places(lake).values()) == {2}


def test_partitions_that_were_empty_are_read_from_their_beginning(drain, new_topic, tmp_path):
    topic = new_topic()
    topic.send([SENT_FIRST] * 5, partition=1)
    config, lake = configuration(tmp_path, topic), tmp_path / "lake"
    drain(config)
    shutil.rmtree(lake / "_router")
    for partition in range(PARTITIONS):
        topic.send([SENT_FIRST] * 2, partition)
    drain(config, accept={"lost-checkpoint"})
    once(lake, 5 + 2 * PARTITIONS)


def test_manifests_of_a_lost_checkpoint_are_not_taken_for_new_batches(drain, topic, tmp_path):
    config, lake = configuration(tmp_path, topic), tmp_path / "lake"
    drain(config)
    shutil.rmtree(lake / "_router/games/spark")  # the manifests stay
    topic.simulate(EVENTS, games=3, seed=1)
    drain(config, accept={"lost-checkpoint"})
    once(lake, 2 * EVENTS)


def test_without_its_lake_a_checkpoint_does_not_go_on(drain, topic, tmp_path):
    config, lake = configuration(tmp_path, topic, checkpoint=str(tmp_path / "checkpoint")), tmp_path / "lake"
    drain(config)
    before = lakes.places(lake)
    shutil.rmtree(lake)
    topic.simulate(EVENTS, games=3, seed=1)
    with pytest.raises(StartError, match="--accept lost-lake"):
        drain(config)
    assert lakes.tables(lake) == []
    drain(config, accept={"lost-lake"})
    once(lake, EVENTS)
    assert not lakes.places(lake) & before


def test_files_cannot_be_gone_on_with_from_the_ledger(drain, topic, tmp_path):
    config = configuration(tmp_path, topic, source={"files": {"path": str(tmp_path / "events")}})
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "one.jsonl").write_bytes(SENT_FIRST)
    drain(config)
    shutil.rmtree(tmp_path / "lake/_router")
    with pytest.raises(StartError, match="its checkpoint is empty"):
        drain(config)
    with pytest.raises(StartError, match="only a Kafka source"):
        drain(config, accept={"lost-checkpoint"})
    assert lakes.rows(tmp_path / "lake", "silver.rummy").total() == 1


def test_a_checkpoint_named_by_a_uri_is_known_again(drain, topic, tmp_path):
    config = configuration(tmp_path, topic, checkpoint=f"file://{tmp_path}/checkpoint")
    drain(config)
    topic.simulate(EVENTS, games=3, seed=1)
    drain(config)
    once(tmp_path / "lake", 2 * EVENTS)


def test_a_lake_put_back_from_an_older_copy_is_not_gone_on_with(drain, topic, tmp_path):
    config, lake = configuration(tmp_path, topic, checkpoint=str(tmp_path / "checkpoint")), tmp_path / "lake"
    drain(config)
    shutil.copytree(lake, tmp_path / "copy")
    topic.simulate(EVENTS, games=3, seed=1)
    drain(config)
    shutil.rmtree(lake)
    (tmp_path / "copy").rename(lake)
    with pytest.raises(StartError, match="--accept lost-lake"):
        drain(config)


@slow
@pytest.mark.parametrize("copy", [False, True], ids=["deleted", "older copy"])
def test_a_table_that_lost_its_batches_is_not_gone_on_with(drain, topic, tmp_path, copy):
    config, lake = configuration(tmp_path, topic), tmp_path / "lake"
    table = lake / "silver" / "rummy"
    drain(config)
    shutil.copytree(table, tmp_path / "copy")
    had = lakes.rows(lake, "silver.rummy")
    topic.simulate(EVENTS, games=3, seed=1)
    drain(config)
    shutil.rmtree(table)
    if copy:
        (tmp_path / "copy").rename(table)
    topic.simulate(EVENTS, games=3, seed=2)
    with pytest.raises(StartError, match=r"silver\.rummy: it .* --accept lost-tables"):
        drain(config)
    drain(config, accept={"lost-tables"})
    drain(config)
    assert len(lakes.places(lake)) == 3 * EVENTS
    assert (lakes.rows(lake, "silver.rummy") > had) is copy


@pytest.mark.parametrize("batches", [1, 2])
def test_a_checkpoint_put_back_from_an_older_copy_is_not_gone_on_with(drain, topic, tmp_path, batches):
    """Without it new records are taken for the batches that the tables have, and are lost."""
    config, lake = configuration(tmp_path, topic), tmp_path / "lake"
    drain(config)
    shutil.copytree(lake / "_router", tmp_path / "copy")
    for seed in range(batches):
        topic.simulate(EVENTS, games=3, seed=seed + 1)
        drain(config)
    shutil.rmtree(lake / "_router")
    (tmp_path / "copy").rename(lake / "_router")
    topic.simulate(EVENTS, games=3, seed=3)
    with pytest.raises(StartError, match="--accept lost-checkpoint"):
        drain(config)
    shutil.rmtree(lake / "_router")
    drain(config, accept={"lost-checkpoint"})
    once(lake, (2 + batches) * EVENTS)


@pytest.mark.parametrize(
    "batch", [pytest.param(0, id="first batch", marks=pytest.mark.slow), pytest.param(1, id="later batch")]
)
def test_a_batch_cut_off_half_way_must_be_taken_back_before_a_new_checkpoint(drain, topic, tmp_path, batch):
    config, lake = configuration(tmp_path, topic, rows=EVENTS // 2), tmp_path / "lake"
    with pytest.raises(CrashError):
        drain(config, watch=crash_at("ledger", batch))
    ahead = {table for table in lakes.tables(lake) if batch in lakes.batches(lake, table)}
    shutil.rmtree(lake / "_router")
    with pytest.raises(StartError, match=r"bronze\.events|run "):
        drain(config)
    with pytest.raises(StartError) as refused:
        drain(config, accept={"lost-checkpoint"})
    if batch == 0:  # there is no ledger yet: everything is taken back and begun again
        assert "ledger" in str(refused.value)
        shutil.rmtree(lake)
        drain(config)
    else:
        assert "cut off half-way" in str(refused.value)
        assert all(table in str(refused.value) for table in ahead)
        for table in ahead:
            handle = DeltaTable(lake / table.replace(".", "/"))
            handle.restore(handle.version() - 1)
        drain(config, accept={"lost-checkpoint"})
    once(lake, EVENTS)


def test_the_first_batch_after_a_lost_checkpoint_may_be_cut_off_too(drain, topic, tmp_path):
    config, lake = configuration(tmp_path, topic), tmp_path / "lake"
    drain(config)
    shutil.rmtree(lake / "_router")
    topic.simulate(EVENTS, games=3, seed=1)
    with pytest.raises(CrashError):
        drain(config, accept={"lost-checkpoint"}, watch=crash_at("ledger"))
    drain(config)
    once(lake, 2 * EVENTS)


def test_landed_files_that_a_vacuum_took_are_landed_again(drain, topic, tmp_path, monkeypatch):
    config, lake = configuration(tmp_path, topic), tmp_path / "lake"
    crash_after(monkeypatch, 2)
    with pytest.raises(CrashError):
        drain(config)
    monkeypatch.undo()
    vacuum(lake)
    drain(config)
    once(lake, EVENTS)


def test_staged_files_that_a_power_cut_emptied_are_landed_again(drain, topic, tmp_path, monkeypatch):
    config, lake = configuration(tmp_path, topic), tmp_path / "lake"
    crash_after(monkeypatch, 2)
    with pytest.raises(CrashError):
        drain(config)
    monkeypatch.undo()
    for file in uncommitted(lake):
        file.write_bytes(b"")
    drain(config)
    once(lake, EVENTS)
    for table in lakes.tables(lake):
        lakes.read(lake, table)


def uncommitted(lake: Path) -> list[Path]:
    """Return the staged files that no commit refers to; there are some."""
    found = lakes.uncommitted_files(lake)
    assert found
    return found


def vacuum(lake: Path) -> None:
    """Delete the staged files that no commit refers to."""
    for file in uncommitted(lake):
        file.unlink()


def crash_after(monkeypatch, commits: int) -> None:
    """Let so many tables be committed and crash at the next one."""
    made, original = itertools.count(), Committers._commit_table

    def table(self, *arguments):
        if next(made) >= commits:
            raise CrashError
        return original(self, *arguments)

    monkeypatch.setattr("router.engine.commit.committers.THREADS", 1)
    monkeypatch.setattr(Committers, "_commit_table", table)


def test_a_decided_batch_is_finished_as_decided_under_a_changed_configuration(drain, topic, tmp_path, monkeypatch):
    lake, half = tmp_path / "lake", EVENTS // 2
    config = configuration(tmp_path, topic, rows=half, routes=[GAMES, every("old")])
    crash_after(monkeypatch, 2)
    with pytest.raises(CrashError):
        drain(config)
    monkeypatch.undo()
    drain(configuration(tmp_path, topic, rows=half, routes=[GAMES, every("new")]))
    once(lake, EVENTS)
    booked = {(row["batch_id"] == 0, row["route"]) for row in lakes.read(lake, "ops.ledger") if row["route"]}
    assert booked == {(True, "games"), (True, "old"), (False, "games"), (False, "new")}
    assert lakes.batches(lake, "silver.old") == {0}
    assert 0 not in lakes.batches(lake, "silver.new")


@pytest.mark.parametrize("commit", ["auto", pytest.param("spark", marks=slow)])
def test_a_batch_without_its_staged_files_is_not_finished_under_a_changed_configuration(
    drain, topic, tmp_path, monkeypatch, commit
):
    config, lake = configuration(tmp_path, topic, commit=commit, routes=[GAMES, every("old")]), tmp_path / "lake"
    crash_after(monkeypatch, 2)
    with pytest.raises(CrashError):
        drain(config)
    monkeypatch.undo()
    vacuum(lake)

    former = config.read_text()
    with pytest.raises(BatchError, match="configuration has changed"):
        drain(configuration(tmp_path, topic, commit=commit, routes=[GAMES, every("new")]))
    config.write_text(former)
    drain(config)
    once(lake, EVENTS)


def every(name: str):
    """Return a route that takes every event."""
    return {"name": name, "match": {"sql": "true"}, "sinks": [{"delta": f"silver.{name}"}]}
