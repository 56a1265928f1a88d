"""Tell beside an event what it was written with, or why there is none. Runs on executors.

`written` has what is known of each place of the found ones, None where nothing is; it has the attributes of ABOUT and
`reason`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router_schemas.addresses import Addressed

ABOUT = pa.schema(
    [("schema_id", pa.int32()), ("schema_version", pa.int32()), ("subject", pa.string()), ("message", pa.string())]
)
"""What is known of an event's schema."""
ADDED = pa.schema([("_error", pa.string()), ("_wanted", pa.string()), *ABOUT])
"""What stands beside an event."""


def why(found: Addressed, written: Sequence[Any], only: str = "") -> pa.StringArray:
    """Return why rows have no event, as far as their frames and schemas say; null for the others.

    `only` names the message that is read where ids do not count.
    """
    missing = f"is not {only}, the only message that is read here" if only else "is not known yet"
    texts = [f"{place} {missing}" if one is None else one.reason for place, one in _pairs(found, written)]
    return pc.coalesce(found.reasons, _by_group(found, texts, pa.string()))


def wanted(found: Addressed, written: Sequence[Any], only: str = "") -> pa.StringArray:
    """Return the places of rows that are to be fetched."""
    places = [place if one is None and not only else None for place, one in _pairs(found, written)]
    return _by_group(found, places, pa.string())


def about(found: Addressed, written: Sequence[Any]) -> list[pa.Array]:
    """Return the columns of ABOUT. The id is there wherever a record names one."""
    ids, *columns = [
        _by_group(found, [getattr(one, field.name, None) for one in written], field.type) for field in ABOUT
    ]
    return [pc.coalesce(found.ids, ids), *columns]


def _pairs(found: Addressed, written: Sequence[Any]) -> list[tuple[str, Any]]:
    return list(zip(found.places, written, strict=True))


def _by_group(found: Addressed, values: Sequence[str | int | None], kind: pa.DataType) -> pa.Array:
    if all(value is None for value in values):
        return pa.nulls(len(found.groups), kind)
    at = np.where(found.groups >= 0, found.groups, len(values))
    return pa.array([*values, None], kind).take(pa.array(at))
