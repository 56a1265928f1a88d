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

from router.api.parts import Decoder, Preparation
from router.config.problems import sort_problems
from router.delta.table_cache import TableCache
from router.engine.checkpoint_store import CheckpointStore, LearntSchemas, lake_and_checkpoint
from router.engine.label.planner import Planner, decoding_of, stages_in_words
from router.engine.label.route import RoutePlanner
from router.engine.lookup.loading import Lookups
from router.engine.outbox.apply import opened
from router.engine.preflight.lake_changes import LakeChanges
from router.engine.source import source
from router.engine.spark.session import build_session
from router.engine.views.schedule import refresher
from router.errors import ConfigError, LookupTableError, PluginError, RouterError, StartError
from router.record import RAW_SCHEMA
from router.registry import call_part
from router.storage.addresses import is_local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router.config.loader import Loaded
    from router.config.models import Config
    from router.engine.label.planner import Stages
    from router.engine.preflight.lake_changes import Change
    from router.registry import Registry


_Place = tuple[str | int, ...]
"""A location in the configuration: ("routes", 0, "match")."""


def check_plan(loaded: Loaded, registry: Registry, spark: SparkSession | None = None) -> str:
    """Return in which stages a batch will run, how views follow their sources, and a folder that is missing, as text.

    Raises ConfigError with every rule, projection, expectation and table name that Spark cannot analyse.
    """
    session = spark or build_session(loaded.config)
    stages = _analyse(loaded, session, LearntSchemas())
    return "\n".join((stages_in_words(stages), *_views(loaded, session), *_missing_folder(loaded, session)))


def check_lake(loaded: Loaded, spark: SparkSession | None = None) -> list[Change]:
    """Return what changes with a configuration for its checkpoint, ledger and tables; nothing is written.

    Raises ConfigError like `check_plan`.
    """
    session = spark or build_session(loaded.config)
    lake, checkpoint = lake_and_checkpoint(loaded.config)
    store = CheckpointStore(checkpoint)
    stages = _analyse(loaded, session, CopiedSchemas(store))
    changes = LakeChanges(loaded.config, TableCache(lake), checkpoint)
    changes_of_views = changes.full_views(refresher(loaded.config, session, lake, store))
    return [*changes.all_but_views(stages.labelling.layout), *changes_of_views]


class CopiedSchemas(LearntSchemas):
    """The schemas that a decoder has learnt in a store; those that it learns while a check runs stay in memory."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a name that was written here, else the store's."""
        return self.known.get(name) or super().read(name)

    def write(self, name: str, content: bytes) -> None:
        """Keep the content for the check."""
        self.known[name] = content


def _analyse(loaded: Loaded, session: SparkSession, memory: LearntSchemas) -> Stages:
    """Return the stages in which a batch will run. Raises ConfigError.

    Each step needs the columns of the one before, so each raises its own faults: decoder, lookups, expressions, plan.
    """
    config = loaded.config
    raw = session.createDataFrame([], RAW_SCHEMA)
    preparation = Preparation(
        folder=Path(loaded.path).parent,
        refresh=False,
        sample=partial(source.sample, session, config),
        memory=memory,
        reads_topic=config.source.reads_topic,
    )
    try:
        source.learn(session, config, memory)
        prepared = call_part(config.decode, "prepare", Decoder, preparation)
        config = config.model_copy(update={"decode": prepared.refresh(frozenset())})
        decoding_of(config.decode, raw)
        decoded = config.decode.decode(raw)
        decoded.schema  # noqa: B018 - analyses the frame
    except (AnalysisException, ParseException, RouterError, ValueError, OSError) as error:
        raise ConfigError((loaded.problem(("decode",), _first_line(error)),)) from error
    decoded = _with_lookups(loaded, config, session, decoded)
    problems = [loaded.problem(place, fault) for place, fault in _faults(config, decoded)]
    if problems:
        raise ConfigError(sort_problems(problems))
    # What fails only now concerns the plan as a whole: no place in the file is more exact than `routes`.
    try:
        planned = Planner(config, config.decode, memory=memory, quiet=True, at_start=True).plan(raw)
        opened(config, session, preparation.folder, memory, trial=True)
    except (AnalysisException, RouterError, OSError) as error:
        raise ConfigError((loaded.problem(("routes",), _first_line(error)),)) from error
    return planned.stages


def _missing_folder(loaded: Loaded, session: SparkSession) -> Iterator[str]:
    """Yield that a local source of files has no folder here: no fault of the configuration, and a run is refused."""
    files = loaded.config.source.files
    if files is None or not is_local_path(files.path):
        return  # a check needs no rights in a bucket
    try:
        source.stream(session, loaded.config)
    except StartError as error:
        yield f"a run is refused here: {error}"


def _views(loaded: Loaded, session: SparkSession) -> Iterator[str]:
    """Yield how each view follows its sources, as far as these are there. Raises ConfigError."""
    config = loaded.config
    lake, checkpoint = lake_and_checkpoint(config)
    view_refresher = refresher(config, session, lake, CheckpointStore(checkpoint))
    problems = []
    for index, view in enumerate(config.views):
        # All views are tried, so that one run of `check` names every faulty query.
        try:
            plan = view_refresher.plan(view)
        except (RouterError, OSError) as error:
            problems.append(loaded.problem(("views", index, "sql"), _first_line(error)))
        else:
            yield f"view {view.name}: {plan.way}: {plan.why}"
    if problems:
        raise ConfigError(sort_problems(problems))


def _with_lookups(loaded: Loaded, config: Config, session: SparkSession, decoded: DataFrame) -> DataFrame:
    """Return an empty frame that has the columns of lookups as well. Raises ConfigError at the faulty lookup."""
    lookups = Lookups(config)
    try:
        lookups.load(session)
        lookups.on(decoded)
        return session.createDataFrame([], StructType([*decoded.schema, *lookups.fields(decoded.columns)]))
    except LookupTableError as error:
        place = (*_place_of_lookup(config, error.lookup), *error.place)
        raise ConfigError((loaded.problem(place, error.what),)) from error
    except OSError as error:
        # Its text begins with `lookup NAME: `.
        place = _place_of_lookup(config, str(error).split()[1].strip(":"))
        raise ConfigError((loaded.problem(place, _first_line(error)),)) from error


def _place_of_lookup(config: Config, name: str) -> _Place:
    for index, route in enumerate(config.routes):
        for number, lookup in enumerate(route.lookup):
            if lookup.name == name:
                return ("routes", index, "lookup", number)
    return ("routes", 0, "lookup", 0)


def _faults(config: Config, frame: DataFrame) -> Iterator[tuple[_Place, str]]:
    """Yield the places of expressions and table names that Spark cannot analyse, each with Spark's reason."""
    for place, make in _expressions(config):
        if fault := _fault(frame, make):
            yield place, fault
    for index, route in enumerate(config.routes):
        planner = RoutePlanner(index, route)
        broken_sinks = [*_broken_sinks(planner)]
        yield from broken_sinks
        if broken_sinks:
            continue
        # A fault of the projection itself was found above.
        with suppress(AnalysisException, ParseException, RouterError):
            for number, column in planner.table_columns().items():
                if fault := _fault(planner.frame_for_names(frame), partial(F.coalesce, column)):
                    yield ("routes", index, "sinks", number), fault
            for number, merging in planner.merging.items():
                for option, fault in planner.merge_faults(frame, merging):
                    yield ("routes", index, "sinks", number, merging.part_name, option), fault


def _expressions(config: Config) -> Iterator[tuple[_Place, Callable[[], Column]]]:
    """Yield the place of each expression, and a function that makes it: Spark may refuse that already."""
    for number, expectation in enumerate(config.bronze.expect if config.bronze else ()):
        yield ("bronze", "expect", number, "sql"), partial(_condition, expectation.sql)
    for index, route in enumerate(config.routes):
        planner = RoutePlanner(index, route)
        yield ("routes", index, "match"), partial(_match, planner)
        for number, sql in enumerate(route.select):
            yield ("routes", index, "select", number), partial(F.expr, sql)
        for number, check in enumerate(route.expect):
            yield ("routes", index, "expect", number, "sql"), partial(_condition, check.sql)


def _condition(sql: str) -> Column:
    return F.expr(sql).cast("boolean")


def _match(planner: RoutePlanner) -> Column:
    planner.check_rules()
    return planner.route.match.matches().cast("boolean")


def _broken_sinks(planner: RoutePlanner) -> Iterator[tuple[_Place, str]]:
    """Yield the place of each sink with a method that raises or returns another type."""
    for number, sink in enumerate(planner.route.sinks):
        try:
            planner.check_sink(sink)
        except PluginError as error:
            yield ("routes", planner.index, "sinks", number), str(error)


def _fault(frame: DataFrame, make: Callable[[], Column]) -> str | None:
    try:
        frame.select(make()).schema  # noqa: B018 - analyses the expression
    except (AnalysisException, ParseException, RouterError, ValueError) as error:
        return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
