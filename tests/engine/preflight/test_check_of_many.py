"""`router check --plan`: what only Spark can find is found in one round; a mistake in one part hides no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from router import ConfigError, StartError
from router.config.loader import load_config, load_sound
from router.config.models import Expectation, Route
from router.engine.preflight.check import check_plan
from router.registry import load_registry
from router_decoders import Json
from router_rules import Sql
from router_sinks import Delta
from tests.engine.query import records

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.engine.conftest import MakeQuery

FAULTY = """\
name: games
lake: LAKE
source:
  kafka: {servers: "127.0.0.1:1", topics: [games]}
decode:
  json: "game string, n int, at timestamp, deep struct<a: int>, tags map<string, string>, many array<int>"
bronze:
  table: bronze.all
  expect:
    - {name: small, sql: "length(valeu) < 5"}
    - {name: near, sql: "levenshtien(topic, 'x') > 1"}
routes:
  - name: wins
    match:
      all:
        - {sql: "event.m > 0"}
        - {sql: "array(event.n)"}
    select:
      - event.deep.d
      - lenght(event.game) AS size
      - date_add(event.tags, 1) AS later
      - explode(event.many) AS one
      - event.game
      - event.tags
      - event.many
    expect:
      - {name: total, sql: "sum(event.n) > 1"}
      - {name: tall, sql: "event.n.deep < 100"}
    sinks:
      - upsert:
          table: "silver.{event.gaem}"
          keys: [tags, gmae]
          newest_by: event.many
          delete_when: event.deep.x
      - delta:
          table: silver.wins
          partition_by: [tags]
      - tables: "silver.{event.gamme}"
      - upsert: {table: silver.kept, keys: [size], newest_by: later}
      - delta: {table: silver.near, cluster_by: [nowhere]}
  - name: names
    match: {sql: "true"}
    lookup:
      - {name: plans, rows: [{id: 1, plan: a}], on: {id: event.deep}}
      - {name: sizes, rows: [{id: 1, size: a}], on: {id: event.n}, columns: [siez]}
    select:
      - event.n AS a
      - event.game AS A
      - event.n + 1
      - NULL AS nothing
      - plans.plan
      - sizes.size
    sinks: [{delta: silver.names}]
  - name: feed
    match: {sql: "true"}
    select: ["event.n AS _change_type"]
    sinks:
      - delta: {table: silver.feed, properties: {delta.enableChangeDataFeed: "true"}}
      - upsert: {table: silver.merged, keys: [_change_type], newest_by: offset, columns: [lost]}
views:
  - {name: v, from: {tables: [silver.*]}, into: gold.v, sql: "SELECT 1 AS a FROM source"}
ledger: ops.ledger
dead_letters: ops.dead
"""
EXPECTED = [
    (10, "bronze.expect.0.sql", "`valeu` cannot be resolved"),
    (11, "bronze.expect.1.sql", "`levenshtien`"),
    (15, "routes.0.match", "`m`"),
    (15, "routes.0.match", "array(event.n)"),
    (19, "routes.0.select.0", "`d`"),
    (20, "routes.0.select.1", "`lenght`"),
    (21, "routes.0.select.2", "date_add(event.tags, 1)"),
    (22, "routes.0.select.3", "UNSUPPORTED_GENERATOR"),
    (27, "routes.0.expect.0.sql", "GROUP"),
    (28, "routes.0.expect.1.sql", "n"),
    (31, "routes.0.sinks.0.upsert.table", "`gaem`"),
    (32, "routes.0.sinks.0.upsert.keys", "`keys` names gmae, which `select` does not give"),
    (32, "routes.0.sinks.0.upsert.keys", "tags is map<string,string> and cannot be a key"),
    (33, "routes.0.sinks.0.upsert.newest_by", "`newest_by` has no order: it is array<int>"),
    (34, "routes.0.sinks.0.upsert.delete_when", "`delete_when`"),
    (37, "routes.0.sinks.1.delta.partition_by", "tags is map<string,string>, which no table is divided by"),
    (38, "routes.0.sinks.2.tables", "`gamme`"),
    (40, "routes.0.sinks.4.delta.cluster_by", "`cluster_by` names nowhere"),
    (44, "routes.1.lookup.0.on.id", "cast it"),
    (45, "routes.1.lookup.1.columns", "the table has no column siez"),
    (47, "routes.1.select", "columns a and A differ by case only"),
    (47, "routes.1.select", "has no name; write: ... AS name"),
    (47, "routes.1.select", "column nothing: a table cannot keep void"),
    (58, "routes.2.sinks.0", "change data feed"),
    (59, "routes.2.sinks.1.upsert.columns", "`columns` names lost"),
]


def test_one_round_finds_what_only_spark_can_find(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a configuration is mended one mistake, and half a minute of Spark's start, at a time."""
    registry = load_registry()
    text = FAULTY.replace("LAKE", str(tmp_path / "lake"))
    loaded = load_config(tmp_path / "games.yaml", registry, environ={}, text=text)
    with pytest.raises(ConfigError) as caught:
        check_plan(loaded, registry, spark)
    found = [(problem.line, problem.path, problem.what) for problem in caught.value.problems]

    shown = "\n".join(map(str, found))
    left = list(found)
    for line, path, words in EXPECTED:
        matching = [problem for problem in left if problem[:2] == (line, path) and words in problem[2]]
        assert matching, f"{line} {path} {words}\n{shown}"
        left.remove(matching[0])
    assert left == [], "nothing follows from another mistake"


STRUCTURE = """\
  - name: broken
    match: {sqll: "true"}
    sinks: [{delta: silver.broken}]
  - name: twice
    match: {sql: "true"}
    sinks: [{detla: silver.twice}, {rest: {url: "http://x/{event.gaem}"}}]
views:
"""


def test_mistakes_of_structure_hide_none_that_only_spark_can_find(spark: SparkSession, tmp_path: Path) -> None:
    """Without it the second round, which takes half a minute, finds as many mistakes as the first."""
    text = FAULTY.replace("LAKE", str(tmp_path / "lake")).replace("views:\n", STRUCTURE)
    text += "colour: red\nmaintenance: [{tables: 'silver.*', every: soon}]\n"
    file = tmp_path / "games.yaml"
    file.write_text(text)
    registry = load_registry()
    with pytest.raises(ConfigError) as caught:
        load_config(file, registry)
    of_structure = caught.value.problems
    rest = load_sound(file, registry, of_structure)
    assert rest is not None
    with pytest.raises(ConfigError) as caught:
        check_plan(rest, registry, spark)
    of_spark = [(problem.line, problem.path) for problem in caught.value.problems]

    assert len(of_structure) == 4, of_structure
    assert of_spark == [found[:2] for found in EXPECTED]


NO_CONDITIONS = """\
name: games
lake: LAKE
source:
  kafka: {servers: "127.0.0.1:1", topics: [games]}
decode:
  json: "game string, n int, deep struct<a: int>"
bronze:
  table: bronze.all
  expect: [{name: small, sql: "offset"}]
routes:
  - name: wins
    match: {sql: "event.game"}
    select: [event.game, event.n]
    expect: [{name: total, sql: "event.n"}]
    sinks:
      - tables: "silver.{event.deep}"
      - upsert: {table: ref.games, keys: [game], delete_when: event.n}
views:
  - name: v
    from: bronze.all
    into: gold.v
    sql: SELECT topic, count(*) AS n FROM source GROUP BY topic
    expect: [{name: many, sql: "n"}]
dead_letters: ops.dead
"""
FAULTS_OF_TYPES = [
    ("bronze.expect.0.sql", "it is bigint, and no condition"),
    ("routes.0.match", "it is string, and no condition"),
    ("routes.0.expect.0.sql", "it is int, and no condition"),
    ("routes.0.sinks.0.tables", "event.deep is struct<a:int>, and no name of a table"),
    ("routes.0.sinks.1.upsert.delete_when", "it is int, and no condition"),
    ("views.0.sql", "its expectation many: it is bigint, and no condition"),
]


def assert_told(text: str, faults: list[tuple[str, str]], spark: SparkSession, folder: Path) -> None:
    """Check that a configuration has these faults, in this order: the place of each, and words in it."""
    registry = load_registry()
    loaded = load_config(folder / "games.yaml", registry, environ={}, text=text.replace("LAKE", str(folder / "lake")))
    with pytest.raises(ConfigError) as caught:
        check_plan(loaded, registry, spark)
    found = [(problem.path, problem.what) for problem in caught.value.problems]
    assert [path for path, _ in found] == [path for path, _ in faults], found
    for (_, what), (_, words) in zip(found, faults, strict=True):
        assert words in what


def test_what_is_no_condition_and_no_name_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """Without it nothing matches, all rows are dead letters, or the run ends at every start with a stack trace."""
    assert_told(NO_CONDITIONS, FAULTS_OF_TYPES, spark, tmp_path)


ROUTES = """\
name: games
lake: LAKE
source:
  kafka: {servers: "127.0.0.1:1", topics: [games]}
decode:
  json: "game string, n int, at timestamp, customer string"
bronze: bronze.all
routes:
  - name: bets
    match: {sql: "true"}
    select: [event.customer, event.n AS amount, event.game, event.at]
    sinks:
      - tables: "silver.{event.game}"
      - upsert: {table: ref.customers, keys: [customer], history: scd2}
      - delta: {table: silver.all_bets}
dead_letters: ops.dead
views:
"""
GOOD_VIEWS = """\
  - name: good
    from: {route: bets}
    into: gold.{table}_good
    sql: SELECT table, sum(amount) AS n FROM source GROUP BY table
  - name: joined
    from: silver.all_bets
    tables: {customers: ref.customers}
    into: gold.joined
    sql: SELECT s.game, c.valid_to, c.customer FROM source s JOIN customers c ON s.customer = c.customer
  - {name: far_above, from: gold.above, into: gold.far_above, sql: "SELECT n + 1 AS m FROM source"}
  - {name: above, from: {view: good}, into: gold.above, sql: "SELECT n FROM source"}
  - name: of_records
    from: bronze.all
    into: gold.of_records
    sql: SELECT topic, max(offset) AS newest FROM source GROUP BY topic
  - {name: lost, from: slver.all_bets, into: gold.lost, sql: "SELECT 1 AS a FROM source"}
"""
FAULTY_VIEWS = """\
  - {name: unknown, from: {route: bets}, into: gold.unknown, sql: "SELECT amuont FROM source"}
  - {name: grouped, from: silver.*, into: gold.grouped, sql: "SELECT game, count(*) AS n FROM source GROUP game"}
  - {name: undeclared, from: silver.all_bets, into: gold.undeclared, sql: "SELECT 1 AS a FROM source JOIN customers"}
  - name: wrongly_joined
    from: silver.all_bets
    tables: {customers: ref.customers}
    into: gold.wrongly_joined
    sql: SELECT c.valid_until FROM source s JOIN customers c ON s.customer = c.customer
  - {name: over_view, from: gold.above, into: gold.over_view, sql: "SELECT n, o FROM source"}
  - {name: over_faulty, from: {view: unknown}, into: gold.over_faulty, sql: "SELECT anything FROM source"}
  - {name: of_runs, from: ops.ledger, into: gold.of_runs, sql: "SELECT batch_id, nothing FROM source"}
"""
FAULTS_OF_VIEWS = [
    ("views.6.sql", "`amuont`"),
    ("views.7.sql", "'game'"),
    ("views.8.sql", "`customers`"),
    ("views.9.sql", "`valid_until`"),
    ("views.10.sql", "`o`"),
    ("views.12.sql", "`nothing`"),
]


def test_views_are_analysed_over_tables_that_are_not_there_yet(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a faulty view is found when its tables are there: after the first batch, by nobody who looks."""
    assert_told(ROUTES + GOOD_VIEWS + FAULTY_VIEWS, FAULTS_OF_VIEWS, spark, tmp_path)


def test_a_view_of_a_table_that_nothing_makes_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Another configuration may make it, so it is no mistake; but most are mistyped, and would wait for ever."""
    registry = load_registry()
    # A table of before `select` had the other columns: the next batch gives it these.
    write_deltalake(tmp_path / "lake" / "silver" / "all_bets", pa.table({"customer": ["a"]}))
    text = (ROUTES + GOOD_VIEWS).replace("LAKE", str(tmp_path / "lake"))
    loaded = load_config(tmp_path / "games.yaml", registry, environ={}, text=text)

    told = check_plan(loaded, registry, spark)

    assert "view good: merge: its values can be merged" in told
    assert "view far_above: full: no column of it has the table of a row" in told
    assert "view lost: full: slver.all_bets is not there yet, and nothing here makes it; did you mean" in told
    assert "`silver.all_bets`?" in told


@pytest.mark.parametrize("sql", ["event.n", "event.game", "levenshtein(event.game, 'x')"])
def test_a_start_refuses_an_expectation_that_is_no_condition(make_query: MakeQuery, tmp_path: Path, sql: str) -> None:
    """Without it every batch ends with an error of Arrow that names neither route nor expectation."""
    route = Route(
        name="wins",
        match=Sql(where="true"),
        expect=(Expectation(name="total", sql=sql),),
        sinks=(Delta(table="silver.wins"),),
    )
    query = make_query(tmp_path, decode=Json(schema="game string, n int"), routes=(route,))
    with pytest.raises(StartError, match=r"route wins, expectation total: it is (int|integer|string), and no"):
        query.take(records([{"game": "uno", "n": 1}]))
