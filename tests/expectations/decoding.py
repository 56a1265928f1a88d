"""Scenarios of decoders: every format, with good values, broken ones, and some that belong to another format."""

from __future__ import annotations

import random
from typing import Any

from tests.expectations.inputs import EVERY_TYPE, GARBAGE, PLAIN, TIMES, event, texts
from tests.expectations.scenario import HEAD, HERE, Given, Scenario, Taken, given

ALL = """\
routes:
  - name: all
    match: {sql: "true"}
    select: ["event.*", offset]
    sinks: [{delta: silver.all}]
"""
WITH_SCHEMA = """\
routes:
  - name: all
    match: {sql: "true"}
    select: ["event.*", offset, schema_id, schema_version, subject, message]
    sinks: [{delta: silver.all}, {tables: "gold.{event.game}"}]
  - name: of_a_subject
    match: {schema: {subject: games-value, name: games.Event}}
    select: [event.game, event.amount]
    sinks: [{delta: gold.of_a_subject}]
"""
REGISTRY = "registry: http://127.0.0.1:1"
GAMES = [
    {"game": "uno", "gamer_id": "g-1", "amount": 12.5, "ts": "2026-01-31T12:00:00Z"},
    {"game": "poker", "gamer_id": "g-2", "amount": 0.0, "col_foo_1": 7},
    {"game": "poker", "gamer_id": "g-3", "ts": "1969-12-31T23:59:59.5Z"},
    {"game": "hearts", "hearts": {"passed": ["7♠", ""], "points": -3, "moon": True}},
    {"game": "rummy", "rummy": {"melds": [], "hand": {"size": 0, "deadwood": 2}}},
    {
        "game": "uno",
        "uno": {"color": "", "card": "skip", "players": [{"seat": 1, "cards": 0}, {"seat": 0, "cards": 2}]},
    },
    {},
]
FRAMES = (
    *[None, b"", b"\0", b"\0\0\0\0", b"\0\0\0\0\1", b"\0\0\0\0\7payload", b"\1\0\0\0\1", b"not framed"],
    b"\0\xff\xff\xff\xff\0",
    *[b"\0\0\0\0\1\0", b"\0\0\0\0\1\0\0", b"\0\0\0\0\1\2\0", b"\0\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"],
    *[b"\0\0\0\0\2\0", b"\0\0\0\0\3\0", b"\0\0\0\0\1{}", b'\0\0\0\0\1{"game": "uno"}', b'{"game": "uno"}'],
)  # fmt: skip


def _written(events: list[Any], schema: str | None = None, message: str | None = None) -> list[Given]:
    """Return events as a producer writes them with a schema."""
    about = {name: value for name, value in {"schema": schema, "message": message}.items() if value}
    return [Given({"event": one, **about}) for one in events]


def _noise(seed: int, count: int, frame: bytes = b"") -> list[Given]:
    noise = random.Random(seed)
    return [Given(frame + noise.randbytes(noise.randrange(24))) for _ in range(count)]


def _json(options: str, values: Any) -> Taken:
    return Taken(given(values, headers=True), f"{HEAD}decode: {{json: {options}}}\n{ALL}")


def _moments(*names: str) -> list[dict[str, Any]]:
    return [{name: text} for text in TIMES for name in names]


def _frames() -> tuple[Given, ...]:
    return tuple(Given(value) for value in FRAMES)


KEYS: list[tuple[bytes | None, bytes | None]] = [
    *[(b'{"id":1}', b'{"game":"uno"}'), (None, b'{"game":"uno"}'), (b"garbage", b'{"game":"uno"}')],
    *[(b'{"id":2}', b"garbage"), (b"garbage", b"garbage"), (b"", None), (b'{"id":"x"}', b"{}"), (b'{"id":3}', None)],
    *[(None, None), (b"", b'{"game":"uno"}'), (b'{"id":4}', b""), (b"{}", b'{"game":"poker"}')],
]
KEYED = """\
routes:
  - name: all
    match: {sql: "event_key.id > 0 OR event.game = 'uno'"}
    select: ["event.*", "event_key.id AS id", event_key, offset]
    sinks: [{delta: silver.all}]
"""
AVRO = f"{HEAD}decode: {{avro: {{{REGISTRY}}}}}\n{WITH_SCHEMA}"
PROTOBUF = f"{HEAD}decode: {{protobuf: {{{REGISTRY}}}}}\n{WITH_SCHEMA}"
JSON_SCHEMA = f"{HEAD}decode: {{json_schema: {{{REGISTRY}}}}}\n{WITH_SCHEMA}"
AUTO = f"{HEAD}decode: {{auto: {{{REGISTRY}}}}}\n{WITH_SCHEMA}"
OF_FORMATS = {
    "avro": ("one.avsc", "two.avsc"),
    "protobuf": ("one.proto", "two.proto"),
    "json": ("one.json", "two.json"),
}
ONE = [
    *[
        {"game": "uno", "amount": 1, "note": "x"},
        {"game": "poker", "amount": 0},
        {"game": "", "amount": -5, "note": ""},
    ],
    {"game": "uno", "amount": 2147483647, "note": "é🂡"},
]
TWO = [
    *[
        {"game": "uno", "amount": 2**40, "note": "y", "bonus": 1.5, "tags": []},
        {"game": "poker", "amount": 3, "bonus": 0.0, "tags": []},
    ],
    {"game": "poker", "amount": -1, "tags": ["a", ""]},
]


def _versions(kind: str, text: str) -> tuple[Taken, ...]:
    """Return batches with records of one version, then of two, with garbage."""
    one, two = OF_FORMATS[kind]
    first, both = {"games-value": (one,)}, {"games-value": (one, two)}
    return (
        Taken((*_written(ONE), *_frames()), text, first),
        Taken((*_written(ONE, one), *_written(TWO, two), *_noise(1, 40, b"\0\0\0\0\1"), *_noise(2, 40)), text, both),
        Taken((*_written(TWO[1:], two), *_noise(3, 40, b"\0\0\0\0\2"), *_noise(4, 30, b"\0\0\0\0\2\0"))),
    )


FOUND = {f"{kind}-value": files for kind, files in OF_FORMATS.items()}
SCENARIOS = (
    Scenario(
        "json_every_type",
        "JSON of every type, of which Spark decodes some, with garbage",
        (_json(f"'{EVERY_TYPE}'", [*map(event, range(40)), *GARBAGE]), Taken(given(texts(80)))),
    ),
    Scenario(
        "json_plain",
        "JSON of the types that tasks decode on record batches, with garbage",
        (_json(f"'{PLAIN}'", [*map(event, range(40)), *GARBAGE]), Taken(given(texts(80)))),
    ),
    Scenario(
        "json_rescue",
        "JSON whose unknown keys are kept",
        (
            _json(
                "{schema: 'game string, amount int', rescue: true}",
                [
                    *[{"game": "uno", "new": 1, "deep": {"a": [1, None]}}, {"game": "uno"}, {"a": None, "b": "text"}],
                    *[{"game": {"x": 1}, "Game": "other", "": 5}, *GARBAGE[:60]],
                ],
            ),
        ),
    ),
    Scenario(
        "json_times",
        "Times in every form, with and without a zone, decoded by Spark",
        (_json("'at timestamp, local timestamp_ntz, day date'", _moments("at", "local", "day")),),
    ),
    Scenario(
        "json_times_in_tasks",
        "Times in every form, with and without a zone, decoded on record batches",
        (
            _json(
                "'at timestamp, day date, inner struct<at: timestamp>'",
                [*_moments("at", "day"), {"inner": {"at": "x"}}],
            ),
        ),
    ),
    Scenario(
        "json_schema_file", "JSON by a schema in a file", (_json("{schema_file: file.json}", [*ONE, *TWO, b"{}"]),)
    ),
    Scenario("avro_versions", "Avro with a registry: a new version comes", _versions("avro", AVRO)),
    Scenario("protobuf_versions", "Protobuf with a registry: a new version comes", _versions("protobuf", PROTOBUF)),
    Scenario(
        "json_schema_versions", "JSON Schema with a registry: a new version comes", _versions("json", JSON_SCHEMA)
    ),
    Scenario(
        "auto",
        "All formats in one topic",
        (
            Taken((*_written(ONE, "one.avsc"), *_frames()), AUTO, {"avro-value": ("one.avsc",)}),
            Taken(
                tuple(g for kind in OF_FORMATS for k in (0, 1) for g in _written((ONE, TWO)[k], OF_FORMATS[kind][k])),
                AUTO,
                FOUND,
            ),
            Taken(tuple(g for number in range(1, 8) for g in _noise(number, 8, bytes([0, 0, 0, 0, number])))),
        ),
    ),
    Scenario(
        "protobuf_nested",
        "Protobuf with messages inside, one of several, and times; versions of which one has a field more",
        (
            Taken((*_written(GAMES), *_noise(8, 60, b"\0\0\0\0\1\0")), PROTOBUF, {"games-value": ("games_v1.proto",)}),
            Taken(
                tuple(_written(GAMES, "games_v2.proto")),
                PROTOBUF,
                {"games-value": ("games_v1.proto", "games_v2.proto")},
            ),
        ),
        HERE.parent.parent / "routes",
    ),
    Scenario(
        "avro_nested",
        "Avro with records inside, and times",
        (Taken((*_written(GAMES), *_noise(9, 60, b"\0\0\0\0\1")), AVRO, {"games-value": ("games.avsc",)}),),
        HERE.parent.parent / "routes",
    ),
    Scenario(
        "avro_file",
        "Avro without a wire format, by a schema in a file",
        (
            Taken(
                (*_written(ONE), *_frames(), *_noise(5, 40)),
                f"{HEAD}decode: {{avro: {{schema_file: one.avsc, wire_format: none}}}}\n{ALL}",
            ),
        ),
    ),
    Scenario(
        "avro_single_object",
        "Avro as its own libraries frame it",
        (
            Taken(
                (*_written(TWO), *_frames(), *_noise(6, 20, b"\xc3\x01")),
                f"{HEAD}decode: {{avro: {{schema_file: two.avsc, wire_format: single_object}}}}\n{ALL}",
            ),
        ),
    ),
    Scenario(
        "protobuf_file",
        "Protobuf without a wire format, by a schema in a file",
        (
            Taken(
                (*_written(TWO), *_frames(), *_noise(7, 60)),
                f"{HEAD}decode: {{protobuf: "
                f"{{proto_file: two.proto, message: games.Event, wire_format: none}}}}\n{ALL}",
            ),
        ),
    ),
    Scenario(
        "keyed",
        "A decoder for keys and one for values",
        (
            Taken(
                tuple(Given(value, key) for key, value in KEYS),
                f"{HEAD}decode: {{value: {{json: 'game string'}}, key: {{json: 'id int'}}}}\n{KEYED}",
            ),
        ),
    ),
    Scenario(
        "keyed_two_ways",
        "Keys that Spark decodes beside values that tasks decode, and the other way round",
        (
            Taken(
                tuple(Given(value, key) for key, value in KEYS),
                f"{HEAD}decode: {{value: {{json: 'game string'}}, key: {{json: 'id int, share float'}}}}\n{KEYED}",
            ),
            Taken(
                tuple(Given(value, key) for key, value in KEYS),
                f"{HEAD}decode: {{value: {{json: 'game string, share float'}}, key: {{json: 'id int'}}}}\n{KEYED}",
            ),
        ),
    ),
    Scenario(
        "none",
        "Records that nobody decodes",
        (Taken(given([{"game": "uno"}, *GARBAGE[:20]], headers=True), f"{HEAD}decode: {{none: {{}}}}\n"),),
    ),
    Scenario(
        "a_strangers_decoder",
        "A decoder of a plugin, in Python",
        (
            Taken(
                given([b"uno:hello", b"poker:\xff", None, b"", b"nothing", "uno:été".encode()]),
                f"{HEAD}decode: {{shouted: {{}}}}\nroutes:\n  - name: all\n    match: {{sql: 'true'}}\n"
                '    sinks: [{tables: "silver.{event.game}"}]\n',
            ),
        ),
    ),
)
