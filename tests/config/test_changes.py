"""What differs between two configurations is said in words; a text that is kept has no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router.config.changes import describe_changes
from router.config.loader import load_config
from router.config.problems import without_secrets
from router.config.yaml_tree import parse_yaml, plain_data
from router.registry import load_registry
from tests.config.test_written_sql import GOOD

BEFORE = """\
name: games
source: {kafka: {servers: "a:1", topics: [games, wins]}}
routes:
  - name: big
    match: {sql: "event.n > 10"}
    select: [event.n, event.name]
    sinks: [{delta: gold.big}, {rest: {url: "https://a"}}, {rest: {url: "https://b"}}]
  - {name: small, match: {sql: "true"}, sinks: [{tables: "silver.{event.game}"}]}
views:
  - {into: gold.sums, from: gold.big, sql: "SELECT 1"}
"""


SELECTED = "['event.n', 'event.name']"


@pytest.mark.parametrize(
    ("old", "new", "sentences"),
    [
        ("event.n > 10", "event.n > 20", ["routes.big.match.sql: event.n > 20, was event.n > 10"]),
        (
            "[games, wins]",
            "[games, losses]",
            ["source.kafka.topics: also losses", "source.kafka.topics: no longer wins"],
        ),
        (
            "[event.n, event.name]",
            "[event.name, event.n]",
            [f"routes.big.select: ['event.name', 'event.n'], was {SELECTED}"],
        ),
        ("https://b", "https://c", ["routes.big.sinks.rest_2.url: https://c, was https://b"]),
        ("- name: big", "- name: huge", ["routes.big: gone", "routes.huge: new"]),
        ("SELECT 1", "SELECT 2", ["views.gold.sums.sql: SELECT 2, was SELECT 1"]),
        ("name: games\n", "name: games\nledger: ops.other\n", ["ledger: new"]),
        ('{sql: "true"}', "{always: {}}", ["routes.small.match.sql: gone", "routes.small.match.always: new"]),
        ("[event.n, event.name]", "event.n", [f"routes.big.select: event.n, was {SELECTED}"]),
        (
            "[games, wins]",
            "[games, wins, wins]",
            ["source.kafka.topics: ['games', 'wins', 'wins'], was ['games', 'wins']"],
        ),
        ("name: games", "# a comment\nname:   games", []),
    ],
)
def test_a_change_is_a_sentence(old: str, new: str, sentences: list[str]) -> None:
    """Without it who looks for the cause of dead letters compares whole files."""
    assert describe_changes(BEFORE, BEFORE.replace(old, new, 1)) == sentences


def test_routes_in_another_order_are_no_change() -> None:
    head, first, second = BEFORE.partition("  - name: big")[0], "", ""
    routes = BEFORE.removeprefix(head).partition("views:")
    first, _, second = routes[0].rpartition("  - {name: small")
    moved = f"{head}  - {{name: small{second}{first}views:{routes[2]}"

    assert moved != BEFORE
    assert describe_changes(BEFORE, moved) == []


OPTIONS = """
source:
  kafka:
    servers: a:1
    topics: [games]
    options:
      OPTIONS
"""
WITH_REST = """\
name: games
lake: ./lake
source: {files: {path: in}}
decode: {json: "n int"}
routes:
  - {name: a, match: {sql: "true"}, sinks: [{rest: {OPTIONS}}]}
dead_letters: ops.dead
"""
WRITTEN = GOOD.replace(next(line for line in GOOD.splitlines(keepends=True) if line.startswith("source:")), "")


@pytest.mark.parametrize(
    "written",
    [
        "kafka.sasl.jaas.config: \"M required username='${U}' password='hunter2';\"",
        "kafka.sasl.jaas.config: M required password='hunter2' url=\"https://h/\";",
        "kafka.ssl.key.password: ${P:-hunter2}",
        "kafka.ssl.key.password: hunter2$${x",
        "<<: {kafka.ssl.key.password: hunter2}\n      kafka.ssl.key.password: ${P}",
        "<<: [{kafka.p: hunter2}, {kafka.p: hunter2}]",
        "# api_key: hunter2\n      kafka.p: ${P}",
        "kafka.ssl.key.password: ${P}  # was hunter2",
        "kafka.ssl.keystore.key: |  # hunter2\n        hunter2\n        x\n      kafka.a: ${P}",
        "kafka.ssl.keystore.key: |+\n        hunter2\n\n\n      kafka.a: ${P}",
        "kafka.ssl.keystore.key: >-\n        hunter2\n        x",
        "kafka.ssl.keystore.key: |\n        hunter2\u2028      kafka.a: ${P}",
        "kafka.ssl.key.password: hunter2\n        hunter2\n      kafka.a: ${P}",
        "{kafka.ssl.key.password: hunter2\n        hunter2, 'kafka.c' : \"hunter2\\\n  x\"}",
        "? kafka.ssl.key.password\n      : hunter2",
        "kafka.a: !!str &a\n        hunter2\n      kafka.b: *a",
        "kafka.a: &a hunter2\n      kafka.b: *a",
    ],
)
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_a_text_that_is_kept_has_no_secret(written: str, line_break: str) -> None:
    """Without it a password that stood in a file for a day is in the checkpoint for ever."""
    text = (WRITTEN + OPTIONS.replace("OPTIONS", written)).replace("\n", line_break)
    check_kept(text)


@pytest.mark.parametrize(
    "written",
    [
        "auth: {bearer: hunter2}",
        "auth: {basic: {user: ann, password: hunter2}}",
        "auth: {api_key: {header: X-Key, value: hunter2}}",
        "auth: {hmac: {key: hunter2, header: X}}",
        "auth: {oauth: {token_url: 'https://h/t', client_id: ann, client_secret: hunter2}}",
        "headers: {X-K: hunter2}",
        "proxy: 'http://ann:hunter2@p:1'",
        'url: "https://h/?api_key=hunter2"',
    ],
)
def test_no_secret_of_a_call_is_kept(written: str) -> None:
    """Without it the tokens of APIs are: their options have a type of their own."""
    url = "" if written.startswith("url") else 'url: "https://h/", '
    check_kept(WITH_REST.replace("OPTIONS", url + written))


@pytest.mark.parametrize(
    "more",
    [
        "spark: {spark.hadoop.fs.s3a.secret.key: hunter2}",
        "storage_options: {AWS_SECRET_ACCESS_KEY: hunter2}",
        "on_failure: {webhook: 'https://hooks/hunter2'}",
        "# https://ann:hunter2@host/",
    ],
)
def test_no_secret_of_other_options_is_kept(more: str) -> None:
    check_kept(f"{GOOD}{more}\n")


def test_what_is_no_secret_is_kept() -> None:
    """Without it a difference of two deploys is not seen."""
    rest = WITH_REST.replace("OPTIONS", 'url: "https://${HOST}/v1?page=2", headers: {X-K: "${KEY}"}')
    for text in (GOOD, rest, f'{GOOD}ledger: "ops.l"\n'):
        assert without_secrets(text, load_registry().entries) == text
    assert without_secrets(f"# a remark\n{GOOD}x: 1  # another\n", load_registry().entries) == f"\n{GOOD}x: 1\n"


def check_kept(text: str) -> None:
    """Check that a text is kept without what is secret, and else says the same."""
    registry = load_registry()
    variables = {"P": "x", "U": "ann"}
    loaded = load_config(Path("games.yaml"), registry, environ=variables, text=text)
    assert "hunter2" in text

    kept = without_secrets(loaded.text, registry.entries)

    assert "hunter2" not in kept
    again, problems = parse_yaml(kept, "games.yaml")
    assert not problems
    assert shape_of(plain_data(again)) == shape_of(plain_data(loaded.document.root))


def shape_of(value: Any) -> Any:
    """Return the keys of a value, at any depth, and what has no reference to a variable and no secret."""
    if isinstance(value, dict):
        return {key: shape_of(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape_of(item) for item in value]
    return None if "***" in str(value) or "hunter2" in str(value) else value
