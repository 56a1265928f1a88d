"""Topics are decoded by their own decoders, into tables of their own or together."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from router import ArrowDecoder, ArrowDecoding, Preparation, StartError
from router.config.models import Route
from router_decoders import Avro, ByTopic, Json, Nothing
from router_rules import Sql
from router_sinks import Delta
from tests.engine.query import records
from tests.schemas.folder_memory import FolderMemory

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.engine.conftest import MakeQuery

BILL = {
    "type": "record",
    "name": "Bill",
    "fields": [{"name": "gamer", "type": "string"}, {"name": "cents", "type": "long"}],
}


def bill(**values: Any) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(BILL), values)
    return written.getvalue()


def mixed(values: list[tuple[str, bytes]]) -> pa.Table:
    """Return records of several topics."""
    rows = records([value for _, value in values])
    return rows.set_column(rows.schema.get_field_index("topic"), "topic", pa.array([topic for topic, _ in values]))


def prepared(decoder: ByTopic, folder: Path, sample: DataFrame | None = None) -> ByTopic:
    def sampled(_: int) -> Any:
        return sample

    return decoder.prepare(Preparation(folder, False, sampled, FolderMemory(folder))).refresh(frozenset())


class Wanting(ArrowDecoder):
    """Decode nothing before a word was learnt: that of the record."""

    learnt: frozenset[str] = frozenset()

    def refresh(self, wanted: frozenset[str]) -> Wanting:
        return self.model_copy(update={"learnt": self.learnt | wanted}) if wanted - self.learnt else self

    def decoding(self) -> ArrowDecoding:
        kinds = "event struct<word: string>, _error string, _wanted string"
        adds = T.StructType.fromDDL(kinds)
        return ArrowDecoding(words, self.learnt, adds)


def words(found: pa.RecordBatch, learnt: frozenset[str]) -> pa.RecordBatch:
    texts = [value.as_py().decode() for value in found.column("value")]
    known = [text in learnt for text in texts]
    events = [{"word": text} if there else None for text, there in zip(texts, known, strict=True)]
    wanted = [None if there else text for text, there in zip(texts, known, strict=True)]
    errors = [None if there else "is not learnt" for there in known]
    kinds = [pa.struct([("word", pa.string())]), pa.string(), pa.string()]
    columns = [pa.array(column, kind) for column, kind in zip((events, errors, wanted), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=["event", "_error", "_wanted"])


def test_topics_are_decoded_each_in_its_way(make_query: MakeQuery, tmp_path: Path) -> None:
    """Without it two topics need two jobs, or one of them is garbage."""
    (tmp_path / "bill.avsc").write_text(json.dumps(BILL))
    topics = {
        "games": Json(schema="gamer string, level int, cents int"),
        "bills": Avro(schema_file="bill.avsc", wire_format="none"),
        "refunds": Avro(schema_file="bill.avsc", wire_format="none"),
        "words": Wanting(),
        "odd": Json(schema="GAMER string"),
    }
    decode = prepared(ByTopic(topics=topics), tmp_path)
    routes = (
        Route(name="levels", match=Sql(where="topic = 'games'"), sinks=(Delta(table="silver.levels"),)),
        Route(name="money", match=Sql(where="event.cents > 0"), sinks=(Delta(table="silver.money"),)),
        Route(name="words", match=Sql(where="event.word IS NOT NULL"), sinks=(Delta(table="silver.words"),)),
    )
    query = make_query(tmp_path, decode=decode, bronze="bronze.{topic}", routes=routes)
    query.take(
        mixed(
            [
                ("games", b'{"gamer": "a", "level": 3}'),
                ("games", b'{"gamer": "b", "cents": 5}'),
                ("games", bill(gamer="no JSON", cents=1)),
                ("bills", bill(gamer="c", cents=2**40)),
                ("bills", b'{"gamer": "no Avro"}'),
                ("refunds", bill(gamer="d", cents=7)),
                ("words", b"hello"),
                ("odd", b'{"GAMER": "e"}'),
                ("unnamed", b"{}"),
            ]
        )
    )

    def rows(table: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row[name] for name in ("gamer", "cents")) for row in query.rows(table))

    assert [(row["gamer"], row["level"]) for row in query.rows("silver.levels") if row["level"]] == [("a", 3)]
    assert rows("silver.money") == [("b", 5), ("c", 2**40), ("d", 7)]
    assert [row["word"] for row in query.rows("silver.words")] == ["hello"]
    reasons = {row["topic"]: row["reason"] for row in query.rows("ops.dead")}
    assert sorted(reasons) == ["bills", "games", "odd", "unnamed"]
    assert reasons["unnamed"] == "no decoder is named for the topic unnamed"
    assert reasons["odd"].startswith("topic odd: event.GAMER is event.gamer there")
    assert len(query.rows("bronze.bills")) == 2


def test_a_field_has_one_type_in_all_topics(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it one topic's change makes another's values wrong."""
    assert spark
    topics = {
        "a": Json(schema="id int, who struct<name: string>, tags array<float>"),
        "b": Json(schema="id bigint, who struct<age: int>, tags array<double>"),
        "c": Json(schema="id string"),
    }
    with caplog.at_level(logging.WARNING, "router"):
        made = prepared(ByTopic(topics=topics, others="bronze"), tmp_path).decoding()

    assert made.adds["event"].dataType.simpleString() == (
        "struct<id:bigint,who:struct<name:string,age:int>,tags:array<double>>"
    )
    (warning,) = caplog.messages
    assert warning == (
        "topic c: its records are dead letters: event.id is string here, and bigint there; a, b came first"
    )
    found = made.function(
        mixed([("b", b'{"id": 1, "who": {"age": 2}, "tags": [0.5]}'), ("c", b"{}"), ("d", b"{}")]).to_batches()[0],
        made.argument,
    ).to_pylist()
    assert [row["event"] for row in found] == [
        {"id": 1, "who": {"name": None, "age": 2}, "tags": [0.5]}, None, None,
    ]  # fmt: skip
    assert [row["_error"] is None for row in found] == [True, False, True]


def test_a_decoder_of_sparks_columns_alone_is_refused(tmp_path: Path) -> None:
    """Without it that topic's records would all be dead letters."""
    with pytest.raises(StartError, match=r"topic a: the decoder .* cannot decode one topic of several"):
        prepared(ByTopic(topics={"a": Nothing()}), tmp_path).decoding()
