"""Model what a registry has under an id, how records refer to it, and how columns are called. Quick to import.

The schema that a record was written with has a name that people can read; it is in logs and next to the checkpoint:

| a record was written with | text |
|---|---|
| schema 17 of the registry, its first or only message | `schema 17` |
| another message of it, by message index or full name | `message 0.1 of schema 17`, `message games.Bet of schema 17` |
| the schema with a GUID | `schema f3a1b8de-0f2a-4b8e-9d0b-7d5d7a1d7b11` |
| a message of the one file that there is | `message games.Bet` |
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from uuid import UUID

from pyspark.sql import types as T

from router import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


Kind = Literal["AVRO", "PROTOBUF", "JSON"]
UNKNOWN_HOLD_SECONDS = 60.0
"""Seconds for which a schema that a registry does not give stays unknown before it is asked for again."""
LARGEST_ID = 2**31 - 1
"""Ids are Java's int; some registries answer nonsense to others, which any garbage can contain."""


@dataclass(frozen=True)
class Reference:
    """Another registered schema that this one imports under `name`."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class RegisteredSchema:
    """One schema as registered.

    `text` is what the registry serves: Avro or JSON Schema as JSON; Protobuf as .proto text or as a base64
    FileDescriptorProto. `subjects` are the (subject, version) pairs that the id has, if the registry lists them.
    """

    id: int
    kind: Kind
    text: str
    references: tuple[Reference, ...] = ()
    subjects: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class ResolvedSchema:
    """A schema with everything it refers to, however deep.

    `imports`: the name under which a schema is imported -> its text, dependencies before those that need them. Names
    come from whoever registered the schema: they are keys and never paths.
    """

    schema: RegisteredSchema
    imports: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SchemaOrigin:
    """A version of a subject, or a file. `label` is its name in conflicts; a file and some registries have less.

    `foreign`: none of the schema's subjects counts for these records, but a record names its id.
    """

    label: str
    id: int | None = None
    subject: str | None = None
    version: int | None = None
    foreign: bool = False

    @staticmethod
    def of(resolved: ResolvedSchema) -> SchemaOrigin:
        """Return the origin of a registered schema; of several subjects the first is named."""
        number = resolved.schema.id
        if not resolved.schema.subjects:
            return SchemaOrigin(f"schema {number}", number)
        subject, version = resolved.schema.subjects[0]
        return SchemaOrigin(f"{subject} version {version} (schema {number})", number, subject, version)

    @property
    def age(self) -> tuple[bool, str, int]:
        """Return the key to sort versions by: subject and version, or the id if the registry names neither.

        Foreign ones come last: if types exclude each other, the versions that count keep theirs.
        """
        return (self.foreign, self.subject or "", self.version or self.id or 0)


VALUE_HEADER = "__value_schema_id"
KEY_HEADER = "__key_schema_id"
"""Record headers that Confluent's clients put GUIDs into."""
FULL_NAME = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
"""Names with dots between them: the full name of a record or message, or a path of fields."""
FIRST_MESSAGE = (0,)
"""The message index of a file's first message."""
_GUID_PATTERN = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_WRITER_PATTERN = re.compile(
    rf"(?:message (?P<message>[^ ]+))?(?:(?:^| of )schema (?:(?P<id>\d{{1,10}})|(?P<guid>{_GUID_PATTERN})))?"
)


@dataclass(frozen=True)
class WriterSchema:
    """A schema that records were written with, and the message in it.

    `message` is a message index (`0.1`), a full name, or empty: the first or only one.
    """

    schema: int | UUID | None = None
    message: str = ""

    def __str__(self) -> str:
        parts = []
        if self.message:
            parts.append(f"message {self.message}")
        if self.schema is not None:
            parts.append(f"schema {self.schema}")
        return " of ".join(parts)

    @staticmethod
    def of(text: str) -> WriterSchema:
        """Parse the text of a writer's schema; raise ValueError for any other text."""
        match = _WRITER_PATTERN.fullmatch(text)
        if match is None or not text:
            raise ValueError(f"{text[:100]!r} is no name of a schema and message, such as `schema 17`")
        schema: int | UUID | None = None
        if match["id"]:
            schema = int(match["id"])
        elif match["guid"]:
            schema = UUID(match["guid"])
        return WriterSchema(schema, match["message"] or "")

    @property
    def path(self) -> tuple[int, ...] | None:
        """Return the message index of the message; None if the message is given by its name."""
        if not self.message:
            return FIRST_MESSAGE
        steps = self.message.split(".")
        if not all(step.isdecimal() for step in steps):
            return None
        return tuple(int(step) for step in steps)


def dotted_index(path: Sequence[int]) -> str:
    """Return a message index as the `message` of a WriterSchema."""
    return "" if tuple(path) == FIRST_MESSAGE else ".".join(map(str, path))


Taken = Mapping[str, tuple[T.DataType, str]]
"""Field of the event -> the type that it has in records of another format, and what brought it."""


@dataclass(frozen=True)
class SchemaInfo:
    """What is known of the values with one prefix or header; `reason` is set if they cannot be read."""

    schema_id: int | None = None
    schema_version: int | None = None
    subject: str | None = None
    message: str | None = None
    reason: str | None = None

    @staticmethod
    def of(origin: SchemaOrigin, message: str | None, reason: str | None = None) -> SchemaInfo:
        """Return the schema, version and message of values, for their columns."""
        return SchemaInfo(origin.id, origin.version, origin.subject, message, reason)


@contextmanager
def schema_file(path: Path) -> Iterator[None]:
    """Raise StartError if a schema file cannot be read (OSError), or its content is wrong (ValueError)."""
    try:
        yield
    except OSError as error:
        hint = "it is looked for in the configuration's folder"
        raise StartError(f"schema file {path}: {error.strerror}; {hint}") from error
    except UnicodeDecodeError as error:
        raise StartError(f"schema file {path}: it is not UTF-8") from error
    except ValueError as error:
        raise StartError(f"schema file {path}: {error}") from error


log = logging.getLogger("router")


@dataclass(frozen=True)
class SchemaConflict:
    """A place where no single table column can hold what two schema versions write.

    `field` is the dotted path of the column from the record's root ("" is the record itself; `[]` steps into an
    array's items, `{}` into a map's values). `old` and `new` are the caller's names of the two versions (such as "id 7
    version 2"). `what` describes the difference, in words and without any value of the data.
    """

    field: str
    old: str
    new: str
    what: str

    def __str__(self) -> str:
        place = f"field {self.field!r}" if self.field else "the record itself"
        return f"{place} differs between {self.old} and {self.new}: {self.what}"


def log_refusals(conflicts: Iterable[SchemaConflict]) -> dict[str, str]:
    """Return the reason for each version that was refused, which is its first conflict, and log it as a warning."""
    reasons: dict[str, str] = {}
    for conflict in conflicts:
        if conflict.new not in reasons:
            log.warning("incompatible schemas: %s; its records become dead letters", conflict)
            reasons[conflict.new] = str(conflict)
    return reasons


REFUSED_CHARACTERS = re.compile(r"[ ,;{}()\t\n\r=]|[\x00-\x1f]")
"""Characters that no name of a column can have."""


def column_names(fields: Iterable[str]) -> dict[str, str]:
    """Return field -> column for one struct, whose fields come in the order in which they were added.

    - Delta and Spark compare names without case: of `id` and `ID` only the first keeps its name.
    - Delta without column mapping refuses the characters " ,;{}()", tab, line feed and "=", and an empty name
      (delta.io, "Delta column mapping"); each such character becomes an underscore.
    - A name that is taken gets two underscores and the first six digits of the SHA-256 of the field's own name.

    So a column depends on the names of its own record only, and a field that is added later renames no earlier column.
    """
    columns: dict[str, str] = {}
    taken: set[str] = set()
    for name in fields:
        column = REFUSED_CHARACTERS.sub("_", name) or "_"
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        digits = 6
        chosen = column
        while chosen.lower() in taken:
            chosen = f"{column}__{digest[:digits]}"
            digits += 1
        columns[name] = chosen
        taken.add(chosen.lower())
    return columns


def table_type(kind: T.DataType) -> T.DataType:
    """Return a type with the names that a Delta table can have, for a cast: fields keep their places.

    Decode with the struct itself, because keys in JSON are the names of the properties, and cast the result to this
    type; Spark casts structs by place.
    """
    if isinstance(kind, T.StructType):
        columns = column_names(kind.fieldNames())
        return T.StructType([T.StructField(columns[field.name], table_type(field.dataType)) for field in kind])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(table_type(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(kind.keyType, table_type(kind.valueType))
    return kind
