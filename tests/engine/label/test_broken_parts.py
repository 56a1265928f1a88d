"""A plugin whose method raises or returns another type than promised is named, with its route, before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from router import Batch, ConfigError, PluginError, SinkError, StartError
from router.config.loader import load_config
from router.engine.checkpoint_store import CheckpointStore
from router.engine.label.planner import Planner
from router.engine.outbox.apply import Applier
from router.engine.preflight.check import check_plan
from router.record import RECORD_SCHEMA
from router.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router.delta.lake import Lake

PLUGIN = '''
from pyspark.sql import functions as F
from router import ApplyingSink, Decoder, KeyedTable, MergingSink, Rule, TableSink, hookimpl

class Nothing(Rule):
    """Return no column."""
    def matches(self):
        return None

class Raising(Rule):
    """Raise while the column is made."""
    def matches(self):
        return {}["shop"]

class NoTable(TableSink):
    """Return no table."""
    def table(self):
        return 7

class NoOrder(MergingSink):
    """Return one column where a tuple is promised."""
    def table(self):
        return "silver.x"
    def keyed(self):
        return KeyedTable(("n",))
    def newest(self):
        return F.col("event.n")

class Unprepared(ApplyingSink):
    """Forget to return itself."""
    def prepare(self, opening):
        pass
    def apply(self, events, batch):
        return None

class NoFrame(Decoder):
    """Return no frame."""
    def decode(self, raw):
        return None

class NoError(Decoder):
    """Add no column for errors."""
    def decode(self, raw):
        return raw.withColumn("event", F.struct(F.lit(1).alias("n")))

@hookimpl
def router_rules():
    return {"nothing": Nothing, "raising": Raising}

@hookimpl
def router_sinks():
    return {"no_table": NoTable, "no_order": NoOrder, "unprepared": Unprepared}

@hookimpl
def router_decoders():
    return {"no_frame": NoFrame, "no_error": NoError}
'''
GOOD = """\
name: games
lake: ./lake
source: {files: {path: ./in}}
decode: {json: "game string, n int"}
routes:
  - name: italy
    match: {sql: "event.n > 0"}
    sinks: [{delta: silver.some}]
dead_letters: ops.dead
"""
RULE = '{sql: "event.n > 0"}'
SINK = "{delta: silver.some}"
DECODER = '{json: "game string, n int"}'
FAULTS = {
    "rule of no column": (
        RULE,
        "{nothing: {}}",
        "routes.0.match",
        "route italy, rule nothing: matches() returned None; it must return Column",
    ),
    "rule inside a rule": (
        RULE,
        f"{{all: [{RULE}, {{nothing: {{}}}}]}}",
        "routes.0.match",
        "route italy, rule nothing: matches() returned None; it must return Column",
    ),
    "rule that raises": (
        RULE,
        "{raising: {}}",
        "routes.0.match",
        "route italy, rule raising: matches() raised KeyError: 'shop' (broken.py:13)",
    ),
    "sink of no table": (
        SINK,
        "{no_table: {}}",
        "routes.0.sinks.0",
        "route italy, sink no_table: table() returned a value of type int; it must return str or Column",
    ),
    "sink of no order": (
        SINK,
        "{no_order: {}}",
        "routes.0.sinks.0",
        "route italy, sink no_order: newest() returned a value of type Column; it must return tuple",
    ),
    "decoder of no frame": (
        DECODER,
        "{no_frame: {}}",
        "decode",
        "decoder no_frame: decode() returned None; it must return DataFrame",
    ),
    "decoder of no error": (
        DECODER,
        "{no_error: {}}",
        "decode",
        "decoder no_error: it must add the columns event (a struct) and _error (a string), "
        "and adds event struct<n:int>",
    ),
}


@pytest.mark.parametrize(("old", "new", "path", "text"), FAULTS.values(), ids=FAULTS)
def test_a_broken_part_is_named_by_the_check_and_at_the_start(
    spark: SparkSession, tmp_path: Path, old: str, new: str, path: str, text: str
) -> None:
    """Without it the author of a plugin gets an error from inside the router, without plugin, route or method."""
    plugin = tmp_path / "broken.py"
    plugin.write_text(PLUGIN)
    registry = load_registry([plugin])
    loaded = load_config(tmp_path / "games.yaml", registry, environ={}, text=GOOD.replace(old, new))

    with pytest.raises(ConfigError) as checked:
        check_plan(loaded, registry, spark)
    with pytest.raises(PluginError) as started:
        Planner(loaded.config, loaded.config.decode).plan_batch(spark.createDataFrame([], RECORD_SCHEMA))

    (problem,) = checked.value.problems
    assert (problem.path, problem.what) == (path, f"plugin {plugin}: {text}")
    assert (started.value.provider, started.value.what) == (str(plugin), text)
    assert started.value.exit_code == 2


def test_a_sink_that_is_not_prepared_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Without it None takes the place of the sink, and the first batch fails in the router."""
    plugin = tmp_path / "broken.py"
    plugin.write_text(PLUGIN)
    registry = load_registry([plugin])
    loaded = load_config(tmp_path / "games.yaml", registry, environ={}, text=GOOD.replace(SINK, "{unprepared: {}}"))

    with pytest.raises(ConfigError, match="sink unprepared: prepare\\(\\) returned None; it must return ApplyingSink"):
        check_plan(loaded, registry, spark)


def test_a_sink_that_returns_no_outcome_is_named(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """Without it the stream stops with an error from inside the router, without route and sink."""
    plugin = tmp_path / "broken.py"
    plugin.write_text(PLUGIN)
    registry = load_registry([plugin])
    loaded = load_config(tmp_path / "games.yaml", registry, environ={}, text=GOOD.replace(SINK, "{unprepared: {}}"))
    (sink,) = loaded.config.routes[0].sinks
    applier = Applier(lake, CheckpointStore(lake, "run"), "ops.dead", "games:run")

    with pytest.raises(SinkError) as error:
        applier.apply_once(sink, 1, spark.range(1), Batch("games", 0, "italy", "unprepared"))

    assert error.value.what == "apply() returned NoneType; it must return an Outcome"


@pytest.mark.parametrize("sql", ["event.n > > 0", "event.nope > 0", "no_such_function(event.n)"])
def test_an_expression_that_spark_refuses_is_named_with_its_route(
    spark: SparkSession, tmp_path: Path, sql: str
) -> None:
    """Without it a start says `unexpected ParseException`, and whoever supervises the run starts it again and again."""
    text = GOOD.replace("event.n > 0", sql)
    loaded = load_config(tmp_path / "games.yaml", load_registry(), environ={}, text=text)

    with pytest.raises(StartError, match=r"route italy has an expression that Spark refuses: .*check FILE --plan"):
        Planner(loaded.config, loaded.config.decode).plan_batch(spark.createDataFrame([], RECORD_SCHEMA))
