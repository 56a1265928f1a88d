"""Variables are replaced in values, and what cannot be replaced is a problem at its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router.config.variables import MAX_FILE_BYTES, substitute_variables
from router.config.yaml_tree import Keys, parse_yaml, plain_data

ENVIRON = {"NAME": "games", "PORT": "9092", "EMPTY": "", "YES": "true", "ZEROS": "0123"}


def replaced(value: str, folder: Path = Path()):
    """Replace the variables of one value; return it and its problems."""
    root, problems = parse_yaml(f"key: {value}\n", "f")
    assert not problems
    assert root is not None
    filled, problems = substitute_variables(root, ENVIRON, folder, "f")
    assert isinstance(filled, Keys)
    return filled.entries["key"].value, problems


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${NAME}", "games"),
        ("a-${NAME}-${PORT}", "a-games-9092"),
        ("${PORT}", 9092),
        ('"${PORT}"', "9092"),
        ("${YES}", True),
        ("${EMPTY}", None),
        ("${EMPTY:-7}", 7),
        ("${MISSING:-}", None),
        ("${MISSING:-a:-b}", "a:-b"),
        ("'${MISSING:-http://127.0.0.1:8081/v7}'", "http://127.0.0.1:8081/v7"),
        ("$${NAME}", "${NAME}"),
        ("$$${NAME}", "$${NAME}"),
        ("$NAME $1 $", "$NAME $1 $"),
        ("$${NAME} ${NAME}", "${NAME} games"),
    ],
)
def test_value(value, expected):
    node, problems = replaced(value)

    assert not problems
    assert expected == plain_data(node)


@pytest.mark.parametrize(
    ("value", "tainted"),
    [("${NAME}", True), ("a ${MISSING:-b}", True), ("$${NAME} ${NAME}", True), ("$${NAME}", False), ("$NAME", False)],
)
def test_value_with_anything_replaced_is_tainted(value, tainted):
    assert replaced(value)[0].tainted is tainted


def test_text_of_a_typed_variable_is_kept():
    """A password 0123 must not become 123."""
    node, _ = replaced("${ZEROS}")

    assert node.text == "0123"


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("${MISSING}", "the variable MISSING is not set"),
        ("a ${NAME", "a `${` is not closed"),
        ("${}", "this is not a variable"),
        ("${1A}", "this is not a variable"),
        ("${NAME-x}", "this is not a variable"),
        ("${A:-${NAME}}", "a variable stands inside another one"),
        ("${file:missing}", "missing cannot be read: No such file or directory"),
        ("${file:.}", ". is not a regular file"),
        ('"${file:a\\0b}"', "a\\x00b cannot be read: not a path"),
    ],
)
def test_problem(value, what):
    _, (problem,) = replaced(value)

    assert (problem.line, problem.column, problem.path, problem.what) == (1, 6, "key", what)
    assert problem.hint


def test_file_gives_its_text_without_the_last_line_break(tmp_path):
    (tmp_path / "secret").write_text("a b\n\n")

    assert plain_data(replaced("${file:secret}", tmp_path)[0]) == "a b\n"
    assert plain_data(replaced(f"x-${{file:{tmp_path}/secret}}")[0]) == "x-a b\n"


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"\xff", "is not UTF-8 text"), (b"a" * (MAX_FILE_BYTES + 1), f"is larger than {MAX_FILE_BYTES} bytes")],
    ids=["bytes", "large"],
)
def test_file_that_cannot_be_a_value(tmp_path, content, what):
    (tmp_path / "secret").write_bytes(content)

    _, (problem,) = replaced("${file:secret}", tmp_path)

    assert problem.what.endswith(what)


def test_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    _, (problem,) = replaced("${file:pipe}", tmp_path)

    assert problem.what.endswith("is not a regular file")


def test_keys_stay():
    root, _ = parse_yaml("${NAME}: 1", "f")

    assert plain_data(substitute_variables(root, ENVIRON, Path(), "f")[0]) == {"${NAME}": 1}


def test_shared_value_is_reported_once():
    root, _ = parse_yaml("a: &x ${MISSING}\nb: *x\n", "f")

    _, problems = substitute_variables(root, ENVIRON, Path(), "f")

    assert [problem.path for problem in problems] == ["a"]
