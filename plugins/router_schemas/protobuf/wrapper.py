"""Know messages that are wrapped in others. For the driver."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from router import StartError
from router_schemas.library import Library
from router_schemas.places import Place
from router_schemas.protobuf.messages import all_names
from router_schemas.protobuf.unwrapping import ANY, WRAPPED, Wrapped, type_at

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from router_schemas.protobuf.library import FileMessages, Messages, OneMessage
    from router_schemas.protobuf.unwrapping import Fields

_TYPES = {"payload": (pa.binary(), ANY), "name": (pa.string(),), "schema_id": (pa.int32(), pa.int64())}
_WORDS = {"payload": "bytes or a google.protobuf.Any", "name": "a string or an enum", "schema_id": "an integer"}


class Payloads(Library[Wrapped]):
    """Know outer messages and those inside. `messages` are full names known before their first record."""

    def __init__(
        self, outer: Messages | OneMessage, inner: Messages | FileMessages, fields: Fields, messages: tuple[str, ...]
    ) -> None:
        self._outer = outer
        self._inner = inner
        self._fields = fields
        self._messages = messages
        self._made: Wrapped | None = None
        self._fault = ""

    @property
    def empty(self) -> bool:
        """Say whether no message inside is known yet."""
        return self._inner.empty

    @property
    def advice(self) -> str:
        """Say how a configuration announces messages inside, or which outer messages there are."""
        return self._fault or "name the wrapper's `messages`, or its `subjects`"

    @property
    def announced(self) -> bool:
        """Say whether messages inside are known before their first record."""
        outer = self._outer.announced or not self._outer.empty
        return self._inner.announced or bool(self._messages and outer)

    def refreshed(self, wanted: Iterable[str] = ()) -> Wrapped:
        """Return how to read all that is known and what is wanted."""
        wanted = set(wanted)
        inside = {place for place in wanted if place.startswith(WRAPPED)}
        outer = self._outer.refreshed(wanted - inside)
        named = {} if self._fields.schema_id else self._named()
        first = {str(Place(schema, one)) for schema, known in named.items() for one in self._messages if one in known}
        inner = self._inner.refreshed({place.removeprefix(f"{WRAPPED} ") for place in inside} | first)
        if self._made is None or self._made.outer is not outer or self._made.inner is not inner:
            self._fault = self._missing(outer.event)
            if self._fault and self._outer.settled:
                raise StartError(self._fault)
            self._made = Wrapped(outer, inner, self._fields, named)
        return self._made

    def _named(self) -> dict[int | UUID | None, dict[str, str]]:
        """Return for the schemas of outer messages how payloads may call the messages of their files."""
        found: dict[int | UUID | None, dict[str, str]] = {}
        for place, use in self._outer.uses.items():
            schema = None if use.origin.id is None else Place.of(place).schema
            found[schema] = _called(use.files)
        return found

    def _missing(self, event: pa.StructType) -> str:
        """Say which field of the configuration no outer message has so far; raise StartError for one of no use."""
        for option, kinds in _TYPES.items():
            path = getattr(self._fields, option)
            kind = type_at(event, path)
            if path and kind is None:
                return f"wrapper.{option}: no outer message that is known has the field {'.'.join(path)}"
            if path and kind not in kinds:
                where = f"wrapper.{option}: {'.'.join(path)}"
                raise StartError(f"{where} must be {_WORDS[option]} of the outer message; it is {kind}")
        named = bool(self._fields.name or self._fields.schema_id)
        if named and type_at(event, self._fields.payload) == ANY:
            raise StartError("wrapper.payload: an Any names its message itself; leave out `name` and `schema_id`")
        if not named and type_at(event, self._fields.payload) != ANY:
            raise StartError("wrapper.payload: bytes do not name their message; give `name` or `schema_id`")
        return ""


@lru_cache(maxsize=256)
def _called(files: bytes) -> dict[str, str]:
    """Return full name by name: the full one, and the last part of it where no other message ends so."""
    full = all_names(files)
    short = Counter(name.rpartition(".")[2] for name in full)
    return {name.rpartition(".")[2]: name for name in full if short[name.rpartition(".")[2]] == 1} | {
        name: name for name in full
    }
