"""Streams of Avro and Protobuf from a real registry: new versions come while they run, whatever the engine."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from google.protobuf import message_factory
from google.protobuf.json_format import ParseDict

from router import Preparation
from router.config.models import Route
from router.engine.checkpoint_store import CheckpointStore, LearntSchemas
from router.engine.quarantine.table import list_quarantined, write_approval
from router.testing import check_decoder
from router_decoders import Avro, Protobuf
from router_rules import Schema
from router_schemas.model import RegisteredSchema, ResolvedSchema
from router_schemas.protobuf.descriptors import compile_schema, message_of
from router_schemas.registry_client import RegistryClient
from router_schemas.registry_options import RegistryOptions
from router_schemas.wire_format import pack_value
from tests.engine.conftest import EITHER
from tests.engine.parts import Fixed, Named, Where
from tests.engine.query import records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from router import Decoder
    from router.delta.lake import Lake
    from router_demo.registry import EmbeddedRegistry
    from tests.engine.conftest import MakeQuery
    from tests.engine.query import Query

FIELDS = ("string game = 1;", "int64 amount = 2;", "optional string note = 3;", "repeated string cards = 4;")
COLUMNS: list[dict[str, Any]] = [
    {"name": "game", "type": "string"},
    {"name": "amount", "type": "long"},
    {"name": "note", "type": ["null", "string"], "default": None},
    {"name": "cards", "type": ["null", {"type": "array", "items": "string"}], "default": None},
]
DECODERS: dict[str, type[Avro | Protobuf]] = {"avro": Avro, "protobuf": Protobuf}


def protobuf(client: RegistryClient, package: str, version: int, values: dict[str, Any]) -> bytes:
    """Register a version, each with one field more, and return a framed record of it."""
    source = f'syntax = "proto3"; package {package}; message Bet {{ {" ".join(FIELDS[: version + 1])} }}'
    number = client.register(f"{package}-value", "PROTOBUF", source)
    files = compile_schema(ResolvedSchema(RegisteredSchema(number, "PROTOBUF", source)))
    message = message_factory.GetMessageClass(message_of(files, f"{package}.Bet"))()
    return pack_value(number, (0,), ParseDict(values, message).SerializeToString())


def avro(client: RegistryClient, package: str, version: int, values: dict[str, Any]) -> bytes:
    """Register a version, each with one field more, and return a framed record of it."""
    schema = {"type": "record", "namespace": package, "name": "Bet", "fields": COLUMNS[: version + 1]}
    number = client.register(f"{package}-value", "AVRO", json.dumps(schema))
    written = BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), values)
    return pack_value(number, None, written.getvalue())


WRITERS = {"avro": avro, "protobuf": protobuf}


@pytest.fixture(params=sorted(DECODERS))
def written(request: pytest.FixtureRequest) -> str:
    """Return the format of the records."""
    return str(request.param)


@pytest.fixture
def package(request: pytest.FixtureRequest) -> str:
    """Return a package and subject that only this test uses."""
    return "e" + str(abs(hash(request.node.name)) % 10**9)


@pytest.fixture
def bet(schema_registry: EmbeddedRegistry, package: str, written: str) -> Iterator[Callable[..., bytes]]:
    with RegistryClient(RegistryOptions(url=(schema_registry.url,))) as client:
        yield lambda version, **values: WRITERS[written](client, package, version, values)


def no_sample(rows: int) -> DataFrame:
    raise AssertionError("the source was read")


@pytest.fixture
def prepared(schema_registry: EmbeddedRegistry, package: str, written: str, lake: Lake) -> Decoder:
    decoder = DECODERS[written](registry=RegistryOptions(url=(schema_registry.url,)), subjects=(f"{package}-value",))
    return decoder.prepare(Preparation(Path(lake.root), False, no_sample, LearntSchemas(CheckpointStore(lake))))


@pytest.fixture(params=EITHER)
def begin(request: pytest.FixtureRequest, make_query: MakeQuery, tmp_path: Path, package: str) -> Callable[..., Query]:
    games = Route(
        name="games", match=Where(sql="event.game IS NOT NULL"), sinks=(Named(sql="'silver.' || event.game"),)
    )
    schema = Route(
        name="schema",
        match=Schema(name=f"{package}.Bet"),
        select=("event.game", "schema_id", "schema_version", "subject", "message"),
        sinks=(Fixed(name="silver.about"),),
    )

    def begin(decoder: Decoder) -> Query:
        return make_query(
            tmp_path, commit=request.param, decode=decoder, bronze="bronze.events", routes=(games, schema)
        )

    return begin


def test_a_new_version_is_in_the_table_with_its_first_record(
    begin: Callable[..., Query], prepared: Decoder, bet: Callable[..., bytes], package: str
) -> None:
    """Without it a new field waits for a restart, or its records are lost."""
    first = bet(1, game="uno", amount=5)
    query = begin(prepared)

    query.take(records([first, b"garbage", None]))
    assert query.rows("silver.uno") == [{"game": "uno", "amount": 5}]

    third = bet(3, game="uno", amount=6, note="", cards=["queen"])
    report = query.take(records([first, third], first=3))

    assert (report.read, report.decoded, report.dead_letters) == (2, 2, 0)
    blank = {"note": None, "cards": None}
    have = {row["amount"]: row for row in query.rows("silver.uno")}
    assert {**blank, **have[5]}.items() >= {"game": "uno", "amount": 5, "note": None}.items()
    assert have[6] == {"game": "uno", "amount": 6, "note": "", "cards": ["queen"]}
    assert query.letters("stage", "reason").total() == 2
    about = query.rows("silver.about", "schema_version", "subject", "message")
    assert [row["schema_version"] for row in about] == [1, 1, 2]
    assert {(row["subject"], row["message"]) for row in about} == {(f"{package}-value", f"{package}.Bet")}


def test_the_decoder_keeps_the_contract(spark: SparkSession, prepared: Decoder, bet: Callable[..., bytes]) -> None:
    good = [bet(1, game="uno", amount=1), bet(2, game="uno", amount=1, note="a")]

    check_decoder(spark, prepared.refresh(frozenset()), good)


def test_a_hostile_length_is_one_dead_letter(
    begin: Callable[..., Query], prepared: Decoder, bet: Callable[..., bytes]
) -> None:
    """Without it one record of ten bytes ends the JVM: it claims a text of 2 GiB, which Avro makes room for."""
    good = bet(1, game="uno", amount=5)
    hostile = good[:5] + b"\xee\xff\xff\xff\x0f"
    query = begin(prepared)

    report = query.take(records([good, hostile, good, good[:-1], good + b"\xff"]))

    assert (report.decoded, report.failed, report.dead_letters) == (2, 3, 3)


@pytest.fixture(params=["apicurio", "scripted"])
def sharing_registry(request: pytest.FixtureRequest) -> str:
    """Return the URL of a registry that gives one id to one text, whatever the subjects."""
    url: str = request.getfixturevalue({"apicurio": "schema_registry", "scripted": "faulty"}[request.param]).url
    return url


def sale(fields: dict[str, str], **values: Any) -> tuple[str, bytes]:
    """Return the schema of a sale, and a record of it as fastavro writes it."""
    columns = [{"name": name, "type": ["null", field_type], "default": None} for name, field_type in fields.items()]
    schema = {"type": "record", "namespace": "shop", "name": "Sale", "fields": columns}
    written = BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), values)
    return json.dumps(schema), written.getvalue()


@pytest.mark.parametrize("named", [True, False], ids=["subjects", "topic"])
def test_two_topics_that_share_a_schema_diverge(
    spark: SparkSession,
    sharing_registry: str,
    make_query: MakeQuery,
    tmp_path: Path,
    lake: Lake,
    package: str,
    named: bool,
) -> None:
    """Without it a topic's table gets the other topic's columns, and its own good records become dead letters."""
    orders = f"{package}-orders"
    bills = f"{package}-bills"  # sorts before the other: its versions would win
    first_schema, first_record = sale({"id": "long"}, id=1)
    bills_schema, _ = sale({"id": "long", "note": "long", "bonus": "long"}, id=1)
    orders_schema, orders_record = sale({"id": "long", "note": "string"}, id=2, note="gift")
    options = RegistryOptions(url=(sharing_registry,))
    with RegistryClient(options) as client:
        shared = client.register(f"{bills}-value", "AVRO", first_schema)
        assert client.register(f"{orders}-value", "AVRO", first_schema) == shared
        client.register(f"{bills}-value", "AVRO", bills_schema)
        first = pack_value(shared, None, first_record)
        preparation = Preparation(
            Path(lake.root),
            False,
            lambda rows: spark.createDataFrame(records([first])),
            LearntSchemas(CheckpointStore(lake)),
            reads_topic=lambda topic: topic == orders,
        )
        decoder = Avro(registry=options, subjects=(f"{orders}-value",) if named else ()).prepare(preparation)
        route = Route(
            name="orders",
            match=Where(sql="true"),
            select=("event.*", "subject", "schema_version"),
            sinks=(Fixed(name="silver.orders"),),
        )
        query = make_query(tmp_path, decode=decoder, routes=(route,))
        query.take(records([first]))
        assert set(query.rows("silver.orders")[0]) == {"id", "subject", "schema_version"}

        own = client.register(f"{orders}-value", "AVRO", orders_schema)
        report = query.take(records([first, pack_value(own, None, orders_record)], first=1))

    assert (report.decoded, report.dead_letters) == (2, 0)
    rows = query.rows("silver.orders")
    assert set(rows[0]) == {"id", "note", "subject", "schema_version"}
    assert {(row["id"], row["note"], row["schema_version"]) for row in rows} == {(1, None, 1), (2, "gift", 2)}
    assert {row["subject"] for row in rows} == {f"{orders}-value"}


def test_records_of_a_new_version_wait_for_an_approval(
    begin: Callable[..., Query], prepared: Decoder, bet: Callable[..., bytes], package: str
) -> None:
    """Without it a version that nobody has looked at changes a table, or takes the rows of the older ones with it."""
    sinks = (Named(sql="'silver.' || event.game", evolution="quarantine"),)
    query = begin(prepared)
    query = query.restarted(routes=(query.config.routes[0].model_copy(update={"sinks": sinks}),))
    first = bet(1, game="uno", amount=1)
    query.take(records([first]))
    third = [bet(3, game="uno", amount=3, note="", cards=["queen"]), bet(3, game="uno", amount=4)]
    query.take(records([first, *third], first=1))

    assert sorted(row["amount"] for row in query.rows("silver.uno")) == [1, 1, 4]
    assert set(query.rows("silver.uno")[0]) == {"game", "amount"}
    (told,) = list_quarantined(query.config, query.lake)
    assert (told.rows, told.versions) == (1, (f"{package}.Bet version 2",))
    assert {column.name for column in told.change.added} == {"note", "cards"}

    write_approval(query.store, told)
    query.take(records([bet(3, game="uno", amount=5, note="b")], first=4))
    have = {row["amount"]: row for row in query.rows("silver.uno")}
    assert (have[3]["note"], have[3]["cards"], have[5]["note"]) == ("", ["queen"], "b")
    assert len(query.rows("silver.uno")) == 5


def test_a_version_that_a_route_cannot_be_planned_with_is_learnt_by_the_others(
    begin: Callable[..., Query],
    prepared: Decoder,
    bet: Callable[..., bytes],
    package: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without it one registered version ends the stream of every table, at each start, also if nobody sends it."""
    first = bet(1, game="uno", amount=5)
    query = begin(prepared)
    noted = Route(
        name="noted", match=Where(sql="true"), select=("event.*", "'own' AS note"), sinks=(Fixed(name="silver.noted"),)
    )
    query = query.restarted(routes=(*query.config.routes, noted))
    query.write_run_id()
    query.take(records([first]))

    third = bet(3, game="uno", amount=6, note="theirs", cards=["queen"])
    for batch in range(2):
        report = query.take(records([third], first=1 + batch))
        assert (report.decoded, report.dead_letters) == (1, 0)

    assert [row["note"] for row in query.rows("silver.uno")].count("theirs") == 2
    assert {(row["amount"], row["note"]) for row in query.rows("silver.noted")} == {(5, "own"), (6, "own")}
    assert query.rows("silver.noted", "cards")[-1] == {"cards": ["queen"]}
    assert [report.routes["noted"]["frozen"] for report in query.reports] == [0, 1, 1]
    (told,) = [record.message for record in caplog.records if "cannot be planned" in record.message]
    assert f"note of {package}.Bet of {package}-value" in told
    query.rebuilt("silver.noted")
    assert len(query.rows("silver.noted")) == 3
