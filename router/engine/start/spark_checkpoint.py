"""Spark's own notes about a query, compared with the manifests when a run starts, and mended if that loses nothing.

Spark renames its notes but does not sync them, so a power cut may leave the newest empty or half, or their checksums;
Spark then fails at every start. The manifests are synced, and so what Spark's notes contained is known from them:

| damaged | and | becomes |
|---|---|---|
| `commits/N` | N is the newest batch | deleted: N runs again and finds its work done, as after a crash |
| | a later batch has begun | written again: N had ended |
| `offsets/N` | no manifest of N | deleted: nothing of N was committed; its records are read again |
| | a manifest, of a Kafka source | written again: each partition ends after the last record that the manifest counts |
| `sources/0/0` | a manifest of batch 0, of a Kafka source | written again: each partition begins with what it counts |
| | batch 0 has ended long ago | written again: Spark reads it, and nothing begins with it any more |
| | nothing was decided, and Kafka is read from its earliest record | deleted: the query begins again |
| `metadata` | no batch was decided | deleted: a new run begins |
| | manifests of one run fit the offsets | written again: it is that run |
| a checksum `.NAME.crc` | the note is whole | deleted: Spark reads a note without one |

Everything else is refused with the file's name. A manifest that is damaged itself is deleted if no table has its
batch, which is then decided again. Runs on the driver, before the query starts.
"""

from __future__ import annotations

import json
import logging
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import DeltaError
from pyarrow import fs

from router.delta.history import commit_notes
from router.delta.table_cache import THREADS
from router.engine.checkpoint_store import CheckpointStore
from router.errors import StartError
from router.own_names import QUARANTINE

if TYPE_CHECKING:
    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.source.source import Offsets

log = logging.getLogger("router")
NO_WATERMARK = 'v1\n{"nextBatchWatermarkMs":0}'
"""What Spark notes when a batch of a query without watermarks has ended (CommitLog, version 1)."""
NO_OFFSET = "-"
"""What stands in the place of the offset of a source without data (OffsetSeqLog)."""
CRC_HEADER = 8
"""Bytes of the head of a checksum file of Hadoop: `crc`, 0, size of a chunk."""
CRC_CHUNK = 512
"""Bytes of a note that have one checksum."""
RECENT = 100
"""Commits of a table that are searched for a batch of a query."""
ANOTHER = "Restore it from a copy; without one give this configuration another name, lake and checkpoint"


@dataclass(frozen=True)
class SparkNotes:
    """The notes of one query in the folder of its checkpoint."""

    checkpoint: Lake
    folder: str = "spark"

    def list_batches(self, kind: str) -> list[int]:
        """Return the batches that have a note of a kind (`offsets`, `commits`), oldest first."""
        selector = fs.FileSelector(f"{self.folder}/{kind}", allow_not_found=True)
        names = [entry.base_name for entry in self.checkpoint.files.get_file_info(selector)]
        return sorted(int(name) for name in names if name.isdecimal())

    def read_text(self, path: str) -> str | None:
        """Return a note; None if there is none."""
        content = self.checkpoint.read(f"{self.folder}/{path}")
        return None if content is None else content.decode("utf-8", "replace").rstrip("\n")

    def read_offsets(self, path: str) -> Offsets:
        """Return the offsets of a Kafka source in a note; none if there is no such note."""
        return offsets_in(self.read_text(path) or "{}")

    def write(self, path: str, text: str) -> None:
        """Write a note; the checksum of the former one would make Hadoop refuse it."""
        self.checkpoint.delete(f"{self.folder}/{_checksum_path(path)}")
        self.checkpoint.write(f"{self.folder}/{path}", text.encode())

    def delete(self, path: str) -> None:
        """Delete a note and its checksum."""
        self.checkpoint.delete(f"{self.folder}/{path}")
        self.checkpoint.delete(f"{self.folder}/{_checksum_path(path)}")

    def note_address(self, path: str) -> str:
        """Return the address of a note."""
        return f"{self.checkpoint.root}/{self.folder}/{path}"

    def mend_note(self, path: str, text: str | None, why: str) -> None:
        """Write a damaged note again, or delete it without a text, and log that."""
        outcome = "deleted" if text is None else "written again"
        log.warning("%s was damaged: %s. It is %s: %s", self.note_address(path), self.find_damage(path), outcome, why)
        if text is None:
            self.delete(path)
        else:
            self.write(path, text)

    def mend_commits(self) -> None:
        """Mend the notes about batches that have ended."""
        newest = max(self.list_batches("offsets"), default=-1)
        # A power cut damages the newest notes: the first whole one ends the search.
        for batch in reversed(self.list_batches("commits")):
            if not self.find_damage(f"commits/{batch}"):
                return
            if batch < newest:
                self.mend_note(
                    f"commits/{batch}", NO_WATERMARK, f"batch {batch + 1} has begun, so that {batch} had ended"
                )
            else:
                self.mend_note(f"commits/{batch}", None, f"batch {batch} runs again, and finds its work done")

    def make_refusal(self, path: str, why: str, todo: str) -> StartError:
        """Return the error for a damaged note that only a person can replace."""
        return StartError(f"{self.note_address(path)} is damaged: {self.find_damage(path)}. {why}. {todo}")

    def find_damage(self, path: str) -> str:
        """Return the damage of a note; an empty text if it is whole or missing. Delete a damaged checksum."""
        content = self.checkpoint.read(f"{self.folder}/{path}")
        if content is None:
            return ""
        if not content:
            return "it is empty"
        if not _is_whole(path, content.decode("utf-8", "replace").lstrip("\0").rstrip("\n").split("\n")):
            return f"it is cut off after {len(content)} bytes"
        written_checksums = self.checkpoint.read(f"{self.folder}/{_checksum_path(path)}")
        checksums = _chunk_checksums(content)
        if written_checksums is None or written_checksums[CRC_HEADER:] == checksums:
            return ""
        if len(written_checksums) == CRC_HEADER + len(checksums):
            return "it is not what its checksum says"
        # The note is whole, and Spark reads one without a checksum.
        self.checkpoint.delete(f"{self.folder}/{_checksum_path(path)}")
        log.warning(
            "deleted %s: the checksum was cut off, and its note is whole", self.note_address(_checksum_path(path))
        )
        return ""


def refuse_left_topics(config: Config, checkpoint: Lake) -> None:
    """Raise StartError if the checkpoint counts a topic that the configuration does not name any more.

    Spark would note a batch without it before it fails, and read the topic from its start when it is named again.
    """
    kafka = config.source.kafka
    notes = SparkNotes(checkpoint)
    begun = notes.list_batches("offsets")
    if kafka is None or not begun:
        return
    text = notes.read_text(f"offsets/{begun[-1]}")
    if not text or text.endswith(NO_OFFSET):
        return
    left_topics = [topic for topic in sorted(offsets_in(text)) if kafka.reads_topic(topic) is False]
    if left_topics:
        raise StartError(
            f"{config.name}: {', '.join(left_topics[:5])} is not among the topics any more, and the checkpoint "
            "continues only with the topics that it has. Put it back, with no route for it "
            "(match: {sql: \"topic <> 'NAME'\"}); or give this configuration another name, and `start` offsets"
        )


def offsets_in(text: str) -> Offsets:
    """Return the offsets of a Kafka source in a note: in its last line."""
    offsets: Offsets = {}
    for topic, by_partition in json.loads(text.rpartition("\n")[2]).items():
        offsets[topic] = {int(partition): offset for partition, offset in by_partition.items()}
    return offsets


def path_before(batch: int) -> str:
    """Return the path of the note with the offsets at which a batch of Kafka begins."""
    return f"offsets/{batch - 1}" if batch else "sources/0/0"


def processed_offsets(checkpoint: Lake) -> dict[tuple[str, int], int]:
    """Return the offset behind the last record of each partition of Kafka that the last finished batch has processed.

    Empty before the first batch, for other sources, and if Spark's note is damaged.
    """
    notes = SparkNotes(checkpoint)
    finished = notes.list_batches("commits")
    if not finished:
        return {}
    offsets: dict[tuple[str, int], int] = {}
    try:
        by_topic = offsets_in(notes.read_text(f"offsets/{finished[-1]}") or "")
        for topic, by_partition in by_topic.items():
            for partition, offset in by_partition.items():
                offsets[topic, partition] = int(offset)
    except (ValueError, AttributeError, IndexError, TypeError):
        return {}
    return offsets


def with_offsets(text: str | None, offsets: Offsets) -> str:
    """Return a note with other offsets, which are its last line; by default one about a batch (version, metadata)."""
    head = text.split("\n")[:-1] if text else ["v1", '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}']
    return "\n".join([*head, _as_text(offsets)])


def _as_text(offsets: Offsets) -> str:
    return json.dumps(offsets, separators=(",", ":"))  # the numbers of partitions become text


def _checksum_path(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.crc"


def _chunk_checksums(content: bytes) -> bytes:
    chunks = [content[begin : begin + CRC_CHUNK] for begin in range(0, len(content), CRC_CHUNK)]
    return b"".join(zlib.crc32(chunk).to_bytes(4, "big") for chunk in chunks)


def _is_whole(path: str, lines: list[str]) -> bool:
    """Return whether the lines of a note are all there: metadata is one of JSON, the others have a version first."""
    if path == "metadata":
        return len(lines) == 1 and _parse_json(lines[0]) is not None
    if len(lines) < (3 if path.startswith("offsets/") else 2) or not lines[0].startswith("v"):
        return False
    return all(line == NO_OFFSET or _parse_json(line) is not None for line in lines[1:])


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def tables_with_batch(lake: Lake, query: str, batch: int) -> dict[str, str]:
    """Return the tables that have a batch of a query (with its run), and the configuration of that commit.

    A table that cannot be read counts as one that has it.
    """

    def find_configuration(table: str) -> str | None:
        try:
            handle = lake.open(table)
            for entry in handle.history(RECENT) if handle else ():
                note = commit_notes(entry)
                if note.get("router.query") == query and note.get("router.batch") == str(batch):
                    return str(note.get("router.configuration"))
        except (DeltaError, OSError):
            return ""
        return None

    tables = lake.every_table()
    with ThreadPoolExecutor(THREADS) as pool:
        configurations = zip(tables, pool.map(find_configuration, tables), strict=True)
        return {table: configuration for table, configuration in configurations if configuration is not None}


@dataclass(frozen=True)
class CheckpointMending:
    """The checkpoint of a configuration, and how to continue if some of it is damaged.

    `fingerprint` is the configuration's.
    """

    config: Config
    lake: Lake
    checkpoint: Lake
    fingerprint: str

    @property
    def notes(self) -> SparkNotes:
        """Return the notes of the query."""
        return SparkNotes(self.checkpoint)

    def mend_notes(self) -> None:
        """Mend what is damaged, and log a line for each file. Raises StartError if a person has to decide."""
        store = CheckpointStore(self.checkpoint, self._mend_run())
        self.notes.mend_commits()
        if begun := self.notes.list_batches("offsets"):
            self._mend_manifest(store, begun[-1])
        self._mend_offsets(store)
        self._mend_first_offsets(store)

    def _mend_run(self) -> str:
        """Return the id of the query; mend the file that contains it."""
        if not self.notes.find_damage("metadata"):
            metadata = _parse_json(self.notes.read_text("metadata") or "") or {}
            return str(metadata.get("id", ""))
        newest = max(self.notes.list_batches("offsets"), default=-1)
        last_batches: dict[str, int] = {}
        for path in CheckpointStore(self.checkpoint).json_paths("manifests"):
            _, run, file = path.split("/")
            last_batches[run] = max(last_batches.get(run, -1), int(file.removesuffix(".json")))
        # It can be a run that has decided the newest batch, or the one before it, unless its records were others.
        candidates: dict[str, bool | None] = {}
        for run, batch in last_batches.items():
            if batch in (newest, newest - 1):
                candidates[run] = self._fits_manifest(run, batch)
        runs = [run for run, fits in candidates.items() if fits is not False]
        if len(runs) == 1 and candidates[runs[0]]:
            self.notes.mend_note("metadata", json.dumps({"id": runs[0]}), "the manifests say which run this is")
            return runs[0]
        if runs or newest > 0:
            raise self.notes.make_refusal("metadata", "It says which run this is, and the manifests do not", ANOTHER)
        self.notes.mend_note("metadata", None, "no batch was decided, and a new run begins")
        return ""

    def _fits_manifest(self, run: str, batch: int) -> bool | None:
        """Return whether the manifest of a run counts records of a batch as Spark has noted it; None if unknown."""
        before = path_before(batch)
        behind = f"offsets/{batch}"
        manifest = CheckpointStore(self.checkpoint, run).read_manifest(batch)
        if self.config.source.kafka is None or manifest is None:
            return None
        if self.notes.find_damage(before) or self.notes.find_damage(behind):
            return None
        begins = self.notes.read_offsets(before)
        ends = self.notes.read_offsets(behind)
        for part in manifest.partitions:
            # Offsets are those of the next record to read.
            begin = begins.get(part.topic, {}).get(part.partition, 0)
            end = ends.get(part.topic, {}).get(part.partition, 0)
            if part.first < begin or part.last >= end:
                return False
        return True

    def _mend_manifest(self, store: CheckpointStore, batch: int) -> None:
        """Delete the manifest of the newest batch if it is damaged and no table has the batch."""
        path = store.manifest_path(batch)
        try:
            store.load(path)
        except StartError as error:
            if batch in self.notes.list_batches("commits"):
                return  # it has ended: `router verify` reports that its manifest is damaged
            configurations = tables_with_batch(self.lake, f"{self.config.name}:{store.run}", batch)
            if configurations:
                raise StartError(f"{error}; {self._other_way(configurations)}") from error
            log.warning("%s. It is deleted: no table has batch %d, which is decided again", error, batch)
            store.delete(path)

    def _other_way(self, configurations: dict[str, str]) -> str:
        """Return the advice on a damaged manifest whose batch is in tables, by the configuration of each."""
        tables = ", ".join(sorted(configurations))
        if any(table.startswith(QUARANTINE) for table in configurations):
            return f"without one it is unknown which of its rows are in {tables}"
        before = ""
        if set(configurations.values()) != {self.fingerprint}:
            before = "go back to the configuration that it began under, "
        return f"or {before}delete it and start again: {tables} have the batch and skip it when it is decided again"

    def _mend_offsets(self, store: CheckpointStore) -> None:
        """Mend the notes of the newest batch and of the one before, which contain where these end."""
        while newest := self.notes.list_batches("offsets")[-2:]:
            damaged = [batch for batch in newest if self.notes.find_damage(f"offsets/{batch}")]
            if not damaged:
                return
            batch = damaged[-1]
            path = f"offsets/{batch}"
            if batch == newest[-1] and not self._may_be_written(store, batch):
                self.notes.mend_note(path, None, f"batch {batch} was not decided, and is read again")
                continue
            ends = self._end_of_batch(store, batch)
            if ends is None:
                raise self.notes.make_refusal(path, f"It says where batch {batch} has ended", ANOTHER)
            # The first lines of a note (settings of Spark) are the same in the note of the other batch.
            whole = [number for number in newest if number not in damaged]
            other = self.notes.read_text(f"offsets/{whole[0]}") if whole else None
            self.notes.mend_note(path, with_offsets(other, ends), "the manifest says where the batch ends")

    def _may_be_written(self, store: CheckpointStore, batch: int) -> bool:
        """Return whether anything of a batch may be written."""
        if store.read(store.manifest_path(batch)) is not None or batch in self.notes.list_batches("commits"):
            return True
        return bool(tables_with_batch(self.lake, f"{self.config.name}:{store.run}", batch))

    def _end_of_batch(self, store: CheckpointStore, batch: int) -> Offsets | None:
        """Return where a batch of a Kafka source has ended: behind what its manifest counts. None if unknown."""
        if self.config.source.kafka is None:
            return None
        earlier = [number for number in self.notes.list_batches("offsets") if number < batch]
        whole = [number for number in earlier if not self.notes.find_damage(f"offsets/{number}")]
        if whole:
            first = whole[-1] + 1
            offsets: Offsets | None = self.notes.read_offsets(f"offsets/{whole[-1]}")
        else:
            first = 0
            offsets = self._begin_of_query(store)
        if offsets is None:
            return None
        # From there each manifest counts what its batch has read.
        for number in range(first, batch + 1):
            manifest = store.read_manifest(number)
            if manifest is None:
                return None
            for part in manifest.partitions:
                offsets.setdefault(part.topic, {})[part.partition] = part.last + 1
        return offsets

    def _begin_of_query(self, store: CheckpointStore) -> Offsets | None:
        """Return where the first batch began; empty if every partition begins with its first record."""
        if self.notes.read_text("sources/0/0") and not self.notes.find_damage("sources/0/0"):
            return self.notes.read_offsets("sources/0/0")
        return {} if self._from_the_beginning(store) else None

    def _from_the_beginning(self, store: CheckpointStore) -> bool:
        """Return whether the query reads Kafka from its earliest records; one after a lost checkpoint does not."""
        kafka = self.config.source.kafka
        if kafka is None or kafka.start != "earliest" or kafka.start_time:
            return False
        return all(path.split("/")[1] == store.run for path in store.json_paths("manifests"))

    def _mend_first_offsets(self, store: CheckpointStore) -> None:
        """Mend the note where the first batch begins: Spark reads it at every start."""
        path = "sources/0/0"
        if self.config.source.kafka is None or not self.notes.find_damage(path):
            return
        manifest = store.read_manifest(0)
        if manifest is not None or self.notes.list_batches("commits"):
            begins = self.notes.read_offsets(f"offsets/{self.notes.list_batches('offsets')[0]}")
            why = "nothing begins with it any more"
            if manifest is not None:
                why = "the manifest says where the first batch begins"
                for part in manifest.partitions:
                    begins.setdefault(part.topic, {})[part.partition] = part.first
            self.notes.mend_note(path, f"\0v1\n{_as_text(begins)}", why)  # the first byte is for Spark 2.1
        elif self._from_the_beginning(store):
            self.notes.mend_note(path, None, "nothing was decided, and the topic is read from its beginning")
        else:
            todo = (
                "Delete it and the folder `offsets` next to its folder, and the query starts over with what comes then"
            )
            raise self.notes.make_refusal(path, "It says where the first batch begins", todo)
