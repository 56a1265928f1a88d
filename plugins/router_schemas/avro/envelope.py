"""Make `from_avro` tell a decoded record from a broken one.

Spark's `from_avro` reads a value and stops: bytes after it go unnoticed, and in PERMISSIVE mode a value that cannot be
read becomes a struct whose fields are all null, which a good record may be as well. So the value is read as the first
of two fields, `value` and `end`, from the payload with END behind it:

    from_avro(concat(payload, END), writer_text(...), {"avroSchema": reader_text(...), "mode": "PERMISSIVE"})

| `end` | the payload is |
|---|---|
| END | one whole value: the event is `value` |
| null | broken or cut off, or null itself |
| anything else | a value with more bytes behind it |

A payload that is cut off is always found: the value then takes bytes of END, and too few are left for `end`. This
needs no required field in the schema, and decodes once. Only a producer that writes END itself behind a value can
make Spark overlook what follows.

Spark allocates what a length in the payload claims, before it reads. A record of a few bytes can claim a text of 2 GiB,
and a JVM out of memory ends whatever the mode is (run: the driver was gone). The JVMs that decode have to be started
with `-Dorg.apache.avro.limits.string.maxLength=N`, `...limits.bytes.maxLength=N` and
`...limits.collectionItems.maxLength=N` (Apache Avro, SystemLimitException): beyond these a record is a broken one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from router_schemas.avro.schema import Definition, Field, Fixed, Record, Ref, Schema, text_of
from router_schemas.avro.widening import renamed

if TYPE_CHECKING:
    from collections.abc import Collection

END = bytes.fromhex("a7f3d1c2e4b59680")
"""What has to follow a value: eight bytes without a meaning, none of them a small number."""

NAME, MARK = "Router_envelope", "Router_end"


def reader_text(reader: Schema) -> str:
    """Return the JSON of a reader's schema with END behind its values; raise ValueError when it has these names."""
    for name in (NAME, MARK):
        if name in reader.types:
            raise ValueError(f"the schema has a type {name}, which is needed to find broken records; rename it")
    fields = (Field("value", reader.root), Field("end", Ref(MARK)))
    plain = {name: _without_aliases(definition) for name, definition in reader.types.items()}
    return text_of(Schema(Ref(NAME), {NAME: Record(NAME, fields), MARK: Fixed(MARK, len(END)), **plain}))


def writer_text(writer: Schema, reader: Schema) -> str:
    """Return the JSON of one writer's schema with END behind its values, for that reader.

    Types and fields are called as the reader calls them. Names are not part of what is written, and so nothing is
    left to the reading library's rules for aliases: Avro's Java library has none for a name without namespace. Raises
    ValueError when two of the writer's types or fields are one of the reader's; never so for a reader merged from it.
    """
    known = {name: one for one in reader.types.values() for name in (one.name, *one.aliases)}
    names = {name: known[name].name if name in known else name for name in writer.types}
    _check_distinct("types", names.values())
    types = {names[name]: _as_known(one, known.get(name), names) for name, one in writer.types.items()}
    return reader_text(Schema(renamed(writer.root, names), types))


def _as_known(definition: Definition, reader: Definition | None, names: dict[str, str]) -> Definition:
    """Return a writer's type with the names of the reader's; a type that the reader lacks keeps its own."""
    definition = replace(definition, name=names[definition.name])
    if not isinstance(definition, Record):
        return definition
    columns = reader.fields if isinstance(reader, Record) else ()
    called = {name: column.name for column in columns for name in (column.name, *column.aliases)}
    fields = tuple(Field(called.get(one.name, one.name), renamed(one.type, names)) for one in definition.fields)
    _check_distinct(f"fields of {definition.name}", [field.name for field in fields])
    return replace(definition, fields=fields)


def _check_distinct(what: str, names: Collection[str]) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"two {what} are one to the reader, by an alias; merge this version's schema as well")


def _without_aliases(definition: Definition) -> Definition:
    if isinstance(definition, Record):
        definition = replace(definition, fields=tuple(replace(field, aliases=()) for field in definition.fields))
    return replace(definition, aliases=())
