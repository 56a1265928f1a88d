"""Decode and label record batches, in the tasks that land them. Runs on executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.decoding import decode_batch
from router.engine.expressions.evaluator import Node, evaluate
from router.engine.label.layout import DEAD_SCHEMA, MERGED_COORDINATES, UNMET, Layout, RouteLabels, Target
from router.engine.label.tombstones import TOMBSTONE, Tombstones, as_events
from router.engine.lookup.join import LookupTable, joined
from router.table_names import folded, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from router.decoding import ArrowDecoding
    from router.engine.label.route import Check, MergeBy, RouteExpressions

DEAD_LETTER = pa.struct(list(DEAD_SCHEMA)[:4])
ACTIONS = ("dead_letter", "drop", "quarantine", "warn", "fail")
"""What becomes of rows that violate an expectation."""
Mask = Any
"""A boolean array without nulls."""


@dataclass(frozen=True)
class Decoding:
    """How raw records become events in a task.

    `arrow` is None where Spark's columns have decoded them; `before` are the columns that it reads beside the raw ones.
    Events are joined with the rows of `lookups` at the end.
    """

    arrow: ArrowDecoding | None
    tombstones: Tombstones | None
    before: tuple[str, ...] = ()
    lookups: tuple[LookupTable, ...] = ()


@dataclass(frozen=True)
class Labelling:
    """All that a task needs to label records. `decoding` is None where an earlier task has decoded them."""

    decoding: Decoding | None
    layout: Layout
    routes: tuple[RouteExpressions, ...]
    own_tables: frozenset[str]
    unmatched_are_dead: bool
    bronze_checks: tuple[Check, ...] = ()


def decoded(records: pa.RecordBatch, decoding: Decoding) -> pa.RecordBatch:
    """Return records with what decoding adds: `event`, `_error`, ..., and `_tombstone` where these become events."""
    columns = dict(zip(records.schema.names, records.columns, strict=True))
    if decoding.arrow:
        added = decode_batch(records, decoding.arrow)
        columns = {name: column for name, column in columns.items() if name not in decoding.before}
        columns |= zip(added.schema.names, added.columns, strict=True)
    if decoding.tombstones:
        columns = as_events(columns, decoding.tombstones)
    if decoding.lookups:
        columns = joined(columns, decoding.lookups)
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def decoding_task(
    decoding: Decoding, columns: list[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task that only decodes, for mapInArrow: Spark's expressions come after it.

    `columns` are those that it returns, in their order: Spark takes them by place.
    """

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for records in batches:
            yield decoded(records, decoding).select(columns)

    return decode


def labelled(records: pa.RecordBatch, labelling: Labelling) -> pa.RecordBatch:
    """Return the labelled records: the columns of the layout."""
    if labelling.decoding:
        records = decoded(records, labelling.decoding)
    return _Labels(records, labelling).batch()


class _Labels:
    """The label columns of one batch."""

    def __init__(self, records: pa.RecordBatch, labelling: Labelling) -> None:
        self.labelling = labelling
        self.rows = records.num_rows
        self.columns: dict[str, pa.Array] = dict(zip(records.schema.names, records.columns, strict=True))
        self.dead: list[tuple[Mask, tuple[Any, Any, Any, Any]]] = []

    def batch(self) -> pa.RecordBatch:
        """Return the columns of the layout."""
        columns, layout, routes = self.columns, self.labelling.layout, self.labelling.routes
        decoded, failed = columns["event"].is_valid(), columns["_error"].is_valid()
        tombstone = columns.get(TOMBSTONE, self._none())
        living = pc.and_not(decoded, tombstone)
        matched = [self._holds(decoded if route.tombstones else living, route.rule) for route in routes]
        taken, unmatched = self._none(), living
        for route, mask in zip(routes, matched, strict=True):
            unmatched = pc.and_not(unmatched, mask)
            taken = pc.or_(taken, pc.and_(mask, tombstone)) if route.tombstones else taken
        failed = pc.and_not(failed, taken)
        if layout.drops_nulls:
            failed = pc.and_not(failed, columns["value"].is_null())
        columns["_failed"], columns["_unmatched"] = failed, unmatched
        columns["_bare"] = pc.and_not(pc.invert(pc.or_(living, failed)), taken)
        self._add_dead(failed, "decode", columns["_error"], None, None)
        if self.labelling.unmatched_are_dead:
            self._add_dead(unmatched, "match", "no route matches", None, None)
        expected = pc.invert(self._none())
        if layout.drops_nulls:  # records that vanish are not in bronze
            expected = pc.and_not(expected, pc.and_(columns["_bare"], columns["value"].is_null()))
        for check in self.labelling.bronze_checks:
            columns[layout.bronze_violated[check.name]] = pc.and_not(expected, self._holds(expected, check.node))
        for route, mask in zip(routes, matched, strict=True):
            self._route(route, mask, tombstone)
        columns["_dead"] = self._dead()
        return pa.RecordBatch.from_arrays([columns[name] for name in layout.columns()], names=layout.columns())

    def _route(self, route: RouteExpressions, matched: Mask, tombstone: Mask) -> None:
        labels, columns = route.labels, self.columns
        columns[labels.matched] = matched
        bound = pc.and_not(matched, tombstone) if route.tombstones else matched  # a tombstone violates nothing
        violated: dict[str, list[tuple[str, Mask]]] = {name: [] for name in ACTIONS}
        for name, otherwise, node in route.checks:
            violated[otherwise].append((name, pc.and_not(bound, self._holds(bound, node))))
        refused = self._none()
        for name, mask in violated["dead_letter"]:  # the first one that does not hold is the reason
            self._add_dead(pc.and_not(mask, refused), "expect", UNMET.format(name), labels.name, None)
            refused = pc.or_(refused, mask)
        dropped = self._none()
        for _, mask in violated["drop"]:
            dropped = pc.or_(dropped, mask)
        columns[labels.dropped] = dropped = pc.and_not(dropped, refused)
        columns |= {labels.violated[name]: mask for found in violated.values() for name, mask in found}
        lands = pc.and_not(pc.and_not(matched, refused), dropped)
        self._hold(labels, violated["quarantine"])
        broken = self._broken(route, lands)
        columns[labels.refused] = pc.or_(refused, broken)
        lands = pc.and_not(lands, broken)
        for target in labels.targets:
            columns[target.destination] = lands
            if named := route.names.get(target.destination):
                self._name(route, target, named, lands)
            if target.merge_by:
                self._merge_by(target, route.merges[target.merge_by], lands)

    def _hold(self, labels: RouteLabels, violated: list[tuple[str, Mask]]) -> None:
        """Name the first expectation because of which a row waits."""
        held = pa.nulls(self.rows, pa.string())
        for name, mask in reversed(violated):
            held = pc.if_else(mask, name, held)
        self.columns |= {target.held: held for target in labels.targets if target.held}

    def _broken(self, route: RouteExpressions, lands: Mask) -> Mask:
        """Make the route's rows; return those of which the projection cannot be evaluated."""
        labels = route.labels
        if route.row is None:
            return self._none()
        if isinstance(route.row, Node):  # Spark has made the struct: it is null where the projection raised
            broken = pc.and_(lands, self.columns[labels.targets[0].rows].is_null())
        else:
            broken = pc.and_(lands, self._project(labels, route.row))
        self._add_dead(broken, "select", "the projection cannot be evaluated", labels.name, None)
        return broken

    def _project(self, labels: RouteLabels, nodes: tuple[Node, ...]) -> Mask:
        target = labels.targets[0]
        schema = [target.schema.field(k - len(nodes)) for k in range(len(nodes))]  # an outbox has coordinates before
        values, raised = [], self._none()
        for node, field in zip(nodes, schema, strict=True):
            value, where = evaluate(node, self.columns, self.rows)
            values.append(value if value.type == field.type else value.cast(field.type))
            raised = raised if where is None else pc.or_(raised, where)
        self.columns[target.rows] = pa.StructArray.from_arrays(values, fields=[f.with_nullable(True) for f in schema])
        return raised

    def _merge_by(self, target: Target, by: MergeBy, lands: Mask) -> None:
        """Make the struct of what an outbox has besides; where rows name their tables, `destination` has the names."""
        tables = pa.array([by.table] * self.rows, pa.string()) if by.table else self.columns[target.destination]
        self.columns[target.destination] = pc.and_(lands, tables.is_valid())
        kinds = list(target.schema)[len(MERGED_COORDINATES) :][: 2 + len(by.newest)]
        newest = [evaluate(node, self.columns, self.rows)[0] for node in by.newest]
        deleted = self._holds(lands, by.deletes)
        if by.tombstones:
            deleted = pc.or_(deleted, self.columns[TOMBSTONE])
        values = [tables, deleted, *newest]
        columns = [v if v.type == kind.type else v.cast(kind.type) for v, kind in zip(values, kinds, strict=True)]
        self.columns[str(target.merge_by)] = pa.StructArray.from_arrays(columns, fields=kinds)

    def _with_row(self, target: Target) -> dict[str, pa.Array]:
        """Return all columns, and those that `select` makes where no other has their name."""
        row: pa.StructArray = self.columns[target.rows]
        return {**dict(zip(row.type.names, row.flatten(), strict=True)), **self.columns}

    def _name(self, route: RouteExpressions, target: Target, node: Node, lands: Mask) -> None:
        """Apply the naming rule: once to every different name."""
        name, _ = evaluate(node, self._with_row(target) if route.names_of_rows else self.columns, self.rows)
        coded = pc.if_else(lands, name, pa.scalar(None, pa.string())).dictionary_encode()
        # a string of Spark may hold any bytes, a dead letter must be readable
        given = [raw.decode(errors="replace") for raw in coded.dictionary.cast(pa.binary()).to_pylist()]
        tables = [None if self._own(table := folded(text)) else table for text in given]
        self.columns[target.destination] = pa.array(tables, pa.string()).take(coded.indices)
        bad = pc.and_not(lands, self.columns[target.destination].is_valid())
        self.columns[str(target.bad_name)] = bad  # a sink that names tables per row has it
        if bad.true_count:
            reasons = pa.array([refused(text) for text in given], pa.string()).take(coded.indices)
            self._add_dead(bad, "name", pc.fill_null(reasons, refused(None)), route.labels.name, target.sink)

    def _own(self, table: str | None) -> bool:
        """Say whether a table holds the router's own rows."""
        bronze = self.labelling.layout.bronze
        return table in self.labelling.own_tables or (bronze is not None and table in bronze)

    def _holds(self, given: Mask, node: Node) -> Mask:
        return pc.and_(given, pc.fill_null(evaluate(node, self.columns, self.rows)[0], False))

    def _none(self) -> Mask:
        return pa.repeat(pa.scalar(False), self.rows)

    def _add_dead(self, mask: Mask, stage: str, reason: Any, route: str | None, sink: str | None) -> None:
        if mask.true_count:
            self.dead.append((mask, (stage, reason, route, sink)))

    def _dead(self) -> pa.Array:
        """Return the dead letters of every row: a list of structs, null for nearly all."""
        if not self.dead:
            return pa.nulls(self.rows, pa.list_(DEAD_LETTER))
        at = [np.flatnonzero(mask.to_numpy(zero_copy_only=False)) for mask, _ in self.dead]
        found = pa.concat_arrays([_entries(rows, why) for rows, (_, why) in zip(at, self.dead, strict=True)])
        places = np.concatenate(at)
        counts = np.bincount(places, minlength=self.rows)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        ordered = found.take(pa.array(np.argsort(places, kind="stable")))
        return pa.ListArray.from_arrays(pa.array(offsets), ordered, mask=pa.array(counts == 0))


def _entries(at: Any, why: tuple[Any, Any, Any, Any]) -> pa.StructArray:
    columns = [
        value.take(pa.array(at)) if isinstance(value, pa.Array) else pa.array([value] * len(at), pa.string())
        for value in why
    ]
    return pa.StructArray.from_arrays(columns, fields=list(DEAD_LETTER))
