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
from router_init.formats import PLAIN_NAME, least_event
from router_init.kinds import value_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router_init.formats import Event
    from router_init.kinds import Path
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
    variables = dict.fromkeys(plan.variables, "not needed by tests")
    sections = {"variables": variables, "schemas": schemas, "tests": cases}
    text = write_yaml({name: section for name, section in sections.items() if section})
    return {f"{plan.name}.test.yaml": write_comments([f"router test {plan.name}.test.yaml"]) + text, **files}


def schema_file(plan: Plan, schema: RegisteredSchema) -> str:
    """Return the name of the file of a schema."""
    return f"{plan.name}.schema-{schema.id}{SUFFIXES[schema.kind]}"


def _case(plan: Plan, table: Table, *, with_values: bool) -> dict[str, Any]:
    found = table.found
    kept = frozenset([table.kind.path]) if table.kind else frozenset()
    names = found.names or frozenset(table.columns.names())
    mask = Mask(names=names, kept=kept)
    struct = plan.struct if found.decoder == "json" else T.StructType()
    records = []
    keys = set()
    tables: dict[str, Any] = {}
    for name, event in choose_records(table).items():
        schema = found.schemas.get(event.schema_id or 0)
        shown: Any = shorten(event.fields) if len(json.dumps(event.fields)) > LONGEST_RECORD else event.fields
        if schema is not None and schema.kind != "JSON":
            shown = sketch_event(schema, table, event)
        elif not with_values:
            shown = mask.mask_value(shown)
        options = {
            "value" if found.decoder == "json" else "event": shown,
            "schema": schema and schema_file(plan, schema),
            "message": event.message,
            "topic": found.sample.name if len(plan.tables) > 1 else None,
        }
        records.append(Inline({key: option for key, option in options.items() if option is not None}))
        keys.add(shown.get(table.latest))
        row = expect_row(struct, shown)
        tables[name] = [Inline(row)] if row else 1
    if table.latest is not None:
        tables[latest_table(plan, table.latest)] = len(keys)
    name = f"records of {found.sample.name} are in their tables"
    return {"name": name, "records": records, "expect": {"tables": tables}}


def choose_records(table: Table) -> dict[str, Event]:
    """Return an event for each table, by its name: of the short ones the one with most fields."""
    chosen: dict[str, Event] = {}
    for event in sorted(table.found.events, key=_simplicity):
        name = table.name_of(event.fields)
        unnamed = table.kind is not None and value_at(event.fields, table.kind.path) not in (None, "", *table.parts)
        if name in chosen or unnamed or UNWRITABLE.search(json.dumps(event.fields, ensure_ascii=False)):
            continue
        chosen[name] = event
    return dict(sorted(chosen.items()))


def _simplicity(event: Event) -> tuple[bool, int, int]:
    characters = len(json.dumps(event.fields, ensure_ascii=False))
    is_long = characters > LONGEST_RECORD
    return (is_long, 0 if is_long else -len(event.fields), characters)


def shorten(value: Any) -> Any:
    """Return a value of JSON with less of what is long: a test needs the kind of a value, not all of it."""
    match value:
        case str():
            return value[:LONGEST_TEXT]
        case list():
            return [shorten(element) for element in value[:MOST_ELEMENTS]]
        case dict():
            return {name: shorten(inner) for name, inner in itertools.islice(value.items(), MOST_FIELDS)}
    return value


def sketch_event(schema: RegisteredSchema, table: Table, event: Event) -> dict[str, Any]:
    """Return the least event that a schema takes and that says its kind: it has no other value of the record."""
    path: Path = ()
    if table.kind is not None and value_at(event.fields, table.kind.path) is not None:
        path = table.kind.path
    fields = least_event(schema, path) if schema.kind == "AVRO" else {}
    if table.latest is not None:
        fields.setdefault(table.latest, "1")
    place = fields
    for name in path[:-1]:
        place = place.setdefault(name, {})
    for name in path[-1:]:
        place[name] = value_at(event.fields, path)
    return fields


def expect_row(struct: T.StructType, event: Any) -> dict[str, Any]:
    """Return the values of an event's row in columns of plain types; made from the event, not by the decoder."""
    row = {}
    names = Counter(name.lower() for name in struct.fieldNames())
    for field in struct:
        value = event.get(field.name)
        # A column has another name than such a field.
        is_named = PLAIN_NAME.fullmatch(field.name) and names[field.name.lower()] == 1
        if is_named and type(value) in PLAIN_TYPES.get(type(field.dataType), ()):
            row[field.name] = value
    return row


PLAIN_TYPES: Mapping[type[T.DataType], tuple[type, ...]] = {
    T.StringType: (str,),
    T.BooleanType: (bool,),
    T.LongType: (int,),
    T.DoubleType: (int, float),
}
"""Types of columns whose values are those of JSON."""
