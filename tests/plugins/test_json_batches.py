"""JSON decoded in record batches: against Python's json, against the native expressions, and row by row.

The promise: a row that is decided has the event that the native expressions give it, and does not depend on the rows
beside it. Everything else is undecided, which costs time but nothing more.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import pickle
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from router_decoders import Json, json_batches
from router_decoders.json_batches import events
from router_decoders.json_shapes import arrow_type, shape
from tests.plugins.test_json_properties import bigs, damaged, examples, is_object, strange, texts, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.plugins.conftest import Decode

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
SHAPE = shape(STRUCT)
UTC = pa.scalar(0, pa.timestamp("us", "UTC")).as_py().tzinfo

reals = st.floats(allow_nan=False, allow_infinity=False)
days = st.dates().map(dt.date.isoformat)
times = st.builds(
    lambda time, places, blank: time.isoformat(blank, "microseconds")[: 20 + places].rstrip(".") + "Z",
    st.datetimes(),
    st.integers(0, 6),
    st.sampled_from("T "),
)
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


def decided(values: Sequence[bytes | None]) -> list[dict[str, Any] | None]:
    """Return the events of values, None where they are undecided."""
    assert SHAPE is not None
    added = events(batch(values), SHAPE)
    event, error, undecided = added.columns
    assert added.schema.names == ["event", "_error", "_undecided"]
    assert event.type == arrow_type(SHAPE)
    assert error.null_count == len(values)
    assert undecided.null_count == 0
    assert event.is_null().equals(undecided)
    event.validate(full=True)
    return event.to_pylist()  # type: ignore[no-any-return]


def decoded_by_python(value: Any, kind: T.DataType) -> Any:
    """Return what Python makes of a value that fits."""
    if value is None:
        return None
    if isinstance(kind, T.StructType):
        return {field.name: decoded_by_python(value.get(field.name), field.dataType) for field in kind}
    if isinstance(kind, T.ArrayType):
        return [decoded_by_python(element, kind.elementType) for element in value]
    if isinstance(kind, T.TimestampType):
        form = "%Y-%m-%dT%H:%M:%S.%fZ" if "." in value else "%Y-%m-%dT%H:%M:%SZ"
        return dt.datetime.strptime(value.replace(" ", "T"), form).replace(tzinfo=UTC)
    if isinstance(kind, T.DateType):
        return dt.datetime.strptime(value, "%Y-%m-%d").replace(tzinfo=UTC).date()
    return float(value) if isinstance(kind, T.DoubleType) else value


def test_a_plain_document_is_decided_with_the_values_that_python_reads() -> None:
    """The native expressions cost several times as much: what fits must not be left to them."""
    values = examples(written(documents), 300)

    for value, event in zip(values, decided(values), strict=True):
        assert repr(event) == repr(decoded_by_python(json.loads(value), STRUCT)), value


def test_what_python_refuses_is_undecided() -> None:
    """A broken record that becomes an event is a lie in a table."""
    values = examples(anything | st.binary(max_size=40), 800)

    for value, event in zip(values, decided(values), strict=True):
        if event is not None:
            assert is_object(value), value
            assert repr(event) == repr(decoded_by_python(json.loads(value), STRUCT)), value


def test_a_verdict_does_not_depend_on_the_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is read again in another batch must end in the same place."""
    values: list[bytes | None] = [None, *examples(anything, 300), *(value for value, _ in GOOD), *BAD]
    expected = [repr(event) for value in values for event in decided([value])]

    for rows in (1, 7, 300, 4096):
        monkeypatch.setattr(json_batches, "ROWS", rows)
        order = random.Random(rows).sample(range(len(values)), len(values))
        found = decided([values[place] for place in order])
        assert [repr(event) for event in found] == [expected[place] for place in order]


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


def test_what_is_plain_is_decided() -> None:
    """What is left to the native expressions without need makes a batch slow."""
    for (value, expected), event in zip(GOOD, decided([value for value, _ in GOOD]), strict=True):
        assert event is not None, value[:80]
        assert {name: held for name, held in event.items() if held is not None} == expected, value[:80]


BAD: list[bytes | None] = [
    None, b"", b" ", b"nope", b"null", b"5", b"[]", b'"text"', b"\xff", b"\x00", b"{", b"}",
    b'{"text":"\xc3("}', b'{"other":"\xed\xa0\x80"}', b'{"other":"\xff"}', b'{"\xff":1}', b'{"other":{"\xc0\x80":1}}',
    b'\xef\xbb\xbf{"whole":1}', '{"whole":1}'.encode("utf-16-le"), b'\x00{"whole":1}', b'{"whole":1}\x00',
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


def test_what_is_in_doubt_is_undecided() -> None:
    """A reason can be told by the native expressions only; an event that they would refuse must never land."""
    for value, event in zip(BAD, decided(BAD), strict=True):
        assert event is None, value and value[:80]


@settings(max_examples=200)
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


@settings(max_examples=200)
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
    "kind",
    [
        T.DecimalType(10, 2),
        T.FloatType(),
        T.ByteType(),
        T.BinaryType(),
        T.MapType(T.StringType(), T.LongType()),
        T.TimestampNTZType(),
        T.VariantType(),
        T.CharType(5),
        T.VarcharType(5),
        T.DayTimeIntervalType(),
        T.StringType("UNICODE_CI"),
        T.NullType(),
        T.StructType(),
    ],
    ids=str,
)
def test_a_type_that_is_not_known_here_leaves_the_schema_to_the_native_expressions(kind: T.DataType) -> None:
    """A type that is almost another one is decoded almost right."""
    for inside in (kind, T.ArrayType(kind), T.ArrayType(T.StructType([T.StructField("x", kind)]))):
        assert shape(T.StructType([T.StructField("a", T.StringType()), T.StructField("b", inside)])) is None


@pytest.mark.parametrize("name", ["a.b", "a b", "a'b", "a`b", "$", "ключ", "*", "class", "f0", "_f1"])
def test_a_field_may_have_any_name(name: str) -> None:
    """JSON allows any text as a key."""
    known = shape(T.StructType([T.StructField(name, T.LongType()), T.StructField("f1", T.LongType())]))
    assert known is not None

    added = events(batch([json.dumps({name: 1, "f1": 2}).encode()]), known)

    assert added.column("event").to_pylist() == [{name: 1, "f1": 2}]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb"])
def test_a_name_that_json_escapes_is_left_to_the_native_expressions(name: str) -> None:
    """It must work, if slower."""
    assert shape(T.StructType([T.StructField(name, T.LongType())])) is None


def test_a_comment_is_no_other_type() -> None:
    """What is only said of a field must not make it slow; what Spark keeps there of its type must."""
    fields = [T.StructField("a", T.StringType(), metadata=held) for held in ({}, {"comment": "one"}, {"TYPE": "char"})]
    bare, commented, other = (shape(T.StructType([field])) for field in fields)

    assert bare is not None
    assert (commented, other) == (bare, None)


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
    assert SHAPE is not None

    found = events(values.slice(1, 3), SHAPE).column("event").to_pylist()

    assert [event and event["whole"] for event in found] == [1, None, None]


# With Spark: what is decided here is what the native expressions decide.


def differences(values: Sequence[bytes | None], native: Iterable[tuple[Any, str | None]]) -> list[Any]:
    """Return the decided values for which the native expressions have an error or another event."""
    rows = zip(values, decided(values), native, strict=True)
    return [
        (value, event, found, error)
        for value, event, (found, error) in rows
        if event is not None and (error is not None or repr(event) != repr(found))
    ]


def test_what_is_decided_is_what_the_native_expressions_decide(decode: Decode) -> None:
    """A record must be the same in the table whichever way it took."""
    values = [*examples(anything | st.binary(max_size=40), 1000), *(value for value, _ in GOOD), *BAD]

    assert differences(values, decode(Json(schema=SCHEMA), values)) == []


def test_numbers_are_those_of_the_native_expressions(decode: Decode) -> None:
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

    assert differences(values, decode(Json(schema=SCHEMA), values)) == []


def test_times_are_those_of_the_native_expressions(decode: Decode) -> None:
    """A time that moves by an hour is not seen for weeks."""
    changed = st.builds(
        lambda text, place, other, width: text[: place % len(text)] + other + text[place % len(text) + width :],
        times | days,
        st.integers(0, 30),
        st.text("0123456789-:. TZtz+,_", max_size=2),
        st.integers(0, 2),
    )
    drawn = examples(times | days | changed, 1000)
    values = [json.dumps({name: text}).encode() for text in drawn for name in ("at", "day")]
    values += [json.dumps({"times": [text], "player": {"since": text}}).encode() for text in drawn[::10]]

    assert differences(values, decode(Json(schema=SCHEMA), values)) == []


@pytest.mark.usefixtures("spark")
def test_the_decoder_gives_tasks_its_schema() -> None:
    """Tasks decode to exactly the type that the native expressions have."""
    decoding = Json(schema=SCHEMA).decoding()

    assert decoding is not None
    assert decoding.argument == SHAPE
    assert decoding.function is events
    assert decoding is Json(schema=SCHEMA).decoding()


@pytest.mark.parametrize(
    "schema",
    [SCHEMA, "a int not null, b struct<c: int not null>, d array<string>"],
    ids=["all types", "not null"],
)
def test_the_native_expressions_have_the_same_type(raw: Any, schema: str) -> None:
    """Rows that took the one way and rows that took the other meet in a table."""
    decoder = Json(schema=schema)
    decoding = decoder.decoding()

    assert decoding is not None
    assert decoder.decode(raw([])).select("event", "_error").schema == decoding.adds


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "options",
    [
        {"schema": "a int", "rescue": True},
        {"schema": "a map<string,string>"},
        {"schema": "a varchar(5)"},
        {"schema": "a char(5)"},
        {"schema": "a string collate UNICODE_CI"},
        {"schema": "a timestamp_ntz"},
        {"schema_file": "a.schema.json"},
        {"infer": {"file": "a.ddl"}},
    ],
    ids=str,
)
def test_what_only_the_native_expressions_do_is_not_offered_to_tasks(options: dict[str, Any]) -> None:
    """Rescue, and types that are not known in record batches, work as before."""
    assert Json(**options).decoding() is None
