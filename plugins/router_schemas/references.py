"""Collect what a schema refers to, however deep."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router_schemas.client import Client
    from router_schemas.on_disk import OnDisk
    from router_schemas.records import Reference, Registered

DEEPEST = 64
"""References that lead from one to the next."""
MOST_IMPORTS = 1000


class Unusable(Exception):  # noqa: N818 - like NotFound, it says what was found
    """Say why the references of a schema cannot be followed."""


class References:
    """Follow references in one registry; a version of a subject is fetched once. Any thread may ask."""

    def __init__(self, client: Client | OnDisk) -> None:
        self._client = client
        self._referents: dict[tuple[str, int], Registered] = {}
        self._locks: dict[tuple[str, int], Lock] = {}

    def imports(self, schema: Registered) -> dict[str, str]:
        """Return name -> text of all that a schema refers to, dependencies first; raise Unusable.

        What is imported without a reference (`google/protobuf/timestamp.proto`) is absent: readers have it.
        """
        chosen: dict[str, tuple[Reference, Registered]] = {}
        seen: set[Reference] = set()
        level = list(schema.references)
        for _ in range(DEEPEST):
            fresh = [reference for reference in dict.fromkeys(level) if reference not in seen]
            seen.update(fresh)
            if len(seen) > MOST_IMPORTS:
                raise Unusable(f"it refers to more than {MOST_IMPORTS} schemas")
            level = []
            for reference in fresh:
                referent = self._referent(reference)
                _choose(chosen, reference, referent)
                level += referent.references
        if not seen.issuperset(level):
            raise Unusable(f"its references are more than {DEEPEST} deep")
        return {name: chosen[name][1].text for name in _ordered(chosen)}

    def _referent(self, reference: Reference) -> Registered:
        key = (reference.subject, reference.version)
        with self._locks.setdefault(key, Lock()):
            if key not in self._referents:
                self._referents[key] = self._client.version(*key)
            return self._referents[key]


def _choose(chosen: dict[str, tuple[Reference, Registered]], reference: Reference, referent: Registered) -> None:
    """Let a name mean one schema.

    Where a schema and what it imports ask for two versions of one subject, the newer one serves both: that is how
    shared definitions grow.
    """
    before, other = chosen.get(reference.name, (reference, referent))
    if before.subject == reference.subject:
        newer = before.version > reference.version
        chosen[reference.name] = (before, other) if newer else (reference, referent)
    elif other.text != referent.text:
        subjects = f"{before.subject[:100]!r} and {reference.subject[:100]!r}"
        raise Unusable(f"{reference.name[:100]!r} means two different schemas, of {subjects}")


def _ordered(chosen: dict[str, tuple[Reference, Registered]]) -> list[str]:
    """Return the names, each after those that it needs."""
    needs = {name: [one.name for one in referent.references] for name, (_, referent) in chosen.items()}
    try:
        return [*TopologicalSorter(needs).static_order()]
    except CycleError as cycle:
        circle = " -> ".join(repr(name[:100]) for name in cycle.args[1][:10])
        raise Unusable(f"its references go in a circle: {circle}") from None
