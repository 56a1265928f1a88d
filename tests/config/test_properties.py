"""Whatever is written, the answer is a configuration or problems with places, and never a secret."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router import ConfigError
from router.config.loader import load_config
from tests.light import drawn

if TYPE_CHECKING:
    from router import Problem

FULL = """\
name: games
lake: ${S}
storage_options: {key: "${S}", "other": '${S:-x}'}
source:
  kafka:
    servers: "${S}"
    topics: &topics [game-events, "${S}"]
    options: {kafka.sasl.jaas.config: "${S}"}
    start: {game-events: {0: 5}}
decode: {text: {charset: "${S}"}}
routes:
  - &route
    name: big
    match: {both: [{where: "${S}"}, {never: {where: b}}, {equals: {field: a, value: "${S}"}}]}
    select: ["${S}", event.*]
    expect: [{name: a, sql: "${S}", otherwise: warn}]
    sinks: [{fixed: "${S}"}, {post: {url: "http://x", login: {password: "${S}"}}}]
  - {<<: *route, name: other}
dead_letters: ops.dead_letters
trigger: {every: 10 s}
spark: {a: "${S}"}
"""
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["${S}", "$${", "${"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
# Long and unlike any word of a message, so that finding it means that it was printed.
SECRETS = st.text(st.characters(codec="utf-8"), min_size=6, max_size=30).map(lambda text: "Zq9" + text)


def problems_of(text: str, registry, secret: str = "x") -> tuple[Problem, ...]:
    try:
        load_config(Path("games.yaml"), registry, environ={"S": secret}, text=text)
    except ConfigError as error:
        return error.problems
    return ()


def assert_inside(problems: tuple[Problem, ...], text: str) -> None:
    lines = re.split("\r\n|[\r\n\x85\u2028\u2029]", text)
    for problem in problems:
        assert 1 <= problem.line <= len(lines)
        assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1
        assert str(problem).isprintable()


def test_undamaged_file_is_good(registry):
    assert problems_of(FULL, registry) == ()


@given(text=st.text() | st.text(st.sampled_from("ab:-[]{}\"'|>&*!<?#%@`,~ \n\t\r\x85\u2028$\\0xUuFd.")))
@example(text='"\\U00110000"')
@example(text='"\\uD800": 1')
@example(text="%YAML " + "1" * 5000 + ".0\n--- a")
@example(text="a: " + "1" * 5000)
@example(text="[" * 3000)
@example(text="- " * 3000)
@example(text="&a [*a]")
@example(text="<<: *a")
@example(text="name:")
@example(text="\ud800")
def test_any_text_gives_problems_inside_the_file(registry, text):
    problems = problems_of(text, registry)

    assert problems
    assert_inside(problems, text.removeprefix("\ufeff"))


@given(value=VALUES)
def test_any_value_gives_problems_inside_the_file(registry, value):
    text = yaml.safe_dump(value, allow_unicode=True)

    problems = problems_of(text, registry)

    assert problems
    assert_inside(problems, text)


@given(data=st.data())
def test_any_value_anywhere_gives_problems_inside_the_file(registry, data):
    config = yaml.safe_load(FULL)
    node, steps = config, data.draw(st.integers(1, 5))
    for step in range(steps):
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(st.sampled_from(keys))
        if step == steps - 1 or not isinstance(node[key], (dict, list)) or not node[key]:
            node[key] = data.draw(VALUES)
            break
        node = node[key]
    text = yaml.safe_dump(config, allow_unicode=True)

    assert_inside(problems_of(text, registry), text)


@given(data=st.data())
def test_any_damage_gives_problems_inside_the_file(registry, data):
    start = data.draw(st.integers(0, len(FULL)))
    end = data.draw(st.integers(start, min(len(FULL), start + 20)))
    text = FULL[:start] + data.draw(st.text(max_size=5)) + FULL[end:]

    assert_inside(problems_of(text, registry), text)


@settings(max_examples=drawn(200))
@given(
    secret=SECRETS, place=st.integers(0, FULL.count("${S}") - 1), mistake=st.sampled_from(["[${S}]", "{a: ${S}}", "x"])
)
def test_no_error_shows_a_secret(registry, secret, place, mistake):
    """Damage one place of a file whose every text is the secret, and look for it in all that can be printed."""
    pieces = FULL.split('"${S}"')
    place = place % (len(pieces) - 1)
    damaged = (
        '"${S}"'.join(pieces[: place + 1]) + mistake.replace("${S}", '"${S}"') + '"${S}"'.join(pieces[place + 1 :])
    )

    with pytest.raises(ConfigError) as caught:
        load_config(Path("games.yaml"), registry, environ={"S": secret}, text=damaged + "commit: ${S}\n")

    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + str(caught.value)
    assert secret not in shown
    assert repr(secret)[1:-1] not in shown


@given(secret=SECRETS)
def test_no_config_shows_a_secret(registry, secret):
    text = """\
name: games
lake: ./lake
storage_options: {key: "${S}"}
source: {kafka: {servers: a, topics: [b], options: {kafka.password: "${S}"}}}
decode: {text: }
routes: [{name: a, match: {where: a}, sinks: [{post: {url: "http://x", login: {password: "${S}"}}}]}]
dead_letters: ops.dead_letters
"""
    loaded = load_config(Path("games.yaml"), registry, environ={"S": secret}, text=text)

    assert loaded.config.storage_options["key"].get_secret_value() == secret
    assert secret not in repr(loaded) + str(loaded) + repr(loaded.config) + str(loaded.config)
    assert repr(secret)[1:-1] not in repr(loaded) + repr(loaded.config)
