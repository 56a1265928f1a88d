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
from router.engine.views.schedule import refresher
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
    lake, dice, each = Path(task.lake), np.random.default_rng(0), task.events // task.games
    for _ in range(2):
        _append(lake, task.games, each // 2, dice)
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
    at, checkpoint = lake_and_checkpoint(config)
    by = refresher(config, spark, at, CheckpointStore(checkpoint))
    steps = {
        "query": _median(lambda: _query(spark, lake)),
        "full": _median(lambda: by.refresh(VIEW, full=True)),
        "nothing": _median(lambda: by.refresh(VIEW)),
        "few": _median(lambda: by.refresh(VIEW), before=lambda: _append(lake, 2, 100, dice)),
        "all": _median(lambda: by.refresh(VIEW), before=lambda: _append(lake, task.games, each // 100, dice)),
        "loop": _median(lambda: _loop(spark, lake, task.games), repeat=1),
    }
    share = _new(by, lake, task.games, each, dice)
    gold = spark.read.format("delta").load(str(lake / "gold" / "game_0000_sessions")).agg({"session_count": "sum"})
    ((found,),) = gold.collect()
    silver = spark.read.format("delta").load(str(lake / "silver" / "game_0000")).count()
    problem = "" if found == silver else f"gold counts {found} of {silver} rows"
    return Run(steps["full"], read=task.events, tables=task.games, steps=steps, peaks={"share": share}, problem=problem)


def _median(work: Callable[[], Any], before: Callable[[], Any] = lambda: None, repeat: int = REPEAT) -> float:
    """Return the median seconds of some runs after one that is not counted."""
    found = []
    for number in range(repeat + (repeat > 1)):
        before()
        began = time.perf_counter()
        work()
        if number or repeat == 1:
            found.append(time.perf_counter() - began)
    return statistics.median(found)


def _query(spark: SparkSession, lake: Path) -> None:
    frame = spark.read.format("delta").load(str(lake / "one" / "all"))
    frame.createOrReplaceTempView("everything")
    made = spark.sql(f"SELECT game, {COLUMNS} FROM everything GROUP BY game, gamer_id")
    made.write.format("delta").mode("overwrite").save(str(lake / "one" / "sessions"))


def _loop(spark: SparkSession, lake: Path, tables: int) -> None:
    for number in range(tables):
        spark.read.format("delta").load(str(lake / "silver" / f"game_{number:04d}")).createOrReplaceTempView("one")
        made = spark.sql(f"SELECT {COLUMNS} FROM one GROUP BY gamer_id")
        made.write.format("delta").mode("overwrite").save(str(lake / "loop" / f"game_{number:04d}"))


def _new(by: Refresher, lake: Path, tables: int, each: int, dice: np.random.Generator) -> float:
    """Return the share of the sources' bytes that a refresh reads after 1 % of new rows in every table."""
    _append(lake, tables, each // 100, dice)
    everything = sum(file.stat().st_size for file in lake.glob("silver/*/*.parquet"))
    newest = [max(one.glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns) for one in lake.glob("silver/*")]
    kept = [file.with_suffix(".away") for file in lake.glob("silver/*/*.parquet") if file not in newest]
    for place in kept:
        place.with_suffix(".parquet").rename(place)
    try:
        done = by.refresh(VIEW)  # it would fail if it read anything else
    finally:
        for place in kept:
            place.rename(place.with_suffix(".parquet"))
    assert done.way == "merge", done
    return sum(file.stat().st_size for file in newest) / everything


VIEWS = Subject("views", "router, a view of many tables", _session, _run, lambda task, run: run.problem)
