"""Every way to find the schema of a record goes through a stream: GUIDs, files, wrappers, single objects."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest

from router import Preparation
from router.config.models import Route
from router.engine.checkpoint_store import CheckpointStore, LearntSchemas
from router.testing import check_decoder
from router_decoders import Auto, Avro, Protobuf
from router_schemas.model import VALUE_HEADER
from router_schemas.wire_format import guid_header, pack_value
from tests.engine.conftest import EITHER
from tests.engine.parts import Named, Where
from tests.engine.query import RAW, records
from tests.plugins.protos import Proto

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from router import Decoder
    from router.delta.lake import Lake
    from tests.engine.conftest import MakeQuery
    from tests.engine.query import Query
    from tests.schemas.faulty import FaultyRegistry

ROUTES = Path(__file__).parents[3] / "routes"
GAMES = Route(name="games", match=Where(sql="event.game IS NOT NULL"), sinks=(Named(sql="'silver.' || event.game"),))
BET = {
    "type": "record",
    "name": "games.Bet",
    "fields": [{"name": "game", "type": "string"}, {"name": "amount", "type": "long"}],
}
WRAPPER = {"payload": "head.body", "name": "head.name"}


@pytest.fixture
def proto(tmp_path: Path) -> Proto:
    (tmp_path / "bet.avsc").write_text(json.dumps(BET))
    return Proto.in_folder(tmp_path)


@pytest.fixture(params=EITHER)
def begin(
    request: pytest.FixtureRequest, make_query: MakeQuery, spark: SparkSession, lake: Lake, tmp_path: Path
) -> Callable[..., Query]:
    """Start a query with a decoder; `sample` is what the source holds then."""

    def begin(decoder: Decoder, sample: pa.Table | None = None) -> Query:
        held = RAW.empty_table() if sample is None else sample
        preparation = Preparation(
            tmp_path, False, lambda rows: spark.createDataFrame(held), LearntSchemas(CheckpointStore(lake))
        )
        prepared = decoder.prepare(preparation)
        return make_query(tmp_path, commit=request.param, decode=prepared, bronze="bronze.events", routes=(GAMES,))

    return begin


def with_headers(values: list[bytes | None], headers: list[dict[str, bytes] | None]) -> pa.Table:
    """Return raw records with headers."""
    table = records(values)
    kind = table.schema.field("headers")
    entries = [one and [{"key": key, "value": value} for key, value in one.items()] for one in headers]
    return table.set_column(table.schema.get_field_index("headers"), kind, pa.array(entries, kind.type))


def bet_in_avro(**values: Any) -> bytes:
    written = BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(BET), values)
    return written.getvalue()


@pytest.mark.parametrize("kind", [Avro, Protobuf])
def test_a_guid_that_comes_unannounced_is_resolved_within_the_batch(
    begin: Callable[..., Query], faulty: FaultyRegistry, proto: Proto, kind: type[Avro | Protobuf]
) -> None:
    """Without it records of producers that write headers are dead letters, all of them."""
    avro = kind is Avro
    text = json.dumps(BET) if avro else proto.path.read_text()
    number = faulty.book.add("bets", text, "AVRO" if avro else "PROTOBUF")
    good = bet_in_avro(game="uno", amount=5) if avro else proto.bytes("Bet", game="uno", amount=5)
    path = None if avro else (0,)
    headed = {VALUE_HEADER: guid_header(faulty.book.guid(number), path)}
    query = begin(kind.model_validate({"registry": faulty.url, "subjects": ["bets"]}))

    report = query.take(with_headers([good, pack_value(number, path, good), good, None], [headed, None, None, headed]))

    assert (report.decoded, report.dead_letters) == (2, 2)
    assert [row["amount"] for row in query.rows("silver.uno", "amount")] == [5, 5]


def test_formats_that_are_mixed_in_one_topic_are_learnt_within_the_batch(
    begin: Callable[..., Query], faulty: FaultyRegistry, proto: Proto
) -> None:
    """Without it a team that moves to another format stops the stream of all others."""
    schema = {"title": "Bet", "properties": {"game": {"type": "string"}, "amount": {"type": "integer"}}}
    ids = {
        kind: faulty.book.add(f"bets-{kind}", text, kind)
        for kind, text in {
            "AVRO": json.dumps(BET),
            "PROTOBUF": proto.path.read_text(),
            "JSON": json.dumps(schema),
        }.items()
    }
    in_json = pack_value(ids["JSON"], None, b'{"game":"uno","amount":6}')
    in_avro = pack_value(ids["AVRO"], None, bet_in_avro(game="uno", amount=5))
    in_protobuf = pack_value(ids["PROTOBUF"], (0,), proto.bytes("Bet", game="uno", amount=7))
    query = begin(Auto.model_validate({"registry": faulty.url, "subjects": ["bets-JSON"]}))

    alone = query.take(records([in_json, b"{}"]))
    mixed = query.take(records([in_avro, in_json, in_protobuf, pack_value(99, None, b"")], first=2))

    assert (alone.decoded, alone.dead_letters) == (1, 1)
    assert (mixed.decoded, mixed.dead_letters) == (3, 1)
    assert sorted(row["amount"] for row in query.rows("silver.uno", "amount")) == [5, 6, 6, 7]


@pytest.mark.parametrize("source", [{"proto_file": "games.proto"}, {"descriptor_file": "games.desc"}], ids=str)
def test_bare_messages_are_read_with_a_file(begin: Callable[..., Query], proto: Proto, source: dict[str, str]) -> None:
    query = begin(Protobuf.model_validate({**source, "message": "games.Bet", "wire_format": "none"}))

    report = query.take(records([proto.bytes("Bet", game="uno", amount=5), b"\xff", None, b""]))

    assert (report.decoded, report.failed, report.unmatched) == (2, 2, 0)
    assert query.rows("silver.uno", "amount") == [{"amount": 5}]


def test_a_new_message_inside_is_learnt_within_the_batch(begin: Callable[..., Query], proto: Proto) -> None:
    """Without it a new kind of event waits for a restart."""
    bet = proto.envelope("Bet", proto.message("Bet", game="uno", amount=5))
    login = proto.envelope("games.Login", proto.message("Login", game="uno", gamer="g-1"))
    options = {"proto_file": "games.proto", "message": "games.Envelope", "wire_format": "none", "wrapper": WRAPPER}
    query = begin(Protobuf.model_validate(options), records([bet]))

    query.take(records([bet, proto.envelope("Gone", proto.message("Bet"))]))
    report = query.take(records([bet, login], first=2))

    assert (report.decoded, report.dead_letters) == (2, 0)
    assert {(row["amount"], row["gamer"]) for row in query.rows("silver.uno", "amount", "gamer")} == {
        (5, None),
        (None, "g-1"),
    }
    assert query.letters("reason") == {"wrapper: the file has no message 'Gone'": 1}


@pytest.mark.parametrize("wire_format", ["none", "confluent", "single_object"])
def test_avro_is_read_with_a_file(begin: Callable[..., Query], proto: Proto, wire_format: str) -> None:
    body = bet_in_avro(game="uno", amount=5)
    fingerprint = fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(BET), "CRC-64-AVRO")
    framed = {
        "none": body,
        "confluent": pack_value(9, None, body),
        "single_object": b"\xc3\x01" + bytes.fromhex(fingerprint) + body,
    }
    query = begin(Avro.model_validate({"schema_file": "bet.avsc", "wire_format": wire_format}))

    report = query.take(records([framed[wire_format], framed[wire_format][:-1], None]))

    assert (report.decoded, report.failed) == (1, 2)
    assert query.rows("silver.uno", "amount") == [{"amount": 5}]


@pytest.mark.parametrize("wire_format", ["none", "confluent"])
@pytest.mark.parametrize("wrapper", [None, {**WRAPPER, "messages": ["games.Bet"]}], ids=["bare", "wrapped"])
def test_files_keep_the_contract(spark: SparkSession, proto: Proto, lake: Lake, wire_format: str, wrapper: Any) -> None:
    bet = proto.message("Bet", game="uno", amount=5)
    message, path, good = (
        ("Bet", (0,), bet.SerializeToString()) if wrapper is None else ("Envelope", (3,), proto.envelope("Bet", bet))
    )
    options = {
        "proto_file": "games.proto",
        "message": f"games.{message}",
        "wire_format": wire_format,
        "wrapper": wrapper,
    }
    prepared = Protobuf.model_validate(options).prepare(
        Preparation(
            proto.path.parent,
            False,
            lambda rows: spark.createDataFrame(RAW.empty_table()),
            LearntSchemas(CheckpointStore(lake)),
        )
    )

    check_decoder(spark, prepared.refresh(frozenset()), [good if wire_format == "none" else pack_value(3, path, good)])
