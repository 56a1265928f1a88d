"""What a view's query is made of, and so how the view follows changes of its sources.

| way | query | when rows came | when rows went |
|---|---|---|---|
| merge | groups, of what merges (`MERGED`) | the query over new files is merged into the table | as `keys` |
| keys | groups, of anything else too | groups of changed rows are computed anew | the same |
| rows | rows with the column `table` | the query over new files is added | as `tables` |
| tables | groups by `table`, not all of the keys shown | tables that changed are computed anew | the same |
| full | joins, windows, random values, the time | everything is computed anew | the same |

Spark's analysed plan says it. A literal like `DATE 'today'` is the only thing looked for in the SQL: the plan has the
day in its place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from router.columns import quoted
from router.engine.views.relation import TABLE
from router.spark_internals import analysed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Way = Literal["merge", "keys", "rows", "tables", "full"]
MERGED = {
    **{"count": "sum", "sum": "sum", "min": "min", "max": "max"},
    **{name: name for name in ("bool_and", "bool_or", "bit_and", "bit_or", "bit_xor")},
    **{"hll_sketch_agg": "hll_union_agg", "bitmap_construct_agg": "bitmap_or_agg"},
}
"""What merges the values of an aggregate. An average is merged beside the count of the same values."""
ROW_WISE = {"Project", "Filter", "SubqueryAlias"}
LEAF, SOURCE = "View", "source"
"""What stands for `source`, and for other relations, in a plan: what is below it is not the query's."""
CURRENT = "CURRENT_LIKE"
"""Spark's mark of functions whose value is fixed for one run of a query only: the time, the user, the zone, ..."""
SPECIAL_TIMES = ("now", "today", "tomorrow", "yesterday")
"""Texts that are a time of their own when Spark casts them to one."""
TIME_LITERAL = re.compile(rf"\b(?:date|timestamp\w*)\s*r?(['\"])\s*(?:{'|'.join(SPECIAL_TIMES)})\b", re.IGNORECASE)


@dataclass(frozen=True)
class QueryShape:
    """How a view follows changes, and why not in a better way.

    `keys` are the columns that say which group a row is, `merged` has the SQL that merges each other column, `table` is
    that with the source table of a row, nothing where none has it. `timed`: the result changes with time alone.
    """

    way: Way
    why: str
    keys: tuple[str, ...] = ()
    merged: dict[str, str] = field(default_factory=dict)
    table: str = ""
    timed: bool = False


def shape_of(query: DataFrame) -> QueryShape:
    """Return how a query over the relation `source` can follow changes."""
    plan = analysed(query)
    if reason := unstable_part(plan):
        return QueryShape("full", reason, timed=True)
    above, node = _through(plan)
    below, leaf = _through(node.child()) if _name(node) == "Aggregate" else ([], node)
    read = leaf.desc().identifier().table() if _name(leaf) == LEAF else ""
    if read != SOURCE:
        return QueryShape("full", f"it reads {read} in place of `source`" if read else f"it has a {_name(leaf)}")
    if any(one.subqueries().nonEmpty() for one in (*above, node, *below)):
        return QueryShape("full", "it has a subquery")
    if node is not leaf:
        return _grouped(plan, node, leaf, above)
    table = _shown(plan, leaf)
    why = f"rows of one table each, with `{table}`" if table else "no column of it says which table a row is from"
    return QueryShape("rows" if table else "full", why, table=table)


def unstable_part(plan: Any) -> str:
    """Return why a plan may give other rows though no source has changed; an empty text if it does not.

    Subqueries, lambdas, common table expressions and named queries are part of the plan.
    """
    nodes = [plan]
    while nodes:
        node = nodes.pop()
        # What is below is how the router reads the tables, not the query.
        if _name(node) == LEAF and node.desc().identifier().table() == SOURCE:
            continue
        # A sample has no expression: its seed stands in the node, and is another one each time.
        if _name(node) == "Sample":
            return "its rows are random: TABLESAMPLE"
        for expression in _list(node.expressions()):
            if reason := _unstable_expression(expression):
                return reason
        nodes += _list(node.children())
        nodes += _list(node.subqueries())
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
        patterns = {str(pattern) for pattern in _list(part.nodePatterns())}
        if CURRENT in patterns:
            return f"it uses {part.prettyName()}(), which depends on the time or the session"
        # The plan inside is one of the node's subqueries.
        if "PLAN_EXPRESSION" in patterns:
            continue
        if "CAST" in patterns and _is_special_time(part):
            return "it uses the current time: 'now', 'today', ... as a timestamp or date"
        children = _list(part.children())
        if not part.deterministic() and all(child.deterministic() for child in children):
            return f"its values are random: {part.prettyName()}()"
        # Some functions are nothing but a name for other expressions: to_date(x) for a cast.
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
    if _name(text) != "Literal":
        return True
    return str(text.value()).strip().lower().startswith(SPECIAL_TIMES)


def _grouped(plan: Any, node: Any, leaf: Any, above: list[Any]) -> QueryShape:
    """Return the shape of a query with groups."""
    table = _shown(plan, leaf)
    if any(_name(one) == "Filter" for one in above):  # groups of changed rows alone say nothing about it
        return QueryShape("tables" if table else "full", "its groups are filtered", table=table)
    grouping, names = _list(node.groupingExpressions()), {one.exprId().id(): one.name() for one in _list(plan.output())}
    keys, values = dict[int, str](), dict[str, Any]()
    for expression in _list(node.aggregateExpressions()):
        column = names.pop(expression.exprId().id(), None)
        inner = expression.child() if _name(expression) == "Alias" else expression
        at = next((i for i, key in enumerate(grouping) if key.semanticEquals(inner)), None)
        if column is not None and at is not None:
            keys[at] = column
        elif column is not None:
            values[column] = inner
    if len(keys) < len(grouping):
        return QueryShape("tables" if table else "full", "it groups by what is in no column of it", table=table)
    merged, shown = _merged(values), tuple(keys.values())
    unmerged = [name for name in (*values, *names.values()) if name not in merged]  # some computed of a group's values
    if not unmerged:
        return QueryShape("merge", "its values can be merged", shown, merged, table)
    why = f"{', '.join(unmerged)} cannot be merged"
    if any(_aggregate(values.get(name)) == "avg" for name in unmerged):
        why += "; an average can beside `count` of the same"
    return QueryShape("keys" if keys else "full", why, shown, table=table)


def _merged(values: dict[str, Any]) -> dict[str, str]:
    """Return the SQL that merges each of the aggregates that can be merged."""
    kinds = {column: _aggregate(one) for column, one in values.items()}
    found = {column: f"{MERGED[kind]}({quoted(column)})" for column, kind in kinds.items() if kind in MERGED}
    counts = {column: one for column, one in values.items() if kinds[column] == "count"}
    for column, one in values.items():
        # an average of decimals is rounded, so that it cannot be merged
        if kinds[column] == "avg" and one.dataType().typeName() == "double":
            count = next((quoted(name) for name, other in counts.items() if _of_the_same(one, other)), None)
            if count:
                found[column] = f"try_divide(sum({quoted(column)} * {count}), sum({count}))"
    return found


def used_columns(query: DataFrame) -> set[str]:
    """Return the columns of its sources that a query uses, a `*` included."""
    found, nodes = set[str](), [analysed(query)]
    while nodes:
        node = nodes.pop()
        if _name(node) == LEAF:
            continue
        found |= {one.name() for one in _list(node.references().toSeq())}
        nodes += _list(node.children())
        nodes += _list(node.subqueries())
    return found


def _through(node: Any) -> tuple[list[Any], Any]:
    """Return the nodes from one down that make a row of a row, and the first that does not."""
    passed = []
    while _name(node) in ROW_WISE:
        passed.append(node)
        node = node.child()
    return passed, node


def _shown(plan: Any, leaf: Any) -> str:
    """Return the column of a plan that is the relation's `table`; nothing where there is none."""
    mine = {one.exprId().id() for one in _list(leaf.output()) if one.name() == TABLE}
    return next((str(one.name()) for one in _list(plan.output()) if one.exprId().id() in mine), "")


def _aggregate(expression: Any) -> str:
    """Return the name of an aggregate function that stands alone; nothing where it does not."""
    if expression is None or _name(expression) != "AggregateExpression" or expression.isDistinct():
        return ""
    return str(expression.aggregateFunction().prettyName())


def _of_the_same(one: Any, other: Any) -> bool:
    """Say whether two aggregates are of the same values of the same rows."""
    mine, its = (_list(each.aggregateFunction().children()) for each in (one, other))
    same = len(mine) == len(its) == 1 and mine[0].semanticEquals(its[0])
    return same and str(one.filter().toString()) == str(other.filter().toString())


def _name(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _list(sequence: Any) -> list[Any]:
    """Return the elements of a sequence of Scala."""
    return [sequence.apply(at) for at in range(sequence.size())]
