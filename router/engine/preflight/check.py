"""Analyse every expression of a configuration against an empty frame of the source's shape. Needs Spark, no data."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from router.config.problems import sort_problems
from router.delta.table_cache import TableCache
from router.engine import source
from router.engine.checkpoint_store import CheckpointStore, LearntSchemas, lake_and_checkpoint
from router.engine.label.planner import Planner, stages_in_words
from router.engine.label.route import RoutePlanner
from router.engine.lookup.loading import Lookups
from router.engine.outbox.apply import opened
from router.engine.preflight.lake_changes import LakeChanges
from router.engine.spark.session import build_session
from router.engine.views.schedule import refresher
from router.errors import ConfigError, LookupTableError, RouterError
from router.parts import RAW_SCHEMA, Preparation
from router.sinks import MergingSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router.config.loader import Loaded
    from router.config.models import Config
    from router.engine.label.planner import Stages
    from router.engine.preflight.lake_changes import Change
    from router.registry import Registry


Place = tuple[str | int, ...]
"""A location in the configuration: ("routes", 0, "match")."""


def check_plan(loaded: Loaded, registry: Registry, spark: SparkSession | None = None) -> str:
    """Say in which stages a batch will run, and how views follow their sources.

    Raises ConfigError with every rule, projection, expectation and table name that Spark cannot analyse.
    """
    session = spark or build_session(loaded.config)
    stages = _analysed(loaded, session, LearntSchemas())
    return "\n".join((stages_in_words(stages), *_views(loaded, session)))


def check_lake(loaded: Loaded, spark: SparkSession | None = None) -> list[Change]:
    """Return what changes with a configuration for its checkpoint, ledger and tables; nothing is written.

    Raises ConfigError like `check_plan`.
    """
    session = spark or build_session(loaded.config)
    lake, checkpoint = lake_and_checkpoint(loaded.config)
    store = CheckpointStore(checkpoint)
    stages = _analysed(loaded, session, CopiedSchemas(store))
    changes = LakeChanges(loaded.config, TableCache(lake), checkpoint)
    of_views = changes.full_views(refresher(loaded.config, session, lake, store))
    return [*changes.all_but_views(stages.labelling.layout), *of_views]


class CopiedSchemas(LearntSchemas):
    """What a decoder has learnt in a store, and what it learns while a check runs, which the store does not get."""

    def read(self, name: str) -> bytes | None:
        """Return what was written under a name here, else in the store."""
        return self.known.get(name) or super().read(name)

    def write(self, name: str, content: bytes) -> None:
        """Keep it for the check."""
        self.known[name] = content


def _analysed(loaded: Loaded, session: SparkSession, memory: LearntSchemas) -> Stages:
    """Return the stages in which a batch will run. Raises ConfigError."""
    config = loaded.config
    raw = session.createDataFrame([], RAW_SCHEMA)
    sample = partial(source.sample, session, config)
    place = Preparation(Path(loaded.path).parent, False, sample, memory, reads_topic=config.source.reads_topic)
    try:
        source.learn(session, config, memory)
        config = config.model_copy(update={"decode": config.decode.prepare(place).refresh(frozenset())})
        decoded = config.decode.decode(raw)
        decoded.schema  # noqa: B018 - analyses the frame
    except (AnalysisException, ParseException, RouterError, ValueError, OSError) as error:
        raise ConfigError((loaded.problem(("decode",), _first_line(error)),)) from error
    decoded = _looked_up(loaded, config, session, decoded)
    faults = [(path, _fault(decoded, make)) for path, make in _expressions(config)]
    faults += [fault for i, route in enumerate(config.routes) for fault in _names(decoded, RoutePlanner(i, route))]
    found = sort_problems(loaded.problem(path, what) for path, what in faults if what)
    if found:
        raise ConfigError(found)
    try:
        planned = Planner(config, config.decode, quiet=True, at_start=True).plan(raw)
        opened(config, session, place.folder, trial=True)
    except (AnalysisException, RouterError, OSError) as error:
        raise ConfigError((loaded.problem(("routes",), _first_line(error)),)) from error
    return planned.stages


def _views(loaded: Loaded, session: SparkSession) -> Iterator[str]:
    """Yield how each view follows its sources, as far as these are there. Raises ConfigError."""
    config = loaded.config
    lake, checkpoint = lake_and_checkpoint(config)
    by = refresher(config, session, lake, CheckpointStore(checkpoint))
    faults = []
    for index, view in enumerate(config.views):
        try:
            plan = by.plan(view)
        except (RouterError, OSError) as error:
            faults.append(loaded.problem(("views", index, "sql"), _first_line(error)))
        else:
            yield f"view {view.name}: {plan.way}: {plan.why}"
    if faults:
        raise ConfigError(sort_problems(faults))


def _looked_up(loaded: Loaded, config: Config, session: SparkSession, decoded: DataFrame) -> DataFrame:
    """Return an empty frame with the columns of lookups. Raises ConfigError at the lookup that is at fault."""
    lookups = Lookups(config)
    try:
        lookups.load(session)
        lookups.on(decoded)
        return session.createDataFrame([], StructType([*decoded.schema, *lookups.fields(decoded.columns)]))
    except LookupTableError as error:
        name, what, place = error.lookup, error.what, error.place
    except OSError as error:
        name, what, place = str(error).split()[1].strip(":"), _first_line(error), ()
    found = ((i, k) for i, route in enumerate(config.routes) for k, one in enumerate(route.lookup) if one.name == name)
    i, k = next(found, (0, 0))
    raise ConfigError((loaded.problem(("routes", i, "lookup", k, *place), what),))


def _expressions(config: Config) -> list[tuple[Place, Callable[[], Column]]]:
    found: list[tuple[Place, Callable[[], Column]]] = []
    for k, expectation in enumerate(config.bronze.expect if config.bronze else ()):
        place = ("bronze", "expect", k, "sql")
        found.append((place, lambda sql=expectation.sql: F.expr(sql).cast("boolean")))  # type: ignore[misc]
    for i, route in enumerate(config.routes):
        at = ("routes", i)
        found.append(((*at, "match"), lambda rule=route.match: rule.matches().cast("boolean")))  # type: ignore[misc]
        for k, text in enumerate(route.select):
            found.append(((*at, "select", k), lambda text=text: F.expr(text)))  # type: ignore[misc]
        for k, check in enumerate(route.expect):
            found.append(((*at, "expect", k, "sql"), lambda sql=check.sql: F.expr(sql).cast("boolean")))  # type: ignore[misc]
        for k, sink in enumerate(route.sinks):
            if isinstance(sink, MergingSink):
                found += [((*at, "sinks", k), partial(_deletes, sink)), ((*at, "sinks", k), partial(_newest, sink))]
    return found


def _names(frame: DataFrame, planner: RoutePlanner) -> Iterator[tuple[Place, str | None]]:
    """Yield the place of each sink with a name from data, and its fault; what `select` makes may be in a name."""
    for k, column in planner.table_columns().items():
        place = ("routes", planner.index, "sinks", k)
        with suppress(AnalysisException):  # of the projection, which has a fault of its own
            yield place, _fault(planner.frame_for_names(frame), partial(F.coalesce, column))


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
