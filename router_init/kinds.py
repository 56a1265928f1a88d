"""The field that says of what kind a record is: its text predicts which other fields are there.

A candidate is a text of 2 to 500 values that at least 95 % of the records have. Its score is the share of what is open
about the presence of all other fields that its value tells: the sum of their mutual information, each less what the
same texts in other orders tell by chance, over the sum of the entropies of those that any candidate tells of.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from router_init.observed import is_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Path = tuple[str, ...]

FEWEST_VALUES = 2
MOST_VALUES = 500
FEWEST_RECORDS = 0.95
"""Share of the records that have the field."""
LONGEST_VALUE = 200
DEPTH = 2
"""Fields of fields are looked at, and nothing deeper."""
SHUFFLES = 8
"""Orders of the same texts: what the best of them tells is chance."""
BEST_GUESSES = ("type", "kind", "event", "event_type", "eventtype", "event_name", "record_type", "message_type")
"""Names of fields that say a kind where presence tells nothing, since records of all kinds have the same fields."""
LEAST_SCORE = 0.1
"""Of what is open about a field, or about all of them: a text that tells less tells nothing."""
MOST_TRACKED = 2000
"""Fields whose presence is looked at, the most frequent ones; objects with data for names have any number."""


@dataclass(frozen=True)
class Candidate:
    """A field that may say the kind: its values with their numbers, and the share that they tell of what others are."""

    path: Path
    values: Counter[str]
    score: float

    def __str__(self) -> str:
        records = self.values.total()
        return f"{len(self.values):,} values in {records:,} records, {self.score:.0%} of which other fields are there"


def find_candidates(events: Sequence[Mapping[str, Any]]) -> list[Candidate]:
    """Return the fields that may say of what kind an event is, the best first."""
    values: dict[Path, Counter[str]] = defaultdict(Counter)
    refused = set()
    counts: Counter[Path] = Counter()
    records = [dict(_walk(event)) for event in events]
    for fields in records:
        counts.update(fields.keys())
        for path, value in fields.items():
            if not isinstance(value, str) or len(value) > LONGEST_VALUE:
                refused.add(path)
            elif value:
                values[path][value] += 1
    tracked = [path for path, _ in counts.most_common(MOST_TRACKED)]
    presence = np.zeros((len(records), len(tracked)))
    for number, path in enumerate(tracked):
        presence[:, number] = [path in fields for fields in records]
    open_bits = _entropy(presence.sum(axis=0) / max(1, len(records)))
    told: dict[Path, Floats] = {}
    shuffle = np.random.default_rng(0)
    for path, of_path in values.items():
        is_some = FEWEST_VALUES <= len(of_path) <= MOST_VALUES and of_path.total() >= FEWEST_RECORDS * len(records)
        # Values that go on coming are no kinds: each record would be its own.
        grows = sum(count == 1 for count in of_path.values()) * 10 > of_path.total()
        if path in refused or not is_some or grows or all(map(is_time, of_path)):
            continue
        # A field says nothing about what is in it, and about what it is in.
        others = [other[: len(path)] != path and path[: len(other)] != other for other in tracked]
        texts = np.array([fields.get(path, "") for fields in records])
        by_chance = [_tell(shuffle.permutation(texts), presence) for _ in range(SHUFFLES)]
        bits = (_tell(texts, presence) - np.max(by_chance, axis=0)) * others
        told[path] = np.where(bits > LEAST_SCORE * open_bits, bits, 0)
    # What no field tells is chance, as the names of an object that are data.
    tellable = np.any([bits > 0 for bits in told.values()], axis=0)
    total = (open_bits * tellable).sum() if told else 0.0
    candidates = [Candidate(path, values[path], float(bits.sum() / (total or 1))) for path, bits in told.items()]
    return sorted(candidates, key=_order)


def choose(candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the candidate that says the kind; None if none does."""
    saying = (each for each in candidates if each.score >= LEAST_SCORE or each.path[-1].lower() in BEST_GUESSES)
    return next(saying, None)


def value_at(event: Mapping[str, Any], path: Path) -> Any:
    """Return a field, or a field of a field; None if it is not there."""
    return dict(_walk(event)).get(path)


def _order(candidate: Candidate) -> tuple[float, bool, int, int, Path]:
    guessed = candidate.path[-1].lower() in BEST_GUESSES
    # Between fields that tell the same, such as a name and its number: the plainest.
    return (-round(candidate.score, 2), not guessed, len(candidate.path), len(candidate.values), candidate.path)


def _walk(event: Mapping[str, Any], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    for name, value in event.items():
        path = (*above, name)
        if value is not None:  # change events have both states of a row, one of them null
            yield path, value
        if isinstance(value, dict) and len(path) < DEPTH:
            yield from _walk(value, path)


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
