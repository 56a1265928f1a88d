"""A run of reprocessing: it has a name, and a note in the checkpoint's store until it is finished."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import TypeAdapter

from router.engine.checkpoint_store import REPLAY_PREFIX, CheckpointStore

if TYPE_CHECKING:
    from router.delta.lake import Lake

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class NamedRun(Generic[Choice]):
    """A run of reprocessing: what was chosen, and the versions of the tables that it reads.

    Manifests, marks and transaction ids carry its `name` where those of a stream carry the stream's run: a run that was
    killed is resumed under it, and reads the same records. `note` is its place in the store of `checkpoint`.
    """

    checkpoint: Lake
    note: str
    name: str
    choice: Choice
    versions: dict[str, int]

    @classmethod
    def new(cls, checkpoint: Lake, note: str, choice: Choice, versions: dict[str, int]) -> NamedRun[Choice]:
        """Return a run with a name of its own, without a note yet."""
        name = f"{REPLAY_PREFIX}{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
        return cls(checkpoint, note, name, choice, versions)

    @classmethod
    def resume(cls, checkpoint: Lake, note: str, kind: type[Choice]) -> NamedRun[Choice] | None:
        """Return the run that was killed before its end; None if there is none."""
        stored = CheckpointStore(checkpoint).load(note)
        if stored is None:
            return None
        choice = TypeAdapter(kind).validate_python(stored["choice"])
        return cls(checkpoint, note, stored["name"], choice, stored["versions"])

    @property
    def store(self) -> CheckpointStore:
        """Return the store of the run's own manifests and marks."""
        return CheckpointStore(self.checkpoint, self.name)

    def begin(self) -> None:
        """Note the run, before anything of it is staged. More than once does no harm."""
        content = {"name": self.name, "choice": self.choice, "versions": self.versions}
        self.store.write(self.note, TypeAdapter(dict).dump_json(content))

    def finish(self) -> None:
        """Delete the run's note, then its other files in the store."""
        self.store.delete(self.note)
        for folder in ("manifests", "applied"):
            for path in self.store.json_paths(f"{folder}/{self.name}"):
                self.store.delete(path)
