"""Find the schema and the payload of every record, by its wire format or as the whole value. Runs on executors.

Beside an event stand columns that say what it was written with, or why there is no event. In the functions that make
these, `written` has what is known of each writer's schema found, None where nothing is; it has the attributes of ABOUT
and `reason`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router_schemas.model import FIRST
from router_schemas.wire_format import NULL, REASONS, parse, payloads

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray


Frame = Literal["confluent", "none"]
WHOLE = ""
"""What values are called that name no schema: one schema wrote them all."""
_REASONS = pa.array([*REASONS[:NULL], "value is null", *REASONS[NULL + 1 :]], pa.string())


@dataclass(frozen=True)
class FramedRows:
    """Payloads and what they were written with, row by row.

    `groups`: the position in `writers`, -1 where a row has none for the reason in `reasons`. `ids`: the schema id that
    the row names, null where it names none.
    """

    payloads: pa.BinaryArray
    groups: NDArray[np.int64]
    writers: tuple[str, ...]
    reasons: pa.StringArray
    ids: pa.Int32Array


def framed_rows(
    records: pa.RecordBatch,
    frame: Frame,
    header: str,
    numbered: bool = True,
    indexed: bool | Collection[int | bytes] = True,
) -> FramedRows:
    """Return what records were written with. Needs the columns `value` and `headers`; never raises for a row.

    `header` is the name of the one that may hold a GUID. `numbered`: ids and GUIDs name schemas; otherwise these are
    ignored, and only the message index counts. `indexed`: which schemas have message indexes, as for `parse`.
    """
    values = records.column("value")
    if frame == "none":
        known = np.asarray(values.is_valid())
        groups = np.where(known, 0, -1).astype(np.int64)
        reasons = pa.array(["value is null"], pa.string()).take(pa.array(np.zeros(len(values), np.int8), mask=known))
        return FramedRows(values, groups, (WHOLE,), reasons, pa.nulls(len(values), pa.int32()))
    parsed = parse(values, indexed, headers=records.column("headers"), header=header)
    writers = tuple(str(key.writer) if numbered else at_index(key.path or FIRST) for key in parsed.keys)
    ids = pa.array(parsed.ids.astype(np.int32), mask=parsed.ids < 0)
    framed = (parsed.groups >= 0).all()
    reasons = pa.nulls(len(values), pa.string()) if framed else _REASONS.take(pa.array(parsed.status))
    return FramedRows(payloads(values, parsed), parsed.groups, writers, reasons, ids)


def at_index(path: tuple[int, ...]) -> str:
    """Return what a message is called by its index, in a schema without an id."""
    return f"message {'.'.join(map(str, path))}"


ABOUT = pa.schema(
    [("schema_id", pa.int32()), ("schema_version", pa.int32()), ("subject", pa.string()), ("message", pa.string())]
)
"""What is known of an event's schema."""
ADDED = pa.schema([("_error", pa.string()), ("_wanted", pa.string()), *ABOUT])
"""What stands beside an event."""


def why(found: FramedRows, written: Sequence[Any], only: str = "") -> pa.StringArray:
    """Return why rows have no event, as far as their prefixes and schemas say; null for the others.

    `only` names the message that is read where ids do not count.
    """
    missing = f"is not {only}, the only message that is read here" if only else "is not known yet"
    texts = [f"{writer} {missing}" if one is None else one.reason for writer, one in _pairs(found, written)]
    return pc.coalesce(found.reasons, _by_group(found, texts, pa.string()))


def wanted(found: FramedRows, written: Sequence[Any], only: str = "") -> pa.StringArray:
    """Return the writers' schemas that are to be fetched, by row."""
    writers = [writer if one is None and not only else None for writer, one in _pairs(found, written)]
    return _by_group(found, writers, pa.string())


def about(found: FramedRows, written: Sequence[Any]) -> list[pa.Array]:
    """Return the columns of ABOUT. The id is there wherever a record names one."""
    ids, *columns = [
        _by_group(found, [getattr(one, field.name, None) for one in written], field.type) for field in ABOUT
    ]
    return [pc.coalesce(found.ids, ids), *columns]


def _pairs(found: FramedRows, written: Sequence[Any]) -> list[tuple[str, Any]]:
    return list(zip(found.writers, written, strict=True))


def _by_group(found: FramedRows, values: Sequence[str | int | None], kind: pa.DataType) -> pa.Array:
    if all(value is None for value in values):
        return pa.nulls(len(found.groups), kind)
    at = np.where(found.groups >= 0, found.groups, len(values))
    return pa.array([*values, None], kind).take(pa.array(at))
