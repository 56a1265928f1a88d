"""Configurations and records that are drawn: each record is in its tables or a dead letter, with Spark's values.

Hostile records may become dead letters, one for each place that they were meant for. Plain ones land in the batch that
read them. No batch fails, no table is left waiting, and no built-in part raises: containment is the net, not the floor.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router.api.columns import holds_where, quote_identifier, tried
from router.config.models import Expectation, Route, View
from router.engine.audit.verify import verify_tables
from router.engine.views.schedule import create_refresher
from router.table_names import fold_name
from router_decoders import Json
from router_rules import Sql
from router_schemas.json_schema.spark_types import child_types
from router_sinks import Delta, Tables, Upsert
from tests.engine.drawing import Drawing, Record, raw_table
from tests.engine.parts import Copy, copied
from tests.plugins import from_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tests.engine.conftest import MakeQuery
    from tests.engine.query import Query

BATCHES = 2
RECORDS = 40
IN_EVERY_RUN = 10
CONFIGURATIONS = 200
SEEDS = [
    *range(IN_EVERY_RUN),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(IN_EVERY_RUN, CONFIGURATIONS)),
]
TIMES = (T.TimestampType, T.TimestampNTZType)
PARTITIONS = (T.StringType, T.IntegralType, T.DecimalType, T.DateType, T.BooleanType)
KEYS = (*PARTITIONS, *TIMES, T.BinaryType)
ORDERED = (T.NumericType, T.StringType, T.DateType, *TIMES)
GROUPED = (*KEYS, T.FractionalType)
WATCHING = Path(__file__).parents[1] / "catches"
Place = int
"""The offset of a record."""
Rows = dict[Place, dict[str, Any]]
OWN = ("_arrival", "_timestamp", "_topic", "_partition", "_offset", "_newest_1")
"""Columns that the router adds to a table with keys."""
HISTORY = {"valid_from", "valid_to", "is_current"}
"""Columns that it adds to one with all states of a key."""
DELETED = 11
"""Records whose offset this divides delete their key, if a sink deletes at all."""
REFUSED = 7
"""Rows whose offset this divides are refused by a sink that copies."""


@pytest.fixture(scope="module")
def catches(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the file in which workers write what containment catches; they are workers of these tests alone."""
    file = tmp_path_factory.mktemp("catches") / "lines"
    environment = spark.sparkContext.environment
    before = dict(environment)
    environment.update(ROUTER_CATCHES=str(file), PYTHONPATH=str(WATCHING))
    yield file
    environment.clear()
    environment.update(before)


class Drawn:
    """A drawn configuration, what it was given, and what plain Spark makes of that."""

    def __init__(self, seed: int, make_query: MakeQuery, spark: SparkSession, folder: Path) -> None:
        self.drawing = drawing = Drawing(random.Random(seed))
        self.folder = folder
        columns = T.StructType([T.StructField("event", drawing.schema), T.StructField("offset", T.LongType())])
        self.events = spark.createDataFrame([], columns)
        self.routes = [self._route(number) for number in range(drawing.chance.randint(2, 3))]
        counts = "SELECT table, count(*) AS n, max(place) AS last FROM source GROUP BY table"
        # A column of a table that is called `table` is not visible in views.
        names = [name for name in ("k", *self._some_fields(GROUPED), *self._some_fields(GROUPED)) if name != "table"]
        group = quote_identifier(drawing.chance.choice(names))
        value = quote_identifier(names[-1])
        self.sql = (
            f"SELECT {group} AS g, count({value}) AS n, min({value}) AS lo, max({value}) AS hi FROM source GROUP BY g"
        )
        views = [
            View.model_validate({"name": "counts", "from": "t0.*", "sql": counts, "into": "gold.counts"}),
            View.model_validate({"name": "drawn", "from": "d0.every", "sql": self.sql, "into": "gold.drawn"}),
        ]
        self.query: Query = make_query(
            folder, decode=Json(schema=drawing.ddl), routes=tuple(self.routes), bronze="bronze.all", views=tuple(views)
        )
        self.records: list[Record] = []

    def is_valid(self, expression: str) -> bool:
        """Return whether Spark takes an expression over the events."""
        try:
            self.events.select(F.expr(expression))
        except AnalysisException:
            return False
        return True

    def _route(self, number: int) -> Route:
        drawing, chance = self.drawing, self.drawing.chance
        select = ["event.*", "offset AS place"]
        for column in range(chance.randint(0, 3)):
            kind = chance.choice(["int", "long", "real", "decimal", "text", "date", "time", "truth"])
            select.append(f"{drawing.expression(self.is_valid, kind, 3)} AS made_{column}")
        select += [f"{drawing.cast(self.is_valid)} AS cast_{column}" for column in range(chance.randint(1, 3))]
        more_keys = self._some_fields(KEYS)
        sinks: list[Any] = [
            Tables(table=f"t{number}.{{event.game}}"),
            Delta(table=f"d{number}.every", partition_by=self._some_fields(PARTITIONS)),
            Upsert(
                table=f"u{number}.keyed",
                keys=("event.k", *more_keys),
                partition_by=chance.choice([(), ("k",), tuple(name for name in more_keys if self.divides(name))]),
                newest_by=[f"event.{quote_identifier(name)}" for name in self._some_fields(ORDERED)] or "offset",
                history=None if HISTORY & {column.name for column in drawing.fields} else chance.choice([None, "scd2"]),
                delete_when=chance.choice([None, None, f"offset % {DELETED} = 0"]),
            ),
        ]
        if chance.random() < 0.3:
            sinks.append(Copy(to=str(self.folder / f"copy{number}"), refuses=f"place % {REFUSED} = 0"))
        rule = "event.game IS NOT NULL" if number == 0 else drawing.expression(self.is_valid, "truth", 3)
        expect: tuple[Expectation, ...] = ()
        if chance.random() < 0.5:
            otherwise = chance.choice(["dead_letter", "warn", "drop"])
            sql = drawing.expression(self.is_valid, "truth", 2)
            expect = (Expectation(name="drawn", sql=sql, otherwise=otherwise),)
        return Route(name=f"r{number}", match=Sql(where=rule), select=tuple(select), expect=expect, sinks=tuple(sinks))

    def _some_fields(self, types: tuple[type[T.DataType], ...]) -> tuple[str, ...]:
        """Return no field, or one of some types."""
        names = [column.name for column in self.drawing.fields[2:] if isinstance(column.type, types)]
        if not names or self.drawing.chance.random() < 0.5:
            return ()
        return (self.drawing.chance.choice(names),)

    def divides(self, name: str) -> bool:
        """Return whether tables can be partitioned by a field."""
        return any(column.name == name and isinstance(column.type, PARTITIONS) for column in self.drawing.fields)

    def newest_by(self, sink: Upsert) -> str:
        """Return the field that orders the rows of a sink."""
        (name,) = [
            one.name for one in self.drawing.fields if sink.newest_by == (f"event.{quote_identifier(one.name)}",)
        ]
        return name

    def is_time(self, name: str) -> bool:
        """Return whether a field is a time: states of a history begin with it then."""
        return any(isinstance(column.type, TIMES) for column in self.drawing.fields if column.name == name)

    def take(self) -> None:
        """Take a batch of drawn records, as a new process does at times."""
        if self.drawing.chance.random() < 0.3:
            self.query = self.query.restarted()
        records = self.drawing.records(RECORDS, hostile=0.4)
        self.query.take(raw_table(records, len(self.records)))
        self.records += records

    @property
    def raw(self) -> DataFrame:
        """Return all records that were taken."""
        return self.query.spark.createDataFrame(pa.concat_tables(self.query.taken.values()))

    def events_of_spark(self) -> dict[Place, tuple[Any, str | None]]:
        """Return the events and errors that from_json has of all records."""
        frame = from_json.decoded(self.raw, self.drawing.schema).select("offset", "event", "_error")
        return {row["offset"]: (row["event"], row["_error"]) for row in values(frame.toArrow())}

    def expected(self) -> dict[str, Any]:
        """Return what Spark makes of all events: by offset the error, and of each route if it matches, and its row."""
        frame = self.query.config.decode.decode(self.raw)
        is_event = F.col("event").isNotNull()
        columns = [F.col("offset").alias("place"), F.col("_error").alias("error"), F.col("event")]
        for route in self.routes:
            columns.append(holds_where(is_event, F.expr(route.match.where)).alias(f"{route.name}_matches"))
            made = [text.rpartition(" AS ") for text in route.select if text != "event.*"]
            # With a condition around it a column may be null, which a struct that is null needs in Arrow.
            row = F.struct("event.*", *[F.when(is_event, F.expr(sql)).alias(name) for sql, _, name in made])
            columns.append(tried(F.when(is_event, row)).alias(f"{route.name}_row"))
            for expectation in route.expect:
                columns.append(holds_where(is_event, F.expr(expectation.sql)).alias(f"{route.name}_holds"))
        rows = values(frame.select(*columns).toArrow())
        return {row["place"]: row for row in rows}


def values(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table; a time is its number, which Python has for any year."""
    schema = pa.schema([pa.field(column.name, comparable(column.type)) for column in table.schema])
    return table.cast(schema).to_pylist()


def comparable(kind: pa.DataType) -> pa.DataType:
    """Return a type with numbers in place of times."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(inner.name, comparable(inner.type)) for inner in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, comparable(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(comparable(kind.value_type))
    return kind


def shown(value: Any) -> Any:
    """Return a value in a form that is equal exactly if a reader sees the same; fields without a value are left out."""
    if isinstance(value, dict):
        return {name: shown(inner) for name, inner in sorted(value.items()) if inner is not None}
    if isinstance(value, (list, tuple)):
        return [shown(inner) for inner in value]
    return repr(value)


def rows_by_place(query: Query, prefix: str) -> dict[str, dict[Place, list[Any]]]:
    """Return the rows of each table of a sink, by the record that they come from."""
    found: dict[str, dict[Place, list[Any]]] = {}
    for table in query.tables():
        if table.startswith(prefix):
            rows = found[table] = defaultdict(list)
            for row in values(query.content(table)):
                rows[row["place"]].append(row)
    return found


def own(row: dict[str, Any], *, history: bool) -> dict[str, Any]:
    """Return a row of a keyed table without the columns of the router."""
    added = {*OWN, *HISTORY} if history else OWN
    return {name: value for name, value in row.items() if name not in added}


def is_documented(reason: str | None, drawing: Drawing) -> bool:
    """Return whether docs/reference/json.md says that from_json takes a value which is refused for this reason.

    These are local times, decimals in texts, and base64 with a broken end.
    """
    _, is_misfit, misfits = (reason or "").partition("does not fit the schema")
    others = {column.name for column in drawing.fields if has_any(column.type, DIFFERENT)}
    # A misfit inside of an array or a map may have no name.
    names = misfits.removeprefix(": ").split(", ")
    return bool(is_misfit) and all(any(not name or name.startswith(other) for other in others) for name in names)


DIFFERENT = (T.TimestampNTZType, T.DecimalType, T.BinaryType)


def has_any(kind: T.DataType, types: tuple[type[T.DataType], ...]) -> bool:
    """Return whether a type is one of some types, or has one inside."""
    return isinstance(kind, types) or any(has_any(inner, types) for _, inner in child_types(kind))


class Findings(list[str]):
    """What is not as it should be, each with its record."""

    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        self.drawn = drawn

    def note(self, what: str, place: Place, *about: Any) -> None:
        record = self.drawn.records[place]
        kind = "hostile" if record.hostile else "plain"
        self.append(
            f"{what}: {kind} {place} {(record.value or b'-')[:600]!r} {' | '.join(repr(a)[:600] for a in about)}"
        )


def check(drawn: Drawn) -> list[str]:
    """Return everything that is not as it should be."""
    query, findings = drawn.query, Findings(drawn)
    expected = drawn.expected()
    letters: dict[Place, list[dict[str, Any]]] = defaultdict(list)
    for row in values(query.content("ops.dead")) if query.lake.open("ops.dead") else ():
        letters[row["offset"]].append(row)
    bronze = Counter(row["offset"] for row in values(query.content("bronze.all")))
    if bronze != Counter(range(len(drawn.records))):
        findings.append(f"bronze lacks or doubles {bronze}")
    events_of_spark = drawn.events_of_spark()
    taken = set()
    for route in drawn.routes:
        for place, row in expected.items():
            if row[f"{route.name}_matches"]:
                taken.add(place)
    for place, record in enumerate(drawn.records):
        found = letters[place]
        if any("raises" in letter["reason"] for letter in found):
            findings.note("something raises", place, found)
        decoded = expected[place]["event"], expected[place]["error"]
        of_spark = events_of_spark[place]
        differ = from_json.differences([record.value], [decoded], [of_spark])
        is_refused_by_both = decoded[1] is not None and of_spark[1] is not None  # for reasons that other tests compare
        if differ and not is_refused_by_both and not is_documented(decoded[1], drawn.drawing):
            findings.note("decoded to another event than Spark's", place, decoded, of_spark)
        if decoded[1] is not None and not record.hostile:
            findings.note("not decoded", place, decoded[1])
        if [letter["reason"] for letter in found if letter["stage"] == "decode"] != [*filter(None, [decoded[1]])]:
            findings.note("another dead letter than of decoding", place, decoded[1], found)
        if decoded[1] is not None:
            if len(found) != 1:
                findings.note("more than one dead letter", place, found)
        elif place not in taken and [letter["stage"] for letter in found] != ["match"]:
            findings.note("no route takes it, and that is not said", place, found)
    for number, route in enumerate(drawn.routes):
        check_route(drawn, number, route, expected, letters, findings)
    if blocked := query.batches.quarantine.blocked_reasons():
        findings.append(f"tables are blocked: {blocked}")
    for audit in verify_tables(query.config, contents=True):
        findings += [f"verify: {audit.table}: {problem}" for problem in audit.problems]
    return findings


def check_route(
    drawn: Drawn,
    number: int,
    route: Route,
    expected: dict[str, Any],
    letters: dict[Place, list[dict[str, Any]]],
    findings: Findings,
) -> None:
    """Hold the tables of a route against what Spark makes of the records."""
    rows: dict[Place, dict[str, Any]] = {}
    refused: dict[str, set[Place]] = defaultdict(set)
    for place, row in expected.items():
        mine = [letter for letter in letters[place] if letter["route"] == route.name]
        for letter in mine:
            refused[letter["sink"]].add(place)
        if row["error"] is not None or not row[f"{route.name}_matches"]:
            if mine:
                findings.note(f"{route.name} refuses what does not match", place, mine)
            continue
        is_kept = row.get(f"{route.name}_holds", True) or route.expect[0].otherwise == "warn"
        made = row[f"{route.name}_row"]
        if is_kept and made is not None:
            rows[place] = made
            if len({letter["sink"] for letter in mine}) != len(mine):
                findings.note(f"{route.name}: refused twice by a sink", place, mine)
        elif len(mine) != (0 if not is_kept and route.expect[0].otherwise == "drop" else 1):
            findings.note(f"{route.name} drops it silently, or refuses it twice", place, mine)
    every, keyed, *copies = cast("Any", route.sinks[1:])
    check_tables(drawn, number, rows, refused["tables"], findings)
    check_every(drawn, number, every, rows, findings)
    check_keyed(drawn, number, keyed, rows, refused["upsert"], findings)
    for copy in copies:
        check_copy(copy, rows, refused["copy"], findings)


def check_tables(drawn: Drawn, number: int, rows: Rows, refused: set[Place], findings: Findings) -> None:
    """Hold the tables that are named by the data against the rows of a route."""
    found: dict[Place, list[Any]] = defaultdict(list)
    for table, rows_of_table in rows_by_place(drawn.query, f"t{number}.").items():
        for place, some in rows_of_table.items():
            found[place] += [(table, shown(row)) for row in some]
    for place in {*rows, *found}:
        made = rows.get(place)
        table = fold_name(f"t{number}.{made['game']}") if made and made["game"] is not None else None
        wanted = [(table, shown(made))] if table else []
        if found[place] != wanted or (made is not None and (place in refused) != (table is None)):
            findings.note(f"t{number}: not in {table} as it should be", place, found[place], made, place in refused)


def check_every(drawn: Drawn, number: int, sink: Delta, rows: Rows, findings: Findings) -> None:
    """Hold the table of all rows of a route against them."""
    found = rows_by_place(drawn.query, f"d{number}.").get(f"d{number}.every", {})
    for place in {*rows, *found}:
        wanted = rows.get(place)
        if wanted is not None:
            # Delta has no empty text in a partition.
            wanted = {name: None if name in sink.partition_by and of == "" else of for name, of in wanted.items()}
        if [shown(row) for row in found.get(place, ())] != ([] if wanted is None else [shown(wanted)]):
            findings.note(f"d{number}: not in d{number}.every as it should be", place, found.get(place), wanted)


def check_keyed(drawn: Drawn, number: int, sink: Upsert, rows: Rows, refused: set[Place], findings: Findings) -> None:
    """Hold a table with the newest row of each key, or with all, against the rows of a route."""
    found = rows_by_place(drawn.query, f"u{number}.").get(f"u{number}.keyed", {})
    keys = [key.removeprefix("event.") for key in sink.keys]
    newest_by = "" if sink.newest_by == "offset" else drawn.newest_by(sink)
    last: dict[Any, Place] = {}
    wanted: dict[Place, Any] = {}
    for place, row in sorted(rows.items()):
        needed = [*keys, newest_by] if sink.history and drawn.is_time(newest_by) else keys
        if (place in refused) != any(row[name] is None for name in needed):
            findings.note(f"u{number}: is a dead letter, or should be one", place, needed, row)
        if place in refused:
            continue
        key = tuple(ordinal(row[key]) for key in keys)
        before = last.get(key)
        if before is None or not newest_by or ordinal(row[newest_by]) >= ordinal(rows[before][newest_by]):
            last[key] = place
        is_deletion = sink.delete_when is not None and place % DELETED == 0
        if sink.history and not is_deletion:
            wanted[place] = row
    current = {place for place in last.values() if sink.delete_when is None or place % DELETED}
    for place in current:
        wanted[place] = rows[place]
    for place in {*wanted, *found}:
        ours = [shown(own(row, history=bool(sink.history))) for row in found.get(place, ())]
        if ours != ([shown(wanted[place])] if place in wanted else []):
            findings.note(
                f"u{number}: not in u{number}.keyed as it should be", place, found.get(place), wanted.get(place)
            )
        if sink.history and {row["is_current"] for row in found.get(place, ())} not in (set(), {place in current}):
            findings.note(f"u{number}: is current, or should be", place, found.get(place))


def check_copy(sink: Copy, rows: Rows, refused: set[Place], findings: Findings) -> None:
    """Hold what a sink with an outbox was given against the rows of a route."""
    given = Counter(row["place"] for row in copied(sink.to)) if Path(sink.to).exists() else Counter()
    if given != Counter(place for place in rows if place % REFUSED):
        findings.append(f"{sink.to} got {given}, not {[*rows]}")
    if refused != {place for place in rows if not place % REFUSED}:
        findings.append(f"{sink.to} refused {refused}, of {[*rows]}")


def ordinal(value: Any) -> Any:
    """Return a value as Spark orders and compares it: null first, NaN last, texts by their bytes."""
    if value is None:
        return (0, 0)
    if isinstance(value, float):
        return (2, 0) if math.isnan(value) else (1, value + 0.0)
    return (1, value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_drawn_ends_in_its_tables_or_as_a_dead_letter(
    make_query: MakeQuery, spark: SparkSession, tmp_path: Path, catches: Path, seed: int
) -> None:
    """Without it a value, size or name that nobody thought of stops a stream, or is lost in it."""
    catches.write_text("")
    drawn = Drawn(seed, make_query, spark, tmp_path)
    for _ in range(BATCHES):
        drawn.take()
        query = drawn.query
        for view in query.config.views if query.lake.open("d0.every") else ():
            create_refresher(query.config, query.spark, query.lake, query.store).refresh_view(view)
    findings = check(drawn)
    lines = catches.read_text().splitlines()
    assert "watching" in lines or seed > 0, "the workers write nothing down"
    findings += [f"caught: {line}" for line in lines if line != "watching"]
    sums = {row["table"]: (row["n"], row["last"]) for row in query.rows("gold.counts")}
    wanted = {}
    for table, rows in rows_by_place(query, "t0.").items():
        wanted[table.removeprefix("t0.")] = (len(rows), max(rows))
    if sums != wanted:
        findings.append(f"the view: {sums}, the tables: {wanted}")
    if query.lake.open("d0.every"):
        session = spark.newSession()
        session.read.format("delta").load(query.lake.address("d0.every")).createTempView("source")
        wanted_rows = Counter(repr(shown(row)) for row in values(session.sql(drawn.sql).toArrow()))
        found_rows = Counter(repr(shown(row)) for row in values(query.content("gold.drawn")))
        if found_rows != wanted_rows:
            findings.append(f"view {drawn.sql}: {found_rows - wanted_rows}, not {wanted_rows - found_rows}")
    routes = [str(route) for route in drawn.routes]
    assert not findings, "\n".join([drawn.drawing.ddl, *routes, *findings])
