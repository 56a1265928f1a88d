"""The files that are written: NAME.yaml, NAME.test.yaml, and schemas.

Every choice stands there with what was seen, in numbers. Values of records stand in no file, except those that say the
kind, which name tables; in tests the others are masked, unless they are asked for.

The tests have one record of each kind, and one piece of garbage. The rows that are expected come from the records
themselves, by what JSON says, and never from a run of the product.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from router.cli.masking import Mask
from router.cli.yaml_text import write_yaml
from router.errors import to_printable
from router.table_names import to_underscores
from router_init.columns import Column
from router_init.formats import least_event
from router_init.kinds import value_at
from router_init.tables import LAYER, PLAIN_NAME, Table, quote_name
from router_schemas.json_schema.spark_types import json_schema_of
from router_schemas.model import table_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from router_init.formats import Event, Found
    from router_schemas.model import RegisteredSchema

ROOM = 10
"""Times the kinds that were seen: so many tables there may be."""
FEWEST_KEYS = 10
FEWEST_PER_KEY = 1.5
"""Records of each value of a field that is an entity's key, on average."""
LONGEST_RECORD = 2000
"""Characters of JSON, if a kind has a record of so few."""
LONGEST_TEXT = 200
MOST_ELEMENTS = 5
MOST_FIELDS = 50
"""What of a longer record stands in a test."""
UNWRITABLE = re.compile(r"[\ud800-\udfff]|Infinity")
"""Half of a surrogate pair stands in no file, and no JSON has an infinite number."""
SUFFIXES = {"AVRO": ".avsc", "PROTOBUF": ".proto", "JSON": ".json"}
PLAIN_TYPES: Mapping[type[T.DataType], tuple[type, ...]] = {
    T.StringType: (str,),
    T.BooleanType: (bool,),
    T.LongType: (int,),
    T.DoubleType: (int, float),
}
"""Types of columns whose values are those of JSON."""


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
    def columns(self) -> Column:
        """Return the JSON objects of all topics as one column; objects whose names are data are maps."""
        columns = Column()
        for table in self.tables:
            if table.found.decoder == "json":
                columns.labels += table.names
                columns.values += table.records.values
        columns.mark_maps()
        return columns

    @cached_property
    def struct(self) -> T.StructType:
        """Return the columns of JSON objects."""
        return self.columns.struct()

    @property
    def renames(self) -> bool:
        """Return whether columns have other names than fields: then the schema has a file."""
        return table_type(self.struct) != self.struct

    @property
    def has_topics(self) -> bool:
        """Return whether there are several topics, whose records must be told apart."""
        return len(self.tables) > 1


def write_files(plan: Plan, *, with_values: bool) -> dict[str, str]:
    """Return the text of each file by name."""
    files = {f"{plan.name}.yaml": write_configuration(plan), **write_tests(plan, with_values=with_values)}
    if plan.renames:
        files[f"{plan.name}.schema.json"] = json.dumps(json_schema_of(plan.struct), indent=2) + "\n"
    return files


def write_configuration(plan: Plan) -> str:
    """Return the text of NAME.yaml."""
    routed = {table.found.decoder for table in plan.tables} - {"none"} or {"none"}  # there has to be a route
    samples = [f"{table.found.sample} were looked at; {table.found.seen}" for table in plan.tables]
    header = ["Written by `router init`; what was seen stands beside each choice.", *samples]
    decoding = {"decode": _decode(plan), "bronze": f"bronze.{to_underscores(plan.name)}"}
    if any(table.latest for table in plan.tables):
        decoding["drop"] = "nulls"
    text = write_part(header, {"name": plan.name, "lake": "${LAKE:-./lake}", "source": plan.source})
    text += write_part(plan.columns.describe(), decoding)
    text += "routes:\n"
    for table in plan.tables:
        if table.found.decoder in routed:
            text += textwrap.indent("".join(_routes(plan, table)), "  ")
    return text + "dead_letters: ops.dead_letters\n"


def write_part(comments: Iterable[str], value: Any = None) -> str:
    """Return comments, of which each stays on its line whatever others wrote in it, and a value below them."""
    text = "".join(f"# {to_printable(line)}\n" for line in comments)
    return text if value is None else text + write_yaml(value)


def _decode(plan: Plan) -> dict[str, Any]:
    found = [table.found for table in plan.tables]
    if len({of_topic.decoder for of_topic in found}) == 1:
        return _decoder(plan, found)
    decoded = [of_topic for of_topic in found if of_topic.decoder != "none"]
    by_topic: dict[str, Any] = {"topics": {of_topic.sample.name: _decoder(plan, [of_topic]) for of_topic in decoded}}
    if len(decoded) < len(found):
        by_topic["others"] = "bronze"
    return {"by_topic": by_topic}


def _decoder(plan: Plan, found: Sequence[Found]) -> dict[str, Any]:
    decoder = found[0].decoder
    if decoder in ("none", "rows"):
        return {decoder: {}}
    if decoder == "json" and plan.renames:
        return {"json": {"infer": {"file": f"{plan.name}.schema.json"}}}
    if decoder == "json":
        lines = [f"{quote_name(field.name)} {write_type(field.dataType)}" for field in plan.struct]
        return {"json": {"schema": ",\n".join(lines) + "\n"}}
    options: dict[str, Any] = {"registry": plan.registry}
    subjects = sorted({subject for of_topic in found for subject in of_topic.subjects})
    return {decoder: {**options, "subjects": subjects} if subjects else options}


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


def _routes(plan: Plan, table: Table) -> Iterator[str]:
    """Yield the texts of a topic's routes, each after what was seen."""
    of_topic = [f"topic = '{table.found.sample.name}'"] if plan.has_topics else []
    conditions = [*of_topic]
    sink: dict[str, Any] = {"delta": f"{LAYER}.{table.base}"}
    select = {}
    if table.kind.path:
        name = table.path
        if table.is_plain:
            conditions.append(f"{name} IS NOT NULL")
        else:
            name = "table_name"
            select = {"select": ["event.*", f"{table.expression()} AS {name}"]}
        sink = {"tables": {"table": f"{table.prefix}{{{name}}}", "at_most": ROOM * len(table.kind.values)}}
    match = {"sql": " AND ".join(conditions) or "true"}
    route = {"name": table.base if plan.has_topics else plan.name, "match": match, **select, "sinks": [sink]}
    yield write_part(table.describe_candidates(), [route])
    times = [column.name for column in plan.struct if isinstance(column.dataType, T.TimestampType)]
    newest = {"newest_by": f"event.{quote_name(times[0])}"} if times else {}
    for key, values in table.keys.items():
        repeats = FEWEST_KEYS <= len(values) <= values.total() / FEWEST_PER_KEY
        if repeats and key not in (table.latest, *times) and (key,) != table.kind.path:
            numbers = f"event.{key} repeats: {len(values):,} values in {values.total():,} records. One row for each:"
            yield write_part([numbers, *write_yaml(_latest_route(table, key, of_topic, newest)).splitlines()])
    if table.latest is not None:
        what = f"The topic is compacted and event.{table.latest} is its key: the newest row of each, but deleted ones."
        yield write_part([what], _latest_route(table, table.latest, of_topic, {"tombstones": True}))


def latest_name(table: Table, key: str) -> str:
    """Return the name of the route and of its table with the newest row of each value of a field."""
    return f"{table.base}_by_{key.lower()}"


def _latest_route(table: Table, key: str, conditions: list[str], options: Mapping[str, Any]) -> list[Any]:
    upsert = {"table": f"{LAYER}.{latest_name(table, key)}", "keys": [f"event.{key}"], **options}
    match = {"sql": " AND ".join([*conditions, f"event.{key} IS NOT NULL"])}
    return [{"name": latest_name(table, key), "match": match, "sinks": [{"upsert": upsert}]}]


def write_tests(plan: Plan, *, with_values: bool) -> dict[str, str]:
    """Return the files of the tests by name: NAME.test.yaml, and schemas in place of a registry.

    There is none if a schema refers to others: the registry names these, and names of its own make no files.
    """
    files: dict[str, str] = {}
    schemas: dict[str, list[str]] = {}
    for table in plan.tables:
        for subject, versions in table.found.subjects.items():
            if any(version.references for version in versions):
                return {}
            schemas[subject] = [schema_file(plan, version) for version in versions]
            files |= {schema_file(plan, version): version.text for version in versions}
    cases = []
    for table in plan.tables:
        if table.found.events and (not plan.has_topics or table.found.decoder == "json"):
            cases.append(_case(plan, table, with_values=with_values))
    decoded = [table.found.sample.name for table in plan.tables if table.found.decoder != "none"]
    garbage = {"value": "garbage", **({"topic": decoded[0]} if decoded and plan.has_topics else {})}
    expected = {"dead_letters": [{"stage": "decode"}]} if decoded else {}
    name = "what cannot be decoded is a dead letter" if decoded else "what is not decoded is kept in bronze"
    cases.append({"name": name, "records": [garbage], "expect": expected})
    variables = dict.fromkeys(plan.variables, "not needed by tests")
    sections = {"variables": variables, "schemas": schemas, "tests": cases}
    filled = {name: section for name, section in sections.items() if section}
    return {f"{plan.name}.test.yaml": write_part([f"router test {plan.name}.test.yaml"], filled), **files}


def schema_file(plan: Plan, schema: RegisteredSchema) -> str:
    """Return the name of the file of a schema."""
    return f"{plan.name}.schema-{schema.id}{SUFFIXES[schema.kind]}"


def _case(plan: Plan, table: Table, *, with_values: bool) -> dict[str, Any]:
    found = table.found
    columns = plan.columns if found.decoder == "json" else table.records
    names = columns.field_names() if found.names is None else found.names
    mask = None if with_values else Mask(names=frozenset(names))
    records = []
    keys = set()
    tables: dict[str, Any] = {}
    for name, event in choose_records(table).items():
        shown = show_event(table, event, mask)
        options = {
            "value" if found.decoder == "json" else "event": shown,
            "schema": event.schema_id and schema_file(plan, found.schemas[event.schema_id]),
            "message": event.message,
            "topic": found.sample.name if plan.has_topics else None,
        }
        records.append({key: option for key, option in options.items() if option is not None})
        if table.latest is not None:
            keys.add(shown.get(table.latest))
        row = expect_row(plan.struct, shown) if found.decoder == "json" else {}
        tables[name] = [row] if row else 1
    if table.latest is not None:
        tables[f"{LAYER}.{latest_name(table, table.latest)}"] = len(keys)
    name = f"records of {found.sample.name} are in their tables"
    return {"name": name, "records": records, "expect": {"tables": tables}}


def choose_records(table: Table) -> dict[str, Event]:
    """Return an event for each table, by its name: of the short ones the one with most fields."""
    chosen: dict[str, Event] = {}
    for event in sorted(table.found.events, key=_simplicity):
        name = table.name_of(event.fields)
        if name not in chosen and not UNWRITABLE.search(write_json(event)):
            chosen[name] = event
    return dict(sorted(chosen.items()))


def _simplicity(event: Event) -> tuple[bool, int, int]:
    characters = len(write_json(event))
    is_long = characters > LONGEST_RECORD
    return (is_long, 0 if is_long else -len(event.fields), characters)


def write_json(event: Event) -> str:
    """Return the fields of an event as JSON, as most producers write it."""
    return json.dumps(event.fields, ensure_ascii=False)


def show_event(table: Table, event: Event, mask: Mask | None) -> dict[str, Any]:
    """Return an event as a test has it: all of it is masked but the field that says the kind.

    Of Avro and Protobuf, whose values cannot be masked, it is the least one that the schema takes.
    """
    schema = table.found.schemas.get(event.schema_id or 0)
    kind = value_at(event.fields, table.kind.path)
    path = table.kind.path if isinstance(kind, str) else ()
    if schema is None or schema.kind == "JSON":
        shown = shorten(event.fields) if len(write_json(event)) > LONGEST_RECORD else event.fields
        shown = shown if mask is None else mask.mask_value(shown)
    else:
        shown = least_event(schema, event.message, path)
        if table.latest is not None:
            shown.setdefault(table.latest, "1")
    place = shown
    for name in path[:-1]:
        place = place.setdefault(name, {})
    for name in path[-1:]:
        place[name] = kind
    return shown


def shorten(value: Any) -> Any:
    """Return a value of JSON with less of what is long: a test needs the kind of a value, not all of it."""
    match value:
        case str():
            return value[:LONGEST_TEXT]
        case list():
            return [shorten(element) for element in value[:MOST_ELEMENTS]]
        case dict():
            return {name: shorten(inner) for name, inner in islice(value.items(), MOST_FIELDS)}
    return value


def expect_row(struct: T.StructType, event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an event's row in columns of plain types; made from the event, not by the decoder."""
    row = {}
    names = Counter(name.lower() for name in struct.fieldNames())
    for column in struct:
        value = event.get(column.name)
        # A column has another name than such a field.
        is_named = PLAIN_NAME.fullmatch(column.name) and names[column.name.lower()] == 1
        if is_named and type(value) in PLAIN_TYPES.get(type(column.dataType), ()):
            row[column.name] = value
    return row
