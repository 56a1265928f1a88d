"""Find rows that violate a constraint of their table with Spark, if no task can evaluate the constraint.

Delta refuses a whole commit for one such row. So they are found before it: among staged rows, whose batch then lands
them in the quarantine, and among the rows of a quarantine, of which the release makes dead letters.
"""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from router.delta.replace_by_spark import staged_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, SparkSession

    from router.delta.commit import TableCommit
    from router.delta.lake import Lake

VIOLATES = "_violates"
"""The column with the condition that a row violates; null if the row may land."""
CONSTRAINT_CAUSE = "rows violate what only Spark can evaluate"
"""The begin of a blocked table's cause, if its release makes dead letters of some rows and lands the others."""
Conditions = dict[str, str]
"""The name of a condition -> its SQL."""


def with_violations(rows: DataFrame, schema: str, conditions: Conditions) -> DataFrame:
    """Add the column `_violates` to rows of a table: the first condition that is false or null.

    `schema` is the table's, as Delta's JSON: columns that the rows lack are filled in as Delta does. A condition that
    cannot be analysed on them is left to Delta. Lazy.
    """
    complete_rows = _with_all_columns(rows, schema)
    violated: list[Column] = []
    for name, sql in conditions.items():
        holds = F.coalesce(F.expr(sql), F.lit(False))
        try:
            complete_rows.select(holds)
        except AnalysisException:
            continue
        violated.append(F.when(~holds, F.lit(name)))
    first_violated = F.lit(None).cast("string")
    if violated:
        first_violated = F.coalesce(*violated)
    return complete_rows.withColumn(VIOLATES, first_violated)


def violated_by(
    session: SparkSession, lake: Lake, staged: Iterable[tuple[TableCommit, str, Conditions]]
) -> dict[str, str]:
    """Return by place what staged rows violate; each commit comes with its table's schema and conditions. One job."""
    parts = []
    for work, schema, conditions in staged:
        rows = with_violations(staged_rows(session, lake, work), schema, conditions)
        violating = rows.where(F.col(VIOLATES).isNotNull())
        parts.append(violating.select(F.lit(work.note_key).alias("place"), VIOLATES))
    if not parts:
        return {}
    counts = reduce(DataFrame.unionByName, parts).groupBy("place", VIOLATES).count()
    violations: dict[str, list[str]] = {}
    for row in sorted(counts.collect()):
        violations.setdefault(row["place"], []).append(f"{row[VIOLATES]}: {row['count']}")
    return {place: f"{CONSTRAINT_CAUSE} ({', '.join(names)})" for place, names in violations.items()}


def _with_all_columns(rows: DataFrame, schema: str) -> DataFrame:
    """Return rows with all columns of their table: defaults and nulls first, then the columns generated from others."""
    present = {name.lower() for name in rows.columns}
    stored: dict[str, Column] = {}
    generated: dict[str, Column] = {}
    for field in StructType.fromJson(json.loads(schema)):
        if field.name.lower() in present:
            continue
        metadata = field.metadata or {}
        expression = metadata.get("delta.generationExpression")
        default = metadata.get("CURRENT_DEFAULT")
        if expression:
            generated[field.name] = F.expr(str(expression)).cast(field.dataType)
        elif default:
            stored[field.name] = F.expr(default).cast(field.dataType)
        else:
            stored[field.name] = F.lit(None).cast(field.dataType)
    return rows.withColumns(stored).withColumns(generated)
