"""Be what a schema registry has under an id: immutable, so that it can be kept for ever."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["AVRO", "PROTOBUF", "JSON"]
LARGEST_ID = 2**31 - 1
"""Ids are Java's int; some registries answer nonsense to others, which any garbage can contain."""


@dataclass(frozen=True)
class Reference:
    """Name another registered schema that this one imports under `name`."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class Registered:
    """Be one schema as registered.

    `text` is what the registry serves: Avro or JSON Schema as JSON; Protobuf as .proto text or as a base64
    FileDescriptorProto. `subjects` are the (subject, version) pairs that the id has; a registry may not say.
    """

    id: int
    kind: Kind
    text: str
    references: tuple[Reference, ...] = ()
    subjects: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Closed:
    """Be a schema with everything it refers to, however deep.

    `imports`: the name under which a schema is imported -> its text, dependencies before those that need them. Names
    come from whoever registered the schema: they are keys and never paths.
    """

    schema: Registered
    imports: dict[str, str] = field(default_factory=dict)
