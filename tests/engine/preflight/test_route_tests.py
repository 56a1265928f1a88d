"""Route tests pass where the configuration does what they say, and say what it does otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from router import StartError
from router.config.loader import load_config
from router.engine.preflight.route_tests import RouteTests, load_tests, run_tests
from router.registry import load_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.engine.preflight.route_tests import CaseResult

ROUTES = Path(__file__).parents[3] / "routes"
QUICK_ROUTES = ("games.test.yaml", "profiles.test.yaml")
CONFIGURATION = """\
name: games
lake: ./lake
source: {format: {name: rate}}
decode: {json: {schema: "game string, amount decimal(9,2), at timestamp, tags array<string>, more map<string,int>"}}
bronze: bronze.events
expectations: [{name: paid, sql: event.amount > 2, otherwise: warn}]
routes:
  - name: games
    match: {sql: "event.game IS NOT NULL"}
    expect: [paid]
    sinks: [{tables: "silver.{event.game}"}]
  - {name: copies, match: {sql: "event.amount > 5"}, sinks: [{copy: {to: /nowhere/at/all}}]}
  - {name: told, match: {sql: "event.amount > 50"}, sinks: [{telling: {to: /nowhere/at/all}}]}
views:
  - {name: wins, from: {tables: ["silver.*"]}, into: gold.wins, sql: "SELECT game, count(*) n FROM source GROUP BY 1"}
  - {name: best, from: {view: wins}, into: gold.best, sql: "SELECT max(n) AS n FROM source"}
dead_letters: ops.dead
"""
UNO = {"game": "uno", "amount": 5.5, "at": "2026-01-01T00:00:00Z", "tags": ["a"], "more": {"b": 1}}

LANES = {"outbox.games__copies__copy": 2}

Judge = Callable[..., tuple[str, ...]]


@pytest.fixture
def judge(spark: SparkSession, tmp_path: Path) -> Judge:
    """Run one case over the configuration above and return its faults."""
    plugin = tmp_path / "copy.py"
    plugin.write_text(
        "from router import hookimpl\nfrom tests.engine.parts import Copy, Telling\n\n\n"
        "@hookimpl\ndef router_sinks():\n    return {'copy': Copy, 'telling': Telling}\n"
    )

    def judge(*records: dict[str, Any], **expect: Any) -> tuple[str, ...]:
        loaded = load_config(tmp_path / "games.yaml", load_registry([plugin]), text=CONFIGURATION)
        tests = RouteTests.model_validate({"tests": [{"name": "case", "records": records, "expect": expect}]})
        (result,) = run_tests(loaded, tests, spark)
        return result.faults

    return judge


def test_a_case_passes_on_counts_rows_dead_letters_and_outboxes(judge: Judge) -> None:
    rows = [{**UNO, "amount": 5.50}]
    lanes = {"outbox.games__copies__copy": [{"game": "uno", "_offset": 0}]}

    assert not judge({"value": UNO}, tables={"silver.uno": rows, **lanes})
    assert not judge({"value": UNO}, tables={"silver.uno": 1, "outbox.games__copies__copy": 1}, violated={})
    assert not judge({"value": "no"}, {"value": "no"}, dead_letters=[{"stage": "decode", "reason": "JSON", "count": 2}])


@pytest.mark.parametrize(
    ("expect", "told"),
    [
        ({"tables": {"silver.uno": 2}}, "silver.uno"),
        ({"tables": {"silver.uno": [{"game": "uno", "tags": ["b"]}]}}, "silver.uno"),
        ({"tables": {"silver.uno": [{"game": "uno", "tags": {"a": 1}}]}}, "silver.uno"),
        ({}, "silver.uno"),
        ({"tables": {"silver.uno": 1, "silver.poker": 1}}, "silver.poker"),
        ({"tables": {"silver.uno": 1}, "dead_letters": [{"stage": "decode"}]}, "dead letters"),
        ({"tables": {"silver.uno": 1}, "violated": {}}, "games/paid: does not hold on 0 events expected, 1 found"),
        ({"tables": {"silver.uno": 1}, "violated": {"games/paid": 1, "x": 1}}, "x: there is no such expectation"),
    ],
    ids=[
        "count",
        "row",
        "a map for a list",
        "a table too many",
        "a table that does not come",
        "a dead letter",
        "violated",
        "no such one",
    ],
)
def test_a_case_fails_and_says_where(judge: Judge, expect: dict[str, Any], told: str) -> None:
    """Without it a test proves nothing."""
    faults = judge({"value": {**UNO, "amount": 1}}, **expect)

    assert faults
    assert all(fault.startswith(told) for fault in faults)


def test_a_dead_letter_that_is_not_expected_fails(judge: Judge) -> None:
    """Without it a route that loses records passes."""
    (fault,) = judge({"value": "no"})

    assert "decode" in fault


@pytest.mark.parametrize(
    ("schemas", "record", "told"),
    [
        ({}, {"event": {"game": "uno"}}, "asks no registry"),
        ({"game-events-value": ["games_v1.proto"]}, {"event": {"gmae": "uno"}}, "record 1 cannot be written"),
        ({"game-events-value": ["games_v1.proto"]}, {"event": {}, "schema": "games_v2.proto"}, "games_v2.proto is not"),
        ({"game-events-value": ["games_v9.proto"]}, {"event": {}}, "games_v9.proto"),
    ],
    ids=["no schemas", "unknown field", "a file that is not among the schemas", "a file that is not there"],
)
def test_an_event_that_cannot_be_written_says_why(spark: SparkSession, schemas: Any, record: Any, told: str) -> None:
    loaded = load_config(ROUTES / "games.yaml", load_registry(), environ={})
    case = {"name": "case", "records": [record], "expect": {}}
    tests = RouteTests.model_validate({"schemas": schemas, "tests": [case]})

    try:
        said = next(run_tests(loaded, tests, spark)).faults[0]
    except StartError as error:
        said = str(error)

    assert told in said


SHIPPED = [
    pytest.param(path, id=path.name, marks=() if path.name in QUICK_ROUTES else pytest.mark.slow)
    for path in sorted(ROUTES.glob("*.test.yaml"))
]


@pytest.mark.parametrize("path", SHIPPED)
def test_the_routes_that_we_ship_do_what_their_tests_say(spark: SparkSession, path: Path) -> None:
    tests = load_tests(path)
    loaded = load_config(tests.tested_configuration(path), load_registry(), environ=tests.variables)
    results: list[CaseResult] = list(run_tests(loaded, tests, spark))

    assert not [result for result in results if result.faults]


@pytest.mark.parametrize(
    ("tables", "faults"),
    [
        pytest.param({"gold.best": [{"n": 2}]}, 0, id="a view over a view"),
        pytest.param({"gold.wins": [{"game": "uno", "n": 2}], "gold.best": 1}, 0, id="both"),
        pytest.param({"gold.wins": [{"game": "uno", "n": 1}]}, 1, id="another count"),
        pytest.param({}, 0, id="none named"),
    ],
)
def test_rows_of_views_are_those_that_the_records_make(judge: Judge, tables: dict[str, Any], faults: int) -> None:
    assert len(judge({"value": UNO}, {"value": UNO}, tables={"silver.uno": 2, **LANES, **tables})) == faults


WIN = {"value": {**UNO, "amount": 99}}
LANE = {"silver.uno": 1, "outbox.games__copies__copy": 1}


@pytest.mark.parametrize(
    ("sent", "faults"),
    [
        pytest.param({"told/telling": [{"body": {"won": 99.0}}]}, 0, id="what is sent"),
        pytest.param({"told/telling": 1}, 0, id="how many"),
        pytest.param({"told/telling": [{"body": {"won": 98.0}}]}, 1, id="another body"),
        pytest.param({}, 1, id="nothing expected"),
        pytest.param({"told/telling": 1, "copies/copy": 1}, 1, id="a sink that does not say"),
    ],
)
def test_what_a_sink_would_send_is_held_against_what_is_expected(judge: Judge, sent: Any, faults: int) -> None:
    """Without it the body that a service gets is first seen by the service."""
    assert len(judge(WIN, tables=LANE, sent=sent)) == faults
