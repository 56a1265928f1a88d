"""Name what two registered schemas disagree on, so that one sentence says it everywhere."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger("router")


@dataclass(frozen=True)
class Incompatible:
    """One place where no single table column can hold what two schema versions write.

    `field` is the dotted path of the column from the record's root ("" is the record
    itself; `[]` steps into an array's items, `{}` into a map's values). `old` and `new`
    name the two versions as the caller named them (such as "id 7 version 2"), `what` says
    what differs, in words and without any value of the data.
    """

    field: str
    old: str
    new: str
    what: str

    def __str__(self) -> str:
        where = f"field {self.field!r}" if self.field else "the record itself"
        return f"{where} differs between {self.old} and {self.new}: {self.what}"


def refusals(findings: Iterable[Incompatible]) -> dict[str, str]:
    """Return a reason for each version that was refused, its first finding, and warn of it."""
    reasons: dict[str, str] = {}
    for finding in findings:
        if finding.new not in reasons:
            log.warning("incompatible schemas: %s; its records become dead letters", finding)
            reasons[finding.new] = str(finding)
    return reasons
