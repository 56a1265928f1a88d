"""What differs between two configurations is said in words; a text that is kept has no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.config.changes import describe_changes
from router.config.loader import load_config
from router.config.problems import without_secrets
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


SECRETS = """
source:
  kafka:
    servers: a:1
    topics: [games]
    options:
      kafka.sasl.jaas.config: &jaas "user='a' password='hunter2'"   # the password is hunter2
      kafka.sasl.mechanism: PLAIN
      kafka.ssl.key.password: ${PASSWORD}
      kafka.ssl.keystore.key: |
        -----BEGIN hunter2
        hunter2
      kafka.ssl.truststore.password: !!str hunter2
      kafka.ssl.keystore.password: *jaas
"""


def test_a_text_that_is_kept_has_no_secret() -> None:
    """Without it a password that stood in a file for a day is in the checkpoint for ever."""
    text = GOOD.replace(GOOD[GOOD.index("source:") :].splitlines()[0] + "\n", "", 1) + SECRETS
    registry = load_registry()
    loaded = load_config(Path("games.yaml"), registry, environ={"PASSWORD": "x"}, text=text)

    kept = without_secrets(text, loaded.document.root, registry.entries)

    assert "hunter2" in text
    assert "hunter2" not in kept
    assert "${PASSWORD}" in kept
    assert [line.split(":")[0] for line in kept.splitlines() if "hunter" not in line][:3] == [
        line.split(":")[0] for line in text.splitlines()
    ][:3]
    again = load_config(Path("games.yaml"), registry, environ={"PASSWORD": "x"}, text=kept)
    options = again.config.source.kafka.options
    assert {name: option.get_secret_value() for name, option in options.items()} == {
        "kafka.sasl.jaas.config": "***",
        "kafka.sasl.mechanism": "***",
        "kafka.ssl.key.password": "x",
        "kafka.ssl.keystore.key": "***",
        "kafka.ssl.truststore.password": "***",
        "kafka.ssl.keystore.password": "***",
    }


def test_a_text_without_secrets_is_kept_as_it_is() -> None:
    text = f"# a remark\n\n{GOOD}  # another one\n"
    registry = load_registry()

    loaded = load_config(Path("games.yaml"), registry, environ={}, text=text)

    assert without_secrets(text, loaded.document.root, registry.entries) == text
