"""The files that are written: NAME.yaml, NAME.test.yaml, and a schema where columns need other names than fields.

Every choice stands there with what was seen, in numbers. Values of records stand in no file, except those that say the
kind, which name tables; in tests the others are masked, unless they are asked for.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import yaml
from pyspark.sql import types as T
from typing_extensions import override

from router.api.columns import quote_identifier, sql_text
from router.errors import to_printable
from router.table_names import is_usable_name, to_underscores
from router_init.formats import PLAIN_NAME
from router_init.kinds import FEWEST_RECORDS, choose, find_candidates, value_at
from router_init.observed import EXACT_IN_DOUBLES, Observed
from router_schemas.json_schema.spark_types import json_schema_of
from router_schemas.model import table_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from router_init.formats import Found
    from router_init.kinds import Candidate

LAYER = "silver"
OTHER = "other"
"""The table of records that do not say their kind."""
ROOM = 10
"""Times the kinds that were seen: so many tables there may be."""
NAME_COLUMN = "table_name"
CANDIDATES_SHOWN = 4
FEWEST_PER_KEY = 1.5
"""Records of each value of a field that is an entity's key, on average."""
LONGEST_BASE = 60
"""Characters of a topic in the names of its route and tables."""
FEWEST_KEYS = 10


@dataclass(frozen=True)
class Table:
    """What the tables of a topic's records are called: by the value of a field, or all the same."""

    found: Found
    base: str
    """The name of the one table, and what stands before a kind if there are other topics."""
    is_alone: bool
    """Whether no other topic has tables."""
    kind: Candidate | None
    candidates: tuple[Candidate, ...]

    @cached_property
    def parts(self) -> dict[str, str]:
        """Return kind -> the part of the table's name that it makes."""
        assert self.kind is not None
        parts: dict[str, str] = {}
        for value, _ in sorted(self.kind.values.items(), key=lambda pair: (-pair[1], pair[0])):
            part = fold_text(value)
            stem = part.strip("_")[:60] or "kind"
            number = 1
            while not is_usable_name(f"{self.prefix}{part}") or part in parts.values() or part == OTHER:
                number += 1
                part = f"{stem}_{number}"
            parts[value] = part
        return parts

    @cached_property
    def latest(self) -> str | None:
        """Return the field that is the key of the records, if their topic keeps the newest record of a key only."""
        if not self.found.sample.compacted:
            return None
        equal: Counter[str] = Counter()
        for event in self.found.events:
            equal.update(name for name, value in event.keys if str(value).encode() == event.record.key)
        return next((name for name, count in equal.items() if count >= FEWEST_RECORDS * len(self.found.events)), None)

    def describe_candidates(self) -> Iterator[str]:
        """Yield a line for the field that says the kind, and for the next that could."""
        for candidate in self.candidates[:CANDIDATES_SHOWN]:
            says = "says the kind" if candidate is self.kind else "could say the kind"
            yield f"event.{'.'.join(candidate.path)} {says}: {candidate}"

    @property
    def path(self) -> str:
        """Return the field that says the kind, in SQL."""
        assert self.kind is not None
        return ".".join(["event", *map(quote_name, self.kind.path)])

    @property
    def prefix(self) -> str:
        """Return what stands before a kind in the name of its table."""
        return f"{LAYER}." if self.is_alone else f"{LAYER}.{self.base}_"

    @property
    def is_plain(self) -> bool:
        """Return whether all values can name tables as they are, and every record has one."""
        assert self.kind is not None
        has_plain_values = all(part == value.lower() for value, part in self.parts.items())
        is_complete = self.kind.values.total() == len(self.found.events)
        return has_plain_values and is_complete and all(map(PLAIN_NAME.fullmatch, self.kind.path))

    @cached_property
    def observed(self) -> list[Observed]:
        """Return what was observed of the JSON objects of each table."""
        by_table: dict[str, Observed] = defaultdict(Observed)
        for event in self.found.events:
            by_table[self.name_of(event.fields)].add(event.fields)
        return [*by_table.values()]

    @cached_property
    def columns(self) -> Observed:
        """Return what was observed of all records, with those objects marked whose names are data."""
        return join_tables([self.observed])

    def expression(self) -> str:
        """Return the SQL that makes a kind a part of a table's name, with functions that tasks evaluate themselves."""
        name = f"lower({self.path})"
        for sign in sorted({sign for value in self.parts for sign in value if sign.isascii()}):
            if not PLAIN_NAME.fullmatch(f"_{sign}"):
                name = f"replace({name}, {quote_text(sign)}, '_')"
        cases = ""
        for value, part in self.parts.items():
            if part != fold_text(value) or not value.isascii():
                cases += f" WHEN {quote_text(value)} THEN '{part}'"
        if cases:
            name = f"CASE {self.path}{cases} ELSE {name} END"
        return f"coalesce(nullif({name}, ''), '{OTHER}')"

    def name_of(self, event: Any) -> str:
        """Return the table of an event."""
        if self.kind is None:
            return f"{LAYER}.{self.base}"
        return f"{self.prefix}{self.parts.get(value_at(event, self.kind.path), OTHER)}"


@dataclass(frozen=True)
class Plan:
    """What is written about some samples: the source, and what was found in it."""

    name: str
    source: Mapping[str, Any]
    tables: tuple[Table, ...]
    registry: Mapping[str, Any] = field(default_factory=dict)
    """How a decoder is told where it is."""
    variables: tuple[str, ...] = ()
    """Those without a default, which a login is written as."""

    @cached_property
    def columns(self) -> Observed:
        """Return what was observed of the JSON objects of all topics, with those marked whose names are data."""
        return join_tables(table.observed for table in self.tables if table.found.decoder == "json")

    @cached_property
    def struct(self) -> T.StructType:
        """Return the columns of JSON objects."""
        return self.columns.struct()

    @property
    def renames(self) -> bool:
        """Return whether columns have other names than fields: then the schema has a file."""
        return table_type(self.struct) != self.struct


def join_tables(observed: Iterable[list[Observed]]) -> Observed:
    """Return what was observed of the objects of some tables, with those marked whose names are data."""
    by_table = [*chain.from_iterable(observed)]
    columns = Observed()
    for of_table in by_table:
        columns.join(of_table)
    columns.mark_maps(by_table)
    return columns


def plan_tables(name: str, found: Sequence[Found]) -> tuple[Table, ...]:
    """Return the tables of each topic."""
    tables: list[Table] = []
    for of_topic in found:
        base = to_underscores(name)
        if len(found) > 1:
            base = fold_text(of_topic.sample.name).strip("_")[:LONGEST_BASE] or "topic"
            while base in {table.base for table in tables}:  # of `a.b` and `a-b`
                base += "_2"
        candidates = find_candidates([event.fields for event in of_topic.events])
        table = Table(of_topic, base, len(found) == 1, choose(candidates), tuple(candidates))
        if of_topic.decoder == "json" and any(observed.names_grow for observed in table.observed):
            seen = "JSON objects whose names are data: no columns can be made of them"
            bare = replace(of_topic, decoder="none", seen=seen, events=())
            table = Table(bare, base, table.is_alone, None, ())
        tables.append(table)
    return tuple(tables)


def fold_text(text: str) -> str:
    """Return a text as a part of a table's name: in small letters, with `_` for all that no name has."""
    return re.sub(r"[^a-z0-9_]", "_", text.lower())


def quote_text(text: str) -> str:
    """Return a text as a literal of SQL; configurations and Spark both take `${` for a variable, also in a literal."""
    return sql_text(text).replace("$", r"\u0024")


def quote_name(name: str) -> str:
    """Return a name as SQL takes it."""
    if PLAIN_NAME.fullmatch(name):
        return name
    return quote_identifier(name).replace("${", "$${")


def write_type(kind: T.DataType) -> str:
    """Return a type in Spark DDL, with names that DDL does not take bare in backticks; Spark's own needs a JVM."""
    match kind:
        case T.StructType():
            return f"struct<{', '.join(f'{quote_name(field.name)}: {write_type(field.dataType)}' for field in kind)}>"
        case T.ArrayType():
            return f"array<{write_type(kind.elementType)}>"
        case T.MapType():
            return f"map<string, {write_type(kind.valueType)}>"
    return kind.simpleString()


class Inline(dict[str, Any]):
    """A mapping that is written on one line."""


class Dumper(yaml.SafeDumper):
    """Writes mappings as people do: lists stand inside of their key, texts of several lines as such."""

    @override
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _write_mapping(dumper: Dumper, mapping: Inline) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", mapping, flow_style=True)


def _write_text(dumper: Dumper, text: str) -> yaml.Node:
    # Without quotes some readers of YAML take `007` as a number.
    style = "|" if "\n" in text else "'" if text[:1].isdigit() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Dumper.add_representer(Inline, _write_mapping)
Dumper.add_representer(str, _write_text)


def write_yaml(value: Any, indent: str = "") -> str:
    """Return a value as YAML, its keys in their order."""
    return textwrap.indent(yaml.dump(value, Dumper=Dumper, width=2**31, allow_unicode=True, sort_keys=False), indent)


def write_comments(lines: Iterable[str], indent: str = "") -> str:
    """Return comments; what others wrote in them stays on its line."""
    return "".join(f"{indent}# {to_printable(line)}\n" for line in lines)


def write_configuration(plan: Plan) -> str:
    """Return the text of NAME.yaml."""
    routed = {table.found.decoder for table in plan.tables} - {"none"} or {"none"}  # there has to be a route
    samples = [f"{table.found.sample} were looked at; {table.found.seen}" for table in plan.tables]
    parts = [
        write_comments(["Written by `router init`; what was seen stands beside each choice.", *samples]),
        write_yaml({"name": plan.name, "lake": "${LAKE:-./lake}", "source": plan.source}),
        write_comments(describe_columns(plan.columns)),
        write_yaml({"decode": _decode(plan), "bronze": f"bronze.{to_underscores(plan.name)}"}),
        "drop: nulls\n" if any(table.latest for table in plan.tables) else "",
        "routes:\n",
        *(part for table in plan.tables if table.found.decoder in routed for part in _routes(plan, table)),
        write_yaml({"dead_letters": "ops.dead_letters"}),
    ]
    return "".join(parts)


def _decode(plan: Plan) -> dict[str, Any]:
    decoders = {table.found.decoder for table in plan.tables}
    if len(decoders) == 1:
        return _decoder(plan, [table.found for table in plan.tables])
    decoded = [table.found for table in plan.tables if table.found.decoder != "none"]
    topics = {found.sample.name: _decoder(plan, [found]) for found in decoded}
    return {"by_topic": {"topics": topics, **({"others": "bronze"} if len(decoded) < len(plan.tables) else {})}}


def _decoder(plan: Plan, found: Sequence[Found]) -> dict[str, Any]:
    decoder = found[0].decoder
    if decoder in ("none", "rows"):
        return {decoder: Inline()}
    if decoder == "json" and plan.renames:
        return {"json": Inline(infer=Inline(file=f"{plan.name}.schema.json"))}
    if decoder == "json":
        lines = [f"{quote_name(field.name)} {write_type(field.dataType)}" for field in plan.struct]
        return {"json": {"schema": ",\n".join(lines) + "\n"}}
    subjects = sorted({subject for of_topic in found for subject in of_topic.subjects})
    options: dict[str, Any] = {"registry": plan.registry}
    return {decoder: {**options, "subjects": subjects} if subjects else options}


def describe_columns(columns: Observed, above: str = "") -> Iterator[str]:
    """Yield a line for each column where a person may decide otherwise."""
    for name, inner in columns.inside.items():
        path = f"{above}.{name}".lstrip(".")
        if name is None:
            path = f"{above}.*" if columns.map_names else f"{above}[]"
        looks = [look for look, count in inner.looks.items() if count == inner.kinds["string"]]
        if inner.kind == "mixed":
            counts = ", ".join(f"{kind} {count:,}" for kind, count in sorted(inner.kinds.items()) if kind != "null")
            yield f"{path}: text, since it has several types ({counts})"
        elif inner.largest > EXACT_IN_DOUBLES:
            yield f"{path}: whole numbers beyond 2^53, which readers that take numbers as doubles round"
        elif looks:
            yield f"{path}: text, of which each looks like {looks[0]}"
        elif inner.map_names:
            yield f"{path}: a map, since its names go on growing: {inner.map_names:,} in the sample"
        yield from describe_columns(inner, path)


def _routes(plan: Plan, table: Table) -> Iterator[str]:
    """Yield the texts of a topic's routes, each after what was seen."""
    conditions = [f"topic = '{table.found.sample.name}'"] if len(plan.tables) > 1 else []
    sink = Inline(delta=f"{LAYER}.{table.base}")
    select = {}
    if table.kind is not None:
        name = table.path
        if table.is_plain:
            conditions.append(f"{name} IS NOT NULL")
        else:
            name = NAME_COLUMN
            select = {"select": ["event.*", f"{table.expression()} AS {name}"]}
        sink = Inline(tables=Inline(table=f"{table.prefix}{{{name}}}", at_most=ROOM * len(table.kind.values)))
    match = Inline(sql=" AND ".join(conditions) or "true")
    yield write_comments(table.describe_candidates(), "  ")
    yield write_yaml([{"name": route_name(plan, table), "match": match, **select, "sinks": [sink]}], "  ")
    times = [field.name for field in plan.struct if isinstance(field.dataType, T.TimestampType)]
    newest = {"newest_by": f"event.{quote_name(times[0])}"} if times else {}
    for name, values in sorted(find_keys(table).items()):
        if name != table.latest and name not in times:
            numbers = f"{len(values):,} values in {values.total():,} records"
            yield write_comments([f"event.{name} repeats: {numbers}. One row for each:"], "  ")
            yield write_yaml([_latest_route(plan, name, newest)], "  # ")
    if table.latest is not None:
        what = f"The topic is compacted and event.{table.latest} is its key: the newest row of each, but deleted ones."
        yield write_comments([what], "  ")
        yield write_yaml([_latest_route(plan, table.latest, {"tombstones": True})], "  ")


def route_name(plan: Plan, table: Table) -> str:
    """Return the name of a topic's route."""
    return plan.name if len(plan.tables) == 1 else re.sub(r"^[^a-z]+", "", table.base) or "topic"


def latest_table(plan: Plan, key: str) -> str:
    """Return the table with the newest row of each value of a field."""
    return f"{LAYER}.{to_underscores(plan.name)}_by_{key.lower()}"


def _latest_route(plan: Plan, key: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": f"{plan.name}_by_{key.lower()}",
        "match": Inline(sql=f"event.{key} IS NOT NULL"),
        "sinks": [Inline(upsert=Inline(table=latest_table(plan, key), keys=[f"event.{key}"], **options))],
    }


def find_keys(table: Table) -> dict[str, Counter[Any]]:
    """Return the fields that may be keys of entities, with their values: these repeat, and are many."""
    values: dict[str, Counter[Any]] = {}
    for event in table.found.events:
        for name, value in event.keys:
            values.setdefault(name, Counter())[value] += 1
    keys = {}
    for name, of_name in values.items():
        repeats = FEWEST_KEYS <= len(of_name) <= of_name.total() / FEWEST_PER_KEY
        always = of_name.total() >= FEWEST_RECORDS * len(table.found.events)
        if repeats and always and (table.kind is None or table.kind.path != (name,)):
            keys[name] = of_name
    return keys


def write_schema(plan: Plan) -> str:
    """Return the text of NAME.schema.json."""
    return json.dumps(json_schema_of(plan.struct), indent=2) + "\n"
