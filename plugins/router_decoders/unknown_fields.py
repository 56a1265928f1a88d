"""Fields of JSON objects that a schema lacks: looked for in a few records of every batch, and reported once.

A parser that knows its fields passes over the others without a trace, which is what makes it fast. So some records are
parsed once more, without a schema. Tasks count what they find in an accumulator, and the driver logs a field when the
first task that has met it ends.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark import AccumulatorParam, SparkContext, TaskContext

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.accumulators import Accumulator

    from router_decoders.json_types import Shape

logger = logging.getLogger(__name__)
LOOKED_AT = 8
"""Records of some thousand that are looked at: half a percent of the time that decoding takes."""
MOST = 50
"""Different fields that are reported; keys made of data would be as many as there are records."""
LONGEST = 120
"""Characters of a field's name that are kept."""
ALL = ""
"""What counts the records looked at, beside the fields: a path is never empty but for a key without a name."""


class FieldCounts(AccumulatorParam[dict[str, int]]):
    """Counts of records by the fields that a schema lacks, added up on the driver, which logs each field once."""

    def zero(self, value: dict[str, int]) -> dict[str, int]:
        """Return no counts."""
        return {}

    def addInPlace(self, value1: dict[str, int], value2: dict[str, int]) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Add the second counts to the first ones, and return these."""
        known = len(value1.keys() - {ALL})
        new = sorted(value2.keys() - value1.keys() - {ALL})[: MOST - known]
        for path in {ALL, *new, *value1}:
            value1[path] = value1.get(path, 0) + value2.get(path, 0)
        if TaskContext.get() is None:
            _report(new, value2, is_last=known + len(new) == MOST)
        return value1


def _report(new: Sequence[str], counts: dict[str, int], *, is_last: bool) -> None:
    for path in new:
        what = "the schema lacks the field %s, which %d of %d records have that were looked at; it stays in bronze"
        logger.info(what, path, counts[path], counts[ALL])
    if new and is_last:
        logger.info("the schema lacks %d fields of the records by now; no other is named", MOST)


def field_counts() -> Accumulator[dict[str, int]] | None:
    """Return what tasks count unknown fields in; None where no Spark runs. Runs on the driver."""
    context = SparkContext._active_spark_context
    return None if context is None else context.accumulator({}, FieldCounts())


def look(texts: Sequence[bytes | None], shape: Shape, counts: Accumulator[dict[str, int]]) -> None:
    """Count the fields that a shape lacks in a few of some texts. Runs on executors."""
    found: Counter[str] = Counter()
    for text in texts[:: max(1, len(texts) // LOOKED_AT)]:
        if text is not None:
            found.update({ALL, *(path[:LONGEST] for path in _unknown_in(text, shape))})
    if len(found) > 1:
        counts.add(dict(found))


def _unknown_in(text: bytes, shape: Shape) -> set[str]:
    try:
        return set(_paths(msgspec.json.decode(text), shape, ""))
    except Exception:  # not JSON, or nested too deep for Python: decoding decides about it
        return set()


def _paths(value: Any, shape: Shape, path: str) -> Iterator[str]:
    """Yield the unknown fields of a value: `player.level`, `bets[].odds` for those of elements."""
    if shape.kind == "struct" and isinstance(value, dict):
        known = dict(shape.fields)
        for name, one in value.items():
            place = f"{path}.{name}" if path else name
            if name in known:
                yield from _paths(one, known[name], place)
            else:
                yield place
    elif shape.kind == "array" and isinstance(value, list):
        for one in value:
            yield from _paths(one, shape.inner, f"{path}[]")
