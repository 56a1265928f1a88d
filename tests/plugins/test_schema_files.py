"""Schemas in files: read as they are, inferred once, refreshed on demand."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types as T

from router import Preparation, StartError
from router.engine.checkpoint_store import LearntSchemas
from router_decoders import Json
from router_decoders.json import leaf_types, schema_differences
from router_schemas.json_schema.spark_types import TypeMapping

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from tests.plugins.conftest import Decode, Raw

SAMPLE = [
    b'{"game":"uno","at":"2026-11-21T10:00:00Z","amount":5,"player":{"level":1,"tags":["a"]},"code":"2026"}',
    b'{"game":"uno","at":"2026-11-21T10:00:00.5+02:00","amount":5.5,"code":"1999"}',
    b"broken",
    b'{"game":"uno","amount":',
    b'[{"other":1}]',
    b"\xff",
    None,
]
DDL = "amount DOUBLE,at TIMESTAMP,code STRING,game STRING,player STRUCT<level: BIGINT, tags: ARRAY<STRING>>"


def never(rows: int) -> DataFrame:
    """Fail when the source is read."""
    raise AssertionError(f"the source was asked for {rows} rows")


@pytest.fixture
def place(tmp_path: Path, raw: Raw) -> Any:
    """Make preparations in one folder; without values the source must not be read."""

    def place(values: list[bytes | None] | None = None, refresh: bool = False, debug: bool = False) -> Preparation:
        sample = never if values is None else lambda rows: raw(values).limit(rows)
        return Preparation(tmp_path, refresh, sample, LearntSchemas(), debug)

    return place


@pytest.mark.parametrize("file", ["games.schema.json", "games.ddl"])
def test_a_schema_is_inferred_once(tmp_path: Path, place: Any, decode: Decode, file: str) -> None:
    """A restart must decode to the same types, whatever the topic has by then."""
    decoder = Json.model_validate({"infer": {"file": file}})

    first = decoder.prepare(place(SAMPLE))
    second = decoder.prepare(place())

    assert first == second == Json(schema=DDL)
    assert (tmp_path / file).exists()
    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert decode(second, SAMPLE[:1])[0][1] is None


def test_a_refresh_shows_what_changed(tmp_path: Path, place: Any, spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Who refreshes wants to know which tables will get which columns; what the sample lacks may come again."""
    decoder = Json.model_validate({"infer": {"file": "games.ddl", "rows": 5}})
    (tmp_path / "games.ddl").write_text("game string, amount bigint, old struct<a: int>, price double")

    with caplog.at_level(logging.INFO, logger="router"):
        prepared = decoder.prepare(place(SAMPLE, refresh=True))
        decoder.prepare(place(SAMPLE, refresh=True))

    file = tmp_path / "games.ddl"
    known = {"game", "amount", "old", "price"}
    expected = {field.name: field.dataType for field in T.StructType.fromDDL(DDL)}
    found = {field.name: field.dataType for field in T.StructType.fromDDL(prepared.ddl)}
    assert found == expected | {"old": T.StructType.fromDDL("a int"), "price": T.DoubleType()}
    assert set(list(found)[: len(known)]) == known
    assert [record.getMessage() for record in caplog.records] == [
        f"schema {file}: added at: timestamp",
        f"schema {file}: added code: string",
        f"schema {file}: added player.level: bigint",
        f"schema {file}: added player.tags[]: string",
        f"schema {file}: changed amount: bigint -> double",
        f"schema {file}: no differences",
    ]


@pytest.mark.parametrize("name", ["my.games{}.schema.json", "games{}.ddl"])
def test_a_debug_run_has_a_schema_file_of_its_own(tmp_path: Path, place: Any, name: str) -> None:
    """Without it who tries something out changes the types of every table."""
    decoder = Json.model_validate({"infer": {"file": name.format("")}})
    fresh = decoder.prepare(place(SAMPLE, debug=True))
    assert [path.name for path in tmp_path.iterdir()] == [name.format("_debug")]

    (tmp_path / name.format("_debug")).unlink()
    real = decoder.prepare(place(SAMPLE[:1]))
    kept = (tmp_path / name.format("")).read_bytes()
    assert decoder.prepare(place(debug=True)) == real != fresh

    refreshed = decoder.prepare(place(SAMPLE, refresh=True, debug=True))
    assert decoder.prepare(place(debug=True)) == refreshed == fresh
    assert (tmp_path / name.format("")).read_bytes() == kept
    assert decoder.prepare(place()) == real


def test_an_object_behind_a_byte_order_mark_is_inferred_from(place: Any) -> None:
    """Producers that write one write it into every record: there would be no schema."""
    prepared = Json.model_validate({"infer": {"file": "games.ddl"}}).prepare(place([b'\xef\xbb\xbf{"game":"uno"}']))

    assert prepared == Json(schema="game STRING")


@pytest.mark.parametrize("values", [[], [b"broken", b"[1]", b"5", None]], ids=["no records", "no objects"])
def test_a_source_without_objects_has_no_schema(tmp_path: Path, place: Any, values: list[bytes | None]) -> None:
    """An empty schema in the file would lose every field from then on."""
    with pytest.raises(StartError, match="no JSON object yet"):
        Json.model_validate({"infer": {"file": "games.ddl"}}).prepare(place(values))

    assert not list(tmp_path.iterdir())


def test_a_schema_file_is_read_from_the_configuration_s_folder(tmp_path: Path, place: Any, decode: Decode) -> None:
    """A configuration must work from any working directory."""
    schema = {"type": "object", "properties": {"game": {"type": "string"}, "day": {"type": "string", "format": "date"}}}
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "game.json").write_text(json.dumps(schema))

    decoder = Json(schema_file="schemas/game.json", rescue=True).prepare(place())

    assert decoder == Json(schema="game STRING,day DATE", rescue=True)
    assert decode(decoder, [b'{"game":"uno"}']) == [({"game": "uno", "day": None, "_rescued": None}, None)]


BET: dict[str, Any] = {
    "properties": {
        "player": {"$ref": "types/player.json"},
        "stake": {"$ref": "../money.json#amount"},
        "game": {"$ref": "#game"},
        "rank": {"$ref": "level.json"},
        "kind": {"$ref": "https://example.com/schemas/kind.json"},
    },
    "$defs": {"game": {"$anchor": "game", "type": "string"}, "kind": {"$id": "kind.json", "type": "boolean"}},
}
PLAYER = {"properties": {"level": {"$ref": "level.json#/$defs/a%20level"}, "game": {"$ref": "../bet.json#game"}}}


@pytest.mark.parametrize("name", ["bet.json", "b.json"])
def test_a_schema_file_may_refer_to_other_files(tmp_path: Path, place: Any, spark: Any, name: str) -> None:
    """People divide schemas into files, and validators read them so."""
    files: dict[str, Any] = {
        "schemas/bet.json": {"$id": f"https://example.com/schemas/{name}", **BET},
        "schemas/types/player.json": PLAYER,
        # The other one of this name is a different schema.
        "schemas/level.json": {"type": "string"},
        "schemas/types/level.json": {"$defs": {"a level": {"type": "integer"}}},
        "money.json": {"$defs": {"amount": {"$anchor": "amount", "type": "number"}}},
    }
    (tmp_path / "schemas/types").mkdir(parents=True)
    for path, schema in files.items():
        (tmp_path / path).write_text(json.dumps(schema))

    decoder = Json(schema_file="schemas/bet.json").prepare(place())

    assert decoder == Json(
        schema="player STRUCT<level: BIGINT, game: STRING>,stake DOUBLE,game STRING,rank STRING,kind BOOLEAN"
    )


def test_files_without_addresses_refer_to_each_other(tmp_path: Path, place: Any, spark: Any) -> None:
    """Without an `$id` the path of a file is its address."""
    bet = {"properties": {"player": {"$ref": "player.json"}, "game": {"type": "string"}}}
    player = {"properties": {"favourite": {"$ref": "./bet.json#/properties/game"}}}
    (tmp_path / "bet.json").write_text(json.dumps(bet))
    (tmp_path / "player.json").write_text(json.dumps(player))

    decoder = Json(schema_file="bet.json").prepare(place())

    assert decoder == Json(schema="player STRUCT<favourite: STRING>,game STRING")


@pytest.mark.parametrize(
    ("reference", "word"),
    [
        ("missing.json", "'missing.json' leads to nothing"),
        ("https://example.com/player.json", "'https://example.com/player.json' leads to nothing"),
        ("odd.json", "odd.json#/properties/a: "),
        ("text.json", "text.json: it is not JSON"),
        ("/{folder}/odd.json", "leads to nothing"),
        ("deep/../../odd.json", "leads to nothing"),
    ],
)
def test_a_file_that_a_schema_file_cannot_refer_to_is_named(
    tmp_path: Path, place: Any, reference: str, word: str
) -> None:
    """Nothing is fetched, and the fault of a file is shown in that file."""
    (tmp_path / "odd.json").write_text('{"properties": {"a": {}}}')
    (tmp_path / "text.json").write_text("level: integer")
    schema = {"properties": {"it": {"$ref": reference.format(folder=tmp_path)}}}
    (tmp_path / "bet.json").write_text(json.dumps(schema))

    with pytest.raises(StartError, match=re.escape(word)) as caught:
        Json(schema_file="bet.json").prepare(place())

    assert str(tmp_path / "bet.json") in str(caught.value)


@pytest.mark.parametrize(
    ("file", "text", "word"),
    [
        ("missing.json", None, "No such file"),
        ("broken.json", "{", "Expecting property name"),
        ("odd.json", '{"type":"object","properties":{"a":{}}}', "#/properties/a"),
        ("odd.ddl", "a strin", "DDL"),
    ],
)
def test_a_schema_file_that_cannot_be_used_is_named(
    tmp_path: Path, place: Any, spark: Any, file: str, text: str | None, word: str
) -> None:
    """The operator needs the file and the place in it, not a stack trace."""
    if text is not None:
        (tmp_path / file).write_text(text)

    with pytest.raises(StartError, match=word) as caught:
        Json(schema_file=file).prepare(place())

    assert str(tmp_path / file) in str(caught.value)


def test_differences_name_the_whole_path() -> None:
    """A change deep inside of a record must be seen as such."""
    inner = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    before = TypeMapping({"type": "object", "properties": {"list": {"type": "array", "items": inner}}}).root_struct()
    inner["properties"] = {
        "a": {"type": "number"},
        "c": {"type": "object", "additionalProperties": {"type": "boolean"}},
    }
    after = TypeMapping({"type": "object", "properties": {"list": {"type": "array", "items": inner}}}).root_struct()

    assert schema_differences(before, after) == [
        "added list[].c{}: boolean",
        "removed list[].b: string",
        "changed list[].a: bigint -> double",
    ]
    assert dict(leaf_types(before)) == {"list[].a": "bigint", "list[].b": "string"}


@pytest.mark.parametrize("file", ["games.schema.json", "games.ddl"])
def test_names_that_no_table_can_have_get_columns(
    place: Any, decode: Decode, caplog: pytest.LogCaptureFixture, file: str
) -> None:
    """Without it one legal record in the sample refuses every start, also when the producer is mended."""
    record = {
        "id": 1,
        "ID": "x",
        "a b": 2,
        "a_b": 3,
        "o": {"x y": 4, "x.y": 5, "id": 6, "Id": 7},
        "many": [{"p,q": 8, "P_Q": 9}],
        "=": 10,
    }
    decoder = Json.model_validate({"infer": {"file": file}, "rescue": True})

    with caplog.at_level(logging.WARNING, logger="router"):
        first = decoder.prepare(place([json.dumps(record).encode()]))
        again = decoder.prepare(place())

    assert first == again
    event, error = decode(again, [json.dumps(record).encode()])[0][:2]
    assert error is None
    # Of two names one keeps its own; the other has its name with a mark, whatever comes later.
    top = {name: value for name, value in event.items() if name not in ("o", "many", "_rescued") and value is not None}
    assert sorted(map(str, top.values())) == ["1", "10", "2", "3", "x"]
    assert len({name.lower() for name in top}) == 5
    assert {"ID", "a_b", "_"} < {*top}
    assert sorted(event["o"].values()) == [4, 5, 6, 7]
    assert len({name.lower() for name in event["o"]}) == 4
    assert sorted(event["many"][0].values()) == [8, 9]
    assert not any(character in name for name in [*top, *event["o"], *event["many"][0]] for character in " ,=")
    warned = [text for text in caplog.messages if "becomes the column" in text]
    assert any("id becomes the column id__" in text for text in warned)
    assert any("o.x y becomes the column o.x_y" in text for text in warned)


def test_a_stored_schema_that_a_start_refuses_is_mended(tmp_path: Path, place: Any, decode: Decode) -> None:
    """Without it a schema that an older version inferred refuses every start, although nobody wrote it."""
    (tmp_path / "games.ddl").write_text("id bigint, ID string, o struct<`x y`: int>")

    decoder = Json.model_validate({"infer": {"file": "games.ddl"}}).prepare(place())

    event, error = decode(decoder, [b'{"id": 1, "ID": "x", "o": {"x y": 2}}'])[0][:2]
    assert error is None
    assert event["id"] == 1
    assert event["o"] == {"x_y": 2}
    assert "x" in event.values()
