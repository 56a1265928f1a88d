"""Call what a record was written with by a text that people can read: it stands in logs and beside the checkpoint.

| a record was written with | text |
|---|---|
| schema 17 of the registry, its first or only message | `schema 17` |
| another message of it, by index path or full name | `message 0.1 of schema 17`, `message games.Bet of schema 17` |
| the schema with a GUID | `schema f3a1b8de-0f2a-4b8e-9d0b-7d5d7a1d7b11` |
| a message of the one file that there is | `message games.Bet` |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Sequence

VALUE_HEADER = "__value_schema_id"
KEY_HEADER = "__key_schema_id"
"""Record headers that Confluent's clients put GUIDs into."""
FULL_NAME = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
"""Names with dots between them: the full name of a record or message, or a path of fields."""
FIRST = (0,)
"""The index path of a file's first message."""
_GUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_TEXT = re.compile(rf"(?:message (?P<message>[^ ]+))?(?:(?:^| of )schema (?:(?P<id>\d{{1,10}})|(?P<guid>{_GUID})))?")


@dataclass(frozen=True)
class Place:
    """Be a message of a schema. `message` is an index path (`0.1`), a full name, or empty: the first or only one."""

    schema: int | UUID | None = None
    message: str = ""

    def __str__(self) -> str:
        schema = "" if self.schema is None else f"schema {self.schema}"
        message = f"message {self.message}" if self.message else ""
        return " of ".join(filter(None, (message, schema)))

    @staticmethod
    def of(text: str) -> Place:
        """Return the place that a text calls; raise ValueError for any other text."""
        found = _TEXT.fullmatch(text)
        if found is None or not text:
            raise ValueError(f"{text[:100]!r} is no place of a schema; one is called such as `schema 17`")
        number, guid = found["id"], found["guid"]
        return Place(int(number) if number else UUID(guid) if guid else None, found["message"] or "")

    @property
    def path(self) -> tuple[int, ...] | None:
        """Return the index path of the message; None where it is called by its name."""
        if not self.message:
            return FIRST
        steps = self.message.split(".")
        return tuple(map(int, steps)) if all(step.isdecimal() for step in steps) else None


def dotted(path: Sequence[int]) -> str:
    """Return an index path as the message of a place."""
    return "" if tuple(path) == FIRST else ".".join(map(str, path))
