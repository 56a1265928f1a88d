"""The tasks of a merge, without Spark: tables one after the other, and what a task reports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.delta.parquet_writer import Staging
from router.engine.label.layout import DEAD_SCHEMA
from router.engine.merge.delta_rs import MergeJob, MergeOutcomes, merge_task, rows_by_table
from router.engine.merge.delta_spark import (
    DEAD_LETTER,
    DELETION,
    HELD_VERSION,
    REFUSED_ROW,
    REPORT,
    REPORT_JSON,
    DecisionInput,
    decide_answers,
)
from tests.delta.keyed_table import COLUMNS, KEYED, record
from tests.delta.model import BEGIN, Record, lane

if TYPE_CHECKING:
    from router.delta.lake import Lake


def lane_of_tables(*records: tuple[str, Record]) -> pa.Table:
    """Return the rows of a lane, sorted by table."""
    found = sorted(records, key=lambda one: one[0])
    return lane([one for _, one in found], KEYED, COLUMNS).append_column(
        "_table", pa.array([name for name, _ in found])
    )


@pytest.fixture
def job(lake: Lake) -> MergeJob:
    """Return the job of a batch."""
    staging = Staging(lake, file_bytes=1 << 30, buffer_bytes=1 << 30)
    return MergeJob(staging, KEYED, "games:run/route/upsert", 0, "route", "upsert", "ops.dead", {"router.batch": "0"})


def done(job: MergeJob, given: pa.Table) -> MergeOutcomes:
    """Run a task on rows that come in small batches."""
    found = MergeOutcomes()
    for reports in merge_task(job)(iter(given.to_batches(max_chunksize=2))):
        for report in reports.column("report").to_pylist():
            found.add_report(json.loads(report))
    return found


@given(st.lists(st.sampled_from("abc"), max_size=12).map(sorted), st.integers(1, 5))
def test_the_rows_of_a_table_come_together(names: list[str], size: int) -> None:
    """Without it a table is merged in parts, and all but the first are taken for replays and lost."""
    given = pa.table({"_table": pa.array(names, pa.string()), "n": list(range(len(names)))})
    found = [(table, part["n"].to_pylist()) for table, part in rows_by_table(given.to_batches(max_chunksize=size))]

    assert [table for table, _ in found] == sorted(set(names))
    assert [n for _, numbers in found for n in numbers] == list(range(len(names)))


def test_a_task_merges_every_table_it_is_given(lake: Lake, job: MergeJob) -> None:
    """Without it hundreds of tables cost a job each."""
    found = done(
        job,
        lane_of_tables(
            ("silver.a", record("x", 0, 0)), ("silver.b", record("x", 1, 1)), ("silver.a", record("x", 2, 2))
        ),
    )

    assert (len(found.tables), found.counts["applied"], found.counts["inserted"], found.failed) == (2, 3, 2, {})
    for table, value in (("silver.a", 2), ("silver.b", 1)):
        handle = lake.open(table)
        assert handle is not None
        assert handle.to_pyarrow_table()["v"].to_pylist() == [value]
        assert handle.transaction_version(f"games:run/route/upsert/{table}") == 0
        assert handle.history(1)[0]["router.batch"] == "0"


def test_a_table_that_cannot_be_written_does_not_hold_the_others_back(lake: Lake, job: MergeJob) -> None:
    """Without it one folder with wrong rights stops hundreds of tables."""
    Path(lake.address("silver.b")).mkdir(parents=True)
    Path(lake.address("silver.b"), "notes.csv").write_text("mine")
    found = done(job, lane_of_tables(*[(f"silver.{name}", record("x", n, n)) for n, name in enumerate("abc")]))

    assert list(found.failed) == ["silver.b"]
    assert (len(found.tables), found.forbidden) == (2, set())
    assert lake.open("silver.c") is not None


def test_what_only_spark_can_write_is_reported(lake: Lake, job: MergeJob) -> None:
    """Without it a table with a CHECK stops the stream, or is written without it."""
    done(job, lane_of_tables(("silver.a", record("x", 0, 0))))
    handle = lake.open("silver.a")
    assert handle is not None
    handle.alter.add_constraint({"small": "v < 100"})
    found = done(
        replace(job, batch=1), lane_of_tables(("silver.a", record("x", 1, 1)), ("silver.b", record("x", 2, 2)))
    )

    assert list(found.spark) == ["silver.a"]
    assert "checkConstraints" in found.spark["silver.a"]
    assert (len(found.tables), found.failed) == (1, {})


def test_a_table_that_must_not_change_says_that_waiting_does_not_help(job: MergeJob) -> None:
    """Without it `evolution: fail` is waited on for ever."""
    done(job, lane_of_tables(("silver.a", record("x", 0, None))))
    found = done(
        replace(job, batch=1, keyed=replace(KEYED, evolution="fail")), lane_of_tables(("silver.a", record("x", 1, 1)))
    )

    assert (list(found.failed), found.forbidden) == (["silver.a"], {"silver.a"})


def test_refused_rows_become_files_of_dead_letters(lake: Lake, job: MergeJob) -> None:
    """Without it a row without its key is gone, with no word of it."""
    found = done(job, lane_of_tables(("silver.a", record(None, 7, 5)), ("silver.a", record("x", 8, 8))))

    (file,) = found.files["silver.a"]
    assert (file.table, file.target, file.rows) == ("ops.dead", "/dead_letters", 1)
    (letter,) = pq.read_table(f"{lake.root}/{file.path}").to_pylist()
    assert {name: letter[name] for name in ("stage", "reason", "route", "sink", "topic", "offset", "batch_id")} == {
        **{"stage": "apply", "reason": "key k is null", "route": "route", "sink": "upsert"},
        **{"topic": "events", "offset": 7, "batch_id": 0},
    }
    assert (letter["key"], json.loads(letter["value"])) == (b"key", {"v": 5})


def test_a_task_without_rows_reports_nothing(job: MergeJob) -> None:
    """Without it a batch of one table fails in the tasks that get none of it."""
    assert done(job, lane_of_tables().cast(lane_of_tables(("silver.a", record("x", 0, 0))).schema)).counts == {}


def test_what_spark_is_to_write_is_decided_like_everything_else() -> None:
    """Without it a table has other rows when it is written by the other engine."""
    have = pa.schema([("k", pa.string()), ("v", pa.int64()), ("note", pa.string()), ("_offset", pa.int64()),
                      ("_partition", pa.int32()), ("_topic", pa.string()), ("_arrival", pa.int64()),
                      ("_timestamp", pa.timestamp("us", "UTC"))])  # fmt: skip
    question = DecisionInput("silver.a", have, KEYED, "route", "upsert", 3)
    state = {"k": "a", "_offset": 5, "_partition": 0, "_topic": "events", "_arrival": 0, "_timestamp": BEGIN}
    flags = {"_there": True, "_live": True}
    kind = pa.struct([*(have.field(name) for name in state), *((name, pa.bool_()) for name in flags)])
    taken = lane(
        [record("a", 4, 4), record("a", 6, 6), record("b", 7, 7), record("c", 8, deletes=True), record(None, 9)],
        KEYED, COLUMNS,
    )  # fmt: skip
    given = pa.concat_tables(
        [taken, pa.table({HELD_VERSION: pa.array([state | flags, None], kind)}).slice(0, 1)], promote_options="default"
    )
    found = pa.concat_tables(decide_answers(question, given)).to_pylist()

    assert [(row["__op"], row["k"], row["v"]) for row in found if row["__op"] < REFUSED_ROW] == [
        (1, "a", 6),
        (0, "b", 7),
    ]
    assert [(row["k"], row["_offset"]) for row in found if row["__op"] == DELETION] == [("c", 8)]
    (letter,) = [row[DEAD_LETTER] for row in found if row["__op"] == REFUSED_ROW]
    assert (letter["reason"], letter["offset"], set(letter)) == ("key k is null", 9, set(DEAD_SCHEMA.names))
    (told,) = [json.loads(row[REPORT_JSON]) for row in found if row["__op"] == REPORT]
    assert told["condition"] == "t.`k` = s.`k` AND t.`k` >= 'a' AND t.`k` <= 'a'"
    assert {name: told[name] for name in ("applied", "refused", "late", "inserted", "updated", "ops")} == {
        **{"applied": 4, "refused": 1, "late": 1, "inserted": 1, "updated": 1, "ops": [0, 1]},
    }
