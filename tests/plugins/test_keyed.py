"""Keys and values of records by a decoder each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from router import RAW_SCHEMA, ConfigError
from router.config.loader import load_config
from router.registry import load_registry
from router_decoders import Json, Nothing, RecordKeys
from router_decoders.registry_decoder import RegistryDecoder
from router_schemas.model import KEY_HEADER, VALUE_HEADER
from tests.engine.parts import Known, Shouted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router import Decoder

RECORDS = [
    (b'{"id":1}', b'{"game":"uno"}'),
    (None, b'{"game":"uno"}'),
    (b"garbage", b'{"game":"uno"}'),
    (b'{"id":2}', b"garbage"),
    (b"garbage", b"garbage"),
    (b"", None),
]
TEXT = """\
name: games
lake: ./lake
source:
  kafka: {servers: "127.0.0.1:1", topics: [game-events]}
decode: {value: {json: "game string"}, key: {json: "id int"}}
bronze: bronze.all
dead_letters: ops.dead
"""


def decoded_rows(spark: SparkSession, decoder: Decoder, records: list[tuple[bytes | None, bytes | None]]) -> list[Any]:
    raw = spark.createDataFrame([(k, v, "t", 0, n, None, 0, None) for n, (k, v) in enumerate(records)], RAW_SCHEMA)
    return sorted(decoder.decode(raw).collect(), key=lambda row: row["offset"])


def test_a_record_is_an_event_when_value_and_key_can_be_decoded(spark: SparkSession) -> None:
    """Without it a key that nobody can read goes unnoticed, or a record without one is refused."""
    found = decoded_rows(spark, RecordKeys(value=Json(schema="game string"), key=Json(schema="id int")), RECORDS)

    assert [row["event"] and row["event"]["game"] for row in found] == ["uno", "uno", None, None, None, None]
    assert [row["event_key"] and row["event_key"]["id"] for row in found] == [1, None, None, 2, None, None]
    assert [row["_error"] for row in found] == [
        *[None, None, "key value is not JSON", "value is not JSON", "value is not JSON", "value is null"]
    ]


def test_the_record_stays_as_it_was(spark: SparkSession) -> None:
    """Without it bronze has the key in place of the value."""
    found = decoded_rows(spark, RecordKeys(value=Json(schema="game string"), key=Shouted()), RECORDS)

    assert [(row["key"], row["value"]) for row in found] == RECORDS


def test_keys_of_records_for_bronze_only_are_looked_at(spark: SparkSession) -> None:
    """Without it `none` hides what is wrong with the keys."""
    found = decoded_rows(spark, RecordKeys(value=Nothing(), key=Json(schema="id int")), RECORDS[:3])

    assert [(row["event"], row["_error"]) for row in found] == [
        *[(None, None), (None, None), (None, "key value is not JSON")]
    ]


def test_tasks_decode_what_frames_decode(spark: SparkSession) -> None:
    """Without it the way a batch lands decides what an event is."""
    decoder = RecordKeys(value=Shouted(), key=Shouted())
    records = [*RECORDS, (b"\xff", b"fine"), (b"fine", b"\xff")]
    expected = decoded_rows(spark, decoder, records)
    made = decoder.decoding()
    assert made is not None

    batch = pa.RecordBatch.from_pydict({"key": [key for key, _ in records], "value": [value for _, value in records]})
    found = made.function(batch, made.argument)

    assert found.schema.names == made.adds.names
    names = ("_error", "event", "event_key")
    told = [
        tuple(row[name] if name == "_error" else row[name] and row[name].asDict() for name in names) for row in expected
    ]
    assert [tuple(row[name] for name in names) for row in found.to_pylist()] == told


def test_what_a_key_wants_is_asked_of_its_decoder(spark: SparkSession, tmp_path: Path) -> None:
    """Without it a schema that only keys use is never fetched."""
    for name in ("values", "keys"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name[:-1]).touch()
    decoder = RecordKeys(value=Known(folder=str(tmp_path / "values")), key=Known(folder=str(tmp_path / "keys")))
    records = [(b"key:1", b"value:1"), (b"key:2", b"value:2"), (None, b"value:3"), (b"other:4", b"value:4")]

    wanted = {row["_wanted"] for row in decoded_rows(spark, decoder, records)} - {None}
    once = decoder.refresh(frozenset(wanted))
    wanted = {row["_wanted"] for row in decoded_rows(spark, once, records)} - {None}
    twice = once.refresh(frozenset(wanted))
    found = decoded_rows(spark, twice, records)

    assert [row["_error"] for row in found] == [None, None, None, "key no word other"]
    assert {row["_wanted"] for row in found} == {None}
    assert twice.refresh(frozenset()) is twice


def test_value_and_key_need_no_name_in_a_configuration() -> None:
    """Without it people write a word that says nothing."""
    config = load_config(Path("games.yaml"), load_registry(), environ={}, text=TEXT).config

    assert isinstance(config.decode, RecordKeys)


@pytest.mark.parametrize("name", ["avro", "json_schema", "protobuf"])
@pytest.mark.parametrize(
    ("more", "header"), [("", KEY_HEADER), (f", header: {VALUE_HEADER}", VALUE_HEADER), (", header: x", "x")]
)
def test_the_guid_of_a_key_is_in_a_header_of_its_own(name: str, more: str, header: str) -> None:
    """Without it every key is read with the schema of the value, unless somebody knows of the option."""
    text = TEXT.replace('{json: "id int"}', f'{{{name}: {{registry: "http://r.test"{more}}}}}')
    decoder = load_config(Path("games.yaml"), load_registry(), environ={}, text=text).config.decode

    assert isinstance(decoder, RecordKeys)
    assert isinstance(decoder.key, RegistryDecoder)
    assert (decoder.key.header, decoder.key.part_name) == (header, name)
    value = type(decoder.key).model_validate({"registry": "http://r.test"})
    assert RecordKeys(value=value, key=value).value.header == VALUE_HEADER  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("key", "column"), [('{jsn: "id int"}', 46), ('{json: {schem: "id int"}}', 53)], ids=["name", "option"]
)
def test_a_fault_in_them_has_its_place(key: str, column: int) -> None:
    """Without it the whole of `decode` is pointed at."""
    with pytest.raises(ConfigError) as caught:
        load_config(Path("games.yaml"), load_registry(), environ={}, text=TEXT.replace('{json: "id int"}', key))

    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (5, column)
