"""The manifest of a batch: what was landed, written before anything is committed.

Once it is there the batch is decided. A restart of the same batch id reads neither the source nor decodes again, it
only finishes what the manifest says.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pyarrow import fs

from router.applying import Applied
from router.delta.commit import LandedFile, TableCommit, to_arrow_schema, to_delta
from router.delta.schema_diff import plain
from router.engine.balance import Partition
from router.engine.label.layout import Ruling

if TYPE_CHECKING:
    from router.delta.lake import Lake

KEPT = 100
"""Manifests kept for whoever wants to look; only the last one is ever needed."""


@dataclass(frozen=True)
class Manifest:
    """Be the decision of a batch: the commits to make and the counts to report.

    `config` is the fingerprint of the configuration it was decided under, `engine` who decided it, `targets` the keys
    (`route/sink`) that the counts are about. The configuration of a later start may be another one.
    """

    batch: int
    config: str
    engine: Literal["arrow", "spark"]
    targets: tuple[str, ...]
    commits: tuple[TableCommit, ...]
    partitions: tuple[Partition, ...]
    conflicts: dict[str, dict[str, str]] = field(default_factory=dict)
    allowed: dict[str, list[str]] = field(default_factory=dict)
    frozen: dict[str, dict[str, str | None]] = field(default_factory=dict)

    @property
    def ruling(self) -> Ruling:
        """Return the ruling the batch was landed under; casts stand in the columns of the commits."""
        allowed = {key: frozenset(names) for key, names in self.allowed.items()}
        frozen = {
            place: {
                name: plain(to_arrow_schema(kind).field(name).type) if kind else None for name, kind in kinds.items()
            }
            for place, kinds in self.frozen.items()
        }
        return Ruling({}, self.conflicts, allowed, frozen)

    def dump(self) -> bytes:
        """Return the manifest as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def load(cls, text: bytes) -> Manifest:
        """Return a manifest from JSON."""
        found = json.loads(text)
        commits = tuple(TableCommit(**{**c, "files": tuple(map(LandedFile.of, c["files"]))}) for c in found["commits"])
        counted = tuple(Partition(**part) for part in found["partitions"])
        return cls(**{**found, "commits": commits, "partitions": counted, "targets": tuple(found["targets"])})


def written(frozen: dict[str, dict[str, pa.DataType | None]]) -> dict[str, dict[str, str | None]]:
    """Return the types of a ruling as Delta's JSON."""
    return {
        place: {name: to_delta(pa.schema([(name, kind)])) if kind else None for name, kind in kinds.items()}
        for place, kinds in frozen.items()
    }


@dataclass(frozen=True)
class Shelf:
    """Be the folder beside a checkpoint that holds the manifests of one run and the marks of its applying sinks.

    A run is the life of one Spark checkpoint, which numbers its batches from 0: what another run decided about a
    batch of the same number must never be taken for this one's.
    """

    place: Lake
    run: str

    @classmethod
    def beside(cls, checkpoint: Lake, run: str) -> Shelf:
        """Return the shelf of a run; its folder is made when needed."""
        shelf = cls(checkpoint, run)
        checkpoint.files.create_dir(f"manifests/{run}", recursive=True)
        return shelf

    def read(self, batch: int) -> Manifest | None:
        """Return the manifest of a batch, or None where it was never decided."""
        text = self.place.read(self._path(batch))
        return Manifest.load(text) if text is not None else None

    def write(self, manifest: Manifest) -> None:
        """Write a manifest so that a crash leaves either all of it or nothing."""
        self.place.write(self._path(manifest.batch), manifest.dump())
        if manifest.batch >= KEPT:
            self._drop(self._path(manifest.batch - KEPT))

    def applied(self, batch: int) -> dict[str, Applied]:
        """Return what sinks have applied of this batch, by key."""
        marks = json.loads(self.place.read(self._mark(batch)) or b"{}")
        return {key: Applied(*counts) for key, counts in marks.items()}

    def mark_applied(self, batch: int, key: str, counts: Applied) -> None:
        """Note that a sink has applied this batch; old marks are dropped."""
        self.place.write(self._mark(batch), json.dumps({**self.applied(batch), key: counts}).encode())
        if batch >= KEPT:
            self._drop(self._mark(batch - KEPT))

    def _path(self, batch: int) -> str:
        return f"manifests/{self.run}/{batch:010d}.json"

    def _mark(self, batch: int) -> str:
        return f"manifests/{self.run}/{batch:010d}.applied.json"

    def _drop(self, path: str) -> None:
        if self.place.files.get_file_info(path).type is fs.FileType.File:
            self.place.files.delete_file(path)
