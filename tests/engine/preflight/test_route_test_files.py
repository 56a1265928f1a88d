"""Files of route tests are read whole, or every mistake in them is said with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from router import ConfigError
from router.engine.preflight.route_tests import load_tests

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """\
tests:
  - name: one
    records:
      - {value: {a: 1}}
      - {value: text}
      - {value: null}
      - {base64: AP8=}
    expect: {tables: {silver.a: 1, silver.b: [{a: 1}]}}
"""


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "games.test.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_values_become_the_bytes_that_a_producer_would_send(write):
    (case,) = load_tests(write(GOOD)).tests

    assert [record.content for record in case.records] == [b'{"a": 1}', b"text", None, b"\x00\xff"]


def test_the_name_of_the_file_says_what_is_tested(write):
    path = write(GOOD)
    assert load_tests(path).tested_configuration(path) == path.with_name("games.yaml")
    other = write("configuration: other.yaml\n" + GOOD, "any.yaml")
    assert load_tests(other).tested_configuration(other) == other.with_name("other.yaml")
    with pytest.raises(ConfigError):
        load_tests(path).tested_configuration(path.with_name("games.yaml"))


@pytest.mark.parametrize(
    ("wrong", "place", "line"),
    [
        (GOOD.replace("expect:", "expects:"), "tests.0", 2),
        (GOOD.replace("AP8=", "abc"), "tests.0.records.3.base64", 7),
        (GOOD.replace("silver.a: 1", "silver.a: many"), "tests.0.expect.tables.silver.a", 8),
        (GOOD.replace("{value: text}", "{value: text, event: {a: 1}}"), "tests.0.records.1", 5),
        (GOOD.replace("{value: text}", "{value: text, schema: a.proto}"), "tests.0.records.1", 5),
        ("tests: [", "", 1),
    ],
    ids=["unknown key", "no base64", "no count", "value and event", "schema of no event", "no YAML"],
)
def test_a_mistake_is_said_with_its_place(write, wrong, place, line):
    """Without it a test that is misspelt passes for ever."""
    with pytest.raises(ConfigError) as caught:
        load_tests(write(wrong))

    problem = caught.value.problems[0]
    assert problem.path.startswith(place)
    assert problem.line >= line


def test_mistakes_are_said_in_the_words_of_the_router(write):
    """Without it nine lines of pydantic answer to a configuration in the place of its test."""
    told = []
    for text in ("name: games\nlake: ./x\nsource: {files: {path: x}}\n", GOOD.replace("silver.a: 1", "silver.a: many")):
        with pytest.raises(ConfigError) as caught:
            load_tests(write(text))
        told += [problem.what for problem in caught.value.problems]

    assert told == ["is a configuration, and no test of one", "must be a whole number or a list, not 'many'"]
    with pytest.raises(ConfigError, match=r"`expect` is missing(.|\n)*expects: unknown key"):
        load_tests(write(GOOD.replace("expect:", "expects:")))
