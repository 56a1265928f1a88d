"""Where a record was refused: the stages of dead letters, and what they mean. Options of commands and the table in
docs/reference/delivery.md take them from here.
"""

from __future__ import annotations

from enum import Enum


class Stage(str, Enum):
    """The stage of a dead letter, as its column `stage` has it."""

    READ = "read"
    DECODE = "decode"
    MATCH = "match"
    EXPECT = "expect"
    SELECT = "select"
    NAME = "name"
    SCHEMA = "schema"
    APPLY = "apply"

    __str__ = str.__str__
    """Texts have the value, not the member's name."""


MEANINGS = {
    Stage.READ: "its [source or its process](#records-that-cannot-be-read) cannot read it",
    Stage.DECODE: "the decoder could not make an event of it (nor of null, see `drop: nulls`), or raised on it",
    Stage.MATCH: "no route matches (unless `unmatched: drop`)",
    Stage.EXPECT: "an expectation with `otherwise: dead_letter` does not hold",
    Stage.SELECT: "the projection raised on this record",
    Stage.NAME: "the table's name breaks the [rule](tables.md#names), or the sink has all tables that it may have",
    Stage.SCHEMA: (
        "a value cannot become the type of its column or, if the table may not change, is too large for it; the row "
        "violates a constraint (NOT NULL, a CHECK, an invariant, the length of a VARCHAR); a text is not UTF-8, or a "
        "date or time is beyond the years 1 to 9999, also in a list, map or struct: readers would refuse the whole file"
    ),
    Stage.APPLY: (
        "a sink refused it: [Kafka](../how-to/write-to-kafka.md#what-is-promised), [other "
        "sinks](../how-to/databases-and-queues.md), [REST](rest.md#what-becomes-of-a-call). `upsert` refuses "
        "rows without a key, and rows that its table cannot take: NOT NULL, a CHECK, a value of another type"
    ),
}
"""Why a record is a dead letter of a stage, as Markdown for docs/reference/delivery.md."""
