"""Whatever comes in, its effect ends where it is: at a record, a table or a route, and never at the stream.

Faults are planted here, of kinds that nobody has thought of: what holds for them holds for those to come.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from router.config.models import Route
from router.delta.lake import Lake
from router.delta.parquet_writer import Staging, _File
from router.engine.expressions import evaluator
from router.engine.expressions.evaluator import MANY_FAILURES, Node, evaluate_expression, translate_columns
from router.engine.label import labels as labels_module
from router.engine.label import planner as planner_module
from router.engine.label import route as route_module
from router.table_names import fold_name
from router_decoders import Json
from router_rules import Sql
from router_sinks import Delta, Tables
from tests.engine.label.test_planner import config_of_routes, labels, route
from tests.engine.parts import Named
from tests.engine.query import records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.engine.conftest import MakeQuery

NODE = "event.n + 1"
ROWS = 200


def break_add(monkeypatch: pytest.MonkeyPatch, bad: Sequence[int]) -> None:
    """Let sums raise on batches with some numbers, as a kernel does that has met a value nobody thought of."""
    add = evaluator._OPERATIONS["Add"]

    def raising_add(node: Node, left: pa.Array, right: pa.Array) -> Any:
        if {*left.to_pylist()} & {*bad}:
            raise KeyError("a value that nobody thought of")
        return add(node, left, right)

    monkeypatch.setitem(evaluator._OPERATIONS, "Add", raising_add)


@pytest.mark.parametrize("bad", [(), (0,), (7, 8), (3, 99, 198, 199), range(60)], ids=str)
@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("event.n + 1", True),
        ("try_add(event.n, 1) + 0", True),
        ("event.n >= 0 OR event.n + 1 > 0", False),
        ("CASE WHEN event.n >= 0 THEN event.n ELSE event.n + 1 END", False),
        ("coalesce(event.n, event.n + 1)", False),
        ("event.n IS NULL AND event.n + 1 > 0", False),
        ("event.n + 1 IN (1, 2, 3)", True),
    ],
)
def test_only_the_row_on_which_a_kernel_raises_is_marked(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, text: str, marked: bool, bad: Sequence[int]
) -> None:
    """One value must not take its neighbours along, and where Spark does not look at it, it changes nothing."""
    events = pa.array([{"n": n} for n in range(ROWS)], pa.struct([("n", pa.int64())]))
    frame = spark.createDataFrame([], "event struct<n: bigint>")
    (node,) = translate_columns(frame, [F.expr(text)])
    expected, never = evaluate_expression(node, {"event": events}, ROWS)
    assert never is None
    break_add(monkeypatch, bad)
    defects: list[Any] = []

    value, raised = evaluate_expression(node, {"event": events}, ROWS, defects)

    marks = raised.to_pylist() if raised is not None else [False] * ROWS
    assert [n for n, mark in enumerate(marks) if mark] == (sorted(bad) if marked else [])
    assert value.to_pylist() == [None if mark else of for mark, of in zip(marks, expected.to_pylist(), strict=True)]
    assert not defects


@pytest.mark.parametrize(("bad", "rows"), [(range(ROWS), ROWS), (range(MANY_FAILURES), ROWS), ((0,), 1)], ids=str)
def test_a_kernel_that_fails_on_many_rows_is_at_fault(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, bad: Sequence[int], rows: int
) -> None:
    """Spark takes the expression then: without it the rows of a whole route would be dead letters for ever."""
    events = pa.array([{"n": n} for n in range(rows)], pa.struct([("n", pa.int64())]))
    (node,) = translate_columns(spark.createDataFrame([], "event struct<n: bigint>"), [F.expr(NODE)])
    break_add(monkeypatch, bad)
    defects: list[Any] = []

    _, raised = evaluate_expression(node, {"event": events}, rows, defects)

    assert raised is not None
    assert raised.true_count == len(bad)
    assert [defect.op for defect in defects] == ["Add"]
    assert "KeyError" in str(defects[0])


def test_a_kernel_that_lacks_memory_blames_no_row(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the task, which is tried again: its rows are not at fault."""
    events = pa.array([{"n": 1}], pa.struct([("n", pa.int64())]))
    (node,) = translate_columns(spark.createDataFrame([], "event struct<n: bigint>"), [F.expr(NODE)])

    def no_memory(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setitem(evaluator._OPERATIONS, "Add", no_memory)
    with pytest.raises(MemoryError):
        evaluate_expression(node, {"event": events}, 1)


VALUES: list[dict[str, Any] | bytes] = [{"game": ["uno", "poker", "rummy"][n % 3], "n": n} for n in range(30)]
JSON = Json(schema="game string, n bigint")


def games(**options: Any) -> Route:
    return Route(name="games", match=Sql(where="event.n >= 0"), sinks=(Tables(table="s.{event.game}"),), **options)


ALL = Route(name="all", match=Sql(where="true"), sinks=(Delta(table="s.all"),))
FULL = {"s.uno": 10, "s.poker": 10, "s.rummy": 10, "s.all": 30, "bronze.raw": 30}


def rows_by_table(query: Any) -> dict[str, int]:
    return {table: len(query.content(table)) for table in query.tables() if not table.startswith("ops.")}


@pytest.mark.parametrize("part", ["rule", "projection"])
def test_spark_takes_a_route_whose_expressions_fail_in_tasks(
    make_query: MakeQuery,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part: str,
) -> None:
    """A fault of the evaluator costs time, and no row: all lands within the same batch, in other routes as well."""
    broken = Node("Broken", "boolean" if part == "rule" else "long", of=(Node("column", "long", with_="offset"),))

    def with_fault(frame: Any, columns: Any) -> list[Node]:
        nodes = translate_columns(frame, columns)
        if len(nodes) > 2:  # of the route with a projection
            nodes[0 if part == "rule" else 2] = broken
        return nodes

    monkeypatch.setattr(route_module, "translate_columns", with_fault)
    routes = (games(select=("event.game", "event.n + 1 AS more")), ALL)
    query = make_query(tmp_path, routes=routes, decode=JSON, bronze="bronze.raw")

    for batch in range(2):
        query.take(records(VALUES, first=100 * batch))

    assert rows_by_table(query) == {table: 2 * count for table, count in FULL.items()}
    assert {row["more"] for row in query.rows("s.uno")} == {*range(1, 31, 3)}
    assert "ops.dead" not in query.tables()
    assert [*query.batches.decider.planner.stages.routes_by_spark] == ["games"]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    (warning,) = [message for message in warnings if "Broken" in message]
    assert "it has Broken, which fails in tasks (KeyError" in warning


def test_spark_takes_the_expectations_of_bronze_that_fail_in_tasks(
    make_query: MakeQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a fault of the evaluator counts each record as a violation."""
    broken = Node("Broken", "boolean", of=(Node("column", "long", with_="offset"),))
    monkeypatch.setattr(planner_module, "translate_columns", lambda frame, columns: [broken])
    bronze = {"table": "bronze.raw", "expect": [{"name": "early", "sql": "offset < 20", "otherwise": "warn"}]}
    query = make_query(tmp_path, routes=(games(), ALL), decode=JSON, bronze=bronze)

    report = query.take(records(VALUES))

    assert rows_by_table(query) == FULL
    assert report.violated == {"early": 10}


def test_a_record_that_cannot_be_labelled_is_a_dead_letter(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it one name that the router itself fails on stops every table."""

    def fragile(name: str | None) -> str | None:
        if name == "silver.uno":
            raise RuntimeError("a name that nobody thought of")
        return fold_name(name)

    monkeypatch.setattr(labels_module, "fold_name", fragile)
    raw = spark.createDataFrame(records(VALUES)).withColumn("arrival", F.lit(0).cast("long"))
    made = config_of_routes(route(sinks=(Named(sql="concat('silver.', event.game)"),)))
    planned = planner_module.Planner(made, made.decode).plan_batch(raw)

    letters = labels(planned, "_dead", "_to0_0", "_failed")

    reasons = Counter(dead[0]["reason"] if dead else None for dead, _, _ in letters)
    assert reasons == {None: 20, "the router raises RuntimeError: a name that nobody thought of": 10}
    assert Counter(table for _, table, _ in letters) == {None: 10, "silver.poker": 10, "silver.rummy": 10}
    assert sum(failed for _, _, failed in letters) == 10


def test_rows_that_their_table_cannot_be_given_go_to_its_quarantine(
    make_query: MakeQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever class of error it is: all other tables land within the same batch."""
    make_labels = route_module.RoutePlanner.route_labels

    def too_narrow(planner: Any, *arguments: Any) -> Any:
        made = make_labels(planner, *arguments)
        if made.shown != "all":
            return made
        (target,) = made.targets
        place = target.schema.get_field_index("n")
        return replace(made, targets=(replace(target, schema=target.schema.set(place, pa.field("n", pa.int8()))),))

    monkeypatch.setattr(route_module.RoutePlanner, "route_labels", too_narrow)
    query = make_query(tmp_path, routes=(games(), ALL), decode=JSON, bronze="bronze.raw")

    query.take(records([*VALUES, {"game": "uno", "n": 1000}]))

    counts = rows_by_table(query)
    quarantine = counts.pop(next(table for table in counts if table.startswith("quarantine.")))
    assert quarantine == 31
    assert counts == {"s.uno": 11, "s.poker": 10, "s.rummy": 10, "bronze.raw": 31}
    assert "Integer value 1000 not in range" in next(iter(query.batches.quarantine.blocked_reasons().values()))


@pytest.mark.parametrize("error", [pa.ArrowNotImplementedError, OSError, RuntimeError])
def test_a_table_whose_parquet_writer_raises_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Without it a type that Parquet cannot write stops every table of the task."""
    open_file = _File.open.__func__

    def raising_open(cls: Any, staging: Any, table: str, *arguments: Any) -> Any:
        if table == "s.bad":
            raise error("not this one")
        return open_file(cls, staging, table, *arguments)

    monkeypatch.setattr(_File, "open", classmethod(raising_open))
    staging = Staging(Lake(str(tmp_path)), 1 << 20, 1 << 20)
    rows = pa.record_batch({"n": [1, 2]})
    writer = staging.open_writer(0, "0-0", ["r/dispensable"])
    for target, table in (("r/dispensable", "s.bad"), ("r/dispensable", "s.good"), ("/bronze", "b.raw")):
        writer.hold_rows(target, table, rows)

    assert [file.table for file in writer.close()] == ["s.good", "b.raw"]
    assert writer.failed == {"r/dispensable/s.bad": "its files cannot be written: not this one"}

    writer = staging.open_writer(0, "0-0", ["r/dispensable"])
    writer.hold_rows("/bronze", "s.bad", rows)
    with pytest.raises(error):
        writer.close()
