"""The manifest of a batch: what was landed, written before anything is committed.

Once it is there the batch is decided. A restart of the same batch id reads neither the source nor decodes again, it
only finishes what the manifest says.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import fs

from router.delta.commit import LandedFile, TableCommit
from router.engine.balance import Partition
from router.engine.layout import Ruling

KEPT = 100
"""Manifests kept for whoever wants to look; only the last one is ever needed."""


@dataclass(frozen=True)
class Manifest:
    """Be the decision of a batch: the commits to make and the counts to report."""

    batch: int
    config: str
    commits: tuple[TableCommit, ...]
    partitions: tuple[Partition, ...]
    conflicts: dict[str, dict[str, str]] = field(default_factory=dict)
    allowed: dict[str, list[str]] = field(default_factory=dict)

    @property
    def ruling(self) -> Ruling:
        """Return the ruling the batch was landed under; casts stand in the columns of the commits."""
        return Ruling({}, self.conflicts, {key: frozenset(names) for key, names in self.allowed.items()})

    def dump(self) -> bytes:
        """Return the manifest as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def load(cls, text: bytes) -> Manifest:
        """Return a manifest from JSON."""
        found = json.loads(text)
        commits = tuple(TableCommit(**{**c, "files": tuple(map(_file, c["files"]))}) for c in found["commits"])
        return cls(**{**found, "commits": commits, "partitions": tuple(Partition(**p) for p in found["partitions"])})


def _file(found: dict[str, Any]) -> LandedFile:
    return LandedFile(**{**found, "columns": tuple(found["columns"])})


@dataclass(frozen=True)
class Shelf:
    """Be the folder beside the checkpoint that holds manifests and marks of finished applying sinks."""

    root: str
    files: fs.FileSystem

    @classmethod
    def beside(cls, checkpoint: str) -> Shelf:
        """Return the shelf of a checkpoint; its folder is made when needed."""
        files, root = (
            fs.FileSystem.from_uri(checkpoint) if "://" in checkpoint else (fs.LocalFileSystem(), str(Path(checkpoint).resolve()))
        )
        files.create_dir(f"{root}/manifests", recursive=True)
        return cls(root, files)

    def read(self, batch: int) -> Manifest | None:
        """Return the manifest of a batch, or None where it was never decided."""
        text = self._read(self._path(batch))
        return Manifest.load(text) if text is not None else None

    def write(self, manifest: Manifest) -> None:
        """Write a manifest so that a crash leaves either all of it or nothing."""
        self._write(self._path(manifest.batch), manifest.dump())
        if manifest.batch >= KEPT:
            for old in (self._path(manifest.batch - KEPT), self._mark(manifest.batch - KEPT)):
                self._drop(old)

    def applied(self, batch: int) -> dict[str, tuple[int, int]]:
        """Return what sinks have applied of this batch: key -> (applied, dead)."""
        return {key: (done, dead) for key, (done, dead) in json.loads(self._read(self._mark(batch)) or b"{}").items()}

    def mark_applied(self, batch: int, key: str, counts: tuple[int, int]) -> None:
        """Note that a sink has applied this batch."""
        self._write(self._mark(batch), json.dumps({**self.applied(batch), key: counts}).encode())

    def _path(self, batch: int) -> str:
        return f"{self.root}/manifests/{batch:010d}.json"

    def _mark(self, batch: int) -> str:
        return f"{self.root}/manifests/{batch:010d}.applied.json"

    def _read(self, path: str) -> bytes | None:
        try:
            with self.files.open_input_stream(path) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def _write(self, path: str, text: bytes) -> None:
        if not isinstance(self.files, fs.LocalFileSystem):  # an object store shows a file whole or not at all
            with self.files.open_output_stream(path) as stream:
                stream.write(text)
            return
        with open(f"{path}.tmp", "wb") as stream:  # noqa: PTH123 - fsync needs the descriptor
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(f"{path}.tmp").replace(path)

    def _drop(self, path: str) -> None:
        if self.files.get_file_info(path).type is fs.FileType.File:
            self.files.delete_file(path)
