"""Decide what the rows of a batch change in one table, where Delta on Spark reads and writes it. Runs on executors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from router.delta.conform import conformed
from router.delta.fitted import Unfit, fit
from router.delta.history import MOMENT
from router.delta.latest import OP
from router.delta.merge import condition
from router.delta.newer import SINCE
from router.delta.order import ordered
from router.delta.state import state_schema
from router.delta.upsert import as_kept, changed
from router.engine.columns import quoted
from router.engine.layout import DEAD_SCHEMA
from router.engine.letters import buried
from router.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.delta.latest import Changes
    from router.keyed import Keyed

STATE = "__state"
"""A struct column of what a task is given: what the table holds of a key; null in the rows of the batch."""
LETTER = "__letter"
TOLD = "__told"
BURIED, DELETION, REPORT = 100, 101, 102
"""What else than a change can stand in `__op`: a refused row, a deletion to be remembered, the report in `__told`."""


@dataclass(frozen=True)
class Question:
    """Be what a task is asked: a table's name and schema, how its rows are kept, and whose rows they are."""

    table: str
    have: pa.Schema
    keyed: Keyed
    route: str
    sink: str
    batch: int

    @property
    def answers(self) -> pa.Schema:
        """Return the columns of the answers: those of the table, and what says which answer a row is."""
        letter = pa.struct(list(DEAD_SCHEMA))
        more = pa.schema([(OP, pa.int8()), (SINCE, MOMENT), (LETTER, letter), (TOLD, pa.string())])
        return pa.schema([*(field.with_nullable(True) for field in self.have), *more])


def task(question: Question) -> Any:
    """Return the function of one task, for mapInArrow. It is given all rows of the table and what it holds of them."""

    def decide(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = [batch for batch in batches if batch.num_rows]
        if given:
            for answer in answers(question, pa.Table.from_batches(given)):
                yield from answer.combine_chunks().to_batches()

    return decide


def answers(question: Question, given: pa.Table) -> Iterator[pa.Table]:
    """Return the changes, the deletions, the refused rows and a report, each as answers."""
    held = given.column(STATE)
    rows = ordered(given.filter(pc.is_null(held)).drop_columns([STATE]), question.keyed)
    try:
        fitted = fit(rows, question.have, question.table, question.keyed)
    except TableError as error:
        told = {"failed": error.what, "unfit": isinstance(error, Unfit)}
        yield _answer(question, REPORT, pa.table({TOLD: [json.dumps(told)]}))
        return
    kept = as_kept(fitted.rows, question.have)
    changes = changed(kept, _state(held, kept, question.keyed), question.keyed)
    letters = buried(fitted.refused, question.route, question.sink, question.batch) if len(fitted.refused) else None
    yield conformed(changes.rows, question.answers)
    yield _answer(question, DELETION, changes.deletions)
    if letters is not None:
        yield _answer(question, BURIED, pa.table({LETTER: letters.to_struct_array()}))
    told = {"applied": len(fitted.rows), "refused": len(fitted.refused), **changes.counts, **_told(question, changes)}
    yield _answer(question, REPORT, pa.table({TOLD: [json.dumps(told)]}))


def _state(held: pa.ChunkedArray, rows: pa.Table, keyed: Keyed) -> pa.Table:
    """Return what the table holds, with the types of the rows."""
    schema = state_schema(rows.schema, keyed)
    present = held.filter(pc.is_valid(held)).combine_chunks()
    if isinstance(present, pa.ChunkedArray):
        return schema.empty_table()
    return conformed(pa.Table.from_batches([pa.RecordBatch.from_struct_array(present)]), schema)


def _told(question: Question, changes: Changes) -> dict[str, Any]:
    return {
        "remembered": len(changes.deletions),
        "ops": np.unique(np.asarray(changes.rows.column(OP))).tolist(),
        "condition": condition(changes.rows, question.keyed, quoted) if len(changes.rows) else "",
    }


def _answer(question: Question, op: int, rows: pa.Table) -> pa.Table:
    return conformed(rows.append_column(OP, pa.array([op] * len(rows), pa.int8())), question.answers)
