"""Protobuf values by GUIDs, from files and from wrappers, held to google's runtime; none of it needs Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from router import Preparation, StartError
from router_decoders import Protobuf
from router_schemas.model import VALUE_HEADER
from router_schemas.protobuf.library import Messages
from router_schemas.registry_client import RegistryClient
from router_schemas.registry_options import RegistryOptions
from router_schemas.resolver import SchemaResolver
from router_schemas.wire_format import guid_header, pack_value
from tests.light import drawn
from tests.plugins.protos import GAMES, Proto
from tests.schemas.faulty import GUIDS, FaultyRegistry
from tests.schemas.folder_memory import FolderMemory
from tests.schemas.raw import raw

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from router import Decoder

URL = "http://registry.test"
BY_NAME = {"payload": "head.body", "name": "head.name"}
BET = {"game": "uno", "amount": 5, "odds": []}
"""The event of a bet, as Arrow has it."""


class Sample:
    """Play the frame that a source is sampled into."""

    def __init__(self, *values: bytes | None) -> None:
        self.table = pa.Table.from_batches([raw(values)])

    def select(self, *names: str) -> Sample:
        assert set(names) == {"value", "headers"}
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 - PySpark's name
        return self.table


@pytest.fixture
def games(tmp_path: Path) -> Proto:
    return Proto.in_folder(tmp_path)


@pytest.fixture
def open_(tmp_path: Path) -> Callable[..., Decoder]:
    """Prepare a decoder as the start of a stream does; `sample` are the values that the source holds then."""

    def open_(*sample: bytes | None, **options: Any) -> Decoder:
        def sampled(rows: int) -> Any:
            assert sample, "the source was read"
            return Sample(*sample)

        decoder = Protobuf.model_validate(options)
        return decoder.prepare(Preparation(tmp_path, False, sampled, FolderMemory(tmp_path / "memory")))

    return open_


def read(decoder: Decoder, values: Sequence[bytes | None], headers: Any = None) -> list[dict[str, Any]]:
    """Decode as a stream does: what is wanted is fetched, and all are decoded anew."""
    wanted: list[str] = []
    for _ in range(4):
        before, decoder = decoder, decoder.refresh(frozenset(wanted))
        if wanted and decoder is before:
            break  # nothing was found: rows keep their errors
        made = decoder.decoding()
        assert made is not None
        found = made.function(raw(values, headers), made.argument)
        assert found.schema.names == made.adds.names
        wanted = found.column("_wanted").drop_null().unique().to_pylist()
        if not wanted:
            break
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "exactly one of registry, descriptor_file, proto_file; none"),
        ({"proto_file": "a.proto", "descriptor_file": "a.desc", "message": "a.B"}, "and proto_file are given"),
        ({"proto_file": "a.proto"}, "say which message"),
        ({"proto_file": "a.proto", "message": "a B"}, "pattern"),
        ({"proto_file": "a.proto", "message": "a.B", "subjects": ["s"]}, "leave them out with proto_file"),
        ({"registry": URL, "message": "a.B"}, "leave out message"),
        ({"registry": URL, "wire_format": "none"}, "leave out message and wire_format"),
        ({"registry": URL, "wrapper": {"name": "a"}}, "payload"),
        ({"registry": URL, "wrapper": {"payload": "a..b"}}, "pattern"),
        ({"registry": URL, "wrapper": {"payload": "a", "name": "b", "schema_id": "c"}}, "name or schema_id"),
        ({"registry": URL, "wrapper": {"payload": "a", "name": "b", "subjects": ["c"]}}, "subjects go with"),
        ({"registry": URL, "wrapper": {"payload": "a", "schema_id": "b", "messages": ["c"]}}, "messages go with"),
        ({"proto_file": "a", "message": "a.B", "wrapper": {"payload": "a", "schema_id": "b"}}, "needs the registry"),
    ],
    ids=str,
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        Protobuf.model_validate(options)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"proto_file": "gone.proto"}, "configuration's folder"),
        ({"proto_file": "bad.proto"}, "protoc refuses"),
        ({"descriptor_file": "bad.proto"}, "protoc"),
        ({"descriptor_file": "empty.desc"}, "FileDescriptorSet"),
        ({"proto_file": "games.proto", "message": "games.Gone"}, "games.Gone"),
        ({"proto_file": "games.proto", "message": "games.Empty"}, "no fields"),
    ],
    ids=str,
)
def test_a_file_that_is_of_no_use_stops_the_start(tmp_path: Path, open_, options: dict[str, str], word: str) -> None:
    """Without it every record would become a dead letter."""
    (tmp_path / "bad.proto").write_text("message {")
    (tmp_path / "empty.desc").write_bytes(b"")
    Proto.in_folder(tmp_path, GAMES + "message Empty {}")

    with pytest.raises(StartError, match=word):
        open_(**{"message": "games.Bet", **options})


@pytest.mark.parametrize("source", [{"proto_file": "games.proto"}, {"descriptor_file": "games.desc"}], ids=str)
def test_values_in_no_wire_format_are_the_message(games: Proto, open_, source: dict[str, str]) -> None:
    good = games.bytes("Bet", game="uno", amount=5)

    rows = read(open_(**source, message="games.Bet", wire_format="none"), [good, None, b"\xff\xff", b"", good])

    assert [row["event"] for row in rows] == [BET, None, None, {"game": "", "amount": 0, "odds": []}, BET]
    assert [row["_error"] for row in rows[1:3]] == [
        "value is null",
        "protobuf: not a games.Bet: wire format was corrupt",
    ]
    assert rows[0]["message"] == "games.Bet"
    assert (rows[0]["schema_id"], rows[0]["subject"]) == (None, None)


def test_with_a_file_the_id_of_a_prefix_does_not_count(games: Proto, open_) -> None:
    """Nothing is to be asked: without a registry such a topic could not be read."""
    good = games.bytes("Bet", game="uno", amount=5)
    headers = [None, None, {VALUE_HEADER: guid_header(UUID(int=3), (0,))}, None]

    rows = read(open_(proto_file="games.proto", message="games.Bet"),
                [pack_value(7, (0,), good), pack_value(8, (0,), good), good, b"x"], headers)  # fmt: skip

    assert [row["event"] for row in rows] == [BET, BET, BET, None]
    assert [row["schema_id"] for row in rows] == [7, 8, None, None]
    assert "5 bytes before a payload" in rows[3]["_error"]


def test_a_record_of_another_message_of_the_file_is_not_read_as_this_one(games: Proto, open_) -> None:
    """Both begin with a string: a login would become a bet, and nobody would know."""
    login, card = games.bytes("Login", gamer="g-1"), games.bytes("Bet.Card", face="queen")

    rows = read(open_(proto_file="games.proto", message="games.Bet"), [pack_value(7, (1,), login)])
    cards = read(
        open_(proto_file="games.proto", message="games.Bet.Card"), [pack_value(7, (0, n), card) for n in (0, 1, 2)]
    )

    assert rows[0]["_error"] == "message 1 is not games.Bet, the only message that is read here"
    # the entry of a map is a message too, which some clients count
    assert [row["event"] for row in cards] == [{"face": "queen"}, {"face": "queen"}, None]


def test_a_guid_in_a_header_is_resolved_and_its_id_told(faulty: FaultyRegistry, open_, games: Proto) -> None:
    number = faulty.book.add("games-value", games.path.read_text())
    header = {VALUE_HEADER: guid_header(faulty.book.guid(number), (1,))}
    good = games.bytes("Login", gamer="g-1")

    rows = read(
        open_(registry=faulty.url, subjects=["games-value"]), [good, pack_value(number, (1,), good)], [header, None]
    )

    assert [row["event"]["gamer"] for row in rows] == ["g-1", "g-1"]
    assert [(row["schema_id"], row["schema_version"], row["subject"]) for row in rows] == [
        (number, 1, "games-value")
    ] * 2


def test_a_guid_that_the_registry_does_not_know_is_told_readably(faulty: FaultyRegistry, open_, games: Proto) -> None:
    faulty.book.add("games-value", games.path.read_text())
    faulty.lacks.add(GUIDS)
    guid = UUID("f3a1b8de-0f2a-4b8e-9d0b-7d5d7a1d7b11")

    (row,) = read(
        open_(registry=faulty.url, subjects=["games-value"]), [b""], [{VALUE_HEADER: guid_header(guid, (0,))}]
    )

    assert row["_error"].startswith(f"the registry does not give schema {guid}: it does not know GUIDs")


def test_a_restart_without_the_registry_reads_guids_seen_before(faulty: FaultyRegistry, open_, games: Proto) -> None:
    number = faulty.book.add("games-value", games.path.read_text())
    header = [{VALUE_HEADER: guid_header(faulty.book.guid(number), (0,))}]
    options = {"registry": {"url": faulty.url, "attempts": 1}, "subjects": ["games-value"]}
    good = [games.bytes("Bet", game="uno", amount=5)]
    before = read(open_(**options), good, header)
    faulty.stop()

    assert read(open_(**options), good, header) == before
    with pytest.raises(ConnectionError, match="waiting for the schema registry"):
        read(open_(**options), good, [{VALUE_HEADER: guid_header(UUID(int=7), (0,))}])


def test_a_memory_of_another_form_is_left_aside(faulty: FaultyRegistry, open_, games: Proto, tmp_path: Path) -> None:
    """A newer router must start on the checkpoint of an older one."""
    faulty.book.add("games-value", games.path.read_text())
    FolderMemory(tmp_path / "memory").write("protobuf-places.json", b'["1/0", "schema 1"]')

    rows = read(open_(registry=faulty.url), [pack_value(1, (0,), games.bytes("Bet", game="uno", amount=5))])

    assert [row["event"] for row in rows] == [BET]


def test_an_id_that_the_registry_lacks_changes_nothing(faulty: FaultyRegistry, games: Proto, tmp_path: Path) -> None:
    """Changed, every piece of garbage would be decoded twice, and its batch planned anew."""
    faulty.book.add("games-value", games.path.read_text())
    memory, now = FolderMemory(tmp_path / "memory"), [0.0]
    schemas = SchemaResolver(
        RegistryClient(RegistryOptions(url=(faulty.url,))), memory, clock=lambda: now[0], sleep=lambda seconds: None
    )
    library = Messages(schemas, memory, ("games-value",), clock=lambda: now[0])
    known = library.refresh_schemas()

    assert library.refresh_schemas(["schema 77"]) is known
    now[0] += 1000
    assert library.refresh_schemas(["schema 77", "schema 78"]) is known
    assert library.refresh_schemas() is known


def test_what_is_wanted_is_called_so_that_people_understand_it(faulty: FaultyRegistry, open_, games: Proto) -> None:
    """It stands in the log when a batch is decoded again."""
    faulty.book.add("games-value", games.path.read_text())
    decoder = open_(registry=faulty.url, subjects=["games-value"]).refresh(frozenset())
    made, guid = decoder.decoding(), UUID(int=7)
    assert made is not None
    values = [pack_value(2**31 - 1, (0,), b""), pack_value(9, (0, 1), b""), b""]

    found = made.function(raw(values, [None, None, {VALUE_HEADER: guid_header(guid, (0,))}]), made.argument)

    assert found.column("_wanted").to_pylist() == ["schema 2147483647", "message 0.1 of schema 9", f"schema {guid}"]


@pytest.mark.parametrize("wrapper", [BY_NAME, {"payload": "any"}], ids=["bytes", "any"])
@pytest.mark.parametrize("wire_format", ["none", "confluent"])
def test_the_event_is_the_message_inside(games: Proto, open_, wrapper: dict[str, str], wire_format: str) -> None:
    bet, login = games.message("Bet", game="uno", amount=5), games.message("Login", gamer="g-1", game="uno")
    envelopes = [games.envelope("games.Bet", bet), games.envelope("Login", login)]
    values = envelopes if wire_format == "none" else [pack_value(4, (3,), value) for value in envelopes]
    decoder = open_(
        *values, proto_file="games.proto", message="games.Envelope", wire_format=wire_format, wrapper=wrapper
    )

    rows = read(decoder, values)

    assert [row["event"] for row in rows] == [
        {**BET, "gamer": None},
        {"gamer": "g-1", "game": "uno", "amount": None, "odds": None},
    ]
    assert [row["message"] for row in rows] == ["games.Bet", "games.Login"]
    assert {row["_error"] for row in rows} == {None}


def test_a_name_that_no_message_has_is_a_dead_letter(games: Proto, open_) -> None:
    bet = games.message("Bet", game="uno", amount=5)
    names = ["games.Bet", ".games.Bet", "type.googleapis.com/games.Bet", "Bet", "bet", "games.Gone", "", "a" * 500]
    values = [games.envelope(name, bet) for name in names]
    options = {"proto_file": "games.proto", "message": "games.Envelope", "wire_format": "none", "wrapper": BY_NAME}

    rows = read(
        open_(values[0], **options), [*values, games.bytes("Envelope"), games.bytes("Envelope", head={"name": "Bet"})]
    )

    assert [row["event"] for row in rows[:4]] == [BET] * 4
    assert all(row["event"] is None and row["_wanted"] is None for row in rows[4:])
    assert rows[5]["_error"] == "wrapper: the file has no message 'games.Gone'"
    assert rows[6]["_error"] == "wrapper: the payload's message is not named"
    assert len(rows[7]["_error"]) < 200
    assert rows[8]["_error"] == rows[9]["_error"] == "wrapper: there is no payload"


def test_messages_inside_that_clash_are_refused_with_the_field(games: Proto, open_) -> None:
    """Two types cannot be one column; the message that came first keeps it."""
    values = [
        games.envelope("Bet", games.message("Bet", game="uno")),
        games.envelope("Clash", games.message("Clash", game="dW5v")),
    ]
    decoder = open_(proto_file="games.proto", message="games.Envelope", wire_format="none",
                    wrapper={**BY_NAME, "messages": ["games.Bet"]})  # fmt: skip

    one, other = read(decoder, values)

    assert one["event"] == {"game": "uno", "amount": 0, "odds": []}
    assert (other["event"], "game" in other["_error"], other["message"]) == (None, True, "games.Clash")


def test_a_restart_knows_what_payloads_held(games: Proto, open_) -> None:
    """Without it the first batch after every start is decoded twice, and an empty topic cannot be started on."""
    options = {"proto_file": "games.proto", "message": "games.Envelope", "wire_format": "none", "wrapper": BY_NAME}
    value = games.envelope("Bet", games.message("Bet", game="uno"))
    read(open_(value, **options), [value])

    again = open_(**options).refresh(frozenset())

    assert again.refresh(frozenset()) is again
    assert list(again.known_schemas.inner.written) == ["message games.Bet"]


def test_an_unknown_wrapped_message_says_what_to_configure(games: Proto, open_) -> None:
    decoder = open_(b"garbage", proto_file="games.proto", message="games.Envelope", wire_format="none", wrapper=BY_NAME)

    with pytest.raises(StartError, match="name the wrapper's `messages`"):
        decoder.refresh(frozenset())


@pytest.mark.parametrize(
    ("wrapper", "word"),
    [
        ({"payload": "body", "name": "head.name"}, r"wrapper\.payload: no outer message .* the field body"),
        ({"payload": "head.body", "name": "head.title"}, r"wrapper\.name: .* the field head\.title"),
        ({"payload": "tags", "name": "head.name"}, r"wrapper\.payload: tags must be bytes or a google.protobuf.Any"),
        ({"payload": "head.body", "name": "head.schema_id"}, r"wrapper\.name: head\.schema_id must be a string"),
        ({"payload": "any", "name": "head.name"}, "leave out `name`"),
        ({"payload": "head.body"}, "give `name`"),
    ],
    ids=str,
)
def test_a_wrapper_that_does_not_fit_its_message_stops_the_start(games: Proto, open_, wrapper, word: str) -> None:
    value = games.envelope("Bet", games.message("Bet", game="uno"))
    decoder = open_(value, proto_file="games.proto", message="games.Envelope", wire_format="none", wrapper=wrapper)

    with pytest.raises(StartError, match=word):
        decoder.refresh(frozenset())


def test_wrapped_messages_of_a_registry_are_those_of_the_outer_ones_version(
    faulty: FaultyRegistry, open_, tmp_path: Path
) -> None:
    """Both versions of the message inside are one event, and the outer record says which of them it has."""
    old = Proto.in_folder(tmp_path)
    new = Proto.in_folder(
        tmp_path, GAMES.replace("int64 amount = 2;", "int64 amount = 2; optional string note = 9;"), "new.proto"
    )
    first = faulty.book.add("games-value", old.path.read_text())
    values = [pack_value(first, (3,), old.envelope("Bet", old.message("Bet", game="uno")))]
    decoder = open_(*values, registry=faulty.url, wrapper=BY_NAME)
    assert [row["schema_version"] for row in read(decoder, values)] == [1]

    second = faulty.book.add("games-value", new.path.read_text())
    values.append(pack_value(second, (3,), new.envelope("games.Bet", new.message("Bet", game="uno", note="a"))))
    rows = read(open_(registry=faulty.url, wrapper=BY_NAME), [*values, pack_value(99, (3,), b"")])

    assert [row["event"] and row["event"]["note"] for row in rows] == [None, "a", None]
    assert [(row["schema_id"], row["schema_version"], row["message"]) for row in rows] == [
        (first, 1, "games.Bet"), (second, 2, "games.Bet"), (99, None, None)]  # fmt: skip
    assert "schema 99" in rows[2]["_error"]


def test_a_payload_may_name_a_schema_of_its_own(faulty: FaultyRegistry, open_, games: Proto) -> None:
    outer = faulty.book.add("games-value", games.path.read_text())
    inner = faulty.book.add("uno-value", 'syntax = "proto3"; package uno; message Draw { string game = 1; }')
    wrapper = {"payload": "head.body", "schema_id": "head.schema_id", "subjects": ["uno-value"]}
    draw = games.message("Login", gamer="uno")  # the same bytes
    numbers = [inner, 77, -1, outer]
    values = [pack_value(outer, (3,), games.envelope("", draw, number)) for number in numbers]

    rows = read(open_(registry=faulty.url, subjects=["games-value"], wrapper=wrapper), values)

    assert rows[0]["event"]["game"] == "uno"
    assert (rows[0]["schema_id"], rows[0]["subject"], rows[0]["message"]) == (inner, "uno-value", "uno.Draw")
    assert rows[1]["_error"].startswith("the registry does not give schema 77")
    assert "not a number from 0" in rows[2]["_error"]
    assert rows[3]["message"] == "games.Bet"


def test_a_message_of_other_files_may_be_in_an_any(games: Proto, open_) -> None:
    """Imports count as well, those that come with protobuf too."""
    text = GAMES.replace('import "google', 'import "google/protobuf/wrappers.proto"; import "google')
    games = Proto.in_folder(games.path.parent, text)
    value = games.envelope("", StringValue(value="hello"))

    (row,) = read(
        open_(
            value, proto_file="games.proto", message="games.Envelope", wire_format="none", wrapper={"payload": "any"}
        ),
        [value],
    )

    assert (row["event"], row["message"]) == ({"value": "hello"}, "google.protobuf.StringValue")


VALUES = st.none() | st.binary(max_size=30)


@settings(max_examples=drawn(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 7), st.binary(max_size=9), st.integers(0, 60)), max_size=12))
def test_a_wrapped_row_has_one_verdict_whatever_is_around_it(games: Proto, open_, drawn) -> None:
    """A replay in other batches must say the same, of damaged bytes too, and never raise."""
    names = ["Bet", "games.Login", "Clash", "gone", "", "\x00", "Envelope", "Card"]
    wrapper = {**BY_NAME, "messages": ["games.Bet", "games.Login"]}
    options = {"proto_file": "games.proto", "message": "games.Envelope", "wire_format": "none", "wrapper": wrapper}
    decoder = open_(**options).refresh(frozenset())
    values: list[bytes | None] = []
    for kind, body, at in drawn:
        outer = games.message("Envelope")
        outer.head.name, outer.head.body = names[kind], body
        whole = outer.SerializeToString()
        values.append(whole[:at] + whole[at + 1 :] if kind % 2 else whole)
    made = decoder.decoding()
    assert made is not None

    def decoded(some: list[bytes | None]) -> list[str]:
        return [json.dumps(row, default=repr) for row in made.function(raw(some), made.argument).to_pylist()]

    together = decoded([*values, None])
    assert together[:-1] == [decoded([value])[0] for value in values]
    assert decoded([None, *values[::-1]])[1:] == together[:-1][::-1]
