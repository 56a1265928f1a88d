"""Texts that are not UTF-8, and years beyond 1 to 9999: readers refuse the files that hold them, so none may land."""

from __future__ import annotations

import io
import json
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.sql import functions as F

from router import Decoder, Preparation
from router.config.loader import load_config
from router.config.models import Route
from router.delta.lake import Lake
from router.delta.unreadable_values import NULL_PARTITION, TAKEN_BY_NULL, unreadable_values
from router.engine.stream import run
from router.registry import load_registry
from router_decoders import Avro, Json
from router_sinks import Delta, Upsert
from tests.engine.conftest import EITHER
from tests.engine.parts import Copy, Where, copied
from tests.engine.query import records
from tests.schemas.folder_memory import FolderMemory

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.engine.query import Query

DECODE = Json(schema="id int, days int")
TEXT = "CAST(unhex(CASE WHEN event.id = 2 THEN 'FF' ELSE '61' END) AS string)"
DAY = "date_add(DATE'9999-12-01', event.days)"
EARLY = "date_sub(DATE'0001-02-01', event.days)"
COLUMNS = {
    "text": (TEXT, "UTF-8"),
    "inner.text": (f"named_struct('text', {TEXT})", "UTF-8"),
    "texts": (f"array('a', {TEXT})", "UTF-8"),
    "by_text": (f"map({TEXT}, array(1))", "UTF-8"),
    "day": (DAY, "9999"),
    "early": (EARLY, "9999"),
    "days": (f"array(named_struct('day', {DAY}))", "9999"),
    "time": (f"CAST({DAY} AS timestamp)", "9999"),
    "local": (f"CAST({DAY} AS timestamp_ntz)", "9999"),
}
EVENTS = [{"id": 1, "days": 0}, {"id": 2, "days": 60}, {"id": 3, "days": 1}]


@pytest.fixture(scope="module", params=EITHER)
def landed(request: pytest.FixtureRequest, make_query: Any, tmp_path_factory: pytest.TempPathFactory) -> Query:
    """Take a batch whose second event gives each table a value that readers refuse."""
    routes = []
    for number, (path, (expression, _)) in enumerate(COLUMNS.items()):
        select = ("event.id", f"{expression} AS {path.split('.')[0]}")
        sinks = (Delta(table=f"silver.table_{number}"),)
        routes.append(Route(name=f"route_{number}", match=Where(sql="true"), select=select, sinks=sinks))
    folder = tmp_path_factory.mktemp("unreadable")
    query: Query = make_query(folder, decode=DECODE, routes=tuple(routes), bronze="bronze.all", commit=request.param)
    query.take(records(EVENTS))
    return query


@pytest.mark.parametrize("number", range(len(COLUMNS)), ids=list(COLUMNS))
def test_a_value_that_readers_refuse_is_a_dead_letter_that_names_its_column(landed: Query, number: int) -> None:
    """Without it one record makes a table unreadable for good."""
    path, (_, fault) = list(COLUMNS.items())[number]

    assert [row["id"] for row in landed.rows(f"silver.table_{number}")] == [1, 3]
    ((stage, offset, sink, reason),) = landed.letters("stage", "offset", "sink", "reason", route=f"route_{number}")
    assert (stage, offset, sink) == ("schema", 1, "delta")
    assert f" {path}" in reason
    assert fault in reason


def test_the_refused_rows_are_counted(landed: Query) -> None:
    """Without it the sums of a batch do not add up, and the stream stops."""
    counts = {row["route"]: row for row in landed.rows("ops.ledger") if row["route"]}

    assert all((row["landed"], row["refused"]) == (2, 1) for row in counts.values())
    assert len(landed.rows("bronze.all")) == 3


@pytest.mark.parametrize("engine", ["arrow", pytest.param("spark", marks=pytest.mark.slow)])
@pytest.mark.parametrize("of", ["key", "column", "newest_by"])
def test_a_row_of_an_upsert_that_readers_refuse_never_reaches_its_table(
    make_query: Any, tmp_path: Path, engine: str, of: str
) -> None:
    """Without it a key or a date of one record blocks all later merges of its table."""
    keys = ["id"]
    more: dict[str, Any] = {}
    select = ["event.id"]
    if of == "key":
        select.append(f"concat(CAST(event.id AS string), {TEXT}) AS text")
        keys = ["text"]
    elif of == "column":
        select.append(f"{DAY} AS day")
    else:
        more["newest_by"] = DAY
    sink = Upsert(table="silver.latest", keys=keys, engine=engine, **more)
    route = Route(name="latest", match=Where(sql="true"), select=tuple(select), sinks=(sink,))
    query = make_query(tmp_path, decode=DECODE, routes=(route,))

    query.take(records(EVENTS))
    query.take(records([{"id": 4, "days": 2}], first=3))

    assert {row["id"] for row in query.rows("silver.latest", "id")} >= {3, 4}
    assert 2 not in {row["id"] for row in query.rows("silver.latest", "id")}
    ((offset, reason),) = query.letters("offset", "reason")
    assert offset == 1
    assert ("UTF-8" if of == "key" else "9999") in reason


@pytest.mark.parametrize("commit", EITHER)
def test_no_row_with_such_a_value_reaches_an_outbox(make_query: Any, tmp_path: Path, commit: str) -> None:
    """Without it a sink that sends cannot read its rows, and none of its rows goes out any more."""
    routes = []
    for name, expression in (("text", TEXT), ("day", DAY)):
        sinks = (Copy(to=str(tmp_path / name)),)
        select = ("event.id", f"{expression} AS value")
        routes.append(Route(name=name, match=Where(sql="true"), select=select, sinks=sinks))
    query = make_query(tmp_path, decode=DECODE, routes=tuple(routes), commit=commit)
    query.take(records(EVENTS))

    for name, fault in (("text", "value: the text is not UTF-8"), ("day", "value: the date is not within")):
        assert sorted(row["id"] for row in copied(tmp_path / name)) == [1, 3]
        ((offset, reason),) = query.letters("offset", "reason", route=name)
        assert (offset, reason.startswith(f"sink {name}/")) == (1, True), "nobody looks into an outbox"
        assert fault in reason


@pytest.mark.parametrize("commit", EITHER)
def test_no_row_with_such_a_value_waits_in_a_quarantine(make_query: Any, tmp_path: Path, commit: str) -> None:
    """Without it the rows that wait beside it can never be read, or it is null in its table once it is let in."""
    text = f"CASE WHEN event.id = 3 THEN '{NULL_PARTITION}' ELSE 'p' END AS part"
    expect = {"name": "known", "sql": "event.id = 1", "otherwise": "quarantine"}
    sink = Delta(table="silver.all", partition_by=["part"])
    selected = ("event.id", f"{TEXT} AS text", text)
    route = Route(name="r", match=Where(sql="true"), select=selected, expect=(expect,), sinks=(sink,))
    query = make_query(tmp_path, decode=DECODE, routes=(route,), commit=commit)
    query.take(records([*EVENTS, {"id": 4, "days": 0}]))

    assert [row["id"] for row in query.rows("silver.all")] == [1]
    assert [row["id"] for row in query.rows("quarantine.games__r__delta", "id")] == [4]
    assert set(query.letters("offset", "reason")) == {
        (1, "table silver.all: text: the text is not UTF-8"),
        (2, f"table silver.all: part: {TAKEN_BY_NULL}"),
    }


def test_a_day_of_avro_that_readers_refuse_is_a_dead_letter(make_query: Any, tmp_path: Path) -> None:
    """Without it Avro lets pass what JSON and Protobuf refuse, and blocks every keyed table that takes the field."""
    kinds = {"day": ("int", "date"), "at": ("long", "timestamp-micros"), "local": ("long", "local-timestamp-millis")}
    fields: list[dict[str, Any]] = [{"name": "id", "type": "int"}]
    for name, (kind, logical) in kinds.items():
        fields.append({"name": name, "type": ["null", {"type": kind, "logicalType": logical}]})
    schema = {"type": "record", "name": "Bet", "fields": fields}
    (tmp_path / "bet.avsc").write_text(json.dumps(schema))
    far = {"day": 2_932_897, "at": 253_402_300_800_000_000, "local": 253_402_300_800_000}
    values = []
    for number, name in enumerate([None, *far]):
        # Without logical types: fastavro makes no day of the year 10,000.
        written = io.BytesIO()
        plain = {**schema, "fields": [{"name": "id", "type": "int"}]}
        plain["fields"] += [{"name": name, "type": ["null", kind]} for name, (kind, _) in kinds.items()]
        fastavro.schemaless_writer(written, plain, {"id": number, **({name: far[name]} if name else {})})
        values.append(written.getvalue())
    prepared = Preparation(tmp_path, False, lambda _: None, FolderMemory(tmp_path))
    decode = Avro(schema_file="bet.avsc", wire_format="none").prepare(prepared).refresh(frozenset())
    routes = (
        Route(name="all", match=Where(sql="true"), sinks=(Delta(table="silver.all"),)),
        Route(name="latest", match=Where(sql="true"), sinks=(Upsert(table="gold.latest", keys=["event.id"]),)),
    )
    query = make_query(tmp_path, decode=decode, routes=routes, bronze="bronze.all")
    query.take(records(values))

    assert [row["id"] for row in query.rows("silver.all", "id")] == [0]
    assert [row["id"] for row in query.rows("gold.latest", "id")] == [0]
    letters = query.letters("offset", "reason", route="all")
    assert {(offset, reason.split(": ")[1]) for offset, reason in letters} == {(1, "day"), (2, "at"), (3, "local")}


def test_values_of_a_file_that_readers_refuse_are_rescued(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a text of a Parquet file is altered on its way, or a day of it makes tables unreadable."""
    days = pa.array([0, 2_932_897, 1, 2, 3], pa.int32()).cast(pa.date32())
    texts = _texts(b"a", b"a", b"\xff", b"\xef\xbf\xbd", b"a")
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 1, 1, 3], pa.int32()), _texts(b"a", b"a", b"b\xff"))
    (tmp_path / "in").mkdir()
    pq.write_table(
        pa.table({"id": range(5), "day": days, "text": texts, "texts": lists}), tmp_path / "in" / "a.parquet"
    )
    content = {
        "name": "files",
        "lake": str(tmp_path / "lake"),
        "source": {"files": {"path": str(tmp_path / "in"), "format": "parquet"}},
        "decode": {"rows": {}},
        "bronze": "bronze.all",
        "dead_letters": "ops.dead",
        "routes": [{"name": "all", "match": {"sql": "true"}, "sinks": [{"delta": "silver.all"}]}],
        "trigger": {"once": True},
    }
    registry = load_registry()
    run(load_config(tmp_path / "files.yaml", registry, environ={}, text=yaml.safe_dump(content)), registry, spark)

    handle = Lake.at(str(tmp_path / "lake")).open("silver.all")
    assert handle is not None
    found = {}
    for row in handle.to_pyarrow_table().to_pylist():
        found[row["id"]] = (row["day"], row["text"], row["texts"], dict(row["_rescued"] or {}))
    first = date(1970, 1, 1)
    assert found == {
        0: (first, "a", ["a"], {}),
        1: (None, "a", [], {"day": "+10000-01-01"}),
        2: (first + timedelta(1), None, [], {"text": "/w=="}),
        3: (first + timedelta(2), "\ufffd", [], {}),
        4: (first + timedelta(3), "a", None, {"texts": '["a","b\ufffd"]'}),
    }


class _Texts(Decoder):
    """Decode any bytes as a text, and refuse those that begin with an exclamation mark with a reason of any bytes."""

    def decode(self, raw: DataFrame) -> DataFrame:
        text = F.col("value").cast("string")
        bad = text.startswith("!")
        return raw.withColumns(
            {
                "event": F.when(~bad, F.struct(text.alias("text"))),
                "_error": F.when(bad, F.concat(F.lit("refused: "), text)),
            }
        )


def test_a_text_of_any_bytes_stops_no_expression_and_no_reason(make_query: Any, tmp_path: Path) -> None:
    """Without it one record of a decoder whose texts are not checked ends the stream."""
    routes = []
    for name in ("upper", "trim", "reverse"):
        select = (f"{name}(event.text) AS text",)
        sinks = (Delta(table=f"silver.{name}"),)
        routes.append(Route(name=name, match=Where(sql="event.text <> ''"), select=select, sinks=sinks))
    query = make_query(tmp_path, decode=_Texts(), routes=tuple(routes))

    query.take(records([b"ab", "ü".encode(), b"a\xff", b"!\xff"]))

    assert {row["text"] for row in query.rows("silver.upper")} == {"AB", "Ü"}
    assert {row["text"] for row in query.rows("silver.trim")} == {"ab", "ü"}
    assert {row["text"] for row in query.rows("silver.reverse")} == {"ba", "ü"}
    assert query.letters("route", "offset") == {("upper", 2): 1, ("trim", 2): 1, ("reverse", 2): 1, (None, 3): 1}
    assert query.letters("reason", offset=3) == {"refused: !\ufffd": 1}


def _texts(*values: bytes | None) -> pa.Array:
    """Return an array of texts with any bytes, as Spark sends it."""
    raw = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())


def _faulty_rows(array: pa.Array) -> dict[str, list[int]]:
    """Return the rows with a fault by the path of their value."""
    return {fault.path: fault.rows.nonzero()[0].tolist() for fault in unreadable_values("column", array)}


DAYS = pa.array([0, 2_932_896, 2_932_897, None, -719_162, -719_163], pa.int32()).cast(pa.date32())
SECONDS = pa.array([253_402_300_799, 253_402_300_800, -62_135_596_800, -62_135_596_801], pa.int64())
OFFSETS = pa.array([0, 2, None, 2, 5, 5], pa.int32())


@pytest.mark.parametrize(
    ("array", "rows"),
    [
        (_texts(b"a", b"\xff", None, "ü".encode(), b"\xed\xa0\x80"), {"column": [1, 4]}),
        (_texts(b"a", b"\xff", None, b"b").slice(2), {}),
        (_texts(), {}),
        (pa.nulls(3, pa.string()), {}),
        (DAYS, {"column": [2, 5]}),
        (DAYS.slice(3), {"column": [2]}),
        (SECONDS.cast(pa.timestamp("s", "UTC")), {"column": [1, 3]}),
        (SECONDS.cast(pa.timestamp("s")).cast(pa.timestamp("us")), {"column": [1, 3]}),
        (pa.ListArray.from_arrays(OFFSETS, _texts(b"a", b"\xff", b"b", b"c", b"\xfe")), {"column.element": [0, 3]}),
        (
            pa.ListArray.from_arrays(OFFSETS, _texts(b"a", b"\xff", b"b", b"c", b"\xfe")).slice(1),
            {"column.element": [2]},
        ),
        (
            pa.MapArray.from_arrays(OFFSETS, _texts(b"a", b"\xff", b"b", b"c", b"d"), DAYS[1:]),
            {"column.key": [0], "column.value": [0, 3]},
        ),
        (
            pa.StructArray.from_arrays([_texts(b"\xff", b"\xff")], ["text"], mask=pa.array([True, False])),
            {"column.text": [1]},
        ),
        (pa.array([[]], pa.list_(pa.list_(pa.string()))), {}),
        (pa.array([1.5, None]), {}),
        (pa.array([date(1, 1, 1), date(9999, 12, 31)]), {}),
    ],
)
def test_the_rows_with_unreadable_values_are_found(array: pa.Array, rows: dict[str, list[int]]) -> None:
    """Without it a row is refused for its neighbour, or lands with a value that no reader takes."""
    assert _faulty_rows(array) == rows


@pytest.mark.parametrize("commit", EITHER)
@pytest.mark.parametrize("kind", ["delta", "upsert"])
def test_a_text_that_is_null_as_a_partition_is_a_dead_letter(
    make_query: Any, tmp_path: Path, commit: str, kind: str
) -> None:
    """Without it the text is null in the table for every reader, and nobody is told."""
    sink: Any = Delta(table="silver.t", partition_by=["event.game"])
    if kind == "upsert":
        sink = Upsert(table="silver.t", keys=["event.id"], partition_by=["event.game"])
    routes = (Route(name="all", match=Where(sql="true"), sinks=(sink,)),)
    query = make_query(tmp_path, decode=Json(schema="id int, game string"), routes=routes, commit=commit)
    query.take(records([{"id": 1, "game": "uno"}, {"id": 2, "game": NULL_PARTITION}, {"id": 3}]))

    assert query.rows("silver.t", "id", "game") == [{"id": 1, "game": "uno"}, {"id": 3, "game": None}]
    ((reason, offset),) = query.letters("reason", "offset")
    assert f"game: the text {NULL_PARTITION} would be read as null" in reason
    assert offset == 1
