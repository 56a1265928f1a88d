"""Random typed expressions over hostile rows: the value, the null or the error that Spark has, or a clear no."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from router.engine.expressions.evaluator import Untranslatable, translate_columns
from tests.engine.expressions import test_expressions as listed
from tests.engine.expressions.test_expressions import differences, framed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 200
EXPRESSIONS = 250
LEAST_TRANSLATED = 0.5
"""The share of expressions that Arrow evaluates: a generator of others would test nothing."""
FAR_DAYS = [-(2**31), 2**31 - 1, 2_932_897, -719_163, -719_529, 0, 18_321]
FAR_TIMES = [-(2**63), 2**63 - 1, 253_402_300_800_000_000, -62_135_596_800_000_001, 0, 1_582_934_399_999_999]
WIDE = [Decimal(0), Decimal("0.000001"), Decimal("-99999999999999999999999999999999.999999"), Decimal("2.5")]
SMALL = [Decimal(0), Decimal("0." + "9" * 38), Decimal("-0." + "0" * 37 + "1")]
LARGE = [Decimal(0), Decimal("9" * 38), Decimal("-" + "9" * 38), Decimal(1)]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    **listed.VALUES,
    "num": (pa.string(), [*listed.NUMERALS, "9" * 5000, "-" + "1" * 400 + ".5", "1e-9999", "1e99999"]),
    "day": (pa.date32(), [*listed.DATES, *FAR_DAYS]),
    "ts": (pa.timestamp("us", "UTC"), [*listed.TIMES, *FAR_TIMES]),
    "ntz": (pa.timestamp("us"), [*listed.TIMES, *FAR_TIMES]),
    "f": (pa.float32(), [0.0, 1.5, listed.NAN, -0.0, listed.INFINITY, 16777217.0, 3.4e38, 1e-45, -0.1]),
    "s": (pa.int16(), [0, 1, -1, 32767, -32768, 100]),
    "wide": (pa.decimal128(38, 6), WIDE),
    "small": (pa.decimal128(38, 38), SMALL),
    "large": (pa.decimal128(38, 0), LARGE),
    "cents": (pa.decimal128(5, 2), [Decimal(cents) / 100 for cents in (0, 1, -1, 99999, -99999, 250)]),
    "reals": (pa.list_(pa.float64()), [[], [listed.NAN], [None, -0.0, 0.0], [1.5, listed.INFINITY]]),
}
EVENT = pa.struct([(name, kind) for name, (kind, _) in VALUES.items()])
LEAVES = {
    "int": ["event.a", "event.c", "event.h", "event.s", "event.arr[0]", "event.m['x']", "event.in.x", "0", "3", "-1"],
    "long": ["event.b", "event.e", "offset", "9223372036854775807", "5L"],
    "float": ["event.f", "1.5F", "float(event.a)"],
    "real": ["event.d", "event.g", "1.5D", "-0.0D", "double('NaN')", "event.reals[0]"],
    "decimal": ["event.dec", "event.cents", "event.wide", "event.small", "event.large", "1.5", "100", "0.01BD"],
    "text": ["event.t", "event.u", "event.num", "event.at", "'a'", "''", "'1.5'"],
    "date": ["event.day", "date'2020-02-29'", "date'9999-12-31'"],
    "time": ["event.ts", "timestamp'2020-01-01 00:00:00'"],
    "local": ["event.ntz", "timestamp_ntz'2020-01-01 00:00:00'"],
    "truth": ["event.y", "true", "false", "event.d IS NULL"],
    "bytes": ["event.bin", "X'01FF'", "cast(event.t AS binary)"],
}
NUMBERS = ("int", "long", "float", "real", "decimal")
COMPARED = (*NUMBERS, "text", "date", "time", "local", "truth")
_WHOLE: list[tuple[str, ...]] = [
    *((f"({{}} {sign} {{}})", "SELF", "SELF") for sign in ("+", "-", "*", "%", "div")),
    *((f"{name}({{}}, {{}})", "SELF", "SELF") for name in ("try_add", "try_subtract", "try_multiply", "try_mod")),
    *((f"{name}({{}})", "SELF") for name in ("-", "abs", "+")),
    *((f"{name}({{}}, {{}})", "SELF", "SELF") for name in ("coalesce", "greatest", "least", "nullif")),
    ("if({}, {}, {})", "truth", "SELF", "SELF"),
    ("CASE WHEN {} THEN {} WHEN {} THEN {} END", "truth", "SELF", "truth", "SELF"),
    ("({} + 1 + {} + 2)", "SELF", "SELF"),
    ("round({}, 1)", "SELF"),
]


def own(kind: str, *more: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the rules of a kind of numbers."""
    return [tuple(kind if part == "SELF" else part for part in rule) for rule in _WHOLE] + list(more)


def either(kind: str) -> list[tuple[str, ...]]:
    """Return the rules that choose among values of a kind."""
    return [
        ("coalesce({}, {})", kind, kind),
        ("if({}, {}, {})", "truth", kind, kind),
        ("nullif({}, {})", kind, kind),
        ("nvl2({}, {}, {})", "text", kind, kind),
    ]


RULES: dict[str, list[tuple[str, ...]]] = {
    "int": own(
        "int",
        *((f"{name}({{}})", "text") for name in ("length", "int", "octet_length", "tinyint", "smallint")),
        *(("int({})", kind) for kind in (*NUMBERS, "truth")),
        *((f"{name}({{}})", "long") for name in ("tinyint", "smallint", "int")),
        ("try_cast({} AS int)", "text"),
        ("try_cast({} AS smallint)", "real"),
        ("instr({}, 'a')", "text"),
        ("event.arr[{}]", "int"),
        # Not of every int: for the smallest one Spark reads memory that is not the array's, and the JVM ends.
        ("element_at(event.arr, event.h) + {}", "int"),
        ("coalesce(try_element_at(event.arr, event.s), {})", "int"),
        ("element_at(event.m, {})", "text"),
        ("size(event.reals) + {}", "int"),
    ),
    "long": own(
        "long",
        ("bigint({})", "text"),
        *(("bigint({})", kind) for kind in (*NUMBERS, "time")),
        *((f"{name}({{}})", kind) for name in ("ceil", "floor") for kind in ("real", "long")),
        ("try_cast({} AS bigint)", "real"),
    ),
    "float": own("float", ("float({})", "real"), ("float({})", "long"), ("float({})", "text")),
    "real": own(
        "real",
        *(("double({})", kind) for kind in (*NUMBERS, "text", "truth", "time")),
        *(("({} / {})", kind, kind) for kind in ("int", "long", "float", "real")),
        ("({} / 100)", "float"),
        ("try_divide({}, {})", "int", "int"),
        ("try_divide({}, {})", "real", "real"),
        ("round({}, 2)", "real"),
        ("try_cast({} AS double)", "text"),
    ),
    "decimal": own(
        "decimal",
        *((f"cast({{}} AS decimal({size}))", kind) for size in ("10,2", "38,6", "5,0") for kind in NUMBERS),
        ("try_cast({} AS decimal(10,2))", "long"),
    ),
    "text": [
        *((f"{name}({{}})", "text") for name in ("upper", "lower", "trim", "ltrim", "rtrim")),
        *((f"{name}({{}}, 2)", "text") for name in ("left", "right", "substring")),
        *(("string({})", kind) for kind in ("int", "long", "decimal", "truth", "date", "time", "local")),
        ("substring({}, -3, 2)", "text"),
        ("concat({}, {})", "text", "text"),
        ("concat_ws('-', {}, {})", "text", "text"),
        ("replace({}, 'a', 'b')", "text"),
        ("greatest({}, {})", "text", "text"),
        *either("text"),
    ],
    "date": [
        *(("date({})", kind) for kind in ("text", "time", "local")),
        ("try_cast({} AS date)", "text"),
        ("to_date({})", "text"),
        ("least({}, {})", "date", "date"),
        *either("date"),
    ],
    "time": [
        *(("timestamp({})", kind) for kind in ("date", "local")),
        *either("time"),
    ],
    "local": [
        *(("cast({} AS timestamp_ntz)", kind) for kind in ("date", "time")),
        *either("local"),
    ],
    "truth": [
        *((f"({{}} {s} {{}})", kind, kind) for s in ("=", "<", ">=", "<=>", "!=") for kind in COMPARED),
        *((f"({{}} {s} {{}})", one, other) for s in ("=", "<") for one in NUMBERS for other in NUMBERS),
        *((f"({{}} {s} {{}})", one, "text") for s in ("=", ">") for one in (*NUMBERS, "date", "truth")),
        *((f"({{}} {s} {{}})", "date", other) for s in ("=", "<") for other in ("time", "local")),
        *((f"({{}} {s} {{}})", "bytes", "bytes") for s in ("=", "<")),
        *((f"({{}} {word} {{}})", "truth", "truth") for word in ("AND", "OR")),
        ("({} AND ({} OR 1 / event.a > 0))", "truth", "truth"),
        ("(NOT {})", "truth"),
        *(("({} IN ({}, {}))", kind, kind, kind) for kind in ("int", "real", "text", "date", "decimal")),
        ("({} IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, null))", "int"),
        ("({} IN ('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k'))", "text"),
        *(("({} BETWEEN {} AND {})", kind, kind, kind) for kind in ("int", "real", "text", "date", "time")),
        *((f"({{}} IS {word})", kind) for word in ("NULL", "NOT NULL") for kind in ("int", "real", "text", "date")),
        *((f"({{}} LIKE '{pattern}')", "text") for pattern in ("a%", "%a_", "_", "%1%", "a%b")),
        *((f"{name}({{}}, 'a')", "text") for name in ("startswith", "endswith", "contains")),
        *(("boolean({})", kind) for kind in ("int", "real", "text")),
        ("isnan({})", "real"),
        ("array_contains(event.arr, {})", "int"),
        ("array_contains(event.reals, {})", "real"),
        ("(length({}) > 1)", "bytes"),
    ],
    "bytes": [("substring({}, 1, 1)", "bytes"), ("substring({}, -2)", "bytes"), ("coalesce({}, {})", "bytes", "bytes")],
}


def expression(chance: random.Random, kind: str, levels: int) -> str:
    """Return an expression of a kind, of some levels at most."""
    if levels == 0:
        return chance.choice(LEAVES[kind])
    pattern, *parts = chance.choice(RULES[kind])
    return pattern.format(*(expression(chance, part, levels - chance.randint(1, levels)) for part in parts))


def rows_of(chance: random.Random) -> pa.Table:
    """Return events that are mostly hostile; a part of them is null."""
    events = []
    for _ in range(ROWS):
        events.append(
            {name: chance.choice(values) if chance.random() > 0.12 else None for name, (_, values) in VALUES.items()}
        )
    return pa.table(
        {
            "event": pa.array(events, EVENT),
            "offset": pa.array(range(ROWS), pa.int64()),
            "value": pa.nulls(ROWS, pa.binary()),
        }
    )


def is_translated(frame: DataFrame, text: str) -> bool | None:
    """Return whether Arrow evaluates an expression; None if it is none for Spark."""
    try:
        frame.select(F.expr(text))
    except AnalysisException:
        return None
    try:
        translate_columns(frame, [F.expr(text)])
    except Untranslatable:
        return False
    return True


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 81))])
def test_random_expressions_are_equal(spark: SparkSession, seed: int) -> None:
    """Without it a rule has another value than Spark's on rows that nobody thought of, or ends the stream."""
    chance = random.Random(seed)
    rows = rows_of(chance)
    frame = framed(spark, rows)
    texts = sorted({expression(chance, chance.choice(list(RULES)), chance.randint(1, 3)) for _ in range(EXPRESSIONS)})
    translated = {text: is_translated(frame, text) for text in texts}
    valid = [text for text in texts if translated[text] is not None]
    asked = [text for text in valid if translated[text]]
    assert len(asked) > LEAST_TRANSLATED * len(valid)
    found = []
    for begin in range(0, len(asked), 50):
        found += differences(frame, rows, asked[begin : begin + 50])
    assert found == []
