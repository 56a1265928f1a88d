"""Rows that violate what their table demands, found by Spark: for the conditions that no task can evaluate.

Delta refuses a commit whole for one such row. So they are found before: among staged rows, whose batch then lands them
in the quarantine, and among the rows of a quarantine, of which the release makes dead letters.
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
"""The column that says what a row violates; null where it may land."""
SORTED_OUT = "rows violate what only Spark can evaluate"
"""What the cause of a blocked table begins with whose release makes dead letters of some rows, and lands the others."""
Conditions = dict[str, str]
"""What a condition is called -> its SQL."""


def judged(rows: DataFrame, schema: str, conditions: Conditions) -> DataFrame:
    """Add the column `_violates` to rows of a table: the first condition that does not hold, also where it is null.

    `schema` is the table's, as Delta's JSON: what the rows lack of it is filled in as Delta does. A condition that
    cannot be analysed on them is left to Delta. Lazy.
    """
    whole = _filled(rows, schema)
    violated: list[Column] = []
    for name, sql in conditions.items():
        holds = F.coalesce(F.expr(sql), F.lit(False))
        try:
            whole.select(holds)
        except AnalysisException:
            continue
        violated.append(F.when(~holds, F.lit(name)))
    found = F.coalesce(*violated) if violated else F.lit(None).cast("string")
    return whole.withColumn(VIOLATES, found)


def violated_by(
    session: SparkSession, lake: Lake, staged: Iterable[tuple[TableCommit, str, Conditions]]
) -> dict[str, str]:
    """Return by place what staged rows violate; each commit comes with its table's schema and conditions. One job."""
    parts = [
        judged(staged_rows(session, lake, work), schema, conditions)
        .where(F.col(VIOLATES).isNotNull())
        .select(F.lit(work.place).alias("place"), VIOLATES)
        for work, schema, conditions in staged
    ]
    if not parts:
        return {}
    counted = reduce(DataFrame.unionByName, parts).groupBy("place", VIOLATES).count()
    found: dict[str, list[str]] = {}
    for row in sorted(counted.collect()):
        found.setdefault(row["place"], []).append(f"{row[VIOLATES]}: {row['count']}")
    return {place: f"{SORTED_OUT} ({', '.join(names)})" for place, names in found.items()}


def _filled(rows: DataFrame, schema: str) -> DataFrame:
    """Return rows with all columns of their table: defaults, nulls, and then what is generated of the others."""
    have = {name.lower() for name in rows.columns}
    lacking = [field for field in StructType.fromJson(json.loads(schema)) if field.name.lower() not in have]
    generated = {field.name: field.metadata.get("delta.generationExpression") for field in lacking}
    own = {}
    for field in lacking:
        default = (field.metadata or {}).get("CURRENT_DEFAULT")
        own[field.name] = (F.expr(default) if default else F.lit(None)).cast(field.dataType)
    rows = rows.withColumns({name: value for name, value in own.items() if not generated[name]})
    made = {f.name: F.expr(str(generated[f.name])).cast(f.dataType) for f in lacking if generated[f.name]}
    return rows.withColumns(made)
