"""NAME.test.yaml: one record of each kind, and one piece of garbage, with the rows that are expected.

The rows come from the records themselves, by what JSON says, and never from a run of the product.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from router.cli.masking import Mask
from router_init.documents import Inline, Plan, Table, latest_table, write_comments, write_yaml
from router_init.formats import PLAIN_NAME
from router_init.kinds import value_at
from router_schemas.avro.model import Array, AvroRecord, AvroSchema, Enum, MapOf, Primitive, Union
from router_schemas.avro.parser import parse_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from router_init.formats import Event
    from router_init.kinds import Path
    from router_init.observed import Observed
    from router_schemas.avro.model import Type
    from router_schemas.model import RegisteredSchema

LONGEST_RECORD = 2000
"""Characters of JSON, if a kind has a record of so few."""
LONGEST_TEXT = 200
MOST_ELEMENTS = 5
MOST_FIELDS = 50
"""What of a longer record stands in a test."""
UNWRITABLE = re.compile(r"[\ud800-\udfff]|Infinity")
"""Half of a surrogate pair stands in no file, and no JSON has an infinite number."""
SUFFIXES = {"AVRO": ".avsc", "PROTOBUF": ".proto", "JSON": ".json"}


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
            for version in versions:
                files[schema_file(plan, version)] = version.text
            schemas[subject] = [schema_file(plan, version) for version in versions]
    document: dict[str, Any] = {}
    if plan.variables:
        document["variables"] = dict.fromkeys(plan.variables, "not needed by tests")
    if schemas:
        document["schemas"] = schemas
    several = len(plan.tables) > 1
    cases = []
    for table in plan.tables:
        if table.found.events and (not several or table.found.decoder == "json"):
            cases.append(_case(plan, table, with_values=with_values))
    decodes = any(table.found.decoder != "none" for table in plan.tables)
    topics = [table.found.sample.name for table in plan.tables if table.found.decoder != "none" or not decodes]
    garbage = Inline(value="garbage", **({"topic": topics[0]} if several else {}))
    cases.append(
        {
            "name": "what cannot be decoded is a dead letter" if decodes else "what is not decoded is kept in bronze",
            "records": [garbage],
            "expect": {"dead_letters": [Inline(stage="decode")]} if decodes else {},
        }
    )
    text = write_comments([f"router test {plan.name}.test.yaml"]) + write_yaml({**document, "tests": cases})
    return {f"{plan.name}.test.yaml": text, **files}


def schema_file(plan: Plan, schema: RegisteredSchema) -> str:
    """Return the name of the file of a schema."""
    return f"{plan.name}.schema-{schema.id}{SUFFIXES[schema.kind]}"


def _case(plan: Plan, table: Table, *, with_values: bool) -> dict[str, Any]:
    kept = frozenset([table.kind.path]) if table.kind else frozenset()
    mask = Mask(maps=frozenset(find_maps(plan.columns)), are_all_maps=True, kept=kept)
    struct = plan.struct if table.found.decoder == "json" else T.StructType()
    records = []
    keys = set()
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, event in choose_records(table).items():
        schema = table.found.schemas.get(event.schema_id or 0)
        shown: Any = shorten(event.fields) if len(json.dumps(event.fields)) > LONGEST_RECORD else event.fields
        if schema is not None and schema.kind != "JSON":
            shown = sketch_event(schema, table, event)
        elif not with_values:
            shown = mask.mask_value(shown)
        keys.add(shown.get(table.latest))
        record = Inline({"value" if table.found.decoder == "json" else "event": shown})
        if schema is not None:
            record["schema"] = schema_file(plan, schema)
        if event.message is not None:
            record["message"] = event.message
        if len(plan.tables) > 1:
            record["topic"] = table.found.sample.name
        records.append(record)
        rows.setdefault(name, []).append(Inline(expect_row(struct, shown)))
    tables: dict[str, Any] = {name: of_table if any(of_table) else len(of_table) for name, of_table in rows.items()}
    if table.latest is not None:
        tables[latest_table(plan, table.latest)] = len(keys)
    name = f"records of {table.found.sample.name} are in their tables"
    return {"name": name, "records": records, "expect": {"tables": tables}}


def choose_records(table: Table) -> dict[str, Event]:
    """Return an event for each table: of the short ones the one with most fields."""
    chosen: dict[str, tuple[tuple[bool, int, int], Event]] = {}
    for event in table.found.events:
        text = json.dumps(event.fields, ensure_ascii=False)
        unnamed = table.kind is not None and value_at(event.fields, table.kind.path) not in (None, "", *table.parts)
        if unnamed or UNWRITABLE.search(text):
            continue
        fields = -len(event.fields) if len(text) <= LONGEST_RECORD else 0
        order = (len(text) > LONGEST_RECORD, fields, len(text))
        name = table.name_of(event.fields)
        if name not in chosen or order < chosen[name][0]:
            chosen[name] = (order, event)
    return {name: event for name, (_, event) in sorted(chosen.items())}


def shorten(value: Any) -> Any:
    """Return a value of JSON with less of what is long: a test needs the kind of a value, not all of it."""
    if isinstance(value, str):
        return value[:LONGEST_TEXT]
    if isinstance(value, list):
        return [shorten(element) for element in value[:MOST_ELEMENTS]]
    if isinstance(value, dict):
        return {name: shorten(inner) for name, inner in itertools.islice(value.items(), MOST_FIELDS)}
    return value


def sketch_event(schema: RegisteredSchema, table: Table, event: Event) -> Any:
    """Return the least event that a schema takes and that says its kind: it has no other value of the record."""
    kind = None if table.kind is None else value_at(event.fields, table.kind.path)
    path = table.kind.path if table.kind is not None and kind is not None else ()
    if schema.kind == "AVRO":
        parsed = parse_text(schema.text)
        return _least_value(parsed.root, parsed, path, kind)
    for name in reversed(path):
        kind = {name: kind}
    return {**({} if table.latest is None else {table.latest: "1"}), **(kind or {})}


def _least_value(kind: Type, schema: AvroSchema, path: Path, value: Any) -> Any:
    """Return the least value of a type of Avro, with `value` at a path of fields."""
    match kind:
        case Primitive():
            return value if path == () and value is not None else _least_primitive(kind)
        case Union(branches):
            if Primitive("null") in branches and value is None:
                return None
            return _least_value(next(each for each in branches if each != Primitive("null")), schema, path, value)
        case Array():
            return []
        case MapOf():
            return {}
    named = schema.types[kind.name]
    match named:
        case AvroRecord():
            fields = {}
            for field in named.fields:
                on_path = path[:1] == (field.name,)
                fields[field.name] = _least_value(
                    field.type, schema, path[1:] if on_path else (), value if on_path else None
                )
            return fields
        case Enum():
            return value or named.symbols[0]
    return "0" * named.size


def _least_primitive(kind: Primitive) -> Any:
    if kind.logical is not None:
        if kind.logical.name == "date":
            return "2026-01-01"
        if "timestamp" in kind.logical.name and "nanos" not in kind.logical.name:
            return "2026-01-01T00:00:00" + ("" if kind.logical.name.startswith("local") else "Z")
    return LEAST[kind.name]


LEAST: Mapping[str, Any] = {
    "null": None,
    "boolean": False,
    "int": 0,
    "long": 0,
    "float": 0.0,
    "double": 0.0,
    "bytes": "",
    "string": "",
}


def expect_row(struct: T.StructType, event: Any) -> dict[str, Any]:
    """Return the values of an event's row in columns of plain types; made from the event, not by the decoder."""
    row = {}
    names = Counter(name.lower() for name in struct.fieldNames())
    for field in struct:
        value: Any = event.get(field.name)
        fits: type | tuple[type, ...] | None = EXPECTED.get(type(field.dataType))
        is_boolean = isinstance(value, bool)
        # A column has another name than such a field.
        named = PLAIN_NAME.fullmatch(field.name) and names[field.name.lower()] == 1
        if named and fits and isinstance(value, fits) and is_boolean == isinstance(field.dataType, T.BooleanType):
            row[field.name] = value
    return row


EXPECTED: Mapping[type[T.DataType], type | tuple[type, ...]] = {
    T.StringType: str,
    T.BooleanType: bool,
    T.LongType: int,
    T.DoubleType: (int, float),
}
"""Types of columns whose values are those of JSON."""


def find_maps(columns: Observed, above: Path = ()) -> Iterator[Path]:
    """Yield the paths of maps, as masks take them: arrays add nothing, and an entry of a map is `*`."""
    for name, inner in columns.inside():
        path = above if name is None else (*above, name)
        if inner.is_map and inner.elements is not None:
            yield path
            yield from find_maps(inner.elements, (*path, "*"))
        else:
            yield from find_maps(inner, path)
