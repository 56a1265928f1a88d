"""The plan: one pass that says where every row goes, whatever the rules raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from router import RAW_SCHEMA, StartError
from router.config.models import Config, Expectation, Route
from router.engine.label.labels import label_records
from router.engine.label.planner import Plan, Planner
from router.engine.source.position import arrival_of
from router_decoders.json import Json
from tests.engine.parts import Copy, Events, Fixed, Named, Where
from tests.engine.query import SOURCE, records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from router import Decoder, Sink
    from tests.engine.conftest import MakeQuery

DDL = "game string, n int, text string"
VALUES: list[dict[str, Any] | bytes] = [
    {"game": "uno", "n": 1, "text": "1"},
    {"game": "uno", "n": 0, "text": "x"},
    {"game": "rummy", "n": 2},
    {"game": "rummy"},
    b"garbage",
]


def config_of_routes(*routes: Route, decode: Decoder | None = None, **settings: Any) -> Config:
    settings = {"name": "games", "lake": "none", "dead_letters": "ops.dead", "source": SOURCE, **settings}
    return Config(decode=decode or Events(ddl=DDL), routes=routes, **settings)


def route(sql: str = "true", name: str = "r", sinks: tuple[Sink, ...] = (), **more: Any) -> Route:
    return Route(name=name, match=Where(sql=sql), sinks=sinks or (Fixed(name="silver.t"),), **more)


def labels(planned: Plan, *columns: str) -> list[Any]:
    """Return label columns in the order of the offsets; `row.field` is a field of a struct."""
    frame, labelling = planned.frame_for_landing(planned.raw)
    (batch,) = frame.orderBy("offset").toArrow().combine_chunks().to_batches()
    rows = label_records(batch, labelling, {}).to_pylist()
    found = [tuple(_at(row, column) for column in columns) for row in rows]
    return found if len(columns) > 1 else [value for (value,) in found]


def _at(row: dict[str, Any], column: str) -> Any:
    name, _, field = column.partition(".")
    return row[name] and row[name][field] if field else row[name]


def letters(planned: Plan) -> list[list[tuple[str, str | None]]]:
    """Return (stage, route) of the dead letters of each record."""
    return [[(why["stage"], why["route"]) for why in dead or ()] for dead in labels(planned, "_dead")]


@pytest.fixture(scope="module")
def planned(spark: SparkSession) -> Callable[..., Plan]:
    """Plan the values above."""
    raw = spark.createDataFrame(records(VALUES)).withColumn("arrival", F.lit(0).cast("long")).cache()

    def planned(*routes: Route, **settings: Any) -> Plan:
        made = config_of_routes(*routes, **settings)
        return Planner(made, made.decode).plan_batch(raw)

    return planned


RULES = {
    "plain": ("event.game = 'uno'", [True, True, False, False, False]),
    "null is no match": ("event.n > 1", [False, False, True, False, False]),
    "a cast that raises": ("cast(event.text AS int) = 1", [True, False, False, False, False]),
    "a division by zero": ("1 / event.n > 0.9", [True, False, False, False, False]),
    "negated, it is still no match": ("NOT (1 / event.n > 0.9)", [False, False, True, False, False]),
    "an overflow": ("event.n + 2147483647 > 0", [False, True, False, False, False]),
    "an error on purpose": ("if(event.n = 0, raise_error('no'), true)", [True, False, True, True, False]),
    "an index that is not there": ("element_at(array(1, null), event.n + 1) = 1", [False, True, False, False, False]),
    "a condition inside that raises": (
        "soundex(event.game) IS NOT NULL AND CASE WHEN int(event.text) > 5 THEN 'big' ELSE 'small' END = 'small'",
        [True, False, True, True, False],
    ),
    "raw columns": ("offset > 1 AND topic = 'events'", [False, False, True, True, False]),
    "a condition on what is no event": ("event IS NULL OR event.n = 1", [True, False, False, False, False]),
}


def test_rules_that_raise_on_a_row_do_not_match_it(planned: Callable[..., Plan]) -> None:
    """Without it one odd value in one rule stops every route."""
    found = planned(*[route(sql, name=f"r{i}") for i, (sql, _) in enumerate(RULES.values())])

    matched = zip(*labels(found, *[route.matched for route in found.layout.routes]), strict=True)

    assert dict(zip(RULES, map(list, matched), strict=True)) == {name: wanted for name, (_, wanted) in RULES.items()}


@pytest.mark.usefixtures("compiled")
def test_a_rule_that_raises_on_a_row_is_no_match(planned: Callable[..., Plan]) -> None:
    """Without it Spark computes what two columns share ahead of both, outside of what catches it: the batch fails.

    See docs/decisions/0001. Spark must evaluate both routes, and its compiler must be on.
    """
    share = "event.n div (event.n - 1)"
    rule = f"soundex(event.game) IS NOT NULL AND {share} >= 0"
    found = planned(*[route(rule, f"r{i}", select=("event.*", f"{share} AS share")) for i in range(2)])

    assert [*found.stages.routes_by_spark] == ["r0", "r1"]
    assert labels(found, "_to0_0", "_to1_0") == [
        *[(False, False), (True, True), (True, True), (False, False), (False, False)]
    ]
    assert labels(found, "_row1.share") == [None, 0, 2, None, None]


def test_the_session_is_strict_about_values(spark: SparkSession) -> None:
    """Without it a sum that overflows is a wrong number in a table, not a dead letter."""
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"


def test_a_projection_that_raises_is_a_dead_letter(planned: Callable[..., Plan]) -> None:
    """Without it one row stops the batch, or vanishes."""
    found = planned(route(select=("event.*", "10 div event.n AS share")), route(name="whole"))

    assert letters(found) == [[], [("select", "r")], [], [], [("decode", None)]]
    assert labels(found, "_to0_0") == [True, False, True, True, False]
    assert labels(found, "_to1_0") == [True, True, True, True, False]
    assert labels(found, "_row0.share") == [10, None, 5, None, None]


def test_expectations_decide_what_becomes_of_a_row(planned: Callable[..., Plan]) -> None:
    """Without it a bad row lands, or a good one does not."""
    checks = (
        Expectation(name="has_n", sql="event.n IS NOT NULL"),
        Expectation(name="sound", sql="1 / event.n > 0", otherwise="drop"),
        Expectation(name="small", sql="event.n < 2", otherwise="warn"),
        Expectation(name="known", sql="event.game = 'uno'", otherwise="fail"),
    )
    found = planned(route(expect=checks))
    (names,) = found.layout.routes
    columns = (names.refused, names.dropped, names.violated["small"], names.violated["known"], "_to0_0")

    assert letters(found) == [[], [], [], [("expect", "r")], [("decode", None)]]
    assert labels(found, *columns) == [
        (False, False, False, False, True),
        (False, True, False, False, False),  # 1 / 0 raises: it does not hold
        (False, False, True, True, True),
        (True, False, True, True, False),  # a dead letter is not dropped as well
        (False, False, False, False, False),
    ]
    assert "has_n" in labels(found, "_dead")[3][0]["reason"]


def test_every_matching_route_gets_the_event(planned: Callable[..., Plan]) -> None:
    """Without it the order of routes decides who gets what."""
    found = planned(route("event.n >= 0", "one"), route("event.n >= 1", "two"), route("event.game = 'none'", "three"))

    assert labels(found, "_to0_0", "_to1_0", "_to2_0") == [
        *[(True, True, False), (True, False, False), (True, True, False)],
        *[(False, False, False), (False, False, False)],
    ]


@pytest.mark.parametrize(
    ("unmatched", "wanted"),
    [("dead_letters", [("match", None)]), ("drop", [])],
    ids=["dead letters", "dropped"],
)
def test_what_no_route_takes(
    planned: Callable[..., Plan], unmatched: str, wanted: list[tuple[str, str | None]]
) -> None:
    """Without it events of a game that nobody has configured yet are lost, or cannot be ignored."""
    found = planned(route("event.game = 'uno'"), unmatched=unmatched)

    assert letters(found) == [[], [], wanted, wanted, [("decode", None)]]
    assert labels(found, "_unmatched") == [False, False, True, True, False]


def test_names_from_data_are_folded_or_refused(planned: Callable[..., Plan]) -> None:
    """Without it an event could be written into the dead letters, or beside the lake."""
    name = (
        "CASE event.n WHEN 1 THEN 'Silver.Uno' WHEN 0 THEN 'ops.dead' WHEN 2 THEN '../x' ELSE cast(1 / 0 AS string) END"
    )
    found = planned(route(sinks=(Named(sql=name), Fixed(name="silver.t"))))

    assert labels(found, "_to0_0", "_bad_name0_0") == [
        ("silver.uno", False),
        (None, True),
        (None, True),
        (None, True),
        (None, False),
    ]
    assert letters(found) == [[], [("name", "r")], [("name", "r")], [("name", "r")], [("decode", None)]]
    assert labels(found, "_to0_1") == [True, True, True, True, False]
    assert {why["sink"] for dead in labels(found, "_dead")[1:4] for why in dead} == {"named"}


def test_sinks_of_one_kind_have_names_of_their_own(planned: Callable[..., Plan]) -> None:
    """Without it two sinks share a transaction id, and the second one's rows are taken for a replay."""
    found = planned(route(sinks=(Fixed(name="silver.a"), Copy(to="x"), Fixed(name="silver.b"), Copy(to="y"))))

    assert [target.key for target in found.layout.targets] == ["r/fixed", "r/copy", "r/fixed_2", "r/copy_2"]
    assert [target.table for target in found.layout.targets if target.outbox] == [
        "outbox.games__r__copy",
        "outbox.games__r__copy_2",
    ]


@pytest.mark.parametrize("routes", [1, 20], ids=["one route", "twenty routes"])
def test_a_record_is_decoded_once(planned: Callable[..., Plan], routes: int) -> None:
    """Without it every route pays for decoding again, and 200 tables cost 200 times as much."""
    found = planned(
        *[route(f"event.n > {i}", f"r{i}", select=("event.*", "event.n + 1 AS more")) for i in range(routes)]
    )

    optimised = found.frame_for_landing(found.raw)[0]._jdf.queryExecution().optimizedPlan().toString()

    assert optimised.count("from_json(") == 1


@pytest.mark.parametrize(
    "select",
    [
        ("event.n + 1",),
        ("event.n AS `a b`",),
        ("event.n AS a", "event.text AS A"),
        ("struct(event.n AS `x;y`) AS s",),
        ("array(struct(event.n AS `x y`)) AS list",),
        ("map('k', struct(event.n AS a, event.n AS A)) AS m",),
    ],
    ids=["no name", "blank", "case", "nested", "in a list", "in a map"],
)
def test_names_that_delta_cannot_keep_stop_the_start(planned: Callable[..., Plan], select: tuple[str, ...]) -> None:
    """Without it the first batch fails at its commit, with a sentence that names no route."""
    with pytest.raises(StartError):
        planned(route(select=select))


@pytest.mark.parametrize(
    "select", [("event.n AS n", "NULL AS nothing"), ("make_interval(event.n) AS i",)], ids=["void", "interval"]
)
def test_types_that_delta_cannot_keep_stop_the_start(planned: Callable[..., Plan], select: tuple[str, ...]) -> None:
    """Without it the first batch fails in the middle of landing."""
    with pytest.raises(StartError):
        planned(route(select=select))


def test_columns_that_an_outbox_adds_are_taken(planned: Callable[..., Plan]) -> None:
    """Without it a column called _offset is written twice, and the outbox cannot be read."""
    with pytest.raises(StartError):
        planned(route(select=("event.n AS _offset",), sinks=(Copy(to="x"),)))


def test_a_planner_follows_the_schema_of_the_events(spark: SparkSession) -> None:
    """Without it a new field of a registry's schema is in no table until a restart."""
    raw, decoders = spark.createDataFrame([], RAW_SCHEMA), [Events(ddl="n int"), Events(ddl="n int, more string")]
    planner, schemas = Planner(config_of_routes(route()), config_of_routes(route()).decode), []
    for decoder in [*decoders, decoders[0]]:
        planner.decoder = decoder
        (target,) = planner.plan_batch(raw).layout.targets
        schemas.append(target.schema.names)

    assert schemas == [["n"], ["n", "more"], ["n"]]


DECODERS = {"by tasks": Json(schema=DDL), "by Spark": Events(ddl=DDL)}
FOR_SPARK = "soundex('a') = 'A000'"


@pytest.mark.parametrize(("decoded", "sql"), [("by tasks", "true"), ("by tasks", FOR_SPARK), ("by Spark", "true")])
def test_every_batch_has_the_same_plan(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], decoded: str, sql: str
) -> None:
    """Without it Spark compiles the plan for each batch, since a constant in it is another one."""
    raw = spark.createDataFrame(records(VALUES))
    planner = Planner(config_of_routes(route(sql)), DECODERS[decoded])
    frame, _ = planner.plan_batch(raw, arrival=987654321).frame_for_landing(raw)

    frame.explain(extended=True)

    explained = capsys.readouterr().out
    assert "Physical Plan" in explained
    assert "987654321" not in explained


@pytest.mark.parametrize("decoded", DECODERS)
@pytest.mark.parametrize("also", ["true", FOR_SPARK], ids=["a rule for tasks", "a rule for Spark"])
def test_a_rule_sees_the_arrival_of_its_batch(make_query: MakeQuery, tmp_path: Path, also: str, decoded: str) -> None:
    """Without it a rule on a column of bronze is null for the records of the stream."""
    rule = f"arrival = {arrival_of(0, 1)} AND {also}"
    query = make_query(tmp_path, decode=DECODERS[decoded], routes=(route(rule),))
    query.take(records(VALUES))
    query.take(records(VALUES, first=100))

    assert len(query.rows("silver.t")) == len(VALUES) - 1
