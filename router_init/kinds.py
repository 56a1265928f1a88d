"""The field that says of what kind a record is: its text predicts which other fields are there.

A candidate is a text of 2 to 500 values that at least 95 % of the records have. Its score is the share of what is open
about the presence of all other fields that its value tells: the sum of their mutual information, each less what the
same texts in other orders tell by chance, over the sum of the entropies of those that any candidate tells of.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from router_init.columns import Column

    Floats = NDArray[np.float64]

Path = tuple[str, ...]
"""A field, or a field of a field: nothing deeper is looked at."""
KINDS = range(2, 501)
"""How many values a field may have that says the kind."""
FEWEST_RECORDS = 0.95
"""Share of the records that have the field."""
LONGEST_VALUE = 200
SHUFFLES = 8
"""Orders of the same texts: what the best of them tells is chance."""
LEAST_SCORE = 0.1
"""Of what is open about a field, or about all of them: a text that tells less tells nothing."""
BEST_GUESSES = ("type", "kind", "event", "event_type", "eventtype", "event_name", "record_type", "message_type")
"""Names of fields that say a kind where presence tells nothing, since records of all kinds have the same fields."""
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
    def says_kind(self) -> bool:
        """Return whether tables can be named after it."""
        return self.score >= LEAST_SCORE or self.is_guessed

    @property
    def is_guessed(self) -> bool:
        """Return whether the field is called as those that say a kind are."""
        return self.path[-1].lower() in BEST_GUESSES

    @property
    def rank(self) -> tuple[float, bool, int, int, Path]:
        """Return its place among the candidates; of those that tell the same the plainest is the first."""
        return (-round(self.score, 2), not self.is_guessed, len(self.path), len(self.values), self.path)

    def __str__(self) -> str:
        records = self.values.total()
        return f"{len(self.values):,} values in {records:,} records, {self.score:.0%} of which other fields are there"


def value_at(event: Any, path: Path) -> Any:
    """Return a field, or a field of a field; None if it is not there."""
    for name in path:
        event = event.get(name) if isinstance(event, dict) else None
    return event


def find_candidates(records: Column) -> list[Candidate]:
    """Return the fields that may say of what kind a record is, the best first; labels are the numbers of records."""
    columns: dict[Path, Column] = {}
    for name, column in records.inside.items():
        columns[str(name),] = column
        # Arrays may have a million elements, of which none is a field.
        inside = column.inside if column.kinds["object"] else {}
        for inner_name, inner in inside.items():
            if inner_name is not None:
                columns[str(name), inner_name] = inner
    texts = {path: column for path, column in columns.items() if _are_kinds(column, len(records.values))}
    if not texts:
        return []
    tracked = sorted(columns, key=lambda path: len(columns[path].present), reverse=True)[:MOST_TRACKED]
    presence = np.zeros((len(records.values), len(tracked)))
    for number, path in enumerate(tracked):
        presence[columns[path].present, number] = 1
    open_bits = _entropy(presence.mean(axis=0))
    told = {}
    for path, column in texts.items():
        # A field says nothing about what is in it, and about what it is in.
        others = [other[: len(path)] != path and path[: len(other)] != other for other in tracked]
        bits = _tell(column, presence) * others
        told[path] = np.where(bits > LEAST_SCORE * open_bits, bits, 0)
    # What no field tells inside of another one is chance, as the names of an object that are data.
    tellable = np.any([*told.values()], axis=0) | np.array([len(path) == 1 for path in tracked])
    total = (open_bits * tellable).sum() or 1
    candidates = [Candidate(path, texts[path].value_counts, float(bits.sum() / total)) for path, bits in told.items()]
    return sorted(candidates, key=lambda candidate: candidate.rank)


def _are_kinds(column: Column, records: int) -> bool:
    values = column.value_counts
    is_text = column.kinds.keys() <= {"null", "string", "timestamp"} and "string" in column.kinds
    is_always = len(values) in KINDS and values.total() >= FEWEST_RECORDS * records
    # Values that go on coming are no kinds: each record would be its own.
    grows = sum(count == 1 for count in values.values()) * 10 > values.total()
    # Addresses are of people, and no kinds, however few there are.
    is_private = any("@" in str(value) for value in values)
    return is_text and is_always and not (grows or is_private) and max(map(len, values)) <= LONGEST_VALUE


def _tell(column: Column, presence: Floats) -> Floats:
    """Return the bits that a text tells of the presence of each field, less those that it tells by chance."""
    texts = np.full(len(presence), "", object)
    texts[column.labels] = [value or "" for value in column.values]
    shuffle = np.random.default_rng(0)
    by_chance = [_mutual_information(shuffle.permutation(texts), presence) for _ in range(SHUFFLES)]
    bits: Floats = _mutual_information(texts, presence) - np.max(by_chance, axis=0)
    return bits


def _mutual_information(texts: NDArray[np.object_], presence: Floats) -> Floats:
    bits = _entropy(presence.mean(axis=0))
    for kind in np.unique(texts):
        of_kind = presence[texts == kind]
        bits -= len(of_kind) / len(texts) * _entropy(of_kind.mean(axis=0))
    return bits


def _entropy(shares: Floats) -> Floats:
    """Return the bits of a yes that comes with a probability."""
    inside: Floats = shares.clip(1e-12, 1 - 1e-12)
    return -inside * np.log2(inside) - (1 - inside) * np.log2(1 - inside)
