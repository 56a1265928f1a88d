"""The note about a view, in the checkpoint: what it was made of, and how its tables were left. Without Spark."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.config.models import Config, View
    from router.states import RefreshWay

REFRESHES = 8
"""How many refreshes a trend has."""


class ViewTarget(NamedTuple):
    """A table of a view as it was left: its version (-1 if others have changed it), its id, and what its rows were.

    `violated`: expectation -> how many rows violate it, those that were `dropped` included.
    """

    version: int
    id: str
    hash: int | None
    rows: int
    violated: dict[str, int] = {}  # noqa: RUF012 - the default of a tuple, which is never changed
    dropped: int = 0


@dataclass(frozen=True)
class Note:
    """What a view was made of, and what was made: versions of its sources with their ids, and its tables.

    `accepted` are sources that are gone or unreadable, and that the view may be made without. `origin` is the route or
    the view that it read; `left` are tables that the view no longer reads since these do not write them, until
    accepted. `trend`: of each of the last refreshes the checked rows, and expectation -> how many violated it.
    `failed` is why the last refresh failed, empty if it did not, and `failed_since` since when refreshes fail.
    """

    number: int = 0
    definition: str = ""
    output: str = ""
    sources: dict[str, tuple[int, str]] = field(default_factory=dict)
    targets: dict[str, ViewTarget] = field(default_factory=dict)
    timed: bool = False
    at: str = ""
    way: RefreshWay = ""
    why: str = ""
    seconds: float = 0.0
    commits: int = 0
    unnamed: int = 0
    trend: tuple[tuple[int, dict[str, int]], ...] = ()
    accepted: tuple[str, ...] = ()
    origin: str = ""
    left: tuple[str, ...] = ()
    failed: str = ""
    failed_since: str = ""

    @classmethod
    def from_json(cls, content: Mapping[str, Any] | None) -> Note:
        """Return a note from the JSON object that `to_json` wrote; an empty one if there is none."""
        if content is None:
            return cls()
        sources = {name: tuple(version) for name, version in content["sources"].items()}
        targets = {name: ViewTarget(*fields) for name, fields in content["targets"].items()}
        return cls(**{**content, "sources": sources, "targets": targets})

    def to_json(self) -> bytes:
        """Return the note as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @property
    def rows(self) -> int:
        """Return the rows of all tables."""
        return sum(target.rows for target in self.targets.values())

    @property
    def violation_counts(self) -> dict[str, int]:
        """Return how many rows of all tables violate each expectation; without those that no row violates."""
        violated: Counter[str] = Counter()
        for target in self.targets.values():
            violated.update(target.violated)
        return dict(+violated)

    @property
    def checked_rows(self) -> int:
        """Return how many rows the expectations have checked: those of all tables, and those that they dropped."""
        return self.rows + sum(target.dropped for target in self.targets.values())

    def lacks_source(self, name: str, table: Any) -> bool:
        """Return whether a source is gone, replaced or unreadable: `table` is its open table, None, or an error."""
        if isinstance(table, TableError):
            return True
        if name not in self.sources:
            return False
        return table is None or str(table.metadata().id) != self.sources[name][1]

    def with_trend(self) -> Note:
        """Return the note with its counts at the end of the trend."""
        trend = (*self.trend, (self.checked_rows, self.violation_counts))
        return replace(self, trend=trend[-REFRESHES:])


def accept_lost_sources(store: CheckpointStore, view: View, lost: set[str]) -> None:
    """Note that a view may be made without some of its sources, as long as they are gone or unreadable.

    Tables that have left the view, since its route or view does not write them, are no longer named.
    """
    note = Note.from_json(store.load(view_note_path(view.name)))
    left = tuple(name for name in note.left if name not in lost)
    accepted = tuple(sorted({*note.accepted, *lost} - {*note.left}))
    store.write(view_note_path(view.name), replace(note, accepted=accepted, left=left).to_json())


def note_failed_refresh(store: CheckpointStore, view: str, cause: str) -> None:
    """Note why a refresh of a view failed, for whoever looks after the run; the next one that succeeds removes it."""
    note = Note.from_json(store.load(view_note_path(view)))
    if note.failed == cause:
        return
    since = note.failed_since or datetime.now(timezone.utc).isoformat(timespec="seconds")
    store.write(view_note_path(view), replace(note, failed=cause, failed_since=since).to_json())


def view_note_path(view: str) -> str:
    """Return where the note about a view is in a checkpoint's store."""
    return f"views/{view}.json"


def tables_by_view(config: Config) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return the tables that each view has made, with their rows."""
    store = CheckpointStore(lake_and_checkpoint(config)[1])
    tables = {}
    for view in config.views:
        note = Note.from_json(store.load(view_note_path(view.name)))
        tables[view.name] = tuple((table, target.rows) for table, target in note.targets.items())
    return tables
