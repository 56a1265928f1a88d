"""The note about a view, beside the checkpoint: what it was made of, and what was made. Without Spark."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.config.models import Config, View

REFRESHES = 8
"""How many refreshes a trend has."""


class ViewTarget(NamedTuple):
    """A table of a view as it was left: its version, its id, and what its rows were; -1: others have changed it.

    `violated`: expectation -> how many of the rows it does not hold for, those that were `dropped` included.
    """

    version: int
    id: str
    hash: int | None
    rows: int
    violated: dict[str, int] = {}  # noqa: RUF012 - a tuple's default, which nobody changes
    dropped: int = 0


@dataclass(frozen=True)
class Note:
    """What a view was made of, and what was made: versions of its sources with their ids, and its tables.

    `accepted` are sources that are gone or unreadable, and that the view may be made without. `origin` is the route or
    the view that it read, `left` are tables that the view has no more since these do not write them, until accepted.
    `trend` has the rows that its expectations judged, and how many each did not hold for, of its last refreshes.
    """

    number: int = 0
    definition: str = ""
    output: str = ""
    sources: dict[str, tuple[int, str]] = field(default_factory=dict)
    targets: dict[str, ViewTarget] = field(default_factory=dict)
    timed: bool = False
    at: str = ""
    way: str = ""
    why: str = ""
    seconds: float = 0.0
    commits: int = 0
    unnamed: int = 0
    trend: tuple[tuple[int, dict[str, int]], ...] = ()
    accepted: tuple[str, ...] = ()
    origin: str = ""
    left: tuple[str, ...] = ()

    @classmethod
    def of(cls, found: Mapping[str, Any] | None) -> Note:
        """Return a note from what `dump` made of one; an empty one where there is none."""
        if found is None:
            return cls()
        sources = {name: tuple(pair) for name, pair in found["sources"].items()}
        targets = {name: ViewTarget(*entry) for name, entry in found["targets"].items()}
        return cls(**{**found, "sources": sources, "targets": targets})

    def dump(self) -> bytes:
        """Return the note as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @property
    def rows(self) -> int:
        """Return the rows of all tables."""
        return sum(target.rows for target in self.targets.values())

    @property
    def violated(self) -> dict[str, int]:
        """Return how many rows of all tables each expectation does not hold for."""
        found = Counter[str]()
        for target in self.targets.values():
            found.update(target.violated)
        return dict(+found)

    @property
    def judged(self) -> int:
        """Return the rows that its expectations were asked of: those of all tables, and those that they dropped."""
        return self.rows + sum(target.dropped for target in self.targets.values())

    def lacks(self, name: str, table: Any) -> bool:
        """Return whether a source is not there as it was: `table` is its open table, None, or why it is unreadable."""
        if isinstance(table, TableError):
            return True
        if name not in self.sources:
            return False
        return table is None or str(table.metadata().id) != self.sources[name][1]

    def counted(self) -> Note:
        """Return this with its counts at the end of the trend."""
        return replace(self, trend=(*self.trend, (self.judged, self.violated))[-REFRESHES:])


def accept_lost(store: CheckpointStore, view: View, lost: set[str]) -> None:
    """Note that a view may be made without some of its sources, as long as they are gone or unreadable.

    Those that have left the view, since what it reads does not write them, are not named any more.
    """
    note = Note.of(store.load(note_path(view.name)))
    left = tuple(name for name in note.left if name not in lost)
    accepted = tuple(sorted({*note.accepted, *lost} - {*note.left}))
    store.write(note_path(view.name), replace(note, accepted=accepted, left=left).dump())


def note_path(view: str) -> str:
    """Return where the note about a view is in a checkpoint's store."""
    return f"views/{view}.json"


def tables_by_view(config: Config) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return the tables that each view has made, with their rows."""
    store = CheckpointStore(lake_and_checkpoint(config)[1])
    notes = {view.name: Note.of(store.load(note_path(view.name))) for view in config.views}
    return {name: tuple((table, left.rows) for table, left in note.targets.items()) for name, note in notes.items()}
