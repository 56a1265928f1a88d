"""The status of a stream that cannot be asked: what its lake, checkpoint and topic say, read again and again.

It has the form of a running stream's snapshot, so that page and commands show both in one way. Counts are of the whole
ledger, and `started` is 0: since when the stream was up is not known. Nothing is written, and no Spark is needed.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from router.api.sinks import ApplyingSink
from router.counts import BY_NAME, outcome_names
from router.engine import ledger
from router.engine.audit.dead_letters import DeadLetterSelection, dead_letter_groups
from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
from router.engine.preflight.explain import written_tables
from router.engine.quarantine.table import list_quarantined, waiting_places
from router.engine.start.checks import Checkpoint, last_manifest
from router.engine.start.run_lock import is_run_active
from router.engine.status.background import REST_PER_READING, BackgroundThread
from router.engine.status.board import FIELDS, KEPT_BATCHES, installed_version
from router.engine.status.expectations import expectations_of_lake
from router.engine.status.file_reader import dead_letter_status, quarantine_status, waiting_in_outboxes
from router.engine.status.snapshot import (
    SAMPLES,
    BatchStatus,
    SinkStatus,
    StreamSnapshot,
    TableStatus,
    Warned,
)
from router.engine.status.source_ends import ask_how_far
from router.engine.status.view_notes import views_of_lake
from router.errors import RouterError, first_line, to_printable

if TYPE_CHECKING:
    from typing_extensions import Self

    from router.config.models import Config

_SHORTEST_PAUSE = 10.0


class LakeBoard(BackgroundThread):
    """The status of a stream by what it has left. Use it as a context: a thread reads it again.

    `brief`: only what `router status` shows. Then the last batches are read and not all of the ledger, and neither each
    table of the lake nor each dead letter: cron may ask once a minute.
    """

    closing_seconds = 1.0

    def __init__(self, config: Config, *, brief: bool = False) -> None:
        super().__init__("lake reader")
        self.config = config
        self.brief = brief
        self._lake, self._checkpoint = lake_and_checkpoint(config)
        self._snapshot = StreamSnapshot(config.name, installed_version(), "down", since=0.0, started=0.0)

    def __enter__(self) -> Self:
        self.read_lake()
        return super().__enter__()

    def snapshot(self) -> StreamSnapshot:
        """Return the snapshot that was read last."""
        return self._snapshot

    def _run(self) -> None:
        spent = 0.0
        while not self._ended.wait(max(_SHORTEST_PAUSE, REST_PER_READING * spent)):
            began = time.monotonic()
            self.read_lake()
            spent = time.monotonic() - began

    def read_lake(self) -> None:
        """Read all of it."""
        subjects = {
            "lock": self._read_lock,
            "checkpoint": self._read_checkpoint,
            "ledger": self._read_ledger,
            "tables": self._read_tables,
            "quarantine": self._read_quarantine,
            "views": self._read_views,
            "expectations": self._read_expectations,
            "topic": self._read_topic,
        }
        if not self.brief:
            subjects["dead letters"] = self._read_dead_letters
        fields: dict[str, Any] = {}
        unread: dict[str, str] = {}
        for subject, read in subjects.items():
            # Each by itself: at night the broker may be away and the lake is there, or the other way round.
            try:
                fields.update(read())
            except (OSError, RouterError, DeltaError, pa.ArrowException, ValueError) as error:
                unread[subject] = to_printable(first_line(error))
        now = time.time()
        warnings = tuple(Warned(now, "warning", f"{subject} cannot be read: {unread[subject]}") for subject in unread)
        # What cannot be read now stays as it was.
        self._snapshot = replace(self._snapshot, warnings=warnings, unread=unread, **fields)

    def _read_lock(self) -> dict[str, Any]:
        if is_run_active(self._checkpoint):
            return {"state": "running", "cause": "the stream has no page, this is what its lake says"}
        # A stream that drains its source and ends does not have to run.
        return {"state": "ended" if self.config.trigger.once else "down", "cause": ""}

    def _read_checkpoint(self) -> dict[str, Any]:
        last = Checkpoint.read(self._checkpoint).last
        manifest = last_manifest(self._checkpoint)
        return {"batch": last if last >= 0 else None, "held_topics": manifest.held_topics if manifest else ()}

    def _read_ledger(self) -> dict[str, Any]:
        table = self._lake.open(self.config.ledger)
        if table is None:
            return {}
        waiting = waiting_in_outboxes(table, self.config, time.time())
        rows = ledger.read_last_batches(self.config, KEPT_BATCHES)
        # Those of the last batches: a field that the schema has by now is in none of them some time later.
        unknown_fields: Counter[str] = Counter()
        for row in rows:
            unknown_fields.update(dict(row["unknown_fields"] or ()))
        fields = {"batches": self._last_batches(rows), "unknown_fields": dict(unknown_fields.most_common(FIELDS))}
        if self.brief:
            return {**fields, "sinks": self._sink_statuses({}, waiting)}
        sums = ledger.read_totals(self.config)
        source = sums.get((None, None), {})
        records = {name: source.get(name, 0) for name in outcome_names("source")}
        records["dead_letters"] = sum(self._dead_letters(counts) for counts in sums.values())
        routes: dict[str, dict[str, int]] = {}
        for (route, _), counts in sums.items():
            if route is not None:
                # Each sink of a route has what matched: it is the route's own number.
                matched = max(counts["matched"], routes.get(route, {}).get("matched", 0))
                routes[route] = {"matched": matched}
        return {**fields, "records": records, "routes": routes, "sinks": self._sink_statuses(sums, waiting)}

    def _dead_letters(self, counts: dict[str, Any]) -> int:
        names = set(BY_NAME["dead_letters"].parts)
        if self.config.unmatched != "dead_letters":
            names.remove("unmatched")
        return sum(counts.get(name) or 0 for name in names)

    def _last_batches(self, ledger_rows: list[dict[str, Any]]) -> tuple[BatchStatus, ...]:
        """Return the last batches of the source, the newest first; the ledger has no seconds, tables and files."""
        by_batch: dict[tuple[str, int], list[dict[str, Any]]] = {}
        of_source: set[tuple[str, int]] = set()
        for row in ledger_rows:
            if row["batch_id"] is None:
                continue
            key = (row["run"], row["batch_id"])
            by_batch.setdefault(key, []).append(row)
            if row["read"] is not None:
                of_source.add(key)
        batches = []
        for key in of_source:
            rows = by_batch[key]
            counts = {name: sum(row[name] or 0 for row in rows) for name in outcome_names("source")}
            letters = sum(self._dead_letters(row) for row in rows)
            ended = max(row["finished"] for row in rows).timestamp()
            batches.append(BatchStatus(key[1], ended, **counts, dead_letters=letters, tables=0, files=0, seconds={}))
        batches.sort(key=lambda batch: batch.ended, reverse=True)
        return tuple(batches[:KEPT_BATCHES])

    def _sink_statuses(
        self, sums: dict[tuple[str | None, str | None], dict[str, int]], waiting: dict[str, list[tuple[float, int]]]
    ) -> tuple[SinkStatus, ...]:
        sinks = []
        for route, name, sink in self.config.all_sinks():
            if not isinstance(sink, ApplyingSink):
                continue
            counts = sums.get((route, name), {})
            arrivals = waiting.get(f"{route}/{name}", [])
            sinks.append(
                SinkStatus(
                    route,
                    name,
                    applied=counts.get("applied", 0),
                    dead=counts.get("dead", 0),
                    parked=counts.get("parked", 0),
                    in_doubt=counts.get("in_doubt", 0),
                    backlog=sum(rows for _, rows in arrivals),
                    oldest=min((moment for moment, _ in arrivals), default=None),
                )
            )
        return tuple(sinks)

    def _read_tables(self) -> dict[str, Any]:
        """Read the tables of each sink, with their rows, and which of them cannot be written."""
        waiting = waiting_places(self.config, CheckpointStore(self._checkpoint))
        causes = {place: to_printable(backlog.why) for place, backlog in waiting.items()}
        tables = []
        for written in [] if self.brief else written_tables(self.config):
            cause = causes.pop(f"{written.target}/{written.table}", "")
            tables.append(
                TableStatus(
                    written.table, written.rows, blocked=cause, target=written.target, committer=written.committer
                )
            )
        for place, cause in causes.items():
            target, _, table = place.rpartition("/")
            tables.append(TableStatus(table, blocked=cause, target=target))
        return {"tables": tuple(tables)}

    def _read_dead_letters(self) -> dict[str, Any]:
        shows_records = self.config.ui is not None and self.config.ui.samples
        groups = dead_letter_groups(self.config, DeadLetterSelection(), SAMPLES if shows_records else 0)
        return {"dead_letters": tuple(dead_letter_status(group, unknown_time=0.0) for group in groups)}

    def _read_quarantine(self) -> dict[str, Any]:
        return {"quarantined": tuple(quarantine_status(found) for found in list_quarantined(self.config, self._lake))}

    def _read_views(self) -> dict[str, Any]:
        return {"views": views_of_lake(self.config)}

    def _read_expectations(self) -> dict[str, Any]:
        return {"expectations": expectations_of_lake(self.config)}

    def _read_topic(self) -> dict[str, Any]:
        partitions = ask_how_far(self.config)
        return {"partitions": partitions} if partitions else {}
