"""The field that says of what kind a record is: its text predicts which other fields are there.

A candidate is a text of 2 to 500 values that at least 95 % of the records have. Its score is the share of what is open
about the presence of all other fields that its value tells: the sum of their mutual information, each less what as many
values would tell by chance, over the sum of their entropies. (Mutual information of samples is too high by
(values - 1) / (2 n ln 2) bits: Miller, "Note on the bias of information estimates", 1955.)
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router_init.observed import is_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Path = tuple[str, ...]

FEWEST_VALUES = 2
MOST_VALUES = 500
FEWEST_RECORDS = 0.95
"""Share of the records that have the field."""
LONGEST_VALUE = 200
DEPTH = 2
"""Fields of fields are looked at, and nothing deeper."""
CHANCE = 3
"""Times what chance would tell on average: then a field says nothing about another."""
BEST_GUESSES = ("type", "kind", "event", "event_type", "eventtype", "event_name", "record_type", "message_type")
"""Names of fields that say a kind where presence tells nothing, since records of all kinds have the same fields."""
LEAST_SCORE = 0.1
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
    tracked = counts.most_common(MOST_TRACKED)
    open_bits = {path: _entropy(count / len(records)) for path, count in tracked if count < len(records)}
    told: dict[Path, dict[Path, float]] = {}
    for path, of_path in values.items():
        is_some = FEWEST_VALUES <= len(of_path) <= MOST_VALUES and of_path.total() >= FEWEST_RECORDS * len(records)
        # Values that go on coming are no kinds: each record would be its own.
        grows = sum(count == 1 for count in of_path.values()) * 10 > of_path.total()
        is_moment = all(map(is_time, of_path))
        if path not in refused and is_some and not grows and not is_moment:
            told[path] = _tell(path, records, open_bits)
    # What nothing tells below the top are the names of an object that are data.
    tellable = {path for path in open_bits if len(path) == 1}.union(*told.values())
    total = math.fsum(open_bits[path] for path in tellable)
    candidates = [Candidate(path, values[path], sum(bits.values()) / (total or 1)) for path, bits in told.items()]
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


def _tell(path: Path, records: Sequence[Mapping[Path, Any]], open_bits: Mapping[Path, float]) -> dict[Path, float]:
    """Return the other fields of whose presence a field's value tells more than chance, with the bits."""
    of_value: Counter[str] = Counter()
    together: Counter[tuple[str, Path]] = Counter()
    others = {other for other in open_bits if other[: len(path)] != path and path[: len(other)] != other}
    for fields in records:
        value = fields.get(path, "")
        of_value[value] += 1
        together.update((value, other) for other in fields.keys() & others)
    remaining: dict[Path, float] = defaultdict(float)
    for (value, other), count in together.items():
        remaining[other] += of_value[value] / len(records) * _entropy(count / of_value[value])
    chance = CHANCE * (len(of_value) - 1) / (2 * len(records) * math.log(2))
    told = {other: open_bits[other] - remaining[other] - chance for other in others}
    return {other: bits for other, bits in told.items() if bits > 0}


def _entropy(share: float) -> float:
    """Return the bits of a yes that comes with a probability."""
    if share <= 0 or share >= 1:
        return 0.0
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)
