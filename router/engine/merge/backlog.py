"""Keep which rows of outboxes wait for a table of `upsert` that cannot be written, in the checkpoint store.

Such a row is merged with a later batch of its sink, or at a start: whichever is first.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.engine.balance import Partition
    from router.engine.checkpoint_store import CheckpointStore

Spans = dict[str, dict[int, tuple[int, int]]]
"""Topic -> partition -> first and last offset."""


@dataclass(frozen=True)
class Backlog:
    """The backlog of one table: the number of rows, the offsets that they came from, and why they wait."""

    rows: int
    spans: Spans
    why: str


@dataclass(frozen=True)
class MergedBacklog:
    """The backlog of one table that was merged at a start, under the id of a query's batch; counts are rows."""

    table: str
    query: str
    batch: int
    applied: int
    dead: int


@dataclass(frozen=True)
class BacklogStore:
    """The backlog of one outbox by table, in the checkpoint store."""

    store: CheckpointStore
    key: str

    def read_before(self, query: str, batch: int) -> dict[str, Backlog]:
        """Return the backlog by table when a batch began, also if that batch was finished before."""
        note = self._read_note()
        was_finished = note["after"] == [query, batch]
        return _by_table(note["before"] if was_finished else note["now"])

    def read_now(self) -> dict[str, Backlog]:
        """Return the backlog by table."""
        return _by_table(self._read_note()["now"])

    def is_pending(self) -> bool:
        """Return whether rows wait, or have been merged at a start and may not be in the ledger."""
        note = self._read_note()
        return bool(note["now"] or note.get("unbooked"))

    def read_last_batch(self) -> tuple[str, int]:
        """Return query and number of the last batch whose rows may be in the backlog."""
        query, batch = self._read_note()["after"]
        return query, batch

    def read_unbooked(self) -> list[MergedBacklog]:
        """Return the tables whose backlog was merged at a start and is perhaps not in the ledger."""
        return [MergedBacklog(**merged) for merged in self._read_note().get("unbooked", ())]

    def write_backlog(
        self,
        query: str,
        batch: int,
        before: dict[str, Backlog],
        now: dict[str, Backlog],
        unbooked: Iterable[MergedBacklog] = (),
    ) -> None:
        """Write the backlog after a batch, or after a start has merged some of it."""
        note = {
            "after": [query, batch],
            "before": {table: asdict(backlog) for table, backlog in before.items()},
            "now": {table: asdict(backlog) for table, backlog in now.items()},
            "unbooked": [asdict(merged) for merged in unbooked],
        }
        self.store.write(self._note_path, json.dumps(note).encode())

    def _read_note(self) -> dict[str, Any]:
        note: dict[str, Any] = self.store.load(self._note_path) or {"after": [], "before": {}, "now": {}}
        return note

    @property
    def _note_path(self) -> str:
        return f"backlog/{self.key.replace('/', '__')}.json"


def _by_table(note: dict[str, Any]) -> dict[str, Backlog]:
    """Return the backlog by table from its note, in which JSON has made texts of partitions and lists of spans."""
    backlogs = {}
    for table, backlog in note.items():
        spans: Spans = {}
        for topic, by_partition in backlog["spans"].items():
            spans[topic] = {int(partition): (first, last) for partition, (first, last) in by_partition.items()}
        backlogs[table] = Backlog(backlog["rows"], spans, backlog["why"])
    return backlogs


def extend_spans(spans: Spans, partitions: Iterable[Partition]) -> Spans:
    """Return spans extended by those of a later batch."""
    longer = {topic: dict(by_partition) for topic, by_partition in spans.items()}
    for part in partitions:
        of_topic = longer.setdefault(part.topic, {})
        first, _ = of_topic.get(part.partition, (part.first, 0))
        of_topic[part.partition] = (first, part.last)
    return longer
