"""Tell what happened to one record, by what was written about it: `router trace`. Without Spark.

| a line is | which says |
|---|---|
| `read` | what is written about this record or its batch, and where |
| `derived` | what follows from something that is written, and from what |
| `unknown` | what is not written, or not any more, and why |

A table without the coordinates of records has batches, and no row of it is said to be the record's.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from router.api.sinks import ApplyingSink, LakeSink, MergingSink
from router.config.models import names_of
from router.delta.dataset import dataset_of
from router.delta.history import LogCommit
from router.delta.keyed.key_property import keyed_of
from router.delta.keyed.row_versions import deletions_table, rows_of_keys
from router.delta.table_cache import THREADS
from router.delta.transaction_id import batch_id
from router.delta.unreadable_values import as_rows
from router.engine import ledger
from router.engine.audit.deploy_history import deploys_of
from router.engine.audit.record_search import (
    OWN_PLACE,
    TracedPlace,
    added_rows_at,
    find_commit,
    rows_at,
)
from router.engine.checkpoint_store import REPLAY_PREFIX, CheckpointStore, lake_and_checkpoint
from router.engine.label.layout import outbox_of, quarantine_of
from router.engine.quarantine.table import WAITS_FOR, Place, kind_of
from router.engine.source.position import BATCH_BITS
from router.engine.start.checks import Checkpoint
from router.errors import StartError, TableError, first_line, join_names, shorten_cause, to_printable
from router.own_names import ARRIVAL, BATCH_ID, CAUSE, OFFSET, QUERY, TABLE
from router.record import BATCH, RECORD_ARRIVAL
from router.table_names import is_name, matches_any, template_glob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalake import DeltaTable

    from router.api.sinks import Sink
    from router.config.loader import Loaded
    from router.engine.deploys import Deploy

_UNREADABLE = (TableError, DeltaError, OSError, ValueError, pa.ArrowException)
"""What is raised about a table that cannot be read."""
_SHOWN_BYTES = 1_000
"""Bytes of a value that are kept."""
_OF_RECORD = ("timestamp", "key", "headers", "value")
_OF_RECEIPT = ("status", "http_status", "attempts", "in_doubt", "at", "call_id", "replay", "reason", "response")
"""What is shown of a record, and what its receipts say, in this order."""


@dataclass(frozen=True)
class TraceLine:
    """One thing that is known of a record, or is not.

    `origin` is where it was read, what it follows from, or why it cannot be known. `facts` are its values.
    """

    about: str
    known: Literal["read", "derived", "unknown"]
    text: str
    origin: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Reading:
    """A batch that has read the record, or a replay that took a dead letter of it, which begins with batch 0.

    `configuration` is the fingerprint, None if the ledger lacks the batch.
    """

    run: str
    batch: int
    configuration: str | None = None

    @property
    def is_replay(self) -> bool:
        """Return whether it is a replay."""
        return self.run.startswith(REPLAY_PREFIX)

    @property
    def name(self) -> str:
        """Return what people see of it."""
        return as_text(self.run) if self.is_replay else f"batch {self.batch}"


class RecordTrace:
    """What is known of one record. It `is_found` once a row or a batch of it is.

    Its batches and dead letters tell where to look for more.
    """

    def __init__(self, loaded: Loaded, place: TracedPlace) -> None:
        self.config = loaded.config
        self.fingerprint = loaded.fingerprint
        self.place = place
        self.lake, self.checkpoint = lake_and_checkpoint(self.config)
        self.readings: list[_Reading] = []
        self.backfills: list[_Reading] = []
        self.letters: list[dict[str, Any]] = []
        self.is_found = False

    def lines(self) -> Iterator[TraceLine]:
        """Yield all lines, in the order in which things happen to a record."""
        yield from _while_readable("batch", self._ledger_lines())
        yield from _while_readable("record", self._record_lines())
        for reading in self.readings:
            yield self._decoder_line(reading)
        yield from _while_readable("dead letter", self._letter_lines())
        for route, name, sink in self.config.all_sinks():
            yield from _SinkTrace(self, route, name, sink).lines()

    def rows_in(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table that have the record's coordinates; none if there is no such table."""
        handle = self.lake.open(table)
        rows = (handle and rows_at(handle, self.place)) or []
        self.is_found |= bool(rows)
        return rows

    def _ledger_lines(self) -> Iterator[TraceLine]:
        """Yield the batches that read the record's offset, and backfills, by the ledger, and note them."""
        table = self.lake.open(self.config.ledger)
        if table is None:
            return
        has_offset = (pc.field("query") == self.config.name) & self.place.holds(("topic", "partition"))
        has_offset &= (pc.field("from_offset") <= self.place.offset) & (pc.field("to_offset") >= self.place.offset)
        is_read = has_offset & pc.field("route").is_null() & (pc.field("read") > 0)
        filtered = ("query", "route", "read", "topic", "partition", "from_offset", "to_offset", "batch_id", "refused")
        content = dataset_of(table, *filtered)
        # A backfill has no batch, and counts only what has landed; a replay counts more, and is known by dead letters.
        is_backfill = has_offset & pc.field("batch_id").is_null() & pc.field("refused").is_null()
        for run in pc.unique(content.to_table(["run"], filter=is_backfill).column("run")).to_pylist():
            self.backfills.append(_Reading(run, 0))
            text = f"backfill {as_text(run)} processed its offset"
            yield TraceLine("backfill", "derived", text, self.config.ledger, {"run": run})
        rows = content.to_table(filter=is_read).to_pylist()
        for row in sorted(rows, key=lambda row: row["finished"]):
            reading = _Reading(row["run"], row["batch_id"], row.get("configuration"))
            self.readings.append(reading)
            yield TraceLine(
                "batch",
                "derived",
                f"batch {reading.batch} of run {as_text(reading.run)} read the offsets {row['from_offset']} to "
                f"{row['to_offset']}, and ended at {row['finished']:%Y-%m-%d %H:%M:%SZ}",
                self.config.ledger,
                {"run": reading.run, "batch": reading.batch, "finished": row["finished"]},
            )
            lacking = dict(row.get("unknown_fields") or [])
            if lacking:
                why = f"{self.config.ledger} counts for the whole batch: {as_text(lacking)}"
                yield TraceLine("fields", "unknown", "which fields of it the schema lacked", why, {"of_all": lacking})

    def _record_lines(self) -> Iterator[TraceLine]:
        """Yield the record as it was received, from bronze."""
        bronze = self.config.bronze_tables()
        if bronze is None:
            # Nothing shows that the topic had a record there; that a batch read the offset is all there is.
            self.is_found = bool(self.readings)
            yield TraceLine("record", "unknown", "what was received", f"{self.config.name} has no `bronze`")
            return
        name = bronze.table_of(self.place.topic or "") if bronze.per_topic else bronze.template
        rows = self.rows_in(name)
        if not rows and self.readings:
            self.is_found = True
            why = f"{name} has no row of it, though a batch read its offset"
            yield TraceLine("record", "unknown", "what was received", why)
        elif not rows:
            yield TraceLine("record", "derived", "there is no such record", f"{name} has no row of it")
        for row in rows:
            value = row["value"] or b""
            text = f"{_join_values(row, _OF_RECORD)} ({len(value):,} bytes); batch {row[BATCH]} landed it"
            yield TraceLine("record", "read", text, name, {**as_facts(row), "value_bytes": len(value)})
            self._note_batch(name, row)
            # https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html
            if value[:1] == b"\0" and len(value) >= 5:
                schema_id = int.from_bytes(value[1:5], "big")
                text = f"id {schema_id}, if the value has the wire format of a registry"
                yield TraceLine("schema", "derived", text, "its first five bytes", {"schema_id": schema_id})

    def _note_batch(self, name: str, row: dict[str, Any]) -> None:
        """Note the batch of a row of bronze, `name`, if it is one of this run that the ledger does not have yet."""
        if any(reading.batch == row[BATCH] for reading in self.readings):
            return
        run = Checkpoint.read(self.checkpoint).run or ""
        ordinal = (row.get(RECORD_ARRIVAL) or 0) >> BATCH_BITS
        # Another query may share bronze, and count its batches as this one does.
        app_id = str(batch_id(f"{self.config.name}:{run}", "/bronze", name))
        if CheckpointStore(self.checkpoint).read_note().runs.get(run, 0) == ordinal and find_commit(
            self.lake, name, app_id, row[BATCH]
        ):
            self.readings.append(_Reading(run, row[BATCH]))

    def _decoder_line(self, reading: _Reading) -> TraceLine:
        """Return which decoder a batch had, if its configuration is today's."""
        facts = {"batch": reading.batch, "fingerprint": reading.configuration}
        if reading.configuration == self.fingerprint:
            origin = "its batch had the configuration of today"
            return TraceLine("decoder", "derived", self.config.decode.part_name, origin, facts)
        why = f"the configuration of batch {reading.batch} is not known to be that of today"
        for number, _ in self._deploys_of(reading):
            why = f"its batch had that of deploy {number}: `--then` shows what it did"
        return TraceLine("decoder", "unknown", "which one it was", why, facts)

    @cached_property
    def _deploys(self) -> list[Deploy]:
        return deploys_of(self.config)

    def _deploys_of(self, reading: _Reading) -> Iterator[tuple[int, Deploy]]:
        """Yield the deploys, with their numbers, of which a batch may be: those of its configuration."""
        for number, deploy in enumerate(self._deploys, 1):
            is_earlier = deploy.run != reading.run or deploy.batch <= reading.batch
            if deploy.configuration == reading.configuration and is_earlier:
                yield number, deploy

    def deploy(self) -> tuple[int, Deploy]:
        """Return the deploy of the first batch that read the record, and its number, once `lines` are told.

        Raises StartError if none was noted.
        """
        for reading in self.readings:
            for deploy in reversed([*self._deploys_of(reading)]):
                return deploy
        raise StartError("the configuration of its batch was not noted: choose --today")

    def _letter_lines(self) -> Iterator[TraceLine]:
        """Yield the dead letters of the record, and the replays that took them."""
        self.letters = self.rows_in(self.config.dead_letters)
        for letter in self.letters:
            names = self.config.shown_names(letter["route"] or "", letter["sink"] or "")
            place = "/".join(filter(None, names)) or "no route"
            text = f"{place}, stage {letter['stage']}: {as_text(letter['reason'])}"
            if letter.get("replayed") is not None:
                text += f"; taken by {as_text(letter['replayed'])}"
            yield TraceLine("dead letter", "read", text, self.config.dead_letters, as_facts(letter))


class _SinkTrace:
    """The search in what one sink has written: its tables, quarantine, outbox and receipts."""

    def __init__(self, record: RecordTrace, route: str, name: str, sink: Sink) -> None:
        self.record = record
        self.config = record.config
        self.lake = record.lake
        self.route = route
        self.name = name
        self.sink = sink
        self.key = f"{route}/{name}"
        self.about = "/".join(self.config.shown_names(route, name))
        self.outbox_rows: list[dict[str, Any]] = []
        self.letters = [letter for letter in record.letters if (letter["route"], letter["sink"]) == (route, name)]
        # A replay gives records of no route to all sinks, the others to the route and sink that refused them.
        self.readings = [*record.readings, *record.backfills]
        for letter in record.letters:
            if letter.get("replayed") and letter["route"] in (None, route) and letter["sink"] in (None, name):
                self.readings.append(_Reading(letter["replayed"], 0))

    def lines(self) -> Iterator[TraceLine]:
        """Yield all lines of the sink."""
        yield from _while_readable(self.about, self._quarantine_lines())
        if isinstance(self.sink, MergingSink | ApplyingSink):
            yield from _while_readable(self.about, self._outbox_lines())
        if isinstance(self.sink, LakeSink):
            yield from _while_readable(self.about, self._table_lines(self.sink))
        elif isinstance(self.sink, ApplyingSink):
            yield from _while_readable(self.about, self._delivery_lines(self.sink))

    def _line(self, known: Any, text: str, origin: str, facts: dict[str, Any] | None = None) -> TraceLine:
        return TraceLine(self.about, known, text, origin, facts or {})

    def _table_lines(self, sink: LakeSink) -> Iterator[TraceLine]:
        """Yield which tables have rows of the record's batches, and the rows of the record if tables tell."""
        glob = template_glob(names_of(sink))
        tables = [glob]
        if not glob or not is_name(glob):
            names = sorted({*self.lake.every_table(), *self.lake.noted_locations()})
            tables = [table for table in names if matches_any(table, (glob or "*",))]
        written: set[str] = set()
        for reading in self.readings:
            with ThreadPoolExecutor(THREADS) as pool:
                commits = dict(zip(tables, pool.map(partial(self._try_to_find, reading), tables), strict=True))
            written |= {table for table, commit in commits.items() if isinstance(commit, LogCommit)}
            yield from self._commit_lines(reading, commits)
        # If only data tells which tables the sink has, those without its commits are of others.
        for table in tables if glob else sorted(written):
            yield from _while_readable(self.about, self._row_lines(table))

    def _find_commit(self, reading: _Reading, target: str, table: str) -> LogCommit | None:
        """Return the commit of a batch to a table, of a replay its first one. Raises TableError if it is unknown."""
        app_id = str(batch_id(f"{self.config.name}:{reading.run}", target, table))
        return find_commit(self.lake, table, app_id, reading.batch, exact=not reading.is_replay)

    def _try_to_find(self, reading: _Reading, table: str) -> LogCommit | Exception | None:
        """Return the commit of a batch to a table, or why it cannot be known whether there is one."""
        try:
            return self._find_commit(reading, self.key, table)
        except _UNREADABLE as error:
            return error

    def _commit_lines(self, reading: _Reading, commits: dict[str, LogCommit | Exception | None]) -> Iterator[TraceLine]:
        """Yield the tables that a batch committed rows to, and those whose logs do not tell."""
        facts = [_facts_of_commit(table, commit) for table, commit in commits.items() if isinstance(commit, LogCommit)]
        if facts:
            texts = [f"{fact['table']} (version {fact['version']}, {str(fact['time'])[:19]}Z)" for fact in facts]
            text = f"{reading.name} committed rows to {join_names(texts)}"
            yield self._line("read", text, "their logs", {"run": reading.run, "batch": reading.batch, "commits": facts})
        errors = [error for error in commits.values() if isinstance(error, Exception)]
        if errors:
            text = f"whether {reading.name} committed rows to {len(errors):,} other tables"
            yield self._line("unknown", text, first_line(errors[0]))

    def _row_lines(self, table: str) -> Iterator[TraceLine]:
        """Yield the rows of a table that have the record's coordinates; for an upsert else the row of its key."""
        handle = self.lake.open(table)
        rows = None if handle is None else rows_at(handle, self.record.place)
        if handle is None or rows is None:
            return
        for row in rows:
            self.record.is_found = True
            text = f"{table} has its row: {as_text(_own_values(row))}"
            yield self._line("read", text, table, {"table": table, "row": as_facts(row)})
        if not rows:
            yield self._line("read", f"{table} has no row of it today", table, {"table": table, "row": None})
        for row in self.outbox_rows:
            if not rows and row.get(TABLE) == table:
                yield from self._key_lines(table, handle, row)

    def _key_lines(self, table: str, handle: DeltaTable, outbox_row: dict[str, Any]) -> Iterator[TraceLine]:
        """Yield which record the row of the key is of today, and whether the traced one came late."""
        keyed = keyed_of(handle)
        if keyed is None:
            return
        key = {name: outbox_row[name] for name in keyed.keys}
        wanted = pa.Table.from_pylist([key])
        names = [*keyed.keys, *OWN_PLACE, ARRIVAL, "is_current"]
        # Of a history the current row is what the key is today.
        states = as_rows(rows_of_keys(handle, wanted, keyed, names))
        rows = [state for state in states if state.get("is_current") is not False]
        deletions = deletions_table(self.lake, table)
        what = f"the row of its key ({as_text(key)}) in {table}"
        if not rows and deletions is not None:
            rows = as_rows(rows_of_keys(deletions, wanted, keyed, names))
            what = f"the deletion of its key ({as_text(key)}) in {table}"
        for row in rows:
            if row[OFFSET] is None:
                text = f"{what} is of no record: another writer put it there"
                yield self._line("read", text, table, {"table": table})
                continue
            other = str(TracedPlace(*(row[name] for name in OWN_PLACE)))
            facts = {"table": table, "key": as_facts(key), "row_of": other}
            yield self._line("read", f"{what} is of record {as_text(other)} today", table, facts)
            if (row[ARRIVAL] or 0) < (outbox_row[ARRIVAL] or 0) and not self.letters:
                text = "it came late, or waits, or one that was processed again took its place"
                yield self._line("derived", text, "the record of that row arrived in an earlier batch")

    def _outbox_lines(self) -> Iterator[TraceLine]:
        """Yield the rows of the record in the outbox, which its sink applies or merges."""
        outbox = outbox_of(self.config.name, self.route, self.name)
        self.outbox_rows = self.record.rows_in(outbox)
        for row in self.outbox_rows:
            text = f"its route took it, and the outbox has {as_text(_own_values(row))}"
            yield self._line("read", text, outbox, {"table": outbox, "row": as_facts(row)})
        if not self.outbox_rows:
            text = f"the outbox has no row of it; it keeps those of {self.config.outbox_retention} at least"
            yield self._line("read", text, outbox, {"table": outbox, "row": None})

    def _delivery_lines(self, sink: ApplyingSink) -> Iterator[TraceLine]:
        """Yield the receipts of the record, or without any what the counts of the ledger say."""
        if sink.receipts_table is not None:
            of_sink = (self.config.name, self.route, self.name)
            receipts = self.record.rows_in(sink.receipts_table)
            receipts = [row for row in receipts if (row["query"], row["route"], row["sink"]) == of_sink]
            for receipt in sorted(receipts, key=lambda receipt: receipt["at"]):
                text = _join_values(receipt, _OF_RECEIPT)
                yield self._line("read", text, sink.receipts_table, as_facts(receipt))
            if not receipts and self.outbox_rows:
                yield self._line("read", "it has no receipt yet", sink.receipts_table)
            return
        if not self.outbox_rows:
            return
        totals = ledger.read_totals(self.config).get((self.route, self.name), {})
        waiting = totals.get("backlog", 0) + totals.get("parked", 0)
        readings = self.record.readings
        if waiting or not readings or any(reading.configuration is None for reading in readings):
            why = (
                f"{self.config.ledger} counts {waiting:,} rows of the sink that wait, and not which, or lacks the batch"
            )
            yield self._line("unknown", "whether it was delivered", why)
            return
        letters = [letter for letter in self.letters if letter.get("replayed") is None]
        if self.letters and not letters:
            yield self._line("unknown", "whether a replay delivered it", "receipts would say, and the sink has none")
            return
        text = "it was refused" if letters else "it was delivered"
        origin = f"by {self.config.ledger} no row of the sink waits; dead letters of it: {len(letters)}"
        yield self._line("derived", text, origin, {"delivered": not letters})

    def _quarantine_lines(self) -> Iterator[TraceLine]:
        """Yield the rows of the record in the quarantine; of those that have left it, while their files are there."""
        quarantine = quarantine_of(self.config.name, self.route, self.name)
        waiting = self.record.rows_in(quarantine)
        for row in waiting:
            text = f"its row for {row[TABLE]} waits for its {WAITS_FOR[kind_of(row[CAUSE])]}: {_cause_of(row)}"
            yield self._line("read", text, quarantine, {"table": quarantine, "row": as_facts(row)})
        for reading in self.readings if not waiting else ():
            commit = self._find_commit(reading, f"{self.key}/quarantine", quarantine)
            if commit is not None:
                yield from self._former_lines(quarantine, commit, reading)

    def _former_lines(self, quarantine: str, commit: LogCommit, reading: _Reading) -> Iterator[TraceLine]:
        """Yield the rows of the record that a batch put into the quarantine, and how they have left it."""
        for row in added_rows_at(self.lake, quarantine, commit, self.record.place):
            if row is None:
                text = f"whether its row was among those that {reading.name} put into the quarantine"
                yield self._line("unknown", text, "their file was deleted")
                continue
            self.record.is_found = True
            text = f"its row for {row[TABLE]} was in the quarantine: {_cause_of(row)}"
            origin = f"{quarantine}, version {commit.version}"
            yield self._line("read", text, origin, {"version": commit.version, "row": as_facts(row)})
            yield self._release_line(row)

    def _release_line(self, row: dict[str, Any]) -> TraceLine:
        """Return how a row has left the quarantine: as a dead letter with the cause of its wait, or by a release."""
        if any(row[CAUSE] in (None, letter["reason"]) for letter in self.letters):
            return self._line("derived", "it left the quarantine as a dead letter", "both rows")
        table = row[TABLE]
        app_id = Place(self.route, self.name, table).app_id(row[QUERY], kind_of(row[CAUSE]))
        commit = find_commit(self.lake, table, app_id, row[BATCH_ID], exact=False)
        if commit is None:
            return self._line("unknown", "how it left the quarantine", f"{table} has no release of its batch")
        text = f"it was released into {table} with version {commit.version}"
        origin = f"{table} has the rows of its batch that waited"
        return self._line("derived", text, origin, _facts_of_commit(table, commit))


def _while_readable(about: str, lines: Iterator[TraceLine]) -> Iterator[TraceLine]:
    """Yield lines up to the first table that cannot be read, and then a line with the reason."""
    try:
        yield from lines
    except _UNREADABLE as error:
        yield TraceLine(about, "unknown", "what else is written of it", f"a table is unreadable: {first_line(error)}")


def _facts_of_commit(table: str, commit: LogCommit) -> dict[str, Any]:
    time = None if commit.written is None else datetime.fromtimestamp(commit.written / 1000, timezone.utc)
    return {"table": table, "version": commit.version, "time": time, "rows": commit.rows}


def _join_values(row: dict[str, Any], names: tuple[str, ...]) -> str:
    """Return some values of a row with their names, without those that are null or false."""
    return ", ".join(f"{name} {as_text(row[name])}" for name in names if row.get(name) not in (None, False))


def _cause_of(row: dict[str, Any]) -> str:
    """Return why a quarantined row waits."""
    return as_text(row[CAUSE] or "its table would change")


def _own_values(row: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a row that the router did not add."""
    return {name: value for name, value in row.items() if not name.startswith("_")}


def as_facts(value: Any) -> Any:
    """Return a value, or the values of a row, as JSON has them: bytes as text, cut off."""
    return json.loads(json.dumps(value, default=_unquoted), parse_constant=str)


def as_text(value: Any) -> str:
    """Return a value that others wrote as text of one line: escaped, and cut off."""
    facts = as_facts(value)
    text = facts if isinstance(facts, str) else json.dumps(facts, ensure_ascii=False)
    return shorten_cause(to_printable(text))


def _unquoted(value: Any) -> str:
    if isinstance(value, bytes):
        return value[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return str(value)
