"""Configurations and records that are drawn: each record is in its tables or a dead letter, with Spark's values.

Hostile records may become dead letters, one for each place that they were meant for. Plain ones land in the batch that
read them. No batch fails, no table is left waiting, and no built-in part raises: containment is the net, not the floor.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from router.api.columns import holds, tried
from router.config.models import Expectation, Route, View
from router.engine.audit.verify import verify_tables
from router.engine.views.schedule import refresher
from router.table_names import folded
from router_decoders import Json
from router_rules import Sql
from router_schemas.json_schema.spark_types import children
from router_sinks import Delta, Tables, Upsert
from tests.engine.drawing import Drawing, Record, raw_table
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
WATCHING = Path(__file__).parent / "catches"
Place = int
"""The offset of a record."""


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
        columns = T.StructType([T.StructField("event", drawing.schema), T.StructField("offset", T.LongType())])
        self.events = spark.createDataFrame([], columns)
        self.routes = [self._route(number) for number in range(drawing.chance.randint(2, 3))]
        view = View.model_validate(
            {
                "name": "counts",
                "from": "t0.*",
                "sql": "SELECT table, count(*) AS n, max(place) AS last FROM source GROUP BY table",
                "into": "gold.counts",
            }
        )
        self.query: Query = make_query(
            folder, decode=Json(schema=drawing.ddl), routes=tuple(self.routes), bronze="bronze.all", views=(view,)
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
        sinks = [
            Tables(table=f"t{number}.{{event.game}}"),
            Delta(table=f"d{number}.every"),
            Upsert(table=f"u{number}.keyed", keys=("event.k",)),
        ]
        rule = "event.game IS NOT NULL" if number == 0 else drawing.expression(self.is_valid, "truth", 3)
        expect: tuple[Expectation, ...] = ()
        if chance.random() < 0.5:
            otherwise = chance.choice(["dead_letter", "warn", "drop"])
            sql = drawing.expression(self.is_valid, "truth", 2)
            expect = (Expectation(name="drawn", sql=sql, otherwise=otherwise),)
        return Route(name=f"r{number}", match=Sql(where=rule), select=tuple(select), expect=expect, sinks=tuple(sinks))

    def take(self) -> None:
        """Take a batch of drawn records."""
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
            columns.append(holds(is_event, F.expr(route.match.where)).alias(f"{route.name}_matches"))
            made = [text.rpartition(" AS ") for text in route.select if text != "event.*"]
            # With a condition around it a column may be null, which a struct that is null needs in Arrow.
            row = F.struct("event.*", *[F.when(is_event, F.expr(sql)).alias(name) for sql, _, name in made])
            columns.append(tried(F.when(is_event, row)).alias(f"{route.name}_row"))
            for expectation in route.expect:
                columns.append(holds(is_event, F.expr(expectation.sql)).alias(f"{route.name}_holds"))
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


def own(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a keyed table without the columns of the router."""
    return {name: value for name, value in row.items() if name not in OWN}


OWN = ("_arrival", "_timestamp", "_topic", "_partition", "_offset")


def is_documented(reason: str | None, drawing: Drawing) -> bool:
    """Return whether docs/reference/json.md says that from_json takes a value which is refused for this reason.

    These are local times, decimals in texts, and base64 with a broken end.
    """
    _, _, misfits = (reason or "").partition("does not fit the schema: ")
    others = {column.name for column in drawing.fields if has_any(column.type, DIFFERENT)}
    return bool(misfits) and all(any(misfit.startswith(name) for name in others) for misfit in misfits.split(", "))


DIFFERENT = (T.TimestampNTZType, T.DecimalType, T.BinaryType)


def has_any(kind: T.DataType, types: tuple[type[T.DataType], ...]) -> bool:
    """Return whether a type is one of some types, or has one inside."""
    return isinstance(kind, types) or any(has_any(inner, types) for _, inner in children(kind))


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
    if blocked := query.batches.quarantine.blocked():
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
    query = drawn.query
    by_game = rows_by_place(query, f"t{number}.")
    every = rows_by_place(query, f"d{number}.").get(f"d{number}.every", {})
    keyed = rows_by_place(query, f"u{number}.").get(f"u{number}.keyed", {})
    last: dict[Any, Place] = {}
    for place in range(len(drawn.records)):
        row = expected[place]
        mine = [letter for letter in letters[place] if letter["route"] == route.name]
        in_games = [(table, found) for table, rows in by_game.items() for found in rows.get(place, ())]
        in_every = every.get(place, [])
        if row["error"] is not None or not row[f"{route.name}_matches"]:
            if in_games or in_every or place in keyed or mine:
                findings.note(f"{route.name} takes what does not match", place, in_games, mine)
            continue
        is_kept = row.get(f"{route.name}_holds", True) or route.expect[0].otherwise == "warn"
        made = row[f"{route.name}_row"]
        if not is_kept or made is None:
            is_told = bool(mine) or (not is_kept and route.expect[0].otherwise == "drop")
            if in_games or in_every or place in keyed or len(mine) > 1 or not is_told:
                findings.note(f"{route.name} keeps what it should not, or drops it silently", place, in_games, mine)
            continue
        stages = Counter((letter["sink"], letter["stage"]) for letter in mine)
        table = folded(f"t{number}.{made['game']}") if made["game"] is not None else None
        if table is None:
            if in_games or not any(stage == "name" for _, stage in stages):
                findings.note(f"{route.name}: a name of no table", place, in_games, mine)
        elif [(name, shown(found)) for name, found in in_games] != [(table, shown(made))]:
            findings.note(f"{route.name}: not in {table} as it should be", place, in_games, made, mine)
        if list(map(shown, in_every)) != [shown(made)]:
            findings.note(f"{route.name}: not in d{number}.every as it should be", place, in_every, made, mine)
        if made["k"] is None:
            if not any(stage not in ("name",) for _, stage in stages):
                findings.note(f"{route.name}: without a key, and no dead letter", place, mine)
        else:
            last[made["k"]] = place
    for place in last.values():
        made = expected[place][f"{route.name}_row"]
        if [shown(own(found)) for found in keyed.get(place, ())] != [shown(made)]:
            findings.note(f"{route.name}: not in u{number}.keyed as it should be", place, keyed.get(place), made)
    if extra := {*keyed} - {*last.values()}:
        findings.append(f"{route.name}: keyed rows that are not the last {extra}")


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_drawn_ends_in_its_tables_or_as_a_dead_letter(
    make_query: MakeQuery, spark: SparkSession, tmp_path: Path, catches: Path, seed: int
) -> None:
    """Without it a value, size or name that nobody thought of stops a stream, or is lost in it."""
    catches.write_text("")
    drawn = Drawn(seed, make_query, spark, tmp_path)
    query = drawn.query
    for _ in range(BATCHES):
        drawn.take()
        for view in query.config.views:
            refresher(query.config, query.spark, query.lake, query.store).refresh(view)
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
    routes = [str((route.match, route.select, route.expect)) for route in drawn.routes]
    assert not findings, "\n".join([drawn.drawing.ddl, *routes, *findings])
