"""Spark's expressions on Arrow: the same value for every row, an error on the same rows, or a clear no."""

from __future__ import annotations

import random
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from router.api.columns import tried
from router.engine.expressions.evaluator import Untranslatable, evaluate_expression, translate_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

NAN, INFINITY = float("nan"), float("inf")
FEW = [0, 1, 2, 3, 5, -1, -7, 9, 100]
WHOLE = [*FEW, 2**31 - 1, -(2**31)]
LONG = [*WHOLE, 2**63 - 1, -(2**63), 2**53 + 1, 2**62, 3037000500, 10**12]
REAL = [0.0, -0.0, 1.0, 0.5, 1.5, 2.5, -2.5, NAN, INFINITY, -INFINITY, 1e300, 5e-324, 2.675, 1.005, -1e18, 2.0**63]
REAL += [-(2.0**63), 2147483648.0, 123456.785, 0.285, 1e15 + 0.5, 0.49999999999999994]
TEXTS = [
    *["", "a", "abc", "ABC", " ab ", "x\ny", "é", "Straße", "İstanbul", "ΑΣ", "\U0001f600b", "a_b", "a%b", "50%", "\\"],
    *["a,b,c", "\n", "foo\r\n", "a.b.c", "aaa", "no\0te", "ǅ", "ﬁ", "foo", "\ua7cb\u0264", "\tfoo", "a-1", "silver.x"],
    *["foo\u2028", "Ünö", "uno", "1", "true", "ID42", "\uffff", "\r\n"],
]
NUMERALS = [
    *["1", " 42 ", "+7", "-0", "007", "1.5", "abc", "", "9223372036854775807", "9223372036854775808", "2147483648"],
    *["1e3", "1d", "0x1p3", "NaN", "inf", " Infinity", "-iNf", "1 2", "\t5\n", "\uff11", "9" * 26, "-", ".5", "5."],
    *["1e400", "t", "no", "TRUE", "y ", "\x7f5", "5\u00a0", "128", "1_000", "123456789012345678.5", " 1e5 "],
]
DAYS = [
    *["2020-01-02", "2020-1-2", "2020", "2020-02-30", "2019-02-29", "2020-02-29", " 2020-01-02 ", "2020-01-02T03:04Z"],
    *["2020-01-02 x", "2020-01-02x", "+2020-01-01", "-0001-01-01", "10000-01-01", "0000-01-01", "202-01-01", "2020-"],
    *["", "abc", "2020-13-01", "9999999-12-31", "1970-01-01", "today", "12020-3-4", "2020-001-01"],
]
MOMENTS = [
    *["2020-01-02 03:04:05", "2020-01-02T03:04:05Z", "2020-01-02T03:04:05.123456Z", "2020-02-30 00:00:00", "now", ""],
    *["2020-01-02T03:04:05.1234567+02:00", "2020-1-2 3:4:5.5", "2020-01-02 24:00:00", "2020-01-02 03:04", "2020"],
    *["2020-01-02T", "2020-01-02 03", "2020-01-02 03:04Z", "2020-07-02 03:04:05 Europe/Rome", "0001-01-01 00:00:00"],
    *["2020-01-02 03:04:05 PST", "2020-01-02 03:04:05UTC+1", "2020-01-02 03:04:05+1:2", "2020-01-02 03:04:05-0130"],
    *["2020-01-02 03:04:05 Mars/Olympus", "2020-01-02 03:04:05+19:00", "294247-01-10 04:00:54.775807", "abc"],
    *["294248-01-01 00:00:00", "-0001-01-01 00:00:00", " 2020-01-02 03:04:05. ", "2020-01-02 03:04:05.5.5"],
    *["2020-03-29 02:30:00 Europe/Rome", "2020-10-25 02:30:00 Europe/Rome", "1969-12-31 23:59:59.999999"],
]
CENTS = [Decimal(cents) / 100 for cents in (0, 1, -1, 150, 12345, -99, 250, 249, -250, 9999999999, -9999999999)]
DATES = [date(1, 1, 1), date(1582, 10, 4), date(1969, 12, 31), date(1970, 1, 1), date(2020, 2, 29), date(9999, 12, 31)]
TIMES = [datetime.combine(day, time(23, 59, 58, micros)) for day in DATES for micros in (0, 1, 120000)]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "a": (pa.int32(), WHOLE),
    "c": (pa.int32(), WHOLE),
    "b": (pa.int64(), LONG),
    "e": (pa.int64(), LONG),
    "h": (pa.int8(), [0, 1, -1, 127, -128, 3]),
    "d": (pa.float64(), REAL),
    "g": (pa.float64(), REAL),
    "f": (pa.float32(), [0.0, 1.5, NAN, -0.0, INFINITY]),
    "t": (pa.string(), TEXTS),
    "u": (pa.string(), TEXTS),
    "y": (pa.bool_(), [True, False]),
    "num": (pa.string(), NUMERALS),
    "at": (pa.string(), DAYS),
    "when": (pa.string(), MOMENTS),
    "day": (pa.date32(), DATES),
    "ts": (pa.timestamp("us", "UTC"), [moment.replace(tzinfo=timezone.utc) for moment in TIMES]),
    "ntz": (pa.timestamp("us"), TIMES),
    "dec": (pa.decimal128(10, 2), CENTS),
    "bin": (pa.binary(), [b"", b"\x01", b"\xff\x00"]),
    "arr": (pa.list_(pa.int32()), [[], [1], [None, 2], [3, 1, 2, None]]),
    "arrs": (pa.list_(pa.struct([("x", pa.int32())])), [[], [{"x": 1}, None], [{"x": None}]]),
    "m": (pa.map_(pa.string(), pa.int32()), [[], [("x", 1)], [("", 3), ("x", None)], [("abc", 2), ("y", 4)]]),
    "in": (pa.struct([("x", pa.int16())]), [{"x": 7}, {"x": None}, {"x": 0}]),
}
EVENT = pa.struct([(name, kind) for name, (kind, _) in VALUES.items()])
SAME = {
    "comparisons": """event.a > 1; event.a >= event.b; event.b = 9007199254740993; event.a < event.d; event.d <= 0.5;
        event.d = event.d; event.d > 1e300; event.d >= 0; event.d <=> event.d; event.d = 0; event.a > 1.5BD;
        event.b > 1.5; event.t = 'uno'; event.t < event.u; event.t >= event.u; event.t <=> event.u; event.t != 'uno';
        event.t IN ('uno', ''); event.a IN (1, 9); event.a NOT IN (1, 9); event.t IS NULL; event IS NOT NULL;
        event.in.x > 0; event.in.x IS NULL; event.in; event.a; offset; event.a BETWEEN 0 AND 3; event.a = null; null;
        event.d > event.g; equal_null(event.a, event.c); event.f = event.d; event.y > false; event.y = true;
        event.y IS NOT TRUE; event.bin = X'01'; event.bin < X'02'; event.t IN ('uno', null);
        event.d IN (0.0D, 1.5D, double('nan')); event.t IN (event.u, 'a');
        event.day IN (date'2020-02-29'); event.dec IN (1.5, 1.00); event.dec > 1.5; event.dec > event.d;
        event.dec = event.a; event.ts > timestamp'2020-01-01 00:00:00'; event.day = date'2020-02-29';
        event.ntz < timestamp_ntz'2020-01-01 00:00:00'; greatest(event.d, event.g); least(event.t, event.u);
        greatest(event.a, event.b, 5); event.a IN (null)""",
    "logic": """NOT event.y; event.y AND event.a > 1; event.y OR event.a > 1; event.y;
        coalesce(event.t, event.u, 'none');
        if(event.a > 1, event.t, event.u); CASE WHEN event.a > 1 THEN 'more' WHEN event.y THEN 'yes' END;
        CASE WHEN event.a > 1 THEN 1 ELSE 0 END; nvl(event.a, 5); if(event.y, event.arr, null);
        nullif(event.a, event.c);
        nvl2(event.a, event.t, event.u); coalesce(event.dec, 0)""",
    "laziness": """event.a = 0 OR 10/event.a > 1; event.c != 0 AND 10/event.a > 1; 10/event.a > 2 AND event.c != 0;
        if(event.a = 0, 0, 10/event.a); coalesce(event.c, 10/event.a); event.c + 10/event.a; 10/event.a - event.c;
        CASE WHEN event.a = 0 THEN 1 WHEN 10 div event.a > 1 THEN 2 ELSE 10 % event.c END; (10/event.a) IS NULL;
        (10/event.a) <=> event.d; nullif(10/event.a, 1.0); 10/event.a BETWEEN 1 AND 2; event.a + 1 BETWEEN 1 AND 2;
        concat(event.t, 10 div event.a); concat_ws('-', event.t, 10 div event.a); event.a IN (1, 10 div event.c);
        event.a IN (1, 2, event.c); 10/event.a > 1 OR true; 10/event.c > 1 AND false; 1/event.a + null;
        1/event.a IN (null); struct(event.a, 10/event.a AS q); struct(1/event.a AS x, event.b AS y).y;
        try_add(10 div event.a, event.b); event.num > 5 AND event.y; array_contains(event.arr, int(event.num));
        date(event.at) <=> date(event.at); CASE WHEN 1/event.a > 1 THEN 2 ELSE 2 END; if(1/event.a > 1, 3, 3);
        CASE WHEN event.y THEN 1 WHEN 1/event.a > 1 THEN 2 ELSE 2 END; if(event.y, 1/event.a, 1/event.c)""",
    "arithmetic": """event.a + event.c; event.b + event.e; event.b - event.e; event.b * event.e; event.a * event.c;
        event.h + event.h; event.h * event.h; event.a + 1; event.d + event.g; event.d * event.g; event.d - event.g;
        event.f * event.f; event.dec + event.dec; event.dec * event.dec; event.dec - 1; event.a + event.dec;
        event.a / event.c; event.d / event.g; event.a div event.c; event.b div event.e; event.a % event.c;
        event.b % event.e; event.d % event.g; event.f % event.f; event.h % event.h; -event.a; -event.b; -event.d;
        -event.dec; abs(event.a); abs(event.b); abs(event.d); abs(event.dec); abs(event.h); round(event.d, 1);
        round(event.d); round(event.d, 2); round(event.d, 3); round(event.dec, 1); round(event.dec); round(event.a);
        ceil(event.d); floor(event.d); isnan(event.d); try_add(event.a, event.c); try_divide(event.a, event.c);
        try_subtract(event.b, event.e); try_multiply(event.b, event.e); try_mod(event.a, event.c); event.a % 0""",
    "casts": """cast(event.b AS string); cast(event.a AS double); bigint(event.d); int(event.d); tinyint(event.d);
        smallint(event.b); int(event.b); tinyint(event.a); try_cast(event.d AS int); try_cast(event.b AS int);
        double(event.b); float(event.b); float(event.d); boolean(event.d); boolean(event.a); int(event.y);
        double(event.y); string(event.y); string(event.day); string(event.ts); string(event.ntz); string(event.dec);
        int(event.num); bigint(event.num); tinyint(event.num); double(event.num); boolean(event.num);
        try_cast(event.num AS int); try_cast(event.num AS double); event.num > 5; event.num + 1 > 2; date(event.at);
        try_cast(event.at AS date); to_date(event.at); event.at > date'2020-01-01'; cast(event.a AS decimal(5,2));
        cast(event.b AS decimal(20,1)); cast(event.dec AS decimal(12,4)); cast(event.dec AS decimal(8,1));
        cast(event.dec AS decimal(5,0)); double(event.dec); date(event.ts); timestamp(event.day); date(event.ntz);
        cast(event.ts AS timestamp_ntz); cast(event.ntz AS timestamp); bigint(event.ts); double(event.ts);
        event.day > '2020-01-01'; event.ts > '1582-10-04T23:59:58.12Z'; event.ts = timestamp('9999-12-31 23:59:58');
        event.ts > '2020-01-01'; event.ts BETWEEN '2020-01-01' AND '2021-01-01 00:00:00';
        event.ts > try_cast('2020-01-01' AS timestamp); cast(event.t AS binary)""",
    "texts": r"""startswith(event.t, 'un'); startswith(event.t, null); endswith(event.t, 'o');
        contains(event.t, 'n'); concat('silver.', event.t);
        concat(event.t, '_', event.a, event.y); upper(event.t); lower(event.t); length(event.t); trim(event.t);
        ltrim(event.t); rtrim(event.t); trim(BOTH 'ab' FROM event.t); substring(event.t, 1, 2); 'uno';
        substring(event.t, -2, 1); substring(event.t, 0, 2); substring(event.t, -5, 3); substring(event.t, -5, 4);
        substring(event.t, 2); substring(event.t, 3, -1); left(event.t, 2); right(event.t, 2); left(event.t, -1);
        right(event.t, 0); concat_ws('-', event.t, event.u); concat_ws(event.t, event.u, 'x'); instr(event.t, 'b');
        replace(event.t, 'a', 'b'); replace(event.t, 'a'); replace(event.t, '', 'b');
        octet_length(event.t); upper('ß')""",
    "patterns": r"""event.t LIKE 'a%'; event.t LIKE '%a'; event.t LIKE '%a%'; event.t LIKE 'a_b'; event.t LIKE 'a\\_b';
        event.t LIKE '%\\%%'; event.t LIKE '_'; event.t LIKE '%'; event.t LIKE ''; event.t LIKE 'a%b';
        event.t LIKE '%b%c%';
        event.t LIKE 'x_y'; event.t LIKE '\U0001f600%'; event.t ILIKE 'AB%'; event.t NOT LIKE 'a%';
        event.t LIKE 'a#_b' ESCAPE '#'""",
    "dates": """to_date(event.ts); event.ts >= date'2020-01-01';
        event.ts > timestamp_ntz'2020-01-01 00:00:00'""",
    "look-ups": """event.arr[0]; event.arr[event.h]; element_at(event.arr, 1); element_at(event.arr, -1);
        element_at(event.arr, event.h); try_element_at(event.arr, event.h); element_at(event.arr, 0);
        try_element_at(event.arr, 0); event.m['x']; event.m.x; event.m[event.t]; element_at(event.m, 'x');
        try_element_at(event.m, 'y'); size(event.arr); size(event.m); array_size(event.arr);
        array_contains(event.arr, 1); array_contains(event.arr, event.c);
        event.arrs.x; event.arrs[0].x; element_at(event.arrs, 1).x;
        array_contains(event.arrs.x, 1); event.arr[10] IS NULL;
        get(event.arr, 1); get(event.arr, event.h)""",
    "bytes": """length(event.bin) < 2; length(event.bin); octet_length(event.bin); char_length(event.bin);
        length(value) < 1000000; substring(event.bin, 1, 1); substring(event.bin, 2); substring(event.bin, -1, 1);
        substring(event.bin, -5, 4); substring(event.bin, 0, 2); substring(event.bin, 1, 0); substring(event.bin, 9);
        substring(event.bin, 1, 1) = X'FF'; length(substring(event.bin, 2));
        octet_length(event.t)""",
}
OTHER = {
    "rand() > 0": "the function rand",
    "cast(event.d AS string)": "a cast from double to string",
    "startswith(event.t, event.u)": "the function starts_with with other than constants",
    "current_timestamp() IS NOT NULL": "the function current_timestamp",
    "event.in = event.in": "a comparison with struct",
    "soundex(event.t) = 'x'": "the function soundex",
    "exists(event.arr, x -> x > 1)": "the function exists",
    "event.t LIKE event.u": "LIKE with a pattern that is no constant",
    "event.t LIKE '\U0001f600_'": "LIKE with the pattern \U0001f600_",
    "event.t RLIKE 'uno'": "the function rlike",
    "year(event.ts)": "the function year",
    "date_trunc('day', event.ts)": "the function date_trunc",
    "event.ts + interval 1 day": "the function timestampaddinterval",
    "date_add(event.day, 1)": "the function date_add",
    "unix_seconds(event.ts)": "the function unix_seconds",
    "substring_index(event.t, '.', 1)": "the function substring_index",
    "map_keys(event.m)": "the function map_keys",
    "map_contains_key(event.m, 'x')": "the function map_contains_key",
    "1 / 0 > event.d": "a constant on which Spark raises DIVIDE_BY_ZERO",
    "event.t COLLATE unicode = 'a'": "a collation",
    "event.dec / 3": "/ on decimal(10,2) and decimal(1,0)",
    "event.day > 'today'": "the date 'today'",
    "event.ts > 'now'": "the timestamp 'now'",
    "timestamp(event.when)": "a cast from string to timestamp",
    "try_cast(event.when AS timestamp)": "a cast from string to timestamp",
    "to_timestamp(event.when)": "a cast from string to timestamp",
    "try_to_timestamp(event.at)": "a cast from string to timestamp",
    "string(value)": "a cast from binary to string",
    "event.a & 1": "the operator &",
    "md5(event.t)": "the function md5",
    "split_part(event.t, ',', 2)": "the function split_part",
    "substring(event.bin, event.a)": "the function substring of binary",
}


def table(events: Sequence[dict[str, Any] | None]) -> pa.Table:
    """Return events as the records that a decoder gives."""
    return pa.table(
        {
            "event": pa.array(events, EVENT),
            "offset": pa.array(range(len(events)), pa.int64()),
            "value": pa.nulls(len(events), pa.binary()),
        }
    )


def shuffled(rows: int) -> pa.Table:
    """Return events that have every value, and nulls."""
    chance = random.Random(7)
    names = list(VALUES)
    events = [{name: chance.choice([*VALUES[name][1], None]) for name in names} for _ in range(rows - 1)]
    return table([*events, None])


ROWS = shuffled(150)


def framed(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return records as Spark has them in a query, not as a constant that its optimiser computes with."""
    schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    return spark.createDataFrame(rows, schema).localCheckpoint()


def plain(column: pa.Array | pa.ChunkedArray) -> list[str]:
    """Return values as text: NaN equals NaN, and times that Python does not know are numbers."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64())
    return [repr(value) for value in column.to_pylist()]


def differences(frame: DataFrame, rows: pa.Table, texts: Sequence[str]) -> list[str]:
    """Return on which rows Spark and Arrow disagree. Spark evaluates all expressions in one job."""
    asked = []
    for k, text in enumerate(texts):
        # a struct: Spark's optimiser would take the conditions of an IF at the top out of what is tried
        value = tried(F.when(F.col("event").isNotNull(), F.struct(F.expr(text).alias("v"))))
        asked += [value.getField("v").alias(f"v{k}"), value.isNull().alias(f"r{k}")]
    expected = frame.select(*asked).toArrow()
    nodes = translate_columns(frame, [F.expr(text) for text in texts])
    columns = {name: rows.column(name).combine_chunks() for name in rows.column_names}
    present = rows.column("event").is_valid().to_pylist()
    found = []
    for k, (text, node) in enumerate(zip(texts, nodes, strict=True)):
        value, raised = evaluate_expression(node, columns, len(rows))
        value.validate(full=True)
        marks = raised.to_pylist() if raised is not None else [False] * len(rows)
        both = zip(
            *(plain(expected.column(f"v{k}")), expected.column(f"r{k}").to_pylist(), plain(value), marks, present),
            strict=True,
        )
        found += [
            f"{text}: {'raised' if r else v} in Spark, {'raised' if m else w} in Arrow for row {row}"
            for row, (v, r, w, m, is_present) in enumerate(both)
            if is_present and (r, v) != (m, w)
        ]
    return found


def listed(theme: str) -> list[str]:
    return [text.strip() for text in SAME[theme].split(";")]


@pytest.mark.parametrize("theme", SAME)
def test_a_translated_expression_has_the_value_that_spark_gives_it(spark: SparkSession, theme: str) -> None:
    """Without it a rule matches other rows than Spark says, or a row that raises in Spark lands."""
    assert differences(framed(spark, ROWS), ROWS, listed(theme)) == []


def test_a_slice_of_a_batch_has_the_values_of_its_rows(spark: SparkSession) -> None:
    """Without it a look-up reads the items of other rows where a batch is a part of a larger one, or is empty."""
    texts = [text for theme in SAME for text in listed(theme)]
    columns = {name: ROWS.column(name).combine_chunks() for name in ROWS.column_names}
    parts = {
        part: {name: column.slice(*part) for name, column in columns.items()} for part in ((0, 0), (37, 50), (149, 1))
    }
    for text, node in zip(texts, translate_columns(framed(spark, ROWS), [F.expr(text) for text in texts]), strict=True):
        value, raised = evaluate_expression(node, columns, len(ROWS))
        for (start, count), some in parts.items():
            found, marks = evaluate_expression(node, some, count)
            found.validate(full=True)
            assert plain(found) == plain(value.slice(start, count)), text
            none = [False] * count
            assert (marks.to_pylist() if marks else none) == (
                raised.slice(start, count).to_pylist() if raised else none
            )


def test_compiled_expressions_have_the_same_values(spark: SparkSession, compiled: None) -> None:
    """Without it rules have the values of Spark's interpreter, which runs in tests only."""
    texts = [text for theme in ("laziness", "arithmetic") for text in listed(theme)]
    assert differences(framed(spark, ROWS), ROWS, texts) == []


@pytest.mark.parametrize("text", OTHER)
def test_what_has_no_twin_is_left_to_spark(spark: SparkSession, text: str) -> None:
    """Without it a value is nearly the same, or `check --plan` does not say what a rule would have to avoid."""
    with pytest.raises(Untranslatable) as found:
        translate_columns(spark.createDataFrame(ROWS), [F.expr(text)])
    assert str(found.value) == OTHER[text]


def test_every_character_has_the_case_that_spark_gives_it(spark: SparkSession) -> None:
    """Without it a rule on lower() misses a name of another script."""
    coded = "decode(unhex(lpad(hex(id), 8, '0')), 'UTF-32')"
    scripts = [(0x20, 0xD800), (0x10400, 0x10600), (0x10C80, 0x10D90), (0x118A0, 0x118E0), (0x16E40, 0x16EE0)]
    numbers = spark.range(0x20, 0x1E950).where(" OR ".join(f"{low} <= id AND id < {end}" for low, end in scripts))
    frame = numbers.selectExpr(f"named_struct('t', {coded}) AS event")
    for text in ("upper(event.t)", "lower(event.t)", "lower(concat('aÉ', event.t))", "upper(concat(event.t, 'b'))"):
        found = frame.select("event", F.expr(text).alias("v")).toArrow().combine_chunks()
        (node,) = translate_columns(frame, [F.expr(text)])
        value, _ = evaluate_expression(node, {"event": found.column("event").chunk(0)}, len(found))
        assert value.to_pylist() == found.column("v").to_pylist()


def mixed(parts: Sequence[str], longest: int, count: int) -> list[str]:
    """Return texts that are made of some parts at random, always the same."""
    chance = random.Random(11)
    return sorted({"".join(chance.choices(parts, k=chance.randint(1, longest))) for _ in range(count)})


def read(spark: SparkSession, texts: Sequence[str], expressions: Sequence[str]) -> list[str]:
    """Return where Spark and Arrow disagree on expressions of texts; those that are left to Spark are passed over."""
    rows = table([{"t": text} for text in texts])
    frame = framed(spark, rows)
    return differences(frame, rows, [text for text in expressions if translatable(frame, text)])


def translatable(frame: DataFrame, text: str) -> bool:
    try:
        return bool(translate_columns(frame, [F.expr(text)]))
    except Untranslatable:
        return False


def quoted(text: str) -> str:
    """Return a text as SQL has it."""
    return "'" + text.replace("\\", "\\\\").replace("\n", "\\n") + "'"


def test_any_pattern_matches_what_spark_matches(spark: SparkSession) -> None:
    """Without it a rule with LIKE matches other rows, for two kinds of patterns differ in small things."""
    texts = [*mixed([*"ab\n\r1_-Z\té.]", "\u2028", "\x85", "\U0001f600"], 5, 100), "a\r\n", "\r\n", "b\n\n", "a\u2028"]
    likes = mixed([*"ab%_\n.é1", "\\%", "\\_", "\\\\", "\U0001f600"], 5, 60)
    asked = [f"event.t LIKE {quoted(p)}" for p in likes]
    assert read(spark, texts, asked) == []


def test_any_text_is_read_as_spark_reads_it(spark: SparkSession) -> None:
    """Without it a number or a time with a slip in it is a value here, and raises in Spark."""
    numerals = mixed([*"0123456789" * 3, *"+-.eEdDfNxXpP_ \t\0", "\u00a0", "NaN", "inf", "Infinity"], 7, 1000)
    numerals += ["9" * k for k in range(1, 40)] + ["0x1.8p1", "2e-324", "1.7976931348623159e308"]
    moments = mixed(
        ["2020", "-0", "-1", "1", "2", " ", "T", "03", ":", ":04", ":05", ".5", "Z", "+01", "-", " UTC", "6"], 9, 1500
    )
    moments = [text for text in moments if not text.strip().startswith("T") and ":" not in text.strip()[:3]]  # of today
    asked = [f"{kind}(event.t)" for kind in ("int", "bigint", "tinyint", "double", "boolean")]
    assert read(spark, numerals, asked) == []
    assert read(spark, moments, ["date(event.t)", "timestamp(event.t)"]) == []
