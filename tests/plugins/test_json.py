"""The json decoder, value by value."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from router import StartError
from router_decoders import Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.plugins.conftest import Decode, Raw

SCHEMA = """
    text string, small smallint, whole int, big bigint, real double, short float, money decimal(10,2), yes boolean,
    at timestamp, day date, tags array<int>, scores map<string,int>, reals array<double>, times array<timestamp>,
    player struct<level: int, name: string, home: struct<lat: double, since: date>>,
    rounds array<struct<n: int, at: timestamp>>
"""
ZONE = dt.timezone.utc


def at(hour: int, minute: int = 0, second: int = 0, micro: int = 0) -> dt.datetime:
    """Return a time of the day that the examples have."""
    return dt.datetime(2026, 11, 21, hour, minute, second, micro, tzinfo=ZONE)


GOOD: list[tuple[bytes, dict[str, Any]]] = [
    (b"{}", {}),
    (b' \r\n\t{"whole": 1 }\r\n', {"whole": 1}),
    (b'{"text":"a","unknown":[1,{"x":2}],"whole":null}', {"text": "a"}),
    ('{"text":"zażółć 🂡 \\u00e9 \\ud83c\\udca1 \\n\\""}'.encode(), {"text": 'zażółć 🂡 é 🂡 \n"'}),
    (b'{"text":5}', {"text": "5"}),
    (b'{"text":true}', {"text": "true"}),
    (b'{"text":{"a":[1, null]}}', {"text": '{"a":[1,null]}'}),
    (b'{"text":""}', {"text": ""}),
    (b'{"small":-32768,"whole":-2147483648}', {"small": -32768, "whole": -(2**31)}),
    (b'{"big":9223372036854775807}', {"big": 2**63 - 1}),
    (b'{"big":9007199254740993}', {"big": 2**53 + 1}),
    (b'{"whole":-0}', {"whole": 0}),
    (b'{"real":1.7976931348623157e308}', {"real": 1.7976931348623157e308}),
    (b'{"real":5,"short":0.5}', {"real": 5.0, "short": 0.5}),
    (b'{"real":1e-400}', {"real": 0.0}),
    (b'{"money":12345678.9}', {"money": Decimal("12345678.90")}),
    (b'{"money":1.239}', {"money": Decimal("1.24")}),
    (b'{"money":"1.5"}', {"money": Decimal("1.50")}),
    (b'{"yes":true}', {"yes": True}),
    (b'{"at":"2026-11-21T10:00:00Z"}', {"at": at(10)}),
    (b'{"at":"2026-11-21T10:00:00+02:00"}', {"at": at(8)}),
    (b'{"at":"2026-11-21T10:00:00+0200"}', {"at": at(8)}),
    (b'{"at":"2026-11-21T10:00:00.123-05:30"}', {"at": at(15, 30, 0, 123000)}),
    (b'{"at":"2026-11-21T10:00:00.123456789Z"}', {"at": at(10, 0, 0, 123456)}),
    (b'{"at":"2026-11-21 10:00:00 Europe/Berlin"}', {"at": at(9)}),
    (b'{"at":"2026-11-21T10:00:00"}', {"at": at(10)}),
    (b'{"at":"2026-11-21"}', {"at": at(0)}),
    (b'{"at":"0001-01-01T00:00:00Z"}', {"at": dt.datetime(1, 1, 1, tzinfo=ZONE)}),
    (b'{"day":"2024-02-29"}', {"day": dt.date(2024, 2, 29)}),
    (b'{"tags":[1,null,2],"reals":[]}', {"tags": [1, None, 2], "reals": []}),
    (b'{"times":["2026-11-21T10:00:00Z",null]}', {"times": [at(10), None]}),
    (b'{"scores":{"a":1,"b":null}}', {"scores": [("a", 1), ("b", None)]}),
    (
        b'{"player":{"level":3,"home":{"since":"2024-01-01"}}}',
        {"player": {"level": 3, "name": None, "home": {"lat": None, "since": dt.date(2024, 1, 1)}}},
    ),
    (b'{"rounds":[{"n":1,"at":"2026-11-21T10:00:00Z"},null]}', {"rounds": [{"n": 1, "at": at(10)}, None]}),
    (b'{"whole":1,"whole":2}', {"whole": 2}),
    (b'\xef\xbb\xbf{"whole":1}', {"whole": 1}),
    (b'\xef\xbb\xbf {"other":1,"text":5}', {"text": "5"}),
]  # fmt: skip


def test_a_good_record_has_its_values_and_exactly_the_schema_s_fields(decode: Decode) -> None:
    """A value that changes on its way is worse than a dead letter."""
    found = decode(Json(schema=SCHEMA), [value for value, _ in GOOD])

    for (value, expected), (event, error) in zip(GOOD, found, strict=True):
        assert error is None, value
        assert len(event) == 16, value
        assert {name: held for name, held in event.items() if held is not None} == expected, value


REASONS: list[tuple[bytes | None, str]] = [
    (None, "value is null"),
    (b"", "value is empty"),
    (b" \r\n\t", "value is empty"),
    (b"\xff", "value is not UTF-8"),
    (b'{"text":"\xc3("}', "value is not UTF-8"),
    (b'{"other":"\xed\xa0\x80"}', "value is not UTF-8"),
    (b"nope", "value is not JSON"),
    (b'{"whole":1', "value is not JSON"),
    (b'{"whole":1,}', "value is not JSON"),
    (b"{'whole':1}", "value is not JSON"),
    (b"{whole:1}", "value is not JSON"),
    (b'{"whole":01}', "value is not JSON"),
    (b'{"real":.5}', "value is not JSON"),
    (b'{"real":+1}', "value is not JSON"),
    (b'{"real":NaN}', "value is not JSON"),
    (b'{"real":-Infinity}', "value is not JSON"),
    (b'{"text":"a\x01"}', "value is not JSON"),
    (b'{"text":"\\q"}', "value is not JSON"),
    (b'{"whole":1/*2*/}', "value is not JSON"),
    (b"\xef\xbb\xbf", "value is empty"),
    (b"\xef\xbb\xbf \n", "value is empty"),
    (b'\xef\xbb\xbf\xef\xbb\xbf{"whole":1}', "value is not JSON"),
    (b' \xef\xbb\xbf{"whole":1}', "value is not JSON"),
    (b'\xef\xbb{"whole":1}', "value is not UTF-8"),
    ('{"whole":1}'.encode("utf-16-le"), "value is not JSON"),
    (b'\x00{"whole":1}', "value is not JSON"),
    (b'{"text":' * 1000 + b"1" + b"}" * 1000, "value is nested more than 999 levels deep"),
    (b'{"other":' + b"[" * 1001 + b"]" * 1001 + b"}", "value is nested more than 999 levels deep"),
    (b'{"other":' + b"[" * 1001 + b"]" * 500, "value is not JSON"),
    (b'{"other":nope,"more":' + b"[" * 1001 + b"]" * 1001 + b"}", "value is not JSON"),
    (b'{"whole":1} ' + b"[" * 1001 + b"]" * 1001, "value has text after the object"),
    (b'{"big":' + b"9" * 1001 + b"}", "value has a number of more than 1000 digits"),
    (b'{"other":[0.' + b"9" * 1000 + b"]}", "value has a number of more than 1000 digits"),
    (b'{"' + b"k" * 70_000 + b'":1}', "value has a field name of more than 50000 characters"),
    (b'{"other":{"' + b"k" * 50_001 + b'":1}}', "value has a field name of more than 50000 characters"),
    (b'{"scores":{"' + b"k" * 50_001 + b'":1}}', "value has a field name of more than 50000 characters"),
    (b'{"other":nope,"' + b"k" * 70_000 + b'":1}', "value is not JSON"),
    (b'{"whole":1} x', "value has text after the object"),
    (b'{"whole":1}{"whole":2}', "value has text after the object"),
    (b'{"whole":1}\n{"whole":2}', "value has text after the object"),
    (b'{"whole":1},{"whole":2}', "value has text after the object"),
    (b'{"whole":1}}', "value has text after the object"),
    (b'{"whole":1}]', "value has text after the object"),
    (b'{"whole":1}\x00', "value has text after the object"),
    (b"[]", "value is an array, not an object"),
    (b'[{"whole":1}]', "value is an array, not an object"),
    (b"null", "value is a scalar, not an object"),
    (b"5", "value is a scalar, not an object"),
    (b' "text"', "value is a scalar, not an object"),
    (b'{"whole":"5"}', "does not fit the schema: whole"),
    (b'{"whole":""}', "does not fit the schema: whole"),
    (b'{"whole":1.0}', "does not fit the schema: whole"),
    (b'{"big":1e3}', "does not fit the schema: big"),
    (b'{"small":32768,"whole":2147483648,"big":9223372036854775808}', "does not fit the schema: small, whole, big"),
    (b'{"real":1e400}', "does not fit the schema: real"),
    (b'{"real":-1e400,"short":1e39}', "does not fit the schema: real, short"),
    (b'{"real":"NaN"}', "does not fit the schema: real"),
    (b'{"real":"1.5"}', "does not fit the schema: real"),
    (b'{"money":123456789}', "does not fit the schema: money"),
    (b'{"yes":"true"}', "does not fit the schema: yes"),
    (b'{"yes":1}', "does not fit the schema: yes"),
    (b'{"at":""}', "does not fit the schema: at"),
    (b'{"at":"12:30"}', "does not fit the schema: at"),
    (b'{"at":"1:20-05:00"}', "does not fit the schema: at"),
    (b'{"at":"2026"}', "does not fit the schema: at"),
    (b'{"at":"2026-02-30T10:00:00Z"}', "does not fit the schema: at"),
    (b'{"at":"0000-12-31T00:00:00Z"}', "does not fit the schema: at"),
    (b'{"at":"9999-12-31T23:59:59-14:00"}', "does not fit the schema: at"),
    (b'{"at":1763719200}', "does not fit the schema: at"),
    (b'{"at":1763719200000000000}', "does not fit the schema: at"),
    (b'{"day":"2026-02-30"}', "does not fit the schema: day"),
    (b'{"day":"2026-11-21T00:00:00Z"}', "does not fit the schema: day"),
    (b'{"day":20000}', "does not fit the schema: day"),
    (b'{"tags":[1,"x"]}', "does not fit the schema: tags"),
    (b'{"tags":{"a":1}}', "does not fit the schema: tags"),
    (b'{"scores":{"a":"x"}}', "does not fit the schema: scores"),
    (b'{"scores":{"a":1,"a":2}}', "does not fit the schema: scores"),
    (b'{"reals":[1,1e400]}', "does not fit the schema: reals"),
    (b'{"times":["2026-11-21T10:00:00Z","x"]}', "does not fit the schema: times"),
    (b'{"rounds":[{"at":"x"}]}', "does not fit the schema: rounds"),
    (b'{"rounds":[{"n":"x"}]}', "does not fit the schema"),
    (b'{"player":5}', "does not fit the schema: player"),
    (b'{"player":{"level":"x","name":"y"}}', "does not fit the schema: player.level"),
    (b'{"yes":0,"player":{"home":{"lat":1e400}}}', "does not fit the schema: player.home.lat, yes"),
    (b'{"player":{"home":{"since":"x"}}}', "does not fit the schema: player.home.since"),
    (b'{"whole":"x","whole":1}', "does not fit the schema"),
]  # fmt: skip


def test_a_record_that_is_no_event_says_why(decode: Decode) -> None:
    """At night the reason in the dead letter is all one has."""
    found = decode(Json(schema=SCHEMA), [value for value, _ in REASONS])

    for (value, reason), (event, error) in zip(REASONS, found, strict=True):
        assert (event, error) == (None, reason), value and value[:80]


def test_huge_values_are_decided_like_small_ones(decode: Decode) -> None:
    """One record of megabytes must not stop the batch."""
    values = [
        b'{"text":"' + b"x" * 5_000_000 + b'"}',
        b'{"other":' + b"[" + b"1," * 2_000_000 + b'1],"whole":1}',
        b'{"whole":"' + b"x" * 5_000_000 + b'"}',
        b'{"text":"' + b"x" * 20_000_001 + b'"}',
        b"[" * 5_000_000,
        b" " * 5_000_000,
    ]

    found = decode(Json(schema="text string, whole int"), values)

    assert [error for _, error in found] == [
        None,
        None,
        "does not fit the schema: whole",
        "value has a text of more than 20000000 characters: text",
        "value is not JSON",
        "value is empty",
    ]
    assert found[0][0]["text"] == "x" * 5_000_000


@pytest.mark.parametrize(
    "name", ["a.b", "a b", "a'b", 'a"b', "a`b", "a]b", "a[b", "$", "ключ", "*", "a\\b", "a:", "a'\"b"]
)
def test_a_field_of_any_name_is_decoded_and_named(decode: Decode, name: str) -> None:
    """JSON allows any text as a key, and a stream must not stop for one."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    schema = f"`{name.replace('`', '``')}` int, other int"
    values = [f'{{"{quoted}":{held}}}'.encode() for held in ("1", '"x"')]

    (good, _), (_, error) = decode(Json(schema=schema), values)

    assert good == {name: 1, "other": None}
    assert error in {f"does not fit the schema: {name.rstrip(':')}", "does not fit the schema"}


def test_unknown_keys_are_rescued(decode: Decode) -> None:
    """A field that a producer added yesterday must not be lost until the schema knows it."""
    values = [
        b'{"game":"uno"}',
        b'{"game":"uno","bet":1.50,"who":{"id":[1]},"note":null,"text":"a\\"b","bet":2}',
        b'{"other":1,"game":5',
        b'{"game":"uno","Game":"x","_rescued":{}}',
    ]

    found = decode(Json(schema="game string", rescue=True), values)

    assert [event and {**event, "_rescued": event["_rescued"] and dict(event["_rescued"])} for event, _ in found] == [
        {"game": "uno", "_rescued": None},
        {"game": "uno", "_rescued": {"bet": "2", "who": '{"id":[1]}', "note": None, "text": 'a"b'}},
        None,
        {"game": "uno", "_rescued": {"Game": "x", "_rescued": "{}"}},
    ]
    assert [len(event["_rescued"]) for event, _ in (found[1], found[3])] == [4, 2]
    assert found[2][1] == "value is not JSON"


@pytest.mark.parametrize("rescue", [False, True])
def test_fields_that_the_schema_lacks_are_found_in_every_record(raw: Raw, rescue: bool) -> None:
    """Without it a new field of the producers is dropped, and nobody finds out for months."""
    decoder = Json(schema="named string, p struct<a: int>, l array<struct<b: int>>", rescue=rescue)
    values = [
        b'{"named":"uno","bonus":1}',
        b'{"p":{"a":1,"c":2},"l":[{"b":1},{"d":{"e":1}}]}',
        b'{"named":5,"p":{"a":1}}',
        b'{"named":5,"bonus":null}',
        b"garbage",
        None,
        b"[1]",
        b'{"named":"\\ud800","line\\n\\u001b[2J":1}',
    ]
    for _ in range(2):
        found = decoder.decode(raw(values)).orderBy("offset").select("_unknown").toArrow().to_pylist()
        assert [row["_unknown"] and sorted(row["_unknown"]) for row in found] == [
            *(["bonus"], ["l[].d", "p.c"], None, ["bonus"], None, None, None),
            ["line\n\x1b[2J"],
        ]


def test_many_unknown_keys_are_rescued_in_reasonable_time(decode: Decode) -> None:
    """A hostile record with 20 000 keys must not hold up a batch."""
    keys = [b'"k%d":%d' % (number % 10_000, number) for number in range(20_000)]

    [(event, _)] = decode(Json(schema="game string", rescue=True), [b"{" + b",".join(keys) + b"}"])

    assert len(event["_rescued"]) == 10_000
    assert dict(event["_rescued"])["k7"] == "10007"


@pytest.mark.usefixtures("compiled")
def test_three_hundred_fields_are_decoded(decode: Decode) -> None:
    """Wide events exist; code that is generated for them has limits."""
    kinds = ["string", "double", "timestamp", "struct<a: int, b: array<double>>"]
    schema = ", ".join(f"c{number} {kinds[number % 4]}" for number in range(300))

    found = decode(Json(schema=schema), [b'{"c0":"x","c297":1.5}', b'{"c1":1,"c298":"x","c299":{"a":"x"}}'])

    assert found[0][0]["c297"] == 1.5
    assert found[1] == (None, "does not fit the schema: c298, c299.a")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"schema": "game strin"}, "DDL"),
        ({"schema": "map<string,int>"}, "DDL"),
        ({"schema": "a tinyint"}, "a: tinyint"),
        ({"schema": "a struct<b: array<tinyint>>"}, r"a\.b\.\[\]: tinyint"),
        ({"schema": "a map<int,string>"}, "a: keys"),
        ({"schema": "a int, A int"}, "a and A differ by case"),
        ({"schema": "o struct<b: int, B: int>"}, "o: b and B"),
        ({"schema": "a int, _Rescued int", "rescue": True}, "_rescued already"),
    ],
    ids=str,
)
def test_a_schema_that_cannot_work_is_refused_before_any_record(raw: Raw, options: dict[str, Any], word: str) -> None:
    """A wrong schema must fail `router check --plan`, not the first batch."""
    with pytest.raises(ValueError, match=word):
        Json(**options).decode(raw([]))


def test_a_schema_in_a_file_needs_preparation(raw: Raw) -> None:
    """Decoding with no schema must not be possible by mistake."""
    with pytest.raises(StartError, match="prepare"):
        Json(schema_file="games.json").decode(raw([]))


def test_verdicts_do_not_depend_on_ansi_mode(spark: SparkSession, decode: Decode) -> None:
    """Somebody sets spark.sql.ansi.enabled, and the same record must get the same verdict."""
    values = [value for value, _ in REASONS] + [value for value, _ in GOOD]
    strict = decode(Json(schema=SCHEMA), values)
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        assert decode(Json(schema=SCHEMA), values) == strict
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
