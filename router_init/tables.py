"""The tables of a topic's records: by the field that says the kind, with names that tables can have, and their keys.

The text of that field predicts which other fields are there. A candidate is a text of 2 to 500 values that at least
95 % of the records have. Its score is the share of what is open about the presence of all other fields that its value
tells: the sum of their mutual information, each less what the same texts in another order would tell by chance, over
the sum of their entropies, as far as any candidate tells of them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import numpy as np

from router.api.columns import quote_identifier, sql_text
from router.table_names import is_usable_name, to_underscores
from router_init.observed import Observed, is_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from router_init.formats import Found

    Floats = NDArray[np.float64]

Path = tuple[str, ...]
"""A field, or a field of a field: nothing deeper is looked at."""
LAYER = "silver"
OTHER = "other"
"""The table of records that do not say their kind."""
LONGEST_PART = 60
"""Characters of a topic or a kind in names of routes and tables."""
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A name that SQL takes without backticks."""
CANDIDATES_SHOWN = 4
KINDS = range(2, 501)
"""How many values a field may have that says the kind."""
FEWEST_RECORDS = 0.95
"""Share of the records that have the field."""
LONGEST_VALUE = 200
CHANCE = 1.5
"""Times what texts in another order tell: then a field says nothing about another."""
BEST_GUESSES = ("type", "kind", "event", "event_type", "eventtype", "event_name", "record_type", "message_type")
"""Names of fields that say a kind where presence tells nothing, since records of all kinds have the same fields."""
SHUFFLES = 4
"""Of few records one order may tell much."""
LEAST_SCORE = 0.05
MOST_TRACKED = 2000
"""Fields whose presence is looked at, the most frequent ones; objects with data for names have any number."""


@dataclass(frozen=True)
class Candidate:
    """A field that may say the kind: its values with their numbers, and the share that they tell of what others are.

    Without a path it is none: records have no kinds.
    """

    path: Path = ()
    values: Counter[str] = field(default_factory=Counter)
    score: float = 0.0

    @property
    def is_guessed(self) -> bool:
        """Return whether the field is called as those that say a kind are."""
        return self.path[-1].lower() in BEST_GUESSES

    def __str__(self) -> str:
        records = self.values.total()
        return f"{len(self.values):,} values in {records:,} records, {self.score:.0%} of which other fields are there"


@dataclass(frozen=True)
class Table:
    """What the tables of a topic's records are called: by the value of a field, or all the same."""

    found: Found
    base: str
    """The name of the route, and of the one table if there are no kinds."""
    prefix: str
    """What stands before a kind in the name of its table."""

    @cached_property
    def values(self) -> dict[Path, Counter[Any]]:
        """Return the texts and whole numbers of each field, with how many records have them."""
        return count_values([list_fields(event.fields) for event in self.found.events])

    @cached_property
    def candidates(self) -> list[Candidate]:
        """Return the fields that may say the kind, the best first."""
        return find_candidates([list_fields(event.fields) for event in self.found.events], self.values)

    @cached_property
    def kind(self) -> Candidate:
        """Return the field that says the kind; one without a path if none does."""
        saying = (candidate for candidate in self.candidates if candidate.score >= LEAST_SCORE or candidate.is_guessed)
        return next(saying, Candidate())

    @cached_property
    def parts(self) -> dict[str, str]:
        """Return kind -> the part of the table's name that it makes; the most frequent ones choose first."""
        parts: dict[str, str] = {}
        for value, _ in self.kind.values.most_common():
            part = fold_text(value)
            stem = part.strip("_")[:LONGEST_PART] or "kind"
            for name in chain([part], (f"{stem}_{number}" for number in count(2))):
                if is_usable_name(f"{self.prefix}{name}") and name not in (OTHER, *parts.values()):
                    parts[value] = name
                    break
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
        others = {value: part for value, part in self.parts.items() if part != fold_text(value) or not value.isascii()}
        if others:
            cases = [f"WHEN {quote_text(value)} THEN '{part}'" for value, part in others.items()]
            name = f"CASE {self.path} {' '.join(cases)} ELSE {name} END"
        return f"coalesce(nullif({name}, ''), '{OTHER}')"

    def name_of(self, event: Mapping[str, Any]) -> str:
        """Return the table of an event."""
        if not self.kind.path:
            return f"{LAYER}.{self.base}"
        return f"{self.prefix}{self.parts.get(list_fields(event).get(self.kind.path, ''), OTHER)}"

    @cached_property
    def keys(self) -> dict[str, Counter[Any]]:
        """Return the fields that may be keys, with their values: whole numbers and texts in nearly all records."""
        least = FEWEST_RECORDS * len(self.found.events)
        plain = {path: values for path, values in self.values.items() if len(path) == 1 and None not in values}
        always = {path[0]: values for path, values in plain.items() if values.total() >= least}
        return {name: values for name, values in sorted(always.items()) if PLAIN_NAME.fullmatch(name)}

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

    @cached_property
    def observed(self) -> list[Observed]:
        """Return what was observed of the JSON objects of each table."""
        by_table: dict[str, Observed] = defaultdict(Observed)
        for event in self.found.events if self.found.decoder == "json" else ():
            by_table[self.name_of(event.fields)].add(event.fields)
        return [*by_table.values()]


def plan_tables(name: str, found: Sequence[Found]) -> tuple[Table, ...]:
    """Return the tables of each topic."""
    tables: dict[str, Table] = {}
    for of_topic in found:
        base = to_underscores(name)
        prefix = f"{LAYER}."
        if len(found) > 1:
            base = re.sub(r"^[^a-z]+", "", fold_text(of_topic.sample.name))[:LONGEST_PART] or "topic"
            while base in tables:  # of `a.b` and `a-b`
                base += "_2"
            prefix = f"{LAYER}.{base}_"
        table = Table(of_topic, base, prefix)
        if any(observed.names_grow for observed in table.observed):
            seen = "JSON objects whose names are data: no columns can be made of them"
            table = Table(replace(of_topic, decoder="none", seen=seen, events=()), base, prefix)
        tables[base] = table
    return tuple(tables.values())


def list_fields(event: Mapping[str, Any]) -> dict[Path, Any]:
    """Return the fields of an event that have a value, and those of its objects."""
    fields: dict[Path, Any] = {}
    for name, value in event.items():
        fields[name,] = value
        if isinstance(value, dict):
            fields |= {(name, inner_name): inner for inner_name, inner in value.items()}
    # Change events have both states of a row, one of them null.
    return {path: value for path, value in fields.items() if value not in (None, "")}


def count_values(records: Sequence[Mapping[Path, Any]]) -> dict[Path, Counter[Any]]:
    """Return the texts and whole numbers of each field, with how many records have them; all others are None."""
    values: dict[Path, Counter[Any]] = defaultdict(Counter)
    for fields in records:
        for path, value in fields.items():
            values[path][value if type(value) in (str, int) else None] += 1
    return values


def find_candidates(records: Sequence[Mapping[Path, Any]], values: Mapping[Path, Counter[Any]]) -> list[Candidate]:
    """Return the fields that may say of what kind a record is, the best first."""
    tracked = sorted(values, key=lambda path: values[path].total(), reverse=True)[:MOST_TRACKED]
    presence = np.zeros((len(records), len(tracked)))
    for number, path in enumerate(tracked):
        presence[:, number] = [path in fields for fields in records]
    told = {}
    shuffle = np.random.default_rng(0)
    for path, of_path in values.items():
        if _are_kinds(of_path, len(records)):
            # A field says nothing about what is in it, and about what it is in.
            others = [other[: len(path)] != path and path[: len(other)] != other for other in tracked]
            texts = np.array([fields.get(path, "") for fields in records])
            by_chance = [_tell(shuffle.permutation(texts), presence) for _ in range(SHUFFLES)]
            told[path] = np.maximum(_tell(texts, presence) - CHANCE * np.mean(by_chance, axis=0), 0) * others
    # What no field tells is chance, as the names of an object that are data.
    tellable = np.any([bits > 0 for bits in told.values()], axis=0)
    total = (_entropy(presence.mean(axis=0)) * tellable).sum() if told else 0.0
    candidates = [Candidate(path, values[path], float(bits.sum() / (total or 1))) for path, bits in told.items()]
    return sorted(candidates, key=_order)


def _are_kinds(values: Counter[Any], records: int) -> bool:
    if not all(isinstance(value, str) and len(value) <= LONGEST_VALUE for value in values):
        return False
    is_some = len(values) in KINDS and values.total() >= FEWEST_RECORDS * records
    # Values that go on coming are no kinds: each record would be its own.
    grows = sum(count == 1 for count in values.values()) * 10 > values.total()
    return is_some and not grows and not all(map(is_time, values))


def _order(candidate: Candidate) -> tuple[float, bool, int, int, Path]:
    # Between fields that tell the same, such as a name and its number: the plainest.
    score = -round(candidate.score, 2)
    return (score, not candidate.is_guessed, len(candidate.path), len(candidate.values), candidate.path)


def _tell(texts: NDArray[np.str_], presence: Floats) -> Floats:
    """Return the mutual information of a text and the presence of each field, in bits."""
    bits = _entropy(presence.mean(axis=0))
    for kind in np.unique(texts):
        of_kind = presence[texts == kind]
        bits -= len(of_kind) / len(texts) * _entropy(of_kind.mean(axis=0))
    return bits


def _entropy(shares: Floats) -> Floats:
    """Return the bits of a yes that comes with a probability."""
    inside: Floats = shares.clip(1e-12, 1 - 1e-12)
    return -inside * np.log2(inside) - (1 - inside) * np.log2(1 - inside)


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
