"""The tables of a topic's records: by the field that says the kind, with names that tables can have, and their keys."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from router.api.columns import quote_identifier, sql_text
from router.table_names import is_usable_name, to_underscores
from router_init.columns import Column
from router_init.kinds import FEWEST_RECORDS, Candidate, find_candidates, value_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from router_init.formats import Found

LAYER = "silver"
OTHER = "other"
"""The table of records that do not say their kind."""
LONGEST_PART = 60
"""Characters of a topic or a kind in names of routes and tables."""
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A name that SQL takes without backticks."""
CANDIDATES_SHOWN = 4


@dataclass(frozen=True)
class Table:
    """What the tables of a topic's records are called: by the value of a field, or all the same."""

    found: Found
    base: str
    """The name of the one table if there are no kinds."""
    prefix: str
    """What stands before a kind in the name of its table."""

    @cached_property
    def records(self) -> Column:
        """Return the records as one column; their labels are their numbers."""
        events = [event.fields for event in self.found.events]
        return Column([*range(len(events))], [*events])

    @cached_property
    def candidates(self) -> list[Candidate]:
        """Return the fields that may say the kind, the best first."""
        return find_candidates(self.records)

    @cached_property
    def kind(self) -> Candidate:
        """Return the field that says the kind; one without a path if none does."""
        # Rows of a test have only columns that a hint names, and a hint names all fields of a column.
        deepest = 1 if self.found.decoder == "rows" else 2
        saying = (candidate for candidate in self.candidates if candidate.says_kind and len(candidate.path) <= deepest)
        return next(saying, Candidate())

    @cached_property
    def parts(self) -> dict[str, str]:
        """Return kind -> the part of the table's name that it makes; the most frequent ones choose first."""
        parts: dict[str, str] = {}
        for value, _ in sorted(self.kind.values.items(), key=lambda pair: (-pair[1], pair[0])):
            part = fold_text(value)
            stem = part.strip("_")[:LONGEST_PART] or "kind"
            number = 1
            while not is_usable_name(f"{self.prefix}{part}") or part in (OTHER, *parts.values()):
                number += 1
                part = f"{stem}_{number}"
            parts[value] = part
        return parts

    @property
    def path(self) -> str:
        """Return the field that says the kind, in SQL."""
        return ".".join(["event", *map(quote_name, self.kind.path)])

    @property
    def is_plain(self) -> bool:
        """Return whether all values can name tables as they are, and every record has one."""
        is_complete = self.kind.values.total() == len(self.found.events)
        has_plain_names = all(map(PLAIN_NAME.fullmatch, self.kind.path))
        return is_complete and has_plain_names and all(part == value.lower() for value, part in self.parts.items())

    def expression(self) -> str:
        """Return the SQL that makes a kind a part of a table's name, with functions that tasks evaluate themselves."""
        name = f"lower({self.path})"
        for sign in sorted(set(re.findall(r"(?=[\x00-\x7f])\W", "".join(self.parts)))):
            name = f"replace({name}, {quote_text(sign)}, '_')"
        cases = ""
        for value, part in self.parts.items():
            if part != fold_text(value) or not value.isascii():
                cases += f" WHEN {quote_text(value)} THEN '{part}'"
        if cases:
            name = f"CASE {self.path}{cases} ELSE {name} END"
        return f"coalesce(nullif({name}, ''), '{OTHER}')"

    def name_of(self, event: Mapping[str, Any]) -> str:
        """Return the table of an event."""
        if not self.kind.path:
            return f"{LAYER}.{self.base}"
        return f"{self.prefix}{self.parts.get(value_at(event, self.kind.path), OTHER)}"

    @property
    def names(self) -> list[str]:
        """Return the name of each record's table."""
        return [self.name_of(event.fields) for event in self.found.events]

    @cached_property
    def keys(self) -> dict[str, Counter[Any]]:
        """Return the fields that may be keys, with their values: whole numbers and texts in nearly all records."""
        keys = {}
        for name, column in self.records.inside.items():
            # A few records may have another type there.
            values = Counter(value for value in column.values if type(value) in (str, int) and value != "")
            if values.total() >= FEWEST_RECORDS * len(self.found.events) and PLAIN_NAME.fullmatch(str(name)):
                keys[str(name)] = values
        return dict(sorted(keys.items()))

    @cached_property
    def latest(self) -> str | None:
        """Return the field that is the key of the records, if their topic keeps the newest record of a key only."""
        for name in self.keys if self.found.sample.compacted else ():
            equal = sum(str(event.fields.get(name)).encode() == event.key for event in self.found.events)
            if equal >= FEWEST_RECORDS * len(self.found.events):
                return name
        return None

    def describe_candidates(self) -> Iterator[str]:
        """Yield a line for the field that says the kind, and for the next that could."""
        for candidate in self.candidates[:CANDIDATES_SHOWN]:
            says = "says the kind" if candidate is self.kind else "could say the kind"
            yield f"event.{'.'.join(candidate.path)} {says}: {candidate}"


def plan_tables(name: str, found: Sequence[Found]) -> tuple[Table, ...]:
    """Return the tables of each topic."""
    tables: dict[str, Table] = {}
    for of_topic in found:
        base = to_underscores(name)
        prefix = f"{LAYER}."
        if len(found) > 1:
            base = re.sub(r"^[^a-z]+", "", fold_text(of_topic.sample.name)).strip("_")[:LONGEST_PART] or "topic"
            while base in tables:  # of `a.b` and `a-b`
                base += "_2"
            prefix = f"{LAYER}.{base}_"
        table = Table(of_topic, base, prefix)
        if of_topic.decoder == "json" and Column(table.names, table.records.values).names_grow:
            seen = "JSON objects whose names are data: no columns can be made of them"
            table = Table(replace(of_topic, decoder="none", seen=seen, events=()), base, prefix)
        tables[base] = table
    return tuple(tables.values())


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
