"""Know what the schemas of a registry wrote: a place (a schema, a message in it) that was seen keeps its meaning.

For the driver. A format says what a place is used for and how all uses are read together.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from router_schemas.records import Closed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from router_schemas.memory import Memory
    from router_schemas.records import Kind
    from router_schemas.schemas import Schemas, Unknown

HOLD = 30.0
"""Seconds for which a place stays unknown before it is asked for again."""
U = TypeVar("U")
M = TypeVar("M")


@dataclass
class Library(ABC, Generic[U, M]):
    """Hold what was learnt. `U` is what one place is used for, `M` what all are read with. `clock` is in seconds.

    A place is a text that begins with the schema's id; `/` and what the format needs may follow.
    """

    kind: ClassVar[Kind]

    schemas: Schemas
    memory: Memory
    subjects: tuple[str, ...] = ()
    clock: Callable[[], float] = time.monotonic
    uses: dict[str, U] = field(default_factory=dict)
    closed: dict[str, Closed] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, tuple[str, float]] = field(default_factory=dict)
    made: M | None = None

    @abstractmethod
    def use(self, place: str, closed: Closed) -> U:
        """Return what a place is used for; raise ValueError with the reason when it cannot be read."""

    @abstractmethod
    def make(self) -> M:
        """Return how all uses are read."""

    def __post_init__(self) -> None:
        self._learn(json.loads(self.memory.read(self._name) or b"[]"))

    @property
    def reasons(self) -> dict[str, str]:
        """Return why places cannot be read."""
        return {**self.faults, **{place: reason for place, (reason, _) in self.unknown.items()}}

    def refreshed(self, wanted: Iterable[str] = ()) -> M:
        """Return how to read all that is known and what is wanted; the same object when nothing is new.

        Looks for new versions of the subjects that are known. Raises RegistryAway where a wanted schema was never seen
        and the registry cannot be asked.
        """
        before = self._places()
        now = self.clock()
        self.unknown = {place: held for place, held in self.unknown.items() if held[1] > now}
        self._learn([*wanted, *self._new_versions()])
        if self.made is None or before != self._places():
            self.made = self.make()
            self.memory.write(self._name, json.dumps(sorted(self.uses)).encode())
        return self.made

    @property
    def _name(self) -> str:
        return f"{self.kind.lower()}-places.json"

    def _places(self) -> set[str]:
        return {*self.uses, *self.faults, *self.unknown}

    def _new_versions(self) -> list[str]:
        """Return places in new versions of subjects: those that older versions are used for, or the first."""
        used: dict[str, set[str]] = {subject: set() for subject in self.subjects}
        for place in self.uses:
            for subject, _ in self.closed[place].schema.subjects:
                used.setdefault(subject, set()).add(place.partition("/")[2])
        polled = ((number, inside) for subject, inside in used.items() for number in self.schemas.poll([subject]))
        return [self.place(number, one) for number, inside in polled for one in inside or {self.first}]

    first: ClassVar[str] = ""
    """What stands after the id in the place that a schema's records most likely are in."""

    @staticmethod
    def place(number: int, inside: str) -> str:
        """Return a place by its parts."""
        return f"{number}/{inside}" if inside else str(number)

    def _learn(self, places: Iterable[str]) -> None:
        new = [place for place in dict.fromkeys(places) if place not in self._places()]
        found = self.schemas.closed({_id(place) for place in new})
        for place in new:
            self._take(place, found[_id(place)])

    def _take(self, place: str, closed: Closed | Unknown) -> None:
        if not isinstance(closed, Closed):
            self.unknown[place] = closed.reason, self.clock() + HOLD
        elif closed.schema.kind != self.kind:
            self.faults[place] = f"schema {closed.schema.id} is {closed.schema.kind}, not {self.kind}"
        else:
            self.closed[place] = closed
            try:
                self.uses[place] = self.use(place, closed)
            except ValueError as fault:
                self.faults[place] = f"schema {closed.schema.id} cannot be used: {fault}"


def label(closed: Closed) -> str:
    """Return what a schema is called in findings."""
    if not closed.schema.subjects:
        return f"schema {closed.schema.id}"
    subject, version = closed.schema.subjects[0]
    return f"{subject} version {version} (schema {closed.schema.id})"


def age(closed: Closed) -> tuple[str, int]:
    """Return subject and version, by which schemas are sorted; a registry that tells neither orders by id."""
    return closed.schema.subjects[0] if closed.schema.subjects else ("", closed.schema.id)


def _id(place: str) -> int:
    return int(place.partition("/")[0])
