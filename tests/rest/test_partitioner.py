"""Which task gets which rows: all of them one, evenly, and the same whenever a batch is sent again."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from router_rest.delivery.batcher import CallSize
from router_rest.delivery.partitioner import Extent, PartitionPlan, keys_of, make_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXTENTS = st.lists(
    st.builds(
        lambda topic, partition, first, span, share: Extent(
            topic, partition, first, first + span, 1 + int(span * share)
        ),
        st.sampled_from(["a", "b", None]),
        st.integers(0, 5),
        st.integers(0, 10**12),
        st.integers(0, 100_000),
        st.floats(0, 1),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda one: one[:2],
)


@given(EXTENTS, st.integers(1, 20), st.sampled_from([0, 4]))
def test_every_row_goes_to_one_task(extents: list[Extent], tasks: int, orders: int) -> None:
    """Without it rows are sent twice, or never."""
    made = make_plan(extents, CallSize(orders=orders), tasks)

    assert 1 <= made.tasks <= tasks
    assert made.rows == sum(one.rows for one in extents)
    if made.tasks == 1:
        assert made.pieces == ()
        return
    for extent in extents:
        pieces = sorted(one[2:] for one in made.pieces if one[:2] == extent[:2])
        assert pieces[0][0] == extent.first
        assert pieces[-1][1] == extent.last
        assert all(before[1] + 1 == after[0] for before, after in pairwise(pieces))
        assert len(pieces) == 1 or not orders
    assert {one.task for one in made.pieces} == set(range(made.tasks))


@given(EXTENTS, st.integers(1, 20))
def test_a_plan_is_read_as_it_was_written(extents: list[Extent], tasks: int) -> None:
    """Without it a replay cuts other calls, and an API takes their rows twice."""
    made = make_plan(extents, CallSize(rows=7, bytes=99, orders=3), tasks)

    assert PartitionPlan.from_note(made.to_note()) == made
    assert make_plan(reversed(extents), CallSize(rows=7, bytes=99, orders=3), tasks) == made


def test_one_large_partition_is_dealt_to_all_tasks() -> None:
    """Without it 70 % of the rows wait for one task, while others are done."""
    shares = [70, 10, 10, 10]
    extents = [Extent("t", at, 0, share * 1000 - 1, share * 1000) for at, share in enumerate(shares)]

    made = make_plan(extents, CallSize(), 4)

    loads = [sum(one.last - one.first + 1 for one in made.pieces if one.task == task) for task in range(4)]
    assert loads == [25_000] * 4


def test_partitions_that_fit_stay_whole() -> None:
    """Without it calls are cut at more places than needed, and rows of one partition go out by several tasks."""
    extents = [Extent("t", at, 0, 999, 1000 - at) for at in range(8)]

    assert [one[2:4] for one in make_plan(extents, CallSize(), 4).pieces] == [(0, 999)] * 8


def test_few_rows_are_not_worth_many_tasks() -> None:
    """Without it ten rows start as many processes as there are cores."""
    assert make_plan([Extent("t", 0, 0, 99, 100)], CallSize(rows=10), 8).tasks == 1


@pytest.mark.parametrize(("rows", "per_call", "tasks"), [(1000, 1, 1), (9000, 1, 4), (9000, 10, 1), (10**6, 1000, 8)])
def test_a_task_is_worth_its_start(rows: int, per_call: int, tasks: int) -> None:
    """Without it a batch is dealt to processes for longer than one of them takes for all of it."""
    extents = [Extent("t", 0, 0, rows - 1, rows)]

    assert make_plan(extents, CallSize(rows=per_call), 8, said=False).tasks == tasks


@pytest.mark.parametrize("tasks", [2, 3, 7])
def test_spark_sends_rows_where_the_plan_says(spark: SparkSession, tasks: int) -> None:
    """Without it two tasks send the same source partition out of order, or one sends everything."""
    topics = ["plain", "it's \\ \"é\u2028", None]
    extents = [Extent(topic, at, 0, 999, 1000) for at, topic in enumerate(topics)]
    made = make_plan(extents, CallSize(rows=1), tasks)
    rows = [(topic, at, offset) for at, topic in enumerate(topics) for offset in range(0, 1000, 50)]
    frame = spark.createDataFrame(rows, "_topic string, _partition int, _offset bigint")

    placed = frame.repartition(made.tasks, F.expr(made.partition_key() or "")).withColumn("at", F.spark_partition_id())

    found = {(row["_topic"], row["_partition"], row["_offset"]): row["at"] for row in placed.collect()}
    wanted = {
        (topic, at, offset): one.task
        for topic, at, offset in rows
        for one in made.pieces
        if one[:2] == (topic, at) and one.first <= offset <= one.last
    }
    assert found == wanted


def test_every_task_has_a_number_of_its_own() -> None:
    """Without it two tasks get the same rows, and another none."""
    assert [len(set(keys_of(tasks))) for tasks in (1, 2, 5, 64)] == [1, 2, 5, 64]


def test_a_batch_that_an_earlier_version_began_is_sent_as_it_was_planned() -> None:
    """Cut anew, its calls would have other keys, and arrive twice."""
    made = make_plan([Extent("t", 0, 0, 99, 100)], CallSize(rows=10, orders=3), 1)
    earlier = made.to_note().replace('"orders"', '"lanes"')

    assert earlier != made.to_note()
    assert PartitionPlan.from_note(earlier) == made
