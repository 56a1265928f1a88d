"""Analyse every expression of a configuration against an empty frame of the source's shape. Needs Spark, no data."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from router.engine import source
from router.engine.checkpoint_store import LearntSchemas
from router.engine.label.planner import Planner, stages_in_words
from router.engine.outbox.apply import opened
from router.engine.session import build_session
from router.errors import ConfigError, RouterError
from router.parts import RAW_SCHEMA, Preparation
from router.sinks import MergingSink, TableSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.config.loader import Loaded
    from router.config.models import Config
    from router.registry import Registry


def check_plan(loaded: Loaded, registry: Registry, spark: SparkSession | None = None) -> str:
    """Say in which stages a batch will run.

    Raises ConfigError with every rule, projection, expectation and table name that Spark cannot analyse.
    """
    config = loaded.config
    session = spark or build_session(config)
    raw = session.createDataFrame([], RAW_SCHEMA)
    sample = partial(source.sample, session, config)
    place = Preparation(Path(loaded.path).parent, False, sample, LearntSchemas())
    try:
        config = config.model_copy(update={"decode": config.decode.prepare(place).refresh(frozenset())})
        decoded = config.decode.decode(raw)
        decoded.schema  # noqa: B018 - analyses the frame
    except (AnalysisException, ParseException, RouterError, ValueError, OSError) as error:
        raise ConfigError((loaded.problem(("decode",), _first_line(error)),)) from error
    found = tuple(loaded.problem(path, what) for path, make in _expressions(config) if (what := _fault(decoded, make)))
    if found:
        raise ConfigError(found)
    try:
        planned = Planner(config, config.decode, quiet=True).plan(raw)
        opened(config, session, place.folder, trial=True)
    except (AnalysisException, RouterError, OSError) as error:
        raise ConfigError((loaded.problem(("routes",), _first_line(error)),)) from error
    return stages_in_words(planned.stages)


def _expressions(config: Config) -> list[tuple[tuple[str | int, ...], Callable[[], Column]]]:
    found: list[tuple[tuple[str | int, ...], Callable[[], Column]]] = []
    for i, route in enumerate(config.routes):
        at = ("routes", i)
        found.append(((*at, "match"), lambda rule=route.match: rule.matches().cast("boolean")))  # type: ignore[misc]
        for k, text in enumerate(route.select):
            found.append(((*at, "select", k), lambda text=text: F.expr(text)))  # type: ignore[misc]
        for k, check in enumerate(route.expect):
            found.append(((*at, "expect", k, "sql"), lambda sql=check.sql: F.expr(sql).cast("boolean")))  # type: ignore[misc]
        for k, sink in enumerate(route.sinks):
            if isinstance(sink, (TableSink, MergingSink)) and not isinstance(sink.table(), str):
                found.append(((*at, "sinks", k), lambda sink=sink: sink.table().cast("string")))  # type: ignore[misc]
            if isinstance(sink, MergingSink):
                found += [((*at, "sinks", k), partial(_deletes, sink)), ((*at, "sinks", k), partial(_newest, sink))]
    return found


def _deletes(sink: MergingSink) -> Column:
    deletes = sink.deletes()
    return F.lit(False) if deletes is None else deletes.cast("boolean")


def _newest(sink: MergingSink) -> Column:
    return F.struct(F.lit(0), *sink.newest())


def _fault(frame: DataFrame, make: Callable[[], Column]) -> str | None:
    try:
        frame.select(make()).schema  # noqa: B018 - analyses the expression
    except (AnalysisException, ParseException, RouterError, ValueError) as error:
        return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
