"""Which schema of a registry rows are written with, and what keeps a stream from starting."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError
from pyspark.sql import types as T

from router import Encoder, StartError
from router.registry import load_registry
from router_encoders import ToAvro, ToProtobuf
from router_encoders.registry_encoder import record_name
from router_schemas.wire_format import parse_values
from tests.encoders.columns import rows_of, struct

if TYPE_CHECKING:
    from tests.schemas.faulty import FaultyRegistry

SUBJECT = "games-value"
COLUMNS = struct(game=T.StringType(), amount=T.LongType())
WIDER = struct(game=T.StringType(), note=T.StringType(), amount=T.LongType())
KINDS = {"avro": "AVRO", "protobuf": "PROTOBUF"}
TEXTS = {
    "avro": json.dumps(
        {
            **{"type": "record", "name": "Bet", "namespace": "games"},
            "fields": [
                {"name": name, "type": ["null", kind]} for name, kind in (("game", "string"), ("amount", "long"))
            ],
        }
    ),
    "protobuf": 'syntax = "proto3"; package games; message Bet { string game = 1; int64 amount = 2; }',
}
FILES = {"avro": ("schema_file", "bet.avsc"), "protobuf": ("proto_file", "bet.proto")}
HERE = Path()
Encode = Callable[..., Encoder]


@pytest.fixture(params=["avro", "protobuf"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def encoder(faulty: FaultyRegistry, kind: str) -> Encode:
    """Make an encoder of the format with options."""
    made = {"avro": ToAvro, "protobuf": ToProtobuf}[kind]
    url = {"url": faulty.url, "attempts": 1}
    return lambda **options: made.model_validate({"registry": url, "subject": SUBJECT, **options})


def number_of(encoder: Encoder, columns: T.StructType, folder: Path = HERE, subject: str | None = None) -> int:
    """Return the id in the prefix of a row that is encoded."""
    encoding = encoder.open(columns, folder, subject)
    found = encoding.encode(rows_of(columns, [dict.fromkeys(columns.names)]))
    assert not found.reasons
    return int(parse_values(rows_of(struct(v=T.BinaryType()), [{"v": found.values[0]}]).field("v"), False).ids[0])


def test_the_newest_version_is_written(faulty: FaultyRegistry, encoder: Encode, kind: str) -> None:
    """Without it consumers get a version that they have replaced."""
    faulty.book.add(SUBJECT, TEXTS[kind].replace("amount", "sum"), KINDS[kind])
    newest = faulty.book.add(SUBJECT, TEXTS[kind], KINDS[kind])

    assert number_of(encoder(), COLUMNS) == newest
    assert not [seen for seen in faulty.seen if seen.method != "GET"], "something was registered"


def test_the_version_of_an_id_is_written(faulty: FaultyRegistry, encoder: Encode, kind: str) -> None:
    """Without it somebody's new version changes what is written."""
    wanted = faulty.book.add(SUBJECT, TEXTS[kind], KINDS[kind])
    faulty.book.add(SUBJECT, TEXTS[kind].replace("amount", "sum"), KINDS[kind])

    assert number_of(encoder(id=wanted), COLUMNS) == wanted


def test_a_column_without_a_field_keeps_a_stream_from_starting(
    faulty: FaultyRegistry, encoder: Encode, kind: str
) -> None:
    """Without it a column is lost on the way, and nobody is told."""
    faulty.book.add(SUBJECT, TEXTS[kind], KINDS[kind])

    with pytest.raises(StartError, match=r"games-value version 1 \(schema 1\): field note: .* has no field") as caught:
        encoder().open(WIDER, HERE)
    assert "Traceback" not in str(caught.value)
    with pytest.raises(StartError, match="field amount: the column is string"):
        encoder().open(struct(game=T.StringType(), amount=T.StringType()), HERE)


def test_nothing_is_registered_without_leave(faulty: FaultyRegistry, encoder: Encode) -> None:
    """Without it a typing mistake in `subject` makes a subject."""
    with pytest.raises(StartError, match="subject games-value has no schema"):
        encoder().open(COLUMNS, HERE)
    assert not faulty.book.subjects


def test_a_schema_is_made_for_the_columns_and_grows_with_them(faulty: FaultyRegistry, encoder: Encode) -> None:
    """Without it a new column stops the stream, or an old one takes the place of another."""
    grows = encoder(register=True)
    first = number_of(grows, COLUMNS)
    again, wider = number_of(grows, COLUMNS), number_of(grows, WIDER)

    assert again == first
    assert wider != first
    assert number_of(grows, COLUMNS) == wider, "a column that is gone makes no version"
    assert len(faulty.book.subjects[SUBJECT]) == 2
    third = number_of(grows, struct(game=T.StringType(), more=T.BooleanType()))
    assert all(name in faulty.book.schemas[third]["schema"] for name in ("game", "amount", "note", "more"))
    with pytest.raises(StartError, match="amount"):
        grows.open(struct(amount=T.BooleanType()), HERE)


def test_a_schema_of_somebody_else_is_not_replaced(faulty: FaultyRegistry, encoder: Encode, kind: str) -> None:
    """Without it `register: true` overwrites what another team declared."""
    faulty.book.add(SUBJECT, TEXTS[kind], KINDS[kind])

    with pytest.raises(StartError, match=r"field note: .*; add it, for this schema was not made by the router"):
        encoder(register=True).open(WIDER, HERE)
    assert len(faulty.book.subjects[SUBJECT]) == 1


def test_a_file_has_to_be_registered(faulty: FaultyRegistry, encoder: Encode, kind: str, tmp_path: Path) -> None:
    """Without it records carry an id that means another schema."""
    option, name = FILES[kind]
    with pytest.raises(StartError, match=f"{option} {name} cannot be read"):
        encoder(**{option: name}).open(COLUMNS, tmp_path)
    (tmp_path / name).write_text(TEXTS[kind])

    with pytest.raises(StartError, match=f"{name} is not registered under games-value"):
        encoder(**{option: name}).open(COLUMNS, tmp_path)
    made = number_of(encoder(**{option: name}, register=True), COLUMNS, tmp_path)

    assert number_of(encoder(**{option: name}), COLUMNS, tmp_path) == made
    with pytest.raises(StartError, match=rf"{name} \(schema {made}\): field note"):
        encoder(**{option: name}).open(WIDER, tmp_path)


def test_a_record_can_be_alone(faulty: FaultyRegistry, encoder: Encode, kind: str, tmp_path: Path) -> None:
    """Without it readers without a registry, most of HTTP, cannot be written for."""
    option, name = FILES[kind]
    (tmp_path / name).write_text(TEXTS[kind])
    faulty.book.add(SUBJECT, TEXTS[kind], KINDS[kind])
    made = type(encoder())
    alone = made.model_validate({option: name, "wire_format": "none"}).open(COLUMNS, tmp_path)
    seen = [encoder().open(COLUMNS, HERE), encoder(wire_format="none").open(COLUMNS, HERE), alone]
    rows = rows_of(COLUMNS, [{"game": "uno", "amount": 7}])

    framed, *bare = (encoding.encode(rows).values[0] or b"" for encoding in seen)

    assert {framed[5:] if kind == "avro" else framed[6:]} == set(bare)
    with pytest.raises(StartError, match=rf"{name}: field note"):
        made.model_validate({option: name, "wire_format": "none"}).open(WIDER, tmp_path)


def test_a_trial_registers_nothing(faulty: FaultyRegistry, encoder: Encode, kind: str, tmp_path: Path) -> None:
    """Without it looking at a configuration makes subjects."""
    option, name = FILES[kind]
    (tmp_path / name).write_text(TEXTS[kind])

    for options in ({"register": True}, {"register": True, option: name}):
        encoder(**options).open(COLUMNS, tmp_path, trial=True)
    with pytest.raises(StartError, match="field note"):  # nor does one that cannot start
        encoder(**{"register": True, option: name}).open(WIDER, tmp_path)
    assert not faulty.book.subjects


def test_a_schema_of_another_format_is_refused(faulty: FaultyRegistry, encoder: Encode, kind: str) -> None:
    """Without it Avro is written into a topic of Protobuf."""
    other = {"avro": "protobuf", "protobuf": "avro"}[kind]
    faulty.book.add(SUBJECT, TEXTS[other], KINDS[other])

    for options in ({}, {"register": True}, {"id": 1}):
        with pytest.raises(StartError, match=f"is {KINDS[other]}, not {KINDS[kind]}"):
            encoder(**options).open(COLUMNS, HERE)


def test_a_registry_that_is_away_is_waited_for(faulty: FaultyRegistry, encoder: Encode) -> None:
    """Without it a stream ends when its registry is started again."""
    faulty.fails("503")

    with pytest.raises(ConnectionError, match="waiting for the schema registry"):
        encoder().open(COLUMNS, HERE)


def test_an_unknown_id_is_refused(faulty: FaultyRegistry, encoder: Encode) -> None:
    with pytest.raises(StartError, match="schema not found"):
        encoder(id=77).open(COLUMNS, HERE)


def test_the_subject_is_that_of_the_topic(faulty: FaultyRegistry, encoder: Encode, kind: str) -> None:
    """Without it every fixed topic needs its name twice."""
    number = faulty.book.add("wins-value", TEXTS[kind], KINDS[kind])

    assert number_of(encoder(subject=None), COLUMNS, subject="wins-value") == number
    with pytest.raises(StartError, match="give `subject`"):
        encoder(subject=None).open(COLUMNS, HERE)


def test_a_message_inside_of_another_is_named_in_the_prefix(faulty: FaultyRegistry) -> None:
    """Without it consumers read another message of the same file."""
    inner = "message B { map<string, int64> m = 1; message C { string game = 1; } }"
    text = f'syntax = "proto3"; package g; message A {{ {inner} }}'
    number = faulty.book.add(SUBJECT, text, "PROTOBUF")
    made = ToProtobuf.model_validate({"registry": faulty.url, "subject": SUBJECT, "message": "g.A.B.C"})
    encoding = made.open(struct(game=T.StringType()), HERE)

    (value,) = encoding.encode(rows_of(struct(game=T.StringType()), [{"game": "uno"}])).values

    assert value == b"\0" + number.to_bytes(4, "big") + b"\x06\0\0\x02" + b"\x0a\x03uno"
    with pytest.raises(StartError, match=r"no message 'g\.X'"):
        made.model_copy(update={"message": "g.X"}).open(COLUMNS, HERE)


@pytest.mark.parametrize(
    ("subject", "name"),
    [("game-events-value", "game_events"), ("games.Bet-value", "games.Bet"), ("7up", "_7up"), (":.ctx:a-value", "a")],
)
def test_a_record_is_called_by_its_subject(subject: str, name: str) -> None:
    assert record_name(subject) == name


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "an encoder is one key"),
        ({"to_json": {}, "to_avro": {"registry": "http://a"}}, "`to_json` is here already"),
        ({"to_json": {"null": "keep"}}, "Extra inputs"),
        ({"to_avro": {}}, "give a `registry`, or `schema_file` and `wire_format: none`"),
        ({"to_avro": {"schema_file": "a.avsc"}}, "give a `registry`, or `schema_file` and `wire_format: none`"),
        (
            {"to_avro": {"schema_file": "a.avsc", "wire_format": "none", "id": 1}},
            "remove `register` and `schema_file`",
        ),
        ({"to_avro": {"schema_file": "a.avsc", "wire_format": "none", "subject": "a"}}, "nothing of a registry"),
        ({"to_avro": {"registry": "http://a", "id": 1, "register": True}}, "remove `register` and `schema_file`"),
        ({"to_protobuf": {"registry": "http://a", "id": 1, "proto_file": "a.proto"}}, "remove `register` and `proto_"),
        ({"to_protobuf": {"registry": "http://a", "proto_file": "a.desc"}}, "a .proto file is needed"),
        ({"to_protobuf": {"registry": "http://a", "message": "a b"}}, "match pattern"),
        ({"to_avro": {"registry": "http://a", "name": "a."}}, "match pattern"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_when_it_is_read(options: dict[str, Any], word: str) -> None:
    """A wrong configuration never starts."""
    with pytest.raises(ValidationError, match=word):
        load_registry().resolve(Encoder, options)
