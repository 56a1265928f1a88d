"""Decode and label record batches, in the tasks that land them. Runs on executors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.api.decoding import decode_batch, describe_error
from router.api.halving import by_halves
from router.delta.unreadable_values import replace_bad_bytes
from router.engine.expressions.evaluator import Node, evaluate_expression
from router.engine.expressions.tree import in_type, repeat_scalar
from router.engine.label.layout import DEAD_SCHEMA, MERGED_COORDINATES, UNMET, Layout, RouteLabels, Target
from router.engine.label.narrowing import unfit_column
from router.engine.label.tombstones import TOMBSTONE, Tombstones, as_events
from router.engine.lookup.join import LookupTable, join_lookups
from router.own_names import BRONZE
from router.record import UNREADABLE
from router.stages import Stage
from router.table_names import describe_refused_name, fold_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from router.api.decoding import ArrowDecoding
    from router.engine.expressions.evaluator import Defect
    from router.engine.label.narrowing import NarrowedEvent
    from router.engine.label.route import Check, RouteExpressions

_DEAD_LETTER = pa.struct(list(DEAD_SCHEMA)[:4])
ACTIONS = ("dead_letter", "drop", "quarantine", "warn", "fail")
"""The fate of rows that violate an expectation."""
UNFIT = "a value does not fit the type that the configuration was last planned with"
_Mask = Any
"""A boolean array without nulls."""


@dataclass(frozen=True)
class Decoding:
    """How raw records become events in a task.

    `arrow` is None if Spark's columns have decoded them; `before` are the columns that it reads besides the raw ones.
    `whole` is what lookups, tombstones and routes see of events. Events are joined with the rows of `lookups` then, and
    `narrowed` for routes that cannot see all of them.
    """

    arrow: ArrowDecoding | None
    tombstones: Tombstones | None
    before: tuple[str, ...] = ()
    lookups: tuple[LookupTable, ...] = ()
    whole: NarrowedEvent | None = None
    narrowed: tuple[NarrowedEvent, ...] = ()
    zero_is_absent: bool = False

    @property
    def completes_events(self) -> bool:
        """Return whether something is made of decoded events."""
        return bool(self.tombstones or self.lookups or self.whole or self.narrowed)


@dataclass(frozen=True)
class Labelling:
    """All that a task needs to label records. `decoding` is None if an earlier task has decoded them."""

    decoding: Decoding | None
    layout: Layout
    routes: tuple[RouteExpressions, ...]
    own_tables: frozenset[str]
    unmatched_are_dead: bool
    bronze_checks: tuple[Check, ...] = ()


def decode_records(records: pa.RecordBatch, decoding: Decoding) -> pa.RecordBatch:
    """Return records with the columns of decoding: `event`, `_error`, ..., and `_tombstone` if these become events."""
    columns = _columns_of(records)
    if decoding.arrow:
        added = decode_batch(records, decoding.arrow)
        columns = {name: column for name, column in columns.items() if name not in decoding.before}
        columns |= _columns_of(added)
    records = pa.RecordBatch.from_pydict(columns)
    if not decoding.completes_events:
        return records
    return _row_by_row_if_it_raises(partial(_complete_events, decoding=decoding), records)


def _complete_events(records: pa.RecordBatch, decoding: Decoding) -> pa.RecordBatch:
    """Return decoded records with the events of tombstones, with the rows of lookups, and with narrowed events."""
    columns = _columns_of(records)
    if decoding.whole:
        columns |= _narrow_all(columns, decoding.whole, blank=decoding.zero_is_absent)
    if decoding.tombstones:
        columns = as_events(columns, decoding.tombstones)
    if decoding.lookups:
        columns = join_lookups(columns, decoding.lookups)
    for narrowed in decoding.narrowed:
        columns |= narrowed.narrow_events(columns["event"], blank=decoding.zero_is_absent)
    return pa.RecordBatch.from_pydict(columns)


def _narrow_all(columns: dict[str, pa.Array], whole: NarrowedEvent, *, blank: bool) -> dict[str, pa.Array]:
    """Return narrower events in place of all of them, and the errors; one with a value that does not fit has one."""
    narrow = whole.narrow_events(columns["event"], blank=blank)
    unfit = narrow[unfit_column(whole.column)]
    error = columns["_error"]
    return {
        "event": pc.if_else(unfit, pa.scalar(None, whole.type), narrow[whole.column]),
        "_error": pc.if_else(unfit, pa.scalar(UNFIT, error.type), error),
    }


def _columns_of(records: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(records.schema.names, records.columns, strict=True))


def _row_by_row_if_it_raises(
    step: Callable[[pa.RecordBatch], pa.RecordBatch], records: pa.RecordBatch
) -> pa.RecordBatch:
    """Return the rows that a pure step makes of decoded records; one on which it raises goes through it as not decoded.

    So the record is in bronze and has a dead letter with the error, and its neighbours are as if it were not there.
    """
    pieces = []
    for piece in by_halves(lambda start, stop: step(records[start:stop]), records.num_rows):
        if piece.made is not None:
            pieces.append(piece.made)
            continue
        columns = _columns_of(records[piece.start : piece.stop])
        columns["event"] = pa.nulls(1, columns["event"].type)
        columns["_error"] = pa.array([describe_error("the router raises ", piece.error)], columns["_error"].type)
        pieces.append(step(pa.RecordBatch.from_pydict(columns)))
    return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)


def with_arrival(records: pa.RecordBatch, arrival: int | None) -> pa.RecordBatch:
    """Return records with an arrival: that of their batch, if they have none yet."""
    if "arrival" not in records.schema.names:
        return records.append_column("arrival", repeat_scalar(pa.scalar(arrival, pa.int64()), records.num_rows))
    place = records.schema.get_field_index("arrival")
    arrivals = records.column(place)
    if arrival is None or not arrivals.null_count:
        return records
    return records.set_column(place, "arrival", pc.fill_null(arrivals, arrival))


def decoding_task(
    decoding: Decoding, columns: list[str], arrival: int | None
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task that only decodes, for mapInArrow: Spark's expressions come after it.

    `columns` are those that it returns, in their order: Spark takes them by place. Records without an arrival get
    `arrival`, unless it is None.
    """

    def decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for records in batches:
            yield decode_records(with_arrival(records, arrival), decoding).select(columns)

    return decode_batches


def label_records(records: pa.RecordBatch, labelling: Labelling, defects: dict[str, str]) -> pa.RecordBatch:
    """Return the labelled records: the columns of the layout.

    `defects` gets the routes with an expression that Spark should evaluate instead, each with the reason.
    """
    if labelling.decoding:
        records = decode_records(records, labelling.decoding)
    return _row_by_row_if_it_raises(lambda part: _Labels(part, labelling, defects).label_batch(), records)


class _Labels:
    """The label columns of one batch."""

    def __init__(self, records: pa.RecordBatch, labelling: Labelling, defects: dict[str, str]) -> None:
        self.labelling = labelling
        self.defects = defects
        self.rows = records.num_rows
        self.columns: dict[str, pa.Array] = dict(zip(records.schema.names, records.columns, strict=True))
        self.dead_rows: list[Any] = []  # per reason: the numbers of the rows, and their entries of `_dead`
        self.dead_letters: list[pa.StructArray] = []
        self.events = {route.name: route.narrowed for route in labelling.layout.routes if route.narrowed}

    def label_batch(self) -> pa.RecordBatch:
        """Return the columns of the layout."""
        columns = self.columns
        layout = self.labelling.layout
        unreadable = self._show_unreadable()
        is_event = pc.and_not(columns["event"].is_valid(), unreadable)
        tombstone = pc.and_not(columns.get(TOMBSTONE, self._no_record()), unreadable)
        living = pc.and_not(is_event, tombstone)
        matched = []
        unmatched = living
        taken_tombstone = self._no_record()
        for route in self.labelling.routes:
            mask = self._evaluate_condition(is_event if route.tombstones else living, route.rule, route.labels.name)
            matched.append(mask)
            unmatched = pc.and_not(unmatched, mask)
            if route.tombstones:
                taken_tombstone = pc.or_(taken_tombstone, pc.and_(mask, tombstone))

        # A tombstone that a route takes has not failed, though most decoders refuse a record without a value.
        failed = pc.and_not(columns["_error"].is_valid(), taken_tombstone)
        if layout.drops_nulls:
            failed = pc.and_not(failed, columns["value"].is_null())
        self._add_dead(pc.and_not(failed, unreadable), Stage.DECODE, columns["_error"])
        failed = pc.or_(failed, unreadable)
        columns["_failed"] = failed
        columns["_unmatched"] = unmatched
        columns["_bare"] = pc.and_not(pc.invert(pc.or_(living, failed)), taken_tombstone)
        if self.labelling.unmatched_are_dead:
            self._add_dead(unmatched, Stage.MATCH, "no route matches")

        in_bronze = pc.invert(self._no_record())
        if layout.drops_nulls:
            in_bronze = pc.and_not(in_bronze, pc.and_(columns["_bare"], columns["value"].is_null()))
        for check in self.labelling.bronze_checks:
            columns[layout.bronze_violated[check.name]] = pc.and_not(
                in_bronze, self._evaluate_condition(in_bronze, check.node, BRONZE)
            )
        for route, mask in zip(self.labelling.routes, matched, strict=True):
            self._label_route(route, mask, tombstone)
        columns["_dead"] = self._dead_letters()
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in layout.landing_columns()], names=layout.landing_columns()
        )

    def _show_unreadable(self) -> _Mask:
        """Return which records cannot be read; show what they have, for bronze and dead letters."""
        columns = self.columns
        if UNREADABLE not in columns or columns[UNREADABLE].null_count == self.rows:
            return self._no_record()
        unreadable = columns[UNREADABLE].is_valid()
        reason, *values = columns[UNREADABLE].flatten()
        for name, value in zip(("key", "value", "headers"), values, strict=True):
            columns[name] = pc.if_else(unreadable, in_type(value, columns[name].type), columns[name])
        self._add_dead(unreadable, Stage.READ, reason)
        return unreadable

    def _label_route(self, route: RouteExpressions, matched: _Mask, tombstone: _Mask) -> None:
        labels = route.labels
        columns = self.columns
        columns[labels.matched] = matched
        # A tombstone violates nothing.
        checked = pc.and_not(matched, tombstone) if route.tombstones else matched
        violated: dict[str, list[tuple[str, _Mask]]] = {action: [] for action in ACTIONS}
        for check in route.checks:
            mask = pc.and_not(checked, self._evaluate_condition(checked, check.node, labels.name))
            violated[check.otherwise].append((check.name, mask))
            columns[labels.violated[check.name]] = mask

        # The first expectation that does not hold is the reason of a dead letter, and the one that rows wait for.
        refused = self._no_record()
        for name, mask in violated["dead_letter"]:
            self._add_dead(pc.and_not(mask, refused), Stage.EXPECT, UNMET.format(name), labels.name)
            refused = pc.or_(refused, mask)
        dropped = self._no_record()
        for _, mask in violated["drop"]:
            dropped = pc.or_(dropped, mask)
        dropped = pc.and_not(dropped, refused)
        columns[labels.dropped] = dropped
        held = pa.nulls(self.rows, pa.string())
        for name, mask in reversed(violated["quarantine"]):
            held = pc.if_else(mask, name, held)

        lands = pc.and_not(pc.and_not(matched, refused), dropped)
        broken = self._make_route_rows(route, lands)
        columns[labels.refused] = pc.or_(refused, broken)
        lands = pc.and_not(lands, broken)
        for target in labels.targets:
            if target.held:
                columns[target.held] = held
            columns[target.destination] = lands
            name_node = route.names.get(target.destination)
            if name_node:
                self._name_tables(route, target, name_node, lands)
            if target.merge_by:
                self._merge_by(route, target, lands)

    def _make_route_rows(self, route: RouteExpressions, lands: _Mask) -> _Mask:
        """Make the route's rows; return those of which the projection cannot be evaluated."""
        labels = route.labels
        unfit = self._no_record()
        if labels.narrowed:
            unfit = pc.and_(lands, self.columns[unfit_column(labels.narrowed)])
            self._add_dead(unfit, Stage.SELECT, UNFIT, labels.name)
        if route.row is None:
            return unfit
        if isinstance(route.row, Node):
            # Spark has made the struct: it is null if the projection raised.
            raised = self.columns[labels.targets[0].rows].is_null()
        else:
            raised = self._project_row(labels, route.row)
        broken = pc.and_not(pc.and_(lands, raised), unfit)
        self._add_dead(broken, Stage.SELECT, "the projection cannot be evaluated", labels.name)
        return pc.or_(broken, unfit)

    def _project_row(self, labels: RouteLabels, nodes: tuple[Node, ...]) -> _Mask:
        target = labels.targets[0]
        fields = list(target.schema)[-len(nodes) :]  # an outbox has coordinates before
        values = []
        raised = self._no_record()
        for node, field in zip(nodes, fields, strict=True):
            value, raised_here = self._evaluate_node(node, labels.name)
            values.append(in_type(value, field.type))
            if raised_here is not None:
                raised = pc.or_(raised, raised_here)
        nullable = [field.with_nullable(True) for field in fields]
        self.columns[target.rows] = pa.StructArray.from_arrays(values, fields=nullable)
        return raised

    def _merge_by(self, route: RouteExpressions, target: Target, lands: _Mask) -> None:
        """Make the struct of an outbox's further columns; if rows name their tables, `destination` has the names."""
        by = route.merges[str(target.merge_by)]
        columns = self.columns
        if route.merges_of_rows:
            # The route's columns come first, but the event is always that of the record.
            row: pa.StructArray = columns[target.rows]
            columns = {**columns, **dict(zip(row.type.names, row.flatten(), strict=True)), "event": columns["event"]}
        tables = pa.array([by.table] * self.rows, pa.string()) if by.table else self.columns[target.destination]
        self.columns[target.destination] = pc.and_(lands, tables.is_valid())
        deleted = self._evaluate_condition(lands, by.deletes, target.route, columns)
        if by.tombstones:
            deleted = pc.or_(deleted, self.columns[TOMBSTONE])
        values = [tables, deleted]
        for node in by.newest:
            value, _ = self._evaluate_node(node, target.route, columns)
            values.append(value)
        fields = list(target.schema)[len(MERGED_COORDINATES) :][: len(values)]
        values = [in_type(value, field.type) for value, field in zip(values, fields, strict=True)]
        self.columns[str(target.merge_by)] = pa.StructArray.from_arrays(values, fields=fields)

    def _name_tables(self, route: RouteExpressions, target: Target, node: Node, lands: _Mask) -> None:
        """Apply the naming rule: once to every different name."""
        columns = self.columns
        if route.names_of_rows:
            # The columns that `select` makes, unless a column of the record has their name.
            row: pa.StructArray = columns[target.rows]
            columns = {**dict(zip(row.type.names, row.flatten(), strict=True)), **columns}
        name, _ = self._evaluate_node(node, route.labels.name, columns)
        coded = pc.if_else(lands, name, pa.scalar(None, pa.string())).dictionary_encode()
        # A string of Spark may hold any bytes, a dead letter must be readable.
        names = replace_bad_bytes(coded.dictionary).to_pylist()
        tables = [self._table_of(name) for name in names]
        self.columns[target.destination] = pa.array(tables, pa.string()).take(coded.indices)
        bad = pc.and_not(lands, self.columns[target.destination].is_valid())
        self.columns[str(target.bad_name)] = bad  # a sink that names tables per row has it
        if bad.true_count:
            reasons = pa.array([describe_refused_name(name) for name in names], pa.string()).take(coded.indices)
            self._add_dead(
                bad, Stage.NAME, pc.fill_null(reasons, describe_refused_name(None)), route.labels.name, target.sink
            )

    def _table_of(self, name: str) -> str | None:
        """Return the table of a name from data; None if it names none, or one that holds the router's own rows."""
        table = fold_name(name)
        if table in self.labelling.own_tables:
            return None
        bronze = self.labelling.layout.bronze
        if bronze is not None and table in bronze:
            return None
        return table

    def _evaluate_condition(
        self, candidates: _Mask, node: Node, owner: str, columns: dict[str, pa.Array] | None = None
    ) -> _Mask:
        value, _ = self._evaluate_node(node, owner, columns)
        return pc.and_(candidates, pc.fill_null(value, False))

    def _evaluate_node(
        self, node: Node, owner: str, columns: dict[str, pa.Array] | None = None
    ) -> tuple[pa.Array, pa.BooleanArray | None]:
        """Evaluate an expression of a route, or of bronze, over the records' columns or others; note its defects."""
        defects: list[Defect] = []
        columns = columns or self.columns
        if owner in self.events:
            columns = {**columns, "event": columns[self.events[owner]]}
        result = evaluate_expression(node, columns, self.rows, defects)
        if defects:
            self.defects[owner] = str(defects[0])
        return result

    def _no_record(self) -> _Mask:
        return pa.repeat(pa.scalar(False), self.rows)

    def _add_dead(
        self, mask: _Mask, stage: Stage, reason: pa.Array | str, route: str | None = None, sink: str | None = None
    ) -> None:
        if not mask.true_count:
            return
        row_numbers = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
        values = []
        for value in (stage, reason, route, sink):
            if isinstance(value, pa.Array):
                values.append(replace_bad_bytes(value.take(pa.array(row_numbers))))
            else:
                values.append(pa.array([value] * len(row_numbers), pa.string()))
        self.dead_rows.append(row_numbers)
        self.dead_letters.append(pa.StructArray.from_arrays(values, fields=list(_DEAD_LETTER)))

    def _dead_letters(self) -> pa.Array:
        """Return the dead letters of every row: a list of structs, null for nearly all."""
        if not self.dead_rows:
            return pa.nulls(self.rows, pa.list_(_DEAD_LETTER))
        row_numbers = np.concatenate(self.dead_rows)
        counts = np.bincount(row_numbers, minlength=self.rows)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        # Sort the dead letters by row; those of a row stay in the order in which they were added.
        order = np.argsort(row_numbers, kind="stable")
        letters = pa.concat_arrays(self.dead_letters).take(pa.array(order))
        return pa.ListArray.from_arrays(pa.array(offsets), letters, mask=pa.array(counts == 0))
