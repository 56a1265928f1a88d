"""Run the same records through two configurations, for `router preview --against`, and say what differs.

Both are landed and decided as for a preview, against the same versions of tables. Rows are matched by table and by the
place of their record. A first pass over the staged rows notes a hash of each, a second one looks at those that differ:
memory does not grow with the size of rows.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from router.delta.commit import to_arrow_schema
from router.delta.keyed.row_order import DELETED
from router.delta.lake import Lake
from router.delta.staged_files import partition_values, staged_parts
from router.delta.unreadable_values import as_rows
from router.engine.balance import sum_counts
from router.engine.decision import tables_of
from router.engine.label.layout import MERGED_COORDINATES, TRACED
from router.engine.reprocess.preview import (
    CALLS_OF,
    Trial,
    chosen_records,
    columns_of,
    staging_lake_of,
)
from router.own_names import BATCH_ID, OUTBOX, QUARANTINE, QUERY, TABLE
from router.registry import parts_in
from router.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from router.config.models import Config
    from router.delta.commit import TableCommit
    from router.engine.reprocess.context import ReprocessContext
    from router.engine.reprocess.preview import RecordChoice

_UNSTEADY = re.compile(
    "(curdate|current_?(catalog|database|date|schema|time|timestamp|user)|localtimestamp|monotonically_increasing_id|now"
    "|rand(n|om|str)?|session_user|shuffle|uniform|user|uuid|aes_encrypt|(try_)?reflect|java_method)"
)
"""Functions of Spark whose value depends on time, chance or user, also as sqlglot calls them."""
_NOT_COMPARED = {*MERGED_COORDINATES, BATCH_ID, QUERY, TABLE, *TRACED}
"""Columns of the router that say where a row comes from, not what is in it."""
NOTHING = "nothing"
"""The fate of a record of which neither a row nor a dead letter remains."""


class _Key(NamedTuple):
    """A row of a table by its sink and the place of its record; `number` counts the rows that these have there."""

    table: str
    target: str
    topic: str
    partition: int
    offset: int
    number: int

    @property
    def place(self) -> tuple[str, int, int]:
        """Return the place of the record."""
        return self.topic, self.partition, self.offset


@dataclass(frozen=True)
class TableDifference:
    """What differs in a table (or sink, ROUTE/SINK). `only_before` and `only_now` are rows of records that have none
    there by the other configuration; `changed` are rows that differ, by `columns` with the number of rows.

    `types`: columns that are new, gone or of another type. A sample has `record`, and `before` and `now` (or one).
    """

    table: str
    before: int
    now: int
    only_before: int
    only_now: int
    changed: int
    columns: dict[str, int]
    types: dict[str, str]
    samples: list[dict[str, Any]]


@dataclass(frozen=True)
class FateDifference:
    """Records that end elsewhere, with one of them and why it is a dead letter."""

    before: str
    now: str
    records: int
    record: str
    reason: str


@dataclass(frozen=True)
class Comparison:
    """What differs between two configurations on the same records.

    `calls`: ROUTE/SINK -> `before` and `now`, the calls of its first rows that only one would make. `stops`, likewise:
    why a batch would stop, if they differ in that. `left_out`: `route` or `route/column` -> the function that
    makes it another one each time.
    """

    equal: bool
    place: str
    read: int
    tables: tuple[TableDifference, ...]
    calls: dict[str, dict[str, list[dict[str, Any]]]]
    fates: tuple[FateDifference, ...]
    stops: dict[str, list[str]]
    left_out: dict[str, str]


@dataclass
class _FixedTables:
    """The tables of a lake as they are when they are first asked for: two trials are decided against the same."""

    tables: Any
    known: dict[str, Any] = field(default_factory=dict)

    def open_readable_tables(self, names: Iterable[str]) -> dict[str, Any]:
        wanted = sorted(names)
        self.known |= self.tables.open_readable_tables([name for name in wanted if name not in self.known])
        return {name: self.known[name] for name in wanted}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tables, name)


def compare(before: ReprocessContext, now: ReprocessContext, choice: RecordChoice, samples: int) -> Comparison:
    """Return the differences, with some rows of each table and sink. Records and tables are those of `now`."""
    before = replace(before, lake=now.lake)
    with staging_lake_of(now) as staging_lake, chosen_records(now, choice) as (place, records):
        tables = _FixedTables(tables_of(now.config, now.spark, now.lake))
        left_out = {**_unsteady(before.config), **_unsteady(now.config)}
        old, new = (
            _Compared(
                Trial.of(context, Lake.at(f"{staging_lake.root}/{when}", staging_lake.options), place, records, tables),
                left_out,
            )
            for when, context in (("before", before), ("now", now))
        )
        tables_that_differ = tuple(_table_differences(old, new, samples))
        calls = _call_differences(old, new, samples)
        fates = tuple(_fate_differences(old, new))
        stops = {} if old.trial.noted == new.trial.noted else {"before": old.trial.noted, "now": new.trial.noted}
        return Comparison(
            equal=not (tables_that_differ or calls or fates or stops),
            place=place,
            read=max(sum_counts(compared.trial.decision.partitions, "read") for compared in (old, new)),
            tables=tables_that_differ,
            calls=calls,
            fates=fates,
            stops=stops,
            left_out=left_out,
        )


class _Compared:
    """The rows of a trial, without what differs each time."""

    def __init__(self, trial: Trial, left_out: dict[str, str]) -> None:
        self.trial = trial
        self.left_out = left_out
        self.unsteady = {place.partition("/")[0] for place in left_out}
        self.types: dict[str, dict[str, str]] = defaultdict(dict)
        self.hashes = {key: hash(repr(sorted(row.items()))) for key, row in self.rows()}

    def rows(self) -> Iterator[tuple[_Key, dict[str, Any]]]:
        """Yield the rows of all tables and sinks: their columns with values, as they are compared."""
        numbers: Counter[tuple[Any, ...]] = Counter()
        for commit in self._commits():
            route = commit.target.partition("/")[0]
            types = columns_of(commit.columns)
            kinds = to_arrow_schema(commit.columns)
            for file, part in staged_parts(self.trial.staging_lake, commit.files):
                partition = partition_values(file, kinds)
                for row in as_rows(part):
                    table = commit.table
                    if table.startswith(OUTBOX):
                        table = row.get(TABLE) or commit.target
                    self.types[table] |= types
                    row_of = (table, commit.target, *(row[name] for name in TRACED))
                    numbers[row_of] += 1
                    key = _Key._make((*row_of, numbers[row_of]))
                    values = {**partition, **row}
                    yield key, {name: value for name, value in values.items() if self._is_compared(route, name, value)}

    def _is_compared(self, route: str, name: str, value: Any) -> bool:
        # What orders the rows of an upsert may depend on any column.
        if name.startswith("_newest_") and route in self.unsteady:
            return False
        # Only the rows of upserts that delete differ by that from others.
        return (
            value is not None
            and not (name == DELETED and not value)
            and name not in _NOT_COMPARED
            and f"{route}/{name}" not in self.left_out
        )

    @property
    def _is_by_chance(self) -> bool:
        return any("/" not in place for place in self.left_out)

    def _commits(self) -> Iterator[TableCommit]:
        for commit in self.trial.decision.commits:
            # Neither bronze nor dead letters, whose names begin with a slash: they have records, and no rows.
            if commit.target[0] != "/" and commit.target.partition("/")[0] not in self.left_out:
                yield commit

    def calls(self, places: list[tuple[str, int, int]]) -> dict[str, Counter[str]]:
        """Return the calls of each sink for the records at some places, as JSON."""
        return {
            made.sink: Counter(json.dumps(call, sort_keys=True, default=repr) for call in made.calls)
            for made in self.trial.calls(CALLS_OF, places)
            if made.sink.partition("/")[0] not in self.unsteady
        }

    def fates(self) -> tuple[dict[tuple[Any, ...], str], dict[tuple[Any, ...], str]]:
        """Return the fate of each record of which something remains, and the reasons of dead letters."""
        ends: dict[tuple[Any, ...], set[str]] = defaultdict(set)
        for key in self.hashes:
            ends[key.place].add("waits" if key.table.startswith(QUARANTINE) else "landed")
        reasons: dict[tuple[Any, ...], set[str]] = defaultdict(set)
        letters = self.trial.dead_letters()
        if letters is not None:
            for batch in letters.to_batches(columns=["topic", "partition", "offset", "stage", "reason", "route"]):
                for letter in batch.to_pylist():
                    # Whether no route takes a record depends on all of them.
                    if letter["route"] in self.left_out or (letter["stage"] == Stage.MATCH and self._is_by_chance):
                        continue
                    place = letter["topic"], letter["partition"], letter["offset"]
                    ends[place].add("dead letter")
                    reasons[place].add(f"{letter['stage']}: {letter['reason']}")
        told = {place: "; ".join(sorted(texts)) for place, texts in reasons.items()}
        return {place: ", ".join(sorted(names)) for place, names in ends.items()}, told


def _table_differences(old: _Compared, new: _Compared, samples: int) -> Iterator[TableDifference]:
    differing: dict[str, list[_Key]] = defaultdict(list)
    shown: dict[_Key, dict[str, Any]] = {}
    for key in sorted(old.hashes.keys() | new.hashes.keys()):
        if old.hashes.get(key) != new.hashes.get(key):
            differing[key.table].append(key)
            if len(differing[key.table]) <= samples:
                shown[key] = {"record": f"{key.topic}/{key.partition}/{key.offset}"}
    columns: dict[str, Counter[str]] = defaultdict(Counter)
    values: dict[_Key, set[tuple[str, int]]] = {}
    for when, compared in (("before", old), ("now", new)):
        for key, row in compared.rows():
            if key in shown:
                shown[key][when] = row
            if old.hashes.get(key) != new.hashes.get(key):
                hashes = {(column, hash(repr(value))) for column, value in row.items()}
                # A row that only one of them has differs in no column.
                columns[key.table].update({column for column, _ in values.setdefault(key, hashes) ^ hashes})

    before, now = (Counter(key.table for key in compared.hashes) for compared in (old, new))
    for table in sorted({*before, *now}):
        keys = differing[table]
        types = _type_differences(old.types.get(table, {}), new.types.get(table, {}))
        if keys or types:
            only_before = sum(key not in new.hashes for key in keys)
            only_now = sum(key not in old.hashes for key in keys)
            yield TableDifference(
                table=table,
                before=before[table],
                now=now[table],
                only_before=only_before,
                only_now=only_now,
                changed=len(keys) - only_before - only_now,
                columns=dict(columns[table]),
                types=types,
                samples=[shown[key] for key in keys[:samples]],
            )


def _type_differences(before: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    """Return the columns that only one has, or that are of another type; none where one has no rows."""
    if not (before and now):
        return {}
    names = {name for name, _ in before.items() ^ now.items()} - _NOT_COMPARED
    return {name: f"{now.get(name, 'none')}, was {before.get(name, 'none')}" for name in sorted(names)}


def _call_differences(old: _Compared, new: _Compared, samples: int) -> dict[str, dict[str, list[dict[str, Any]]]]:
    places = {key.place for compared in (old, new) for key in compared.hashes if key.table == key.target}
    chosen = sorted(places)[:CALLS_OF]
    before, now = (compared.calls(chosen) for compared in (old, new))
    differences = {}
    for sink in sorted(before.keys() | now.keys()):
        calls_before, calls_now = (calls.get(sink, Counter()) for calls in (before, now))
        if calls_before != calls_now:
            only = {"before": calls_before - calls_now, "now": calls_now - calls_before}
            differences[sink] = {
                when: [json.loads(call) for call in [*calls.elements()][:samples]] for when, calls in only.items()
            }
    return differences


def _fate_differences(old: _Compared, new: _Compared) -> Iterator[FateDifference]:
    (before, reasons_before), (now, reasons_now) = old.fates(), new.fates()
    differing: dict[tuple[str, str], list[tuple[Any, ...]]] = defaultdict(list)
    for place in sorted(before.keys() | now.keys()):
        ends = before.get(place, NOTHING), now.get(place, NOTHING)
        if ends[0] != ends[1] or reasons_before.get(place) != reasons_now.get(place):
            differing[ends].append(place)
    for (end_before, end_now), places in differing.items():
        first = places[0]
        reason = reasons_now.get(first) or reasons_before.get(first, "")
        yield FateDifference(end_before, end_now, len(places), "/".join(map(str, first)), reason)


def _unsteady(config: Config) -> dict[str, str]:
    """Return the routes, and columns of routes, that depend on time, chance or user: each with the function."""
    found = {}
    for route in config.routes:
        texts = [expectation.sql for expectation in route.expect]
        for rule in parts_in(route.match):
            texts += [getattr(rule, option) for option, kind in type(rule).texts.items() if kind == "sql"]
        for text in texts:
            if function := _unsteady_function(text)[1]:
                found[route.identity] = function
        for text in route.select:
            column, function = _unsteady_function(text)
            if function:
                found[f"{route.identity}/{column}"] = function
    return found


def _unsteady_function(sql: str) -> tuple[str, str]:
    """Return the name that an expression has as a column, and its first function with another value each time."""
    try:
        tree = parse_one(sql, read="spark")
    except SqlglotError:  # Spark may take it
        return "", ""
    for node in tree.find_all(exp.Func, exp.Column):
        name = node.name
        if isinstance(node, exp.Func) and not isinstance(node, exp.Anonymous):
            name = node.sql_name()
        if _UNSTEADY.fullmatch(name.lower()) and not (isinstance(node, exp.Column) and node.table):
            return tree.alias_or_name, name.lower()
    return tree.alias_or_name, ""
