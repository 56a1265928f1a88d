"""A view of many tables: what a refresh takes beside one query of Spark over one table of the same rows, and a loop.

The tables are written by delta-rs, two files each. Every figure is the median of a few runs in one warm session.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.runs import Run
from benchmarks.subjects import Subject
from benchmarks.subjects.baselines import settings
from router.config.models import Config, FormatSource, Source, View
from router.engine.checkpoint_store import CheckpointStore, lake_and_checkpoint
from router.engine.spark.session import build_session
from router.engine.views.schedule import create_refresher
from router_decoders import Json

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from benchmarks.runs import Task
    from router.engine.views.refresh import Refresher

REPEAT = 3
GAMERS = 100
COLUMNS = "gamer_id, count(*) AS session_count, min(ts) AS first_ts, max(ts) AS last_ts"
VIEW = View.model_validate({
    "name": "sessions",
    "from": "silver.*",
    "into": "gold.{table}_sessions",
    "sql": f"SELECT table, {COLUMNS} FROM source GROUP BY table, gamer_id",
})  # fmt: skip


def _session(task: Task) -> SparkSession:
    return build_session(Config.model_construct(name="views", spark=settings()))


def _rows(dice: np.random.Generator, count: int) -> pa.Table:
    return pa.table({
        "gamer_id": dice.integers(0, GAMERS, count),
        "session": pa.array(map("session-{:016x}".format, dice.integers(0, 2**60, count))),
        "amount": dice.random(count),
        "ts": pa.array(dice.integers(0, 10**15, count), pa.timestamp("us", "UTC")),
    })  # fmt: skip


def _append(lake: Path, tables: int, rows: int, dice: np.random.Generator) -> None:
    for number in range(tables):
        write_deltalake(lake / "silver" / f"game_{number:04d}", _rows(dice, rows), mode="append")


def _run(spark: SparkSession, task: Task) -> Run:
    """Measure each kind of refresh; the figure is the full one."""
    lake = Path(task.lake)
    dice = np.random.default_rng(0)
    rows_per_table = task.events // task.games
    # The tables of the view, of two files each.
    for _ in range(2):
        _append(lake, task.games, rows_per_table // 2, dice)
    # One table with as many rows, for the query that the view is compared with.
    for _ in range(4):
        rows = _rows(dice, task.events // 4)
        games = pa.array(dice.integers(0, task.games, len(rows)))
        write_deltalake(lake / "one" / "all", rows.append_column("game", games), mode="append")
    config = Config(
        name="views",
        lake=str(lake),
        checkpoint=str(task.checkpoint),
        source=Source(format=FormatSource(name="rate")),
        decode=Json(schema="a int"),
        dead_letters="ops.dead",
        views=(VIEW,),
    )
    opened_lake, checkpoint = lake_and_checkpoint(config)
    views = create_refresher(config, spark, opened_lake, CheckpointStore(checkpoint))

    def append_to_two_tables() -> None:
        _append(lake, 2, 100, dice)

    def append_to_all_tables() -> None:
        _append(lake, task.games, rows_per_table // 100, dice)

    steps = {
        "query": _median(lambda: _query(spark, lake)),
        "full": _median(lambda: views.refresh_view(VIEW, full=True)),
        "nothing": _median(lambda: views.refresh_view(VIEW)),
        "few": _median(lambda: views.refresh_view(VIEW), before=append_to_two_tables),
        "all": _median(lambda: views.refresh_view(VIEW), before=append_to_all_tables),
        "loop": _median(lambda: _loop(spark, lake, task.games), repeat=1),
    }
    append_to_all_tables()
    share = _share_read(views, lake)
    gold = spark.read.format("delta").load(str(lake / "gold" / "game_0000_sessions"))
    ((counted_in_view,),) = gold.agg({"session_count": "sum"}).collect()
    rows_of_table = spark.read.format("delta").load(str(lake / "silver" / "game_0000")).count()
    problem = ""
    if counted_in_view != rows_of_table:
        problem = f"gold counts {counted_in_view} of {rows_of_table} rows"
    return Run(steps["full"], read=task.events, tables=task.games, steps=steps, peaks={"share": share}, problem=problem)


def _median(work: Callable[[], Any], before: Callable[[], Any] = lambda: None, repeat: int = REPEAT) -> float:
    """Return the median seconds of some runs after one that is not counted; a single run is counted."""
    warm_up = 1 if repeat > 1 else 0
    seconds = []
    for _ in range(warm_up + repeat):
        before()
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[warm_up:])


def _query(spark: SparkSession, lake: Path) -> None:
    frame = spark.read.format("delta").load(str(lake / "one" / "all"))
    frame.createOrReplaceTempView("everything")
    sessions = spark.sql(f"SELECT game, {COLUMNS} FROM everything GROUP BY game, gamer_id")
    sessions.write.format("delta").mode("overwrite").save(str(lake / "one" / "sessions"))


def _loop(spark: SparkSession, lake: Path, tables: int) -> None:
    for number in range(tables):
        table = spark.read.format("delta").load(str(lake / "silver" / f"game_{number:04d}"))
        table.createOrReplaceTempView("one")
        sessions = spark.sql(f"SELECT {COLUMNS} FROM one GROUP BY gamer_id")
        sessions.write.format("delta").mode("overwrite").save(str(lake / "loop" / f"game_{number:04d}"))


def _share_read(views: Refresher, lake: Path) -> float:
    """Return the share of the sources' bytes that a refresh reads: those of the newest file of each table."""
    files = list(lake.glob("silver/*/*.parquet"))
    newest = []
    for table in lake.glob("silver/*"):
        newest.append(max(table.glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns))
    older = [file for file in files if file not in newest]
    # All older files are out of reach meanwhile: the refresh would fail if it read one of them.
    for file in older:
        file.rename(file.with_suffix(".away"))
    try:
        refreshed = views.refresh_view(VIEW)
    finally:
        for file in older:
            file.with_suffix(".away").rename(file)
    assert refreshed.way == "merge", refreshed
    return sum(file.stat().st_size for file in newest) / sum(file.stat().st_size for file in files)


VIEWS = Subject("views", "router, a view of many tables", _session, _run, lambda task, run: run.problem)
