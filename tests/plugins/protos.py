"""Write messages of a .proto file with google's own runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.protobuf import message_factory
from google.protobuf.json_format import ParseDict

from router_schemas.protobuf.descriptors import message_of, read_descriptors

if TYPE_CHECKING:
    from pathlib import Path

GAMES = """
syntax = "proto3";
package games;
import "google/protobuf/any.proto";
message Bet { string game = 1; int64 amount = 2; map<string, int32> odds = 3; message Card { string face = 1; } }
message Login { string gamer = 1; string game = 2; }
message Clash { bytes game = 1; }
enum Kind { NONE = 0; Bet_ = 1; }
message Envelope {
  message Head { string name = 1; optional bytes body = 2; int32 schema_id = 3; }
  Head head = 1;
  google.protobuf.Any any = 2;
  repeated string tags = 3;
}
"""


@dataclass(frozen=True)
class Proto:
    """A .proto file in a folder."""

    path: Path
    descriptors: bytes

    @staticmethod
    def in_folder(folder: Path, text: str = GAMES, name: str = "games.proto") -> Proto:
        """Write a file, and its FileDescriptorSet beside it as NAME.desc."""
        path = folder / name
        path.write_text(text)
        path.with_suffix(".desc").write_bytes(read_descriptors(path))
        return Proto(path, read_descriptors(path))

    def message(self, name: str, **values: Any) -> Any:
        """Return a message."""
        return ParseDict(values, message_factory.GetMessageClass(message_of(self.descriptors, f"games.{name}"))())

    def bytes(self, name: str, **values: Any) -> bytes:
        """Return the bytes of a message."""
        return bytes(self.message(name, **values).SerializeToString())

    def envelope(self, name: str, inner: Any, schema_id: int = 0) -> bytes:
        """Return the bytes of an envelope that holds a message in both ways."""
        outer = self.message("Envelope")
        outer.head.name, outer.head.body, outer.head.schema_id = name, inner.SerializeToString(), schema_id
        outer.any.Pack(inner)
        return bytes(outer.SerializeToString())
