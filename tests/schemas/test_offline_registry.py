"""Files answer as a registry does, so that the tests of a configuration need none."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from router import StartError
from router_decoders import Auto, JsonSchema
from router_schemas.json_schema.documents import struct_of_text
from router_schemas.model import ResolvedSchema
from router_schemas.protobuf.descriptors import compile_schema, imported_files
from router_schemas.registry_client import OfflineRegistry
from router_schemas.registry_options import NotFound
from router_schemas.resolver import References

BET = 'syntax = "proto3"; import "money.proto"; message Bet { Money stake = 1; }'
MONEY = 'syntax = "proto3"; message Money { int64 cents = 1; }'


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Write schemas that import each other; return them by name."""
    texts = {"bet.proto": BET, "money.proto": MONEY, "bet_2.proto": BET.replace("}", " int32 game = 2; }")}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {name: tmp_path / name for name in texts}


def test_versions_have_ids_in_their_order_and_bring_what_they_import(files: dict[str, Path]) -> None:
    disk = OfflineRegistry(
        "PROTOBUF", {"bets": [files["bet.proto"], files["bet_2.proto"]]}, {"PROTOBUF": imported_files}
    )

    assert disk.versions("bets") == (1, 2)
    assert disk.version("bets", 2) == disk.by_id(2)
    assert disk.subjects_of(2) == (("bets", 2),)
    closed = ResolvedSchema(disk.by_id(1), References(disk).imports_of(disk.by_id(1)))
    assert closed.imports == {"money.proto": MONEY}
    assert compile_schema(closed)


@pytest.mark.parametrize("decoder", [JsonSchema, Auto])
def test_a_json_schema_brings_the_files_that_it_refers_to(tmp_path: Path, decoder: type[JsonSchema | Auto]) -> None:
    """Without it a configuration whose schemas have references cannot be tested."""
    bet = '{"properties": {"stake": {"$ref": "money.json#/$defs/cents"}}}'
    (tmp_path / "bet.json").write_text(bet)
    (tmp_path / "money.json").write_text('{"$defs": {"cents": {"type": "integer"}}}')

    disk = decoder.model_validate({"registry": "http://localhost"}).on_disk({"bets": [tmp_path / "bet.json"]})

    imports = References(disk).imports_of(disk.version("bets", 1))
    assert struct_of_text(bet, imports).simpleString() == "struct<stake:bigint>"


def test_the_newest_version_writes_unless_a_file_is_named(files: dict[str, Path]) -> None:
    old, new = files["bet.proto"], files["bet_2.proto"]
    disk = OfflineRegistry("PROTOBUF", {"bets": [old, new]})

    assert disk.choose_file(None) == (2, new)
    assert disk.choose_file(old) == (1, old)
    for wrong in (OfflineRegistry("PROTOBUF", {"bets": [old], "others": [new]}), OfflineRegistry("PROTOBUF", {})):
        with pytest.raises(ValueError, match="several subjects"):
            wrong.choose_file(None)
    with pytest.raises(ValueError, match="money"):
        disk.choose_file(files["money.proto"])


def test_what_is_not_there_is_not_found(files: dict[str, Path]) -> None:
    disk = OfflineRegistry("PROTOBUF", {"bets": [files["bet.proto"]]})

    for ask in (
        lambda: disk.by_id(7),
        lambda: disk.versions("bids"),
        lambda: disk.version("bets", 2),
        lambda: disk.id_of(UUID(int=1)),
    ):
        with pytest.raises(NotFound):
            ask()
    with pytest.raises(StartError, match=r"gone\.proto"):
        OfflineRegistry("PROTOBUF", {"bets": [Path("gone.proto")]})
