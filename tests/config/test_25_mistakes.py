"""Plain `check` names 25 mistakes of 25 kinds in one round: a mistake in one part hides no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from router import ConfigError
from router.config.loader import load_config
from router.errors import CODES
from router.registry import load_registry

FAULTY = """\
name: Games
lake: s4://bucket/lake
source:
  kafka: {topics: [games], rows_per_batch: many, options: {subscribe: games}}
decode: {json: "game string, amount dubble, at timestamp"}
routes:
  - name: wins
    match: {sql: "event.game IS NOT NULL AND"}
    select: ["event.*", "event.amuont AS x"]
    expect: [{name: e, sql: "(event.amount > 5"}, sound]
    sinks:
      - upsert: {table: silver.a, keys: [gmae], newest_by: att, delete_when: "event.gone"}
      - rest: {url: "http://x/{event.gam}", body: {text: "{event.amnt}"}}
      - detla: silver.b
  - name: wins
    match: {field: {column: event.gane, equals: x}}
    sinks:
      - tables: "silver.{event.gamme}"
      - delta: {table: ops.ledgers, evolutoin: fail}
      - delta: ops.dead_letters
  - name: orders
    match: {sql: "true"}
    sinks: [{delta: {table: silver.d, evolution: grow}}]
views:
  - {name: v, from: {route: lost}, into: gold.v, sql: "SELECT count(* FROM source"}
  - {name: w, from: silver.a, into: ops.dead_letters, sql: "SELECT 1 AS a FROM source"}
  - {name: x, from: silver.a, into: gold.v, sql: "SELECT 1 AS a FROM source", every: 5 parsecs}
trigger: {every: 1 min, once: true}
dead_letters: {table: ops.dead_letters, at_most: half}
ledger: ops.ledgers
landing: {spread: '${SPREAD}'}
colour: red
"""
EXPECTED = [
    (1, "name", "must be a name: lower-case letters, digits, _ and -"),
    (2, "lake", "s4://"),
    (4, "source.kafka", "`servers` is missing"),
    (4, "source.kafka.rows_per_batch", "must be a whole number"),
    (4, "source.kafka.options.subscribe", "this option belongs to the router"),
    (5, "decode.json", "`amount dubble`: no type that Spark knows"),
    (8, "routes.0.match.sql", "ends with AND"),
    (9, "routes.0.select.1", "events have no field `amuont`"),
    (10, "routes.0.expect.0.sql", "the ( at character 1 is not closed"),
    (10, "routes.0.expect.1", "no expectation of `expectations` is called sound"),
    (12, "routes.0.sinks.0.upsert.keys.0", "the route has no column `gmae`"),
    (12, "routes.0.sinks.0.upsert.newest_by", "`att` is no column of the route or the record"),
    (12, "routes.0.sinks.0.upsert.delete_when", "events have no field `gone`"),
    (13, "routes.0.sinks.1.rest.url", "events have no field `gam`"),
    (13, "routes.0.sinks.1.rest.body.text", "events have no field `amnt`"),
    (14, "routes.0.sinks.2.detla", "there is no sink `detla`"),
    (15, "routes.1.name", "the route at line 7 has the same name"),
    (16, "routes.1.match.field.column", "events have no field `gane`"),
    (18, "routes.1.sinks.0.tables", "events have no field `gamme`"),
    (19, "routes.1.sinks.1", "the sink writes to the table of `ledger`"),
    (19, "routes.1.sinks.1.delta.evolutoin", "unknown key"),
    (20, "routes.1.sinks.2", "the sink writes to the table of `dead_letters`"),
    (23, "routes.2.sinks.0.delta.evolution", "must be 'evolve'"),
    (25, "views.0.from.route", "there is no such route"),
    (25, "views.0.sql", "the ( at character 13 is not closed"),
    (26, "views.1.into", "it could name a table of the route wins: ops.dead_letters"),
    # What is wrong inside of a view or a sink hides nothing that several of them have in common.
    (27, "views.2.into", "it could name a table of the view v"),
    (27, "views.2.every", "is not an interval"),
    (28, "trigger.once", "is the trigger already"),
    (29, "dead_letters.at_most", "must be a share from 0% to 100%"),
    (31, "landing.spread", "SPREAD"),
    (32, "colour", "unknown key"),
]


def test_every_mistake_is_told_in_one_round() -> None:
    """Without it a configuration is mended one mistake, and one round, at a time."""
    with pytest.raises(ConfigError) as caught:
        load_config(Path("games.yaml"), load_registry([]), environ={}, text=FAULTY, sql=True)
    found = [(problem.line, problem.path, problem.what) for problem in caught.value.problems]

    # What is expected is the beginning of the message, or the name in it.
    assert [place for *place, _ in found] == [place for *place, _ in EXPECTED], "\n".join(map(str, found))
    for (line, _, text), (_, _, expected) in zip(found, EXPECTED, strict=True):
        assert expected in text, line


def test_every_problem_has_a_code_that_the_reference_lists() -> None:
    """Without it a program can tell kinds of mistakes by prose only."""
    with pytest.raises(ConfigError) as caught:
        load_config(Path("games.yaml"), load_registry([]), environ={}, text=FAULTY, sql=True)
    by_path = {problem.path: problem.code for problem in caught.value.problems}

    assert set(by_path.values()) == set(CODES) - {"file", "plan", "secret"}
    assert by_path["landing.spread"] == "variable"
    assert (by_path["source.kafka"], by_path["colour"], by_path["name"]) == ("missing", "unknown", "value")
    assert (by_path["views.0.sql"], by_path["routes.1.match.field.column"]) == ("sql", "field")
    page = (Path(__file__).parents[2] / "docs" / "reference" / "commands.md").read_text()
    for code, meaning in CODES.items():
        assert f"| `{code}` | {meaning} |" in page
