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

from router.delta.keyed.row_order import DELETED
from router.delta.lake import Lake
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
from router.engine.source.failing_records import RecordPlace
from router.errors import StartError
from router.own_names import BATCH_ID, QUARANTINE, QUERY, TABLE
from router.record import PLACE
from router.registry import parts_in
from router.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from router.config.models import Config
    from router.engine.reprocess.context import ReprocessContext
    from router.engine.reprocess.preview import RecordChoice

_UNSTEADY = re.compile(
    r"(?<![\w.`])(?<!as )("
    r"(current_(catalog|database|date|schema|time|timestamp|user)|localtimestamp|session_user|user)\b(?!\s*\.)"
    r"|(aes_encrypt|curdate|java_method|monotonically_increasing_id|now|rand(n|om|str)?|(try_)?reflect|shuffle|uniform"
    r"|uuid)(?=\s*\()|unix_timestamp(?=\s*\(\s*\)))"
)
"""Functions of Spark whose value depends on time, chance or user. Those of the first kind need no brackets."""
_TEXT_OR_REMARK = re.compile(r"""'(\\.|[^'\\])*'|"(\\.|[^"\\])*"|--[^\n]*|/\*.*?\*/""", re.DOTALL)
"""Parts of SQL in which no function is called."""
_LAST_NAME = re.compile(r"(\w+|(?<=`)[^`]+)`?\s*$")
"""The name at the end of a projection, which is that of its column."""
_NOT_COMPARED = {*MERGED_COORDINATES, BATCH_ID, QUERY, TABLE, *TRACED}
"""Columns of the router that say where a row comes from, not what is in it."""
NO_FATE = ("nothing", "")
"""The fate of a record of which neither a row nor a dead letter remains, which has no reason."""


class _Key(NamedTuple):
    """A row of a table by its sink and the place of its record; `number` counts the rows that these have there."""

    table: str
    target: str
    place: RecordPlace
    number: int


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
        for sink, cause in {**old.trial.away, **new.trial.away}.items():
            raise StartError(f"what {sink} would send cannot be compared now: {cause}")
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
        numbers: Counter[tuple[str, str, RecordPlace]] = Counter()
        for commit, table, part in self.trial.staged_rows():
            route = commit.target.partition("/")[0]
            # Bronze is of no route, and has the records themselves.
            if not route or route in self.left_out:
                continue
            self.types[table] |= columns_of(commit.columns)
            for row in as_rows(part):
                row_of = (table, commit.target, RecordPlace(*(row[name] for name in TRACED)))
                numbers[row_of] += 1
                yield (
                    _Key(*row_of, numbers[row_of]),
                    {name: value for name, value in row.items() if self._is_compared(route, name, value)},
                )

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

    def calls(self, places: list[RecordPlace]) -> dict[str, Counter[str]]:
        """Return the calls of each sink for the records at some places, as JSON."""
        return {
            made.sink: Counter(json.dumps(call, sort_keys=True, default=repr) for call in made.calls)
            for made in self.trial.calls(CALLS_OF, places)
            if made.sink.partition("/")[0] not in self.unsteady
        }

    def fates(self) -> dict[RecordPlace, tuple[str, str]]:
        """Return the fate of each record of which something remains, and the reasons of its dead letters."""
        ends: dict[RecordPlace, set[str]] = defaultdict(set)
        for key in self.hashes:
            ends[key.place].add("waits" if key.table.startswith(QUARANTINE) else "landed")
        reasons: dict[RecordPlace, set[str]] = defaultdict(set)
        # Whether no route takes a record depends on all of them.
        is_match_by_chance = any("/" not in place for place in self.left_out)
        for batch in self.trial.dead_letters().to_batches(columns=[*PLACE, "stage", "reason", "route"]):
            for letter in batch.to_pylist():
                if letter["route"] in self.left_out or (letter["stage"] == Stage.MATCH and is_match_by_chance):
                    continue
                place = RecordPlace(*(letter[name] for name in PLACE))
                ends[place].add("dead letter")
                reasons[place].add(f"{letter['stage']}: {letter['reason']}")
        return {place: (", ".join(sorted(ends[place])), "; ".join(sorted(reasons[place]))) for place in ends}


def _table_differences(old: _Compared, new: _Compared, samples: int) -> Iterator[TableDifference]:
    differing: dict[str, list[_Key]] = defaultdict(list)
    shown: dict[_Key, dict[str, Any]] = {}
    for key in sorted({key for key, _ in old.hashes.items() ^ new.hashes.items()}):
        differing[key.table].append(key)
        if len(differing[key.table]) <= samples:
            shown[key] = {"record": "/".join(map(str, key.place))}
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
    chosen = sorted({key.place for key in old.hashes.keys() | new.hashes.keys() if key.table == key.target})[:CALLS_OF]
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
    before = old.fates()
    now = new.fates()
    differing: dict[tuple[str, str], list[tuple[RecordPlace, str]]] = defaultdict(list)
    for place in sorted({place for place, _ in before.items() ^ now.items()}):
        end_before, reason_before = before.get(place, NO_FATE)
        end_now, reason_now = now.get(place, NO_FATE)
        differing[end_before, end_now].append((place, reason_now or reason_before))
    for (end_before, end_now), records in differing.items():
        place, reason = records[0]
        yield FateDifference(end_before, end_now, len(records), "/".join(map(str, place)), reason)


def _unsteady(config: Config) -> dict[str, str]:
    """Return the routes, and columns of routes, that depend on time, chance or user: each with the function."""
    found = {}
    for route in config.routes:
        places = [(route.identity, expectation.sql) for expectation in route.expect]
        for rule in parts_in(route.match):
            options = [option for option, kind in type(rule).texts.items() if kind == "sql"]
            places += [(route.identity, getattr(rule, option)) for option in options]
        for text in route.select:
            column = _LAST_NAME.search(_TEXT_OR_REMARK.sub("", text))
            places.append((f"{route.identity}/{column[1] if column else text}", text))
        for place, text in places:
            function = _UNSTEADY.search(_TEXT_OR_REMARK.sub(" ", text.lower()))
            if function is not None:
                found[place] = function[0]
    return found
