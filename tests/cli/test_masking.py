"""Masked records are of the same kind as the records, and nothing of them can be read there."""

from __future__ import annotations

import base64
import ipaddress
import json
import string
import uuid
from datetime import date, datetime, time, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.cli.masking import Mask
from router.errors import StartError

MASK = Mask()
WIDTHS = (2**31, 2**63)
NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=6)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
ZONES = st.none() | st.integers(-12, 12).map(lambda hours: timezone(timedelta(hours=hours)))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | st.text(st.characters(exclude_characters='{["'), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def shape(value: Any) -> Any:
    """Return a value with its types, and its lengths, in place of its texts and numbers."""
    if isinstance(value, dict):
        return {key: shape(part) for key, part in value.items()}
    if isinstance(value, list):
        return [shape(part) for part in value]
    if isinstance(value, str):
        return [(c.isdecimal(), c.isupper(), c.islower(), None if c.isalnum() else c) for c in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return len(str(value)), [-width <= value < width for width in WIDTHS]
    return "float", value < 0


@given(VALUES)
def test_type_length_and_shape_are_kept_in_every_call(value: Any) -> None:
    """Without it a masked record fails for another reason than the record."""
    masked = MASK.mask_value(value)

    assert shape(masked) == shape(value)
    assert type(masked) is type(value)
    assert masked == Mask().mask_value(value)


@pytest.mark.parametrize(
    "number", [0, 5, -7, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 10**40]
)
def test_whole_numbers_keep_sign_digits_and_range(number: int) -> None:
    """Without it a masked number does not land in the column that takes the number, or lands where it does not."""
    masked = MASK.mask_value(number)

    assert isinstance(masked, int)
    assert (masked < 0, masked == 0, len(str(masked))) == (number < 0, number == 0, len(str(number)))
    for width in (*WIDTHS, 2**64):
        assert (-width <= masked < width) == (-width <= number < width)


@pytest.mark.parametrize("number", [9000.01, -0.0025, 5.0, 1e-07, 1.5e300, 0.0, 1.7e308])
def test_fractions_keep_sign_and_scale(number: float) -> None:
    masked = MASK.mask_value(number)

    assert isinstance(masked, float)
    assert (masked < 0, masked == 0.0) == (number < 0, number == 0.0)
    assert len(repr(masked)) == len(repr(number)) or number > 1e308


@given(st.dates() | st.datetimes(timezones=ZONES) | st.times())
def test_dates_and_times_stay_what_they_are(moment: date | datetime | time) -> None:
    text = moment.isoformat()
    masked = MASK.mask_value(text)

    assert isinstance(masked, str)
    assert len(masked) == len(text)
    type(moment).fromisoformat(masked)


@pytest.mark.parametrize(
    ("text", "parse"),
    [
        ("2024-02-29", date.fromisoformat),
        ("2026-01-31T21:14:02.123456+02:00", datetime.fromisoformat),
        ("f81d4fae-7dec-11d0-a765-00a0c91e6bf6", uuid.UUID),
        ("192.168.17.254", ipaddress.ip_address),
        ("2001:db8::ff00:42:8329", ipaddress.ip_address),
        ("+12.50", float),
        ("-4111111111111111", int),
        ("370e5", float),
        (base64.b64encode(b"a secret of some bytes").decode(), lambda text: base64.b64decode(text, validate=True)),
        ('{"a": [true, 12, "x"]}', json.loads),
        ("ann.smith+news@mail.example.com", lambda text: text.index("@") < text.rindex(".") or text.index("!")),
    ],
)
def test_what_a_text_parses_as_is_kept(text: str, parse: Any) -> None:
    masked = MASK.mask_value(text)

    assert isinstance(masked, str)
    parse(masked)
    assert masked != text
    assert len(masked) == len(text)
    assert [c for c in masked if c in "@.+-:/="] == [c for c in text if c in "@.+-:/="]


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("2026-01-31T21:14:02+05:30", slice(-6, None)),
        ("21:14:02Z", slice(-1, None)),
        ("f81d4fae-7dec-11d0-a765-00a0c91e6bf6", slice(14, 15)),
        ("f81d4fae-7dec-11d0-a765-00a0c91e6bf6", slice(19, 20)),
    ],
)
def test_what_says_how_a_value_is_read_stays(text: str, how: slice) -> None:
    """Without it a masked time has the clock of another place, and a masked UUID a variant that there is none of."""
    assert str(MASK.mask_value(text))[how] == text[how]


def test_zeros_inside_of_a_number_are_masked() -> None:
    """Without it most digits of a card, or of an account, stand in a test."""
    numbers = range(1_000_000_007, 1_000_001_007)
    masked = [str(MASK.mask_value(number)) for number in numbers]
    assert sum(text[1:6] == "00000" for text in masked) < 10


def test_digits_of_another_script_stay_in_it() -> None:
    """Without it a masked text is a number, which the text is not."""
    masked = str(MASK.mask_value("\u0663\u0664\u0665"))
    assert masked.isdecimal()
    assert not masked.isascii()


@pytest.mark.parametrize("text", ["2026-02-30", "2026-13-01", "25:00", "1x5", "256.1.1.1", "12ab"])
def test_a_text_that_does_not_parse_does_not_parse_masked(text: str) -> None:
    """Without it the masked record is no dead letter."""
    masked = MASK.mask_value(text)

    assert isinstance(masked, str)
    for parse in (date.fromisoformat, time.fromisoformat, float, ipaddress.ip_address):
        with pytest.raises(ValueError, match=r"."):
            parse(masked)


SECRETS = st.sampled_from(
    ["ann.smith@example.com", "Margarethe Sødergård", "sk-live-4eC39HqLyjWDarjtT1", "4111111111111111"]
)


@given(SECRETS, st.sampled_from(['{"a": %s}', "[[%s, 1]]", '{"x@y.z": {"b": %s}}', "[not JSON: %s;"]))
def test_secrets_do_not_survive(secret: str, record: str) -> None:
    """Without it a test file in a repository has what only the topic may have."""
    for raw in (record % json.dumps(secret), record % json.dumps(secret, ensure_ascii=False)):
        for frame in (b"", b"\0\0\0\0\7"):
            masked = MASK.mask_record(frame + raw.encode())
            assert masked is not None
            assert masked.startswith(frame)
            text = masked.decode()
            for part in (secret, json.dumps(secret)[1:-1], *secret.replace("@", " ").split()):
                assert len(part) < 4 or part not in text


@given(st.text(min_size=12, max_size=40).filter(lambda text: sum(map(str.isalpha, text)) > 10))
def test_no_text_stays(text: str) -> None:
    assert MASK.mask_value({"a": [text]}) != {"a": [text]}


def test_names_of_fields_stay_and_keys_of_maps_do_not() -> None:
    value = {
        "game": "poker",
        "scores": {"ann": 12, "bob": 13},
        "by_id": {"g-2": 1},
        "@time": "x",
        "list": [{"kind": "a1b2"}],
    }
    mask = Mask(names=frozenset([*value, "kind"]), words=frozenset({"poker", "a1b2"}))

    masked = mask.mask_value(value)

    assert isinstance(masked, dict)
    assert list(masked) == list(value)
    assert masked["game"] == "poker"
    assert masked["list"] == value["list"]
    assert not set(masked["scores"]) & {"ann", "bob"}
    assert len(masked["scores"]) == 2
    assert "g-2" not in masked["by_id"]
    assert masked["scores"] != mask.mask_value({"scores": {"eve": 12, "bob": 13}})["scores"]  # type: ignore[index]
    # If nobody knows the names, what can be one is one.
    guessed = Mask().mask_value(value)
    assert list(guessed["scores"]) == ["ann", "bob"]  # type: ignore[index]
    assert "g-2" not in guessed["by_id"]  # type: ignore[index]


def test_short_keys_of_a_map_stay_apart() -> None:
    value = {str(number): number for number in range(10)}

    masked = MASK.mask_value(value)

    assert isinstance(masked, dict)
    assert len(masked) == 10


def test_a_masked_key_takes_no_name_of_a_field() -> None:
    """Without it a field of a record has the value of an entry that is data."""
    value = {str(number): "data" for number in range(9)} | {str(MASK.mask_value("5")): "of a field"}

    masked = Mask(names=frozenset([str(MASK.mask_value("5"))])).mask_value(value)

    assert isinstance(masked, dict)
    assert len(masked) == len(value)


@pytest.mark.parametrize("record", [b"\xff\xfe", b"\0\0\0\0\1\x0aalice", b"\x0aalice\x02\x04", b"a\0b"])
def test_bytes_of_an_unknown_meaning_are_refused(record: bytes) -> None:
    """Without it Avro or Protobuf would stand in a test as it is."""
    with pytest.raises(StartError):
        MASK.mask_record(record)


@pytest.mark.parametrize("record", [None, b"", b"{}", b'{"a": null, "b": true}'])
def test_what_has_no_value_stays(record: bytes | None) -> None:
    assert MASK.mask_record(record) == record


@pytest.mark.parametrize("record", [b'{"a": "\\ud800 and more"}', b"[" * 5_000, b'{"a": 1' + b"0" * 5_000 + b"}"])
def test_strange_json_is_masked(record: bytes) -> None:
    masked = MASK.mask_record(record)

    assert masked is not None
    assert len(masked) == len(record)
