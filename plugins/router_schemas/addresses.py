"""Find what every record was written with, and its payload: by its frame, or as the whole value. Runs on executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from router_schemas.frames import NULL, REASONS, parse, payloads
from router_schemas.places import FIRST

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

Frame = Literal["confluent", "none"]
WHOLE = ""
"""The one place of values without a frame."""
_REASONS = pa.array([*REASONS[:NULL], "value is null", *REASONS[NULL + 1 :]], pa.string())


@dataclass(frozen=True)
class Addressed:
    """Hold payloads and what they were written with, row by row.

    `groups`: the position in `places`, -1 where a row has none for the reason in `reasons`. `ids`: the schema id that
    the row names, null where it names none.
    """

    payloads: pa.BinaryArray
    groups: NDArray[np.int64]
    places: tuple[str, ...]
    reasons: pa.StringArray
    ids: pa.Int32Array


def addressed(
    records: pa.RecordBatch,
    frame: Frame,
    header: str,
    numbered: bool = True,
    indexed: bool | Collection[int | bytes] = True,
) -> Addressed:
    """Return what records were written with. Needs the columns `value` and `headers`; never raises for a row.

    `header` is the name of the one that may hold a GUID. `numbered`: schemas are told by their ids and GUIDs; otherwise
    these are left aside, and the place is an index path. `indexed`: which schemas have index paths, as for `parse`.
    """
    values = records.column("value")
    if frame == "none":
        known = np.asarray(values.is_valid())
        groups = np.where(known, 0, -1).astype(np.int64)
        reasons = pa.array(["value is null"], pa.string()).take(pa.array(np.zeros(len(values), np.int8), mask=known))
        return Addressed(values, groups, (WHOLE,), reasons, pa.nulls(len(values), pa.int32()))
    frames = parse(values, indexed, headers=records.column("headers"), header=header)
    places = tuple(str(key.place) if numbered else at_path(key.path or FIRST) for key in frames.keys)
    ids = pa.array(frames.ids.astype(np.int32), mask=frames.ids < 0)
    framed = (frames.groups >= 0).all()
    reasons = pa.nulls(len(values), pa.string()) if framed else _REASONS.take(pa.array(frames.status))
    return Addressed(payloads(values, frames), frames.groups, places, reasons, ids)


def at_path(path: tuple[int, ...]) -> str:
    """Return the place of an index path in a schema without a number."""
    return f"message {'.'.join(map(str, path))}"
