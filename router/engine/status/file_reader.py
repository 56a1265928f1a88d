"""What a board cannot be told, for it stands in files: why dead letters came, what waits where and since when.

One thread reads it, at its own pace. It reads what has changed: the files that a batch has committed, and a quarantine
with a new version. The stream waits for none of it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError

from router.api.sinks import TableSink
from router.delta.dataset import dataset_of
from router.delta.table_cache import TableCache
from router.engine.audit.dead_letters import DeadLetterSelection, groups_in
from router.engine.checkpoint_store import lake_and_checkpoint
from router.engine.label.layout import DEAD_SCHEMA, quarantine_of
from router.engine.quarantine.table import WAITS_FOR, quarantined_in
from router.engine.start.spark_checkpoint import processed_offsets
from router.engine.status.background import REST_PER_READING, BackgroundThread
from router.engine.status.snapshot import SAMPLED_BYTES, SAMPLES, DeadLetterSample, DeadLetterStatus, QuarantineStatus
from router.engine.status.view_notes import noted_views
from router.errors import RouterError, TableError, to_printable

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from typing_extensions import Self

    from router.config.models import Config
    from router.delta.lake import Lake
    from router.engine.audit.dead_letters import DeadLetterGroup
    from router.engine.quarantine.table import Quarantined
    from router.engine.status.board import CommittedFiles, StatusBoard

log = logging.getLogger("router")
_SHORTEST_PAUSE = 1.0
_LONGEST_PAUSE = 600.0
QUARANTINE_SECONDS = 10.0
"""Seconds between two looks for new versions of quarantines, which are two requests each."""
_VIEW_SECONDS = 30.0
"""Seconds between two looks for refreshes by others, such as `router views FILE --refresh`; each view is a request."""
SAMPLED_ROWS = 200
"""Dead letters of a file that are looked at for samples: a value may have a megabyte."""


class StatusFileReader(BackgroundThread):
    """A thread that reads what a board lacks. Use it as a context."""

    def __init__(self, board: StatusBoard, config: Config) -> None:
        super().__init__("status reader")
        self.board = board
        self.config = config
        self._started = time.time()
        self._quarantines: dict[str, tuple[int, list[QuarantineStatus]]] = {}
        """Table -> its version when it was read, and what waited in it."""
        self._looked = 0.0
        self._looked_for_views = 0.0
        self._outboxes_are_read = False
        self._position_is_read = False
        self._tables: TableCache | None = None

    def __enter__(self) -> Self:
        self.board.read_files()
        return super().__enter__()

    def _run(self) -> None:
        pause = 0.0
        while not self._ended.wait(pause):
            began = time.monotonic()
            try:
                self.read_changes()
            except (DeltaError, OSError, RouterError, pa.ArrowException, ValueError) as error:
                # Storage that is unavailable, or files that maintenance has removed: the stream says what is wrong.
                log.debug("the status is not complete: %s", error)
            spent = time.monotonic() - began
            pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, REST_PER_READING * spent))

    def read_changes(self) -> None:
        """Read once what has changed since the last time."""
        lake, checkpoint = lake_and_checkpoint(self.config)
        if not self._position_is_read and self.config.source.kafka is not None:
            self.board.source_is_at(processed_offsets(checkpoint), {})
            self._position_is_read = True
        self._read_dead_letters(lake)
        if not self._outboxes_are_read:
            self._read_outboxes(lake)
            self._outboxes_are_read = True
        if time.monotonic() >= self._looked + QUARANTINE_SECONDS:
            self._looked = time.monotonic()
            self._read_quarantines(lake)
        if self.config.views and time.monotonic() >= self._looked_for_views + _VIEW_SECONDS:
            self._looked_for_views = time.monotonic()
            self.board.views_are_noted(noted_views(self.config))

    def _read_dead_letters(self, lake: Lake) -> None:
        shows_records = self.config.ui is not None and self.config.ui.samples
        while (committed := self.board.unread_dead_letters()) is not None:
            self.board.add_dead_letters(read_dead_letters(lake, committed, SAMPLES if shows_records else 0))
        self.board.was_read("dead_letters")

    def _read_quarantines(self, lake: Lake) -> None:
        """Read the quarantines that have a new version."""
        if self._tables is None:
            self._tables = TableCache(lake)
        places: dict[str, tuple[str, str]] = {}
        for route, sink, _ in self.config.all_sinks():
            places[quarantine_of(self.config.name, route, sink)] = (route, sink)
        for table, handle in self._tables.open_readable_tables(places).items():
            if handle is None or isinstance(handle, TableError):
                self._quarantines.pop(table, None)
                continue
            before = self._quarantines.get(table)
            # What waits is a scan of the whole table: only of one that was written since.
            if before is None or before[0] != handle.version():
                self._quarantines[table] = handle.version(), self._waiting_rows(lake, (*places[table], table))
        waiting: list[QuarantineStatus] = []
        for _, of_table in self._quarantines.values():
            waiting += of_table
        self.board.quarantine_is(waiting)

    def _waiting_rows(self, lake: Lake, place: tuple[str, str, str]) -> list[QuarantineStatus]:
        # The handle of the cache knows the version only; what is in the table needs one with all its files.
        table = lake.open(place[2])
        if table is None:
            return []
        return [quarantine_status(found) for found in quarantined_in(lake, table, place)]

    def _read_outboxes(self, lake: Lake) -> None:
        """Note the rows that were in outboxes before the stream started; the board counts those that came since."""
        table = lake.open(self.config.ledger)
        if table is not None:
            for key, arrivals in waiting_in_outboxes(table, self.config, self._started).items():
                self.board.note_waiting_rows(key, arrivals)
        self.board.was_read("outboxes")


def quarantine_status(found: Quarantined) -> QuarantineStatus:
    """Return the status of quarantined rows."""
    place = found.place
    oldest = None if found.since is None else found.since.timestamp()
    waits_for = WAITS_FOR[found.kind]
    return QuarantineStatus(place.table, place.route, place.sink, waits_for, found.rows, found.cause, oldest)


def read_dead_letters(lake: Lake, committed: CommittedFiles, samples: int) -> list[DeadLetterStatus]:
    """Return the dead letters in files by stage, route, sink and reason; those of files that are gone have none."""
    letters = []
    unread = committed.rows
    for path in committed.paths:
        try:
            groups = groups_in(
                ds.dataset([path], DEAD_SCHEMA, format="parquet", filesystem=lake.files),
                DeadLetterSelection(replayed=True),
                samples,
                value_bytes=SAMPLED_BYTES,
                sampled_rows=SAMPLED_ROWS,
            )
        except (OSError, pa.ArrowException):
            # Maintenance may have joined or removed the file.
            continue
        letters += [dead_letter_status(group, unknown_time=committed.committed) for group in groups]
        unread -= sum(group.count for group in groups)
    if unread > 0:
        letters.append(DeadLetterStatus("unknown", "", "", None, unread, committed.committed))
    return letters


def dead_letter_status(group: DeadLetterGroup, *, unknown_time: float) -> DeadLetterStatus:
    """Return the status of a group of dead letters; without a time of a record, or with one of a far year, that."""
    return DeadLetterStatus(
        stage=group.stage,
        route=group.route or "",
        sink=group.sink or "",
        reason=None if group.reason is None else to_printable(group.reason),
        count=group.count,
        last=group.last.timestamp() if isinstance(group.last, datetime) else unknown_time,
        samples=tuple(DeadLetterSample.from_row(sample) for sample in group.samples),
    )


def waiting_in_outboxes(ledger: DeltaTable, config: Config, until: float) -> dict[str, list[tuple[float, int]]]:
    """Return by ROUTE/SINK when the rows that wait in an outbox came, and how many, by the ledger up to a time.

    A sink sends rows in about the order in which they came: those that wait are the last ones.
    """
    landed: dict[str, list[tuple[float, int]]] = {}
    backlog: Counter[str] = Counter()
    outboxes = {f"{route}/{name}" for route, name, sink in config.all_sinks() if not isinstance(sink, TableSink)}
    if not outboxes:
        return {}
    ends_before = pa.scalar(round(until * 1_000_000), pa.timestamp("us", "UTC"))
    chosen = (ds.field("query") == config.name) & (ds.field("finished") <= ends_before)
    chosen &= ds.field("route").is_valid() & ds.field("backlog").is_valid() & (ds.field("backlog") != 0)
    reading = dataset_of(ledger).to_batches(
        columns=["route", "sink", "backlog", "finished"], filter=chosen, batch_readahead=2, fragment_readahead=1
    )
    for part in reading:
        for row in part.to_pylist():
            key = f"{row['route']}/{row['sink']}"
            if key not in outboxes:
                continue
            # Rows that came into the outbox count up, rows that left it count down.
            backlog[key] += row["backlog"]
            if row["backlog"] > 0:
                landed.setdefault(key, []).append((row["finished"].timestamp(), row["backlog"]))
    return {key: _last_rows(landed.get(key, []), count) for key, count in backlog.items() if count > 0}


def _last_rows(arrivals: list[tuple[float, int]], count: int) -> list[tuple[float, int]]:
    """Return the last arrivals that have so many rows together."""
    last: list[tuple[float, int]] = []
    for time_of_arrival, rows in sorted(arrivals, reverse=True):
        if count <= 0:
            break
        last.append((time_of_arrival, min(rows, count)))
        count -= rows
    return last
