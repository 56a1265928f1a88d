"""What the router keeps beside a Spark checkpoint: one folder, `store`, of small files, each there whole or not at all.

| folder | file | says |
|---|---|---|
| `manifests/RUN` | BATCH.json | what a batch was decided to be, before anything of it is committed |
| `applied/RUN` | BATCH.json | what sinks have applied of a batch, by sink, and the tables that have got rows by it |
| `backlog` | SINK.json | rows of an outbox whose table cannot be written at present |
| `lost` | RUN.json | batches that tables lack, and a person went on without |
| `known` | SINK.json | tables that a sink has merged into: one that is gone was dropped |
| `approvals` | ROUTE/SINK/TABLE.N.json | a table that may change, until its quarantined rows are in it |
| `blocked` | ROUTE/SINK/TABLE.json | a table that cannot be written, until its quarantined rows are in it |
| `replays` | SINK.json | a replay of what a sink keeps that has begun and not ended |
| `replays` | dead_letters.json | a replay of dead letters that has begun and not ended |
| `views` | NAME.json | which versions of its sources a view was made of, and how its tables were left |
| `schemas` | the decoder's names | what a decoder has learnt |
| | identities.json | the routes and sinks with another name than their ids, and that one |
| | gone_sinks.json | sinks that a person let go though rows wait for them |
| | runs.json | in which order the runs of the query began |
| | source | the source that the checkpoint counts |
| | format | the version of all this |

A run is the life of one Spark checkpoint, which numbers its batches from 0: what another run decided about a batch of
the same number must never be taken for this one's.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from router.delta.commit import StagedFile, TableCommit, to_arrow_schema, to_delta
from router.delta.lake import Lake
from router.delta.schema_diff import delta_type
from router.engine.balance import Partition
from router.engine.label.layout import Demands
from router.errors import RunningError, StartError
from router.sinks import Applied

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.config.models import Config

REPLAY = "replay-"
"""What the names of replays begin with: they stand where a run's id does."""
KEPT = 100
"""Manifests that are kept for operators to read; the router needs the last one only."""
FORMAT = b"3"
MERGED = "merged"
"""The key in a mark under which tables stand; those of sinks have a slash."""
WAYS = {
    "manifests": "It says what a batch was decided to be. Restore it from a copy",
    "applied": "It says which sinks have a batch. Restore it from a copy; or delete it, and the sinks of a batch that "
    "was cut off get its rows again, as after a crash before the mark",
    "backlog": "It says which rows of an outbox wait for their table. Restore it from a copy; without it they stay in "
    "the outbox, and no batch merges them",
    "lost": "It says which lost batches somebody has accepted. Delete it, and the next start asks for them again",
    "known": "It says which tables a sink has merged into. Restore it from a copy; or delete it, and one of them that "
    "somebody drops before its next rows come is made anew",
    "approvals": "It lets a table change. Delete it, and approve the change again",
    "blocked": "It says that quarantined rows wait for a table. Restore it from a copy; without it rows of later "
    "batches land before them",
    "views": "It says what a view was made of. Delete it, and the next refresh computes all of the view anew",
    "identities.json": "It says what routes and sinks were called before. Delete it, and a `was` that is removed is "
    "not noticed",
    "gone_sinks.json": "It says which sinks somebody let go though rows wait for them. Delete it, and the next start "
    "asks for them again",
    "runs.json": "It says in which order runs began. Restore it from a copy; or delete it, and the ledger says so",
    "replays": "It says which replay was cut off. Restore it from a copy; or delete it, and begin another",
}
"""What a file of each folder says, and what a person can do where it is damaged."""


def lake_and_checkpoint(config: Config) -> tuple[Lake, Lake]:
    """Return the lake of a configuration, with the places of its tables, and its checkpoint."""
    options = config.storage()
    return Lake.at(config.lake, options, config.locations()), Lake.at(config.checkpoint_path(), options)


@dataclass(frozen=True)
class Manifest:
    """The decision of a batch: the commits to make and the counts to report.

    `config` is the fingerprint of the configuration it was decided under, `targets` the keys (`route/sink`) that the
    counts are about. The configuration of a later start may be another one. `quarantined`: place (ROUTE/SINK/TABLE) ->
    why a table could not be written after all, so that the rows of its commit go to the quarantine. `lookups`: the
    version of each table that events were looked up in. `tries`: place -> how often the commit has failed for what can
    never pass, where the rows have no quarantine of their own.
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

    @property
    def moved(self) -> Counter[str]:
        """Return the rows that went from their commit to the quarantine, by target."""
        found: Counter[str] = Counter()
        for work in self.commits:
            found[work.target] += work.rows if work.place in self.quarantined else 0
        return +found

    @property
    def demands(self) -> Demands:
        """Return the demands under which the batch was landed; casts stand in the columns of the commits."""
        allowed = {key: frozenset(names) for key, names in self.allowed.items()}
        frozen = {
            place: {
                name: delta_type(to_arrow_schema(kind).field(name).type) if kind else None
                for name, kind in kinds.items()
            }
            for place, kinds in self.frozen.items()
        }
        return Demands({}, self.conflicts, allowed, frozen)

    def notes(self, query: str) -> dict[str, str]:
        """Return what every commit says about its batch: query, number and offsets."""
        spans = {f"{p.topic}/{p.partition}": [p.first, p.last] for p in self.partitions}
        return {
            "router.query": query,
            "router.batch": str(self.batch),
            "router.configuration": self.config,
            "router.offsets": str(spans),
            **({"router.lookups": json.dumps(self.lookups)} if self.lookups else {}),
        }

    def dump(self) -> bytes:
        """Return the manifest as JSON."""
        # `asdict` copies everything first: a second more for 5 000 tables
        return json.dumps(vars(self), default=vars, separators=(",", ":")).encode()

    @classmethod
    def of(cls, found: dict[str, Any]) -> Manifest:
        """Return a manifest from what `dump` made of one, by way of JSON."""
        commits = tuple(TableCommit(**{**c, "files": tuple(map(StagedFile.of, c["files"]))}) for c in found["commits"])
        counted = tuple(Partition(**part) for part in found["partitions"])
        return cls(**{**found, "commits": commits, "partitions": counted, "targets": tuple(found["targets"])})


def frozen_as_text(frozen: dict[str, dict[str, pa.DataType | None]]) -> dict[str, dict[str, str | None]]:
    """Return the types of frozen columns as Delta's JSON."""
    return {
        place: {name: to_delta(pa.schema([(name, kind)])) if kind else None for name, kind in kinds.items()}
        for place, kinds in frozen.items()
    }


@dataclass(frozen=True)
class CheckpointStore:
    """The store of a checkpoint. Manifests and marks are those of one run; the rest outlives it."""

    checkpoint: Lake
    run: str = ""

    def begin(self) -> None:
        """Note the format. Raises StartError where an older version of the router has written the checkpoint."""
        said = self.read("format")
        if said == FORMAT:
            return
        if said == b"":
            raise StartError(
                f"{self.place('format')} is damaged: it is empty. It says which version of the router wrote the "
                f"checkpoint; write {FORMAT.decode()} into it if that was this one"
            )
        found = self.checkpoint.files.get_file_info(["spark/metadata", "manifests", "store/format"])
        if any(info.type is not fs.FileType.NotFound for info in found):
            raise StartError(
                f"the checkpoint {self.checkpoint.root} was written by another version of the router, which this one "
                "cannot go on from; give this run a new checkpoint and a new lake"
            )
        self.write("format", FORMAT)

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, or None where there is none."""
        return self.checkpoint.read(f"store/{path}")

    def load(self, path: str) -> Any:
        """Return what a JSON file says, or None where there is none. Raises StartError where it is damaged.

        Half a note must not be taken for none: rows would be written twice, or forgotten.
        """
        text = self.read(path)
        try:
            return None if text is None else json.loads(text)
        except ValueError as error:
            raise StartError(self.damage(path, text or b"")) from error

    def damage(self, path: str, text: bytes) -> str:
        """Return the sentence about a file that is not whole."""
        what = "cut off or overwritten" if text else "empty"
        return f"{self.place(path)} is damaged: it is {what}. {WAYS[path.partition('/')[0]]}"

    def place(self, path: str) -> str:
        """Return the address of a file."""
        return f"{self.checkpoint.root}/store/{path}"

    def write(self, path: str, content: bytes) -> None:
        """Write a file; a crash leaves either all of the new one or the old one."""
        self.checkpoint.write(f"store/{path}", content)

    def delete(self, path: str) -> None:
        """Delete a file, where it is there."""
        self.checkpoint.delete(f"store/{path}")

    def paths(self, folder: str) -> list[str]:
        """Return the JSON files below a folder, at any depth."""
        selector = fs.FileSelector(f"store/{folder}", recursive=True, allow_not_found=True)
        found = self.checkpoint.files.get_file_info(selector)
        return sorted(entry.path.removeprefix("store/") for entry in found if entry.path.endswith(".json"))

    def manifest(self, batch: int) -> Manifest | None:
        """Return the manifest of a batch, or None where it was never decided."""
        found = self.load(self.manifest_path(batch))
        return None if found is None else Manifest.of(found)

    def decide(self, manifest: Manifest, *, new: bool = False) -> None:
        """Write a manifest; delete the oldest one.

        Raises RunningError where the batch is `new` and another run has decided it meanwhile.
        """
        path, content = f"store/{self.manifest_path(manifest.batch)}", manifest.dump()
        if not new:
            self.checkpoint.write(path, content)
        elif not self.checkpoint.create(path, content) and self.checkpoint.read(path) != content:
            raise RunningError(
                f"another run has decided batch {manifest.batch} of {self.checkpoint.root}; this one ends"
            )
        if manifest.batch >= KEPT:
            self.delete(self.manifest_path(manifest.batch - KEPT))

    def applied(self, batch: int) -> dict[str, Applied]:
        """Return what sinks have applied of this batch, by key."""
        return {key: Applied(*counts) for key, counts in self._mark(batch).items() if key != MERGED}

    def merged(self, batch: int) -> dict[str, list[str]]:
        """Return the tables that merges of this batch have changed, by the sink's key."""
        found: dict[str, list[str]] = self._mark(batch).get(MERGED, {})
        return found

    def mark_applied(self, batch: int, key: str, counts: Applied, merged: Iterable[str] = ()) -> None:
        """Note that a sink has applied this batch, and the tables that it has merged into; delete the oldest mark."""
        mark = self._mark(batch)
        tables = {**mark.get(MERGED, {}), key: sorted(merged)} if merged else mark.get(MERGED)
        found = {**mark, key: counts, **({MERGED: tables} if tables else {})}
        self.write(self._applied(batch), json.dumps(found).encode())
        if batch >= KEPT:
            self.delete(self._applied(batch - KEPT))

    def _mark(self, batch: int) -> dict[str, Any]:
        return self.load(self._applied(batch)) or {}

    def manifest_path(self, batch: int) -> str:
        """Return where the manifest of a batch is in the store."""
        return f"manifests/{self.run}/{batch:010d}.json"

    def _applied(self, batch: int) -> str:
        return f"applied/{self.run}/{batch:010d}.json"


@dataclass(frozen=True)
class LearntSchemas:
    """What a decoder has learnt, in a store; without one, for as long as a check runs."""

    store: CheckpointStore | None = None
    known: dict[str, bytes] = field(default_factory=dict)

    def read(self, name: str) -> bytes | None:
        """Return what was written under a name, or None."""
        return self.store.read(f"schemas/{name}") if self.store else self.known.get(name)

    def write(self, name: str, content: bytes) -> None:
        """Write whole or not at all; replaces what was there."""
        if self.store:
            self.store.write(f"schemas/{name}", content)
        else:
            self.known[name] = content
