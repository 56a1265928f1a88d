"""Say where a schema comes from: for findings, for the order of versions, and for the columns beside an event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router_schemas.records import Closed


@dataclass(frozen=True)
class Origin:
    """Be a version of a subject, or a file. `label` is what findings call it; a file and some registries have less."""

    label: str
    id: int | None = None
    subject: str | None = None
    version: int | None = None

    @staticmethod
    def of(closed: Closed) -> Origin:
        """Return the origin of a registered schema; of several subjects the first is named."""
        number = closed.schema.id
        if not closed.schema.subjects:
            return Origin(f"schema {number}", number)
        subject, version = closed.schema.subjects[0]
        return Origin(f"{subject} version {version} (schema {number})", number, subject, version)

    @property
    def age(self) -> tuple[str, int]:
        """Return what versions are sorted by: subject and version, or the id where a registry tells neither."""
        return (self.subject or "", self.version or self.id or 0)
