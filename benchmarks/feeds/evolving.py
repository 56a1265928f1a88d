"""Events whose schema grows while a stream runs: version v has v - 1 fields more than the first, and fills them all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.feeds.framed import message_class, proto_text
from benchmarks.registries import registry
from router_demo.registry import subject_in
from router_schemas.wire_format import prefix

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Evolving:
    """Be a subject and its events, all of one game."""

    subject: str
    table: str = "game_0000"
    frames: dict[int, bytes] = field(default_factory=dict)

    def column(self, version: int) -> str:
        """Return what a version brings."""
        return f"later_{version}"

    def register(self, version: int) -> None:
        """Register a version."""
        with subject_in(registry().url, self.subject) as subject:
            self.frames[version] = prefix(subject.register("PROTOBUF", proto_text(version)), (0,))

    def values(self, version: int, events: int) -> Iterator[bytes]:
        """Yield values of a version that was registered."""
        made, frame = message_class(version), self.frames[version]
        later: dict[str, Any] = {self.column(one): f"since version {one}" for one in range(2, version + 1)}
        for number in range(events):
            message = made(game=self.table, gamer_id=f"g-{number}", seq=number, **later)
            yield frame + bytes(message.SerializeToString())
