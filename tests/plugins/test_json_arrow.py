"""JSON decoded in record batches: against Python's json, against Spark's from_json, and row by row.

The promise: every row has an event or a reason, which does not depend on the rows beside it, nor on the step that
decided it.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
import pickle
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from router_decoders import Json, json_arrow
from router_decoders.json_arrow import JsonEvents, json_events
from router_decoders.json_types import arrow_type, shape_of
from router_decoders.unknown_fields import MAX_FIELDS, MAX_NAME_CHARACTERS
from tests.light import drawn
from tests.plugins.from_json import decoded as decoded_natively
from tests.plugins.from_json import differences
from tests.plugins.json_documents import (
    UTC,
    bigs,
    damaged,
    days,
    examples,
    is_object,
    strange,
    texts,
    times,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from tests.plugins.conftest import Decode, Raw

    Natively = Callable[..., list[tuple[Any, str | None]]]

SCHEMA = (
    "text string, big bigint, whole int, small smallint, real double, yes boolean, at timestamp, day date, "
    "tags array<bigint>, words array<array<string>>, reals array<double>, times array<timestamp>, "
    "player struct<level: int, name: string, since: date>, rounds array<struct<n: int, at: timestamp>>"
)
PLAYER = T.StructType().add("level", T.IntegerType()).add("name", T.StringType()).add("since", T.DateType())
ROUND = T.StructType().add("n", T.IntegerType()).add("at", T.TimestampType())
STRUCT = T.StructType(
    [
        T.StructField("text", T.StringType()),
        T.StructField("big", T.LongType()),
        T.StructField("whole", T.IntegerType()),
        T.StructField("small", T.ShortType()),
        T.StructField("real", T.DoubleType()),
        T.StructField("yes", T.BooleanType()),
        T.StructField("at", T.TimestampType()),
        T.StructField("day", T.DateType()),
        T.StructField("tags", T.ArrayType(T.LongType())),
        T.StructField("words", T.ArrayType(T.ArrayType(T.StringType()))),
        T.StructField("reals", T.ArrayType(T.DoubleType())),
        T.StructField("times", T.ArrayType(T.TimestampType())),
        T.StructField("player", PLAYER),
        T.StructField("rounds", T.ArrayType(ROUND)),
    ]
)
SHAPE = shape_of(STRUCT)

reals = st.floats(allow_nan=False, allow_infinity=False)
players = st.fixed_dictionaries(
    {}, optional={"level": st.integers(-9, 9), "name": texts, "since": days, "x": st.booleans()}
)
fitting: dict[str, st.SearchStrategy[Any]] = {
    "text": texts,
    "big": bigs,
    "whole": st.integers(-(2**31), 2**31 - 1),
    "small": st.integers(-(2**15), 2**15 - 1),
    "real": reals | st.integers(-(2**70), 2**70),
    "yes": st.booleans(),
    "at": times,
    "day": days,
    "tags": st.lists(st.none() | bigs, max_size=4),
    "words": st.lists(st.none() | st.lists(st.none() | texts, max_size=2), max_size=2),
    "reals": st.lists(st.none() | reals, max_size=4),
    "times": st.lists(st.none() | times, max_size=4),
    "player": players,
    "rounds": st.lists(st.none() | st.fixed_dictionaries({}, optional={"n": st.none(), "at": times}), max_size=3),
}
unknown = st.dictionaries(
    texts.filter(lambda name: name not in fitting), st.none() | bigs | texts | players, max_size=2
)
documents = st.builds(
    lambda known, other: {**other, **known},
    st.fixed_dictionaries({}, optional={name: st.none() | values for name, values in fitting.items()}),
    unknown,
)


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """Draw a document with a byte changed, put in or taken away, where it most often still is JSON."""
    text = bytearray(draw(written(documents)))
    place, width = draw(st.integers(0, len(text))), draw(st.integers(0, 1))
    text[place : place + width] = draw(st.sampled_from([b"", b"0", b"1", b"-", b".", b"e", b"Z", b" ", b"\n", b"\\"]))
    return bytes(text)


@st.composite
def repeated(draw: st.DrawFn) -> bytes:
    """Draw an object in which keys come twice, with values that fit or not."""
    first, second = (json.dumps(draw(documents | strange)) for _ in range(2))
    return f"{first[:-1]}, {second[1:]}".encode()


anything = written(documents) | damaged() | spoilt() | repeated() | written(strange)


def batch(values: Sequence[bytes | None]) -> pa.RecordBatch:
    """Return raw records, as far as they are looked at."""
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])


def decoded_events(values: Sequence[bytes | None]) -> list[tuple[dict[str, Any] | None, str | None]]:
    """Return the events of values and why there is none."""
    added = json_events(batch(values), JsonEvents(SHAPE))
    event, error, unknown = added.columns
    assert added.schema.names == ["event", "_error", "_unknown"]
    assert not pc.any(pc.and_(event.is_null(), unknown.is_valid())).as_py()
    assert event.type == arrow_type(SHAPE)
    assert event.is_null().equals(error.is_valid())
    event.validate(full=True)
    return list(zip(event.to_pylist(), error.to_pylist(), strict=True))


def decided(values: Sequence[bytes | None]) -> list[dict[str, Any] | None]:
    """Return the events of values, None where they have none."""
    return [event for event, _ in decoded_events(values)]


def time_by_python(value: str, kind: T.DataType) -> dt.date:
    """Return what Python makes of a time."""
    if isinstance(kind, T.DateType):
        return dt.datetime.strptime(value, "%Y-%m-%d").replace(tzinfo=UTC).date()
    form = "%Y-%m-%dT%H:%M:%S.%fZ" if "." in value else "%Y-%m-%dT%H:%M:%SZ"
    return dt.datetime.strptime(value.replace(" ", "T"), form).replace(tzinfo=UTC)


def decoded_by_python(value: Any, kind: T.DataType) -> Any:
    """Return what Python makes of a value that fits."""
    if value is None:
        return None
    if isinstance(kind, T.StructType):
        return {field.name: decoded_by_python(value.get(field.name), field.dataType) for field in kind}
    if isinstance(kind, T.ArrayType):
        return [decoded_by_python(element, kind.elementType) for element in value]
    if isinstance(kind, (T.TimestampType, T.DateType)):
        return time_by_python(value, kind)
    if isinstance(kind, T.StringType):
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="replace").decode()
    return float(value) if isinstance(kind, T.DoubleType) else value


def test_a_plain_document_is_decided_with_the_values_that_python_reads() -> None:
    """The native expressions cost several times as much: what fits must not be left to them."""
    values = examples(written(documents), 300)

    for value, event in zip(values, decided(values), strict=True):
        assert repr(event) == repr(decoded_by_python(json.loads(value), STRUCT)), value


def test_what_python_refuses_is_no_event() -> None:
    """A broken record that becomes an event is a lie in a table."""
    values = examples(anything | st.binary(max_size=40), 800)

    for value, (event, error) in zip(values, decoded_events(values), strict=True):
        assert is_object(value) or event is None, value
        if event is None:
            assert error, value
            assert error.startswith("does not fit the schema") == is_object(value), value


def test_a_verdict_does_not_depend_on_the_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is read again in another batch must end in the same place."""
    values: list[bytes | None] = [None, *examples(anything, 300), *(value for value, _ in GOOD), *BAD]
    expected = [repr(row) for value in values for row in decoded_events([value])]

    for size in (1, 7, 300, 4096):
        monkeypatch.setattr(json_arrow, "BLOCK_ROWS", size)
        order = random.Random(size).sample(range(len(values)), len(values))
        found = decoded_events([values[place] for place in order])
        assert [repr(row) for row in found] == [expected[place] for place in order]


def test_a_verdict_does_not_depend_on_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is quick must be what is complete: a field more in a record must not change the others."""
    values: list[bytes | None] = [*examples(anything, 500), *(value for value, _ in GOOD), *BAD]
    expected = decoded_events(values)
    monkeypatch.setattr(json_arrow, "make_parsers", lambda *_, **__: ())

    for value, found, row in zip(values, decoded_events(values), expected, strict=True):
        assert repr(found) == repr(row), value


def lacks(value: Any, kind: T.DataType) -> bool:
    """Say whether a type lacks a field of a value."""
    if isinstance(kind, T.StructType) and isinstance(value, dict):
        kinds = {field.name: field.dataType for field in kind}
        return any(name not in kinds or lacks(one, kinds[name]) for name, one in value.items())
    return isinstance(kind, T.ArrayType) and isinstance(value, list) and any(lacks(v, kind.elementType) for v in value)


def test_every_record_with_a_field_that_the_schema_lacks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is nearly right says nothing: the one record of a new producer is what matters."""
    values: list[bytes | None] = examples(written(documents | strange), 800)
    for size in (1, 50, 4096):
        monkeypatch.setattr(json_arrow, "BLOCK_ROWS", size)
        event, _, unknown = (column.is_valid().to_pylist() for column in json_events(batch(values), JsonEvents(SHAPE)))
        for value, is_event, is_found in zip(values, event, unknown, strict=True):
            assert is_found == (is_event and lacks(json.loads(value or b""), STRUCT)), value


def test_only_so_many_fields_are_named_and_every_record_is_found() -> None:
    """Objects that are maps in truth have another field in every record: their names must not fill the memory."""
    known = JsonEvents(shape_of(T.StructType([T.StructField("known", T.LongType())])))
    values = [json.dumps({"known": n, f"{n} {'key' * 100}": 1, "new": 2, 'a"b': 3}).encode() for n in range(200)]
    for first in (0, 100, 0):
        found = json_events(batch(values[first : first + 100]), known).column("_unknown").to_pylist()

        names = {name for row in found for name in row}
        assert len(found) == 100
        assert all({"new", 'a"b'} <= set(row) for row in found)
        assert len(names) <= MAX_FIELDS
        assert max(map(len, names)) <= MAX_NAME_CHARACTERS


GOOD: list[tuple[bytes, dict[str, Any]]] = [
    (b"{}", {}),
    (b' \r\n\t{"whole": 1 }\r\n', {"whole": 1}),
    (b'{\n"whole":\t1\r\n}', {"whole": 1}),
    (b'{"text":"a","unknown":[1,{"x":2}],"whole":null}', {"text": "a"}),
    ('{"text":"zażółć 🂡 \\u00e9 \\ud83c\\udca1 \\n\\" \\u0000"}'.encode(), {"text": 'zażółć 🂡 é 🂡 \n" \0'}),
    (b'{"\\u0074ext":"a"}', {"text": "a"}),
    (b'{"text":"","Text":5}', {"text": ""}),
    (b'{"small":-32768,"whole":-2147483648}', {"small": -(2**15), "whole": -(2**31)}),
    (b'{"big":-9223372036854775808}', {"big": -(2**63)}),
    (b'{"big":9223372036854775807}', {"big": 2**63 - 1}),
    (b'{"whole":-0}', {"whole": 0}),
    (b'{"real":1.7976931348623157e308}', {"real": 1.7976931348623157e308}),
    (b'{"real":5}', {"real": 5.0}),
    (b'{"real":1e-400}', {"real": 0.0}),
    (b'{"at":"2026-11-21 10:00:00Z"}', {"at": dt.datetime(2026, 11, 21, 10, tzinfo=UTC)}),
    (b'{"at":"0001-01-01T00:00:00.000001Z"}', {"at": dt.datetime(1, 1, 1, microsecond=1, tzinfo=UTC)}),
    (b'{"at":"9999-12-31T23:59:59.999999Z"}', {"at": dt.datetime.max.replace(tzinfo=UTC)}),
    (b'{"day":"0001-01-01"}', {"day": dt.date(1, 1, 1)}),
    (b'{"day":"x","day":"2024-02-29"}', {"day": dt.date(2024, 2, 29)}),
    (b'{"tags":[],"words":[[],null,["a",null]]}', {"tags": [], "words": [[], None, ["a", None]]}),
    (b'{"player":{}}', {"player": {"level": None, "name": None, "since": None}}),
    (b'{"player":{"level":1},"player":{"name":"x"}}', {"player": {"level": None, "name": "x", "since": None}}),
    (b'{"rounds":[null,{}]}', {"rounds": [None, {"n": None, "at": None}]}),
    (b'{"whole":1,"whole":2}', {"whole": 2}),
    (b'{"whole":1,"whole":null}', {}),
    (b'{"other":' + b"[" * 490 + b"]" * 490 + b',"whole":1}', {"whole": 1}),
    (b'{"text":"' + b"[{" * 400 + b'"}', {"text": "[{" * 400}),
    (b'{"text":"' + b"x 1" * 16_000 + b'"}', {"text": "x 1" * 16_000}),
    (b'{"reals":[' + b"0.123456789012345," * 500 + b"1]}", {"reals": [0.123456789012345] * 500 + [1.0]}),
]  # fmt: skip


def test_what_fits_is_an_event() -> None:
    """A value must be the one that the producer wrote."""
    for (value, expected), event in zip(GOOD, decided([value for value, _ in GOOD]), strict=True):
        assert event is not None, value[:80]
        assert {name: held for name, held in event.items() if held is not None} == expected, value[:80]


BAD: list[bytes | None] = [
    None, b"", b" ", b"nope", b"null", b"5", b"[]", b'"text"', b"\xff", b"\x00", b"{", b"}",
    b'{"text":"\xc3("}', b'{"other":"\xed\xa0\x80"}', b'{"other":"\xff"}', b'{"\xff":1}', b'{"other":{"\xc0\x80":1}}',
    b'\xef\xbb\xbf\xef\xbb\xbf{"whole":1}', '{"whole":1}'.encode("utf-16-le"), b'\x00{"whole":1}', b'{"whole":1}\x00',
    b'{"whole":1', b'{"whole":1,}', b"{,}", b"{'whole':1}", b"{whole:1}", b'{"whole":1/*2*/}', b'{"whole":1;}',
    b'{"whole":01}', b'{"other":01}', b'{"other":-}', b'{"other":1.}', b'{"other":.5}', b'{"other":+1}',
    b'{"other":NaN}', b'{"real":NaN}', b'{"real":-Infinity}', b'{"other":nul}', b'{"other":truee}', b'{"other":[1,]}',
    b'{"text":"a\x01"}', b'{"other":"a\x01"}', b'{"other":"a\n"}', b'{"a\tb":1}', b'{"text":"\\q"}', b'{"other":"\\q"}',
    b'{"text":"\\ud800"}', b'{"other":"\\ud800"}', b'{"text":"\\udc00\\ud800"}', b'{"text":"\\u12"}', b'{"\\ud800":1}',
    b'{"whole":1} x', b'{"whole":1}{"whole":2}', b'{"whole":1}\n{"whole":2}', b'{"whole":1},{"whole":2}',
    b'{"whole":1}}', b'{"whole":1}]', b'[{"whole":1}]', b'{"whole":1},"b":{}', b'{"other":"}', b'{"}',
    b'{"text":5}', b'{"text":{"a":1}}', b'{"text":true}', b'{"whole":"5"}', b'{"whole":1.0}', b'{"big":1e3}',
    b'{"small":32768}', b'{"small":-32769}', b'{"whole":2147483648}', b'{"big":9223372036854775808}',
    b'{"big":-9223372036854775809}', b'{"big":18446744073709551616}', b'{"tags":[9223372036854775808]}',
    b'{"real":1e400}', b'{"real":-1e400}', b'{"reals":[1,1e400]}', b'{"real":"1.5"}', b'{"yes":"true"}', b'{"yes":1}',
    b'{"whole":true}', b'{"tags":{"a":1}}', b'{"tags":5}', b'{"player":5}', b'{"player":[]}',
    b'{"player":{"level":"x"}}',
    b'{"whole":"x","whole":1}', b'{"whole":1,"whole":"x"}', b'{"player":5,"player":{}}',
    b'{"at":""}', b'{"at":"12:30"}', b'{"at":"2026"}', b'{"at":"2026-11-21"}', b'{"at":5}', b'{"at":null,"at":5}',
    b'{"at":"2026-11-21T10:00:00"}', b'{"at":"2026-11-21T10:00:00+02:00"}', b'{"at":"2026-11-21T10:00:00+00Z"}',
    b'{"at":"2026-11-21t10:00:00Z"}', b'{"at":"2026-11-21T10:00:00z"}', b'{"at":"2026-11-21_10:00:00Z"}',
    b'{"at":"2026-02-30T10:00:00Z"}', b'{"at":"2026-11-21T24:00:00Z"}', b'{"at":"2026-11-21T23:59:60Z"}',
    b'{"at":"2026-11-21T10:00:00.Z"}', b'{"at":"2026-11-21T10:00:00.1234567Z"}', b'{"at":"2026-11-21T10:00:00,5Z"}',
    b'{"at":"0000-12-31T00:00:00Z"}', b'{"at":" 2026-11-21T10:00:0Z"}', b'{"at":"2026-11-21T10:00:00Z "}',
    b'{"at":"+026-11-21T10:00:00Z"}', b'{"times":["2026-11-21T10:00:00Z","x"]}', b'{"rounds":[{"at":"x"}]}',
    b'{"day":"2026-02-30"}', b'{"day":"0000-01-01"}', b'{"day":"2026-11-21T00:00:00Z"}', b'{"day":"2026-1-021"}',
    b'{"day":20000}', b'{"player":{"since":"2026-2-1"}}', b'{"day":"\xd9\xa2\xd9\xa0\xd9\xa2\xd9\xa6-1"}',
    b'{"other":' + b"[" * 950 + b"]" * 950 + b"}", b'{"other":' + b'{"a":' * 950 + b"1" + b"}" * 951,
    b'{"other":' + b"[" * 100_000, b"[" * 100_000, b'{"big":' + b"9" * 1001 + b"}",
    b'{"real":' + b"9" * 1001 + b"e-900}",
    b'{"other":' + b"9" * 950 + b"." + b"9" * 51 + b"}", b'{"' + b"k" * 50_001 + b'":1}', b" " * 100_000,
]  # fmt: skip


@settings(max_examples=drawn(200))
@given(
    reals.map(repr)
    | st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,3})?", fullmatch=True)
    | st.from_regex(r"0\.0{300,330}[0-9]{1,30}|[1-9][0-9]{280,320}(\.5)?|0{0}[1-9]0{20,30}e-[0-9]{1,2}", fullmatch=True)
)
def test_a_number_is_the_nearest_double(text: str) -> None:
    """The last bit of an amount is a difference that someone searches for a day."""
    expected = float(text) if set(text) - set("-0") or "." in text else 0.0  # `-0` is the integer 0, as in Spark

    [event] = decided([f'{{"real":{text}}}'.encode()])

    if math.isinf(expected):
        assert event is None
    else:
        assert event is not None
        assert repr(event["real"]) == repr(expected)


@settings(max_examples=drawn(200))
@given(st.data())
def test_a_time_is_decided_alike_beside_a_bad_one(data: st.DataObject) -> None:
    """Arrow refuses a whole column for one bad text; that must not show."""
    text = data.draw(times | days)
    for _ in range(data.draw(st.integers(0, 2))):
        place, width = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 2))
        text = text[:place] + data.draw(st.text("0123456789-:. TZtz+,_", max_size=2)) + text[place + width :]
    values = [json.dumps({name: text}).encode() for name in ("at", "day")]

    alone = [event for value in values for event in decided([value])]
    beside = decided([*values, b'{"at":"2026-02-30T10:00:00Z"}', b'{"day":"2026-02-30"}'])

    assert beside == [*alone, None, None]


@pytest.mark.parametrize(
    "name", ["a.b", "a b", "a'b", "a`b", "$", "ключ", "*", "class", "f0", "_f1", 'a"b', "a\\b", "a\nb"]
)
def test_a_field_may_have_any_name(name: str) -> None:
    """JSON allows any text as a key."""
    known = JsonEvents(shape_of(T.StructType([T.StructField(name, T.LongType()), T.StructField("f1", T.LongType())])))

    added = json_events(batch([json.dumps({name: 1, "f1": 2}).encode()]), known)

    assert added.column("event").to_pylist() == [{name: 1, "f1": 2}]


def test_a_shape_travels_to_tasks() -> None:
    """It is pickled with the task, and the key under which a task keeps its parser."""
    found = pickle.loads(pickle.dumps(SHAPE))

    assert (found, hash(found)) == (SHAPE, hash(SHAPE))


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_a_batch_may_have_any_size(count: int) -> None:
    """Spark makes empty batches, too."""
    assert decided([b"{}", b"nope"] * count) == [dict.fromkeys(STRUCT.fieldNames()), None] * count


def test_a_part_of_a_batch_is_decided_as_itself() -> None:
    """Arrow hands out views on larger buffers."""
    values = batch([b"nope", b'{"whole":1}', b"\xff", None, b'{"whole":2}'])

    found = json_events(values.slice(1, 3), JsonEvents(SHAPE)).column("event").to_pylist()

    assert [event and event["whole"] for event in found] == [1, None, None]


# With Spark: what is decided here is what from_json decides.


@pytest.fixture
def natively(raw: Raw) -> Natively:
    """Decode values with from_json."""

    def natively(values: Sequence[bytes | None], schema: T.StructType = STRUCT) -> list[tuple[Any, str | None]]:
        found = decoded_natively(raw(values), schema).select("offset", "event", "_error").toArrow().to_pylist()
        return [(row["event"], row["_error"]) for row in sorted(found, key=lambda row: row["offset"])]

    return natively


def test_what_is_decided_is_what_from_json_decides(natively: Natively) -> None:
    """Who knows Spark expects what Spark does; a reason is looked for in what was written of it before."""
    values = [*examples(anything | st.binary(max_size=40), 1000), *(value for value, _ in GOOD), *BAD]

    assert differences(values, decoded_events(values), natively(values)) == []


def test_numbers_are_those_of_from_json(natively: Natively) -> None:
    """Both must round to the same bit."""
    number = st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][-+]?[0-9]{1,3})?", fullmatch=True)
    drawn = examples(number | reals.map(repr) | st.integers(-(2**70), 2**70).map(str), 500)
    edges = [
        "-0",
        "-0.0",
        "-0e5",
        "0e999",
        "1e-999",
        "-1e-999",
        "4.9e-324",
        "2.4703282292062327e-324",
        "1e308",
        "1e309",
    ]
    fields = ("real", "big", "whole", "small", "other")
    values = [f'{{"{name}":{text}}}'.encode() for text in [*drawn, *edges] for name in fields]

    assert differences(values, decoded_events(values), natively(values)) == []


ZONES = ("Z", "+02:00", "-0530", "+2", " UTC", " Europe/Berlin", "UTC+2", " PST", "+19:00", " x", "")


def test_times_are_those_of_from_json(natively: Natively) -> None:
    """A time that moves by an hour is not seen for weeks."""
    changed = st.builds(
        lambda text, place, other, width: text[: place % len(text)] + other + text[place % len(text) + width :],
        times | days,
        st.integers(0, 30),
        st.text("0123456789-:. TZtz+,_", max_size=2),
        st.integers(0, 2),
    )
    zoned = st.builds(lambda text, zone: text.removesuffix("Z") + zone, times, st.sampled_from(ZONES))
    drawn = examples(times | days | changed | zoned, 1000)
    values = [json.dumps({name: text}).encode() for text in drawn for name in ("at", "day") if not is_odd_date(text)]
    values += [json.dumps({"times": [text], "player": {"since": "2026-11-21"}}).encode() for text in drawn[::10]]

    assert differences(values, decoded_events(values), natively(values)) == []


def is_odd_date(text: str) -> bool:
    """Say whether Spark takes ten characters for a date that are none: `2026-1-1T0`, `2026-11-1 `."""
    return len(text) == 10 and text.count("-") == 2 and not text.replace("-", "").isdigit()


OTHERS = T.StructType(
    [
        T.StructField("money", T.DecimalType(10, 2)),
        T.StructField("exact", T.DecimalType(38, 18)),
        T.StructField("short", T.FloatType()),
        T.StructField("bytes", T.BinaryType()),
        T.StructField("counts", T.MapType(T.StringType(), T.LongType())),
        T.StructField("notes", T.MapType(T.StringType(), T.StringType())),
        T.StructField("dates", T.MapType(T.StringType(), T.ArrayType(T.DateType()))),
        T.StructField("rates", T.ArrayType(T.DecimalType(5, 1))),
        T.StructField("local", T.TimestampNTZType()),
    ]
)
decimals = st.decimals(-(10**9), 10**9, places=3) | st.decimals(-100, 100, places=1)
others = {
    "money": decimals.map(str) | decimals.map(float) | bigs,
    "exact": decimals.map(str) | reals | bigs,
    "short": st.floats(width=32, allow_nan=False, allow_infinity=False) | bigs | st.just(1e39),
    "bytes": st.binary(max_size=9).map(lambda value: base64.b64encode(value).decode()) | st.text("ab=", max_size=4),
    "counts": st.dictionaries(texts, st.none() | bigs | texts, max_size=3),
    "notes": st.dictionaries(texts, st.none() | texts | bigs, max_size=3),
    "dates": st.dictionaries(texts, st.none() | st.lists(st.none() | days | texts, max_size=2), max_size=3),
    "rates": st.lists(st.none() | decimals.map(float) | texts, max_size=3),
    "local": times.map(lambda text: text.removesuffix("Z")) | times | days,
}


def test_other_types_are_those_of_from_json(natively: Natively) -> None:
    """Money, bytes and maps must not change with the way that decodes them."""
    drawn = st.fixed_dictionaries({}, optional={name: st.none() | values for name, values in others.items()})
    values = examples(written(drawn), 800)
    values += [b'{"counts":{"a":1,"a":2}}', b'{"money":1e99999}', b'{"bytes":"YQ"}']
    values += [b'{"money":true}', b'{"counts":[]}', b'{"notes":{"a":{"b":[1, 2]},"c":" x "}}', b'{"dates":{"a":["x"]}}']
    added = json_events(batch(values), JsonEvents(shape_of(OTHERS)))
    found = list(zip(added.column("event").to_pylist(), added.column("_error").to_pylist(), strict=True))

    assert differences(values, found, natively(values, OTHERS)) == []


def test_every_type_comes_out_of_a_task(decode: Decode) -> None:
    """Spark must take what a task hands over."""
    schema = "money decimal(10,2), local timestamp_ntz, any variant, nothing void, word string collate UNICODE_CI"
    value = b'{"money":1.5,"local":"2026-11-21T10:00:00","any":{"a":[1,"x"]},"nothing":5,"word":"x"}'

    [(event, error)] = decode(Json(schema=schema), [value])

    assert error is None
    assert event["money"] == decimal.Decimal("1.50")
    assert event["local"] == dt.datetime(2026, 11, 21, 10)  # noqa: DTZ001
    assert (event["nothing"], event["word"]) == (None, "x")
    assert len(event["any"]["value"]) > 5


def test_a_time_without_a_zone_is_in_the_session_s(spark: SparkSession, decode: Decode) -> None:
    """Without it all such times move when somebody sets the session's zone."""
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        [(event, _)] = decode(Json(schema="at timestamp"), [b'{"at":"2026-07-01T10:00:00"}'])
        assert event["at"] == dt.datetime(2026, 7, 1, 8, tzinfo=dt.timezone.utc)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.usefixtures("spark")
def test_the_decoder_gives_tasks_its_schema() -> None:
    """A schema is looked at once for all batches."""
    decoding = Json(schema=SCHEMA).decoding()

    assert decoding.argument == JsonEvents(SHAPE)
    assert decoding.function is json_events
    assert decoding is Json(schema=SCHEMA).decoding()


@pytest.mark.parametrize(
    "schema",
    [SCHEMA, "a int not null, b struct<c: int not null>, d array<string>, e map<string, struct<f: int not null>>"],
    ids=["all types", "not null"],
)
def test_from_json_has_the_same_type(raw: Raw, schema: str) -> None:
    """What a schema says is null in JSON at times, and the event's type has to say so."""
    decoder = Json(schema=schema)

    kind = T.StructType.fromDDL(schema)
    native = decoded_natively(raw([]), kind).schema["event"].dataType

    assert decoder.decode(raw([])).select("event", "_error", "_unknown").schema == decoder.decoding().adds
    assert decoder.decoding().adds["event"].dataType == native
