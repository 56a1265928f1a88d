"""Records of any version and message of a real registry become events of one type, or a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import message_factory
from google.protobuf.json_format import ParseDict

from router_schemas.model import RegisteredSchema, ResolvedSchema
from router_schemas.protobuf.descriptors import compile_schema, message_index_of, message_of
from router_schemas.protobuf.events import message_events
from router_schemas.protobuf.library import Messages
from router_schemas.registry_client import RegistryClient
from router_schemas.registry_options import RegistryAway, RegistryOptions
from router_schemas.resolver import SchemaResolver
from router_schemas.subject_names import CountedSubjects
from router_schemas.wire_format import pack_value
from tests.schemas.folder_memory import FolderMemory
from tests.schemas.raw import raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from router_demo.registry import EmbeddedRegistry
    from router_schemas.protobuf.events import Events

HEAD = 'syntax = "proto3"; package {0};'
V1 = HEAD + "message Bet { string game = 1; int32 amount = 2; message Card { string face = 1; } }"
V2 = V1.replace("int32", "int64")[:-1] + "optional string note = 3; }"
BAD = HEAD + "message Bet { string game = 1; string amount = 2; message Card { string face = 1; } }"
OTHER = HEAD + "message Login { string gamer = 1; string game = 2; }"
CLASH = HEAD + "message Logout { bytes game = 1; }"


@pytest.fixture
def client(schema_registry: EmbeddedRegistry) -> Iterator[RegistryClient]:
    with RegistryClient(RegistryOptions(url=(schema_registry.url,))) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a package that only this test uses."""
    return "t" + str(abs(hash(request.node.name)) % 10**9)


@pytest.fixture
def library(client: RegistryClient, tmp_path: Path, name: str) -> Messages:
    """Return the messages of the one topic that the tests write to."""
    of_topic = CountedSubjects(reads_topic=lambda topic: topic == name)
    return Messages(SchemaResolver(client, FolderMemory(tmp_path)), FolderMemory(tmp_path), counted=of_topic)


@pytest.fixture
def write(client: RegistryClient, name: str) -> Callable[..., tuple[int, bytes]]:
    """Register a text and return its id with a framed message."""

    def write(text: str, message: str, values: dict[str, Any], subject: str = "") -> tuple[int, bytes]:
        text = text.replace("{0}", name)
        number = client.register(subject or f"{name}-value", "PROTOBUF", text)
        files = compile_schema(ResolvedSchema(RegisteredSchema(number, "PROTOBUF", text)))
        made = ParseDict(values, message_factory.GetMessageClass(message_of(files, f"{name}.{message}"))())
        path = message_index_of(files, f"{name}.{message}")
        return number, pack_value(number, path, made.SerializeToString())

    return write


def read(library: Messages, *values: bytes | None) -> list[dict[str, Any]]:
    """Decode values as a stream does: what is wanted is fetched, and all are decoded anew."""
    records = raw(values)
    wanted: list[str] = []
    known: Events | None = None
    for _ in range(4):
        before, known = known, library.refresh_schemas(wanted)
        if wanted and known is before:
            break  # nothing was found: rows keep their errors
        assert known is not None
        found = message_events(records, known)
        wanted = found.column("_wanted").drop_null().unique().to_pylist()
        if not wanted:
            break
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def test_two_versions_of_a_message_are_one_event(library: Messages, write) -> None:
    """Without it the game's table has two columns, or none of the older records."""
    first, old = write(V1, "Bet", {"game": "uno", "amount": 5})
    second, new = write(V2, "Bet", {"game": "uno", "amount": 2**40, "note": ""})

    rows = read(library, old, new, old)

    assert [row["event"] for row in rows] == [
        {"game": "uno", "amount": 5, "note": None},
        {"game": "uno", "amount": 2**40, "note": ""},
        {"game": "uno", "amount": 5, "note": None},
    ]
    assert [row["schema_id"] for row in rows] == [first, second, first]
    assert [row["schema_version"] for row in rows] == [1, 2, 1]


def test_a_version_that_no_column_can_hold_is_refused_with_the_field(library: Messages, write) -> None:
    """Without it 7 is read as -4, and nobody knows."""
    _, good = write(V1, "Bet", {"game": "uno", "amount": 5})
    _, bad = write(BAD, "Bet", {"game": "uno", "amount": "five"})

    one, other = read(library, good, bad)

    assert one["event"] == {"game": "uno", "amount": 5}
    assert other["event"] is None
    assert "amount" in other["_error"]


def test_messages_of_a_topic_share_one_event(library: Messages, write, name: str) -> None:
    _, bet = write(V1, "Bet", {"game": "uno", "amount": 5})
    _, login = write(OTHER, "Login", {"gamer": "g-1", "game": "uno"}, f"{name}-login")
    _, card = write(V1, "Bet.Card", {"face": "queen"})
    _, clash = write(CLASH, "Logout", {"game": "dW5v"}, f"{name}-logout")

    rows = read(library, bet, login, card, clash)

    assert [row["message"] for row in rows] == [f"{name}.{m}" for m in ("Bet", "Login", "Bet.Card", "Logout")]
    blank = dict.fromkeys(rows[0]["event"])
    assert rows[1]["event"] == {**blank, "gamer": "g-1", "game": "uno"}
    assert rows[2]["event"] == {**blank, "face": "queen"}
    assert rows[3]["event"] is None
    assert "game" in rows[3]["_error"]


def test_what_is_no_message_has_a_reason_whatever_its_neighbours(
    library: Messages, client: RegistryClient, write
) -> None:
    number, good = write(V1, "Bet", {"game": "uno", "amount": 5})
    avro = client.register(f"avro-{number}", "AVRO", '{"type":"record","name":"r","fields":[]}')
    garbage = [None, b"", b"\x00", b"{}xxxxxx", pack_value(2**31 - 1, (0,), b""), pack_value(avro, (0,), b""),
               pack_value(number, (7,), b""), pack_value(number, (0,), b"\xff\xff")]  # fmt: skip

    alone = [read(library, value)[0]["_error"] for value in garbage]
    together = read(library, good, *garbage, good)

    assert all(alone)
    assert [row["_error"] for row in together[1:-1]] == alone
    assert together[0]["event"] == together[-1]["event"] == {"game": "uno", "amount": 5}


def test_new_versions_of_a_known_subject_are_known_before_their_first_record(library: Messages, write) -> None:
    """Without it the first batch of every new version is decoded twice."""
    _, old = write(V1, "Bet", {"game": "uno", "amount": 5})
    read(library, old)
    number, _ = write(V2, "Bet", {"game": "uno"})

    assert f"schema {number}" in library.refresh_schemas().written
    assert library.refresh_schemas() is library.refresh_schemas()


def test_a_restart_without_the_registry_reads_what_was_read_before(
    schema_registry: EmbeddedRegistry, write, tmp_path: Path
) -> None:
    """The first URL, the name of a registry, is one where nobody answers: alone, it is a registry that is down."""
    nobody = "http://127.0.0.1:9"
    _, old = write(V1, "Bet", {"game": "uno", "amount": 5})
    with RegistryClient(RegistryOptions(url=(nobody, schema_registry.url))) as client:
        before = read(Messages(SchemaResolver(client, FolderMemory(tmp_path)), FolderMemory(tmp_path)), old)

    with RegistryClient(RegistryOptions(url=(nobody,), attempts=1)) as client:
        restarted = Messages(SchemaResolver(client, FolderMemory(tmp_path)), FolderMemory(tmp_path))
        assert read(restarted, old) == before
        with pytest.raises(RegistryAway):
            read(restarted, pack_value(2**20, (0,), b""))
