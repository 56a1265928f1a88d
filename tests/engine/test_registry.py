"""A stream of Protobuf from a real registry: new versions come while it runs, and both engines make the same tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import message_factory
from google.protobuf.json_format import ParseDict

from router import Preparation
from router.config.models import Route
from router.engine.memory import Kept
from router.testing import check_decoder
from router_decoders import Protobuf
from router_rules import Schema
from router_schemas.client import Client
from router_schemas.connection import Registry
from router_schemas.frames import pack
from router_schemas.protobuf.compile import descriptors
from router_schemas.protobuf.messages import message_of
from router_schemas.records import Closed, Registered
from tests.engine.conftest import ENGINES
from tests.engine.parts import Fixed, Named, Where
from tests.engine.query import records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from router.delta.lake import Lake
    from router_demo.registry import EmbeddedRegistry
    from tests.engine.conftest import MakeQuery
    from tests.engine.query import Query

FIELDS = ("string game = 1;", "int64 amount = 2;", "optional string note = 3;", "repeated string cards = 4;")


def text(package: str, version: int) -> str:
    """Return the schema of a version: each has one field more."""
    return f'syntax = "proto3"; package {package}; message Bet {{ {" ".join(FIELDS[: version + 1])} }}'


@pytest.fixture
def package(request: pytest.FixtureRequest) -> str:
    """Return a package and subject that only this test uses."""
    return "e" + str(abs(hash(request.node.name)) % 10**9)


@pytest.fixture
def bet(schema_registry: EmbeddedRegistry, package: str) -> Iterator[Callable[..., bytes]]:
    """Register a version and return a framed bet of it."""
    with Client(Registry(url=(schema_registry.url,))) as client:

        def bet(version: int, **values: Any) -> bytes:
            source = text(package, version)
            number = client.register(f"{package}-value", "PROTOBUF", source)
            files = descriptors(Closed(Registered(number, "PROTOBUF", source)))
            message = message_factory.GetMessageClass(message_of(files, f"{package}.Bet"))()
            return pack(number, (0,), ParseDict(values, message).SerializeToString())

        yield bet


def no_sample(rows: int) -> DataFrame:
    raise AssertionError("the source was read")


@pytest.fixture
def prepared(schema_registry: EmbeddedRegistry, package: str, lake: Lake) -> Protobuf:
    decoder = Protobuf(registry=Registry(url=(schema_registry.url,)), subjects=(f"{package}-value",))
    return decoder.prepare(Preparation(Path(lake.root), False, no_sample, Kept(lake, "decoder")))


@pytest.fixture(params=ENGINES)
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

    def begin(decoder: Protobuf) -> Query:
        return make_query(
            tmp_path, engine=request.param, decode=decoder, bronze="bronze.events", routes=(games, schema)
        )

    return begin


def test_a_new_version_is_in_the_table_with_its_first_record(
    begin: Callable[..., Query], prepared: Protobuf, bet: Callable[..., bytes], package: str
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


def test_the_decoder_keeps_the_contract(spark: SparkSession, prepared: Protobuf, bet: Callable[..., bytes]) -> None:
    good = [bet(1, game="uno"), bet(2, game="uno", note="a")]

    check_decoder(spark, prepared.refresh(frozenset()), good)
