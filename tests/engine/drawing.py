"""Draw configurations and records from types, sizes, names and limits; no list of known kinds of trouble is asked.

A plain record has values that nobody could object to. A hostile one has something drawn from the edges of what its
format, its types or the names of things allow, or from beyond.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as T

from router.api.columns import quote_identifier
from tests.chaos.test_garbage import GARBAGE
from tests.chaos.test_garbage import NAMES as TABLE_NAMES
from tests.engine.expressions.test_random_expressions import LEAVES, RULES
from tests.engine.query import BEGIN, RAW

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

SIZES = (0, 1, 2, 255, 256, 257, 1024, 32_767, 65_536)
BITS = (8, 16, 32, 53, 63, 64)
LARGEST_RECORD = 100_000
"""Bytes of a record: larger ones are for tests/chaos/test_garbage.py, which takes longer."""
FIELD_NAMES = (
    *("a", "B", "total", "select", "table", "from", "null", "true", "order", "value", "key", "offset_", "event", "_x"),
    *("a.b", "`", "a`b", "'", '"', 'x"y', "a-b", "a/b", "../x", "..", ".", "%41", "$HOME", "#", "--", "\\"),
    *("__proto__", "constructor", "ключ", "żółw", "名前", "🃏", "é", "e\u0301", "\u200b", "0", "007", "1e5", "x" * 128),
    *("_metadata", "_corrupt_record", "_c0", "valid_from", "is_current", "message", "element", "item"),
    *("a:b", "a[0]", "a*", "*", "?", "&", "@", "~", "^", "|", "<b>", "col", "_fields", "add", "remove"),
)
"""Names that a person may give to a field: Delta takes all of their signs."""
KEY_NAMES = (
    *FIELD_NAMES,
    *("", " ", "a b", "\t", "\n", "\0", "a,b", "a;b", "{x}", "a=b", "(", "GAME", "Game", "k ", "\u0131d"),
    *(
        "x" * 300,
        "y" * 49_999,
        "\ud800",
        "_rescued",
        "_line",
        "_path",
        "_changed",
        "_block",
        "_error",
        "_unknown",
        "_offset",
        "_topic",
    ),
)
"""Names that the keys of a record may have: any."""
TEXTS = (
    *(
        "",
        " ",
        "\0",
        "\n",
        "a\tb",
        "null",
        "NaN",
        "true",
        "0",
        "'; DROP TABLE x; --",
        "../../x",
        "żółw",
        "🃏",
        "\ufeff",
    ),
    *(
        "e\u0301",
        "\u202eabc",
        "\u200d",
        "\U0010ffff",
        "\uffff",
        "\ud800",
        "x\udfffy",
        "\ud83c\udccf",
        '"',
        "\\",
        "%s{}",
    ),
)
WORDS = ("rummy", "spades", "go", "ann", "bob", "x", "Red", "a longer text of some words", "42", "2026-01-01")
GAMES = ("uno", "poker", "rummy", "go")
DATES = (
    *("0001-01-01", "0000-12-31", "9999-12-31", "10000-01-01", "-0001-01-01", "2026-02-29", "2024-02-29", "1582-10-10"),
    *("1900-02-29", "1970-01-01", "1969-12-31", "2026-1-1", " 2026-01-01", "2026", "2026-01-01T", "+2026-01-01", ""),
)
TIMES = (
    *("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-14:00"),
    *("9999-12-31T23:59:59.9999999Z", "1582-10-10T00:00:00Z", "2026-06-30T23:59:60Z", "2026-01-01T24:00:00Z"),
    *("2026-03-29T02:30:00 Europe/Berlin", "2026-01-01T00:00:00.123456789Z", "1969-12-31T23:59:59.999999Z", "12:30"),
    *(
        "2026-01-01",
        "2026-01-01 10:00",
        "2026-01-01T10:00:00",
        "-2026-01-01T00:00:00Z",
        "294247-01-10T04:00:54.775807Z",
    ),
)
NUMBERS = (
    *(str(sign * 2**bits + by) for bits in BITS for sign in (1, -1) for by in (-1, 0, 1)),
    *("0", "-0", "-0.0", "1.0", "1.5", "1e3", "1E+2", "1e400", "-1e400", "1e-400", "5e-324", "1.7976931348623157e308"),
    *("3.4028235e38", "3.5e38", "1e39", "0.1", "9" * 38, "9" * 39, "9" * 999, "9" * 1001, "9" * 5000, "0." + "9" * 60),
    *("NaN", "Infinity", "-Infinity", "01", "+1", "1.", ".5", "0x10", "1e", "--1", "1_000"),
)
CASTS = ("string", "int", "bigint", "double", "decimal(10,2)", "boolean")
"""Types whose values every reader of a table takes: those of dates and of bytes as text are dead letters at times."""
DIGITS = (19, 38, 39, 309, 1000, 1001, 4300, 4301, 5000)
"""How many digits of a number somebody's limit allows, or no longer: types', Spark's JSON reader's, Python's."""


@dataclass(frozen=True)
class Field:
    """A column of an event: its name, type, and the kind of expressions that it is a leaf of, if any."""

    name: str
    type: T.DataType


@dataclass(frozen=True)
class Record:
    """A raw record, and whether anything about it is hostile."""

    value: bytes | None
    hostile: bool
    key: bytes | None = None
    headers: Any = None
    time: datetime = BEGIN


@dataclass
class Drawing:
    """Everything of one seed: the fields of events, expressions over them, and batches of records."""

    chance: random.Random
    fields: list[Field] = field(default_factory=list)

    def __post_init__(self) -> None:
        chance = self.chance
        names = chance.sample(FIELD_NAMES, chance.randint(3, 9))
        self.fields = [Field("game", T.StringType()), Field("k", chance.choice([T.StringType(), T.LongType()]))]
        taken = {"game", "k"}
        for name in names:
            if name.casefold() not in taken:
                taken.add(name.casefold())
                self.fields.append(Field(name, draw_type(chance, 3)))

    @property
    def schema(self) -> T.StructType:
        return T.StructType([T.StructField(column.name, column.type) for column in self.fields])

    @property
    def ddl(self) -> str:
        """Return the schema as a person writes it."""
        return ", ".join(f"{quote_identifier(column.name)} {column.type.simpleString()}" for column in self.fields)

    def leaves(self) -> dict[str, list[str]]:
        """Return constants and columns, by the kind of expression that they are."""
        found = {kind: [leaf for leaf in leaves if "event" not in leaf] for kind, leaves in LEAVES.items()}
        for column in self.fields:
            for path, kind in paths(f"event.{quote_identifier(column.name)}", column.type):
                # Columns are twice as likely as constants.
                found[kind] += [path, path]
        return found

    def expression(self, is_valid: Callable[[str], bool], kind: str, levels: int) -> str:
        """Return an expression of a kind over the fields that Spark takes."""
        leaves = self.leaves()
        while True:
            drawn = expression(self.chance, leaves, kind, self.chance.randint(1, levels))
            if is_valid(drawn):
                return drawn

    def cast(self, is_valid: Callable[[str], bool]) -> str:
        """Return a cast of something in the fields to another type, one that Spark takes."""
        found = []
        for column in self.fields:
            below = paths(f"event.{quote_identifier(column.name)}", column.type)
            found += [path for path, kind in below if kind != "bytes"]
        while True:
            way, path, kind = map(self.chance.choice, (("CAST", "try_cast"), found, CASTS))
            if is_valid(f"{way}({path} AS {kind})"):
                return f"{way}({path} AS {kind})"

    def records(self, count: int, hostile: float) -> list[Record]:
        """Return records, about a share of which are hostile."""
        return [self.hostile_record() if self.chance.random() < hostile else self.plain_record() for _ in range(count)]

    def plain_record(self) -> Record:
        return Record(as_object(self.plain_fragments()), False, b"key", None, BEGIN)

    def plain_fragments(self) -> list[tuple[str, str]]:
        fragments = []
        for column in self.fields:
            if column.name == "game":
                fragments.append(("game", json.dumps(self.chance.choice(GAMES))))
            elif column.name == "k" and isinstance(column.type, (T.StringType, T.LongType)):
                number = self.chance.randint(0, 9)
                is_text = isinstance(column.type, T.StringType)
                fragments.append(("k", json.dumps(f"k{number}" if is_text else number)))
            elif self.chance.random() > 0.15:
                fragments.append((column.name, plain(self.chance, column.type)))
        return fragments

    def hostile_record(self) -> Record:
        """Return a record with a hostile value, name, size, damage, key, header or time."""
        chance = self.chance
        fragments = self.plain_fragments()
        way = chance.choice(["value", "value", "value", "name", "table", "twice", "damage", "garbage", "around"])
        if way == "garbage":
            return Record(chance.choice([bad for bad in GARBAGE if len(bad or b"") <= LARGEST_RECORD]), True)
        if way == "around":
            headers = [
                {"key": chance.choice(["", "x", "żółw", "x" * 300]), "value": chance.choice([None, b"", b"\xff"])}
            ]
            time = chance.choice([BEGIN, EARLIEST, LATEST, datetime(1969, 12, 31, tzinfo=timezone.utc)])
            key = chance.choice([None, b"", b"\xff\xfe", b"k" * 65_536])
            return Record(as_object(fragments), True, key, headers * chance.randint(1, 3), time)
        if way == "value":
            for _ in range(chance.randint(1, 3)):
                place = chance.randrange(len(self.fields))
                column = self.fields[place]
                fragments = [(name, text) for name, text in fragments if name != column.name]
                fragments.append((column.name, hostile(chance, column.type)))
        elif way == "name":
            count = chance.choice([1, 1, 2, 3000])
            fragments += [(chance.choice(KEY_NAMES) + ("" if count < 3 else str(n)), "1") for n in range(count)]
        elif way == "table":
            fragments = [("game", json.dumps(chance.choice(TABLE_NAMES))), *fragments[1:]]
        elif way == "twice":
            name, _ = chance.choice(fragments)
            fragments.append((name, chance.choice([chance.choice(fragments)[1], "null", "{}"])))
        value = as_object(fragments)
        if way == "damage":
            place = chance.randrange(len(value))
            value = value[:place] + chance.randbytes(chance.randint(0, 3)) + value[place + chance.randint(0, 2) :]
        return Record(value[:LARGEST_RECORD], True, b"key")


EARLIEST = datetime(1, 1, 1, tzinfo=timezone.utc)
LATEST = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc)


def raw_table(records: list[Record], first: int) -> pa.Table:
    """Return records as they come from a topic of one partition."""
    rows = []
    for number, record in enumerate(records):
        rows.append({
            "key": record.key, "value": record.value, "topic": "events", "partition": 0, "offset": first + number,
            "timestamp": record.time, "timestamp_type": 0, "headers": record.headers,
        })  # fmt: skip
    return pa.Table.from_pylist(rows, RAW)


def as_object(fragments: list[tuple[str, str]]) -> bytes:
    """Return the JSON of names and the texts of their values; half of a surrogate pair stays an escape."""
    members = ", ".join(f"{json.dumps(name)}: {text}" for name, text in fragments)
    return f"{{{members}}}".encode()


def draw_type(chance: random.Random, levels: int) -> T.DataType:
    """Return a type of at most so many levels."""
    if levels and chance.random() < 0.3:
        inner = draw_type(chance, levels - 1)
        way = chance.choice(["array", "map", "struct", "struct"])
        if way == "array":
            return T.ArrayType(inner)
        if way == "map":
            return T.MapType(T.StringType(), inner)
        others = [draw_type(chance, levels - 1) for _ in range(chance.randint(0, 3))]
        # Names inside of structs are plain: `simpleString` quotes none.
        return T.StructType([T.StructField(f"f{n}", kind) for n, kind in enumerate([inner, *others])])
    precision = chance.choice([1, 5, 9, 10, 18, 19, 37, 38])
    return chance.choice(
        [
            *(T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(), T.DoubleType()),
            T.DecimalType(precision, chance.choice([0, precision, precision // 2, min(2, precision)])),
            *(T.StringType(), T.StringType(), T.BooleanType(), T.DateType(), T.TimestampType(), T.TimestampNTZType()),
            T.BinaryType(),
        ]
    )


KIND_OF_TYPE: Mapping[str, str] = {
    **dict.fromkeys(("tinyint", "smallint", "int"), "int"),
    **{"bigint": "long", "float": "float", "double": "real", "string": "text", "boolean": "truth", "date": "date"},
    **{"timestamp": "time", "timestamp_ntz": "local", "binary": "bytes"},
}


def paths(path: str, kind: T.DataType) -> list[tuple[str, str]]:
    """Return the columns below a path, and of what kind their expressions are."""
    if isinstance(kind, T.StructType):
        return [found for inner in kind for found in paths(f"{path}.{inner.name}", inner.dataType)]
    if isinstance(kind, T.ArrayType):
        return paths(f"{path}[0]", kind.elementType)
    if isinstance(kind, T.MapType):
        return paths(f"{path}['x']", kind.valueType)
    if isinstance(kind, T.DecimalType):
        return [(path, "decimal")]
    return [(path, KIND_OF_TYPE[kind.simpleString()])]


def expression(chance: random.Random, leaves: Mapping[str, list[str]], kind: str, levels: int) -> str:
    """Return an expression of a kind, of some levels at most."""
    if levels == 0:
        return chance.choice(leaves[kind])
    pattern, *parts = chance.choice([rule for rule in RULES[kind] if "event." not in rule[0]])
    return pattern.format(*(expression(chance, leaves, part, levels - chance.randint(1, levels)) for part in parts))


def plain(chance: random.Random, kind: T.DataType) -> str:
    """Return the JSON of a value that fits a type and nobody could object to."""
    if isinstance(kind, T.StructType):
        inner = {field.name: plain(chance, field.dataType) for field in kind if chance.random() > 0.2}
        return as_object([*inner.items()]).decode()
    if isinstance(kind, T.ArrayType):
        return f"[{', '.join(plain(chance, kind.elementType) for _ in range(chance.randint(0, 3)))}]"
    if isinstance(kind, T.MapType):
        keys = chance.sample(["x", "y", "z"], chance.randint(0, 3))
        return as_object([(key, plain(chance, kind.valueType)) for key in keys]).decode()
    if isinstance(kind, T.DecimalType):
        digits = str(chance.randrange(10 ** min(kind.precision, 6)))
        return str(Decimal(digits).scaleb(-kind.scale).quantize(Decimal(1).scaleb(-kind.scale)))
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        return str(chance.randint(-400, 400) / 4)
    if isinstance(kind, T.BooleanType):
        return chance.choice(["true", "false"])
    if isinstance(kind, T.IntegralType):
        return str(chance.randint(-100, 100))
    if isinstance(kind, T.BinaryType):
        return json.dumps(base64.b64encode(chance.randbytes(chance.randint(0, 5))).decode())
    day = date(2026, 1, 1) + timedelta(days=chance.randint(-9000, 9000))
    if isinstance(kind, T.DateType):
        return json.dumps(day.isoformat())
    if isinstance(kind, (T.TimestampType, T.TimestampNTZType)):
        zone = "Z" if isinstance(kind, T.TimestampType) else ""
        return json.dumps(f"{day.isoformat()}T10:00:{chance.randint(10, 59)}.{chance.randint(0, 999999):06}{zone}")
    return json.dumps(chance.choice(WORDS))


def hostile(chance: random.Random, kind: T.DataType) -> str:
    """Return the JSON, or nearly so, of a value at the edge of a type, beyond it, or of another type."""
    if chance.random() < 0.15:
        return chance.choice(["null", "[]", "{}", "[null]", '""', "true", "[[[]]]", '{"": {}}', *NUMBERS[:3]])
    if isinstance(kind, T.StructType):
        inner = [(field.name, hostile(chance, field.dataType)) for field in kind if chance.random() > 0.3]
        if chance.random() < 0.3:
            inner.append((chance.choice(KEY_NAMES), "1"))
        return as_object(inner).decode()
    if isinstance(kind, T.ArrayType):
        count = chance.choice([0, 1, 2, 5, 1000])
        if count == 1000:
            return "[" + ", ".join([plain(chance, kind.elementType)] * count) + "]"
        return "[" + ", ".join(chance.choice(["null", hostile(chance, kind.elementType)]) for _ in range(count)) + "]"
    if isinstance(kind, T.MapType):
        names = [chance.choice(KEY_NAMES) for _ in range(chance.choice([0, 1, 2, 5]))]
        return as_object([(name, hostile(chance, kind.valueType)) for name in names]).decode()
    if isinstance(kind, T.DecimalType):
        edge = Decimal(10) ** (kind.precision - kind.scale)
        step = Decimal(1).scaleb(-kind.scale)
        edges = [edge, -edge, edge - step, step - edge, step, step / 2, edge + step]
        return chance.choice([*(f"{value:f}" for value in edges), *NUMBERS])
    if isinstance(kind, (T.NumericType, T.BooleanType)):
        number = hostile_number(chance)
        return chance.choice([number, number, json.dumps(number)])
    if isinstance(kind, T.DateType):
        return json.dumps(chance.choice(DATES))
    if isinstance(kind, (T.TimestampType, T.TimestampNTZType)):
        return json.dumps(chance.choice([*TIMES, *DATES]))
    if isinstance(kind, T.BinaryType):
        return json.dumps(chance.choice(["", "A", "AA", "AA==", "AAAA", "A===", "!", "AA==AA==", "A" * 65_536, "ż"]))
    number = hostile_number(chance)
    moment = chance.choice([*TIMES, *DATES])
    texts = [chance.choice(TEXTS), "x" * chance.choice(SIZES), number, moment]
    return chance.choice([number, *map(json.dumps, texts)])


def hostile_number(chance: random.Random) -> str:
    """Return a number at the edge of a type, or of as many digits as a limit allows, or no number."""
    digits = chance.choice(("", "-")) + "9" * chance.choice(DIGITS)
    return chance.choice([digits, chance.choice(NUMBERS)])
