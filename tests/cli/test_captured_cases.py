"""A case that is appended to route tests reads as the record was, and changes nothing that stands there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router import StartError
from router.cli.capture import append_case, make_case, mask_record, write_case
from router.engine.preflight.route_tests import Expected, InputRecord, RouteTest, RouteTests, load_tests, parse_tests

LETTER = {"stage": "expect", "route": "games", "sink": None, "reason": "a\nb: 'c' \u202e#"}
COMMENTED = """\
# The first tests.
variables: {A: b}
tests:  # two
    # Poker only.

    - name: another game
      records: [{value: {game: uno}}]  # dropped
      expect: {}
# The end."""
RECORD = {"value": b"x", "key": None, "headers": None, "topic": None, "partition": None, "offset": 1}


def case_of(record: dict[str, Any]) -> RouteTest:
    expected = Expected(tables=None, sent=None)
    return RouteTest(name="one: 'more'", records=(InputRecord(**record),), expect=expected)


@given(
    st.none() | st.binary(max_size=20) | st.text(max_size=30).map(lambda text: text.encode(errors="replace")),
    st.dictionaries(st.text(max_size=5), st.text(max_size=10), max_size=3),
    st.none() | st.text(max_size=10),
)
def test_any_record_is_read_as_it_was(value: bytes | None, headers: dict[str, str], topic: str | None) -> None:
    """Without it the value of a record becomes a part of the YAML, or another value."""
    raw_headers = []
    for name, text in headers.items():
        raw_headers.append({"key": name.encode(errors="replace").decode(), "value": text.encode(errors="replace")})
    topic = None if topic is None else topic.encode(errors="replace").decode()
    made = make_case(
        {
            "value": value,
            "key": value if value and value.isascii() else None,
            "headers": raw_headers,
            "topic": topic,
            "partition": 3,
            "offset": 5,
        }
    )
    text = write_case(made, LETTER)

    (case,) = parse_tests("tests:\n" + text, Path("games.test.yaml")).tests

    assert case == made
    assert case.records[0].content == value
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "text", [COMMENTED, COMMENTED + "\n", COMMENTED.replace("\n", "\r\n"), "\ufeff" + COMMENTED, ""]
)
def test_what_stands_in_a_file_stays(tmp_path: Path, text: str) -> None:
    """Without it somebody's comments are gone after a capture."""
    file = tmp_path / "games.yaml"
    path = tmp_path / "games.test.yaml"
    if text:
        path.write_bytes(text.encode())
    tests = load_tests(path) if text else RouteTests.model_construct(tests=())

    append_case(path, file, tests, case_of({"value": "x"}), LETTER)

    assert path.read_bytes().startswith(text.encode())
    assert load_tests(path).tests == (*tests.tests, case_of({"value": "x"}))
    assert load_tests(path).variables == tests.variables


@pytest.mark.parametrize(
    "text",
    [
        "tests: [{name: a, records: [{value: x}], expect: {}}]\n",
        "tests:\n  - {name: a, records: [{value: x}], expect: {}}\nvariables: {}\n",
        "tests:\n  - {name: a, records: [{value: x}], expect: {}}\n...\n",
    ],
    ids=["flow", "not last", "end of document"],
)
def test_a_case_that_cannot_be_appended_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "games.test.yaml"
    path.write_text(text)

    with pytest.raises(StartError):
        append_case(path, tmp_path / "games.yaml", load_tests(path), case_of({"value": "x"}), LETTER)

    assert path.read_text() == text
    assert capsys.readouterr().out == write_case(case_of({"value": "x"}), LETTER)


def test_a_configuration_with_another_ending_is_named(tmp_path: Path) -> None:
    path = tmp_path / "games.test.yaml"

    append_case(path, tmp_path / "games.yml", RouteTests.model_construct(tests=()), case_of({"value": "x"}), LETTER)

    assert load_tests(path).tested_configuration(path) == tmp_path / "games.yml"


@pytest.mark.parametrize(
    "changes",
    [{"key": b"\xff"}, {"headers": [{"key": "a", "value": b"\xff"}]}, {"headers": [{"key": "a", "value": None}]}],
)
def test_a_record_that_no_test_can_have_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(StartError):
        make_case({**RECORD, **changes})


def test_key_and_headers_are_masked_also(tmp_path: Path) -> None:
    file = tmp_path / "games.yaml"
    file.write_text("match: {sql: \"event.game = 'poker'\"}\n")
    headers = [{"key": "trace", "value": b"4711-secret"}]

    masked = mask_record({**RECORD, "value": b'{"game": "poker"}', "key": b"margarethe", "headers": headers}, file)

    assert masked["value"] == b'{"game": "poker"}'
    assert masked["key"] != b"margarethe"
    assert masked["headers"][0]["key"] == "trace"
    assert b"secret" not in masked["headers"][0]["value"]
    with pytest.raises(StartError):
        mask_record({**RECORD, "value": b"\xff"}, file)
