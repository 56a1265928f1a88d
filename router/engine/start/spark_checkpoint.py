"""Spark's own notes about a query, held against the manifests when a run starts, and mended where that loses nothing.

Spark renames its notes but does not sync them, so a power cut may leave the newest empty or half, or their checksums;
Spark then cannot go on, at every start anew. The manifests are synced, so that they say what Spark's notes have said:

| damaged | and | becomes |
|---|---|---|
| `commits/N` | N is the newest batch | deleted: N runs again and finds its work done, as after a crash |
| | a later batch has begun | written anew: N had ended |
| `offsets/N` | no manifest of N | deleted: nothing of N was committed; its records are read again |
| | a manifest, of a Kafka source | written anew: each partition ends after the last record that the manifest counts |
| `sources/0/0` | a manifest of batch 0, of a Kafka source | written anew: each partition begins with what it counts |
| | batch 0 has ended long ago | written anew: Spark reads it, and nothing begins with it any more |
| | nothing was decided, and Kafka is read from its earliest record | deleted: the query begins anew |
| `metadata` | no batch was decided | deleted: a new run begins |
| | manifests of one run fit the offsets | written anew: it is that run |
| a checksum `.NAME.crc` | the note is whole | deleted: Spark reads a note without one |

Everything else is refused with the file's name. A manifest that is damaged itself is deleted where no table has its
batch, which is then decided anew. Runs on the driver, before the query starts.
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from router.engine.checkpoint_store import CheckpointStore
from router.engine.start.checks import having
from router.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.balance import Partition
    from router.engine.checkpoint_store import Manifest
    from router.engine.source import Offsets

log = logging.getLogger("router")
NO_WATERMARK = 'v1\n{"nextBatchWatermarkMs":0}'
"""What Spark notes when a batch of a query without watermarks has ended (CommitLog, version 1)."""
NO_OFFSET = "-"
"""What stands in the place of the offset of a source without data (OffsetSeqLog)."""
CRC_HEADER, CRC_CHUNK = 8, 512
"""Bytes of the head of a checksum file of Hadoop (`crc`, 0, size of a chunk), and of each chunk that has a sum."""
MENDED = {True: "deleted", False: "written anew"}
ANOTHER = "Restore it from a copy; without one give this configuration another name, lake and checkpoint"


@dataclass(frozen=True)
class SparkNotes:
    """The notes of one query in the folder of its checkpoint."""

    checkpoint: Lake
    folder: str = "spark"

    def numbers(self, kind: str) -> list[int]:
        """Return the batches that have a note of a kind (`offsets`, `commits`), oldest first."""
        selector = fs.FileSelector(f"{self.folder}/{kind}", allow_not_found=True)
        names = (entry.base_name for entry in self.checkpoint.files.get_file_info(selector))
        return sorted(int(name) for name in names if name.isdecimal())

    def text(self, path: str) -> str | None:
        """Return a note, None where there is none."""
        content = self.checkpoint.read(f"{self.folder}/{path}")
        return None if content is None else content.decode("utf-8", "replace").rstrip("\n")

    def write(self, path: str, text: str) -> None:
        """Write a note; the checksum of the former one would make Hadoop refuse it."""
        self.checkpoint.delete(f"{self.folder}/{_checksum(path)}")
        self.checkpoint.write(f"{self.folder}/{path}", text.encode())

    def delete(self, path: str) -> None:
        """Delete a note and its checksum."""
        for each in (path, _checksum(path)):
            self.checkpoint.delete(f"{self.folder}/{each}")

    def place(self, path: str) -> str:
        """Return the address of a note."""
        return f"{self.checkpoint.root}/{self.folder}/{path}"

    def mend(self, path: str, text: str | None, why: str) -> None:
        """Write a damaged note anew, or delete it, and say so."""
        log.warning("%s was damaged: %s. It is %s: %s", self.place(path), self.damage(path), MENDED[text is None], why)
        self.delete(path) if text is None else self.write(path, text)

    def mend_commits(self) -> None:
        """Mend the notes about batches that have ended."""
        newest = max(self.numbers("offsets"), default=-1)
        for batch in reversed(self.numbers("commits")):
            if not self.damage(f"commits/{batch}"):
                return
            if batch < newest:
                self.mend(f"commits/{batch}", NO_WATERMARK, f"batch {batch + 1} has begun, so that {batch} had ended")
            else:
                self.mend(f"commits/{batch}", None, f"batch {batch} runs again, and finds its work done")

    def refusal(self, path: str, why: str, way: str) -> StartError:
        """Return the sentence about a damaged note with which nobody can go on."""
        return StartError(f"{self.place(path)} is damaged: {self.damage(path)}. {why}. {way}")

    def damage(self, path: str) -> str:
        """Return what is wrong with a note, nothing where it is whole or not there; delete a damaged checksum."""
        content = self.checkpoint.read(f"{self.folder}/{path}")
        if content is None:
            return ""
        if not content:
            return "it is empty"
        if not _whole(path, content.decode("utf-8", "replace").lstrip("\0").rstrip("\n").split("\n")):
            return f"it is cut off after {len(content)} bytes"
        sums = self.checkpoint.read(f"{self.folder}/{_checksum(path)}")
        if sums is None or sums[CRC_HEADER:] == _sums(content):
            return ""
        if len(sums) == CRC_HEADER + len(_sums(content)):
            return "it is not what its checksum says"
        self.checkpoint.delete(f"{self.folder}/{_checksum(path)}")
        log.warning("deleted %s: the checksum was cut off, and what it is of is whole", self.place(_checksum(path)))
        return ""


def refuse_left_topics(config: Config, checkpoint: Lake) -> None:
    """Raise StartError where the checkpoint counts a topic that the configuration does not name any more.

    Spark would note a batch without it before it fails, and read the topic from its start when it is named again.
    """
    kafka, notes = config.source.kafka, SparkNotes(checkpoint)
    numbers = notes.numbers("offsets")
    text = notes.text(f"offsets/{numbers[-1]}") if numbers else None
    if kafka is None or not text or text.endswith(NO_OFFSET):
        return
    topics = sorted(offsets_in(text))
    left = [t for t in topics if not (re.fullmatch(kafka.pattern, t) if kafka.pattern else t in kafka.topics)]
    if left:
        raise StartError(
            f"{config.name}: {', '.join(left[:5])} is not among the topics any more, and the checkpoint goes on only "
            "with the topics that it has. Put it back, with no route for it (match: {sql: \"topic <> 'NAME'\"}); or "
            "give this configuration another name, and `start` offsets"
        )


def offsets_in(text: str) -> Offsets:
    """Return the offsets of a Kafka source in a note: in its last line."""
    found = json.loads(text.rpartition("\n")[2])
    return {topic: {int(number): at for number, at in by.items()} for topic, by in found.items()}


def processed_offsets(checkpoint: Lake) -> dict[tuple[str, int], int]:
    """Return the offset behind the last record of each partition of Kafka that the last finished batch has processed.

    Empty before the first batch, for other sources, and if Spark's note is damaged.
    """
    notes = SparkNotes(checkpoint)
    finished = notes.numbers("commits")
    if not finished:
        return {}
    offsets: dict[tuple[str, int], int] = {}
    try:
        by_topic = offsets_in(notes.text(f"offsets/{finished[-1]}") or "")
        for topic, by_partition in by_topic.items():
            for partition, offset in by_partition.items():
                offsets[topic, int(partition)] = int(offset)
    except (ValueError, AttributeError, IndexError, TypeError):
        return {}
    return offsets


def with_offsets(text: str | None, offsets: Offsets) -> str:
    """Return a note about a batch (version, metadata, one line per source) with other offsets."""
    head = text.split("\n")[:2] if text else ["v1", '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}']
    return "\n".join([*head, _as_text(offsets)])


def _as_text(offsets: Offsets) -> str:
    named = {topic: {str(number): at for number, at in by.items()} for topic, by in offsets.items()}
    return json.dumps(named, separators=(",", ":"))


def _checksum(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}.crc"


def _sums(content: bytes) -> bytes:
    chunks = (content[at : at + CRC_CHUNK] for at in range(0, len(content), CRC_CHUNK))
    return b"".join(zlib.crc32(chunk).to_bytes(4, "big") for chunk in chunks)


def _whole(path: str, lines: list[str]) -> bool:
    """Say whether the lines of a note are all there: metadata is one of JSON, the others have a version first."""
    if path == "metadata":
        return len(lines) == 1 and _json(lines[0]) is not None
    least = 3 if path.startswith("offsets/") else 2
    return len(lines) >= least and lines[0] == f"v{lines[0][1:]}" and all(map(_said, lines[1:]))


def _said(line: str) -> bool:
    return line == NO_OFFSET or _json(line) is not None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


@dataclass(frozen=True)
class CheckpointMending:
    """The checkpoint of a configuration, and how to go on where some of it is damaged.

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

    def mend(self) -> None:
        """Mend what is damaged, with a line for each file. Raises StartError where a person has to decide."""
        store = CheckpointStore(self.checkpoint, self._run())
        self.notes.mend_commits()
        if begun := self.notes.numbers("offsets"):
            self._manifest(store, begun[-1])
        self._offsets(store)
        self._first_offsets(store)

    def _run(self) -> str:
        """Return the id of the query; mend the file that says it."""
        if not self.notes.damage("metadata"):
            return str((_json(self.notes.text("metadata") or "") or {}).get("id", ""))
        newest = max(self.notes.numbers("offsets"), default=-1)
        last: dict[str, int] = {}
        for path in CheckpointStore(self.checkpoint).paths("manifests"):
            _, run, file = path.split("/")
            last[run] = max(last.get(run, -1), int(file.removesuffix(".json")))
        near = {run: self._fits(run, batch) for run, batch in last.items() if batch in (newest, newest - 1)}
        runs = [run for run, fits in near.items() if fits is not False]
        if len(runs) == 1 and near[runs[0]]:
            self.notes.mend("metadata", json.dumps({"id": runs[0]}), "the manifests say which run this is")
            return runs[0]
        if runs or newest > 0:
            raise self.notes.refusal("metadata", "It says which run this is, and the manifests do not", ANOTHER)
        self.notes.mend("metadata", None, "no batch was decided, and a new run begins")
        return ""

    def _fits(self, run: str, batch: int) -> bool | None:
        """Say whether the manifest of a run counts records of a batch as Spark has noted it; None: nobody knows."""
        before = f"offsets/{batch - 1}" if batch else "sources/0/0"
        notes = [(path, self.notes.text(path)) for path in (before, f"offsets/{batch}")]
        manifest = CheckpointStore(self.checkpoint, run).manifest(batch)
        if self.config.source.kafka is None or manifest is None or any(self.notes.damage(path) for path, _ in notes):
            return None
        begins, ends = (offsets_in(text or "{}") for _, text in notes)
        return all(
            begins.get(part.topic, {}).get(part.partition, 0) <= part.first
            and part.last < ends.get(part.topic, {}).get(part.partition, 0)
            for part in manifest.partitions
        )

    def _manifest(self, store: CheckpointStore, batch: int) -> None:
        """Delete the manifest of the newest batch where it is damaged and no table has the batch."""
        path = store.manifest_path(batch)
        try:
            store.load(path)
        except StartError as error:
            if batch in self.notes.numbers("commits"):
                return  # it has ended: `router verify` says that its manifest is damaged
            if have := having(self.lake, f"{self.config.name}:{store.run}", batch):
                raise StartError(f"{error}; {self._other_way(have)}") from error
            log.warning("%s. It is deleted: no table has batch %d, which is decided anew", error, batch)
            store.delete(path)

    def _other_way(self, have: dict[str, str]) -> str:
        """Return what can be done about a damaged manifest whose batch is in tables, by the configuration of each."""
        tables = ", ".join(sorted(have))
        if any(table.startswith("quarantine.") for table in have):
            return f"without one nobody can say which of its rows are in {tables}"
        before = "" if {*have.values()} == {self.fingerprint} else "go back to the configuration that it began under, "
        return f"or {before}delete it and start again: {tables} have the batch and skip it when it is decided anew"

    def _offsets(self, store: CheckpointStore) -> None:
        """Mend the notes where the newest batch ends, and where the one before has ended, with which it begins."""
        while newest := self.notes.numbers("offsets")[-2:]:
            damaged = [batch for batch in newest if self.notes.damage(f"offsets/{batch}")]
            if not damaged:
                return
            batch = damaged[-1]
            if batch == newest[-1] and not self._decided(store, batch):
                self.notes.mend(f"offsets/{batch}", None, f"batch {batch} was not decided, and is read again")
                continue
            ends = self._ends(store, batch)
            if ends is None:
                raise self.notes.refusal(f"offsets/{batch}", f"It says where batch {batch} has ended", ANOTHER)
            conf = next((text for b in newest if b not in damaged and (text := self.notes.text(f"offsets/{b}"))), None)
            self.notes.mend(f"offsets/{batch}", with_offsets(conf, ends), "the manifest says where the batch ends")

    def _decided(self, store: CheckpointStore, batch: int) -> bool:
        """Say whether anything of a batch may be written."""
        there = store.read(store.manifest_path(batch)) is not None or batch in self.notes.numbers("commits")
        return there or bool(having(self.lake, f"{self.config.name}:{store.run}", batch))

    def _ends(self, store: CheckpointStore, batch: int) -> Offsets | None:
        """Return where a batch of a Kafka source has ended: behind what its manifest counts. None: nobody knows."""
        if self.config.source.kafka is None:
            return None
        whole = [b for b in self.notes.numbers("offsets") if b < batch and not self.notes.damage(f"offsets/{b}")]
        base = offsets_in(self.notes.text(f"offsets/{whole[-1]}") or "{}") if whole else self._begin(store)
        manifests = [store.manifest(b) for b in range(whole[-1] + 1 if whole else 0, batch + 1)]
        if base is None or None in manifests:
            return None
        for part in _parts(manifests):
            base.setdefault(part.topic, {})[part.partition] = part.last + 1
        return base

    def _begin(self, store: CheckpointStore) -> Offsets | None:
        """Return where the first batch began; nothing where every partition begins with its first record."""
        if (text := self.notes.text("sources/0/0")) and not self.notes.damage("sources/0/0"):
            return offsets_in(text)
        return {} if self._from_the_beginning(store) else None

    def _from_the_beginning(self, store: CheckpointStore) -> bool:
        """Say whether the query reads Kafka from its earliest records; one after a lost checkpoint does not."""
        kafka = self.config.source.kafka
        runs = {path.split("/")[1] for path in store.paths("manifests")}
        return kafka is not None and kafka.start == "earliest" and not kafka.start_time and runs <= {store.run}

    def _first_offsets(self, store: CheckpointStore) -> None:
        """Mend the note where the first batch begins: Spark reads it at every start."""
        path, begun = "sources/0/0", self.notes.numbers("offsets")
        if self.config.source.kafka is None or not self.notes.damage(path):
            return
        manifest = store.manifest(0)
        if manifest is not None or self.notes.numbers("commits"):
            begins = offsets_in(self.notes.text(f"offsets/{begun[0]}") or "{}")
            for part in _parts([manifest]):
                begins.setdefault(part.topic, {})[part.partition] = part.first
            why = "the manifest says where the first batch begins" if manifest else "nothing begins with it any more"
            self.notes.mend(path, f"\0v1\n{_as_text(begins)}", why)  # the first byte is for Spark 2.1
        elif self._from_the_beginning(store):
            self.notes.mend(path, None, "nothing was decided, and the topic is read from its beginning")
        else:
            way = "Delete it and the folder `offsets` beside its folder, and the query begins anew with what comes then"
            raise self.notes.refusal(path, "It says where the first batch begins", way)


def _parts(manifests: Iterable[Manifest | None]) -> Iterable[Partition]:
    return (part for manifest in manifests if manifest for part in manifest.partitions)
