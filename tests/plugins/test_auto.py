"""Topics with records of several formats: each is decoded by what the registry says of its schema."""

from __future__ import annotations

import json
from io import BytesIO
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest

from router import StartError
from router.testing import check_decoder
from router_decoders import Auto, JsonSchema, Protobuf
from router_schemas.model import VALUE_HEADER
from router_schemas.wire_format import guid_header, pack_value
from tests.plugins.protos import Proto
from tests.schemas.raw import raw

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.plugins.conftest import Open, Stream
    from tests.schemas.faulty import FaultyRegistry

AVRO: dict[str, Any] = {
    "type": "record",
    "namespace": "games",
    "name": "Win",
    "fields": [
        {"name": "game", "type": "string"},
        {"name": "amount", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}
JSON: dict[str, Any] = {
    "title": "Login",
    "properties": {
        "game": {"type": "string"},
        "amount": {"type": "integer"},
        "big win": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}
CLASH = {"title": "Logout", "properties": {"game": {"type": "integer"}, "who": {"type": "string"}}}


class Mixed:
    """A topic with a schema of each format."""

    def __init__(self, registry: FaultyRegistry, folder: Path) -> None:
        self.registry, self.proto = registry, Proto.in_folder(folder)

    def avro(self, subject: str = "wins", **values: Any) -> bytes:
        number = self.registry.book.add(subject, json.dumps(AVRO), "AVRO")
        written = BytesIO()
        fastavro.schemaless_writer(written, fastavro.parse_schema(AVRO), {"tags": ["a"], **values})
        return pack_value(number, None, written.getvalue())

    def protobuf(self, message: str = "Bet", path: tuple[int, ...] = (0,), **values: Any) -> bytes:
        number = self.registry.book.add("bets", self.proto.path.read_text(), "PROTOBUF")
        return pack_value(number, path, self.proto.bytes(message, **values))

    def json(self, schema: Any = JSON, subject: str = "logins", **values: Any) -> bytes:
        number = self.registry.book.add(subject, json.dumps(schema), "JSON")
        return pack_value(number, None, json.dumps(values).encode())

    def decoder(self, *subjects: str) -> Auto:
        return Auto.model_validate({"registry": self.registry.url, "subjects": subjects or ("wins",)})


@pytest.fixture
def topic(faulty: FaultyRegistry, tmp_path: Path) -> Mixed:
    return Mixed(faulty, tmp_path)


def test_records_of_all_formats_are_one_event(topic: Mixed, opened: Open, stream: Stream) -> None:
    """Without it a topic that changes its format needs a second stream, and a second table."""
    win, login = topic.avro(game="uno", amount=2**40), topic.json(game="uno", amount=7, **{"big win": True})
    bet, other = topic.protobuf(game="uno", amount=5), topic.protobuf("Login", (1,), gamer="g-1")
    guid = topic.registry.book.guid(int.from_bytes(login[1:5], "big"))
    headers = [*[None] * 4, {VALUE_HEADER: guid_header(guid)}]
    begun = opened(topic.decoder())

    rows = stream(begun, [win, login, bet, other, login[5:], None, b"\0", pack_value(99, None, b"{}")], headers)

    assert [row["message"] for row in rows[:5]] == ["games.Win", "Login", "games.Bet", "games.Login", "Login"]
    events = [{name: it for name, it in (row["event"] or {}).items() if it not in (None, [])} for row in rows]
    found = {"game": "uno", "amount": 7, "big_win": True}
    assert events[:2] == [{"game": "uno", "amount": 2**40, "tags": ["a"]}, found]
    assert events[2]["amount"] == 5
    assert events[3]["gamer"] == "g-1"
    assert events[4] == found
    assert [row["_error"] for row in rows[:5]] == [None] * 5
    assert [row["_error"] for row in rows[5:7]] == [
        "value is null",
        "wire format: the value is shorter than the 5 bytes before a payload",
    ]
    assert rows[7]["_error"].startswith("the registry does not give schema 99")
    assert [row["schema_id"] for row in rows[6:]] == [None, 99]


def test_a_field_has_the_type_of_the_format_that_came_first(topic: Mixed, opened: Open, stream: Stream) -> None:
    """Without it one column has texts and numbers, or the older records become dead letters."""
    win = topic.avro(game="uno", amount=1)
    begun = opened(topic.decoder()).refresh(frozenset())
    clash, login = topic.json(CLASH, "logouts", game=5), topic.json(game="uno", amount=6)
    topic.json(CLASH, "logins", game=5)

    rows = stream(begun, [clash, win, login])

    assert [row["event"] is not None for row in rows] == [False, True, True]
    for word in ("'game'", "integer", "games.Win of wins version 1", "logins version 2"):
        assert word in rows[0]["_error"]
    again = opened(topic.decoder())
    assert [row["event"] for row in stream(again, [clash, win, login])] == [row["event"] for row in rows]


def test_messages_that_clash_with_another_format_are_refused(topic: Mixed, opened: Open, stream: Stream) -> None:
    """Protobuf and Avro keep to the types that are there, too."""
    login = topic.json({"title": "Login", "properties": {"game": {"type": "integer"}}}, game=5)
    begun = opened(topic.decoder("logins")).refresh(frozenset())
    win, bet = topic.avro(game="uno", amount=1), topic.protobuf(game="uno", amount=5)

    rows = stream(begun, [login, win, bet])

    assert rows[0]["event"]["game"] == 5
    for row, name in ((rows[1], "games.Win of wins version 1"), (rows[2], "games.Bet of bets version 1")):
        assert row["event"] is None
        assert all(word in row["_error"] for word in (name, "field game", "string", "bigint in", "logins version 1"))


@pytest.mark.usefixtures("spark")  # JSON is read in the time zone of the session
def test_one_format_alone_is_decoded_as_by_its_decoder(topic: Mixed, opened: Open) -> None:
    """Whoever writes auto for one format must not pay for the others; another one is noticed, whatever its bytes."""
    bet, login = topic.protobuf(game="uno", amount=5), topic.json(game="uno")
    begun = opened(topic.decoder("bets")).refresh(frozenset())
    alone = opened(Protobuf.model_validate({"registry": topic.registry.url, "subjects": ["bets"]}))
    made, expected = begun.decoding(), alone.refresh(frozenset()).decoding()
    assert made is not None
    assert expected is not None
    values = raw([bet, bet[:-1], None, b"\0\0", login])

    found = made.function(values, made.argument)

    assert found.slice(0, 4).equals(expected.function(values, expected.argument).slice(0, 4))
    assert found.column("_wanted").to_pylist()[4] == f"schema {int.from_bytes(login[1:5], 'big')}"
    assert found.column("_error").null_count == 1
    both = begun.refresh(frozenset(found.column("_wanted").drop_null().to_pylist()))
    of_both = both.decoding()
    rows = of_both.function(values, of_both.argument).to_pylist()
    assert [row["schema_id"] for row in rows] == [*found.column("schema_id").to_pylist()[:4], rows[4]["schema_id"]]
    assert [row["event"] and row["event"]["game"] for row in rows] == ["uno", None, None, None, "uno"]
    assert both.refresh(frozenset()) is both


def test_what_a_sample_holds_is_learnt_at_the_first_start(topic: Mixed, opened: Open) -> None:
    """Without subjects nothing else says which formats there are."""
    values = [topic.avro(game="u", amount=1), topic.json(game="u"), topic.protobuf("Login", (1,), gamer="g")]
    decoder = opened(Auto.model_validate({"registry": topic.registry.url, "subjects": ["nothing"]}))
    with pytest.raises(StartError, match="no schema is known"):
        decoder.refresh(frozenset())
    decoder._sample = pa.Table.from_batches([raw(values)]).to_batches()  # type: ignore[attr-defined]

    known = decoder.refresh(frozenset()).known_schemas  # type: ignore[attr-defined]

    assert sorted(known.made) == ["AVRO", "JSON", "PROTOBUF"]
    assert {one.message for one in known.made["PROTOBUF"].written.values() if one.message} >= {"games.Login"}


def test_a_subject_may_change_its_format(topic: Mixed, opened: Open) -> None:
    """A new version is known before its first record, whatever it is written in."""
    topic.avro(game="u", amount=1)
    begun = opened(topic.decoder("wins")).refresh(frozenset())
    assert [*begun.known_schemas.made] == ["AVRO"]  # type: ignore[attr-defined]
    topic.json(JSON, "wins", game="u")

    assert [*begun.refresh(frozenset()).known_schemas.made] == ["AVRO", "JSON"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", [("wins",), ("odd", "wins"), ("nothing", "odd", "wins")], ids=len)
def test_a_schema_that_no_decoder_can_use_has_its_reason(
    topic: Mixed, opened: Open, stream: Stream, first: tuple[str, ...]
) -> None:
    """The only one of a format may be the one that is of no use, and the format that came first may be this one."""
    odd = topic.registry.book.add("odd", '{"type":"string"}', "JSON")
    win = topic.avro(game="uno", amount=1)
    begun = opened(topic.decoder(*first)).refresh(frozenset())

    rows = stream(begun, [win, pack_value(odd, None, b"{}"), pack_value(99, None, b"{}")])

    assert rows[0]["event"] == {"game": "uno", "amount": 1, "tags": ["a"]}
    assert "an event is an object" in rows[1]["_error"]
    assert "schema 99" in rows[2]["_error"]


def test_the_decoder_keeps_the_contract(spark: SparkSession, topic: Mixed, opened: Open) -> None:
    """Every kind of garbage ends as one record with a reason."""
    good = [topic.avro(game="uno", amount=1), topic.json(game="uno"), topic.protobuf(game="uno", amount=5)]

    check_decoder(spark, opened(topic.decoder("wins", "logins", "bets")).refresh(frozenset()), good)


def test_what_decodes_each_format_has_the_options_of_all() -> None:
    """A header that is left behind would make dead letters of all records of a format."""
    auto = Auto.model_validate({"registry": "http://r.test", "header": "mine"})

    assert auto._decoder_of("JSON", None).header == "mine"
    assert isinstance(auto._decoder_of("JSON", None), JsonSchema)
