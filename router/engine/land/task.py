"""The landing task: decode and label record batches, sort their rows into tables, count them. Runs on executors.

A task holds Arrow batches by table up to `buffer_bytes`, then writes the largest tables as row groups, so its memory
does not grow with the batch. A task that fails removes its files where it can; its successor writes others.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from router.decoding import keep_archives
from router.delta.casting import cast_down, cast_to, has_value
from router.delta.parquet_writer import attempt
from router.delta.schema_diff import too_wide
from router.delta.widening import KEEPS
from router.engine.balance import BRONZE, add_named
from router.engine.expressions.evaluator import evaluate
from router.engine.expressions.tree import columns_of
from router.engine.label.labels import Labelling, labelled
from router.engine.label.layout import (
    BRONZE_SCHEMA,
    DEAD_SCHEMA,
    MERGED_COORDINATES,
    QUARANTINE_COLUMNS,
    RAW_COLUMNS,
    SCHEMA_COLUMNS,
    TABLE,
    UNMET,
    Demands,
    RouteLabels,
    Target,
)
from router.engine.land.record_ages import BatchAges, TableAges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router.delta.parquet_writer import Staging

SOURCES = MERGED_COORDINATES | SCHEMA_COLUMNS
WANTED = 10_000
"""How many different schemas a task asks for at once, at most; it asks for more when the batch is landed again."""
GATHERED = 32 << 20
"""Bytes of rows, at most, that are sorted into tables at once. Each table costs some time per such part."""
Numbers = npt.NDArray[np.int64]
"""Row numbers within a batch."""


@dataclass
class Counts:
    """The rows of one source partition in one task, counted by what became of them."""

    topic: str
    partition: int
    first: int
    last: int
    read: int = 0
    failed: int = 0
    bare: int = 0
    unmatched: int = 0
    unknown: int = 0
    unknown_fields: dict[str, int] = field(default_factory=dict)
    matched: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    violated: dict[str, int] = field(default_factory=dict)
    landed: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    frozen: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    wanted: list[str] = field(default_factory=list)
    named: dict[str, list[str]] = field(default_factory=dict)


def gathered(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    """Join batches that follow each other until they have `most` bytes."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.get_total_buffer_size()
        if size >= most:
            yield pa.concat_batches(held)
            held, size = [], 0
    if held:
        yield pa.concat_batches(held)


class Rows:
    """One Arrow batch, with the source partition of each of its rows."""

    def __init__(self, batch: pa.RecordBatch, counts: dict[tuple[str, int], Counts]) -> None:
        self.batch = batch
        self.all = np.arange(batch.num_rows, dtype=np.int64)
        self.codes, self.sources = _sources(batch)
        offsets = batch.column("offset").to_numpy(zero_copy_only=False)
        self.of = []
        for code, source in enumerate(self.sources):
            mine = offsets if len(self.sources) == 1 else offsets[self.codes == code]
            first, last = int(mine.min()), int(mine.max())
            count = counts.setdefault(source, Counts(*source, first, last))
            count.first, count.last = min(count.first, first), max(count.last, last)
            count.read += len(mine)
            self.of.append(count)

    def mask(self, column: str) -> Numbers:
        """Return the rows where a boolean column is true."""
        chosen = self.batch.column(column)
        if not chosen.true_count:
            return self.all[:0]
        return np.flatnonzero(chosen.to_numpy(zero_copy_only=False))

    def where(self, at: Numbers | None) -> Numbers:
        """Return the numbers of chosen rows; None chooses all of them."""
        return self.all if at is None else at

    def add(self, kind: str, key: str | None, at: Numbers | None) -> None:
        """Count chosen rows under their source partitions."""
        found = np.bincount(self.codes[self.where(at)], minlength=len(self.sources))
        for count, more in zip(self.of, found.tolist(), strict=True):
            if key is None:
                setattr(count, kind, getattr(count, kind) + more)
            elif more:
                by = getattr(count, kind)
                by[key] = by.get(key, 0) + more

    def add_unknown(self, fields: pa.Array) -> None:
        """Count the events with fields that the schema lacks, and each of these fields."""
        valid = np.flatnonzero(fields.is_valid().to_numpy(zero_copy_only=False))
        if not len(valid):
            return
        self.add("unknown", None, valid)
        codes = self.codes[pc.list_parent_indices(fields).to_numpy()]
        named = fields.flatten().dictionary_encode()
        names = named.dictionary.to_pylist()
        found = np.bincount(codes * len(names) + named.indices.to_numpy(), minlength=len(self.of) * len(names))
        for count, of_names in zip(self.of, found.reshape(len(self.of), len(names)).tolist(), strict=True):
            add_named(count.unknown_fields, {name: n for name, n in zip(names, of_names, strict=True) if n})

    def want(self, values: list[str]) -> None:
        """Note what the decoder wants, under the first source partition: the driver fetches it once for all."""
        have = self.of[0].wanted
        have += [value for value in values[: WANTED - len(have)] if value not in have]

    def name(self, key: str, tables: list[str]) -> None:
        """Note the tables that rows of an outbox are for, under the first source partition: the driver adds all up."""
        have = self.of[0].named.setdefault(key, [])
        have += [table for table in tables if table not in have]

    def raw(self, at: Any) -> pa.RecordBatch:
        """Return the records as received."""
        raw = self.batch.select(list(RAW_COLUMNS))
        return raw if at is None else raw.take(pa.array(at) if isinstance(at, np.ndarray) else at)

    def by_topic(self, table_of: Callable[[str], str]) -> Iterator[tuple[str, Numbers | None]]:
        """Yield the table of each topic with its rows; None: every row."""
        tables = [table_of(topic) for topic, _ in self.sources]
        if len(named := dict.fromkeys(tables)) == 1:
            yield tables[0], None
            return
        for table in named:
            codes = [code for code, name in enumerate(tables) if name == table]
            yield table, np.flatnonzero(np.isin(self.codes, codes))

    def struct(self, column: str, at: Numbers | None) -> pa.RecordBatch:
        """Return the fields of a struct column for chosen rows."""
        struct = self.batch.column(column)
        return pa.RecordBatch.from_struct_array(struct if at is None else struct.take(pa.array(at)))


def _sources(batch: pa.RecordBatch) -> tuple[Numbers, list[tuple[str, int]]]:
    """Return the source partition of each row as a code, and the (topic, partition) of each code."""
    topics = batch.column("topic").dictionary_encode()
    partitions = batch.column("partition").dictionary_encode()
    names, numbers = topics.dictionary.to_pylist(), partitions.dictionary.to_pylist()
    if len(names) == len(numbers) == 1:
        return np.zeros(batch.num_rows, dtype=np.int64), [(names[0], numbers[0])]
    pairs = topics.indices.to_numpy().astype(np.int64) * len(numbers) + partitions.indices.to_numpy()
    present, codes = np.unique(pairs, return_inverse=True)
    return codes.astype(np.int64), [(names[pair // len(numbers)], numbers[pair % len(numbers)]) for pair in present]


def groups(rows: Rows, target: Target) -> Iterator[tuple[str, Numbers | None, pa.RecordBatch | None]]:
    """Split the rows of a target by table: one stable sort and one take, whatever the number of tables.

    Yields each table, the numbers of its rows (None: every row), and the rows, where the sort has made them.
    """
    goes = rows.batch.column(target.destination)
    if target.table is not None:
        at = rows.mask(target.destination)
        if len(at):
            yield target.table, None if len(at) == len(goes) else at, None
        return
    coded = goes.dictionary_encode()
    names = coded.dictionary.to_pylist()
    if not names:
        return
    codes = pc.fill_null(coded.indices, len(names)).to_numpy(zero_copy_only=False)
    codes = codes.astype(np.min_scalar_type(len(names)))  # two bytes are sorted in a tenth of the time of four
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(len(names) + 1, dtype=codes.dtype))
    ordered = rows.batch.column(target.rows).take(pa.array(order[: starts[-1]]))
    for name, start, end in zip(names, starts, starts[1:], strict=False):
        # a copy, since a slice would keep the rows of all tables for as long as those of one are held
        part = pa.concat_arrays([ordered[start:end]])
        yield name, order[start:end], pa.RecordBatch.from_struct_array(part)


@dataclass(frozen=True)
class LandingWork:
    """What every task of a landing job is given. `only` are the tables that get rows, also by way of an outbox, None
    for all: nothing else lands then, no dead letter either. `began` is when the batch began, in seconds since 1970, if
    tasks are to count how old records are.
    """

    labelling: Labelling
    demands: Demands
    staging: Staging
    batch: int
    query: str = ""
    only: frozenset[str] | None = None
    began: float | None = None


def landing_task(work: LandingWork) -> Any:
    """Return the function of one task, for mapInArrow. It reports files, counts and the big records left out."""

    def land(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_archives()
        task = _Task(work, attempt())
        try:
            for batch in gathered(batches, min(GATHERED, work.staging.buffer_bytes // 2)):
                task.take(batch)
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
        self.writer = work.staging.writer(work.batch, attempt, dispensable)
        self.counts: dict[tuple[str, int], Counts] = {}
        self.big = 0
        self.batch_ages: BatchAges | None = None
        self.ages: dict[str, TableAges] = {}

    def take(self, batch: pa.RecordBatch) -> None:
        """Label and sort one Arrow batch."""
        batch = self._without_big(batch)
        if not batch.num_rows:
            return
        rows = Rows(labelled(batch, self.work.labelling), self.counts)
        if self.work.began is not None:
            self.batch_ages = BatchAges(rows.batch.column("timestamp"), self.work.began)
        self._raw(rows)
        for route in self.layout.routes:
            self._route(rows, route)
        self.writer.flush()

    def finish(self) -> list[str]:
        """Write what is held; return the reports as JSON: files, counts, what was left out.

        That are big records, and rows of tables whose files could not be written.
        """
        files = [json.dumps(asdict(file)) for file in self.writer.close()]
        counts = [json.dumps(asdict(counts)) for counts in self.counts.values()]
        ages = {place: asdict(of_table) for place, of_table in self.ages.items()}
        return [*files, *counts, json.dumps({"big": self.big, "failed": self.writer.failed, "ages": ages})]

    def _count_ages(self, place: str, at: Numbers | None) -> None:
        """Count how old the records are that land in a table, if anybody looks at that."""
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

    def _raw(self, rows: Rows) -> None:
        layout = self.layout
        for name in ("failed", "bare", "unmatched"):
            rows.add(name, None, rows.mask(f"_{name}"))
        if layout.unknown:
            rows.add_unknown(rows.batch.column("_unknown"))
        if layout.wanted:
            rows.want(pc.unique(rows.batch.column("_wanted").drop_null()).to_pylist())
        dropped = rows.all[:0]
        if layout.drops_nulls:
            nulls = rows.batch.column("value").is_null().to_numpy(zero_copy_only=False)
            dropped = rows.mask("_bare")
            dropped = dropped[nulls[dropped]]
            rows.add("dropped", BRONZE, dropped)
        if layout.bronze:
            for name, column in layout.bronze_violated.items():
                rows.add("violated", f"{BRONZE}/{name}", rows.mask(column))
            for table, every in rows.by_topic(layout.bronze.of):
                at = np.setdiff1d(rows.where(every), dropped) if len(dropped) else every
                records = _numbered(rows.raw(at), self.work.batch, BRONZE_SCHEMA)
                self._count_ages(f"{BRONZE}/{table}", at)
                self.writer.hold(BRONZE, table, records, by=layout.bronze_by)
        dead = rows.batch.column("_dead")
        if dead.null_count < len(dead):
            parents = pc.list_parent_indices(dead)
            why = dead.flatten()
            self._dead(rows, parents, [why.field(i) for i in range(4)])

    def _dead(self, rows: Rows, at: pa.Array, why: list[pa.Array]) -> None:
        if self.work.only is not None:
            return
        dead = pa.RecordBatch.from_arrays([*why, *rows.raw(at).columns], names=DEAD_SCHEMA.names[:-1])
        self.writer.hold("/dead_letters", self.layout.dead_letters, _numbered(dead, self.work.batch, DEAD_SCHEMA))

    def _route(self, rows: Rows, route: RouteLabels) -> None:
        for kind, columns in (
            ("matched", {route.name: route.matched}),
            ("refused", {route.name: route.refused}),
            ("dropped", {route.name: route.dropped}),
            ("violated", {f"{route.name}/{name}": column for name, column in route.violated.items()}),
        ):
            for key, column in columns.items():
                rows.add(kind, key, rows.mask(column))
        for target in route.targets:
            if target.bad_name:
                rows.add("rejected", target.key, rows.mask(target.bad_name))
            for table, at, part in groups(rows, target):
                chosen, left = self._for_only(rows, target, at), part
                if target.held and rows.batch.column(target.held).null_count < rows.batch.num_rows:
                    chosen, left = self._free(rows, target, table, (part, at))
                self._land(rows, target, table, chosen, part=left)

    def _land(
        self,
        rows: Rows,
        target: Target,
        table: str,
        at: Numbers | None,
        whose: str = "",
        cause: str | None = None,
        part: pa.RecordBatch | None = None,
    ) -> None:
        """Land rows in a table: `part`, or what is at `at`.

        In a quarantine, `whose` is the table that they are for, `cause` why it has none.
        """
        if self.work.only is not None and table not in self.work.only and not target.merge_by:
            return
        allowed = self.work.demands.allowed.get(target.key)
        if target.names_in_outbox:
            at = self._named(rows, target, at)
        elif allowed is not None and table not in allowed:
            self._refuse(rows, target, rows.where(at), "name", target.beyond(table))
            return
        if target.quarantine and (blocked := self.work.demands.blocked.get(target.place(table))):
            self._to_quarantine(rows, target, at, table, blocked)
            return
        part = rows.struct(target.rows, at) if part is None else part
        for column, reason in self.work.demands.conflicts.get(target.place(table), {}).items():
            if column in part.schema.names:
                part, at = self._without(rows, target, (part, at), column, f"table {table}: {reason}")
        if not part.num_rows:
            return
        part, at = self._cast_to_frozen(rows, target, table, (part, at))
        if not part.num_rows:
            return
        part, at = self._satisfying(rows, target, table, (part, at))
        if not part.num_rows:
            return
        rows.add("landed", target.key, at)
        if not whose:  # rows in a quarantine are not where they belong
            self._count_ages(target.place(table), at)
        if target.outbox:
            values = {"_table": whose, "_query": self.work.query, "_batch_id": self.work.batch, "_cause": cause}
            part = _with_coordinates(rows, target, (part, at), values)
        demands, place = self.work.demands, target.place(table)
        casts, frozen = demands.casts.get(place, {}), demands.frozen.get(place, {})
        kinds, names = {f.name: f.type for f in target.schema} | frozen | casts, set(part.schema.names)
        schema = pa.schema([(name, kind) for name, kind in kinds.items() if name in names])
        self.writer.hold(target.key, table, _cast(part, schema), seen=target.seen, by=target.partition_by)

    def _free(
        self, rows: Rows, target: Target, table: str, have: tuple[pa.RecordBatch | None, Numbers | None]
    ) -> tuple[Numbers, pa.RecordBatch | None]:
        """Land the rows that an expectation lets wait in the quarantine; return the others."""
        part, at = have
        index, allowed = rows.where(at), self.work.demands.allowed.get(target.key)
        if allowed is not None and table not in allowed:
            return index, part  # refused as a whole
        held = rows.batch.column(str(target.held)).take(pa.array(index))
        for name in pc.unique(held.drop_null()).to_pylist():
            mine = pc.fill_null(pc.equal(held, name), False).to_numpy(zero_copy_only=False)
            self._to_quarantine(rows, target, index[mine], table, UNMET.format(name))
        free = held.is_null()
        return index[free.to_numpy(zero_copy_only=False)], part if part is None else part.filter(free)

    def _to_quarantine(
        self, rows: Rows, target: Target, at: Numbers | None, table: str, cause: str | None = None
    ) -> None:
        """Land rows for a table in the quarantine of their target, which it has."""
        assert target.quarantine is not None
        assert target.quarantine.table is not None
        self._land(rows, target.quarantine, target.quarantine.table, at, table, cause)

    def _for_only(self, rows: Rows, target: Target, at: Numbers | None) -> Numbers | None:
        """Return the rows of an outbox that are for the tables which get rows; of others what is given."""
        if self.work.only is None or target.merge_by is None:
            return at
        wanted = pa.array(sorted(self.work.only), pa.string())
        mine = pc.is_in(rows.struct(target.merge_by, at).column(TABLE), value_set=wanted)
        found: Numbers = rows.where(at)[mine.to_numpy(zero_copy_only=False)]
        return found

    def _named(self, rows: Rows, target: Target, at: Numbers | None) -> Numbers:
        """Note the tables that the rows of an outbox name; refuse the rows of tables beyond what the sink may have."""
        allowed, index = self.work.demands.allowed.get(target.key), rows.where(at)
        tables = rows.struct(str(target.merge_by), at).column("_table")
        if allowed is not None:
            for table in set(pc.unique(tables).to_pylist()) - allowed:
                beyond = pc.equal(tables, table).to_numpy(zero_copy_only=False)
                self._refuse(rows, target, index[beyond], "name", target.beyond(table))
            within = pc.is_in(tables, value_set=pa.array(sorted(allowed), pa.string()))
            tables, index = tables.filter(within), index[within.to_numpy(zero_copy_only=False)]
        rows.name(target.key, pc.unique(tables).to_pylist())
        return index

    def _without(
        self, rows: Rows, target: Target, have: tuple[pa.RecordBatch, Numbers | None], column: str, reason: str
    ) -> tuple[pa.RecordBatch, Numbers]:
        """Turn the rows that hold a value in a conflicting column into dead letters; drop the column."""
        part, at = have
        index = rows.where(at)
        valued = part.column(column).is_valid().to_numpy(zero_copy_only=False)
        if valued.any():
            self._refuse(rows, target, index[valued], "schema", reason)
        kept = part.filter(pa.array(~valued)).drop_columns([column])
        return kept, index[~valued]

    def _cast_to_frozen(
        self, rows: Rows, target: Target, table: str, have: tuple[pa.RecordBatch, Numbers | None]
    ) -> tuple[pa.RecordBatch, Numbers | None]:
        """Cast rows to the schema of a table that may not change, without the columns that it does not have.

        Rows that lose a value by it are counted as frozen, or go to the quarantine where the sink has one. Without a
        quarantine, a row with a value too wide for its column is a dead letter.
        """
        if not (frozen := self.work.demands.frozen.get(target.place(table))):
            return have
        part, at = have
        index, lost = rows.where(at), np.zeros(part.num_rows, bool)
        for column, kind in frozen.items():
            if column not in part.schema.names:
                continue
            place, values = part.schema.get_field_index(column), part.column(column)
            if kind is None:
                lost |= has_value(values, blank=target.zero_is_absent)
                part = part.remove_column(place)
                continue
            found = cast_down(values, kind, blank=target.zero_is_absent)
            lost |= found.lost
            part = part.set_column(place, column, found.array)
            if target.evolution == "quarantine":
                lost |= found.too_wide
            elif found.too_wide.any():
                reason = f"table {table}: {too_wide(column, target.schema.field(column).type, kind)}"
                reason += KEEPS if target.evolution == "evolve" else ""
                self._refuse(rows, target, index[found.too_wide], "schema", reason)
                part, index, lost = (
                    part.filter(pa.array(~found.too_wide)),
                    index[~found.too_wide],
                    lost[~found.too_wide],
                )
        if target.evolution == "quarantine" and lost.any():
            rows.add("quarantined", target.place(table), index[lost])
            self._to_quarantine(rows, target, index[lost], table)
            part, index = part.filter(pa.array(~lost)), index[~lost]
        else:
            rows.add("frozen", target.key, index[lost])
        return part, at if len(index) == have[0].num_rows else index

    def _satisfying(
        self, rows: Rows, target: Target, table: str, have: tuple[pa.RecordBatch, Numbers | None]
    ) -> tuple[pa.RecordBatch, Numbers | None]:
        """Turn the rows that violate a constraint of their table into dead letters: one would keep all others out."""
        part, at = have
        index = rows.where(at)
        for name, node in self.work.demands.constraints.get(target.place(table), {}).items():
            values = cast_to(pa.Table.from_batches([part]), pa.schema(columns_of(node)))
            columns = {column: values.column(column).combine_chunks() for column in values.column_names}
            holds = pc.fill_null(evaluate(node, columns, part.num_rows)[0], False).to_numpy(zero_copy_only=False)
            if not holds.all():
                self._refuse(rows, target, index[~holds], "schema", f"table {table}: {name} does not hold")
                part, index = part.filter(pa.array(holds)), index[holds]
        return part, at if len(index) == have[0].num_rows else index

    def _refuse(self, rows: Rows, target: Target, at: Numbers, stage: str, reason: str) -> None:
        rows.add("rejected", target.key, at)
        why = [pa.array([text] * len(at), pa.string()) for text in (stage, reason, target.route, target.sink)]
        self._dead(rows, pa.array(at), why)


def _with_coordinates(
    rows: Rows, target: Target, have: tuple[pa.RecordBatch, Numbers | None], values: dict[str, Any]
) -> pa.RecordBatch:
    """Return rows of an outbox or a quarantine with its own columns before theirs; `values` are a quarantine's."""
    part, at = have
    names = target.schema.names[: len(target.schema) - rows.batch.schema.field(target.rows).type.num_fields]
    own = rows.struct(target.merge_by, at) if target.merge_by else None
    more = dict(zip(own.schema.names, own.columns, strict=True)) if own else {}
    columns = {
        name: more[name]
        if name in more
        else pa.repeat(pa.scalar(values[name], QUARANTINE_COLUMNS[name]), part.num_rows)
        if name in QUARANTINE_COLUMNS
        else rows.batch.column(SOURCES[name]).take(pa.array(rows.where(at)))
        for name in names
    }
    return pa.RecordBatch.from_arrays([*columns.values(), *part.columns], names=[*columns, *part.schema.names])


def _numbered(batch: pa.RecordBatch, number: int, schema: pa.Schema) -> pa.RecordBatch:
    """Append the batch id and give the columns the table's types."""
    numbers = pa.array(np.full(batch.num_rows, number, dtype=np.int64))
    return _cast(pa.RecordBatch.from_arrays([*batch.columns, numbers], names=schema.names), schema)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
