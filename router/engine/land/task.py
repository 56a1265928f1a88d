"""The landing task: decode and label record batches, sort their rows into tables, count them. Runs on executors.

A task holds Arrow batches by table up to `buffer_bytes`, then writes the largest tables as row groups, so its memory
does not grow with the batch. A task that fails deletes its files if it can; the next attempt writes others.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from router.api.decoding import keep_archives
from router.delta.casting import cast_down, cast_to, has_value
from router.delta.parquet_writer import attempt_name
from router.delta.schema_diff import too_wide
from router.delta.unreadable_values import TAKEN_BY_NULL, read_as_null, unreadable_in
from router.delta.widening import KEEPS
from router.engine.balance import Partition, add_named
from router.engine.expressions.evaluator import evaluate_expression
from router.engine.expressions.tree import columns_of
from router.engine.label.labels import Labelling, label_records, with_arrival
from router.engine.label.layout import (
    BRONZE_SCHEMA,
    DEAD_SCHEMA,
    MERGED_COORDINATES,
    QUARANTINE_COLUMNS,
    SCHEMA_COLUMNS,
    TRACED,
    UNMET,
    Demands,
    RouteLabels,
    Target,
)
from router.engine.label.narrowing import lost_column
from router.engine.land.record_ages import BatchAges, TableAges
from router.own_names import BATCH_ID, BRONZE, CAUSE, QUERY, TABLE
from router.record import RAW_COLUMNS
from router.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router.delta.parquet_writer import Staging

SOURCES = MERGED_COORDINATES | SCHEMA_COLUMNS
MAX_WANTED_SCHEMAS = 10_000
"""Most schemas that a task requests at once; it requests others when the batch is landed again."""
GATHERED_BYTES = 32 << 20
"""Most bytes of rows that are sorted into tables at once. Each table costs some time per such part."""
_Numbers = npt.NDArray[np.int64]
"""Row numbers within a batch."""


@dataclass
class Counts(Partition):
    """The rows of one source partition in one task, counted by what became of them, and what the decoder lacks."""

    wanted: list[str] = field(default_factory=list)
    named: dict[str, list[str]] = field(default_factory=dict)


def gather_batches(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Yield batches that are joined until they have `most` bytes."""
    parts: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        parts.append(batch)
        size += batch.get_total_buffer_size()
        if size >= most:
            yield pa.concat_batches(parts)
            parts = []
            size = 0
    if parts:
        yield pa.concat_batches(parts)


class Rows:
    """One Arrow batch, with the source partition of each of its rows."""

    def __init__(self, batch: pa.RecordBatch, counts: dict[tuple[str, int], Counts]) -> None:
        self.batch = batch
        self.all = np.arange(batch.num_rows, dtype=np.int64)
        self.codes, self.sources = _source_codes(batch)
        offsets = batch.column("offset").to_numpy(zero_copy_only=False)
        self.of: list[Counts] = []
        for code, source in enumerate(self.sources):
            # A batch of one source partition needs no mask.
            source_offsets = offsets
            if len(self.sources) > 1:
                source_offsets = offsets[self.codes == code]
            first = int(source_offsets.min())
            last = int(source_offsets.max())
            count = counts.setdefault(source, Counts(*source, first, last))
            count.first = min(count.first, first)
            count.last = max(count.last, last)
            count.read += len(source_offsets)
            self.of.append(count)

    def true_rows(self, column: str) -> _Numbers:
        """Return the rows where a boolean column is true."""
        chosen = self.batch.column(column)
        if not chosen.true_count:
            return self.all[:0]
        return np.flatnonzero(chosen.to_numpy(zero_copy_only=False))

    def chosen_rows(self, row_numbers: _Numbers | None) -> _Numbers:
        """Return the numbers of chosen rows; None chooses all of them."""
        return self.all if row_numbers is None else row_numbers

    def count_rows(self, kind: str, key: str | None, row_numbers: _Numbers | None) -> None:
        """Count chosen rows under their source partitions, with a key in the counts of that kind by key."""
        by_source = np.bincount(self.codes[self.chosen_rows(row_numbers)], minlength=len(self.sources))
        for count, more in zip(self.of, by_source.tolist(), strict=True):
            if key is None:
                setattr(count, kind, getattr(count, kind) + more)
            elif more:
                by_key = getattr(count, kind)
                by_key[key] = by_key.get(key, 0) + more

    def add_unknown(self, fields: pa.Array) -> None:
        """Count the events with fields that the schema lacks, and each of these fields."""
        valid = np.flatnonzero(fields.is_valid().to_numpy(zero_copy_only=False))
        if not len(valid):
            return
        self.count_rows("unknown", None, valid)
        # One count for each pair of source partition and field: the pair's number is partition * fields + field.
        codes = self.codes[pc.list_parent_indices(fields).to_numpy()]
        named = fields.flatten().dictionary_encode()
        names = named.dictionary.to_pylist()
        pairs = codes * len(names) + named.indices.to_numpy()
        by_pair = np.bincount(pairs, minlength=len(self.of) * len(names)).reshape(len(self.of), len(names))
        for count, of_source in zip(self.of, by_pair.tolist(), strict=True):
            counted = zip(names, of_source, strict=True)
            add_named(count.unknown_fields, {name: events for name, events in counted if events})

    def note_wanted_schemas(self, values: list[str], asked: frozenset[str]) -> None:
        """Note the schemas that the decoder lacks, under the first source partition, except those `asked` for already.

        The driver asks for each once.
        """
        noted = self.of[0].wanted
        known = {*noted, *asked}
        new = [value for value in values if value not in known]
        noted += new[: MAX_WANTED_SCHEMAS - len(noted)]

    def note_outbox_tables(self, key: str, tables: list[str]) -> None:
        """Note the tables that rows of an outbox are for, under the first source partition: the driver adds all up."""
        noted = self.of[0].named.setdefault(key, [])
        noted += [table for table in tables if table not in noted]

    def raw_records(self, row_numbers: Any) -> pa.RecordBatch:
        """Return the records as received; the numbers may be numpy's or Arrow's, None for all rows."""
        raw = self.batch.select(list(RAW_COLUMNS))
        if row_numbers is None:
            return raw
        if isinstance(row_numbers, np.ndarray):
            row_numbers = pa.array(row_numbers)
        return raw.take(row_numbers)

    def by_topic(self, table_of: Callable[[str], str]) -> Iterator[tuple[str, _Numbers | None]]:
        """Yield the table of each topic with its rows; None: every row."""
        tables = [table_of(topic) for topic, _ in self.sources]
        different_tables = dict.fromkeys(tables)
        if len(different_tables) == 1:
            yield tables[0], None
            return
        for table in different_tables:
            codes = [code for code, name in enumerate(tables) if name == table]
            yield table, np.flatnonzero(np.isin(self.codes, codes))

    def struct_fields(self, column: str, row_numbers: _Numbers | None) -> pa.RecordBatch:
        """Return the fields of a struct column for chosen rows."""
        struct = self.batch.column(column)
        if row_numbers is not None:
            struct = struct.take(pa.array(row_numbers))
        return pa.RecordBatch.from_struct_array(struct)


def _source_codes(batch: pa.RecordBatch) -> tuple[_Numbers, list[tuple[str, int]]]:
    """Return the source partition of each row as a code, and the (topic, partition) of each code."""
    topics = batch.column("topic").dictionary_encode()
    partitions = batch.column("partition").dictionary_encode()
    names = topics.dictionary.to_pylist()
    numbers = partitions.dictionary.to_pylist()
    if len(names) == len(numbers) == 1:
        return np.zeros(batch.num_rows, dtype=np.int64), [(names[0], numbers[0])]
    # Topic and partition as one number, so that one pass finds the pairs that occur.
    pairs = topics.indices.to_numpy().astype(np.int64) * len(numbers) + partitions.indices.to_numpy()
    present, codes = np.unique(pairs, return_inverse=True)
    sources = []
    for pair in present:
        sources.append((names[pair // len(numbers)], numbers[pair % len(numbers)]))
    return codes.astype(np.int64), sources


def group_by_table(rows: Rows, target: Target) -> Iterator[tuple[str, _Numbers | None, pa.RecordBatch | None]]:
    """Split the rows of a target by table: one stable sort and one take, whatever the number of tables.

    Yields each table, the numbers of its rows (None: every row), and the rows, if the sort has made them.
    """
    goes = rows.batch.column(target.destination)
    if target.table is not None:
        row_numbers = rows.true_rows(target.destination)
        if len(row_numbers):
            yield target.table, None if len(row_numbers) == len(goes) else row_numbers, None
        return
    coded = goes.dictionary_encode()
    names = coded.dictionary.to_pylist()
    if not names:
        return
    codes = pc.fill_null(coded.indices, len(names)).to_numpy(zero_copy_only=False)
    # Two bytes are sorted in a tenth of the time of four.
    codes = codes.astype(np.min_scalar_type(len(names)))
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(len(names) + 1, dtype=codes.dtype))
    ordered = rows.batch.column(target.rows).take(pa.array(order[: starts[-1]]))
    for name, start, end in zip(names, starts, starts[1:], strict=False):
        # A copy, since a slice would keep the rows of all tables for as long as those of one are held.
        part = pa.concat_arrays([ordered[start:end]])
        yield name, order[start:end], pa.RecordBatch.from_struct_array(part)


@dataclass(frozen=True)
class LandingWork:
    """What every task of a landing job is given. `only` are the tables that get rows, also by way of an outbox, None
    for all: nothing else lands then, no dead letter either. `began` is when the batch began, in seconds since 1970, if
    tasks are to count how old records are. Records without an arrival get `arrival`, unless it is None. `asked` is what
    the decoder was asked for already in this batch. With `traced` rows have the place of their record, in columns of
    the file alone.
    """

    labelling: Labelling
    demands: Demands
    staging: Staging
    batch: int
    query: str = ""
    only: frozenset[str] | None = None
    began: float | None = None
    arrival: int | None = None
    asked: frozenset[str] = frozenset()
    traced: bool = False


def landing_task(work: LandingWork) -> Any:
    """Return the function of one task, for mapInArrow. It reports files, counts and the big records left out."""

    def land(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_archives()
        task = _Task(work, attempt_name())
        try:
            for batch in gather_batches(batches, min(GATHERED_BYTES, work.staging.buffer_bytes // 2)):
                task.take_batch(batch)
            reports = task.finish()
        except BaseException:
            task.writer.abandon()
            raise
        yield pa.RecordBatch.from_arrays([pa.array(reports, pa.string())], names=["report"])

    return land


class _Task:
    """The rows of one task, sorted into tables and counted."""

    def __init__(self, work: LandingWork, attempt: str) -> None:
        self.work = work
        self.layout = work.labelling.layout
        dispensable = [target.key for target in self.layout.targets if target.quarantine]
        self.writer = work.staging.open_writer(work.batch, attempt, dispensable)
        self.counts: dict[tuple[str, int], Counts] = {}
        self.big = 0
        self.batch_ages: BatchAges | None = None
        self.ages: dict[str, TableAges] = {}
        self.defects: dict[str, str] = {}

    def take_batch(self, batch: pa.RecordBatch) -> None:
        """Label and sort one Arrow batch."""
        batch = self._without_big(batch)
        if not batch.num_rows:
            return
        batch = with_arrival(batch, self.work.arrival)
        rows = Rows(label_records(batch, self.work.labelling, self.defects), self.counts)
        if self.work.began is not None:
            self.batch_ages = BatchAges(rows.batch.column("timestamp"), self.work.began)
        self._land_raw(rows)
        for route in self.layout.routes:
            self._land_route(rows, route)
        self.writer.flush()

    def finish(self) -> list[str]:
        """Write what is held; return the reports as JSON: files, counts, and why the batch has to be landed again.

        That are big records, rows of tables whose files could not be written, and routes with an expression that fails.
        """
        files = [json.dumps(asdict(file)) for file in self.writer.close()]
        counts = [json.dumps(asdict(counts)) for counts in self.counts.values()]
        ages = {place: asdict(of_table) for place, of_table in self.ages.items()}
        rest = {"big": self.big, "failed": self.writer.failed, "ages": ages, "defects": self.defects}
        return [*files, *counts, json.dumps(rest)]

    def _count_ages(self, place: str, at: _Numbers | None) -> None:
        """Count how old the records are that land in a table, if something reads these counts."""
        if self.batch_ages is None:
            return
        ages = self.batch_ages.of_rows(at)
        before = self.ages.get(place)
        self.ages[place] = ages if before is None else before + ages

    def _without_big(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if "_big" not in batch.schema.names:
            return batch
        big = batch.column("_big")
        batch = batch.drop_columns(["_big"])
        self.big += big.true_count
        return batch.filter(pc.invert(big)) if big.true_count else batch

    def _land_raw(self, rows: Rows) -> None:
        layout = self.layout
        for name in ("failed", "bare", "unmatched"):
            rows.count_rows(name, None, rows.true_rows(f"_{name}"))
        if layout.unknown:
            rows.add_unknown(rows.batch.column("_unknown"))
        if layout.wanted:
            rows.note_wanted_schemas(pc.unique(rows.batch.column("_wanted").drop_null()).to_pylist(), self.work.asked)
        dropped = rows.all[:0]
        if layout.drops_nulls:
            nulls = rows.batch.column("value").is_null().to_numpy(zero_copy_only=False)
            dropped = rows.true_rows("_bare")
            dropped = dropped[nulls[dropped]]
            rows.count_rows("dropped", BRONZE, dropped)
        if layout.bronze:
            for name, column in layout.bronze_violated.items():
                rows.count_rows("violated", f"{BRONZE}/{name}", rows.true_rows(column))
            for table, every in rows.by_topic(layout.bronze.table_of):
                at = np.setdiff1d(rows.chosen_rows(every), dropped) if len(dropped) else every
                records = _with_batch_id(rows.raw_records(at), self.work.batch, BRONZE_SCHEMA)
                self._count_ages(f"{BRONZE}/{table}", at)
                self.writer.hold_rows(BRONZE, table, records, by=layout.bronze_by)
        dead = rows.batch.column("_dead")
        if dead.null_count < len(dead):
            parents = pc.list_parent_indices(dead)
            why = dead.flatten()
            self._hold_dead_letters(rows, parents, [why.field(i) for i in range(4)])

    def _hold_dead_letters(self, rows: Rows, at: pa.Array, why: list[pa.Array]) -> None:
        if self.work.only is not None:
            return
        dead = pa.RecordBatch.from_arrays([*why, *rows.raw_records(at).columns], names=DEAD_SCHEMA.names[:-1])
        self.writer.hold_rows(
            "/dead_letters", self.layout.dead_letters, _with_batch_id(dead, self.work.batch, DEAD_SCHEMA)
        )

    def _land_route(self, rows: Rows, route: RouteLabels) -> None:
        for kind, columns in (
            ("matched", {route.name: route.matched}),
            ("refused", {route.name: route.refused}),
            ("dropped", {route.name: route.dropped}),
            ("violated", {f"{route.name}/{name}": column for name, column in route.violated.items()}),
        ):
            for key, column in columns.items():
                rows.count_rows(kind, key, rows.true_rows(column))
        for target in route.targets:
            if target.bad_name:
                rows.count_rows("rejected", target.key, rows.true_rows(target.bad_name))
            for table, row_numbers, part in group_by_table(rows, target):
                try:
                    self._land_group(rows, target, table, row_numbers, part)
                except Exception as error:
                    # Only once: the rows may be what the quarantine cannot take either.
                    if target.demands_key(table) in self.work.demands.blocked:
                        raise
                    self.writer.note_failure(target.key, table, error)

    def _land_group(
        self, rows: Rows, target: Target, table: str, row_numbers: _Numbers | None, part: pa.RecordBatch | None
    ) -> None:
        """Land the rows of a target that are for one table: those that violate an expectation in the quarantine."""
        chosen = self._for_only(rows, target, row_numbers)
        if target.held and rows.batch.column(target.held).null_count < rows.batch.num_rows:
            chosen, part = self._quarantine_unmet(rows, target, table, (part, row_numbers))
        self._land_in_table(rows, target, table, chosen, part=part)

    def _land_in_table(
        self,
        rows: Rows,
        target: Target,
        table: str,
        at: _Numbers | None,
        whose: str = "",
        cause: str | None = None,
        part: pa.RecordBatch | None = None,
        owner: Target | None = None,
    ) -> None:
        """Land rows in a table: `part`, or what is at `at`.

        In a quarantine, `whose` is the table that they are for, `owner` its target, `cause` why it has none.
        """
        if self.work.only is not None and table not in self.work.only and not target.merge_by:
            return
        allowed = self.work.demands.allowed.get(target.key)
        if target.names_in_outbox:
            at = self._note_named_tables(rows, target, at)
        elif allowed is not None and table not in allowed:
            self._refuse_rows(rows, target, rows.chosen_rows(at), Stage.NAME, target.limit_reason(table))
            return
        if target.quarantine and (blocked := self.work.demands.blocked.get(target.demands_key(table))):
            self._to_quarantine(rows, target, at, table, blocked)
            return
        part = rows.struct_fields(target.rows, at) if part is None else part
        part, at = self._without_conflicts(rows, target, table, (part, at))
        if not part.num_rows:
            return
        part, at = self._cast_to_frozen(rows, target, table, (part, at))
        if not part.num_rows:
            return
        if target.outbox:
            values = {TABLE: whose, QUERY: self.work.query, BATCH_ID: self.work.batch, CAUSE: cause}
            part = _with_coordinates(rows, target, (part, at), values)
            part, at = self._without_conflicts(rows, target, table, (part, at))  # of what orders rows
        # Before the constraints: Arrow cannot evaluate them on a text that is not UTF-8.
        place_of_rows = f"table {whose}" if whose else target.name_in_dead_letters(table)
        part, at = self._refuse_unreadable_rows(rows, target, place_of_rows, (owner or target).partition_by, (part, at))
        if not part.num_rows:
            return
        part, at = self._refuse_violating_rows(rows, target, table, (part, at))
        if not part.num_rows:
            return
        rows.count_rows("landed", target.key, at)
        if not whose:  # rows in a quarantine are not where they belong
            self._count_ages(target.demands_key(table), at)
        demands = self.work.demands
        place = target.demands_key(table)
        kinds = {column.name: column.type for column in target.schema}
        kinds |= demands.frozen.get(place, {})
        kinds |= demands.casts.get(place, {})
        names = set(part.schema.names)
        schema = pa.schema([(name, kind) for name, kind in kinds.items() if name in names])
        part = _cast_columns(part, schema)
        if self.work.traced:
            for name, source in TRACED.items():
                part = part.append_column(name, rows.batch.column(source).take(pa.array(rows.chosen_rows(at))))
        self.writer.hold_rows(target.key, table, part, seen=target.seen, by=target.partition_by)

    def _quarantine_unmet(
        self, rows: Rows, target: Target, table: str, have: tuple[pa.RecordBatch | None, _Numbers | None]
    ) -> tuple[_Numbers, pa.RecordBatch | None]:
        """Land the rows that violate an expectation in the quarantine; return the others."""
        part, at = have
        index = rows.chosen_rows(at)
        allowed = self.work.demands.allowed.get(target.key)
        if allowed is not None and table not in allowed:
            return index, part  # refused as a whole
        unmet = rows.batch.column(str(target.held)).take(pa.array(index))
        for name in pc.unique(unmet.drop_null()).to_pylist():
            is_unmet = pc.fill_null(pc.equal(unmet, name), False).to_numpy(zero_copy_only=False)
            self._to_quarantine(rows, target, index[is_unmet], table, UNMET.format(name))
        free = unmet.is_null()
        if part is not None:
            part = part.filter(free)
        return index[free.to_numpy(zero_copy_only=False)], part

    def _to_quarantine(
        self, rows: Rows, target: Target, at: _Numbers | None, table: str, cause: str | None = None
    ) -> None:
        """Land rows for a table in the quarantine of their target, which it has."""
        assert target.quarantine is not None
        assert target.quarantine.table is not None
        self._land_in_table(rows, target.quarantine, target.quarantine.table, at, table, cause, owner=target)

    def _for_only(self, rows: Rows, target: Target, at: _Numbers | None) -> _Numbers | None:
        """Return the rows of an outbox that are for the tables in `only`; of other targets all rows."""
        if self.work.only is None or target.merge_by is None:
            return at
        wanted = pa.array(sorted(self.work.only), pa.string())
        is_wanted = pc.is_in(rows.struct_fields(target.merge_by, at).column(TABLE), value_set=wanted)
        row_numbers: _Numbers = rows.chosen_rows(at)[is_wanted.to_numpy(zero_copy_only=False)]
        return row_numbers

    def _note_named_tables(self, rows: Rows, target: Target, at: _Numbers | None) -> _Numbers:
        """Note the tables that the rows of an outbox name; refuse the rows of tables beyond what the sink may have."""
        allowed = self.work.demands.allowed.get(target.key)
        index = rows.chosen_rows(at)
        tables = rows.struct_fields(str(target.merge_by), at).column(TABLE)
        if allowed is not None:
            for table in set(pc.unique(tables).to_pylist()) - allowed:
                beyond = pc.equal(tables, table).to_numpy(zero_copy_only=False)
                self._refuse_rows(rows, target, index[beyond], Stage.NAME, target.limit_reason(table))
            within = pc.is_in(tables, value_set=pa.array(sorted(allowed), pa.string()))
            tables = tables.filter(within)
            index = index[within.to_numpy(zero_copy_only=False)]
        rows.note_outbox_tables(target.key, pc.unique(tables).to_pylist())
        return index

    def _without_conflicts(
        self, rows: Rows, target: Target, table: str, have: tuple[pa.RecordBatch, _Numbers | None]
    ) -> tuple[pa.RecordBatch, _Numbers | None]:
        """Return rows without the columns that the table has in a type that does not take theirs."""
        for column, reason in self.work.demands.conflicts.get(target.demands_key(table), {}).items():
            if column in have[0].schema.names:
                have = self._drop_conflicting_column(rows, target, have, column, f"table {table}: {reason}")
        return have

    def _drop_conflicting_column(
        self, rows: Rows, target: Target, have: tuple[pa.RecordBatch, _Numbers | None], column: str, reason: str
    ) -> tuple[pa.RecordBatch, _Numbers]:
        """Turn the rows that hold a value in a conflicting column into dead letters; drop the column."""
        part, at = have
        index = rows.chosen_rows(at)
        valued = part.column(column).is_valid().to_numpy(zero_copy_only=False)
        if valued.any():
            self._refuse_rows(rows, target, index[valued], Stage.SCHEMA, reason)
        kept = part.filter(pa.array(~valued)).drop_columns([column])
        return kept, index[~valued]

    def _cast_to_frozen(
        self, rows: Rows, target: Target, table: str, have: tuple[pa.RecordBatch, _Numbers | None]
    ) -> tuple[pa.RecordBatch, _Numbers | None]:
        """Cast rows to the schema of a table that may not change, without the columns that it does not have.

        Rows that lose a value by it are counted as frozen, or go to the quarantine if the sink has one. Without a
        quarantine, a row with a value too wide for its column is a dead letter.
        """
        frozen = self.work.demands.frozen.get(target.demands_key(table), {})
        narrowed = rows.true_rows(lost_column(target.narrowed)) if target.narrowed else rows.all[:0]
        if not (frozen or len(narrowed)):
            return have
        part, at = have
        index = rows.chosen_rows(at)
        lost = np.zeros(part.num_rows, bool)
        for column, kind in frozen.items():
            if column not in part.schema.names:
                continue
            position = part.schema.get_field_index(column)
            values = part.column(column)
            if kind is None:  # the table lacks the column
                lost |= has_value(values, blank=target.zero_is_absent)
                part = part.remove_column(position)
                continue
            cast = cast_down(values, kind, blank=target.zero_is_absent)
            lost |= cast.lost
            part = part.set_column(position, column, cast.array)
            if target.evolution == "quarantine":
                lost |= cast.too_wide
            elif cast.too_wide.any():
                reason = f"table {table}: {too_wide(column, target.schema.field(column).type, kind)}"
                reason += KEEPS if target.evolution == "evolve" else ""
                self._refuse_rows(rows, target, index[cast.too_wide], Stage.SCHEMA, reason)
                # Rows, their numbers and the marks of losses stay in step.
                fits = ~cast.too_wide
                part = part.filter(pa.array(fits))
                index = index[fits]
                lost = lost[fits]
        if target.evolution == "quarantine" and lost.any():
            rows.count_rows("quarantined", target.demands_key(table), index[lost])
            self._to_quarantine(rows, target, index[lost], table)
            part = part.filter(pa.array(~lost))
            index = index[~lost]
        else:
            rows.count_rows("frozen", target.key, index[lost | np.isin(index, narrowed)])
        return part, at if len(index) == have[0].num_rows else index

    def _refuse_unreadable_rows(
        self,
        rows: Rows,
        target: Target,
        place: str,
        partition_by: tuple[str, ...],
        have: tuple[pa.RecordBatch, _Numbers | None],
    ) -> tuple[pa.RecordBatch, _Numbers | None]:
        """Turn the rows with a value that readers of the table refuse into dead letters: it would cost the whole file.

        All rows that tasks write pass here, whatever has made their values. `place` is what dead letters call the one
        that they are for, `partition_by` what that is partitioned by: rows of a quarantine go there one day.
        """
        part, at = have
        index = rows.chosen_rows(at)
        refused = np.zeros(part.num_rows, bool)
        for values in unreadable_in(part):
            # A row has one dead letter, which names its first such column.
            reason = f"{place}: {values.reason}"
            self._refuse_rows(rows, target, index[values.rows & ~refused], Stage.SCHEMA, reason)
            refused |= values.rows
        for name in partition_by:
            if name in part.schema.names:
                nulled = read_as_null(part.column(name)) & ~refused
                if nulled.any():
                    self._refuse_rows(rows, target, index[nulled], Stage.SCHEMA, f"{place}: {name}: {TAKEN_BY_NULL}")
                refused |= nulled
        if not refused.any():
            return have
        return part.filter(pa.array(~refused)), index[~refused]

    def _refuse_violating_rows(
        self, rows: Rows, target: Target, table: str, have: tuple[pa.RecordBatch, _Numbers | None]
    ) -> tuple[pa.RecordBatch, _Numbers | None]:
        """Turn the rows that violate a constraint of their table into dead letters: one would keep all others out."""
        part, at = have
        index = rows.chosen_rows(at)
        for name, node in self.work.demands.constraints.get(target.demands_key(table), {}).items():
            values = cast_to(pa.Table.from_batches([part]), pa.schema(columns_of(node)))
            columns = {column: values.column(column).combine_chunks() for column in values.column_names}
            holds = pc.fill_null(evaluate_expression(node, columns, part.num_rows)[0], False).to_numpy(
                zero_copy_only=False
            )
            if not holds.all():
                self._refuse_rows(rows, target, index[~holds], Stage.SCHEMA, f"table {table}: {name} does not hold")
                part = part.filter(pa.array(holds))
                index = index[holds]
        return part, at if len(index) == have[0].num_rows else index

    def _refuse_rows(self, rows: Rows, target: Target, at: _Numbers, stage: Stage, reason: str) -> None:
        rows.count_rows("rejected", target.key, at)
        why = [pa.array([text] * len(at), pa.string()) for text in (stage, reason, target.route, target.sink)]
        self._hold_dead_letters(rows, pa.array(at), why)


def _with_coordinates(
    rows: Rows, target: Target, have: tuple[pa.RecordBatch, _Numbers | None], values: dict[str, Any]
) -> pa.RecordBatch:
    """Return rows of an outbox or a quarantine with its own columns before theirs; `values` are a quarantine's."""
    part, at = have
    own_count = len(target.schema) - rows.batch.schema.field(target.rows).type.num_fields
    merge_columns: dict[str, pa.Array] = {}
    if target.merge_by:
        merge_keys = rows.struct_fields(target.merge_by, at)
        merge_columns = dict(zip(merge_keys.schema.names, merge_keys.columns, strict=True))
    columns: dict[str, pa.Array] = {}
    for name in target.schema.names[:own_count]:
        if name in merge_columns:
            columns[name] = merge_columns[name]
        elif name in QUARANTINE_COLUMNS:
            columns[name] = pa.repeat(pa.scalar(values[name], QUARANTINE_COLUMNS[name]), part.num_rows)
        else:
            columns[name] = rows.batch.column(SOURCES[name]).take(pa.array(rows.chosen_rows(at)))
    return pa.RecordBatch.from_arrays([*columns.values(), *part.columns], names=[*columns, *part.schema.names])


def _with_batch_id(batch: pa.RecordBatch, number: int, schema: pa.Schema) -> pa.RecordBatch:
    """Append the batch id and give the columns the table's types."""
    numbers = pa.array(np.full(batch.num_rows, number, dtype=np.int64))
    return _cast_columns(pa.RecordBatch.from_arrays([*batch.columns, numbers], names=schema.names), schema)


def _cast_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    arrays = []
    for array, column in zip(batch.columns, schema, strict=True):
        arrays.append(array if array.type == column.type else array.cast(column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
