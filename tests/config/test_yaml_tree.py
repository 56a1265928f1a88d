"""YAML becomes a tree with places; what is wrong with it as YAML is a problem."""

from __future__ import annotations

import math
import time

import pytest

from router.config.yaml_tree import MAX_DEPTH, Keys, parse_yaml, plain_data


def data(text: str):
    root, problems = parse_yaml(text, "f")
    assert not problems
    assert root is not None
    return plain_data(root)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("off", "off"),
        ("~", None),
        ("", None),
        ("'~'", "~"),
        ("12", 12),
        ("-012", -12),
        ("0x1F", 31),
        ("0o17", 15),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("2025-01-31", "2025-01-31"),
        ("'12'", "12"),
        ("!!int '12'", 12),
        ("|\n  12\n", "12\n"),
        ("=", "="),
    ],
)
def test_scalar(text, value):
    assert {"key": value} == data(f"key: {text}")


def test_keys_are_text_as_written():
    assert data("{0: a, true: b, ~: c, 1.0: d}") == {"0": "a", "true": "b", "~": "c", "1.0": "d"}


def test_anchors_aliases_and_merge_keys():
    text = """
base: &base {a: 1, b: 2}
more: &more {b: 3, c: 4}
one: {<<: *base, b: 9}
two: {<<: [*base, *more]}
three: *base
"""
    found = data(text)

    assert found["one"] == {"a": 1, "b": 9}
    assert found["two"] == {"a": 1, "b": 2, "c": 4}
    assert found["three"] == found["base"]


def test_places_count_from_one():
    root, _ = parse_yaml("a:\n  - é: [ü, x]\n", "f")

    assert isinstance(root, Keys)
    entry = root.entries["a"].value.items[0].entries["é"]
    assert (entry.line, entry.column) == (2, 5)
    assert (entry.value.items[1].line, entry.value.items[1].column) == (2, 12)


def test_key_given_twice_points_at_both():
    root, (problem,) = parse_yaml("a: 1\nb:\n  c: 1\n  c: 2\n", "f")

    assert (problem.line, problem.column, problem.path) == (4, 3, "b.c")
    assert problem.what == "this key is given twice"
    assert problem.hint == "the first is at line 3, column 3; keep one"
    assert plain_data(root) == {"a": 1, "b": {"c": 1}}


@pytest.mark.parametrize(
    ("text", "place", "what", "hint"),
    [
        ("", (1, 1), "the file is empty", "name:"),
        ("# only a comment", (1, 1), "the file is empty", "name:"),
        ("a: b: c", (1, 5), "mapping values are not allowed", "quotes"),
        ("a:\n\t- b", (2, 1), "cannot start any token", "tabs"),
        ("a: {b: ${C}}", (1, 9), "got '{'", '"${NAME}"'),
        ("a: *b", (1, 4), "undefined alias", "anchor"),
        ("a: &x 1\nb: &x 2", (2, 4), "duplicate anchor", "name of its own"),
        ("a: 1\n---\nb: 2", (2, 1), "another document", "one configuration"),
        ("a: \x07", (1, 4), "U+0007", "escape"),
        ("a: !x 1", (1, 4), "tags", "remove"),
        ("a: !!python/object:os.system {}", (1, 4), "tags", "remove"),
        ("a: !!int x", (1, 4), "not of type int", "tag"),
        ("? [a]\n: b", (1, 3), "a key must be text", "quotes"),
        ("a: &a [*a]", (1, 4), "inside its own anchor", "remove"),
        ("<<: 1", (1, 5), "takes a mapping", "anchor"),
        ('a: "\\uD800"', (1, 4), "half a character", "eight"),
        ("a: " + "[" * 100, (1, 3 + MAX_DEPTH), "levels deep", ""),
    ],
)
def test_problem(text, place, what, hint):
    _, (problem, *_) = parse_yaml(text, "f")

    assert place == (problem.line, problem.column)
    assert what in problem.what
    assert hint in problem.hint


def test_aliases_of_aliases_are_refused_quickly():
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))
    start = time.monotonic()

    _, problems = parse_yaml(bomb, "f")

    assert "aliases make this larger" in problems[0].what
    assert time.monotonic() - start < 5


def test_long_chain_of_aliases_is_refused():
    chain = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 3000))

    _, problems = parse_yaml(chain, "f")

    assert "deeper than" in problems[0].what
