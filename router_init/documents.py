"""The files that are written: NAME.yaml, NAME.test.yaml, and a schema where columns need other names than fields.

Every choice stands there with what was seen, in numbers. Values of records stand in no file, except those that say the
kind, which name tables; in tests the others are masked, unless they are asked for.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import yaml
from pyspark.sql import types as T

from router.table_names import underscored, usable
from router_init.kinds import FEWEST_RECORDS, choose, find_candidates, value_at
from router_init.observed import EXACT_IN_DOUBLES, Observed
from router_schemas.json_schema.spark_types import json_schema_of
from router_schemas.model import table_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from router_init.formats import Found
    from router_init.kinds import Candidate

LAYER = "silver"
OTHER = "other"
"""The table of records that do not say their kind."""
ROOM = 10
"""Times the kinds that were seen: so many tables there may be."""
NAME_COLUMN = "table_name"
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLAIN_TEXT = re.compile(r"[ -&(-\[\]-~]*")
"""Text that stands in SQL as it is: ASCII without a quote or a backslash."""
FEWEST_PER_KEY = 1.5
"""Records of each value of a field that is an entity's key, on average."""
FEWEST_KEYS = 10


@dataclass(frozen=True)
class Table:
    """What the tables of a topic's records are called: by the value of a field, or all the same."""

    found: Found
    base: str
    """The name of the one table, or what stands before a kind."""
    kind: Candidate | None
    candidates: tuple[Candidate, ...]

    @cached_property
    def parts(self) -> dict[str, str]:
        """Return kind -> the part of the table's name that it makes."""
        assert self.kind is not None
        parts: dict[str, str] = {}
        for value, _ in sorted(self.kind.values.items(), key=lambda pair: (-pair[1], pair[0])):
            part = re.sub(r"[^a-z0-9_]", "_", value.lower())
            number = 1
            while not usable(f"{LAYER}.{self.base}{part}") or part in parts.values() or part == OTHER:
                number += 1
                part = f"kind_{number}" if number > len(parts) + 2 else f"{part.strip('_')[:60]}_{number}"
            parts[value] = part
        return parts

    @cached_property
    def latest(self) -> str | None:
        """Return the field that is the key of the records, if their topic keeps the newest record of a key only."""
        if not self.found.sample.compacted:
            return None
        equal: Counter[str] = Counter()
        for event in self.found.events:
            for name, value in event.fields.items():
                is_key = isinstance(value, str | int) and not isinstance(value, bool) and PLAIN_NAME.fullmatch(name)
                equal[name] += is_key is not None and str(value).encode() == event.record.key
        ((name, count),) = equal.most_common(1) or [("", 0)]
        return name if count and count >= FEWEST_RECORDS * len(self.found.events) else None

    @property
    def path(self) -> str:
        """Return the field that says the kind, in SQL."""
        assert self.kind is not None
        return ".".join(["event", *map(quote_name, self.kind.path)])

    @property
    def is_plain(self) -> bool:
        """Return whether all values can name tables as they are, and every record has one."""
        if self.kind is None:
            return False
        complete = self.kind.records == len(self.found.events)
        plain = all(part == value.lower() for value, part in self.parts.items())
        return complete and plain and all(map(PLAIN_NAME.fullmatch, self.kind.path))

    @property
    def template(self) -> str:
        """Return the table of the sink."""
        if self.kind is None:
            return f"{LAYER}.{self.base}"
        return f"{LAYER}.{self.base}{{{self.path if self.is_plain else NAME_COLUMN}}}"

    def expression(self) -> str:
        """Return the SQL that makes a kind a part of a table's name, with functions that tasks evaluate themselves."""
        name = f"lower({self.path})"
        signs = sorted({sign for value in self.parts for sign in value if not re.fullmatch(r"\w", sign, re.ASCII)})
        for sign in filter(PLAIN_TEXT.fullmatch, signs):
            name = f"replace({name}, '{sign}', '_')"
        cases = ""
        for value, part in self.parts.items():
            if part != re.sub(r"[^a-z0-9_]", "_", value.lower()) and PLAIN_TEXT.fullmatch(value):
                cases += f" WHEN '{value}' THEN '{part}'"
        if cases:
            name = f"CASE {self.path}{cases} ELSE {name} END"
        return f"coalesce({name}, '{OTHER}')"

    def name_of(self, event: Any) -> str:
        """Return the table of an event."""
        if self.kind is None:
            return f"{LAYER}.{self.base}"
        value = value_at(event, self.kind.path)
        return f"{LAYER}.{self.base}{self.parts.get(value, OTHER)}"


@dataclass(frozen=True)
class Plan:
    """What is written about some samples: `source` are the lines of YAML below `source:`, `url` is the registry's."""

    name: str
    source: tuple[str, ...]
    tables: tuple[Table, ...]
    columns: Observed
    """Of the JSON objects of all topics."""
    url: str | None = None
    variables: tuple[str, ...] = ()
    """Those without a default, which a login is written as."""

    @cached_property
    def struct(self) -> T.StructType:
        """Return the columns of JSON objects."""
        return self.columns.struct()

    @property
    def renames(self) -> bool:
        """Return whether columns have other names than fields: then the schema has a file."""
        return table_type(self.struct) != self.struct


def plan_tables(name: str, found: Sequence[Found]) -> tuple[Table, ...]:
    """Return the tables of each topic."""
    tables = []
    for of_topic in found:
        candidates = find_candidates([event.fields for event in of_topic.events])
        kind = choose(candidates)
        base = underscored(name)
        if len(found) > 1:
            base = re.sub(r"[^a-z0-9_]", "_", of_topic.sample.name.lower()).strip("_") or "topic"
        if kind is not None:
            base = f"{base}_" if len(found) > 1 else ""
        tables.append(Table(of_topic, base, kind, tuple(candidates)))
    return tuple(tables)


def observe(tables: Sequence[Table]) -> Observed:
    """Return what was observed of all JSON objects, with the objects marked whose names are data."""
    by_kind: dict[str, Observed] = {}
    for table in tables:
        if table.found.decoder != "json":
            continue
        for event in table.found.events:
            by_kind.setdefault(table.name_of(event.fields), Observed()).add(event.fields)
    everything = Observed()
    for observed in by_kind.values():
        everything.join(observed)
    everything.mark_maps([*by_kind.values()])
    return everything


def quote_name(name: str) -> str:
    """Return a name as SQL takes it."""
    if PLAIN_NAME.fullmatch(name):
        return name
    return "`" + name.replace("`", "``") + "`"


def write_type(kind: T.DataType) -> str:
    """Return a type in Spark DDL, with names that DDL does not take bare in backticks; Spark's own needs a JVM."""
    if isinstance(kind, T.StructType):
        return f"struct<{', '.join(f'{quote_name(field.name)}: {write_type(field.dataType)}' for field in kind)}>"
    if isinstance(kind, T.ArrayType):
        return f"array<{write_type(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"map<string, {write_type(kind.valueType)}>"
    return kind.simpleString()


def write_configuration(plan: Plan) -> str:
    """Return the text of NAME.yaml."""
    return "\n".join(
        [
            *_heading(plan),
            f"name: {plan.name}",
            "lake: ${LAKE:-./lake}",
            "source:",
            *(f"  {line}" for line in plan.source),
            *_decode(plan),
            f"bronze: bronze.{underscored(plan.name)}",
            *(["drop: nulls"] if any(table.latest for table in plan.tables) else []),
            "routes:",
            *(line for table in plan.tables for line in _route(plan, table)),
            "dead_letters: ops.dead_letters",
            "",
        ]
    )


def _heading(plan: Plan) -> Iterator[str]:
    yield "# Written by `router init`; what was seen stands beside each choice."
    for table in plan.tables:
        yield f"# {_comment(str(table.found.sample))} were looked at."
    yield f"# Next: {', '.join(next_commands(plan.name))}"


def next_commands(name: str) -> tuple[str, ...]:
    """Return what to type after `init`."""
    return f"router check {name}.yaml", f"router test {name}.test.yaml", f"router run {name}.yaml --once"


def _comment(text: str) -> str:
    """Return a text that others wrote as it can stand in a comment: on its line."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _decode(plan: Plan) -> Iterator[str]:
    decoders = {table.found.decoder for table in plan.tables}
    for table in plan.tables:
        yield f"# {_comment(table.found.sample.name)}: {table.found.seen}"
    if "json" in decoders:
        yield from describe_columns(plan.columns)
    if len(decoders) == 1:
        yield "decode:"
        found = [table.found for table in plan.tables]
        yield from (f"  {line}" for line in _decoder(plan, decoders.pop(), found))
        return
    yield "decode:"
    yield "  by_topic:"
    yield "    topics:"
    for table in plan.tables:
        yield f"      {write_flow(table.found.sample.name)}:"
        yield from (f"        {line}" for line in _decoder(plan, table.found.decoder, [table.found]))


def _decoder(plan: Plan, decoder: str, found: Sequence[Found]) -> Iterator[str]:
    if decoder == "none":
        yield "none: {}"
    elif decoder == "rows":
        yield "rows: {}"
    elif decoder == "json" and plan.renames:
        yield f"json: {{infer: {{file: {plan.name}.schema.json}}}} # columns need other names than these fields"
    elif decoder == "json":
        yield "json:"
        yield "  schema: |"
        lines = [f"    {quote_name(field.name)} {write_type(field.dataType)}" for field in plan.struct]
        yield from ",\n".join(lines).split("\n")
    else:
        yield f"{decoder}:"
        yield f"  registry: {write_flow({'url': f'${{REGISTRY:-{plan.url}}}'})}"
        subjects = sorted({subject for of_topic in found for subject in of_topic.subjects})
        if subjects:
            yield f"  subjects: {write_flow(subjects)}"


def describe_columns(columns: Observed, above: str = "") -> Iterator[str]:
    """Yield a comment for each column where a person may decide otherwise."""
    for name, inner in columns.inside():
        path = f"{above}.{name}" if name is not None and above else (name or f"{above}[]")
        for what in _decisions(inner):
            yield f"#   {_comment(path)}: {what}"
        if inner.is_map:
            assert inner.elements is not None
            yield f"#   {_comment(path)}: a map, since its names go on growing: {len(inner.fields):,} in the sample"
            yield from describe_columns(inner.elements, f"{path}.*")
        else:
            yield from describe_columns(inner, path)


def _decisions(inner: Observed) -> Iterator[str]:
    if inner.conflict:
        counts = ", ".join(f"{kind} {count:,}" for kind, count in sorted(inner.kinds.items()) if kind != "null")
        yield f"text, since it has several types ({counts})"
        return
    if inner.largest > EXACT_IN_DOUBLES and "bigint" in inner.kinds:
        yield "whole numbers beyond 2^53: readers that take numbers as doubles round them"
    texts = inner.kinds.get("string", 0)
    for look, count in inner.texts.items():
        if count == texts:
            yield f"text, of which each looks like {look}"


def _route(plan: Plan, table: Table) -> Iterator[str]:
    conditions = []
    if len(plan.tables) > 1:
        conditions.append(f"topic = '{table.found.sample.name}'")
    if table.kind is not None:
        yield f"  # {_comment(table.path)} says the kind: {table.kind}"
        if table.is_plain:
            conditions.append(f"{table.path} IS NOT NULL")
    others = [candidate for candidate in table.candidates if candidate is not table.kind]
    for candidate in others[:3]:
        yield f"  # event.{_comment('.'.join(candidate.path))} could say it: {candidate}"
    yield f"  - name: {route_name(plan, table)}"
    yield f"    match: {write_flow({'sql': ' AND '.join(conditions) or 'true'})}"
    if table.kind is not None and not table.is_plain:
        yield f"    select: {write_flow(['event.*', f'{table.expression()} AS {NAME_COLUMN}'])}"
    if table.kind is None:
        yield f"    sinks: [{{delta: {table.template}}}]"
    else:
        options = {"table": table.template, "at_most": ROOM * len(table.kind.values)}
        yield f"    sinks: {write_flow([{'tables': options}])}"
    yield from _keys(plan, table)


def route_name(plan: Plan, table: Table) -> str:
    """Return the name of a topic's route."""
    return plan.name if len(plan.tables) == 1 else re.sub(r"^[^a-z]+", "", table.base.strip("_")) or "topic"


def _keys(plan: Plan, table: Table) -> Iterator[str]:
    """Yield a route with the newest row of each key: as a comment, unless the topic itself keeps only these."""
    times = [field.name for field in plan.struct if isinstance(field.dataType, T.TimestampType)]
    newest = f", newest_by: event.{quote_name(times[0])}" if times else ""
    for name, values in sorted(find_keys(table).items()):
        if name == table.latest or name in times:
            continue
        yield f"  # event.{name} repeats: {len(values):,} values in {values.total():,} records. One row for each:"
        sink = f"{{upsert: {{table: {latest_table(plan, name)}, keys: [event.{name}]{newest}}}}}"
        yield f"  # - {{name: {plan.name}_by_{name.lower()}, sinks: [{sink}],"
        yield f"  #    match: {{sql: event.{name} IS NOT NULL}}}}"
    if table.latest is not None:
        name = table.latest
        yield f"  # The topic is compacted, and event.{name} is the key of its records: its newest row, until a record"
        yield "  # without a value deletes it."
        yield f"  - name: {plan.name}_by_{name.lower()}"
        yield f"    match: {{sql: event.{name} IS NOT NULL}}"
        yield f"    sinks: [{{upsert: {{table: {latest_table(plan, name)}, keys: [event.{name}], tombstones: true}}}}]"


def latest_table(plan: Plan, key: str) -> str:
    """Return the table with the newest row of each value of a field."""
    return f"{LAYER}.{underscored(plan.name)}_by_{key.lower()}"


def find_keys(table: Table) -> dict[str, Counter[Any]]:
    """Return the fields that may be keys of entities, with their values: these repeat, and are many."""
    values: dict[str, Counter[Any]] = {}
    for event in table.found.events:
        for name, value in event.fields.items():
            is_key = isinstance(value, str | int) and not isinstance(value, bool)
            if is_key and PLAIN_NAME.fullmatch(name):
                values.setdefault(name, Counter())[value] += 1
    keys = {}
    for name, of_name in values.items():
        repeats = of_name.total() >= FEWEST_PER_KEY * len(of_name)
        always = of_name.total() >= FEWEST_RECORDS * len(table.found.events)
        if len(of_name) >= FEWEST_KEYS and repeats and always and (table.kind is None or table.kind.path != (name,)):
            keys[name] = of_name
    return keys


def write_flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=2**31, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def write_schema(plan: Plan) -> str:
    """Return the text of NAME.schema.json."""
    return json.dumps(json_schema_of(plan.struct), indent=2) + "\n"
