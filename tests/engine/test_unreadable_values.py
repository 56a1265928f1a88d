"""Texts that are not UTF-8, and years beyond 1 to 9999: readers refuse the files that hold them, so none may land."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from router import Decoder
from router.config.models import Route
from router.delta.unreadable_values import NULL_PARTITION, unreadable_values
from router_decoders import Json
from router_sinks import Delta, Upsert
from tests.engine.conftest import EITHER
from tests.engine.parts import Where
from tests.engine.query import records

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

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
