"""Tell which type and which field of a new version is which of those there were."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router_schemas.avro.schema import Definition, Field, Record


def same_type(have: Definition, come: Definition) -> bool:
    """Say whether a type under a name not seen before is another version of one that there is.

    Avro's rule ("Schema Resolution"): the name without its namespace, or an alias.
    """
    if type(have) is not type(come):
        return False
    short = have.name.rpartition(".")[2] == come.name.rpartition(".")[2]
    return short or not {have.name, *have.aliases}.isdisjoint(come.aliases)


def same_fields(have: Record, come: Record) -> dict[str, Field]:
    """Return the new version's field for each name of a field that there was, where it has one.

    A name goes before an alias; aliases of fields there were are the names that versions wrote them under. Raises
    ValueError when two fields would be one column.
    """
    names = {field.name for field in have.fields}
    former = {alias: field.name for field in have.fields for alias in field.aliases}
    found = {field.name: field for field in come.fields if field.name in names}
    for field in come.fields:
        if field.name in names:
            continue
        ours = former.get(field.name)
        if ours is None:
            aliased = (former.get(alias, alias) for alias in field.aliases)
            ours = next((name for name in aliased if name in names and name not in found), None)
        elif ours in found:
            raise ValueError(f"{found[ours].name} and {field.name} are one column, by an alias of another version")
        if ours is not None:
            found[ours] = field
    return found
