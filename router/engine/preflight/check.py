"""Analyse every expression of a configuration against an empty frame of the source's shape. Needs Spark, no data."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from router.api.parts import Decoder, Preparation, Rule
from router.api.sinks import LakeSink, MergingSink
from router.config.models import names_of
from router.config.problems import sort_problems
from router.delta.keyed.row_checks import wanted_schema
from router.delta.table_cache import TableCache
from router.engine import ledger
from router.engine.checkpoint_store import CheckpointStore, CopiedSchemas, LearntSchemas, lake_and_checkpoint
from router.engine.label.layout import BRONZE_SCHEMA, DEAD_SCHEMA, with_order_columns
from router.engine.label.planner import Planner, decoding_of, stages_in_words
from router.engine.label.route import CONDITIONS, RoutePlanner, no_condition
from router.engine.lookup.loading import Lookups
from router.engine.outbox.apply import open_sinks
from router.engine.preflight.lake_changes import LakeChanges
from router.engine.source import source
from router.engine.spark.session import build_session
from router.engine.views.refresh import NOT_THERE
from router.engine.views.schedule import create_refresher, in_order
from router.engine.views.sources import PlannedTable
from router.errors import ConfigError, LookupTableError, PluginError, RouterError, StartError
from router.record import RAW_SCHEMA
from router.registry import call_part, parts_in, suggest_names
from router.storage.addresses import is_local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from router.api.sinks import Sink
    from router.config.loader import Loaded
    from router.config.models import Config
    from router.engine.label.layout import Target
    from router.engine.label.planner import Stages
    from router.engine.preflight.lake_changes import Change
    from router.errors import Problem
    from router.registry import Registry


_Place = tuple[str | int, ...]
"""A location in the configuration: ("routes", 0, "match")."""


def check_plan(loaded: Loaded, registry: Registry, spark: SparkSession | None = None) -> str:
    """Return in which stages a batch will run, how views follow their sources, and a folder that is missing, as text.

    Raises ConfigError with every rule, projection, expectation and table name that Spark cannot analyse.
    """
    session = spark or build_session(loaded.config)
    problems: list[Problem] = []
    stages, targets = _analyse_config(loaded, session, LearntSchemas(), problems)
    views = [*_check_views(loaded, session, targets, problems)]
    if problems or stages is None:
        raise ConfigError(sort_problems(problems))
    return "\n".join((stages_in_words(stages), *views, *_missing_folder(loaded, session)))


def check_lake(loaded: Loaded, spark: SparkSession | None = None) -> list[Change]:
    """Return the changes of a configuration for its checkpoint, ledger and tables; nothing is written.

    Raises ConfigError like `check_plan`.
    """
    session = spark or build_session(loaded.config)
    lake, checkpoint = lake_and_checkpoint(loaded.config)
    store = CheckpointStore(checkpoint)
    problems: list[Problem] = []
    stages, _ = _analyse_config(loaded, session, CopiedSchemas(store), problems)
    if problems or stages is None:
        raise ConfigError(sort_problems(problems))
    changes = LakeChanges(loaded.config, TableCache(lake), checkpoint)
    changes_of_views = changes.full_views(create_refresher(loaded.config, session, lake, store))
    return [*changes.all_but_views(stages.labelling.layout), *changes_of_views]


def _analyse_config(
    loaded: Loaded, session: SparkSession, memory: LearntSchemas, problems: list[Problem]
) -> tuple[Stages | None, dict[str, Target]]:
    """Return the stages in which a batch will run, and the targets of sinks; None, and further problems, if it cannot.

    Without a decoder no column of an event is known, so its fault is the only one that hides others.
    """
    config = loaded.config
    raw = session.createDataFrame([], RAW_SCHEMA)
    preparation = Preparation(
        folder=Path(loaded.path).parent,
        refresh=False,
        sample=partial(source.read_sample, session, config),
        memory=memory,
        reads_topic=config.source.reads_topic,
    )
    try:
        source.learn_columns(session, config, memory)
        prepared = call_part(config.decode, "prepare", Decoder, preparation)
        config = config.model_copy(update={"decode": prepared.refresh(frozenset())})
        decoding_of(config.decode, raw)
        decoded = config.decode.decode(raw)
        decoded.schema  # noqa: B018 - analyses the frame
    except (AnalysisException, ParseException, RouterError, ValueError, OSError) as error:
        problems.append(loaded.problem_at(("decode",), _first_line(error)))
        return None, {}
    decoded, faults = _with_lookups(config, session, decoded)
    unknown = {*config.lookups_by_name()} - {*decoded.columns}
    for place, fault in _find_expression_faults(config, decoded):
        # The columns of a table that cannot be loaded are unknown, and no mistake.
        if not any(f"with name `{name}`" in fault for name in unknown):
            faults.append((place, fault))

    targets: dict[str, Target] = {}

    def plan_stages(config: Config) -> Stages:
        planned = Planner(config, config.decode, memory=memory, quiet=True, at_start=True).plan_batch(raw)
        targets.update({target.key: target for target in planned.layout.targets})
        open_sinks(config, session, preparation.folder, memory, trial=True)
        return planned.stages

    if not faults:
        try:
            return plan_stages(config), targets
        except (AnalysisException, RouterError, OSError) as error:
            faults += _faults_of_sinks(config, plan_stages, []) or [(("routes",), _first_line(error))]
    else:
        faults += _faults_of_sinks(config, plan_stages, [place for place, _ in faults])
    problems += [loaded.problem_at(place, fault) for place, fault in faults]
    return None, targets


def _faults_of_sinks(
    config: Config, plan: Callable[[Config], object], faulty: Iterable[_Place]
) -> list[tuple[_Place, str]]:
    """Return why sinks cannot be planned, each without the others; those at or below a `faulty` place are skipped."""
    faults: list[tuple[_Place, str]] = []
    for index, route in enumerate(config.routes):
        for number, name in enumerate(route.named_sinks):
            place: _Place = ("routes", index, "sinks", number)
            if any(other[:2] == place[:2] and (other[2] != "sinks" or other[3] == number) for other in faulty):
                continue

            def is_it(of_route: str, sink: str, _: Sink, key: tuple[str, str] = (route.identity, name)) -> bool:
                return (of_route, sink) == key

            try:
                plan(config.with_sinks(is_it))
            except LookupTableError:
                continue  # found at its own place
            except (AnalysisException, RouterError, OSError) as error:
                faults.append((place, _first_line(error)))
    return faults


def _missing_folder(loaded: Loaded, session: SparkSession) -> Iterator[str]:
    """Yield that a local source of files has no folder here: no fault of the configuration, and a run is refused."""
    files = loaded.config.source.files
    if files is None or not is_local_path(files.path):
        return  # a check needs no rights in a bucket
    try:
        source.open_stream(session, loaded.config)
    except StartError as error:
        yield f"a run is refused here: {error}"


def _check_views(
    loaded: Loaded, session: SparkSession, targets: Mapping[str, Target], problems: list[Problem]
) -> Iterator[str]:
    """Yield how each view follows its sources, as they will be; add the problems of those that cannot."""
    config = loaded.config
    lake, checkpoint = lake_and_checkpoint(config)
    view_refresher = create_refresher(config, session, lake, CheckpointStore(checkpoint))
    for table in _planned_tables(config, targets):
        view_refresher.tables.plan_table(table)
    # All views are tried, so that one run of `check` names every faulty query.
    for view in in_order(config.views):
        try:
            plan = view_refresher.plan_view(view)
        except (RouterError, OSError) as error:
            problems.append(loaded.problem_at(("views", config.views.index(view), "sql"), _first_line(error)))
            continue
        hint = ""
        if plan.why.endswith(NOT_THERE):
            made = {name for writer, name in view_refresher.tables.planned if writer != f"view {view.name}"}
            missing, _, _ = plan.why.partition(" is ")
            hint = f", and nothing here makes it; {suggest_names(missing, made, 'this configuration makes')}"
        yield f"view {view.name}: {plan.way}: {plan.why}{hint}"


def _planned_tables(config: Config, targets: Mapping[str, Target]) -> Iterator[PlannedTable]:
    """Yield the tables that the router and its sinks will make; their columns are known of sinks with a target."""
    yield PlannedTable(config.dead_letters, planned=DEAD_SCHEMA)
    if config.bronze:
        yield PlannedTable(config.bronze.table, planned=BRONZE_SCHEMA)
    if config.ledger:
        yield PlannedTable(config.ledger, planned=ledger.SCHEMA)
    for route in config.routes:
        for name, sink in route.named_sinks.items():
            if not isinstance(sink, LakeSink) or not (table := names_of(sink)):
                continue
            target = targets.get(f"{route.identity}/{name}")
            columns = target.schema if target else None
            if target and isinstance(sink, MergingSink):
                columns = wanted_schema(target.schema, {*target.schema.names}, with_order_columns(sink))
            yield PlannedTable(table, writer=f"route {route.name}", planned=columns)


def _with_lookups(
    config: Config, session: SparkSession, decoded: DataFrame
) -> tuple[DataFrame, list[tuple[_Place, str]]]:
    """Return an empty frame that has the columns of the lookups that can be loaded, and the faults of lookups."""
    fields = [*decoded.schema]
    faults: list[tuple[_Place, str]] = []
    for name, lookup_source in Lookups(config).sources.items():
        lookup = Lookups(config)
        lookup.sources = {name: lookup_source}
        place = _place_of_lookup(config, name)
        try:
            lookup.load_missing(session)
            fields += lookup.added_fields(decoded.columns)
            lookup.key_expressions(decoded)
        except LookupTableError as error:
            faults.append(((*place, *error.place), error.what))
        except OSError as error:
            faults.append((place, _first_line(error)))
    return session.createDataFrame([], StructType(fields)), faults


def _place_of_lookup(config: Config, name: str) -> _Place:
    for index, route in enumerate(config.routes):
        for number, lookup in enumerate(route.lookup):
            if lookup.name == name:
                return ("routes", index, "lookup", number)
    return ("routes", 0, "lookup", 0)


def _find_expression_faults(config: Config, frame: DataFrame) -> Iterator[tuple[_Place, str]]:
    """Yield the places of expressions and options that Spark, or a table, cannot take, each with the reason."""
    for number, expectation in enumerate(config.bronze.expect if config.bronze else ()):
        if fault := _expression_fault(frame, partial(F.expr, expectation.sql), condition=True):
            yield ("bronze", "expect", number, "sql"), fault
    for index, route in enumerate(config.routes):
        for place, fault in _faults_of_route(RoutePlanner(index, route), frame):
            yield ("routes", index, *place), fault


def _faults_of_route(planner: RoutePlanner, frame: DataFrame) -> Iterator[tuple[_Place, str]]:
    """Yield the faults of one route, with their places below it: those of one expression hide none of another."""
    route = planner.route
    for reason in _faults_of_rules(planner, frame):
        yield ("match",), reason
    for number, check in enumerate(route.expect):
        if fault := _expression_fault(frame, partial(F.expr, check.sql), condition=True):
            yield ("expect", number, "sql"), fault
    select = []
    for number, sql in enumerate(route.select):
        if fault := _expression_fault(frame, partial(F.expr, sql)):
            yield ("select", number), fault
            # For the sinks a text stands for it: that one can be a key, and be ordered by.
            if name := re.search(r"(?:\bAS\s+|^[\w.]+\.)`?(\w+)`?\s*$", sql, re.IGNORECASE):
                select.append(f"CAST(NULL AS string) AS `{name[1]}`")
        else:
            select.append(sql)
    planner = replace(planner, route=route.model_copy(update={"select": tuple(select)}))
    for reason in planner.row_faults(frame, planner.row_type(frame)):
        yield ("select",), reason
    for number, sink in enumerate(route.sinks):
        for option, reason in _faults_of_sink(planner, frame, sink):
            yield ("sinks", number, *((sink.part_name, option) if option else ())), reason


def _faults_of_rules(planner: RoutePlanner, frame: DataFrame) -> Iterator[str]:
    """Yield the faults of a route's rules; a rule with a faulty one inside has no other fault."""
    faulty: set[int] = set()
    for rule in reversed([*parts_in(planner.route.match)]):
        if not isinstance(rule, Rule) or any(id(part) in faulty for part in parts_in(rule)):
            continue
        made = [partial(call_part, rule, "matches", Column, route=planner.route.name)]
        # Spark would take a text in them for true or false.
        made += [partial(F.expr, getattr(rule, option)) for option, kind in rule.texts.items() if kind == "sql"]
        if fault := next(filter(None, (_expression_fault(frame, make, condition=True) for make in made)), None):
            faulty.add(id(rule))
            yield fault


def _faults_of_sink(planner: RoutePlanner, frame: DataFrame, sink: Sink) -> Iterator[tuple[str, str]]:
    """Yield the faulty options of a sink, or "" if one of its methods raises or returns another type."""
    # On its own: another sink that raises would hide this one.
    planner = replace(planner, route=planner.route.model_copy(update={"sinks": (sink,)}))
    try:
        planner.check_sink(sink)
    except PluginError as error:
        yield "", str(error)
        return
    yield from (("table", fault) for _, fault in planner.name_faults(frame, planner.row_type(frame)))
    for column in planner.table_columns().values():
        if fault := _expression_fault(planner.frame_for_names(frame), partial(F.coalesce, column)):
            yield "table", fault
    yield from planner.sink_faults(frame, sink)


def _expression_fault(frame: DataFrame, make: Callable[[], Column], *, condition: bool = False) -> str | None:
    try:
        # Beside a column no expression can be an aggregate, and inside a struct none can make several rows.
        made = frame.select("event", F.struct(F.lit(0), make()).alias("made")).schema["made"].dataType
        assert isinstance(made, StructType)
        kind = made[1].dataType.simpleString()
        if condition and kind not in CONDITIONS:
            return no_condition(kind)
    except (AnalysisException, ParseException, RouterError, ValueError) as error:
        return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    if isinstance(error, AnalysisException) and error.getCondition() == "MISSING_GROUP_BY":
        # Spark's advice is for a query.
        return "an aggregate, such as count(*) or sum(x), has no place here: each row is looked at alone (no GROUP BY)"
    return str(error).strip().split("\n")[0]
