"""`router check --plan`: Spark analyses every expression before the first start, and the faulty one is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from router import ConfigError
from router.config.loader import load_config
from router.engine.preflight.check import check_plan
from router.registry import Registry, load_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router import Problem

GOOD = """\
name: games
lake: ./lake
source:
  kafka: {servers: "127.0.0.1:1", topics: [game-events]}
decode: {json: "game string, n int"}
routes:
  - name: all
    match: {sql: "event.n > 0"}
    sinks: [{tables: "silver.{event.game}"}]
  - name: some
    match: {all: [{sql: "offset > 5"}, {field: {column: event.game, equals: uno}}]}
    select: ["event.*", "event.n + 1 AS more"]
    expect:
      - {name: sound, sql: "event.n < 100"}
    sinks: [{delta: silver.some}]
bronze:
  table: bronze.all
  expect:
    - {name: small, sql: "length(value) < 1000000", otherwise: fail}
    - {name: hashed, sql: "hash(value) != 1"}
dead_letters: ops.dead
"""
KAFKA = 'kafka: {servers: "127.0.0.1:1", topics: [game-events]}'
DEEP = "struct<x: " * 42 + "int" + ">" * 42
FAULTS = {
    "rule": ("event.n > 0", "event.m > 0", "routes.0.match", 8),
    "syntax of a rule": ("event.n > 0", "event.n > > 0", "routes.0.match", 8),
    "rule inside a rule": ("offset > 5", "ofset > 5", "routes.1.match", 11),
    "rule that is no condition": ("event.n > 0", "array(event.n)", "routes.0.match", 8),
    "projection": ("event.n + 1 AS more", "event.m + 1 AS more", "routes.1.select.1", 12),
    "expectation": ("event.n < 100", "event.n.deep < 100", "routes.1.expect.0.sql", 14),
    "expectation of bronze": ("length(value) <", "length(valeu) <", "bronze.expect.0.sql", 19),
    "another of bronze": ("hash(value) != 1", "hash(value) !!= 1", "bronze.expect.1.sql", 20),
    "template of a table": ("{event.game}", "{event.gaem}", "routes.0.sinks.0.tables", 9),
    "decoder": ("game string, n int", "game strin, n int", "decode", 5),
    "names that clash": ("event.n + 1 AS more", "event.n + 1 AS N", "routes.1.select", 12),
    "column too deep for a table": ("event.n + 1 AS more", f"CAST(NULL AS {DEEP}) AS more", "routes.1.sinks.0", 15),
    "type that no table keeps": ("event.n + 1 AS more", "NULL AS more", "routes.1.select", 12),
}

Check = Callable[[str], "tuple[Problem, ...]"]


@pytest.fixture(scope="module")
def registry() -> Registry:
    """Offer the built-in parts."""
    return load_registry()


@pytest.fixture
def check(spark: SparkSession, registry: Registry) -> Check:
    """Check a text."""

    def check(text: str) -> tuple[Problem, ...]:
        try:
            check_plan(load_config(Path("games.yaml"), registry, environ={}, text=text), registry, spark)
        except ConfigError as error:
            return error.problems
        return ()

    return check


def test_a_good_configuration_has_no_problem(check: Check) -> None:
    """Without it nobody trusts the check."""
    assert check(GOOD) == ()


@pytest.mark.parametrize(("old", "new", "path", "line"), FAULTS.values(), ids=FAULTS)
def test_the_faulty_expression_is_named(check: Check, old: str, new: str, path: str, line: int) -> None:
    """Without it a typing error stops the stream at its start, or sends every event to dead letters."""
    (problem,) = check(GOOD.replace(old, new))

    assert (problem.file, problem.path, problem.line) == ("games.yaml", path, line)
    assert problem.what
    assert "\n" not in problem.what


def test_all_faults_are_found_at_once(check: Check) -> None:
    """Without it a configuration is corrected one start at a time."""
    text = GOOD
    for name in ("rule", "projection", "expectation", "template of a table"):
        old, new, _, _ = FAULTS[name]
        text = text.replace(old, new)

    assert [problem.path for problem in check(text)] == [
        *["routes.0.match", "routes.0.sinks.0.tables", "routes.1.select.1", "routes.1.expect.0.sql"]
    ]


def test_a_missing_folder_of_the_source_is_said(spark: SparkSession, tmp_path: Path) -> None:
    """Without it the start is the first that tells it. It is no fault: a check may run on another machine."""
    text = GOOD.replace(KAFKA, f"files: {{path: {tmp_path}/nowhere}}")
    registry = load_registry()
    loaded = load_config(tmp_path / "games.yaml", registry, environ={}, text=text)
    assert f"a run is refused here: the source has no folder {tmp_path}/nowhere" in check_plan(loaded, registry, spark)

    (tmp_path / "nowhere").mkdir()
    assert "refused" not in check_plan(loaded, registry, spark)
