"""How a view can follow changes of its sources, by the plan of its query.

| way | query | rows were added | rows were removed |
|---|---|---|---|
| merge | groups whose values can be merged (`MERGED`) | the query over new files is merged into the table | as `keys` |
| keys | other groups | groups of changed rows are computed again | the same |
| rows | rows with the column `table` | the query over new files is appended | as `tables` |
| tables | groups by `table`, with a key that is no column | changed tables are computed again | the same |
| full | joins, windows, random values, the time | everything is computed again | the same |

The way is read from Spark's analysed plan. Only literals like `DATE 'today'` are searched for in the SQL: the plan
contains the day instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from router.api.columns import quote_identifier
from router.engine.views.relation import VIEW_TABLE_COLUMN
from router.spark_internals import analysed_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from router.states import ViewWay

_MERGED = {
    **{"count": "sum", "sum": "sum", "min": "min", "max": "max"},
    **{name: name for name in ("bool_and", "bool_or", "bit_and", "bit_or", "bit_xor")},
    **{"hll_sketch_agg": "hll_union_agg", "bitmap_construct_agg": "bitmap_or_agg"},
}
"""Aggregate function -> the function that merges its values. An average needs the count of the same values as well."""
ROW_WISE = {"Project", "Filter", "SubqueryAlias"}
LEAF = "View"
"""The node of `source`, and of other relations, in a plan. The nodes below it are not part of the query."""
_SOURCE = "source"
CURRENT = "CURRENT_LIKE"
"""Spark's mark of functions whose value is fixed for one run of a query only: the time, the user, the zone, ..."""
SPECIAL_TIMES = ("now", "today", "tomorrow", "yesterday")
"""Texts that Spark casts to the current time or day."""
TIME_LITERAL = re.compile(rf"\b(?:date|timestamp\w*)\s*r?(['\"])\s*(?:{'|'.join(SPECIAL_TIMES)})\b", re.IGNORECASE)


@dataclass(frozen=True)
class QueryShape:
    """How a view follows changes, and why not in a better way.

    `keys` are the columns that identify a group. `merged`: other column -> the SQL that merges it. `table` is the
    column with the source table of a row, empty if there is none. `timed`: the result changes with time alone.
    """

    way: ViewWay
    why: str
    keys: tuple[str, ...] = ()
    merged: dict[str, str] = field(default_factory=dict)
    table: str = ""
    timed: bool = False


def shape_of(query: DataFrame) -> QueryShape:
    """Return how a query over the relation `source` can follow changes."""
    plan = analysed_plan(query)
    if reason := unstable_part(plan):
        return QueryShape("full", reason, timed=True)

    # A plan that can be followed is a chain: row by row from `source`, at most one aggregate, row by row again.
    above, node = _skip_row_wise(plan)
    below: list[Any] = []
    leaf = node
    if _class_name(node) == "Aggregate":
        below, leaf = _skip_row_wise(node.child())
    if _class_name(leaf) != LEAF:
        return QueryShape("full", f"it has a {_class_name(leaf)}")
    relation = leaf.desc().identifier().table()
    if relation != _SOURCE:
        return QueryShape("full", f"it reads {relation} in place of `source`")
    if any(part.subqueries().nonEmpty() for part in (*above, node, *below)):
        return QueryShape("full", "it has a subquery")

    table = _table_column(plan, leaf)
    if node is not leaf:
        is_filtered = any(_class_name(part) == "Filter" for part in above)
        return _shape_of_groups(plan, node, table, is_filtered=is_filtered)
    if not table:
        return QueryShape("full", "no column of it has the table of a row")
    return QueryShape("rows", f"rows of one table each, with `{table}`", table=table)


def unstable_part(plan: Any) -> str:
    """Return why a plan may give other rows though no source has changed; an empty text if it does not.

    Subqueries, lambdas, common table expressions and named queries are part of the plan.
    """
    nodes = [plan]
    while nodes:
        node = nodes.pop()
        # What is below is how the router reads the tables, not the query.
        if _class_name(node) == LEAF and node.desc().identifier().table() == _SOURCE:
            continue
        # A sample has no expression: its seed stands in the node, and is another one each time.
        if _class_name(node) == "Sample":
            return "its rows are random: TABLESAMPLE"
        for expression in _scala_list(node.expressions()):
            if reason := _unstable_expression(expression):
                return reason
        nodes += _scala_list(node.children())
        nodes += _scala_list(node.subqueries())
    return ""


def special_time_literal(sql: str) -> str:
    """Return why SQL gives other rows each day though its plan does not show it; an empty text if it does not.

    Spark's parser puts the day in the place of `DATE 'today'`.
    """
    literal = TIME_LITERAL.search(sql)
    return f"it uses the current time: {literal[0]}{literal[1]}" if literal else ""


def _unstable_expression(expression: Any) -> str:
    """Return why the value of an expression may change by itself; an empty text if it does not."""
    pending = [expression]
    while pending:
        part = pending.pop()
        patterns = {str(pattern) for pattern in _scala_list(part.nodePatterns())}
        if CURRENT in patterns:
            return f"it uses {part.prettyName()}(), which depends on the time or the session"
        # The plan inside is one of the node's subqueries.
        if "PLAN_EXPRESSION" in patterns:
            continue
        if "CAST" in patterns and _is_special_time(part):
            return "it uses the current time: 'now', 'today', ... as a timestamp or date"
        children = _scala_list(part.children())
        if not part.deterministic() and all(child.deterministic() for child in children):
            return f"its values are random: {part.prettyName()}()"
        # Some functions are only a name for other expressions: to_date(x) for a cast.
        if "RUNTIME_REPLACEABLE" in patterns:
            children.append(part.replacement())
        pending += children
    return ""


def _is_special_time(cast: Any) -> bool:
    """Return whether a cast makes a time of a text like 'now'; a constant text that is computed counts."""
    text = cast.child()
    to_time = cast.dataType().typeName() in ("date", "timestamp", "timestamp_ntz")
    if not to_time or not text.foldable() or text.dataType().typeName() != "string":
        return False
    if _class_name(text) != "Literal":
        return True
    return str(text.value()).strip().lower().startswith(SPECIAL_TIMES)


def _shape_of_groups(plan: Any, aggregate: Any, table: str, *, is_filtered: bool) -> QueryShape:
    """Return the shape of a query with groups. `is_filtered`: by the values of groups."""
    way_by_table: ViewWay = "tables" if table else "full"
    # Which groups a filter leaves out cannot be known of changed rows alone.
    if is_filtered:
        return QueryShape(way_by_table, "its groups are filtered", table=table)
    grouping = _scala_list(aggregate.groupingExpressions())
    # Columns that are none of the aggregate's expressions are computed of them afterwards.
    computed = {column.exprId().id(): column.name() for column in _scala_list(plan.output())}
    keys: dict[int, str] = {}
    values: dict[str, Any] = {}
    for expression in _scala_list(aggregate.aggregateExpressions()):
        name = computed.pop(expression.exprId().id(), None)
        if name is None:
            continue
        inner = expression.child() if _class_name(expression) == "Alias" else expression
        numbers = [number for number, key in enumerate(grouping) if key.semanticEquals(inner)]
        if numbers:
            keys[numbers[0]] = name
        else:
            values[name] = inner
    if len(keys) < len(grouping):
        return QueryShape(way_by_table, "it groups by an expression that is none of its columns", table=table)

    key_columns = tuple(keys.values())
    merged = _merging_sql(values)
    unmerged = [name for name in (*values, *computed.values()) if name not in merged]
    if not unmerged:
        return QueryShape("merge", "its values can be merged", key_columns, merged, table)
    why = f"{', '.join(unmerged)} cannot be merged"
    if any(_aggregate_function(values.get(name)) == "avg" for name in unmerged):
        why += "; an average can if `count` of the same is a column"
    return QueryShape("keys" if keys else "full", why, key_columns, table=table)


def _merging_sql(values: dict[str, Any]) -> dict[str, str]:
    """Return by column the SQL that merges its values, for the aggregates that can be merged."""
    merged: dict[str, str] = {}
    for column, value in values.items():
        function = _aggregate_function(value)
        if function in _MERGED:
            merged[column] = f"{_MERGED[function]}({quote_identifier(column)})"
        # An average of decimals is rounded, so that it cannot be merged.
        if function != "avg" or value.dataType().typeName() != "double":
            continue
        counts = [quote_identifier(name) for name, other in values.items() if _is_count_of(other, value)]
        if counts:
            merged[column] = f"try_divide(sum({quote_identifier(column)} * {counts[0]}), sum({counts[0]}))"
    return merged


def used_columns(query: DataFrame) -> set[str]:
    """Return the columns of its sources that a query uses, a `*` included."""
    used: set[str] = set()
    nodes = [analysed_plan(query)]
    while nodes:
        node = nodes.pop()
        if _class_name(node) == LEAF:
            continue
        used |= {column.name() for column in _scala_list(node.references().toSeq())}
        nodes += _scala_list(node.children())
        nodes += _scala_list(node.subqueries())
    return used


def _skip_row_wise(node: Any) -> tuple[list[Any], Any]:
    """Return the nodes from this one downwards that make one row of one, and the first other node."""
    row_wise = []
    while _class_name(node) in ROW_WISE:
        row_wise.append(node)
        node = node.child()
    return row_wise, node


def _table_column(plan: Any, leaf: Any) -> str:
    """Return the column of a plan that is the relation's `table`; an empty text if there is none."""
    tables = {column.exprId().id() for column in _scala_list(leaf.output()) if column.name() == VIEW_TABLE_COLUMN}
    return next((str(column.name()) for column in _scala_list(plan.output()) if column.exprId().id() in tables), "")


def _aggregate_function(expression: Any) -> str:
    """Return the name of the aggregate function that an expression is; an empty text if it is none, or distinct."""
    if expression is None or _class_name(expression) != "AggregateExpression" or expression.isDistinct():
        return ""
    return str(expression.aggregateFunction().prettyName())


def _is_count_of(count: Any, average: Any) -> bool:
    """Return whether an aggregate counts the values that an average is of, in the same rows."""
    if _aggregate_function(count) != "count":
        return False
    counted = _scala_list(count.aggregateFunction().children())
    (averaged,) = _scala_list(average.aggregateFunction().children())
    if len(counted) != 1 or not averaged.semanticEquals(counted[0]):
        return False
    return str(average.filter().toString()) == str(count.filter().toString())


def _class_name(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _scala_list(sequence: Any) -> list[Any]:
    """Return the elements of a sequence of Scala."""
    return [sequence.apply(index) for index in range(sequence.size())]
