"""Store small files of the router next to a Spark checkpoint, in the folder `store`; each is written atomically.

| folder | file | contains |
|---|---|---|
| `manifests/RUN` | BATCH.json | the decision of a batch, before any of its rows are committed |
| `applied/RUN` | BATCH.json | what sinks have applied of a batch, by sink, and the tables that merges have changed |
| `backlog` | SINK.json | rows of an outbox whose table cannot be written at present |
| `lost` | RUN.json | batches that tables lack, accepted by a person |
| `known` | SINK.json | tables that a sink has merged into: one that is gone was dropped |
| `approvals` | ROUTE/SINK/TABLE.N.json | a table that may change, until its quarantined rows are in it |
| `blocked` | ROUTE/SINK/TABLE.json | a table that cannot be written, until its quarantined rows are in it |
| `replays` | SINK.json | a replay of what a sink keeps that has begun and not ended |
| `replays` | dead_letters.json | a replay of dead letters that has begun and not ended |
| `views` | NAME.json | which versions of its sources a view was made of, and how its tables were left |
| `unreadable` | RUN.json | which records of a run's newest batch with some cannot be read |
| `deploys/RUN` | BATCH.json.zlib | the configuration that ran from this batch on: `router.engine.deploys` |
| `schemas` | the decoder's names | what a decoder has learnt |
| | query.json | what is known of the query: `QueryNote` |

A run is the life of one Spark checkpoint, which numbers its batches from 0: the decision of another run about a batch
with the same number must never be used for a batch of this run.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from router.api.sinks import Applied
from router.delta.commit import TableCommit, to_arrow_schema, to_delta
from router.delta.lake import Lake
from router.delta.schema_diff import delta_type
from router.delta.staged_files import StagedFile
from router.engine.balance import Partition
from router.engine.label.layout import Demands
from router.errors import RunningError, StartError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.config.models import Config

REPLAY_PREFIX = "replay-"
"""The prefix of the names of replays, which take the place of a run's id."""
KEPT_MANIFESTS = 100
"""Manifests that are kept for operators to read; the router needs the last one only."""
FORMAT = 4
"""The version of this layout."""
QUERY_NOTE = "query.json"
UNREADABLE_FOLDER = "unreadable"
_MERGED_KEY = "merged"
"""The key of the merged tables in a mark; keys of sinks contain a slash."""
RECOVERY_HINTS = {
    "manifests": "It contains the decision of a batch. Restore it from a copy",
    "applied": "It contains which sinks have applied a batch. Restore it from a copy; or delete it, and the sinks of "
    "an interrupted batch get its rows again, as after a crash before the mark",
    "backlog": "It contains which rows of an outbox wait for their table. Restore it from a copy; without it they stay "
    "in the outbox, and no batch merges them",
    "lost": "It contains which lost batches were accepted. Delete it, and the next start asks for them again",
    "known": "It contains which tables a sink has merged into. Restore it from a copy; or delete it, and one of them "
    "that is dropped before its next rows arrive is created again",
    "refused": "It contains which rows of a batch no table can store. Delete it, and they are searched for again",
    "approvals": "It lets a table change. Delete it, and approve the change again",
    "blocked": "It contains that quarantined rows wait for a table. Restore it from a copy; without it rows of later "
    "batches land before them",
    "views": "It contains what a view was made of. Delete it, and the next refresh computes all of the view again",
    QUERY_NOTE: "It contains the version of the checkpoint's layout, the order of runs, former names and removed "
    f'sinks. Restore it from a copy; or write {{"format": {FORMAT}}} into it: the ledger has the order of runs, the '
    "next start asks again for removed sinks, and does not notice that a `was` was removed or the source is another "
    "one",
    UNREADABLE_FOLDER: "It contains which records of a batch cannot be read. Delete it, and the next start "
    "searches for them",
    "replays": "It contains which replay was interrupted. Restore it from a copy; or delete it, and begin another",
}
"""By folder or file: what it contains, and what a person can do if it is damaged."""


def lake_and_checkpoint(config: Config) -> tuple[Lake, Lake]:
    """Return the lake of a configuration, with the places of its tables, and its checkpoint."""
    options = config.revealed_storage_options()
    return Lake.at(config.lake, options, config.table_locations()), Lake.at(config.checkpoint_path(), options)


@dataclass(frozen=True)
class Manifest:
    """The decision of a batch: the commits to make and the counts to report.

    `config` is the fingerprint of the configuration it was decided under, `targets` the keys (`route/sink`) that are
    counted. The configuration of a later start may be another one. `quarantined`: place (ROUTE/SINK/TABLE) ->
    why a table could not be written after all, so that the rows of its commit go to the quarantine. `lookups`: the
    version of each table that events were looked up in. `tries`: place -> how often the commit has failed for what can
    never pass, if the rows have no quarantine of their own. `topic_ids`: the id that each topic had when its first
    record was read, for all topics so far; `held_topics` have another one now, and none of their records are read.
    """

    batch: int
    config: str
    targets: tuple[str, ...]
    commits: tuple[TableCommit, ...]
    partitions: tuple[Partition, ...]
    conflicts: dict[str, dict[str, str]] = field(default_factory=dict)
    allowed: dict[str, list[str]] = field(default_factory=dict)
    frozen: dict[str, dict[str, str | None]] = field(default_factory=dict)
    quarantined: dict[str, str] = field(default_factory=dict)
    lookups: dict[str, str] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    held_topics: tuple[str, ...] = ()

    @property
    def moved_rows(self) -> Counter[str]:
        """Return the rows that went from their commit to the quarantine, by target."""
        rows: Counter[str] = Counter()
        for commit in self.commits:
            if commit.note_key in self.quarantined:
                rows[commit.target] += commit.rows
        return +rows  # without targets that moved no row

    @property
    def demands(self) -> Demands:
        """Return the demands under which the batch was landed; the columns of the commits have the casts."""
        allowed = {target: frozenset(names) for target, names in self.allowed.items()}
        frozen: dict[str, dict[str, Any]] = {}
        for place, columns in self.frozen.items():
            frozen[place] = {name: _frozen_type(name, text) for name, text in columns.items()}
        return Demands(casts={}, conflicts=self.conflicts, allowed=allowed, frozen=frozen)

    def commit_notes(self, query: str) -> dict[str, str]:
        """Return the notes of every commit of the batch in its table's history: query, number and offsets."""
        spans = {}
        for partition in self.partitions:
            spans[f"{partition.topic}/{partition.partition}"] = [partition.first, partition.last]
        notes = {
            "router.query": query,
            "router.batch": str(self.batch),
            "router.configuration": self.config,
            "router.offsets": str(spans),
        }
        if self.lookups:
            notes["router.lookups"] = json.dumps(self.lookups)
        return notes

    def to_json(self) -> bytes:
        """Return the manifest as JSON."""
        # `asdict` copies everything first: a second more for 5 000 tables
        return json.dumps(vars(self), default=vars, separators=(",", ":")).encode()

    @classmethod
    def of(cls, content: dict[str, Any]) -> Manifest:
        """Return a manifest from the JSON object that `to_json` wrote."""
        commits = []
        for commit in content["commits"]:
            files = tuple(StagedFile.from_dict(file) for file in commit["files"])
            commits.append(TableCommit(**{**commit, "files": files}))
        fields = {
            **content,
            "targets": tuple(content["targets"]),
            "commits": tuple(commits),
            "partitions": tuple(Partition(**partition) for partition in content["partitions"]),
            "held_topics": tuple(content.get("held_topics", ())),
        }
        return cls(**fields)


def held_topics(topics: Iterable[str]) -> str:
    """Return the fault of held topics, and the next step."""
    names = ", ".join(sorted(topics))
    return (
        f"{names} was deleted and created again, so none of its records are read: their offsets are those of records "
        "that were read before. Read it with a configuration of another name and checkpoint, and take it out of this "
        "one"
    )


def frozen_as_text(frozen: dict[str, dict[str, pa.DataType | None]]) -> dict[str, dict[str, str | None]]:
    """Return the types of frozen columns as Delta's JSON; None for a column that its table lacks."""
    texts: dict[str, dict[str, str | None]] = {}
    for place, columns in frozen.items():
        texts[place] = {}
        for name, kind in columns.items():
            text = None
            if kind is not None:
                text = to_delta(pa.schema([(name, kind)]))
            texts[place][name] = text
    return texts


def _frozen_type(name: str, text: str | None) -> pa.DataType | None:
    """Return the type of a frozen column from what `frozen_as_text` made of it."""
    if not text:
        return None
    return delta_type(to_arrow_schema(text).field(name).type)


@dataclass(frozen=True)
class QueryNote:
    """What a checkpoint knows of its query. `source` says whose offsets are in it; `runs`: id -> ordinal.

    `identities`: routes and sinks whose names differ from their ids -> these ids. `gone_sinks`: removed sinks with rows
    in their outboxes, accepted by a person.
    """

    format: int = FORMAT
    source: str = ""
    runs: dict[str, int] = field(default_factory=dict)
    identities: dict[str, str] = field(default_factory=dict)
    gone_sinks: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckpointStore:
    """The store of a checkpoint. Manifests and marks are those of one run; the rest outlives it."""

    checkpoint: Lake
    run: str = ""

    def note_format(self) -> None:
        """Note the format. Raises StartError if another version of the router wrote the checkpoint."""
        if self._read_note() is not None:
            return
        # A checkpoint with files but without the note is of a version that had none.
        older_files = self.checkpoint.files.get_file_info(["spark/metadata", "manifests", "store/format"])
        if any(info.type is not fs.FileType.NotFound for info in older_files):
            raise StartError(self._of_another_version())
        self.change_note()

    def read_note(self) -> QueryNote:
        """Return the note of the query. Raises StartError if another version of the router has noted it."""
        return self._read_note() or QueryNote()

    def _read_note(self) -> QueryNote | None:
        content = self.load(QUERY_NOTE)
        if content is None:
            return None
        if content.get("format") != FORMAT:
            raise StartError(self._of_another_version())
        return QueryNote(**{**content, "gone_sinks": tuple(content.get("gone_sinks", ()))})

    def _of_another_version(self) -> str:
        return (
            f"the checkpoint {self.checkpoint.root} was written by another version of the router, and this one "
            "cannot continue from it; give this run a new checkpoint and a new lake"
        )

    def change_note(self, **fields: Any) -> None:
        """Note something else of the query."""
        self.write(QUERY_NOTE, json.dumps(asdict(replace(self.read_note(), **fields))).encode())

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, or None if there is none."""
        return self.checkpoint.read(f"store/{path}")

    def load(self, path: str) -> Any:
        """Return the content of a JSON file, or None if there is none. Raises StartError if it is damaged.

        A damaged note must not be taken for none: rows would be written twice, or forgotten.
        """
        text = self.read(path)
        if text is None:
            return None
        try:
            return json.loads(text)
        except ValueError as error:
            raise StartError(self.describe_damage(path, text)) from error

    def describe_damage(self, path: str, text: bytes) -> str:
        """Return the message about a damaged file."""
        state = "cut off or overwritten" if text else "empty"
        return f"{self.address_of(path)} is damaged: it is {state}. {RECOVERY_HINTS[path.partition('/')[0]]}"

    def address_of(self, path: str) -> str:
        """Return the address of a file."""
        return f"{self.checkpoint.root}/store/{path}"

    def write(self, path: str, content: bytes) -> None:
        """Write a file; a crash leaves either all of the new one or the old one."""
        self.checkpoint.write(f"store/{path}", content)

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        self.checkpoint.delete(f"store/{path}")

    def json_paths(self, folder: str, ending: str = ".json") -> list[str]:
        """Return the JSON files below a folder, at any depth."""
        selector = fs.FileSelector(f"store/{folder}", recursive=True, allow_not_found=True)
        entries = self.checkpoint.files.get_file_info(selector)
        return sorted(entry.path.removeprefix("store/") for entry in entries if entry.path.endswith(ending))

    def read_manifest(self, batch: int) -> Manifest | None:
        """Return the manifest of a batch, or None if it was never decided."""
        content = self.load(self.manifest_path(batch))
        if content is None:
            return None
        return Manifest.of(content)

    def write_manifest(self, manifest: Manifest, *, new: bool = False) -> None:
        """Write a manifest; delete the oldest one.

        Raises RunningError if the batch is `new` and another run has decided it meanwhile.
        """
        path = f"store/{self.manifest_path(manifest.batch)}"
        content = manifest.to_json()
        if not new:
            self.checkpoint.write(path, content)
        # A first decision is created, not written, so that of two runs one fails. If the storage took the file and its
        # answer got lost, a retry finds the same content.
        elif not self.checkpoint.create(path, content) and self.checkpoint.read(path) != content:
            raise RunningError(
                f"another run has decided batch {manifest.batch} of {self.checkpoint.root}; this one ends"
            )
        if manifest.batch >= KEPT_MANIFESTS:
            self.delete(self.manifest_path(manifest.batch - KEPT_MANIFESTS))

    def read_applied(self, batch: int) -> dict[str, Applied]:
        """Return the counts of the sinks that have applied this batch, by key."""
        applied = {}
        for key, counts in self._read_mark(batch).items():
            if key != _MERGED_KEY:
                applied[key] = Applied(*counts)
        return applied

    def read_merged(self, batch: int) -> dict[str, list[str]]:
        """Return the tables that merges of this batch have changed, by the sink's key."""
        tables: dict[str, list[str]] = self._read_mark(batch).get(_MERGED_KEY, {})
        return tables

    def mark_applied(self, batch: int, key: str, counts: Applied, merged: Iterable[str] = ()) -> None:
        """Note that a sink has applied this batch, and the tables that it has merged into; delete the oldest mark."""
        mark = self._read_mark(batch)
        tables = mark.get(_MERGED_KEY)
        if merged:
            tables = {**mark.get(_MERGED_KEY, {}), key: sorted(merged)}
        mark[key] = counts
        if tables:
            mark[_MERGED_KEY] = tables
        self.write(self._mark_path(batch), json.dumps(mark).encode())
        if batch >= KEPT_MANIFESTS:
            self.delete(self._mark_path(batch - KEPT_MANIFESTS))

    def _read_mark(self, batch: int) -> dict[str, Any]:
        return self.load(self._mark_path(batch)) or {}

    def manifest_path(self, batch: int) -> str:
        """Return the path of a batch's manifest in the store."""
        return f"manifests/{self.run}/{batch:010d}.json"

    def _mark_path(self, batch: int) -> str:
        return f"applied/{self.run}/{batch:010d}.json"


@dataclass(frozen=True)
class LearntSchemas:
    """The schemas that a decoder has learnt, in a store; without a store, in memory."""

    store: CheckpointStore | None = None
    known: dict[str, bytes] = field(default_factory=dict)

    def read(self, name: str) -> bytes | None:
        """Return the content of a name, or None."""
        if self.store:
            return self.store.read(f"schemas/{name}")
        return self.known.get(name)

    def write(self, name: str, content: bytes) -> None:
        """Write the content of a name, atomically; it replaces an earlier one."""
        if self.store:
            self.store.write(f"schemas/{name}", content)
        else:
            self.known[name] = content


@dataclass(frozen=True)
class CopiedSchemas(LearntSchemas):
    """The schemas in a store, which is never written: what is learnt besides stays in memory."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a name that was written here, else the store's."""
        return self.known.get(name) or super().read(name)

    def write(self, name: str, content: bytes) -> None:
        """Keep the content of a name; it replaces an earlier one."""
        self.known[name] = content
