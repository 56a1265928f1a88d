"""Decode and label record batches in the tasks that land them: one stage instead of two, where a configuration allows.

Spark's part is then to read. Every column is what the labelled frame of `plan` would have; rows that a decoder leaves
undecided are landed from that frame. `fused` runs on the driver, the rest on executors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from router.delta.naming import folded, refused
from router.engine.label.expressions import Node, Untranslatable, evaluate, translate
from router.engine.layout import COORDINATES, DEAD_SCHEMA, RAW_COLUMNS, Layout, RouteLabels, Target
from router.engine.tombstones import taken
from router.keyed import MergingSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from router.config.models import Config
    from router.engine.route import Draft
    from router.parts import ArrowDecoding, Decoder

UNDECIDED = "_undecided"
LETTER = pa.struct(list(DEAD_SCHEMA)[:4])
Mask = Any
"""A boolean array without nulls."""


@dataclass(frozen=True)
class FusedRoute:
    """Be the expressions of one route. `columns` is None where it takes the event as it is."""

    labels: RouteLabels
    rule: Node
    checks: tuple[tuple[str, str, Node], ...]
    columns: tuple[Node, ...] | None
    names: dict[str, Node]
    extras: dict[str, Extra]


@dataclass(frozen=True)
class Extra:
    """Be the expressions of what the lane of a merging sink has besides. `table` is None where rows name theirs."""

    table: str | None
    deletes: Node
    newest: tuple[Node, ...]


@dataclass(frozen=True)
class Fused:
    """Be all that a task needs to label raw records."""

    decoding: ArrowDecoding
    layout: Layout
    routes: tuple[FusedRoute, ...]
    own: frozenset[str]
    unmatched: bool


def fused(config: Config, decoder: Decoder, drafts: list[Draft], layout: Layout, frame: DataFrame) -> Fused:
    """Return how tasks label. Needs the decoded frame. Raises Untranslatable with what only Spark can evaluate."""
    if not config.landing.fuse:
        raise Untranslatable("landing.fuse is off")
    decoding = decoder.decoding()
    if decoding is None:
        raise Untranslatable(f"the decoder {decoder.part_name} works with Spark's expressions here")
    frame = frame.select(*RAW_COLUMNS, *decoding.adds.names)
    routes = tuple(_route(frame, draft, labels) for draft, labels in zip(drafts, layout.routes, strict=True))
    return Fused(decoding, layout, routes, drafts[0].own if drafts else frozenset(), config.unmatched == "dead_letters")


def _route(frame: DataFrame, draft: Draft, labels: RouteLabels) -> FusedRoute:
    route, named = draft.route, draft.named()
    whole = draft.rows == "event"
    columns = [] if whole else draft.columns(frame)
    if taken(route):
        raise Untranslatable(f"route {route.name}: tombstones are for Spark to read")
    merging = [sink for sink in route.sinks if isinstance(sink, MergingSink)]
    deletes = [F.lit(False) if (found := sink.deletes()) is None else found for sink in merging]
    asked = [route.match.matches(), *(F.expr(check.sql) for check in route.expect), *columns]
    asked += [name.cast("string") for name in named.values()]
    asked += [*deletes, *(column for sink in merging for column in sink.newest())]
    try:
        rule, *nodes = translate(frame, asked)
    except Untranslatable as what:
        raise Untranslatable(f"route {route.name}: {what} is for Spark to evaluate") from None
    except AnalysisException:
        raise Untranslatable(f"route {route.name}: it uses a column that only Spark's way adds") from None
    checks, nodes = nodes[: len(route.expect)], nodes[len(route.expect) :]
    chosen, nodes = nodes[: len(columns)], nodes[len(columns) :]
    given, nodes = nodes[: len(named)], nodes[len(named) :]
    return FusedRoute(
        labels,
        rule,
        tuple((check.name, check.otherwise, node) for check, node in zip(route.expect, checks, strict=True)),
        None if whole else tuple(chosen),
        {labels.targets[j].goes: node for j, node in zip(named, given, strict=True)},
        _extras(labels, merging, nodes),
    )


def _extras(labels: RouteLabels, sinks: list[MergingSink], nodes: list[Node]) -> dict[str, Extra]:
    """Return what the lanes have besides: `nodes` are the deletions of all sinks, then what each orders by."""
    found, newest = {}, iter(nodes[len(sinks) :])
    targets = [target for target in labels.targets if target.extra]
    for target, sink, deletes in zip(targets, sinks, nodes, strict=False):
        table = None if target.misnamed else str(sink.table())
        found[str(target.extra)] = Extra(table, deletes, tuple(next(newest) for _ in sink.newest()))
    return found


def labelled(records: pa.RecordBatch, fused: Fused) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """Return the labelled records, and those left undecided as they came."""
    added = fused.decoding.function(records, fused.decoding.argument)
    left = None
    if UNDECIDED in added.schema.names:
        undecided = added.column(UNDECIDED)
        if undecided.true_count:
            left = records.filter(undecided)
            records, added = (batch.filter(pc.invert(undecided)) for batch in (records, added))
    return _Labels(records, added, fused).batch(), left


class _Labels:
    """Make the label columns of one batch."""

    def __init__(self, records: pa.RecordBatch, added: pa.RecordBatch, fused: Fused) -> None:
        self.fused = fused
        self.rows = records.num_rows
        self.columns: dict[str, pa.Array] = {
            **dict(zip(records.schema.names, records.columns, strict=True)),
            **dict(zip(added.schema.names, added.columns, strict=True)),
        }
        self.dead: list[tuple[Mask, tuple[Any, Any, Any, Any]]] = []

    def batch(self) -> pa.RecordBatch:
        """Return the columns of the layout."""
        columns, layout = self.columns, self.fused.layout
        decoded, failed = columns["event"].is_valid(), columns["_error"].is_valid()
        columns["_failed"] = failed
        columns["_bare"] = pc.invert(pc.or_(decoded, failed))
        self._letters(failed, "decode", columns["_error"], None, None)
        unmatched = decoded
        matched = [self._holds(decoded, route.rule) for route in self.fused.routes]
        for mask in matched:
            unmatched = pc.and_not(unmatched, mask)
        columns["_unmatched"] = unmatched
        if self.fused.unmatched:
            self._letters(unmatched, "match", "no route matches", None, None)
        for route, mask in zip(self.fused.routes, matched, strict=True):
            self._route(route, mask)
        columns["_dead"] = self._dead()
        return pa.RecordBatch.from_arrays([columns[name] for name in layout.columns()], names=layout.columns())

    def _route(self, route: FusedRoute, matched: Mask) -> None:
        labels, columns = route.labels, self.columns
        columns[labels.matched] = matched
        violated: dict[str, list[tuple[str, Mask]]] = {"dead_letter": [], "drop": [], "warn": [], "fail": []}
        for name, otherwise, node in route.checks:
            violated[otherwise].append((name, pc.and_not(matched, self._holds(matched, node))))
        refused = self._none()
        for name, mask in violated["dead_letter"]:  # the first one that does not hold is the reason
            reason = f"expectation {name} does not hold"
            self._letters(pc.and_not(mask, refused), "expect", reason, labels.name, None)
            refused = pc.or_(refused, mask)
        dropped = self._none()
        for _, mask in violated["drop"]:
            dropped = pc.or_(dropped, mask)
        columns[labels.refused] = refused
        columns[labels.dropped] = dropped = pc.and_not(dropped, refused)
        for kind, called in (("warn", labels.warned), ("fail", labels.failing)):
            columns |= {called[name]: mask for name, mask in violated[kind]}
        lands = pc.and_not(pc.and_not(matched, refused), dropped)
        if route.columns is not None:
            self._project(labels, route.columns)
        for target in labels.targets:
            columns[target.goes] = lands
            if named := route.names.get(target.goes):
                self._name(labels.name, target.sink, named, (target.goes, target.misnamed), lands)
            if target.extra:
                self._extra(target, route.extras[target.extra], lands)

    def _project(self, labels: RouteLabels, nodes: tuple[Node, ...]) -> None:
        target = labels.targets[0]
        schema = [target.schema.field(k - len(nodes)) for k in range(len(nodes))]  # a lane has coordinates before them
        values = [evaluate(node, self.columns, self.rows)[0] for node in nodes]
        values = [v if v.type == f.type else v.cast(f.type) for v, f in zip(values, schema, strict=True)]
        self.columns[target.rows] = pa.StructArray.from_arrays(values, fields=[f.with_nullable(True) for f in schema])

    def _extra(self, target: Target, extra: Extra, lands: Mask) -> None:
        """Make the struct of what a lane has besides; where rows name their tables, the names are in `goes` so far."""
        tables = pa.array([extra.table] * self.rows, pa.string()) if extra.table else self.columns[target.goes]
        self.columns[target.goes] = pc.and_(lands, tables.is_valid())
        kinds = list(target.schema)[len(COORDINATES) :][: 2 + len(extra.newest)]
        newest = [evaluate(node, self.columns, self.rows)[0] for node in extra.newest]
        values = [tables, self._holds(lands, extra.deletes), *newest]
        columns = [v if v.type == kind.type else v.cast(kind.type) for v, kind in zip(values, kinds, strict=True)]
        self.columns[str(target.extra)] = pa.StructArray.from_arrays(columns, fields=kinds)

    def _name(self, route: str, sink: str, node: Node, columns: tuple[str, str | None], lands: Mask) -> None:
        """Apply the naming rule: once to every different name."""
        goes, misnamed = columns
        name, _ = evaluate(node, self.columns, self.rows)
        coded = pc.if_else(lands, name, pa.scalar(None, pa.string())).dictionary_encode()
        given = coded.dictionary.to_pylist()
        tables = [None if (table := folded(text)) in self.fused.own else table for text in given]
        self.columns[goes] = pa.array(tables, pa.string()).take(coded.indices)
        bad = pc.and_not(lands, self.columns[goes].is_valid())
        assert misnamed is not None  # a sink that names tables per row has it
        self.columns[misnamed] = bad
        if bad.true_count:
            reasons = pa.array([refused(text) for text in given], pa.string()).take(coded.indices)
            self._letters(bad, "name", pc.fill_null(reasons, refused(None)), route, sink)

    def _holds(self, given: Mask, node: Node) -> Mask:
        return pc.and_(given, pc.fill_null(evaluate(node, self.columns, self.rows)[0], False))

    def _none(self) -> Mask:
        return pa.repeat(pa.scalar(False), self.rows)

    def _letters(self, mask: Mask, stage: str, reason: Any, route: str | None, sink: str | None) -> None:
        if mask.true_count:
            self.dead.append((mask, (stage, reason, route, sink)))

    def _dead(self) -> pa.Array:
        """Return the dead letters of every row: a list of structs, null for nearly all."""
        if not self.dead:
            return pa.nulls(self.rows, pa.list_(LETTER))
        at = [np.flatnonzero(mask.to_numpy(zero_copy_only=False)) for mask, _ in self.dead]
        letters = pa.concat_arrays([_entries(rows, why) for rows, (_, why) in zip(at, self.dead, strict=True)])
        places = np.concatenate(at)
        counts = np.bincount(places, minlength=self.rows)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        ordered = letters.take(pa.array(np.argsort(places, kind="stable")))
        return pa.ListArray.from_arrays(pa.array(offsets), ordered, mask=pa.array(counts == 0))


def _entries(at: Any, why: tuple[Any, Any, Any, Any]) -> pa.StructArray:
    columns = [
        value.take(pa.array(at)) if isinstance(value, pa.Array) else pa.array([value] * len(at), pa.string())
        for value in why
    ]
    return pa.StructArray.from_arrays(columns, fields=list(LETTER))
