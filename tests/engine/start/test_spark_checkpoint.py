"""Damaged notes of Spark: mended where nothing is lost by it, else refused with the file's name. Without Spark."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from router.api.sinks import Applied
from router.config.loader import load_config
from router.delta.lake import Lake
from router.engine.checkpoint_store import CheckpointStore, Manifest, QueryNote
from router.engine.outbox.apply import kept_parts
from router.engine.outbox.detached import DetachedSink
from router.engine.spark.executors import Executors
from router.engine.start.spark_checkpoint import (
    NO_WATERMARK,
    CheckpointMending,
    SparkNotes,
    offsets_in,
    refuse_left_topics,
)
from router.registry import load_registry
from tests.engine.commit.test_checkpoint_store import PARTITION, manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

from router import StartError

KAFKA = '{{kafka: {{servers: "127.0.0.1:9092", topics: [t]{start}}}}}'
TEXT = """\
name: games
lake: {lake}
source: {source}
decode: {{json: "game string"}}
routes: [{{name: r, match: {{sql: "true"}}, sinks: [{{delta: silver.t}}]}}]
dead_letters: ops.dead
"""
HEAD = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":7,"conf":{"a":"b"}}'


class Notes:
    """A checkpoint with whole notes of two batches, of which one was decided to have read offsets 5 to 7."""

    def __init__(self, folder: Path, source: str = KAFKA.format(start="")) -> None:
        file = folder / "games.yaml"
        file.write_text(TEXT.format(lake=folder / "lake", source=source))
        self.config = load_config(file, load_registry()).config
        self.lake, self.checkpoint = Lake.at(str(folder / "lake")), Lake.at(str(folder / "checkpoint"))
        self.notes = SparkNotes(self.checkpoint)
        self.store = CheckpointStore(self.checkpoint, "run-1")
        self.notes.write("metadata", '{"id":"run-1"}')
        self.notes.write("sources/0/0", '\0v1\n{"t":{"0":2,"1":0}}')
        self.notes.write("offsets/0", f'{HEAD}\n{{"t":{{"0":5,"1":0}}}}')
        self.notes.write("commits/0", 'v1\n{"nextBatchWatermarkMs":0}')
        self.notes.write("offsets/1", f'{HEAD}\n{{"t":{{"0":8,"1":0}}}}')
        self.decide(0, 2, 4)
        self.decide(1, 5, 7)

    def decide(self, batch: int, first: int, last: int, run: str = "run-1") -> Manifest:
        made = replace(manifest(batch), partitions=(replace(PARTITION, first=first, last=last),))
        CheckpointStore(self.checkpoint, run).write_manifest(made)
        return made

    def damage(self, *paths: str, content: bytes = b"") -> None:
        for path in paths:
            self.checkpoint.write(f"spark/{path}", content)

    def mend(self) -> None:
        CheckpointMending(self.config, self.lake, self.checkpoint, "fingerprint").mend_notes()


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path)


def test_whole_notes_stay_as_they_are(notes: Notes, tmp_path: Path) -> None:
    """Without it a start changes what Spark goes on from."""
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    notes.mend()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("content", [b"", b"v1\n{", HEAD.encode(), f'{HEAD}\n{{"t":{{"0":'.encode(), bytes(40)])
def test_the_offsets_of_a_decided_batch_are_those_of_its_manifest(notes: Notes, content: bytes) -> None:
    """Without it a power cut ends the stream for good, or the batch is taken for other records."""
    notes.damage("offsets/1", content=content)
    notes.mend()
    text = notes.notes.read_text("offsets/1") or ""
    assert offsets_in(text) == {"t": {0: 8, 1: 0}}
    assert text.startswith(HEAD)


def test_offsets_of_several_batches_are_mended(notes: Notes) -> None:
    """Without it two quick batches before a power cut are one too many."""
    notes.damage("offsets/0", "offsets/1")
    notes.mend()
    assert [offsets_in(notes.notes.read_text(f"offsets/{n}") or "") for n in (0, 1)] == [
        {"t": {0: 5, 1: 0}},
        {"t": {0: 8, 1: 0}},
    ]


def test_a_batch_that_was_not_decided_is_read_again(notes: Notes) -> None:
    """Without it records are nowhere: Spark would go on behind them."""
    notes.store.delete(notes.store.manifest_path(1))
    notes.damage("offsets/1")
    notes.mend()
    assert notes.notes.list_batches("offsets") == [0]


def test_a_note_that_is_not_what_its_checksum_says_is_damaged(notes: Notes) -> None:
    """Without it an offset of which the disk has lost a digit is gone on from."""
    notes.checkpoint.write("spark/offsets/.1.crc", b"crc\0" + (512).to_bytes(4, "big") + b"four")
    assert "checksum" in notes.notes.find_damage("offsets/1")
    notes.checkpoint.write("spark/offsets/.1.crc", b"crc\0")
    assert notes.notes.find_damage("offsets/1") == ""
    assert notes.checkpoint.read("spark/offsets/.1.crc") is None


def test_a_new_run_is_not_taken_for_the_one_before_it(notes: Notes) -> None:
    """Without it a run that begins where the ledger ends gets the manifests of the run that was lost."""
    for batch in (0, 1):
        notes.store.delete(notes.store.manifest_path(batch))
    notes.notes.delete("offsets/1")
    notes.notes.delete("commits/0")
    notes.decide(0, 0, 1, run="run-0")
    notes.damage("metadata")
    notes.mend()
    assert notes.notes.read_text("metadata") is None
    assert notes.notes.list_batches("offsets") == [0]


def test_the_run_is_the_one_whose_manifests_fit(notes: Notes) -> None:
    """Without it all batches would be written under transaction ids of another run."""
    notes.decide(1, 900, 950, run="run-0")
    notes.damage("metadata", content=b'{"id":"run')
    notes.mend()
    assert json.loads(notes.notes.read_text("metadata") or "") == {"id": "run-1"}


def test_metadata_that_nothing_says_is_refused(notes: Notes) -> None:
    notes.damage("metadata", "offsets/1")
    with pytest.raises(StartError, match=r"spark/metadata is damaged: it is empty.*Restore it"):
        notes.mend()


@pytest.mark.parametrize("source", ["{files: {path: /in}}", "{format: {name: rate}}"])
def test_offsets_of_another_source_are_refused_where_the_batch_was_decided(tmp_path: Path, source: str) -> None:
    """A manifest says what a batch has read of Kafka only."""
    notes = Notes(tmp_path, source)
    notes.damage("offsets/1")
    with pytest.raises(StartError, match=r"spark/offsets/1 is damaged: it is empty.*batch 1 has ended.*Restore it"):
        notes.mend()
    notes.store.delete(notes.store.manifest_path(1))
    notes.mend()
    assert notes.notes.list_batches("offsets") == [0]


def test_where_a_query_began_at_the_end_of_its_topic_is_asked(tmp_path: Path) -> None:
    """Without it records that came meanwhile are passed over without a word."""
    notes = Notes(tmp_path, KAFKA.format(start=", start: latest"))
    for batch in (0, 1):
        notes.store.delete(notes.store.manifest_path(batch))
        notes.notes.delete(f"offsets/{batch}")
    notes.notes.delete("commits/0")
    notes.damage("sources/0/0")
    with pytest.raises(StartError, match=r"sources/0/0 is damaged.*starts over"):
        notes.mend()


@pytest.mark.parametrize(
    "folder",
    [
        *("applied/run-1/0000000001.json", "blocked/r/s/silver.t.json", "known/r__s.json"),
        *("approvals/r/s/silver.t.7.json", "backlog/r__s.json", "lost/run-1.json", "replays/r__s.json"),
    ],
)
@pytest.mark.parametrize("content", [b"", b'{"r/s": [1'])
def test_half_a_file_of_the_store_is_not_taken_for_none(notes: Notes, folder: str, content: bytes) -> None:
    """Without it sinks get rows twice, and quarantined rows are forgotten."""
    notes.store.write(folder, content)
    with pytest.raises(StartError, match=f"{folder} is damaged: it is"):
        notes.store.load(folder)


def test_a_manifest_of_a_batch_that_nobody_has_is_decided_anew(notes: Notes) -> None:
    notes.store.write(notes.store.manifest_path(1), b'{"batch": 1')
    notes.mend()
    assert notes.store.read_manifest(1) is None


def test_an_empty_note_is_not_taken_for_another_version(notes: Notes) -> None:
    notes.store.write("query.json", b"")
    with pytest.raises(StartError, match=r"store/query\.json is damaged: it is empty"):
        notes.store.note_format()


@pytest.mark.parametrize(("path", "content"), [("format", b"3"), ("query.json", b'{"format": 5, "new": 1}')])
def test_a_checkpoint_of_another_version_is_refused(notes: Notes, path: str, content: bytes) -> None:
    """Without it the router continues without what the other version has noted."""
    notes.store.delete("query.json")
    notes.store.write(path, content)
    with pytest.raises(StartError, match=r"another version of the router, .* give this run a new checkpoint"):
        notes.store.note_format()


def test_what_the_hint_says_mends_a_damaged_note(notes: Notes) -> None:
    notes.store.write("query.json", b'{"format": 4}')
    notes.store.note_format()
    notes.store.change_note(source="kafka", runs={"a": 1})
    notes.store.change_note(gone_sinks=["r/s"])
    assert notes.store.read_note() == QueryNote(source="kafka", runs={"a": 1}, gone_sinks=("r/s",))


@pytest.fixture
def detached(tmp_path: Path) -> DetachedSink:
    """Return a detached sink that has sent one batch and begun another."""
    notes = Notes(tmp_path)
    about: Any = notes.config, None, notes.lake, notes.checkpoint, threading.Event(), Executors(), "r", "s", None
    sink = DetachedSink(*about)
    own = SparkNotes(notes.checkpoint, sink.place)
    own.write("metadata", '{"id":"run-7"}')
    for batch in (0, 1):
        own.write(f"offsets/{batch}", f'{HEAD}\n{{"reservoirVersion":{batch}}}')
    own.write("commits/0", NO_WATERMARK)
    return sink


def own(sink: DetachedSink) -> SparkNotes:
    return SparkNotes(sink.checkpoint, sink.place)


def test_a_batch_that_its_sink_has_not_got_is_read_again(detached: DetachedSink) -> None:
    """Without it a power cut stops a detached sink for good."""
    detached.checkpoint.write(f"{detached.place}/offsets/1", b"v1")
    detached.mend_notes()
    assert own(detached).list_batches("offsets") == [0]


def sent(sink: DetachedSink) -> None:
    CheckpointStore(sink.checkpoint, "run-7").mark_applied(1, "r/s", Applied(3))


def begun(sink: DetachedSink) -> None:
    kept_parts(sink.lake, "games:run-7/r/s", 1)("ops.receipts").write(pa.table({"n": [1]}))


def ended(sink: DetachedSink) -> None:
    own(sink).write("commits/1", NO_WATERMARK)


@pytest.mark.parametrize("got", [sent, begun, ended])
def test_a_batch_that_its_sink_may_have_got_is_not_read_again(
    detached: DetachedSink, got: Callable[[DetachedSink], None]
) -> None:
    """Without it an API gets rows a second time, in other calls."""
    got(detached)
    detached.checkpoint.write(f"{detached.place}/offsets/1", b"")
    with pytest.raises(StartError, match=r"detached/r__s/offsets/1 is damaged: it is empty.*--accept duplicates"):
        detached.mend_notes()


def test_the_end_of_a_sinks_batch_is_noted_again(detached: DetachedSink) -> None:
    """Without it a sink whose rows are all sent stops for good."""
    ended(detached)
    for batch in (0, 1):
        detached.checkpoint.write(f"{detached.place}/commits/{batch}", b"")
    detached.mend_notes()
    assert own(detached).list_batches("commits") == [0]
    assert own(detached).read_text("commits/0") == NO_WATERMARK


def test_a_pattern_of_topics_that_only_java_reads_starts_again(tmp_path: Path) -> None:
    """Without it every start but the first ends with a traceback: Spark reads a pattern as Java does."""
    notes = Notes(tmp_path, "{kafka: {servers: '127.0.0.1:9092', pattern: '\\p{L}+'}}")
    refuse_left_topics(notes.config, notes.checkpoint)
