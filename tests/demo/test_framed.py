"""The simulator's Protobuf and Avro: the events that JSON has, under schemas that the registry gets in time."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from click.testing import CliRunner
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from router import StartError
from router_demo import avro_values, protobuf_values
from router_demo.avro_values import AVRO_GARBAGE, AvroValues
from router_demo.games import game_names
from router_demo.protobuf_values import PROTOBUF_GARBAGE, ProtobufValues
from router_demo.records import chunks, opened, records
from router_demo.simulate import simulate as command
from router_demo.simulator import simulate
from router_demo.traffic import NO_SCHEMA, Traffic, stage_of
from router_schemas.registry_client import RegistryClient
from router_schemas.registry_options import RegistryOptions
from router_schemas.wire_format import FRAMED, parse_values, payload_prefix

if TYPE_CHECKING:
    from collections.abc import Callable

    from router_demo.kafka import EmbeddedKafka
    from router_demo.registry import EmbeddedRegistry
    from router_demo.traffic import Values

    Write = Callable[[Traffic], Values]

ROUTES = Path(__file__).parents[2] / "routes"
START = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
TRAFFIC = Traffic(events=3000, games=9, versions=3, seed=4, start=START)
BEFORE_1970 = replace(TRAFFIC, start=EPOCH - timedelta(seconds=1), rate=7)
FIRST_ID = 11


class Registered:
    """Play a subject: ids from 11 on."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def register(self, kind: str, text: str) -> int:
        self.texts.append(text)
        return FIRST_ID - 1 + len(self.texts)


class Protobuf:
    """Read values with google's own runtime."""

    write, kinds, path = ProtobufValues, PROTOBUF_GARBAGE, (0,)
    text = staticmethod(protobuf_values.schema_text)

    def __init__(self) -> None:
        self.messages = [protobuf_values.message_class(version) for version in range(4)]

    def read(self, payload: bytes, version: int) -> dict[str, Any]:
        message = self.messages[version].FromString(payload)
        shown: dict[str, Any] = MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        details = message.WhichOneof("details")
        event = shown | (shown.pop(details) if details else {})
        if "melds" in event:
            event["melds"] = [meld["cards"] for meld in event["melds"]]
        return {name: int(it) if name == "col_foo_1" else it for name, it in event.items()} | {
            "ts": EPOCH + timedelta(milliseconds=message.ts.ToMilliseconds())
        }


class Avro:
    """Read values with fastavro."""

    write, kinds, path = AvroValues, AVRO_GARBAGE, None
    text = staticmethod(avro_values.schema_text)

    def read(self, payload: bytes, version: int) -> dict[str, Any]:
        rest = io.BytesIO(payload)
        read: Any = fastavro.schemaless_reader(rest, avro_values.event_schema(version), None)
        if rest.read():
            raise ValueError("there is more")
        event = {name: it for name, it in read.items() if it is not None}
        own = next((event.pop(game) for game in game_names(7) if game in event), {})
        return event | own


@pytest.fixture(params=[Protobuf, Avro])
def form(request: pytest.FixtureRequest) -> Protobuf | Avro:
    made: Protobuf | Avro = request.param()
    return made


@pytest.fixture
def subject() -> Registered:
    return Registered()


@pytest.fixture
def write(form: Protobuf | Avro, subject: Registered) -> Write:
    return partial(form.write, subject)


def version_of(headers: list[tuple[str, Any]]) -> int:
    return int(dict(headers)["schema-version"])


@pytest.mark.parametrize(
    "traffic", [TRAFFIC, replace(TRAFFIC, versions=0), BEFORE_1970], ids=["versions", "no version", "before 1970"]
)
def test_the_events_are_those_of_json(form: Protobuf | Avro, traffic: Traffic, write: Write) -> None:
    for (key, text, headers), (same_key, value, same_headers) in zip(
        records(traffic), records(traffic, write), strict=True
    ):
        assert (key, headers) == (same_key, same_headers)
        version = version_of(headers)
        frame = payload_prefix(FIRST_ID + max(0, version - 1), form.path)
        event = json.loads(text or b"")
        event["ts"] = datetime.fromisoformat(event["ts"].replace("Z", "+00:00"))
        assert value is not None
        assert value.startswith(frame)
        assert form.read(value[len(frame) :], version) == event


def test_messages_are_as_googles_runtime_writes_them(subject: Registered) -> None:
    """Without it every row is written again before it can be decoded natively: a third of the speed."""
    message = protobuf_values.message_class(3)
    for _, value, _ in records(BEFORE_1970, partial(ProtobufValues, subject)):
        payload = (value or b"")[6:]
        assert message.FromString(payload).SerializeToString() == payload


def test_the_same_seed_gives_the_same_bytes(form: Protobuf | Avro) -> None:
    traffic = replace(TRAFFIC, bad=0.1)
    one, other = (list(records(traffic, partial(form.write, Registered()))) for _ in range(2))
    assert one == other


def test_a_version_adds_a_column_to_the_protobuf_schema_and_keeps_what_was_there() -> None:
    lines = [protobuf_values.schema_text(version).splitlines() for version in range(4)]
    added = [[line for line in new if line not in old] for old, new in pairwise(lines)]
    assert added == [
        ["  optional int64 col_foo_1 = 100;"],
        ["  optional string col_foo_2 = 101;"],
        ["  optional double col_foo_3 = 102;"],
    ]
    assert all(set(old) <= set(new) for old, new in pairwise(lines))


def test_a_version_adds_a_column_to_the_avro_schema_and_keeps_what_was_there() -> None:
    fields = [json.loads(avro_values.schema_text(version))["fields"] for version in range(4)]
    assert all(new[:-1] == old for old, new in pairwise(fields))
    assert [field["type"] for field in fields[-1][-3:]] == [["null", "long"], ["null", "string"], ["null", "double"]]


@pytest.mark.parametrize(("file", "version"), [("games_v1.proto", 1), ("games_v2.proto", 2), ("games.avsc", 1)])
def test_the_schemas_of_the_route_tests_are_those_of_the_games(file: str, version: int) -> None:
    """A test against another schema than producers use proves nothing about theirs."""
    text = (ROUTES / file).read_text()
    if file.endswith(".proto"):
        assert text == protobuf_values.schema_text(version)
    else:
        assert json.loads(text) == avro_values.event_schema(version)


def test_a_version_is_registered_with_its_first_chunk(form: Protobuf | Avro, subject: Registered, write: Write) -> None:
    """Without it a router meets an id that the registry does not have, or there is nothing new while it runs."""
    known = [(version_of(chunk.records[0][2]), len(subject.texts)) for chunk in chunks(TRAFFIC, write)]
    assert known == [(1, 1), (2, 2), (3, 3)]
    assert subject.texts == [form.text(version) for version in (1, 2, 3)]


def test_garbage_is_counted_by_kind_and_every_kind_is_what_it_says(form: Protobuf | Avro, write: Write) -> None:
    traffic = replace(TRAFFIC, events=6000, bad=0.2)
    made = list(chunks(traffic, write))
    sent = sum((chunk.garbage for chunk in made), Counter[str]())
    expected: Counter[str] = Counter()
    for kind, count in sent.items():
        expected[stage_of(kind)] += count

    values = [(value, version_of(headers)) for chunk in made for _, value, headers in chunk.records]
    frames = parse_values(pa.array([value for value, _ in values], pa.binary()), indexed=form.path is not None)
    stages: Counter[str] = Counter()
    for (value, version), status, number, start in zip(values, frames.status, frames.ids, frames.starts, strict=True):
        good = status == FRAMED and number != NO_SCHEMA
        stages[refused_at(form, value[start:], version) if good and value is not None else "decode"] += 1

    assert sent.keys() == set(form.kinds)
    assert sum(value is None for value, _ in values) == sent["null"]
    assert sum(value == b"" for value, _ in values) == sent["empty"]
    assert stages == expected | Counter({"nowhere": traffic.events - sent.total()})


def refused_at(form: Protobuf | Avro, payload: bytes, version: int) -> str:
    """Return the stage at which a router that keeps its promises refuses a payload."""
    try:
        event = form.read(payload, version)
    except (DecodeError, EOFError, IndexError, ValueError):
        return "decode"
    if "game" not in event:
        return "match"
    return "nowhere" if event["game"] in game_names(9) else "name"


@pytest.mark.parametrize("name", ["protobuf", "avro"])
def test_versions_appear_in_the_registry_while_events_are_sent(
    broker: EmbeddedKafka, schema_registry: EmbeddedRegistry, name: str
) -> None:
    seen: dict[int, int] = {}
    with (
        RegistryClient(RegistryOptions(url=(schema_registry.url,))) as client,
        opened(name, schema_registry.url, f"timely-{name}") as write,
    ):

        def look(so_far: int) -> None:
            seen[so_far] = len(client.versions(f"timely-{name}"))

        sent = simulate(broker.servers, f"timely-{name}", TRAFFIC, write=write, on_progress=look)
    assert sent.failed == 0
    assert seen == {1000: 1, 2000: 2, 3000: 3}


def test_the_command_registers_under_the_topics_name(broker: EmbeddedKafka, schema_registry: EmbeddedRegistry) -> None:
    options = ["--servers", broker.servers, "--topic", "framed", "--events", "900", "--versions", "3", "--json"]
    options += ["--format", "protobuf", "--registry", schema_registry.url]
    result = CliRunner().invoke(command, options, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["events"] == 900
    with RegistryClient(RegistryOptions(url=(schema_registry.url,))) as client:
        assert client.versions("framed-value") == (1, 2, 3)
        assert "col_foo_3" in client.version("framed-value", 3).text


def test_a_registry_that_is_needed_is_asked_for_by_name() -> None:
    options = ["--servers", "127.0.0.1:9", "--topic", "t", "--format", "protobuf"]
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 2
    assert "--registry" in result.output


def test_a_url_of_no_registry_is_refused() -> None:
    with pytest.raises(StartError, match="localhost"), opened("avro", "localhost:8081", "t"):
        pass
